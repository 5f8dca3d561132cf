package conformance

import (
	"strings"
	"testing"

	"github.com/weirhq/weir/test/e2e/stack"
)

// TestShadowLimits: limits that are tried out refuse nothing, and what they would have refused is told everywhere.
func TestShadowLimits(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: stack.Settings{
		Weir: `
orgs:
  acme: {limits: {rpm: 600, shadow: {rpm: 1, tpm: 50}}, models: {m: {shadow: {rpm: 2}}}}
models:
` + local("m"),
		Keys: []stack.Key{{Name: "acme", Extra: "limits: {concurrency: 5, shadow: {concurrency: 1, rps: 1000}}"}}}})
	for range 2 {
		passes(t, call(t, s, "acme", "", body("m", `"max_tokens":5,`, 4)))
	}
	end := hold(t, s, "acme", body("m", streaming, 4))
	a := call(t, s, "acme", "", body("m", `"max_tokens":5,`, 4))
	end()
	prove(t, s, []sentence{
		{"a request over shadow limits is admitted", func(t *testing.T, _ *stack.Stack) {
			passes(t, a)
			if left := a.Header.Get("X-Tm-Remaining-Rpm"); left != "596" {
				t.Errorf("%s remain: the headers tell of the limits that hold", left)
			}
		}},
		{"its claims say that they are shadows, and the verdict which of them would have refused", func(t *testing.T, s *stack.Stack) {
			trail := s.Trail(t, a.ID())
			var over []string
			for _, i := range trail.Verdicts[0].Shadow {
				c := trail.Reserves[0].Claims[i]
				if !c.Shadow {
					t.Errorf("%s is no shadow", c.Meter)
				}
				over = append(over, string(c.Meter))
			}
			key := string(keyMeter("acme", "m", "x"))
			key = key[:strings.IndexByte(key, '.')] + "/shadow-concurrency"
			if got, want := strings.Join(over, " "), "org/acme/shadow-rpm model/acme.m/shadow-rpm org/acme/shadow-tpm "+key; got != want {
				t.Errorf("over %s\nwant %s", got, want)
			}
		}},
		{"/v1/generation tells of each as an event of admission", func(t *testing.T, s *stack.Stack) {
			stack.Eventually(t, "the record is there", func() bool { return len(generation(t, s, "acme", a.ID()).AdmissionEvents) > 0 })
			var told []string
			for _, e := range generation(t, s, "acme", a.ID()).AdmissionEvents {
				if e.Status != 0 || e.Code != "" || e.Limit == nil || e.Used == nil {
					t.Errorf("%+v", e)
				}
				told = append(told, e.Event+" "+e.Scope+" "+e.Kind)
			}
			if got := strings.Join(told, ", "); got != "shadow org rpm, shadow model rpm, shadow org tpm, shadow key concurrency" {
				t.Errorf("it tells of %s", got)
			}
		}},
		{"the metrics count them", func(t *testing.T, s *stack.Stack) {
			text := string(stack.Do(t, stack.Request{URL: s.URL() + "/metrics"}).Body)
			for _, want := range []string{`weir_shadow_refusals_total{kind="rpm",model="m",scope="org"} 3`, `weir_shadow_refusals_total{kind="rpm",model="m",scope="model"} 2`,
				`weir_shadow_refusals_total{kind="concurrency",model="m",scope="key"} 1`} {
				if !strings.Contains(text, want) {
					t.Errorf("no %s", want)
				}
			}
		}},
		{"/v1/limits lists them apart", func(t *testing.T, s *stack.Stack) {
			limits := stack.Limits(t, s.URL(), "acme", "m")
			if l := limits["org/acme/shadow-rpm"]; l.Limit != 1 || !l.Shadow || limits["org/acme/rpm"].Shadow {
				t.Errorf("%+v", limits)
			}
		}},
	})
}
