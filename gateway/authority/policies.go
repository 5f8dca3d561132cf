package authority

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/weirhq/weir/gateway/authority/strictyaml"
)

// Policies are all policy files.
type Policies struct {
	Default  Policy            // for models without one of their own
	Models   map[string]Policy // by model
	Lines    map[string]Pos    // where each model is named
	Bare     []string          // files that say nothing: of which models they are, or for _default.yaml anything
	Warnings []Warning
}

// For is the policy of a model.
func (p *Policies) For(model string) Policy {
	if own, ok := p.Models[model]; ok {
		return own
	}
	return p.Default
}

// LeastLoaded is the only strategy.
const LeastLoaded = "least-loaded"

// MaxPolicyFiles bounds the files of a directory.
const MaxPolicyFiles = 10_000

// defaultPolicy is the stem of the file whose policy holds for all other models.
const defaultPolicy = "_default"

// pressure are the metrics that shed_if may name: those that tell how a whole pool is.
var pressure = []string{"kv_cache_utilization", "waiting_requests"}

// gates are the metrics that exclude_if may name.
var gates = []string{
	"capacity_utilization", "success_rate", "srtt", "consecutive_failures",
	"kv_cache_utilization", "running_requests", "waiting_requests",
	"avg_ttft_seconds", "p90_ttft_seconds", "avg_itl_seconds", "p90_itl_seconds",
	"gpu_temperature_c", "gpu_util_percent", "gpu_vram_used_percent", "memory_used_percent", "cpu_usage_percent",
}

// shares are the metrics that go from 0 to 1.
var shares = []string{"capacity_utilization", "success_rate", "kv_cache_utilization"}

// engines are the provider labels that fallback_provider may name.
var engines = []string{"openai", "anthropic"}

// LoadPolicies reads the policy files (.yaml, .yml) of a directory. One that is not there has none. The error is Faults: what
// is wrong with any of them.
func LoadPolicies(dir string) (*Policies, error) {
	p := &Policies{Default: Policy{Step: Step{Strategy: LeastLoaded}}, Models: map[string]Policy{}, Lines: map[string]Pos{}}
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return p, nil
	}
	if err != nil {
		return nil, unreadable(dir, err)
	}
	var names []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".yaml" || ext == ".yml") && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	if len(names) > MaxPolicyFiles {
		return nil, Faults{{Pos: Pos{File: dir}, Rule: fmt.Sprintf("has %d policy files: at most %d are read", len(names), MaxPolicyFiles)}}
	}
	sort.Strings(names)
	var faults Faults
	seenDefault := ""
	for _, n := range names {
		file := filepath.Join(dir, n)
		stem := strings.TrimSuffix(n, filepath.Ext(n))
		if stem == defaultPolicy && seenDefault != "" {
			faults.Add(Fault{Pos: Pos{File: file}, Rule: "a second default policy beside " + seenDefault})
			continue
		}
		data, err := readFile(file)
		if err == nil {
			err = p.Add(file, stem, data)
		}
		if stem == defaultPolicy {
			seenDefault = n
		}
		faults.Take(err)
	}
	return p, faults.Err()
}

// Add reads one policy file's text. name is its stem: "_default" holds for all models without a policy of their own.
func (p *Policies) Add(file, name string, data []byte) error {
	r := &strictyaml.Reader{File: file}
	whole := r.Read(data)
	top := whole.Map()
	models := top.Get("models")
	policy := readPolicy(top)
	policy.File = file
	top.End()
	p.Warnings = append(p.Warnings, r.Warnings...)
	if name == defaultPolicy {
		if whole.Absent() {
			p.Bare = append(p.Bare, file)
		}
		p.Default = policy
		return r.Faults.Err()
	}
	ids := models.List()
	if len(ids) == 0 && len(r.Faults) == 0 {
		p.Bare = append(p.Bare, file)
		p.Warnings = append(p.Warnings, Warning{Pos: Pos{File: file}, Field: "models", Rule: "is missing: the file is not used; the policy for all other models is _default.yaml"})
	}
	for _, item := range ids {
		id, ok := item.Text()
		if !ok || id == "" {
			item.Wrong("must be the id of a model")
			continue
		}
		if at, twice := p.Lines[id]; twice {
			item.Wrong("has a policy already, in %s: a model may have one", at)
			continue
		}
		p.Models[id], p.Lines[id] = policy, item.Pos()
	}
	return r.Faults.Err()
}

func readPolicy(m *strictyaml.Map) Policy {
	p := Policy{
		Serverless:        m.Get("mode").OneOf("reserved", "", "reserved", "serverless") == "serverless",
		MaxInputTokens:    m.Get("max_input_tokens").Int(0, 0, MaxQuota),
		ImagesMax:         m.Get("images_max").Int(0, 0, MaxQuota),
		AdmitBudgetTokens: m.Get("admit_budget_tokens").Int(0, 0, MaxQuota),
		MaxInflight:       m.Get("max_inflight").Int(0, 0, MaxQuota),
		ShedIf:            readThresholds(m.Get("shed_if"), pressure),
		Step:              Step{Strategy: LeastLoaded},
	}
	if first := m.Get("routing_policy"); !first.Absent() {
		p.Step = readStep(first, "primary")
	}
	for i, n := range m.Get("fallback_chain").List() {
		p.FallbackChain = append(p.FallbackChain, readStep(n, fmt.Sprintf("fallback-%d", i+1)))
	}
	if last := m.Get("fallback_provider"); !last.Absent() {
		f := last.Map()
		engine, model := f.Get("engine"), f.Get("model")
		p.FallbackProvider = &FallbackProvider{Engine: engine.OneOf("", engines...), Model: name(model)}
		if engine.Absent() {
			engine.Wrong("must be given: openai or anthropic")
		}
		if p.FallbackProvider.Model == "" {
			model.Wrong("must be the provider's name for the model")
		}
		f.End()
	}
	return p
}

func readStep(n strictyaml.Node, otherwise string) Step {
	m := n.Map()
	s := Step{Name: name(m.Get("name")), ExcludeIf: readThresholds(m.Get("exclude_if"), gates)}
	if s.Name == "" {
		s.Name = otherwise
	}
	match := m.Get("match").Map()
	for _, key := range []string{"region", "engine", "organization", "machine", "gpu_model"} {
		if v := name(match.Get(key)); v != "" {
			if s.Match == nil {
				s.Match = map[string]string{}
			}
			s.Match[key] = v
		}
	}
	for _, tag := range match.Get("tags").List() {
		s.Tags = append(s.Tags, name(tag))
	}
	match.End()
	strategy := m.Get("strategy")
	if s.Strategy = strategy.OneOf("", LeastLoaded); strategy.Absent() {
		strategy.Wrong("must be given: " + LeastLoaded)
	}
	s.MaxTries = int(max(m.Get("max_tries").Int(0, -MaxQuota, 1000), 0))
	m.End()
	return s
}

// operators are the comparisons of a threshold.
var operators = []string{"gt", "gte", "lt", "lte"}

func readThresholds(n strictyaml.Node, known []string) []Threshold {
	var list []Threshold
	m := n.Map()
	for _, metric := range known {
		if !m.Has(metric) {
			m.Get(metric) // known, so that End can propose it
			continue
		}
		entry := m.Entry(metric)
		ops := entry.Map()
		found := 0
		for _, op := range operators {
			if v := ops.Get(op); !v.Absent() {
				found++
				t := Threshold{Metric: metric, Op: op, Value: v.Float(0)}
				if list = append(list, t); t.Value > 1 && contains(shares, metric) {
					v.Warn("is above all that %s can be: it goes from 0 to 1, and 0.9 is 90 %%", metric)
				}
			}
		}
		ops.End()
		if found != 1 {
			entry.Wrong("must have exactly one of gt, gte, lt, lte")
		}
	}
	m.End()
	return list
}

// Matches says whether a replica of an engine with these labels fits the step.
func (s *Step) Matches(engine string, l *Labels) bool {
	for key, want := range s.Match {
		got := ""
		switch key {
		case "engine":
			got = engine
		case "region":
			got = l.Region
		case "organization":
			got = l.Organization
		case "machine":
			got = l.Machine
		case "gpu_model":
			got = l.GPUModel
		}
		if got != want {
			return false
		}
	}
	for _, tag := range s.Tags {
		if !contains(l.Tags, tag) {
			return false
		}
	}
	return true
}

func contains(list []string, s string) bool {
	for _, v := range list {
		if v == s {
			return true
		}
	}
	return false
}
