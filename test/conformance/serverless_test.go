package conformance

import (
	"path/filepath"
	"testing"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/test/e2e/stack"
	"github.com/weirhq/weir/test/utcday"
)

// ofKey is B4's refusal of what may pass later.
func ofKey(kind, message string) refusal {
	return refusal{status: 429, code: "rate_limit_exceeded", message: message, scope: "key", kind: kind, retryAfter: "1"}
}

const quotas = "max_occupancy_share: 0.5, quota: {input_tokens_per_minute: 150, output_tokens_per_minute: 60}"

// TestServerlessKeys: "B4: serverless key limits", the daily budget behind it, and "Provider fallback accounting".
func TestServerlessKeys(t *testing.T) {
	utcday.Whole(t)
	s := stack.New(t, stack.Config{Settings: stack.Settings{
		Keys: []stack.Key{{Name: "tenant", Extra: quotas}, {Name: "neighbour", Extra: quotas}, {Name: "zero", Extra: "max_occupancy_share: 0, quota: {input_tokens_per_minute: 0, output_tokens_per_minute: 0}"},
			{Name: "daily", Extra: "quota: {tokens_per_day: 200}"}, {Name: "drained", Extra: "quota: {output_tokens_per_minute: 2}"}, {Name: "both", Extra: "quota: {input_tokens_per_minute: 150, tokens_per_day: 20}"}},
		Weir: "models:\n" + local("share", "rates", "rates-2", "out", "kept", "reserved") + `
  - {id: away, local: {engine: vllm, replicas: ["{{upstream}}"]}, providers: [{connection: house}]}
connections:
  - {id: house, provider: openai, base_url: "{{upstream}}", pool: house}
pools:
  - {id: house, provider: openai, rpm: 1000, tpm: 100000000, concurrency: 100}
`,
		Policies: map[string]string{
			"share":    policy("share", "mode: serverless\nadmit_budget_tokens: 1000"),
			"rates":    policy("rates", "mode: serverless\nmax_input_tokens: 120"),
			"rates-2":  policy("rates-2", "mode: serverless"),
			"out":      policy("out", "mode: serverless"),
			"kept":     policy("kept", "mode: serverless\nadmit_budget_tokens: 1000"),
			"reserved": policy("reserved", "admit_budget_tokens: 1000"),
			"away":     policy("away", "mode: serverless\nadmit_budget_tokens: 10000"),
		}}})
	prove(t, s, []sentence{
		{"max_occupancy_share limits the key's in-flight footprint, does not apply the fraction, and rejects immediately", func(t *testing.T, s *stack.Stack) {
			if l := stack.Limits(t, s.URL(), "tenant", "share")[string(keyMeter("tenant", "share", "occupancy"))]; l.Limit != 500 {
				t.Errorf("the limit is %d, want half of 1000", l.Limit)
			}
			defer hold(t, s, "tenant", body("share", streaming+`"max_tokens":300,`, 4))()
			a := call(t, s, "tenant", "", body("share", `"max_tokens":300,`, 4))
			isRefused(t, a, ofKey("occupancy", "per-key occupancy share exceeded, please retry"))
			if v := s.Trail(t, a.ID()).Verdicts; len(v) != 1 || v[0].ParkedMS != 0 {
				t.Errorf("verdicts %+v", v)
			}
		}},
		{"static keys are isolated: each has an id of its own", func(t *testing.T, s *stack.Stack) {
			defer hold(t, s, "tenant", body("share", streaming+`"max_tokens":300,`, 4))()
			passes(t, call(t, s, "neighbour", "tokens=1", body("share", `"max_tokens":300,`, 4)))
		}},
		{"B2 comes before B4", func(t *testing.T, s *stack.Stack) {
			isRefused(t, call(t, s, "tenant", "", body("share", `"max_tokens":2000,`, 4)), refusal{status: 429, code: "concurrency_limit_exceeded", scope: "model", kind: "occupancy", final: true})
		}},
		{"B4 rejections set Retry-After: 1, also of what is larger than the share, which is told not to try again", func(t *testing.T, s *stack.Stack) {
			isRefused(t, call(t, s, "tenant", "", body("share", `"max_tokens":600,`, 4)), refusal{status: 429, code: "rate_limit_exceeded", scope: "key", kind: "occupancy", retryAfter: "1", final: true})
		}},
		{"if a later check rejects the request, every occupancy reservation already taken is released", func(t *testing.T, s *stack.Stack) {
			occupancy := events.NewMeter(events.ScopeModel, "occupancy", "kept")
			first := call(t, s, "tenant", "tokens=1;input=100", body("kept", `"max_tokens":10,`, 320))
			passes(t, first)
			s.Trail(t, first.ID()) // its own end is in the log
			isRefused(t, call(t, s, "tenant", "", body("kept", `"max_tokens":10,`, 320)), ofKey("itpm", "input token rate exceeded, please retry"))
			if held := s.Story(t).Held(occupancy); held != 0 {
				t.Errorf("%d tokens of the model are occupied by a refused request", held)
			}
		}},
		{"input_tokens_per_minute is a continuously refilling one-minute bucket charged from the shared input estimate", func(t *testing.T, s *stack.Stack) {
			a := call(t, s, "tenant", "tokens=1;input=100", body("rates", "", 320))
			passes(t, a)
			s.Trail(t, a.ID())
			if c := claim(t, s, a.ID(), events.ScopeKey, "itpm"); c.Amount != estimated(320) || c.Kind != events.Bucket {
				t.Errorf("the claim is %+v", c)
			}
			isRefused(t, call(t, s, "tenant", "", body("rates", "", 320)), ofKey("itpm", "input token rate exceeded, please retry"))
		}},
		{"the buckets are independent for each key-and-model combination", func(t *testing.T, s *stack.Stack) {
			passes(t, call(t, s, "tenant", "tokens=1;input=100", body("rates-2", "", 320)))
			passes(t, call(t, s, "neighbour", "tokens=1;input=100", body("rates", "", 320)))
		}},
		{"output_tokens_per_minute is charged after a local response, and one response can drain at most one minute of capacity", func(t *testing.T, s *stack.Stack) {
			a := call(t, s, "drained", "tokens=5000;input=1", body("out", "", 4))
			passes(t, a)
			s.Trail(t, a.ID())
			isRefused(t, call(t, s, "drained", "", body("out", "", 4)), ofKey("otpm", "output token rate exceeded, please retry"))
			if used := s.Story(t).Held(keyMeter("drained", "out", "otpm")); used > 2 || used < 1 {
				t.Errorf("the bucket of 2 lacks %d", used)
			}
		}},
		{"a zero value disables the corresponding cap", func(t *testing.T, s *stack.Stack) {
			for range 3 {
				a := call(t, s, "zero", "tokens=200;input=100", body("rates", "", 320))
				passes(t, a)
				if claims(t, s, a.ID(), "itpm") || claims(t, s, a.ID(), "otpm") {
					t.Error("it is claimed all the same")
				}
			}
		}},
		{"omitting the mode selects reserved, in which the key fields do nothing", func(t *testing.T, s *stack.Stack) {
			for range 3 {
				passes(t, call(t, s, "tenant", "tokens=100;input=100", body("reserved", `"max_tokens":700,`, 320)))
			}
		}},
		{"the daily token admission comes last", func(t *testing.T, s *stack.Stack) {
			a := call(t, s, "daily", "tokens=20;input=100", body("reserved", "", 320))
			passes(t, a)
			s.Trail(t, a.ID())
			isRefused(t, call(t, s, "daily", "", body("reserved", "", 320)), refusal{status: 429, code: "token_limit_exceeded",
				message: "insufficient daily token budget for requested max_tokens", scope: "org", kind: "daily", retryAfter: "*"})
		}},
		{"the daily budget counts declared output at admission", func(t *testing.T, s *stack.Stack) {
			isRefused(t, call(t, s, "daily", "", body("reserved", `"max_tokens":90,`, 4)), refusal{status: 429, code: "token_limit_exceeded", scope: "org", kind: "daily", retryAfter: "*"})
		}},
		{"B4 comes before the daily budget", func(t *testing.T, s *stack.Stack) {
			a := call(t, s, "both", "", body("rates-2", "", 3200))
			isRefused(t, a, refusal{status: 429, code: "rate_limit_exceeded", scope: "key", kind: "itpm", retryAfter: "1", final: true})
		}},
		{"embedding requests skip the serverless limits and the daily budget", func(t *testing.T, s *stack.Stack) {
			for _, key := range []string{"tenant", "daily"} {
				a := stack.Do(t, stack.Request{URL: s.URL() + "/v1/embeddings", Key: key, Script: "input=1000", Body: `{"model":"rates","input":"a"}`})
				passes(t, a)
				if claims(t, s, a.ID(), "itpm") || claims(t, s, a.ID(), "daily") {
					t.Error("it is claimed all the same")
				}
			}
		}},
		{"when routing leaves the local pool, the router releases the global and per-key occupancy reservations immediately", func(t *testing.T, s *stack.Stack) {
			end := holdWith(t, s, "tenant", "status=500;times=1;tokens=5000;gap=5ms", body("away", streaming+`"max_tokens":1000,`, 4))
			story := s.Story(t)
			for _, m := range []events.Meter{events.NewMeter(events.ScopeModel, "occupancy", "away"), keyMeter("tenant", "away", "occupancy")} {
				if held := story.Held(m); held != 0 {
					t.Errorf("%s is %d while the provider answers", m, held)
				}
			}
			if held := story.Held(events.NewMeter(events.ScopePool, "concurrency", "house")); held != 1 {
				t.Errorf("the provider's account shows %d requests at once", held)
			}
			end()
		}},
		{"provider output does not charge the local OTPM bucket or train the local model's estimator; input charges remain in place", func(t *testing.T, s *stack.Stack) {
			a := call(t, s, "neighbour", "status=500;times=1;tokens=77;input=9", body("away", "", 40))
			passes(t, a)
			s.Trail(t, a.ID())
			story := s.Story(t)
			if used := story.Held(keyMeter("neighbour", "away", "otpm")); used != 0 {
				t.Errorf("the output bucket lacks %d", used)
			}
			if used := story.Held(keyMeter("neighbour", "away", "itpm")); used < estimated(40)-1 {
				t.Errorf("the input bucket lacks %d, and %d were taken from it", used, estimated(40))
			}
			for _, u := range s.Trail(t, a.ID()).Finals() {
				if u.Train {
					t.Error("an answer of the provider trains")
				}
			}
		}},
		{"an invalid reload leaves the previous valid configuration active", func(t *testing.T, s *stack.Stack) {
			// A key's nonzero input_tokens_per_minute must be at least max_input_tokens of every reachable serverless model.
			g := s.Gateways[0]
			stack.WriteFile(t, filepath.Join(g.Dir, "policies", "rates-2.yaml"), policy("rates-2", "mode: serverless\nmax_input_tokens: 151"))
			if err := g.Reload(); err == nil {
				t.Error("it was taken")
			} else {
				t.Log(err)
			}
			passes(t, call(t, s, "zero", "tokens=1", body("rates-2", "", 3200)))
			stack.WriteFile(t, filepath.Join(g.Dir, "policies", "rates-2.yaml"), policy("rates-2", "mode: serverless\nmax_input_tokens: 150"))
			if err := g.Reload(); err != nil {
				t.Errorf("the corrected file: %v", err)
			}
			isRefused(t, call(t, s, "zero", "tokens=1", body("rates-2", "", 3200)), tooLong(""))
		}},
	})
}
