package access

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/nats-io/nats.go"
)

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for range 200 {
		name, err := NewName("gw-eu")
		if err != nil {
			t.Fatal(err)
		}
		if configured, ok := Configured(name); !ok || configured != "gw-eu" || seen[name] {
			t.Fatalf("%q: configured %q, %v, seen before: %v", name, configured, ok, seen[name])
		}
		seen[name] = true
	}
	if _, err := NewName(strings.Repeat("x", MaxConfigured)); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "-x", "_x", "a.b", "a*", "a b", "ä", strings.Repeat("x", MaxConfigured+1), "a\n"} {
		if name, err := NewName(bad); err == nil {
			t.Errorf("%q became %q", bad, name)
		}
	}
	for _, bad := range []string{"gw", "gw-", "gw-1234567", "gw-123456789", "gw-1234567A", "gw-1234567\n", "-12345678", "gw.x-12345678", "gw-12345678 "} {
		if c, ok := Configured(bad); ok {
			t.Errorf("%q is taken for a full name of %q", bad, c)
		}
	}
}

func TestPermissionsAreNeverOpen(t *testing.T) {
	for role := range rules {
		p, err := PermissionsOf(Identity{Name: "x-12345678", Roles: []Role{role}})
		if err != nil {
			t.Fatal(err)
		}
		// An empty list would allow everything.
		if len(p.Publish) == 0 || len(p.Subscribe) == 0 {
			t.Errorf("%s: an empty list", role)
		}
		if role != System && (slices.Contains(p.Publish, ">") || slices.Contains(p.Subscribe, ">")) {
			t.Errorf("%s: may do everything", role)
		}
		for _, s := range p.Publish {
			if role != System && (strings.HasPrefix(s, "$JS.API.STREAM.DELETE") || strings.HasPrefix(s, "$JS.API.STREAM.PURGE") || strings.HasPrefix(s, "$SYS")) {
				t.Errorf("%s: may publish %s", role, s)
			}
		}
	}
}

func TestRoles(t *testing.T) {
	for _, bad := range [][]Role{nil, {"king"}, {Monitor, Gateway}, {System}, {doorCore}, {Gateway, doorGates}} {
		if _, _, err := NewCredentials("x", bad...); err == nil {
			t.Errorf("%v were given to somebody", bad)
		}
	}
	for where, roles := range map[string][]Role{AccountGates: {Gateway}, AccountReaders: {Monitor}, AccountCore: {Gateway, Operator}} {
		if got := account(roles); got != where {
			t.Errorf("%v live in %s, want %s", roles, got, where)
		}
	}
}

func TestSecretsProveNames(t *testing.T) {
	c, old, err := NewCredentials("gw", Gateway)
	if err != nil {
		t.Fatal(err)
	}
	next, fresh, err := NewCredentials("gw", Gateway)
	if err != nil {
		t.Fatal(err)
	}
	if old.Secret == fresh.Secret {
		t.Fatal("two secrets are one")
	}
	a, err := NewAuthenticator(Credentials{Identities: []Credential{c}}, make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	try := func(secret string, want bool) {
		t.Helper()
		g, err := a.Authenticate("gw-12345678", secret)
		if (err == nil) != want || err != nil && !errors.Is(err, ErrRefused) {
			t.Errorf("authenticating: %v, want success %v", err, want)
		}
		if want && (g.Account != AccountGates || g.Identity.Name != "gw-12345678") {
			t.Errorf("granted %+v", g)
		}
	}
	try(old.Secret, true)
	try(fresh.Secret, false)
	// A change of secrets: both, then the new one.
	c.SHA256 = append(c.SHA256, strings.ToUpper(next.SHA256[0]))
	if err := a.Replace(Credentials{Identities: []Credential{c}}); err != nil {
		t.Fatal(err)
	}
	try(old.Secret, true)
	try(fresh.Secret, true)
	if err := a.Replace(Credentials{Identities: []Credential{next}}); err != nil {
		t.Fatal(err)
	}
	try(old.Secret, false)
	try(fresh.Secret, true)
	try(next.SHA256[0], false)
	if _, err := NewAuthenticator(Credentials{}, make([]byte, 31)); err == nil {
		t.Error("a short key was taken")
	}
}

func TestOwnProofsAreForOneNameAndItsRoles(t *testing.T) {
	a, err := NewAuthenticator(Credentials{}, make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewAuthenticator(Credentials{}, []byte(strings.Repeat("k", 32)))
	if err != nil {
		t.Fatal(err)
	}
	var o nats.Options
	for _, opt := range a.Own(Identity{Name: "weir-12345678", Roles: []Role{Projector, Gateway}}) {
		if err := opt(&o); err != nil {
			t.Fatal(err)
		}
	}
	g, err := a.Authenticate(o.User, o.Password)
	if err != nil || g.Account != AccountCore || !g.Identity.Is(Gateway) || !g.Identity.Is(Projector) || o.InboxPrefix != g.Identity.Inbox() {
		t.Errorf("granted %+v (%v)", g, err)
	}
	if _, err := other.Authenticate(o.User, o.Password); !errors.Is(err, ErrRefused) {
		t.Error("another process took the proof")
	}
	if _, err := a.Authenticate("weir-12345679", o.Password); !errors.Is(err, ErrRefused) {
		t.Error("the proof was taken for another name")
	}
	if _, err := a.Authenticate(o.User, strings.Replace(o.Password, "projector", "system", 1)); !errors.Is(err, ErrRefused) {
		t.Error("the proof was taken for other roles")
	}
}

func TestCredentialsFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	c, s, err := NewCredentials("gw", Gateway, Operator)
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(Credentials{Identities: []Credential{c}})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{string(text), `{"identities":[{"name":"gw","roles":["gateway","operator"],"sha256":["` + c.SHA256[0] + `"]}]}`} {
		got, err := ReadCredentials(write("credentials", text, 0o644))
		if err != nil || len(got.Identities) != 1 || got.Identities[0].SHA256[0] != c.SHA256[0] || !slices.Equal(got.Identities[0].Roles, c.Roles) {
			t.Errorf("read %+v (%v)", got, err)
		}
	}
	bad := "identities:\n- {name: a.b, roles: [gateway], sha256: [00]}\n- {name: x, roles: [system], sha256: [00]}\n- {name: y, roles: [gateway], sha256: [zz]}\n" +
		"- {name: z, roles: [gateway], sha256: []}\n- {name: z, roles: [], sha256: []}\n"
	_, err = ReadCredentials(write("bad", bad, 0o644))
	for _, want := range []string{`name "a.b"`, `role "system"`, `"zz" is not 64 hex digits`, "has 0 hashes", `name "z": is there twice`, "at least one is required"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
	if _, err := ReadCredentials(write("unknown", "identities:\n- {name: x, secret: y}\n", 0o644)); err == nil || !strings.Contains(err.Error(), "[2:") {
		t.Errorf("an unknown field: %v, want its line", err)
	}

	path := filepath.Join(dir, "secret")
	if err := WriteSecret(path, s); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadSecret(path); err != nil || got != s {
		t.Errorf("read %+v (%v)", got, err)
	}
	if err := WriteSecret(path, s); !errors.Is(err, os.ErrExist) {
		t.Errorf("an existing secret: %v", err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSecret(path); err == nil || !strings.Contains(err.Error(), "mode 0640") {
		t.Errorf("a secret that others may read: %v", err)
	}
	if _, err := ReadSecret(write("nameless", "secret: x\n", 0o600)); err == nil || !strings.Contains(err.Error(), `name ""`) {
		t.Errorf("a secret without a name: %v", err)
	}
}

func TestCalloutKeys(t *testing.T) {
	k, err := NewCalloutKeys()
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadCalloutKeys(path); err != nil || got != k {
		t.Errorf("read %v (%v)", got == k, err)
	}
	user, issuer, xkey, err := k.Public()
	if err != nil || user[0] != 'U' || issuer[0] != 'A' || xkey[0] != 'X' {
		t.Errorf("public keys %s %s %s (%v)", user, issuer, xkey, err)
	}
	k.Issuer, k.User = k.User, k.Issuer
	if _, err := NewCallout(CalloutConfig{Keys: k}); err == nil || !strings.Contains(err.Error(), "user: is the seed of another kind") || strings.Contains(err.Error(), k.User) {
		t.Errorf("keys in each other's place: %v", err)
	}
}
