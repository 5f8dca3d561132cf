package main

import (
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
