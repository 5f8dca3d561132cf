package conformance

import (
	"testing"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/test/e2e/stack"
)

// TestEstimatesAreBilledOrNot: a stream that is cut before its usage came is billed by the best estimate and says so, or never.
func TestEstimatesAreBilledOrNot(t *testing.T) {
	for setting, billed := range map[string]bool{"": true, "bill_estimates: false\n": false} {
		s := stack.New(t, stack.Config{Settings: stack.Settings{Keys: []stack.Key{{Name: "capped", Extra: `limits: {spend_day: "10"}`}},
			Weir: setting + `models:
  - {id: m, max_output_tokens: 1000, price: {input: "1", output: "4"}, local: {engine: vllm, replicas: ["{{upstream}}"]}}
`}})
		cut := call(t, s, "capped", "tokens=40;cut=12;gap=1ms", body("m", streaming+`"max_tokens":500,`, 400))
		whole := call(t, s, "capped", "tokens=10;input=100", body("m", `"max_tokens":500,`, 400))
		passes(t, whole)
		u := s.Trail(t, cut.ID()).Finals()[0]
		if u.Quality != events.QualityEstimated || u.Usage.OutputTokens == 0 || (u.CostNano > 0) != billed {
			t.Errorf("%q: a stream that was cut: %+v", setting, u)
		}
		exact := s.Trail(t, whole.ID()).Finals()[0]
		if exact.Quality != events.QualityExact || exact.CostNano != 100*1000+10*4000 {
			t.Errorf("%q: a whole answer: %+v", setting, exact)
		}
		stack.Eventually(t, "the cap counts what is billed", func() bool {
			for meter, l := range stack.Limits(t, s.URL(), "capped", "m") {
				if l.Kind == "spend" && l.Scope == "key" {
					t.Logf("%s: %d", meter, l.Used)
					return l.Used == u.CostNano+exact.CostNano
				}
			}
			return false
		})
		stack.Eventually(t, "the record says how well it is known", func() bool { return generation(t, s, "capped", cut.ID()).UsageQuality == "estimated" })
	}
}
