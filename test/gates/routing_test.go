package gates

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/services/provider"
	"github.com/weirhq/weir/test/e2e/stack"
)

const routed = `
models:
  - id: qwen
    local: {engine: vllm, replicas: [{url: "EU", region: EU}, {url: "US", region: US}]}
    providers: [{connection: az, model: big}, {connection: oa1}, {connection: oa2, model: small, pool: apart}]
connections:
  - {id: az, provider: together, base_url: "AZ", api_key_env: KEY, pool: az}
  - {id: oa1, provider: openai, base_url: "OA1", api_key_env: KEY, pool: oa}
  - {id: oa2, provider: openai, base_url: "OA2", api_key_env: KEY, pool: oa}
pools:
  - {id: az, provider: together, rpm: 100, tpm: 1000000, concurrency: 10}
  - {id: oa, provider: openai, rpm: 100, tpm: 1000000, concurrency: 10}
  - {id: apart, provider: openai, rpm: 100, tpm: 1000000, concurrency: 10}
`

const (
	stepsOfQwen    = "models: [qwen]\nadmit_budget_tokens: 1000\nrouting_policy: {match: {region: EU}, strategy: least-loaded}\nfallback_chain: [{name: any, strategy: least-loaded}]\n"
	fallbackOfQwen = "fallback_provider: {engine: openai, model: mini}\n"
)

// TestRoutingFollowsThePolicy: steps over the same replicas, providers of one label, and the fallback, each where the one before fails.
// Servers are named in the order in which they are called, with the model that they are asked for.
func TestRoutingFollowsThePolicy(t *testing.T) {
	for _, c := range []struct {
		name, policy string
		scripts      map[string]string // of servers that do not just answer
		fields       string
		status       int
		calls        string
		pools        string // that were claimed, one for each attempt
	}{
		{"the first step's replica", stepsOfQwen, nil, "", 200, "EU:qwen", " "},
		{"a server's error before the first byte: the next step", stepsOfQwen, map[string]string{"EU": "status=503"}, "", 200, "EU:qwen US:qwen", "  "},
		{"a client's own error is the answer", stepsOfQwen, map[string]string{"EU": "status=400"}, "", 400, "EU:qwen", " "},
		{"an error in a stream is the answer", stepsOfQwen, map[string]string{"EU": "error-event=2"}, `"stream":true,`, 200, "EU:qwen", " "},
		{"after the replicas, providers of one label", stepsOfQwen, map[string]string{"EU": "abort", "US": "status=429", "AZ": "status=500"}, "", 500, "EU:qwen US:qwen AZ:big", "  az "},
		{"and of the fallback's, and last the fallback", stepsOfQwen + fallbackOfQwen,
			map[string]string{"EU": "abort", "US": "status=429", "AZ": "status=529", "OA1": "status=503;times=1", "OA2": "status=500"}, "", 200,
			"EU:qwen US:qwen AZ:big OA1:qwen OA2:small OA1:mini", "  az oa apart oa "},
	} {
		t.Run(c.name, func(t *testing.T) {
			servers, replace := map[string]*provider.Server{}, []string{}
			for _, name := range []string{"EU", "US", "AZ", "OA1", "OA2"} {
				p, err := provider.New(provider.Config{Script: c.scripts[name], Models: []string{"qwen"}})
				check(t, err)
				servers[name], replace = p, append(replace, `"`+name+`"`, serve(t, p))
			}
			s := stack.New(t, stack.Config{Settings: stack.Settings{Weir: strings.NewReplacer(replace...).Replace(routed), Policies: map[string]string{"qwen": c.policy}},
				Env: map[string]string{"KEY": "secret"}})
			a := s.Chat(t, "demo", "", chatBody("qwen", 50, c.fields))
			if a.Status != c.status {
				t.Errorf("status %d, want %d: %s", a.Status, c.status, a.Body)
			}
			if got := called(servers); got != c.calls {
				t.Errorf("called %s, want %s", got, c.calls)
			}
			trail := s.Trail(t, a.ID())
			pools := ""
			for _, r := range trail.Reserves {
				pools += poolOf(r) + " "
			}
			if pools != c.pools {
				t.Errorf("claimed of pools %q, want %q", pools, c.pools)
			}
			if held := s.Story(t).Gauges(); len(held) != 0 {
				t.Errorf("still held: %v", held)
			}
			if a.Status == http.StatusOK && len(trail.Ended()) != 1 {
				t.Errorf("%d ends", len(trail.Ended()))
			}
		})
	}
}

// called gives the calls that servers had, in order.
func called(servers map[string]*provider.Server) string {
	type call struct {
		at   time.Time
		name string
	}
	var all []call
	for name, p := range servers {
		for _, c := range p.Ledger().Calls() {
			all = append(all, call{c.Started, name + ":" + c.Model})
		}
	}
	slices.SortFunc(all, func(a, b call) int { return a.at.Compare(b.at) })
	var names []string
	for _, c := range all {
		names = append(names, c.name)
	}
	return strings.Join(names, " ")
}

// poolOf names the pool whose requests a minute a reserve claims; none for a replica.
func poolOf(r *events.Reserve) string {
	for i := range r.Claims {
		if scope, subject, dimension := r.Claims[i].Meter.Split(); scope == events.ScopePool && dimension == "rpm" && !strings.Contains(subject, ".") {
			return subject
		}
	}
	return ""
}
