package config

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/policy"
	"github.com/weirhq/weir/gateway/wire"
)

var rewrite = flag.Bool("rewrite", false, "accept what the code does now")

// vars is an environment.
type vars map[string]string

func (v vars) get(name string) string { return v[name] }

func load(t *testing.T, text string, env vars) (*Config, []Warning) {
	t.Helper()
	c, warnings, err := Parse("etc/weir.yaml", []byte(text), env.get)
	if err != nil {
		t.Fatal(err)
	}
	return c, warnings
}

// TestTheWholeFile reads the file of the manual: every field has its value.
func TestTheWholeFile(t *testing.T) {
	data, err := os.ReadFile("testdata/whole.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, warnings := load(t, string(data), vars{"OPENAI_API_KEY": "sk-1"})
	if len(warnings) > 0 {
		t.Errorf("warnings %v", warnings)
	}
	m, n := c.Models[0], c.Connections[0]
	c.Models, c.Connections = nil, nil
	pos := func(line int) authority.Pos { return authority.Pos{File: "etc/weir.yaml", Line: line} }
	want := Default()
	want.File, want.DataDir, want.Auth, want.Policies, want.AuthOptional = "etc/weir.yaml", "etc/weir-data", "etc/auth.yaml", "etc/policies", false
	want.Defaults.Workspace.RPM, want.Defaults.Key.TPM = 100, 5
	want.Orgs = []authority.DeclaredOrg{{At: pos(14), Name: "acme", Billing: authority.Postpaid, Limits: authority.Limits{RPM: 600, RPS: 20, Closed: true}, Models: map[string]authority.Limits{"gpt-4o": {RPM: 60}}}}
	want.Pools = []authority.DeclaredPool{{At: pos(26), ID: "house-openai", Provider: "openai", RPM: 500, TPM: 1_000_000, Concurrency: 20, HeadroomPercent: 90, FairShare: 500_000}}
	if diff := cmp.Diff(want, c, cmpopts.IgnoreUnexported(Config{})); diff != "" {
		t.Error(diff)
	}
	wantModel := &authority.Model{
		ID: "qwen3", ContextWindow: 131_072, MaxOutputTokens: 32_768, At: pos(16),
		Price:     &authority.Price{Version: m.Price.Version, Input: 150_000_000, CachedInput: 75_000_000, CacheWrite: 187_500_000, Output: 600_000_000},
		Local:     &authority.Local{Engine: "vllm", Replicas: []string{"http://10.0.0.1:8000", "http://10.0.0.2:8000"}, Labels: make([]authority.Labels, 2)},
		Providers: []authority.Route{{Connection: "house-openai", Model: "gpt-4o-mini"}},
		Dedicated: &authority.Dedicated{Limits: authority.Limits{RPM: 600, TPM: 2_000_000, Concurrency: 32, RPS: 4}, QueueMS: 500, DefaultMaxOutputTokens: 4096},
	}
	if diff := cmp.Diff(wantModel, m, cmp.AllowUnexported(authority.Model{}, authority.ModelNames{})); diff != "" {
		t.Error(diff)
	}
	if n.ID != "house-openai" || n.Provider != "openai" || n.BaseURL != "https://api.openai.com" || n.Pool != "house-openai" || n.APIKey() != "sk-1" {
		t.Errorf("%+v", n)
	}
}

func TestNoFileAtAll(t *testing.T) {
	t.Chdir(t.TempDir())
	c, warnings, err := Load("", vars{}.get)
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	if diff := cmp.Diff(Default(), c, cmpopts.IgnoreUnexported(Config{})); diff != "" {
		t.Error(diff)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	source := c.Source()
	s, _, err := source.Load()
	if err != nil || s.Mode != authority.ModeNone {
		t.Errorf("%+v %v", s, err)
	}
	if _, _, err := Load("weir.yaml", vars{}.get); err == nil || err.Error() != "weir.yaml: cannot be read: no such file or directory" {
		t.Errorf("a named file need not be there: %v", err)
	}
	if err := os.WriteFile("weir.yaml", []byte("listen: :9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, _, err := Load("", vars{}.get); err != nil || c.Listen != ":9" || c.File != "weir.yaml" {
		t.Errorf("%+v %v", c, err)
	}
}

// TestEveryFieldHasAVariable gives each field by the environment alone.
func TestEveryFieldHasAVariable(t *testing.T) {
	env := vars{
		"WEIR_NAME": "edge", "WEIR_LISTEN": "0.0.0.0:80", "WEIR_DATA_DIR": "/var/lib/weir", "WEIR_LOG_URL": "nats://a:4222, tls://b:4222",
		"WEIR_LOG_CREDENTIALS": "/etc/creds", "WEIR_LOG_REPLICAS": "3", "WEIR_LOG_SYNC": "always", "WEIR_LOG_MAX_AGE": "48h",
		"WEIR_MAX_REQUEST_BYTES": "1048576", "WEIR_UPSTREAM_CONNECT": "1s", "WEIR_UPSTREAM_FIRST_BYTE": "2s", "WEIR_UPSTREAM_IDLE": "3s",
		"WEIR_DATABASE": "postgres://u:p%23@h/db?sslmode=disable", "WEIR_LOG_COMPRESSION": "s2", "WEIR_AUTH": "a.yaml", "WEIR_POLICIES": "p",
		"WEIR_LIMITS_PLATFORM_RPM": "5", "WEIR_LIMITS_DEFAULTS_ORG_TPM": "6", "WEIR_LIMITS_DEFAULTS_KEY": "{rpm: 7}",
		"WEIR_ORGS": "{acme: {billing: prepaid}}", "WEIR_MODELS": "[{id: m, local: {replicas: [http://h:1]}}]",
		"WEIR_CONNECTIONS": "[{id: c, provider: openai}]", "WEIR_POOLS": "[{id: p, provider: openai, rpm: 1, tpm: 2, concurrency: 3}]",
		"WEIR_ADMIN_KEYS": "raw, sha256:" + strings.Repeat("ab", 32),
	}
	c, _ := load(t, "listen: 1.2.3.4:5\nlimits: {defaults: {org: {tpm: 1}}}\nmodels: [{id: other}]\n", env)
	if c.Listen != "0.0.0.0:80" || c.Name != "edge" || c.DataDir != "/var/lib/weir" || c.MaxRequestBytes != 1<<20 || c.Auth != "a.yaml" || c.AuthOptional || c.Policies != "p" ||
		c.Database != "postgres://u:p%23@h/db?sslmode=disable" {
		t.Errorf("%+v", c)
	}
	if want := (Log{URL: "nats://a:4222, tls://b:4222", Credentials: "/etc/creds", Replicas: 3, Sync: time.Second, SyncAlways: true, MaxAge: 48 * time.Hour, Compress: true}); c.Log != want {
		t.Errorf("%+v", c.Log)
	}
	if want := (Upstream{time.Second, 2 * time.Second, 3 * time.Second}); c.Upstream != want {
		t.Errorf("%+v", c.Upstream)
	}
	if c.Platform.RPM != 5 || c.Defaults.Org.TPM != 6 || c.Defaults.Key.RPM != 7 {
		t.Errorf("%+v %+v", c.Platform, c.Defaults)
	}
	if c.Orgs[0].Billing != authority.Prepaid || len(c.Models) != 1 || c.Models[0].ID != "m" || c.Models[0].Local.Replicas[0] != "http://h:1" || c.Connections[0].ID != "c" || c.Pools[0].TPM != 2 {
		t.Errorf("%+v %+v %+v %+v", c.Orgs, c.Models, c.Connections, c.Pools)
	}
	if len(c.AdminKeys) != 2 || c.AdminKeys[0] != authority.HashKey("raw") || hex.EncodeToString(c.AdminKeys[1][:]) != strings.Repeat("ab", 32) {
		t.Errorf("admin keys %x", c.AdminKeys)
	}
	if got := Variable("limits.defaults.org.rpm"); got != "WEIR_LIMITS_DEFAULTS_ORG_RPM" {
		t.Error(got)
	}
}

func TestFaultsOfVariables(t *testing.T) {
	_, _, err := Parse("", nil, vars{"WEIR_LISTEN": "nowhere", "WEIR_LOG_REPLICAS": "2", "WEIR_MODELS": "[{id: m", "WEIR_LIMITS_PLATFORM_RPM": "-1", "WEIR_ADMIN_KEYS": "sha256:x"}.get)
	want := `environment: listen is nowhere: must be host:port
environment: log.replicas is 2: must be 1, 3 or 5
environment: WEIR_ADMIN_KEYS: has a sha256: that is not 64 hexadecimal digits
environment: limits.platform.rpm is -1: must be from 1 to 1000000000000
environment: not valid YAML: `
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v", err)
	}
}

// TestRouterVariables are those of the router whose files are read: an invalid value is warned about and leaves the default.
func TestRouterVariables(t *testing.T) {
	for _, c := range []struct {
		fraction, park string
		want           policy.Settings
		warnings       int
	}{
		{"", "", policy.Settings{FractionPPM: 900_000, ParkMS: 250}, 0},
		{"0.85", "2s", policy.Settings{FractionPPM: 850_000, ParkMS: 2000}, 0},
		{"1", "0", policy.Settings{FractionPPM: 1_000_000, ParkMS: 0}, 0},
		{"0", "5s", policy.Settings{FractionPPM: 900_000, ParkMS: 5000}, 1},
		{"1.01", "5001ms", policy.Settings{FractionPPM: 900_000, ParkMS: 250}, 2},
		{"-0.5", "-1ms", policy.Settings{FractionPPM: 900_000, ParkMS: 250}, 2},
		{"all", "soon", policy.Settings{FractionPPM: 900_000, ParkMS: 250}, 2},
	} {
		cfg, warnings := load(t, "", vars{"HIVENET_ROUTER_ADMIT_FRACTION": c.fraction, "HIVENET_ROUTER_ADMIT_PARK_TIMEOUT": c.park})
		if cfg.Admission != c.want || len(warnings) != c.warnings {
			t.Errorf("%q %q: %+v, %v", c.fraction, c.park, cfg.Admission, warnings)
		}
	}
	_, warnings := load(t, "", vars{"HIVENET_ROUTER_ADMIT_FRACTION": "7"})
	if got := warnings[0].String(); got != "environment: HIVENET_ROUTER_ADMIT_FRACTION is 7: must be greater than 0 and at most 1, 0.90 for 90 %: the default, 0.90, is kept" {
		t.Error(got)
	}
	cfg, warnings := load(t, "admin_keys: ["+hex.EncodeToString(func() []byte { h := authority.HashKey("a"); return h[:] }())+"]\n", vars{"HIVENET_ROUTER_ADMIN_API_KEYS": "a, b,,b"})
	if len(cfg.AdminKeys) != 2 || len(warnings) != 3 {
		t.Errorf("%d admin keys, %v", len(cfg.AdminKeys), warnings)
	}
}

// TestEveryFaultAtOnce has one fault a line.
func TestEveryFaultAtOnce(t *testing.T) {
	data, err := os.ReadFile("testdata/faults.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = Parse("faults.yaml", data, vars{}.get)
	if err == nil {
		t.Fatal("no faults")
	}
	if *rewrite {
		if err := os.WriteFile("testdata/faults.txt", []byte(err.Error()+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, readErr := os.ReadFile("testdata/faults.txt")
	if readErr != nil {
		t.Fatal(readErr)
	}
	if diff := cmp.Diff(strings.Split(strings.TrimSpace(string(want)), "\n"), strings.Split(err.Error(), "\n")); diff != "" {
		t.Error(diff)
	}
}

func TestValidate(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"listen is x: must be host:port":                                                       func(c *Config) { c.Listen = "x" },
		"listen is h:70000: must have a port from 0 to 65535":                                  func(c *Config) { c.Listen = "h:70000" },
		"data_dir: must be a directory":                                                        func(c *Config) { c.DataDir = "" },
		"name is a.b: must match [A-Za-z0-9][A-Za-z0-9_-]{0,54}: it begins the gateway's name": func(c *Config) { c.Name = "a.b" },
		"log.listen is h:1: must not stand beside log.url: it is for the embedded log":         func(c *Config) { c.Log.URL, c.Log.Listen = "nats://x", "h:1" },
		"log.replicas is 3: must be 1 for the embedded log: more take a cluster at log.url":    func(c *Config) { c.Log.Replicas = 3 },
		"log.replicas is 4: must be 1, 3 or 5":                                                 func(c *Config) { c.Log.Replicas = 4 },
		"log.sync is 0s: must be from 1ms to 1h0m0s":                                           func(c *Config) { c.Log.Sync = 0 },
		"log.max_age is 1s: must be from 1h0m0s to 87600h0m0s":                                 func(c *Config) { c.Log.MaxAge = time.Second },
		"upstream.idle is 0s: must be from 1ms to 1h0m0s":                                      func(c *Config) { c.Upstream.Idle = 0 },
		"max_request_bytes is 1: must be from 1024 to 1073741824":                              func(c *Config) { c.MaxRequestBytes = 1 },
		"admit fraction is 0: must be greater than 0 and at most 1":                            func(c *Config) { c.Admission.FractionPPM = 0 },
		"admit park timeout is 6000ms: must be from 0 to 5s":                                   func(c *Config) { c.Admission.ParkMS = 6000 },
	} {
		c := Default()
		change(c)
		if err := c.Validate(); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestPathsAreRelativeToTheFile(t *testing.T) {
	c, _ := load(t, "auth: keys/auth.yaml\npolicies: /etc/policies\nlog: {credentials: creds}\n", vars{"WEIR_DATA_DIR": "here"})
	if c.Auth != filepath.Join("etc", "keys", "auth.yaml") || c.Policies != "/etc/policies" || c.DataDir != "here" || c.Log.Credentials != filepath.Join("etc", "creds") {
		t.Errorf("%s %s %s %s", c.Auth, c.Policies, c.DataDir, c.Log.Credentials)
	}
}

func TestModels(t *testing.T) {
	c, warnings := load(t, `
models:
  - id: full
    created: 1700000000
    weights: {input: 0.2, output: 1}
    price: {input: 3, output: "15.000000001", request: 0.0001, version: v2}
    local:
      engine: sglang
      model: served
      pool: p
      api_key_env: NOT_SET
      operations: [chat, messages]
      reasoning_apart: true
      replicas:
        - http://a:1/
        - {url: https://b, region: EU, organization: o, machine: m, gpu_model: H100, tags: [x, y], capacity: 9}
    dedicated: {default_max_output_tokens: 9000}
    max_output_tokens: 8192
    providers: [{connection: c, pool: q}]
  - {id: bare, local: {replicas: [http://c]}, weights: {input: 1, cached: 1, output: 1}}
connections:
  - {id: c, org: "Acme Inc.", provider: own, base_url: http://p, version: "2024-10-21", operations: [chat]}
pools:
  - {id: q, org: acme, provider: own, rpm: 1, tpm: 1, concurrency: 1, headroom_percent: 100, parent: r}
`, vars{})
	m := c.Models[0]
	if want := (&authority.Price{Version: "v2", Input: 3_000_000_000, CachedInput: 3_000_000_000, CacheWrite: 3_000_000_000, Output: 15_000_000_001, Request: 100_000}); *m.Price != *want {
		t.Errorf("%+v", m.Price)
	}
	if want := (authority.Weights{Input: 200, Cached: 1000, Output: 1000}); m.Weights != want || c.Models[1].Weights != (authority.Weights{}) {
		t.Errorf("%+v %+v", m.Weights, c.Models[1].Weights)
	}
	l := m.Local
	if diff := cmp.Diff([]string{"http://a:1", "https://b"}, l.Replicas); diff != "" {
		t.Error(diff)
	}
	labels := []authority.Labels{{}, {Region: "EU", Organization: "o", Machine: "m", GPUModel: "H100", Tags: []string{"x", "y"}, Capacity: 9}}
	if diff := cmp.Diff(labels, l.Labels); diff != "" {
		t.Error(diff)
	}
	if l.Engine != "sglang" || l.Model != "served" || l.Pool != "p" || !l.Apart || l.APIKey() != "" || !cmp.Equal(l.Operations, []wire.Operation{wire.Chat, wire.Messages}) {
		t.Errorf("%+v", l)
	}
	if m.Dedicated.DefaultMaxOutputTokens != 8192 {
		t.Errorf("the default output is %d, above the model's maximum", m.Dedicated.DefaultMaxOutputTokens)
	}
	if c.Models[1].Local.Engine != "openai" || c.Models[1].Price != nil {
		t.Errorf("%+v", c.Models[1])
	}
	n := c.Connections[0]
	if n.Org != authority.OrgOf("Acme Inc.") || n.Version != "2024-10-21" || n.APIKey() != "" || c.Pools[0].Org != "acme" || c.Pools[0].FairShare != 0 {
		t.Errorf("%+v %+v", n, c.Pools[0])
	}
	if len(warnings) != 1 || warnings[0].String() != "etc/weir.yaml:11: models[0].local.api_key_env is NOT_SET: names a variable that is not set" {
		t.Errorf("warnings %v", warnings)
	}
}

func TestOrgs(t *testing.T) {
	c, _ := load(t, `
orgs:
  acme:
    billing: prepaid
    limits: {spend_day: "100", spend_month: 1000.5, tokens_per_day: 7}
    workspaces: {research: {rpm: 5, spend_day: 1}}
    principals: {alice: {rpm: 6}}
  "Beta Ltd.": null
`, vars{})
	want := []authority.DeclaredOrg{
		{At: authority.Pos{File: "etc/weir.yaml", Line: 3}, Name: "acme", Billing: authority.Prepaid, Daily: 7, Limits: authority.Limits{SpendDay: 100_000_000_000, SpendMonth: 1_000_500_000_000},
			Workspaces: map[string]authority.Limits{"research": {RPM: 5, SpendDay: 1_000_000_000}}, Principals: map[string]authority.Limits{"alice": {RPM: 6}}},
		{At: authority.Pos{File: "etc/weir.yaml", Line: 8}, Name: "Beta Ltd.", Billing: authority.Postpaid},
	}
	if diff := cmp.Diff(want, c.Orgs); diff != "" {
		t.Error(diff)
	}
}

// TestASnapshotOfTheWholeFile goes from the manual's file to a snapshot.
func TestASnapshotOfTheWholeFile(t *testing.T) {
	data, err := os.ReadFile("testdata/whole.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"weir.yaml": string(data), "auth.yaml": "api: {mode: none}\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, _, err := Load(filepath.Join(dir, "weir.yaml"), vars{}.get)
	if err != nil {
		t.Fatal(err)
	}
	source := c.Source()
	s, warnings, err := source.Load()
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	if s.Pools["house-openai"].RPM != 450 || s.Models["qwen3"].Local == nil || s.Orgs["acme"].Limits.RPM != 600 {
		t.Errorf("%+v", s)
	}
}

func FuzzParse(f *testing.F) {
	data, err := os.ReadFile("testdata/whole.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(data))
	f.Add("log: {sync: always}\nmodels: [{id: m, local: {replicas: [{url: x}]}}]\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, _, err := Parse("weir.yaml", []byte(text), vars{}.get)
		if (c == nil) == (err == nil) {
			t.Fatal("neither a configuration nor an error, or both")
		}
		if c == nil {
			return
		}
		if err := c.Validate(); err != nil {
			t.Fatalf("read, but not valid: %v", err)
		}
		_, _, _ = authority.Build(c.Authority(), authority.None(), &authority.Policies{})
	})
}

// The keys that credentials are sealed with come from a file for its owner alone, or from a variable; what is wrong is said without them.
func TestSealKeys(t *testing.T) {
	const key = "k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, c := range map[string]struct {
		yaml   string
		env    vars
		newest string
		fault  string
	}{
		"none":             {},
		"file":             {yaml: "seal: {keys_file: " + write("good", "# keys\nk2"+key[2:]+"\n"+key, 0o600) + "}", newest: "k2"},
		"variable":         {env: vars{"WEIR_SEAL_KEYS": key}, newest: "k1"},
		"another variable": {yaml: "seal: {keys_env: KEYS}", env: vars{"KEYS": key}, newest: "k1"},
		"open to others":   {yaml: "seal: {keys_file: " + write("open", key, 0o644) + "}", fault: "0600"},
		"not there":        {yaml: "seal: {keys_file: none}", fault: "no such file"},
		"not a key":        {env: vars{"WEIR_SEAL_KEYS": key[:20]}, fault: "must be 32 bytes"},
	} {
		cfg, _ := load(t, c.yaml, c.env)
		keys, err := cfg.Seal.Keys(c.env.get)
		switch {
		case c.fault != "":
			if err == nil || !strings.Contains(err.Error(), c.fault) || strings.Contains(err.Error(), key[3:20]) {
				t.Errorf("%s: %v", name, err)
			}
		case err != nil || (keys == nil) != (c.newest == "") || keys != nil && keys.Newest() != c.newest:
			t.Errorf("%s: %v, %v", name, keys, err)
		}
	}
}

// TestWhoCanReachIt: addresses beside those of the machine itself can be reached by others.
func TestWhoCanReachIt(t *testing.T) {
	for listen, reachable := range map[string]bool{"127.0.0.1:1": false, "[::1]:1": false, "localhost:1": false, "0.0.0.0:1": true, ":1": true, "10.0.0.1:1": true, "weir.example:1": true} {
		if c := (&Config{Listen: listen}); c.Authority().Reachable != reachable {
			t.Errorf("%s: reachable %v", listen, !reachable)
		}
	}
}
