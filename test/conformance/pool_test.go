package conformance

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/services/provider"
	"github.com/weirhq/weir/test/e2e/stack"
)

// full is B2's refusal of what may pass later.
func full(kind string) refusal {
	return refusal{status: 429, code: "concurrency_limit_exceeded", message: "server at capacity for this model, please retry", scope: "model", kind: kind, retryAfter: "1"}
}

// TestPoolOccupancy: "B2: pool occupancy".
func TestPoolOccupancy(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: stack.Settings{
		Keys: []stack.Key{{Name: "plain"}},
		Weir: "models:\n" + local("budget", "inflight", "growing", "prefers", "open", "outcomes") + `
  - {id: pair, local: {engine: vllm, replicas: ["{{upstream}}", "{{other}}"]}}
  - {id: dead, local: {engine: vllm, replicas: ["http://127.0.0.1:1"]}}
`,
		Policies: map[string]string{
			"budget":   policy("budget", "admit_budget_tokens: 1000"),
			"inflight": policy("inflight", "max_inflight: 1"),
			"growing":  policy("growing", "admit_budget_tokens: 100000"),
			"prefers":  policy("prefers", "admit_budget_tokens: 100000"),
			"outcomes": policy("outcomes", "admit_budget_tokens: 100000\nmax_inflight: 10"),
			"pair":     policy("pair", "max_inflight: 1\nadmit_budget_tokens: 1000"),
			"dead":     policy("dead", "admit_budget_tokens: 1000"),
		}}})
	prove(t, s, []sentence{
		{"token budget is floor of the fraction, 0.90 by default, times admit_budget_tokens times healthy replicas", func(t *testing.T, s *stack.Stack) {
			if l := stack.Limits(t, s.URL(), "plain", "budget")["model/budget/occupancy"]; l.Limit != 900 {
				t.Errorf("the limit is %d, want 900", l.Limit)
			}
		}},
		{"a request's initial token footprint is estimated input tokens plus declared maximum output tokens", func(t *testing.T, s *stack.Stack) {
			// 320 bytes are 100 tokens. 800 more just fit, 801 never will.
			passes(t, call(t, s, "plain", "tokens=1;input=100", body("budget", `"max_tokens":800,`, 320)))
			isRefused(t, call(t, s, "plain", "", body("budget", `"max_tokens":801,`, 320)), refusal{status: 429, code: "concurrency_limit_exceeded",
				message: "request needs 901 tokens, over the model's capacity of 900", scope: "model", kind: "occupancy", final: true})
		}},
		{"max_completion_tokens is preferred, with max_tokens as the fallback", func(t *testing.T, s *stack.Stack) {
			for fields, declared := range map[string]int64{`"max_completion_tokens":50,`: 50, `"max_tokens":60,`: 60, `"max_tokens":70,"max_completion_tokens":70,`: 70, ``: 0} {
				a := call(t, s, "plain", "tokens=1", body("prefers", fields, 320))
				passes(t, a)
				d := s.Trail(t, a.ID()).Reserves[0]
				if c := claim(t, s, a.ID(), events.ScopeModel, "occupancy"); c.Amount != d.Estimate.InputTokens+declared {
					t.Errorf("%s: the footprint is %d of which %d are input", fields, c.Amount, d.Estimate.InputTokens)
				}
			}
		}},
		{"a negative output value is treated as undeclared for occupancy accounting rather than reducing the footprint", func(t *testing.T, s *stack.Stack) {
			a := call(t, s, "plain", "tokens=1", body("prefers", `"max_tokens":-50,`, 320))
			passes(t, a)
			if c, d := claim(t, s, a.ID(), events.ScopeModel, "occupancy"), s.Trail(t, a.ID()).Reserves[0]; c.Amount != d.Estimate.InputTokens || d.Estimate.OutputDeclared {
				t.Errorf("the footprint is %d of which %d are input", c.Amount, d.Estimate.InputTokens)
			}
			calls := s.Provider.Ledger().Calls()
			if sent := string(calls[len(calls)-1].Body); !strings.Contains(sent, `"max_tokens":-50`) {
				t.Errorf("the upstream got %s", sent)
			}
		}},
		{"when a request does not fit, it waits for up to the park timeout, 250ms by default, then 429", func(t *testing.T, s *stack.Stack) {
			defer hold(t, s, "plain", body("inflight", streaming, 4))()
			begin := time.Now()
			a := call(t, s, "plain", "", body("inflight", "", 4))
			if took := time.Since(begin); took < parkDefault {
				t.Errorf("refused after %s", took)
			}
			isRefused(t, a, full("inflight"))
			if v := s.Trail(t, a.ID()).Verdicts[0]; v.ParkedMS < parkDefault.Milliseconds() {
				t.Errorf("it was parked for %d ms", v.ParkedMS)
			}
		}},
		{"a request that waits is admitted when there is room", func(t *testing.T, s *stack.Stack) {
			for tries := 1; ; tries++ {
				end := hold(t, s, "plain", body("inflight", streaming, 4))
				done := make(chan *stack.Answer, 1)
				go func() {
					a, err := stack.Request{URL: s.URL() + "/v1/chat/completions", Key: "plain", Body: body("inflight", "", 4)}.Send()
					if err != nil {
						t.Error(err)
					}
					done <- a
				}()
				stack.Eventually(t, "it waits", func() bool { return s.Projector.Stats().Waiting > 0 || len(done) > 0 })
				end()
				a := <-done
				if a != nil && a.Status == http.StatusTooManyRequests && tries < 20 { // a busy machine made room too late
					continue
				}
				if a != nil {
					passes(t, a)
				}
				return
			}
		}},
		{"admit_budget_tokens and max_inflight are per-replica limits that the router scales to the number of healthy replicas", func(t *testing.T, s *stack.Stack) {
			limits := stack.Limits(t, s.URL(), "plain", "pair")
			if budget, inflight := limits["model/pair/occupancy"].Limit, limits["model/pair/inflight"].Limit; budget != 1800 || inflight != 2 {
				t.Fatalf("with two healthy replicas the budget is %d, the backstop %d", budget, inflight)
			}
			defer hold(t, s, "plain", body("pair", streaming, 4))()
			defer hold(t, s, "plain", body("pair", streaming, 4))()
			isRefused(t, call(t, s, "plain", "", body("pair", "", 4)), full("inflight"))
		}},
		{"the healthy-replica count is floored at 1, while routing can still return the more specific availability error", func(t *testing.T, s *stack.Stack) {
			isRefused(t, call(t, s, "plain", "", body("dead", `"max_tokens":901,`, 4)), refusal{status: 429, code: "concurrency_limit_exceeded", scope: "model", kind: "occupancy", final: true})
			isRefused(t, call(t, s, "plain", "", body("dead", "", 4)), refusal{status: 503, code: "no_capacity", scope: "model", retryAfter: "1"})
		}},
		{"if output is undeclared, the reservation starts with the input estimate and grows as output streams", func(t *testing.T, s *stack.Stack) {
			a := call(t, s, "plain", "tokens=120;gap=5ms;no-usage", body("growing", streaming, 320))
			passes(t, a)
			trail := s.Trail(t, a.ID())
			last := claim(t, s, a.ID(), events.ScopeModel, "occupancy").Amount
			if last != trail.Reserves[0].Estimate.InputTokens {
				t.Errorf("it starts with %d, and the input is %d", last, trail.Reserves[0].Estimate.InputTokens)
			}
			grown := 0
			for _, u := range trail.TrueUps {
				for _, c := range u.Charges {
					if c.Basis == events.BasisFootprint && c.Amount > last {
						last = c.Amount
						grown++
					}
				}
			}
			if grown < 2 {
				t.Errorf("it grew %d times in 600 ms of streaming: %d at last", grown, last)
			}
		}},
		{"when the backend reports exact input usage, the router replaces the estimated input portion with the exact count", func(t *testing.T, s *stack.Stack) {
			a := stack.Do(t, stack.Request{URL: s.URL() + "/v1/messages", Key: "plain", Script: "input=77;tokens=5;gap=1ms", Body: body("growing", streaming+`"max_tokens":100,`, 320)})
			passes(t, a)
			for _, u := range s.Trail(t, a.ID()).TrueUps {
				for _, c := range u.Charges {
					if c.Basis == events.BasisFootprint && c.Amount != 177 {
						t.Errorf("the footprint became %d, want 77 of input and the 100 declared", c.Amount)
					}
				}
			}
		}},
		{"success, error, timeout, and client disconnect all release the reservation", func(t *testing.T, s *stack.Stack) {
			for _, script := range []string{"", "status=500", "status=400", "abort", "cut=3;gap=1ms", "error-event=2;gap=1ms"} {
				s.Trail(t, call(t, s, "plain", script, body("outcomes", streaming+`"max_tokens":50,`, 40)).ID())
			}
			hold(t, s, "plain", body("outcomes", streaming, 40))()
			story := s.Story(t)
			for _, dimension := range []string{"occupancy", "inflight"} {
				if held := story.Held(events.NewMeter(events.ScopeModel, dimension, "outcomes")); held != 0 {
					t.Errorf("%s is %d", dimension, held)
				}
			}
		}},
		{"an omitted field disables that check", func(t *testing.T, s *stack.Stack) {
			a := call(t, s, "plain", "tokens=1", body("open", `"max_tokens":1000000,`, 4))
			passes(t, a)
			if claims(t, s, a.ID(), "occupancy") || claims(t, s, a.ID(), "inflight") {
				t.Error("a model without limits is claimed")
			}
		}},
	})
}

const streaming = `"stream":true,`

// TestFractionAndPark: the two variables of the environment.
func TestFractionAndPark(t *testing.T) {
	settings := stack.Settings{Keys: []stack.Key{{Name: "plain"}}, Weir: "models:\n" + local("m"),
		Policies: map[string]string{"m": policy("m", "admit_budget_tokens: 1001\nmax_inflight: 1")}}
	occupancy := func(t *testing.T, s *stack.Stack) int64 {
		t.Helper()
		return stack.Limits(t, s.URL(), "plain", "m")["model/m/occupancy"].Limit
	}
	t.Run("HIVENET_ROUTER_ADMIT_FRACTION scales the token budget, rounded down, and a timeout of 0 rejects immediately", func(t *testing.T) {
		s := stack.New(t, stack.Config{Settings: settings, Env: map[string]string{"HIVENET_ROUTER_ADMIT_FRACTION": "0.5", "HIVENET_ROUTER_ADMIT_PARK_TIMEOUT": "0"}})
		if limit := occupancy(t, s); limit != 500 {
			t.Errorf("the limit is %d, want 500", limit)
		}
		defer hold(t, s, "plain", body("m", streaming, 4))()
		a := call(t, s, "plain", "", body("m", "", 4))
		isRefused(t, a, full("inflight"))
		if v := s.Trail(t, a.ID()).Verdicts; len(v) > 0 && v[0].ParkedMS != 0 {
			t.Errorf("it waited %d ms", v[0].ParkedMS)
		}
	})
	t.Run("invalid values leave the default unchanged", func(t *testing.T) {
		s := stack.New(t, stack.Config{Settings: settings, Env: map[string]string{"HIVENET_ROUTER_ADMIT_FRACTION": "1.5", "HIVENET_ROUTER_ADMIT_PARK_TIMEOUT": "soon"}})
		if limit := occupancy(t, s); limit != 900 {
			t.Errorf("the limit is %d, want 900", limit)
		}
		defer hold(t, s, "plain", body("m", streaming, 4))()
		a := call(t, s, "plain", "", body("m", "", 4))
		if v := s.Trail(t, a.ID()).Verdicts; len(v) != 1 || v[0].ParkedMS < parkDefault.Milliseconds() {
			t.Errorf("verdicts %+v", v)
		}
	})
}

// TestShedding: "B3: front-door shedding".
func TestShedding(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: stack.Settings{
		Keys: []stack.Key{{Name: "plain"}},
		Weir: "models:\n" + local("shed", "calm") + `
  - {id: silent, local: {engine: ollama, replicas: ["{{alias}}"]}}
  - {id: pair, local: {engine: vllm, replicas: ["{{upstream}}", "{{other}}"]}}
`,
		Policies: map[string]string{
			"shed":   policy("shed", "max_input_tokens: 100\nadmit_budget_tokens: 10\nshed_if:\n  kv_cache_utilization: {gt: 0.90}\n  waiting_requests: {gt: 20}"),
			"silent": policy("silent", "shed_if:\n  waiting_requests: {gt: 20}"),
			"pair":   policy("pair", "shed_if:\n  waiting_requests: {gt: 20}"),
		}}})
	passes(t, call(t, s, "plain", "tokens=1", body("shed", "", 4)))
	pressed(t, s, "shed", 30)
	prove(t, s, []sentence{
		{"if any configured threshold fails, it returns HTTP 429 and sets Retry-After 1", func(t *testing.T, s *stack.Stack) {
			isRefused(t, call(t, s, "plain", "", body("shed", "", 4)), refusal{status: 429, code: "concurrency_limit_exceeded",
				message: "model is under high load, please retry", scope: "model", kind: "pressure", retryAfter: "1"})
		}},
		{"B1 comes before B3", func(t *testing.T, s *stack.Stack) {
			isRefused(t, call(t, s, "plain", "", body("shed", "", 4000)), tooLong(""))
		}},
		{"B3 comes before B2", func(t *testing.T, s *stack.Stack) {
			isRefused(t, call(t, s, "plain", "", body("shed", `"max_tokens":1000,`, 4)), refusal{status: 429, code: "concurrency_limit_exceeded",
				message: "model is under high load, please retry", scope: "model", kind: "pressure", retryAfter: "1"})
		}},
		{"the router averages each available signal across healthy agents", func(t *testing.T, s *stack.Stack) {
			passes(t, call(t, s, "plain", "", body("pair", "", 4))) // 30 and 0
			s.Other.SetMetric(provider.MetricWaiting, 20)
			stack.Eventually(t, "25 on average are too many", func() bool {
				return call(t, s, "plain", "", body("pair", "", 4)).Status == 429
			})
		}},
		{"missing engine signals pass the gate", func(t *testing.T, s *stack.Stack) {
			passes(t, call(t, s, "plain", "", body("silent", "", 4)))
		}},
		{"a model without shed_if is not shed", func(t *testing.T, s *stack.Stack) {
			passes(t, call(t, s, "plain", "", body("calm", "", 4)))
		}},
		{"embedding and reranking requests are exempt from the pressure shed", func(t *testing.T, s *stack.Stack) {
			passes(t, stack.Do(t, stack.Request{URL: s.URL() + "/v1/embeddings", Key: "plain", Body: `{"model":"shed","input":"a"}`}))
			passes(t, stack.Do(t, stack.Request{URL: s.URL() + "/v1/messages/count_tokens", Key: "plain", Script: "input=1", Body: body("shed", "", 4)}))
		}},
	})
}
