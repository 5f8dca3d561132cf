package authority_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/gateway/authority"
)

// full is a policy file with every field of the format.
const full = `
models:
  - Qwen/Qwen3.6-27B-A3B
  - Qwen/Qwen3.6-35B

mode: serverless
max_input_tokens: 131072
images_max: 8
admit_budget_tokens: 262144
max_inflight: 16
shed_if:
  kv_cache_utilization:
    gt: 0.90
  waiting_requests: {gte: 20}

routing_policy:
  match:
    region: EU-France
    engine: vllm
    tags: [production, high-memory]
    organization: ml-team
    machine: gpu-worker-1
    gpu_model: RTX4090
  exclude_if:
    kv_cache_utilization: {gt: 0.85}
    gpu_temperature_c: {gt: 82}
    success_rate: {lt: 0.95}
    srtt: {lte: 500}
  strategy: least-loaded
  max_tries: 3

fallback_chain:
  - name: any-region
    match: {engine: vllm}
    exclude_if: {success_rate: {lt: 0.9}}
    strategy: least-loaded
    max_tries: 2
  - match: {}
    strategy: least-loaded
    max_tries: -1

fallback_provider:
  engine: openai
  model: gpt-4o-mini
`

func add(t *testing.T, name, text string) (*authority.Policies, error) {
	t.Helper()
	p := &authority.Policies{Models: map[string]authority.Policy{}, Lines: map[string]authority.Pos{}}
	return p, p.Add(name+".yaml", name, []byte(text))
}

func TestEveryFieldOfAPolicy(t *testing.T) {
	p, err := add(t, "qwen", full)
	if err != nil {
		t.Fatal(err)
	}
	want := authority.Policy{
		File: "qwen.yaml", Serverless: true, MaxInputTokens: 131_072, ImagesMax: 8, AdmitBudgetTokens: 262_144, MaxInflight: 16,
		ShedIf: []authority.Threshold{{Metric: "kv_cache_utilization", Op: "gt", Value: 0.9}, {Metric: "waiting_requests", Op: "gte", Value: 20}},
		Step: authority.Step{
			Name: "primary", Strategy: "least-loaded", MaxTries: 3, Tags: []string{"production", "high-memory"},
			Match:     map[string]string{"region": "EU-France", "engine": "vllm", "organization": "ml-team", "machine": "gpu-worker-1", "gpu_model": "RTX4090"},
			ExcludeIf: []authority.Threshold{{Metric: "success_rate", Op: "lt", Value: 0.95}, {Metric: "srtt", Op: "lte", Value: 500}, {Metric: "kv_cache_utilization", Op: "gt", Value: 0.85}, {Metric: "gpu_temperature_c", Op: "gt", Value: 82}},
		},
		FallbackChain: []authority.Step{
			{Name: "any-region", Match: map[string]string{"engine": "vllm"}, ExcludeIf: []authority.Threshold{{Metric: "success_rate", Op: "lt", Value: 0.9}}, Strategy: "least-loaded", MaxTries: 2},
			{Name: "fallback-2", Strategy: "least-loaded"},
		},
		FallbackProvider: &authority.FallbackProvider{Engine: "openai", Model: "gpt-4o-mini"},
	}
	for _, model := range []string{"Qwen/Qwen3.6-27B-A3B", "Qwen/Qwen3.6-35B"} {
		if diff := cmp.Diff(want, p.For(model)); diff != "" {
			t.Error(diff)
		}
	}
	if other := p.For("other"); other.Serverless || other.MaxInputTokens != 0 {
		t.Errorf("a model without a policy has %+v", other)
	}
}

func TestFaultsOfPolicies(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"mode":                      {"mode: shared\n", "mode is shared: must be one of reserved, serverless"},
		"negative max_input_tokens": {"max_input_tokens: -1\n", "max_input_tokens is -1: must not be negative"},
		"negative images_max":       {"images_max: -1\n", "images_max is -1: must not be negative"},
		"negative budget":           {"admit_budget_tokens: -1\n", "admit_budget_tokens is -1: must not be negative"},
		"negative inflight":         {"max_inflight: -1\n", "max_inflight is -1: must not be negative"},
		"unknown signal":            {"shed_if: {success_rate: {lt: 1}}\n", "shed_if.success_rate: there is no such field"},
		"no operator":               {"shed_if: {waiting_requests: {}}\n", "shed_if.waiting_requests is a map: must have exactly one of gt, gte, lt, lte"},
		"two operators":             {"shed_if: {waiting_requests: {gt: 1, lt: 5}}\n", "shed_if.waiting_requests is a map: must have exactly one of gt, gte, lt, lte"},
		"unknown operator":          {"shed_if: {waiting_requests: {above: 1}}\n", "shed_if.waiting_requests.above: there is no such field\np.yaml:1: shed_if.waiting_requests is a map: must have exactly one of gt, gte, lt, lte"},
		"a threshold in quotes":     {"shed_if: {waiting_requests: {gt: \"20\"}}\n", "shed_if.waiting_requests.gt is 20: must be a number without quotes"},
		"a number octal to some":    {"max_inflight: 010\n", "max_inflight is 010: must not begin with 0: some readers of YAML take it for an octal number"},
		"a threshold that is none":  {"shed_if: {waiting_requests: {gt: many}}\n", "shed_if.waiting_requests.gt is many: must be a number"},
		"a metric with a typo":      {"routing_policy: {strategy: least-loaded, exclude_if: {sucess_rate: {lt: 0.95}}}\n", "routing_policy.exclude_if.sucess_rate: there is no such field: did you mean success_rate?"},
		"no strategy":               {"routing_policy: {match: {}}\n", "routing_policy.strategy: must be given: least-loaded"},
		"another strategy":          {"routing_policy: {strategy: round-robin}\n", "routing_policy.strategy is round-robin: must be one of least-loaded"},
		"fallback without strategy": {"fallback_chain: [{name: x}]\n", "fallback_chain[0].strategy: must be given: least-loaded"},
		"unknown match":             {"routing_policy: {strategy: least-loaded, match: {zone: x}}\n", "routing_policy.match.zone: there is no such field"},
		"unknown provider":          {"fallback_provider: {engine: azure, model: x}\n", "fallback_provider.engine is azure: must be one of openai, anthropic"},
		"provider without a model":  {"fallback_provider: {engine: openai}\n", "fallback_provider.model: must be the provider's name for the model"},
		"admission inside routing":  {"routing_policy: {strategy: least-loaded, max_inflight: 4}\n", "routing_policy.max_inflight: there is no such field"},
		"unknown field":             {"admit_budget: 4\n", "admit_budget: there is no such field"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := add(t, "p", c.text+"models: [m]\n")
			if err == nil || err.Error() != "p.yaml:1: "+c.want {
				t.Errorf("got  %v\nwant p.yaml:1: %s", err, c.want)
			}
		})
	}
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestADirectoryOfPolicies(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"_default.yaml": "models: [ignored]\nmax_inflight: 7\n",
		"a.yaml":        "models: [a]\nmax_inflight: 1\n",
		"b.yml":         "models: [b]\nmode: serverless\n",
		"notes.txt":     "not a policy: [",
		".hidden.yaml":  "also: not\n",
		"nobody.yaml":   "max_inflight: 3\n",
	})
	p, err := authority.LoadPolicies(dir)
	if err != nil {
		t.Fatal(err)
	}
	if p.For("a").MaxInflight != 1 || !p.For("b").Serverless || p.For("b").MaxInflight != 0 || p.For("other").MaxInflight != 7 || p.For("ignored").MaxInflight != 7 {
		t.Errorf("%+v", p)
	}
	if len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0].String(), "nobody.yaml: models: is missing: the file is not used") {
		t.Errorf("warnings %v", p.Warnings)
	}
	write(t, dir, map[string]string{"c.yaml": "models: [c, a]\n", "d.yaml": "max_inflight: -1\nmodels: [d]\n", "_default.yml": "max_inflight: 8\n"})
	_, err = authority.LoadPolicies(dir)
	for _, want := range []string{
		"c.yaml:1: models[1] is a: has a policy already, in " + filepath.Join(dir, "a.yaml") + ":1: a model may have one",
		"d.yaml:1: max_inflight is -1: must not be negative",
		"_default.yml: a second default policy beside _default.yaml",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nmisses %s", err, want)
		}
	}
	if p, err := authority.LoadPolicies(filepath.Join(dir, "nowhere")); err != nil || p.For("x").Strategy != authority.LeastLoaded {
		t.Errorf("no directory: %v %v", p, err)
	}
	if _, err := authority.LoadPolicies(filepath.Join(dir, "a.yaml")); err == nil {
		t.Error("a file is taken for a directory")
	}
}

func TestMatches(t *testing.T) {
	p, err := add(t, "qwen", full)
	if err != nil {
		t.Fatal(err)
	}
	step := p.For("Qwen/Qwen3.6-35B").Step
	fits := authority.Labels{Region: "EU-France", Organization: "ml-team", Machine: "gpu-worker-1", GPUModel: "RTX4090", Tags: []string{"a100", "high-memory", "production"}}
	if !step.Matches("vllm", &fits) {
		t.Error("the replica that fits does not match")
	}
	for name, l := range map[string]func(*authority.Labels){
		"case": func(l *authority.Labels) { l.Region = "eu-france" }, "a tag is missing": func(l *authority.Labels) { l.Tags = l.Tags[:2] },
		"machine": func(l *authority.Labels) { l.Machine = "" }, "gpu": func(l *authority.Labels) { l.GPUModel = "H100" }, "org": func(l *authority.Labels) { l.Organization = "x" },
	} {
		other := fits
		if l(&other); step.Matches("vllm", &other) {
			t.Errorf("%s: matches", name)
		}
	}
	if step.Matches("sglang", &fits) {
		t.Error("another engine matches")
	}
	if any := (authority.Step{}); !any.Matches("x", &authority.Labels{}) {
		t.Error("an empty match does not match everything")
	}
}

func TestThresholds(t *testing.T) {
	for op, want := range map[string][3]bool{"gt": {false, false, true}, "gte": {false, true, true}, "lt": {true, false, false}, "lte": {true, true, false}, "": {false, false, false}} {
		for i, v := range []float64{1, 2, 3} {
			if got := (authority.Threshold{Op: op, Value: 2}).Met(v); got != want[i] {
				t.Errorf("%v %s 2 is %v", v, op, got)
			}
		}
	}
}

func FuzzPolicies(f *testing.F) {
	f.Add(full)
	f.Add("shed_if: {waiting_requests: {gt: 1}}\nfallback_chain: [{strategy: x}, 5]\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := add(t, "p", text)
		if err != nil {
			return
		}
		for _, policy := range p.Models {
			if policy.MaxInputTokens < 0 || policy.AdmitBudgetTokens < 0 || policy.MaxTries < 0 {
				t.Fatalf("%+v", policy)
			}
		}
	})
}
