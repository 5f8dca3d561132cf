package conformance

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/services/provider"
	"github.com/weirhq/weir/test/e2e/stack"
)

// byok is a house account at one upstream and an org's own at another.
const byok = `
byok: {fee_percent: 5}
limits: {platform: {rpm: 1000}}
orgs:
  acme: {billing: prepaid}
  bare: {}
  falls: {}
models:
  - {id: m, max_output_tokens: 100, price: {input: "1", output: "4", version: v1}, providers: [{connection: house, model: gpt}]}
connections:
  - {id: house, provider: openai, base_url: "{{upstream}}", api_key_env: HOUSE_KEY, pool: house}
  - {id: acme-own, org: acme, provider: openai, base_url: "{{other}}", api_key_env: ACME_KEY, pool: acme-account}
  - {id: bare-own, org: bare, provider: openai, base_url: "{{other}}", api_key_env: ACME_KEY}
  - {id: falls-own, org: falls, provider: openai, base_url: "{{other}}", api_key_env: ACME_KEY, pool: falls-account, house_fallback: true}
pools:
  - {id: house, provider: openai, rpm: 100, tpm: 1000000, concurrency: 10}
  - {id: acme-account, org: acme, provider: openai, rpm: 4, tpm: 1000000, concurrency: 10, headroom_percent: 100}
  - {id: falls-account, org: falls, provider: openai, rpm: 100, tpm: 1000000, concurrency: 10}
`

// last is the newest call that an upstream saw.
func last(t *testing.T, p *provider.Server) provider.Call {
	t.Helper()
	calls := p.Ledger().Calls()
	if len(calls) == 0 {
		t.Fatal("the upstream saw no call")
	}
	return calls[len(calls)-1]
}

// credit gives an org money.
func credit(t *testing.T, s *stack.Stack, org events.Org, nano int64, reference string) {
	t.Helper()
	e := events.Event{ID: "credit-" + reference, Source: "test", Org: org, Data: &events.Credit{Org: org, AmountNano: nano, Reference: reference}}
	if _, err := s.Log.Publish(t.Context(), e); err != nil {
		t.Fatal(err)
	}
}

// record is what a test reads of /v1/generation.
type record struct {
	IsBYOK                bool    `json:"is_byok"`
	UpstreamInferenceCost float64 `json:"upstream_inference_cost"`
	TotalCost             float64 `json:"total_cost"`
	UsageQuality          string  `json:"usage_quality"`
	AdmissionEvents       []struct {
		Event, Gate, Scope, Kind, Meter, Origin, Code string
		LimitID                                       string `json:"limit_id"`
		Limit, Used, Requested                        *int64
		RetryAfterMS                                  *int64 `json:"retry_after_ms"`
		Status                                        int
	} `json:"admission_events"`
	Attempts []struct {
		Deployment, Verdict string
		BYOK                bool
		CostNano            *int64 `json:"cost_nano"`
		Claims              []struct {
			Meter    string
			Amount   int64
			Settled  *int64
			Returned *int64
			Shadow   bool
		}
		Released *struct {
			Error *struct{ Code, Origin string }
		}
	}
}

// generation reads a request's record, if there is one yet.
func generation(t *testing.T, s *stack.Stack, key, id string) (r record) {
	t.Helper()
	a := stack.Do(t, stack.Request{URL: s.URL() + "/v1/generation?id=" + id, Key: key})
	var body struct{ Data json.RawMessage }
	if a.Status != 200 {
		return r
	}
	if err := json.Unmarshal(a.Body, &body); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(body.Data, &r); err != nil {
		t.Fatalf("%v: %s", err, body.Data)
	}
	return r
}

// TestAccountsOfOnesOwn: "Pools attach to BYOK connections and routing policies", "To bind a connection".
func TestAccountsOfOnesOwn(t *testing.T) {
	s := stack.New(t, stack.Config{Env: map[string]string{"HOUSE_KEY": "sk-house", "ACME_KEY": "sk-acme"}, Settings: stack.Settings{Weir: byok,
		Keys: []stack.Key{{Name: "plain"}, {Name: "acme"}, {Name: "bare"}, {Name: "falls"}}}})
	const script = "input=100;tokens=10"
	pools := func(t *testing.T, d *events.Reserve) string {
		var all []string
		for _, c := range d.Claims {
			if scope, _, dimension := c.Meter.Split(); scope == events.ScopePool && dimension == "rpm" {
				all = append(all, c.Meter.Parts()...)
			}
		}
		return strings.Join(all, " ")
	}
	credit(t, s, "acme", 1_000_000, "first")
	prove(t, s, []sentence{
		{"an org with its own account is served there, by its own key and within its own pool, without a share of the house's", func(t *testing.T, s *stack.Stack) {
			a := call(t, s, "acme", script, body("m", `"max_tokens":50,`, 4))
			passes(t, a)
			if c := last(t, s.Other); c.RequestID != a.ID() || c.Key != "sk-acme" || c.Model != "gpt" {
				t.Errorf("the org's account saw %+v", c)
			}
			d := s.Trail(t, a.ID()).Reserves[0]
			if got := pools(t, d); got != "acme-account" || !d.BYOK || d.Deployment != "acme-own/gpt" {
				t.Errorf("it claims of the pools %s, byok %v, at %s", got, d.BYOK, d.Deployment)
			}
		}},
		{"what it costs is the fee, and usage is recorded with what it would have cost", func(t *testing.T, s *stack.Stack) {
			a := call(t, s, "acme", script, body("m", `"max_tokens":50,`, 4))
			passes(t, a)
			trail := s.Trail(t, a.ID())
			const list = 100*1000 + 10*4000
			u := trail.Finals()[0]
			if u.CostNano != list*5/100 || u.ListNano != list || u.PriceVersion != "v1" {
				t.Errorf("cost %d of %d by %s", u.CostNano, u.ListNano, u.PriceVersion)
			}
			hold := claim(t, s, a.ID(), events.ScopeOrg, "balance")
			estimate := trail.Reserves[0].Estimate
			if most := (int64(len(body("m", `"max_tokens":50,`, 4)))*1000 + 50*4000) * 5 / 100; hold.Amount <= u.CostNano || hold.Amount > most+1 {
				t.Errorf("the hold is %d, of an estimate of %+v: more than %d", hold.Amount, estimate, most)
			}
			stack.Eventually(t, "the record says so", func() bool {
				g := generation(t, s, "acme", a.ID())
				return g.IsBYOK && g.UpstreamInferenceCost == 0.00014 && g.TotalCost == 0.000007 && len(g.Attempts) == 1 && g.Attempts[0].BYOK
			})
		}},
		{"others are served by the house, with their fair share of its pool", func(t *testing.T, s *stack.Stack) {
			a := call(t, s, "plain", script, body("m", "", 4))
			passes(t, a)
			if c := last(t, s.Provider); c.RequestID != a.ID() || c.Key != "sk-house" {
				t.Errorf("the house's account saw %+v", c)
			}
			trail := s.Trail(t, a.ID())
			if got := pools(t, trail.Reserves[0]); got != "house house plain" || trail.Reserves[0].BYOK {
				t.Errorf("it claims of the pools %s", got)
			}
			if u := trail.Finals()[0]; u.ListNano != 0 || u.CostNano != 100*1000+10*4000 {
				t.Errorf("cost %d, list %d", u.CostNano, u.ListNano)
			}
		}},
		{"a route with no declared pool is unavailable: 503, capacity_unknown", func(t *testing.T, s *stack.Stack) {
			before := s.Provider.Ledger().Totals().Calls + s.Other.Ledger().Totals().Calls
			a := call(t, s, "bare", script, body("m", "", 4))
			isRefused(t, a, refusal{status: 503, code: "capacity_unknown", scope: "pool", kind: "capacity_unknown", final: true})
			if a.Header.Get("X-Tm-Error-Origin") != "upstream_quota" || s.Provider.Ledger().Totals().Calls+s.Other.Ledger().Totals().Calls != before {
				t.Errorf("origin %s", a.Header.Get("X-Tm-Error-Origin"))
			}
		}},
		{"the house's account follows only where the org's own says so", func(t *testing.T, s *stack.Stack) {
			if a := call(t, s, "acme", "status=503;times=1;"+script, body("m", "", 4)); a.Status == 200 {
				t.Errorf("the house served it")
			}
			a := call(t, s, "falls", "status=500", body("m", "", 4)) // at either
			trail := s.Trail(t, a.ID())
			if len(trail.Reserves) != 2 || !trail.Reserves[0].BYOK || trail.Reserves[1].BYOK || pools(t, trail.Reserves[1]) != "house house falls" {
				t.Errorf("%d attempts: %+v", len(trail.Reserves), trail.Reserves)
			}
		}},
		{"its own pool's limit holds it, and names the pool", func(t *testing.T, s *stack.Stack) {
			var a *stack.Answer
			for range 4 {
				if a = call(t, s, "acme", script, body("m", "", 4)); a.Status != 200 {
					break
				}
			}
			isRefused(t, a, refusal{status: 429, code: "upstream_quota_exceeded", scope: "pool", kind: "rpm", retryAfter: "*"})
			if id := a.Header.Get("X-Tm-Limit-Id"); id != "acme-account" {
				t.Errorf("limit id %s", id)
			}
		}},
	})
}
