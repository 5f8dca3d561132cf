package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/policy"
	"github.com/weirhq/weir/gateway/wire"
)

// dollar is a US dollar in nano-dollars.
const dollar = 1_000_000_000

const auth = `
api:
  mode: api-key
  keys:
    - key_hash: "%[1]d%[6]s"
      metadata: {name: everything, owner: acme}
      workspace: research
      principal: alice
      limits: {rpm: 50, tpm: 500000, concurrency: 5, spend_day: "10", spend_month: "200", tokens_per_day: 900000}
      quota: {requests_per_minute: 400, tokens_per_day: 5000000, input_tokens_per_minute: 262144, output_tokens_per_minute: 32768}
      max_occupancy_share: 0.25
    - key_hash: "%[2]d%[6]s"
      metadata: {name: plain, owner: plain}
    - key_hash: "%[3]d%[6]s"
      metadata: {name: prepaid, owner: "Beta Ltd."}
    - key_hash: "%[4]d%[6]s"
      metadata: {name: by model, owner: gamma}
      quota: {per_model: {qwen: {requests_per_minute_per_replica: 10, tokens_per_day: 3000000}, gpt: {requests_per_minute_per_replica: 7, tokens_per_day: 0}}}
    - key_hash: "%[5]d%[6]s"
      metadata: {name: other, owner: acme}
      quota: {requests_per_minute: 400, tokens_per_day: 5000000, input_tokens_per_minute: 262144, output_tokens_per_minute: 32768}
`

const reserved = `
models: [qwen]
max_input_tokens: 1000
images_max: 2
admit_budget_tokens: 262144
max_inflight: 16
shed_if: {kv_cache_utilization: {gt: 0.90}, waiting_requests: {gte: 20}}
`

const serverless = `
models: [shared, remote]
mode: serverless
admit_budget_tokens: 100000
`

// world is an authority with something of everything.
func world(t testing.TB) *authority.Snapshot {
	t.Helper()
	a, err := authority.ParseAuth("auth.yaml", fmt.Appendf(nil, auth, 1, 2, 3, 4, 5, strings.Repeat("0", 63)))
	if err != nil {
		t.Fatal(err)
	}
	policies := &authority.Policies{Models: map[string]authority.Policy{}, Lines: map[string]authority.Pos{}}
	for name, text := range map[string]string{"reserved": reserved, "serverless": serverless} {
		if err := policies.Add(name+".yaml", name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	price := &authority.Price{Version: "v1", Input: dollar, CachedInput: dollar / 2, CacheWrite: dollar * 5 / 4, Output: 4 * dollar, Request: 1000}
	local := &authority.Local{Engine: "vllm", Replicas: []string{"http://a", "http://b"}}
	house := []authority.Route{{Connection: "house", Model: "gpt-4o"}}
	s, _, err := authority.Build(&authority.Declared{
		Platform: authority.Limits{RPM: 5000, TPM: 9_000_000, Concurrency: 300},
		Orgs: []authority.DeclaredOrg{
			{
				Name: "acme", Billing: authority.Postpaid, Limits: authority.Limits{RPM: 600, RPS: 20, TPM: 2_000_000, Concurrency: 50, SpendDay: 100 * dollar, SpendMonth: 900 * dollar},
				Models:     map[string]authority.Limits{"qwen": {RPM: 60, RPS: 3, TPM: 70_000, Concurrency: 4}},
				Workspaces: map[string]authority.Limits{"research": {RPM: 100, TPM: 800_000, Concurrency: 10, SpendDay: 20 * dollar}},
				Principals: map[string]authority.Limits{"alice": {RPM: 90, TPM: 700_000, Concurrency: 9}},
			},
			{Name: "Beta Ltd.", Billing: authority.Prepaid, Limits: authority.Limits{RPM: 20}},
		},
		Pools: []authority.DeclaredPool{
			{ID: "house", Provider: "openai", RPM: 500, TPM: 1_000_000, Concurrency: 20, HeadroomPercent: 90},
			{ID: "leaf", Provider: "openai", RPM: 100, TPM: 300_000, Concurrency: 5, HeadroomPercent: 100, Parent: "house", FairShare: 300_000},
			{ID: "mapped", Provider: "own", RPM: 1, TPM: 10, Concurrency: 1, HeadroomPercent: 1},
		},
		Connections: []*authority.Connection{{ID: "house", Provider: "openai", Pool: "leaf"}, {ID: "bare", Provider: "openai"}},
		Models: []*authority.Model{
			{ID: "qwen", ContextWindow: 131_072, MaxOutputTokens: 32_768, Price: price, Local: local, Providers: house},
			{ID: "shared", ContextWindow: 131_072, Price: price, Local: local},
			{ID: "remote", MaxOutputTokens: 16_384, Price: price, Providers: house},
			{ID: "gpt", MaxOutputTokens: 16_384, Price: price, Providers: house},
			{ID: "free", MaxOutputTokens: 16_384, Local: local},
			{ID: "paced", MaxOutputTokens: 8192, Price: price, Local: local, Dedicated: &authority.Dedicated{
				Limits: authority.Limits{RPM: 600, RPS: 4, TPM: 2_000_000, Concurrency: 32}, QueueMS: 500, DefaultMaxOutputTokens: 4096}},
			{ID: "dedicated", Local: local, Price: price, Dedicated: &authority.Dedicated{Limits: authority.Limits{RPS: 4}}},
			{ID: "weighted", Local: local, Price: price, Weights: authority.Weights{Input: 200, Cached: 100, Output: 1000}},
		},
	}, a, policies)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// keyOf finds a key by its name.
func keyOf(t testing.TB, s *authority.Snapshot, name string) *authority.Key {
	t.Helper()
	for _, k := range s.Keys {
		if k.Name == name {
			return k
		}
	}
	t.Fatalf("no key %s", name)
	return nil
}

func parse(t testing.TB, op wire.Operation, body string) *wire.Request {
	t.Helper()
	r, err := wire.Parse(op, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var settings = policy.Settings{FractionPPM: policy.DefaultFractionPPM, ParkMS: policy.DefaultParkMS}

// input is a chat of some key with some model; its learned input is 100 tokens.
func input(t testing.TB, s *authority.Snapshot, key, model, fields string) *policy.Input {
	t.Helper()
	return ask(t, s, key, model, wire.Chat, fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}]%s}`, model, text(320), fields))
}

func ask(t testing.TB, s *authority.Snapshot, key, model string, op wire.Operation, body string) *policy.Input {
	t.Helper()
	k := keyOf(t, s, key)
	m, refused := policy.Lookup(s, k, model)
	if refused != nil {
		t.Fatalf("%s may not use %s", key, model)
	}
	target := policy.Target{Local: m.Local != nil}
	if !target.Local {
		target.Pool = s.Connections[m.Providers[0].Connection].Pool
	}
	return &policy.Input{Snapshot: s, Key: k, Model: m, Request: parse(t, op, body), Target: target, Healthy: 2, Settings: settings}
}

func text(bytes int) string {
	b := make([]byte, bytes)
	for i := range b {
		b[i] = 'x'
	}
	return string(b)
}

// claimText writes a claim as a person reads it.
func claimText(c *events.Claim) string {
	s := fmt.Sprintf("%-36s %-7s %d", c.Meter, c.Kind, c.Amount)
	if c.HasCheck {
		s += fmt.Sprintf(" check %d", c.Check)
	}
	if c.HasLimit {
		s += fmt.Sprintf(" of %d", c.Limit)
	}
	s += ", " + c.Basis + ", " + c.Life.String()
	if c.Kind == events.Window && c.WindowMS != 60_000 {
		s += fmt.Sprintf(", window %d ms", c.WindowMS)
	}
	if c.Kind == events.Budget {
		s += ", " + c.Period.String()
	}
	if c.Kind == events.Pace {
		s += fmt.Sprintf(", queue %d ms", c.QueueMS)
	}
	if c.Park {
		s += ", parks"
	}
	if c.Shadow {
		s += ", shadow"
	}
	return s
}
