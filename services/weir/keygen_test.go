package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/gateway/authority"
)

// keygen gives what the command prints.
func keygen(t *testing.T, args ...string) (out, fault string, code int) {
	t.Helper()
	var stdout, stderr strings.Builder
	code = run(append([]string{"keygen"}, args...), &stdout, &stderr)
	return stdout.String(), stderr.String(), code
}

// entry reads what was printed as an operator pastes it.
func entry(t *testing.T, out string) *authority.Auth {
	t.Helper()
	_, yaml, found := strings.Cut(out, "# in auth.yaml\n")
	if !found {
		t.Fatalf("no entry in %s", out)
	}
	a, err := authority.ParseAuth("auth.yaml", []byte(yaml))
	if err != nil || len(a.Keys) != 1 {
		t.Fatalf("the entry is not valid: %v\n%s", err, yaml)
	}
	return a
}

func TestKeygen(t *testing.T) {
	out, fault, code := keygen(t, "--owner", "tenant-a", "--name", "nightly \"batch\"")
	if code != 0 {
		t.Fatal(fault)
	}
	key, _, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(out, "key (shown once):")), "\n")
	a := entry(t, out)
	if a.Keys[0].Hash != authority.HashKey(key) || a.Keys[0].Owner != "tenant-a" || a.Keys[0].Key.Name != "nightly \"batch\"" {
		t.Errorf("the entry is not of the key %s: %+v", key, a.Keys[0])
	}
	if diff := cmp.Diff(authority.Quota{}, a.Keys[0].Key.Quota); diff != "" {
		t.Errorf("limits that nobody asked for: %s", diff)
	}
}

// TestKeygenDerives holds the suggestion for a certified model against numbers worked out by hand: a share of 262144 of 408987 tokens,
// two of the largest inputs (above that share of the ceiling, and just not above the ceiling), and that share of 74000.
func TestKeygenDerives(t *testing.T) {
	out, fault, code := keygen(t, "--derive", "--admit-budget-tokens=408987", "--max-model-len=262144", "--max-input-tokens=259760",
		"--itpm-ceiling=519540", "--otpm-ceiling=74000", "--sellable-rpm=48")
	if code != 0 {
		t.Fatal(fault)
	}
	want := authority.Quota{OccupancyShare: 640_959, InputTokensPerMinute: 519_520, OutputTokensPerMinute: 47_430, RequestsPerMinute: 96}
	if diff := cmp.Diff(want, entry(t, out).Keys[0].Key.Quota); diff != "" {
		t.Error(diff)
	}
}

func TestKeygenSaysWhichFlagIsWrong(t *testing.T) {
	for args, want := range map[string]string{
		"--otpm-ceiling=5": "--otpm-ceiling is 5, and of use with --derive alone",
		"--derive":         "--admit-budget-tokens is 0: with --derive it must be given",
		"--derive --admit-budget-tokens=9 --max-model-len=9 --max-input-tokens=9 --itpm-ceiling=8 --otpm-ceiling=9 --sellable-rpm=9":  "--itpm-ceiling is 8: it must be at least --max-input-tokens, 9",
		"--derive --admit-budget-tokens=9 --max-model-len=9 --max-input-tokens=9 --itpm-ceiling=9 --otpm-ceiling=9 --sellable-rpm=-1": "--sellable-rpm is -1",
	} {
		out, fault, code := keygen(t, strings.Fields(args)...)
		if code != 1 || !strings.Contains(fault, want) || out != "" {
			t.Errorf("%s: exit code %d, %s%s", args, code, fault, out)
		}
	}
}

// TestKeygenThroughTheAPI makes keys at a running gateway: what is printed holds at once, the registry's version moves only where there was
// none, and nothing that is there is replaced.
func TestKeygenThroughTheAPI(t *testing.T) {
	w := startWhole(t, "")
	t.Setenv("WEIR_ADMIN_KEY", testAdmin)
	printed := regexp.MustCompile(`^key \(shown once\):  (sk-weir-\S{43})\nid: +(\S+)\nowner: +(\S+)\nversion: +(\S+)\n$`)
	made := func(args ...string) (key, id, version string) {
		t.Helper()
		out, fault, code := keygen(t, append([]string{"--url", w.url}, args...)...)
		m := printed.FindStringSubmatch(out)
		if code != 0 || m == nil {
			t.Fatalf("exit %d: %s%s", code, out, fault)
		}
		return m[1], m[2], m[4]
	}
	asks := func(key string, want int) {
		t.Helper()
		w.keys["made"] = key
		w.chat("made", want)
	}
	key, id, version := made("--owner", "globex", "--name", "nightly")
	if id != authority.KeyID(authority.HashKey(key)) {
		t.Errorf("the id is %s", id)
	}
	asks(key, 200)
	key, id, again := made("--org", "globex", "--id", "second", "--derive", "--admit-budget-tokens=408987", "--max-model-len=262144", "--max-input-tokens=259760",
		"--itpm-ceiling=519540", "--otpm-ceiling=74000", "--sellable-rpm=48")
	if id != "second" || again != version {
		t.Errorf("id %s, version %s after %s", id, again, version)
	}
	asks(key, 200)
	status, _, text := w.do("GET", "/admin/api-keys/second", "", operatorHeader())
	for _, part := range []string{`"input_tokens_per_minute":519520`, `"max_occupancy_share":0.640959`, `"owner":"globex"`} {
		if status != 200 || !strings.Contains(text, part) {
			t.Errorf("%d %s does not say %s", status, text, part)
		}
	}
	for part, args := range map[string][]string{
		"there is a key second already":          {"--url", w.url, "--owner", "globex", "--id", "second"},
		"with --url, --owner must be given":      {"--url", w.url},
		"--id is x, and of use with --url alone": {"--id", "x"},
		"an admin key is needed":                 {"--url", w.url, "--owner", "globex", "--admin-key", "wrong"},
	} {
		if out, fault, code := keygen(t, args...); code == 0 || out != "" || !strings.Contains(fault, part) {
			t.Errorf("%v: exit %d, %q %q, want %q", args, code, out, fault, part)
		}
	}
	asks(key, 200) // nothing was replaced
}
