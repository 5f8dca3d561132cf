package conformance

import (
	"strings"
	"testing"

	"github.com/weirhq/weir/test/e2e/stack"
)

const pixel = `data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==`

func tooLong(message string) refusal {
	return refusal{status: 400, code: "input_too_long", message: message, scope: "model", kind: "input", final: true}
}

// TestRequestCaps: "B1: request caps" and "One input estimate".
func TestRequestCaps(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: stack.Settings{
		Keys: []stack.Key{{Name: "plain"}, {Name: "once"}},
		Weir: "orgs:\n  plain: {limits: {rpm: 100000}}\n  once: {limits: {rpm: 1}}\nmodels:\n" + local("capped", "pictures", "small", "free") +
			"  - {id: windowed, context_window: 1000, local: {engine: vllm, replicas: [\"{{upstream}}\"]}}\n",
		Policies: map[string]string{
			"capped":   policy("capped", "max_input_tokens: 100"),
			"windowed": policy("windowed", "max_input_tokens: 100"),
			"pictures": policy("pictures", "images_max: 1"),
			"small":    policy("small", "max_input_tokens: 10"),
			"free":     policy("free", "max_input_tokens: 0\nimages_max: 0\nadmit_budget_tokens: 0\nmax_inflight: 0"),
		}}})
	images := func(n int) string {
		return `{"model":"pictures","messages":[{"role":"user","content":[{"type":"text","text":"?"}` + strings.Repeat(`,{"type":"image_url","image_url":{"url":"`+pixel+`"}}`, n) + `]}]}`
	}
	messages := func(body string) *stack.Answer {
		return stack.Do(t, stack.Request{URL: s.URL() + "/v1/messages", Key: "plain", Body: body, Header: map[string]string{"Anthropic-Version": "2023-06-01"}})
	}
	prove(t, s, []sentence{
		{"the estimator starts at one token per 3.2 bytes", func(t *testing.T, s *stack.Stack) {
			// 321 bytes are 100.3 tokens: 101.
			isRefused(t, call(t, s, "plain", "", body("capped", "", 321)), tooLong("input is 101 tokens, over the model limit of 100"))
			passes(t, call(t, s, "plain", "input=100", body("capped", "", 320)))
		}},
		{"admission control applies to POST v1 messages", func(t *testing.T, s *stack.Stack) {
			a := messages(body("capped", `"max_tokens":8,`, 4000))
			isRefused(t, a, tooLong(""))
			if e := a.Error(); e.Outer != "error" || e.Type != "invalid_request_error" {
				t.Errorf("not in Anthropic's shape: %s", a.Body)
			}
		}},
		{"input that is kept elsewhere is taken for the longest that is admitted, and not refused", func(t *testing.T, s *stack.Stack) {
			a := stack.Do(t, stack.Request{URL: s.URL() + "/v1/responses", Key: "plain", Body: `{"model":"windowed","previous_response_id":"resp_1","input":"and then?"}`})
			passes(t, a)
			if d := s.Trail(t, a.ID()).Reserves[0]; d.Estimate.InputTokens != 100 {
				t.Errorf("it is estimated at %d", d.Estimate.InputTokens)
			}
		}},
		{"reducing only max_tokens does not fix this response", func(t *testing.T, s *stack.Stack) {
			isRefused(t, call(t, s, "plain", "", body("capped", `"max_tokens":1,`, 4000)), tooLong(""))
		}},
		{"the router rejects a request carrying more images than the limit", func(t *testing.T, s *stack.Stack) {
			want := refusal{status: 400, code: "input_too_long", message: "request carries 2 images, over the model limit of 1", scope: "model", kind: "images", final: true}
			isRefused(t, call(t, s, "plain", "", images(2)), want)
			passes(t, call(t, s, "plain", "", images(1)))
			block := `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}}`
			isRefused(t, messages(`{"model":"pictures","max_tokens":8,"messages":[{"role":"user","content":[`+block+`,`+block+`]}]}`), want)
		}},
		{"image content is not byte-estimable", func(t *testing.T, s *stack.Stack) {
			large := strings.Repeat("A", 40_000)
			passes(t, call(t, s, "plain", "", `{"model":"capped","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,`+large+`"}}]}]}`))
		}},
		{"the estimate includes a small per-message overhead, including for textless messages", func(t *testing.T, s *stack.Stack) {
			three := strings.Repeat(`,{"role":"user","content":""}`, 3)[1:]
			isRefused(t, call(t, s, "plain", "", `{"model":"small","messages":[`+three+`]}`), tooLong("input is 12 tokens, over the model limit of 10"))
		}},
		{"the estimate includes the Anthropic top-level system prompt, as a string or text-block array", func(t *testing.T, s *stack.Stack) {
			text := strings.Repeat("s", 640)
			isRefused(t, messages(body("capped", `"max_tokens":8,"system":"`+text+`",`, 1)), tooLong("input is 201 tokens, over the model limit of 100"))
			isRefused(t, messages(body("capped", `"max_tokens":8,"system":[{"type":"text","text":"`+text+`"}],`, 1)), tooLong("input is 201 tokens, over the model limit of 100"))
		}},
		{"the estimate includes raw tools JSON, because tool schemas become part of the model prompt", func(t *testing.T, s *stack.Stack) {
			tools := `[{"type":"function","function":{"name":"f","description":"` + strings.Repeat("d", 320) + `"}}]`
			isRefused(t, call(t, s, "plain", "", body("capped", `"tools":`+tools+`,`, 4)), tooLong(""))
		}},
		{"a zero or an omitted field disables that check", func(t *testing.T, s *stack.Stack) {
			passes(t, call(t, s, "plain", "input=9", body("free", `"max_tokens":100000,`, 400_000)))
		}},
		{"the router does not impose its own output-token cap", func(t *testing.T, s *stack.Stack) {
			passes(t, call(t, s, "plain", "tokens=2", body("free", `"max_tokens":10000000,`, 4)))
			calls := s.Provider.Ledger().Calls()
			if got := calls[len(calls)-1].Declared; got != 10_000_000 {
				t.Errorf("the upstream got max_tokens %d", got)
			}
		}},
		{"count_tokens is deliberately exempt and remains protected by the request-per-minute limiter", func(t *testing.T, s *stack.Stack) {
			count := func() *stack.Answer {
				return stack.Do(t, stack.Request{URL: s.URL() + "/v1/messages/count_tokens", Key: "once", Script: "input=5", Body: body("capped", "", 4000)})
			}
			a := count()
			passes(t, a)
			for _, dimension := range []string{"occupancy", "inflight", "itpm", "otpm", "daily"} {
				if claims(t, s, a.ID(), dimension) {
					t.Errorf("it claims %s", dimension)
				}
			}
			isRefused(t, count(), refusal{status: 429, code: "rate_limit_exceeded", scope: "org", kind: "rpm", retryAfter: "*"})
		}},
		{"the request-per-minute check comes before B1", func(t *testing.T, s *stack.Stack) {
			isRefused(t, call(t, s, "once", "", body("capped", "", 4000)), refusal{status: 429, code: "rate_limit_exceeded", scope: "org", kind: "rpm", retryAfter: "*"})
		}},
		{"embedding and reranking requests are also exempt", func(t *testing.T, s *stack.Stack) {
			long := strings.Repeat("x", 4000)
			passes(t, stack.Do(t, stack.Request{URL: s.URL() + "/v1/embeddings", Key: "plain", Body: `{"model":"capped","input":"` + long + `"}`}))
			passes(t, stack.Do(t, stack.Request{URL: s.URL() + "/v1/rerank", Key: "plain", Body: `{"model":"capped","query":"` + long + `","documents":["a","b"]}`}))
		}},
		{"the learned ratio comes from exact backend usage", func(t *testing.T, s *stack.Stack) {
			// One byte a token reported for 320 bytes: the ratio goes from 0.3125 a fifth of the way to 1, to 0.45.
			const bytes = 320
			passes(t, call(t, s, "plain", "input=320", body("free", "", bytes)))
			stack.Eventually(t, "the gateway has learned", func() bool {
				a := call(t, s, "plain", "no-usage", body("free", "", bytes))
				return s.Trail(t, a.ID()).Reserves[0].Estimate.InputTokens > estimated(bytes)
			})
		}},
	})
	stack.Eventually(t, "nothing is held", func() bool { return len(s.Story(t).Gauges()) == 0 })
}
