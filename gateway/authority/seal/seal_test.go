package seal

import (
	"bytes"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/weirhq/weir/events"
)

func keys(t *testing.T, lines ...string) *Keys {
	t.Helper()
	k, err := Parse(strings.Join(lines, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func line(t *testing.T, id string) string {
	t.Helper()
	text, err := NewKey(id, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

const secret = "sk-provider-secret"

func TestOnlyItsConnectionOpensIt(t *testing.T) {
	k := keys(t, "# newest first", line(t, "a"))
	sealed, err := k.Seal("acme", "c", secret, rand.Reader)
	if err != nil || bytes.Contains(sealed, []byte(secret)) {
		t.Fatalf("%q, %v", sealed, err)
	}
	again, err := k.Seal("acme", "c", secret, rand.Reader)
	if err != nil || bytes.Equal(sealed, again) {
		t.Fatal("it is sealed in one way alone")
	}
	if got, err := k.Open("acme", "c", sealed); err != nil || got != secret {
		t.Fatalf("%q, %v", got, err)
	}
	broken := bytes.Clone(sealed)
	broken[len(broken)-1] ^= 1
	for what, try := range map[string]struct {
		k       *Keys
		org, id string
		sealed  []byte
	}{
		"another org":        {k, "other", "c", sealed},
		"another connection": {k, "acme", "d", sealed},
		"shifted":            {k, "acm", "ec", sealed},
		"damaged":            {k, "acme", "c", broken},
		"cut off":            {k, "acme", "c", sealed[:8]},
		"nothing":            {k, "acme", "c", nil},
		"plain":              {k, "acme", "c", []byte(secret)},
		"another key":        {keys(t, line(t, "a")), "acme", "c", sealed},
		"no such key":        {keys(t, line(t, "b")), "acme", "c", sealed},
	} {
		if got, err := try.k.Open(events.Org(try.org), try.id, try.sealed); err == nil || got != "" || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
}

func TestRotation(t *testing.T) {
	a, b := line(t, "a"), line(t, "b")
	old, err := keys(t, a).Seal("acme", "c", secret, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	both := keys(t, b, a)
	if got, err := both.Open("acme", "c", old); err != nil || got != secret {
		t.Fatalf("%q, %v", got, err)
	}
	renewed, err := both.Seal("acme", "c", secret, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if id, ok := KeyOf(renewed); !ok || id != "b" || both.Newest() != "b" {
		t.Errorf("it is sealed with %q", id)
	}
	if _, err := keys(t, b).Open("acme", "c", old); err == nil || !strings.Contains(err.Error(), "no key a") {
		t.Errorf("without the old key: %v", err)
	}
}

func TestFaultsOfKeys(t *testing.T) {
	good := line(t, "a")
	for text, want := range map[string]string{
		"":                                     "there is no key",
		"# nothing":                            "there is no key",
		good + "," + good:                      "its id is another's",
		strings.Replace(good, "a:", "a b:", 1): "an id that matches",
		"a:c2hvcnQ=":                           "must be 32 bytes",
		good[2:]:                               "an id that matches",
	} {
		_, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), good[2:]) {
			t.Errorf("%q: %v", want, err)
		}
	}
}
