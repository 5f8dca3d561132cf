package authority_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/gateway/authority"
)

const (
	hashA = "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b" // of "1"
	hashB = "d4735e3a265e16eee03f59718b9b5d03019c07d8b6c51f90da3a666eec13ab35" // of "2"
)

// whole is auth.yaml with every field of the format.
const whole = `
api:
  mode: api-key
  keys:
    - key_hash: "` + hashA + `"
      key_preview: "sk-...prod"
      metadata:
        name: "Acme production"
        owner: "acme-corp"
        description: "Primary production application"
        created_at: "27-07-2026"
        expires_at: "31-12-2026"
      models:
        - meta-llama/Llama-3.1-8B-Instruct
        - BAAI/bge-m3
      quota:
        requests_per_minute: 1000
        tokens_per_day: 5000000
        input_tokens_per_minute: 262144
        output_tokens_per_minute: 32768
      max_occupancy_share: 0.25
      workspace: research
      principal: alice
      limits: {rpm: 10, rps: 2, tpm: 3000, concurrency: 4, spend_day: "1.50", spend_month: 20, tokens_per_day: 7000, outage_mode: closed}
    - key_hash: "` + hashB + `"
      metadata: {name: "Multi-model", owner: "platform team"}
      quota:
        per_model:
          Qwen/Qwen3.6-27B: {requests_per_minute_per_replica: 10, tokens_per_day: 3000000}
          BAAI/bge-m3: {requests_per_minute_per_replica: 1000, tokens_per_day: 0}
admin:
  mode: api-key
`

func parse(t *testing.T, text string) *authority.Auth {
	t.Helper()
	a, err := authority.ParseAuth("auth.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestEveryFieldOfAuth(t *testing.T) {
	a := parse(t, whole)
	if a.Mode != authority.ModeAPIKey || a.AdminMode != "api-key" || len(a.Keys) != 2 || len(a.Warnings) != 0 {
		t.Fatalf("%+v", a)
	}
	k := a.Keys[0]
	if k.Hash != authority.HashKey("1") || k.Owner != "acme-corp" {
		t.Errorf("%+v", k)
	}
	want := &authority.Key{
		ID: "k-6b86b273ff34fce1", Org: "acme-corp", Workspace: "research", Principal: "alice", Name: "Acme production", Preview: "sk-...prod",
		Models:  map[string]bool{"meta-llama/Llama-3.1-8B-Instruct": true, "BAAI/bge-m3": true},
		Expires: time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC), Daily: 7000, At: authority.Pos{File: "auth.yaml", Line: 5},
		Limits: authority.Limits{RPM: 10, RPS: 2, TPM: 3000, Concurrency: 4, SpendDay: 1_500_000_000, SpendMonth: 20_000_000_000, Closed: true},
		Quota:  authority.Quota{RequestsPerMinute: 1000, TokensPerDay: 5_000_000, InputTokensPerMinute: 262_144, OutputTokensPerMinute: 32_768, OccupancyShare: 250_000},
	}
	if diff := cmp.Diff(want, k.Key, cmp.AllowUnexported(authority.Key{})); diff != "" {
		t.Error(diff)
	}
	quota := map[string]authority.ModelQuota{"Qwen/Qwen3.6-27B": {RequestsPerMinutePerReplica: 10, TokensPerDay: 3_000_000}, "BAAI/bge-m3": {RequestsPerMinutePerReplica: 1000}}
	if diff := cmp.Diff(quota, a.Keys[1].Key.Quota.PerModel); diff != "" {
		t.Error(diff)
	}
	if org := a.Keys[1].Key.Org; org != "o-be84ebe551fafe45" {
		t.Errorf("org %s", org)
	}
	if !a.Keys[1].Key.May("BAAI/bge-m3") || a.Keys[1].Key.May("other") || !k.Key.May("BAAI/bge-m3") || k.Key.May("bge") {
		t.Error("the wrong models are allowed")
	}
}

// keys is an auth.yaml with one key that has these fields too.
func keys(fields string) string {
	return "api:\n  mode: api-key\n  keys:\n    - key_hash: " + hashA + "\n      metadata: {name: n, owner: o}\n" + fields
}

func TestFaultsOfAuth(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"unknown mode":        {"api: {mode: open}\n", "auth.yaml:1: api.mode is open: must be one of none, api-key, dynamic"},
		"unknown admin mode":  {"admin: {mode: open}\n", "auth.yaml:1: admin.mode is open: must be one of none, api-key"},
		"no keys":             {"api:\n  mode: api-key\n", "auth.yaml:1: api.keys: must have at least one key in mode api-key"},
		"empty list of keys":  {"api:\n  mode: api-key\n  keys: []\n", "auth.yaml:3: api.keys is a list: must have at least one key in mode api-key"},
		"keys without a mode": {"api:\n  keys:\n    - key_hash: " + hashA + "\n      metadata: {name: n, owner: o}\n", "auth.yaml:1: api.mode: must be given where there are keys: none, api-key or dynamic"},
		"no hash":             {"api:\n  mode: api-key\n  keys:\n    - metadata: {name: n, owner: o}\n", "auth.yaml:4: api.keys[0].key_hash: must be the SHA-256 of the key in 64 hexadecimal digits"},
		"a hash of another length": {"api:\n  mode: api-key\n  keys:\n    - key_hash: abcd\n      metadata: {name: n, owner: o}\n",
			"auth.yaml:4: api.keys[0].key_hash is abcd: must be the SHA-256 of the key in 64 hexadecimal digits"},
		"a key in place of its hash": {"api:\n  mode: api-key\n  keys:\n    - key_hash: sk-weir-secret\n      metadata: {name: n, owner: o}\n",
			"auth.yaml:4: api.keys[0].key_hash: must be the SHA-256 of the key in 64 hexadecimal digits"},
		"the same key twice": {keys("") + "    - key_hash: " + strings.ToUpper(hashA) + "\n      metadata: {name: n, owner: o}\n",
			"auth.yaml:6: api.keys[1].key_hash: the same key as on line 4: a key may stand once"},
		"a field twice":    {keys("      models: [a]\n      models: [b]\n"), "auth.yaml:7: api.keys[0].models: stands twice: a key may stand once"},
		"an unknown field": {keys("      quota: {request_per_minute: 5}\n"), "auth.yaml:6: api.keys[0].quota.request_per_minute: there is no such field: did you mean requests_per_minute?"},
		"another date": {"api:\n  mode: api-key\n  keys:\n    - key_hash: " + hashA + "\n      metadata: {name: n, owner: o, expires_at: 2026-12-31}\n",
			"auth.yaml:5: api.keys[0].metadata.expires_at is 2026-12-31: must be a day, DD-MM-YYYY"},
		"a day that does not exist": {"api:\n  mode: api-key\n  keys:\n    - key_hash: " + hashA + "\n      metadata: {name: n, owner: o, expires_at: 31-02-2026}\n",
			"auth.yaml:5: api.keys[0].metadata.expires_at is 31-02-2026: must be a day, DD-MM-YYYY"},
		"share above 1":         {keys("      max_occupancy_share: 1.5\n"), "auth.yaml:6: api.keys[0].max_occupancy_share is 1.5: must be 0 (unset) or greater than 0 and at most 1: 0.5 is half"},
		"share barely above":    {keys("      max_occupancy_share: 1.0000000001\n"), "auth.yaml:6: api.keys[0].max_occupancy_share is 1.0000000001: must be 0 (unset) or greater than 0 and at most 1: 0.5 is half"},
		"negative share":        {keys("      max_occupancy_share: -0.1\n"), "auth.yaml:6: api.keys[0].max_occupancy_share is -0.1: must be 0 (unset) or greater than 0 and at most 1: 0.5 is half"},
		"negative input rate":   {keys("      quota: {input_tokens_per_minute: -1}\n"), "auth.yaml:6: api.keys[0].quota.input_tokens_per_minute is -1: must not be negative"},
		"negative output rate":  {keys("      quota: {output_tokens_per_minute: -1}\n"), "auth.yaml:6: api.keys[0].quota.output_tokens_per_minute is -1: must not be negative"},
		"a fraction of a token": {keys("      quota: {tokens_per_day: 1.5}\n"), "auth.yaml:6: api.keys[0].quota.tokens_per_day is 1.5: must be a whole number"},
		"both shapes": {keys("      quota: {requests_per_minute: 5, per_model: {m: {requests_per_minute_per_replica: 1, tokens_per_day: 1}}}\n"),
			"auth.yaml:6: api.keys[0].quota.requests_per_minute is 5: must not stand beside per_model: a quota is flat or by model"},
		"both shapes with the token rates": {keys("      quota: {input_tokens_per_minute: 0, per_model: {m: {requests_per_minute_per_replica: 1, tokens_per_day: 1}}}\n"),
			"auth.yaml:6: api.keys[0].quota.input_tokens_per_minute is 0: must not stand beside per_model: a quota is flat or by model"},
		"empty per_model": {keys("      quota: {per_model: {}}\n"), "auth.yaml:6: api.keys[0].quota.per_model is a map: must have at least one model"},
		"null per_model":  {keys("      quota: {per_model: null}\n"), "auth.yaml:6: api.keys[0].quota.per_model: must have at least one model"},
		"half an entry": {keys("      quota: {per_model: {m: {requests_per_minute_per_replica: 10}}}\n"),
			"auth.yaml:6: api.keys[0].quota.per_model.m.tokens_per_day: must be given: 0 for no limit"},
		"negative entry": {keys("      quota: {per_model: {m: {requests_per_minute_per_replica: 10, tokens_per_day: -1}}}\n"),
			"auth.yaml:6: api.keys[0].quota.per_model.m.tokens_per_day is -1: must not be negative"},
		"a model without a name": {keys("      quota: {per_model: {\"\": {requests_per_minute_per_replica: 10, tokens_per_day: 1}}}\n"),
			"auth.yaml:6: api.keys[0].quota.per_model. is a map: must be under the id of a model"},
		"limits out of range": {keys("      limits: {rpm: 0, tpm: 1000000001, concurrency: 10001}\n"),
			"auth.yaml:6: api.keys[0].limits.rpm is 0: must be from 1 to 1000000\n" +
				"auth.yaml:6: api.keys[0].limits.tpm is 1000000001: must be from 1 to 1000000000\n" +
				"auth.yaml:6: api.keys[0].limits.concurrency is 10001: must be from 1 to 10000"},
		"unknown outage mode": {keys("      limits: {outage_mode: open}\n"), "auth.yaml:6: api.keys[0].limits.outage_mode is open: must be one of bounded_open, closed"},
		"no YAML":             {"api: [\n", "auth.yaml:1: not valid YAML: sequence end token ']' not found"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := authority.ParseAuth("auth.yaml", []byte(c.text))
			if err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestWarningsOfAuth(t *testing.T) {
	for text, want := range map[string]string{
		"api:\n  mode: none\n  keys:\n    - key_hash: " + hashA + "\n      metadata: {name: n, owner: o}\n": "auth.yaml:3: api.keys: keys are not used in mode none: everybody is let in",
		"admin: {mode: none}\n": "auth.yaml:1: admin.mode: management is never open: it needs an admin key all the same",
		keys("      models: [a]\n      quota: {per_model: {m: {requests_per_minute_per_replica: 1, tokens_per_day: 1}}}\n"): "auth.yaml:6: api.keys[0].models: is not used beside quota.per_model, whose models are the key's",
		"api:\n  mode: api-key\n  keys:\n    - key_hash: " + hashA + "\n      metadata: {name: n}\n":                        "auth.yaml:5: api.keys[0].metadata.owner: is missing: the key is an org of its own",
	} {
		a := parse(t, text)
		if len(a.Warnings) != 1 || a.Warnings[0].String() != want {
			t.Errorf("%s: %v, want %s", text, a.Warnings, want)
		}
	}
}

func TestAnEmptyAuthLetsEverybodyIn(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "api: {}\n", "api: {mode: none}\n"} {
		if a := parse(t, text); a.Mode != authority.ModeNone {
			t.Errorf("%q: mode %s", text, a.Mode)
		}
	}
}

func TestOwners(t *testing.T) {
	for owner, want := range map[string]string{
		"acme-corp": "acme-corp", "A_1": "A_1", strings.Repeat("a", 64): strings.Repeat("a", 64),
		"acme corp": "o-", strings.Repeat("a", 65): "o-", "_": "o-", "-x": "o-", "é": "o-", "a.b": "o-", "a>b": "o-",
	} {
		got := string(authority.OrgOf(owner))
		if want == "o-" {
			if !strings.HasPrefix(got, "o-") || len(got) != 18 || !authority.OrgOf(owner).Valid() {
				t.Errorf("%q is org %s", owner, got)
			}
		} else if got != want {
			t.Errorf("%q is org %s, want %s", owner, got, want)
		}
	}
	if got := authority.OrgOf("acme corp"); got != "o-ea6f9c07a2f95c78" {
		t.Errorf("acme corp is org %s", got)
	}
	a := parse(t, "api:\n  mode: api-key\n  keys:\n    - key_hash: "+hashA+"\n")
	if k := a.Keys[0].Key; string(k.Org) != k.ID {
		t.Errorf("without an owner the org is %s, not the key's id %s", k.Org, k.ID)
	}
}

func TestAuthenticate(t *testing.T) {
	a := parse(t, whole)
	s, _, err := authority.Build(&authority.Declared{}, a, &authority.Policies{})
	if err != nil {
		t.Fatal(err)
	}
	last := time.Date(2026, 12, 31, 23, 59, 59, 0, time.UTC)
	for _, c := range []struct {
		raw    string
		now    time.Time
		name   string
		denial authority.Denial
	}{
		{"1", last, "Acme production", ""}, // valid through the whole day
		{"1", last.Add(time.Second), "", authority.DeniedExpired},
		{"2", last.AddDate(50, 0, 0), "Multi-model", ""},
		{"", last, "", authority.DeniedMissing},
		{"3", last, "", authority.DeniedUnknown},
		{hashA, last, "", authority.DeniedUnknown}, // the hash is no key
		{strings.Repeat("x", authority.MaxRawKey+1), last, "", authority.DeniedUnknown},
	} {
		k, denial := authority.Authenticate(s, c.raw, c.now)
		if denial != c.denial || (k == nil) != (c.denial != "") || k != nil && k.Name != c.name {
			t.Errorf("%.10q at %s: %v %q", c.raw, c.now, k, denial)
		}
	}
}

func TestModeNone(t *testing.T) {
	s, _, err := authority.Build(&authority.Declared{Orgs: []authority.DeclaredOrg{{Name: "default", Limits: authority.Limits{RPM: 9}}}}, authority.None(), &authority.Policies{})
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range []string{"", "anything"} {
		k, denial := authority.Authenticate(s, raw, time.Time{})
		if denial != "" || k.ID != "anonymous" || k.Org != "default" {
			t.Errorf("%q: %+v %q", raw, k, denial)
		}
	}
	if scopes := s.Scopes(s.Anonymous); scopes[1].Limits.RPM != 9 {
		t.Errorf("the org's limits are %+v", scopes[1].Limits)
	}
}

func TestKeyIDs(t *testing.T) {
	if got := authority.KeyID(authority.HashKey("1")); got != "k-6b86b273ff34fce1" {
		t.Error(got)
	}
}

func TestUnreadableFiles(t *testing.T) {
	dir := t.TempDir()
	if _, err := authority.LoadAuth(filepath.Join(dir, "none.yaml")); err == nil || !strings.Contains(err.Error(), "none.yaml: cannot be read: no such file") {
		t.Error(err)
	}
	if _, err := authority.LoadAuth(dir); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Error(err)
	}
	big := filepath.Join(dir, "big.yaml")
	if err := os.WriteFile(big, make([]byte, 17<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := authority.LoadAuth(big); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Error(err)
	}
}

// TestDeriveKeyDefaults are the published vectors.
func TestDeriveKeyDefaults(t *testing.T) {
	for name, c := range map[string]struct {
		in   authority.Certified
		want authority.KeyDefaults
	}{
		"the baseline share":         {authority.Certified{AdmitBudgetTokens: 1_000_000, MaxModelLen: 250_000}, authority.KeyDefaults{OccupancyShare: 400_000}},
		"the longest context":        {authority.Certified{AdmitBudgetTokens: 1_000_000, MaxModelLen: 600_000}, authority.KeyDefaults{OccupancyShare: 600_000}},
		"never above the whole":      {authority.Certified{AdmitBudgetTokens: 100_000, MaxModelLen: 150_000}, authority.KeyDefaults{OccupancyShare: 1_000_000}},
		"two of the largest inputs":  {authority.Certified{AdmitBudgetTokens: 1_000_000, MaxModelLen: 100_000, MaxInputTokens: 250_000, ITPMCeiling: 1_000_000}, authority.KeyDefaults{OccupancyShare: 400_000, InputTokensPerMinute: 500_000}},
		"the share of the ceiling":   {authority.Certified{AdmitBudgetTokens: 1_000_000, MaxModelLen: 100_000, MaxInputTokens: 100_000, ITPMCeiling: 800_000}, authority.KeyDefaults{OccupancyShare: 400_000, InputTokensPerMinute: 320_000}},
		"never above the ceiling":    {authority.Certified{AdmitBudgetTokens: 1_000_000, MaxModelLen: 100_000, MaxInputTokens: 260_000, ITPMCeiling: 500_000}, authority.KeyDefaults{OccupancyShare: 400_000, InputTokensPerMinute: 500_000}},
		"output is the share":        {authority.Certified{AdmitBudgetTokens: 1_000_000, MaxModelLen: 100_000, OTPMCeiling: 120_000}, authority.KeyDefaults{OccupancyShare: 400_000, OutputTokensPerMinute: 48_000}},
		"twice what can be sold":     {authority.Certified{SellableRPM: 48}, authority.KeyDefaults{OccupancyShare: 400_000, RequestsPerMinute: 96}},
		"a model as it was measured": {authority.Certified{AdmitBudgetTokens: 408_987, MaxModelLen: 262_144, MaxInputTokens: 262_144, ITPMCeiling: 519_540, OTPMCeiling: 74_000, SellableRPM: 48}, authority.KeyDefaults{OccupancyShare: 640_959, InputTokensPerMinute: 519_540, OutputTokensPerMinute: 47_430, RequestsPerMinute: 96}},
	} {
		if got := authority.DeriveKeyDefaults(c.in); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestFractions(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "1": 1_000_000, "0.25": 250_000, "1.000": 1_000_000, "0.3333333333333333333333": 333_333, "0.00000001": 1, ".5": 500_000} {
		if got, err := authority.ParseFraction(text); err != nil || got != want {
			t.Errorf("%s is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "x", "-1", "1.1", "1.0000000001", "2", "1e-1", "0.1234567x", "0.5.5", "NaN"} {
		if got, err := authority.ParseFraction(text); err == nil {
			t.Errorf("%q is taken as %d", text, got)
		}
	}
}

func FuzzAuth(f *testing.F) {
	f.Add(whole)
	f.Add(keys("      quota: {per_model: {m: {requests_per_minute_per_replica: 1}}}\n"))
	f.Add("api: {mode: dynamic, keys: [{metadata: {expires_at: 01-01-2027}}]}")
	f.Fuzz(func(t *testing.T, text string) {
		a, err := authority.ParseAuth("auth.yaml", []byte(text))
		if (a == nil) == (err == nil) {
			t.Fatal("neither a result nor an error, or both")
		}
		if a == nil {
			return
		}
		s, _, err := authority.Build(&authority.Declared{}, a, &authority.Policies{})
		if err != nil {
			return
		}
		for _, k := range s.Keys {
			if !k.Org.Valid() || k.Org == "_" {
				t.Fatalf("org %q", k.Org)
			}
		}
	})
}
