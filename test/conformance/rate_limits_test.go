package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/openai/openai-go/v3"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/test/e2e/stack"
)

// accounts is a world of provider accounts and of scopes that overlap.
const accounts = `
limits: {platform: {rpm: 100000}}
orgs:
  acme:
    limits: {rpm: 200, tpm: 3000000, concurrency: 10}
    workspaces: {research: {rpm: 150}, shared: {rpm: 3}}
    principals: {ann: {rpm: 140}, bob: {rpm: 130, tpm: 2000000}}
    models: {strict: {rpm: 2}}
  closed: {limits: {rpm: 7, outage_mode: closed}}
  advance: {billing: prepaid, limits: {rpm: 9, tpm: 900, concurrency: 3}, models: {gpt-4o: {outage_mode: closed}}}
models:
  - {id: gpt-4o, context_window: 128000, max_output_tokens: 16384, price: {input: "1", output: "4"}, providers: [{connection: house}]}
  - {id: undeclared, providers: [{connection: house}]}
  - {id: large, max_output_tokens: 128000, providers: [{connection: house}]}
  - {id: narrow, context_window: 1000, max_output_tokens: 900, providers: [{connection: house}]}
  - {id: strict, max_output_tokens: 10, providers: [{connection: house}]}
  - {id: twice, max_output_tokens: 10, providers: [{connection: first}, {connection: second}]}
  - {id: nowhere, max_output_tokens: 10, providers: [{connection: gone}]}
  - {id: cools, max_output_tokens: 10, providers: [{connection: cooled}]}
  - {id: claude, max_output_tokens: 8192, providers: [{connection: claude}]}
  - {id: own, local: {engine: vllm, replicas: ["{{upstream}}"]}, dedicated: {rpm: 50, outage_mode: closed, default_max_output_tokens: 40000}}
  - {id: paced, max_output_tokens: 500, dedicated: {rps: 5, queue_ms: 5000, default_max_output_tokens: 9000}, providers: [{connection: house}]}
connections:
  - {id: house, provider: openai, base_url: "{{upstream}}", pool: house}
  - {id: first, provider: openai, base_url: "{{upstream}}", pool: first}
  - {id: second, provider: openai, base_url: "{{other}}", pool: second}
  - {id: gone, provider: openai, base_url: "http://127.0.0.1:1", pool: house}
  - {id: cooled, provider: openai, base_url: "{{upstream}}", pool: leaf}
  - {id: claude, provider: anthropic, base_url: "{{upstream}}", pool: claude}
pools:
  - {id: house, provider: openai, rpm: 10000, tpm: 10000000, concurrency: 100}
  - {id: first, provider: openai, rpm: 10000, tpm: 10000000, concurrency: 100}
  - {id: second, provider: openai, rpm: 10000, tpm: 10000000, concurrency: 100}
  - {id: trunk, provider: openai, rpm: 10000, tpm: 10000000, concurrency: 100}
  - {id: leaf, provider: openai, rpm: 10000, tpm: 10000000, concurrency: 100, parent: trunk}
  - {id: claude, provider: anthropic, rpm: 10000, tpm: 10000000, concurrency: 100}
`

// newAccounts runs that world.
func newAccounts(t *testing.T, gateways int) *stack.Stack {
	t.Helper()
	return stack.New(t, stack.Config{Gateways: gateways, Settings: stack.Settings{Weir: accounts, Keys: []stack.Key{
		{Name: "ann", Owner: "acme", Extra: "workspace: research, principal: ann, limits: {rpm: 120, tpm: 1000000, concurrency: 5}"},
		{Name: "bob", Owner: "acme", Extra: "workspace: shared, principal: bob"},
		{Name: "ben", Owner: "acme", Extra: "workspace: shared"},
		{Name: "closed"}, {Name: "plain"}, {Name: "advance"}, {Name: "capped", Extra: `limits: {spend_day: "0.1"}`},
	}}})
}

// settled gives what became of an attempt's claim on a dimension of a scope, once it is known.
func settled(t *testing.T, s *stack.Stack, key, id, meter string) (amount, now, returned int64) {
	t.Helper()
	s.Trail(t, id)
	found := false
	stack.Eventually(t, "the record of "+id+" tells of "+meter, func() bool {
		for _, a := range generation(t, s, key, id).Attempts {
			for _, c := range a.Claims {
				if c.Meter == meter && c.Settled != nil && a.Released != nil {
					found, amount, now = true, c.Amount, *c.Settled
					if c.Returned != nil {
						returned = *c.Returned
					}
				}
			}
		}
		return found
	})
	return amount, now, returned
}

// TestCountingAndSettlement: "Counting and token estimates", with its estimate, its bound, its settlement and Anthropic's counting.
func TestCountingAndSettlement(t *testing.T) {
	s := newAccounts(t, 1)
	prove(t, s, []sentence{
		{"one admitted logical request uses gateway RPM once; every physical attempt uses upstream RPM and its own token reservation", func(t *testing.T, s *stack.Stack) {
			a := call(t, s, "ann", "status=503;times=1", body("twice", "", 4)) // each upstream fails it once
			trail := s.Trail(t, a.ID())
			if len(trail.Reserves) != 2 {
				t.Fatalf("%d attempts", len(trail.Reserves))
			}
			for i, pool := range []string{"first", "second"} {
				var rpm, upstream, tokens int
				for _, c := range trail.Reserves[i].Claims {
					switch {
					case c.Meter == "org/acme/rpm":
						rpm++
					case string(c.Meter) == "pool/"+pool+"/rpm":
						upstream++
					case string(c.Meter) == "pool/"+pool+"/tpm" && c.Amount > 0:
						tokens++
					}
				}
				if rpm != 1-i || upstream != 1 || tokens != 1 {
					t.Errorf("attempt %d claims gateway rpm %d times, its pool's %d times, tokens %d times", i, rpm, upstream, tokens)
				}
			}
		}},
		{"the input reservation is the UTF-8 byte size plus 65,536 per image; the base64 of an inline image is left out", func(t *testing.T, s *stack.Stack) {
			const base64 = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo="
			text := `{"model":"gpt-4o","max_tokens":10,"messages":[{"role":"user","content":[{"type":"text","text":"grüß"},` +
				`{"type":"image_url","image_url":{"url":"data:image/png;base64,` + base64 + `"}}]}]}`
			a := call(t, s, "ann", "", text)
			passes(t, a)
			if c, want := claim(t, s, a.ID(), events.ScopeOrg, "tpm"), int64(len(text)-len(base64)+65_536+10); c.Amount != want {
				t.Errorf("%d tokens are reserved, want %d", c.Amount, want)
			}
		}},
		{"a request without an output limit gets the model's own maximum, or 32,768, written into the request, lowered to fit the context window", func(t *testing.T, s *stack.Stack) {
			for model, want := range map[string]int64{"gpt-4o": 16_384, "undeclared": 32_768, "large": 128_000} {
				passes(t, call(t, s, "ann", "", body(model, "", 4)))
				if sent := last(t, s.Provider).Declared; sent != want {
					t.Errorf("%s was sent %d, want %d", model, sent, want)
				}
			}
			passes(t, call(t, s, "ann", "", body("narrow", "", 640)))
			if sent := last(t, s.Provider).Declared; sent <= 0 || sent > 1000-200 {
				t.Errorf("with 200 tokens of input in a window of 1000, %d were sent", sent)
			}
		}},
		{"the token estimate counts at most 32,768 of the output limit", func(t *testing.T, s *stack.Stack) {
			for fields, counted := range map[string]int64{"": 32_768, `"max_tokens":100000,`: 32_768, `"max_tokens":50,`: 50} {
				text := body("large", fields, 4)
				a := call(t, s, "ann", "", text)
				passes(t, a)
				if c := claim(t, s, a.ID(), events.ScopeOrg, "tpm"); c.Amount != int64(len(text))+counted {
					t.Errorf("%s: %d tokens are reserved for %d bytes", fields, c.Amount, len(text))
				}
			}
		}},
		{"a larger or conflicting output limit returns 400", func(t *testing.T, s *stack.Stack) {
			for fields, param := range map[string]string{`"max_tokens":16385,`: "max_tokens", `"max_tokens":5,"max_completion_tokens":6,`: "max_tokens"} {
				a := call(t, s, "ann", "", body("gpt-4o", fields, 4))
				if e := a.Error(); a.Status != 400 || !strings.Contains(e.Param, param) && !strings.Contains(e.Message, param) {
					t.Errorf("%s: status %d, %s", fields, a.Status, a.Body)
				}
			}
		}},
		{"observed usage of a completed attempt replaces the estimate; cache and reasoning tokens are not counted twice", func(t *testing.T, s *stack.Stack) {
			a := call(t, s, "ann", "input=100;cached=40;tokens=20;reasoning=30", body("gpt-4o", `"max_tokens":500,`, 400))
			passes(t, a)
			for _, meter := range []string{"org/acme/tpm", "pool/house/tpm"} {
				if amount, now, _ := settled(t, s, "ann", a.ID(), meter); now != 150 || amount <= now {
					t.Errorf("%s: reserved %d, settled to %d, want 100 + 50", meter, amount, now)
				}
			}
		}},
		{"incomplete usage keeps its reservation", func(t *testing.T, s *stack.Stack) {
			a := call(t, s, "ann", "cut=3;gap=1ms", body("gpt-4o", streaming+`"max_tokens":500,`, 400))
			if amount, now, _ := settled(t, s, "ann", a.ID(), "org/acme/tpm"); now < amount {
				t.Errorf("reserved %d, and settled to %d after a stream that was cut", amount, now)
			}
		}},
		{"a spend cap counts what is billed: nothing for a request that the provider refuses", func(t *testing.T, s *stack.Stack) {
			for _, script := range []string{"status=400", "status=500"} {
				a := call(t, s, "capped", script, body("gpt-4o", `"max_tokens":10000,`, 4))
				if amount, now, _ := settled(t, s, "capped", a.ID(), "key/"+authority.KeyID(authority.HashKey(stack.KeyText("capped")))+"/spend-day"); amount < 40_000_000 || now != 0 {
					t.Errorf("%s: of %d held %d stay", script, amount, now)
				}
			}
			a := call(t, s, "capped", "", body("gpt-4o", `"max_tokens":10000,`, 4)) // with two holds there would be no room for a third
			passes(t, a)
		}},
		{"a request proven not dispatched releases its provider claim; work never dispatched is the exception", func(t *testing.T, s *stack.Stack) {
			a := call(t, s, "ann", "", body("nowhere", "", 4))
			if a.Status != http.StatusServiceUnavailable {
				t.Fatalf("status %d: %s", a.Status, a.Body)
			}
			trail := s.Trail(t, a.ID())
			if ends := trail.Ended(); len(ends) != 1 || ends[0].Dispatched != events.DispatchedNo || len(trail.Finals()) != 0 {
				t.Errorf("releases %+v, %d finals", ends, len(trail.Finals()))
			}
			amount, now, returned := settled(t, s, "ann", a.ID(), "pool/house/tpm")
			if now != 0 && returned != amount {
				t.Errorf("of %d tokens %d stay, %d came back", amount, now, returned)
			}
		}},
		{"Anthropic token counting uses gateway and provider RPM, reserves input, debits nothing, and answers input_tokens and nothing else", func(t *testing.T, s *stack.Stack) {
			text := `{"model":"claude","messages":[{"role":"user","content":"hello"}]}`
			a := stack.Do(t, stack.Request{URL: s.URL() + "/v1/messages/count_tokens", Key: "ann", Script: "input=12", Body: text})
			if a.Status != 200 || strings.TrimSpace(string(a.Body)) != `{"input_tokens":12}` {
				t.Fatalf("status %d: %s", a.Status, a.Body)
			}
			trail := s.Trail(t, a.ID())
			amounts := map[events.Meter]int64{}
			for _, c := range trail.Reserves[0].Claims {
				amounts[c.Meter] = c.Amount
				if c.Kind == events.Balance || c.Basis == events.BasisCost {
					t.Errorf("it claims money: %+v", c)
				}
			}
			for meter, want := range map[events.Meter]int64{"org/acme/rpm": 1, "pool/claude/rpm": 1, "org/acme/tpm": int64(len(text)), "pool/claude/tpm": int64(len(text))} {
				if amounts[meter] != want {
					t.Errorf("%s: %d, want %d", meter, amounts[meter], want)
				}
			}
			for _, u := range trail.Finals() {
				if u.CostNano != 0 {
					t.Errorf("it costs %d", u.CostNano)
				}
			}
			client := stack.Anthropic(s.URL(), "ann")
			n, err := client.Messages.CountTokens(t.Context(), anthropic.MessageCountTokensParams{Model: "claude",
				Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("hello"))}})
			if err != nil || n.InputTokens == 0 {
				t.Errorf("the SDK: %+v, %v", n, err)
			}
		}},
	})
}

// TestScopesTogether: "Manage limits", "Workspace and principal scopes".
func TestScopesTogether(t *testing.T) {
	s := newAccounts(t, 2)
	prove(t, s, []sentence{
		{"platform, org, workspace, principal, key, model and pool limits are claimed in the same atomic step", func(t *testing.T, s *stack.Stack) {
			a := call(t, s, "ann", "", body("strict", "", 4))
			passes(t, a)
			scopes := map[events.Scope]bool{}
			for _, c := range s.Trail(t, a.ID()).Reserves[0].Claims {
				scope, _, _ := c.Meter.Split()
				scopes[scope] = true
			}
			for _, scope := range []events.Scope{events.ScopePlatform, events.ScopeOrg, events.ScopeWorkspace, events.ScopePrincipal, events.ScopeKey, events.ScopeModel, events.ScopePool} {
				if !scopes[scope] {
					t.Errorf("the reserve has no claim of a %s", scope)
				}
			}
		}},
		{"the strictest limit that applies wins", func(t *testing.T, s *stack.Stack) {
			passes(t, call(t, s, "ann", "", body("strict", "", 4)))
			a := call(t, s, "ann", "", body("strict", "", 4))
			isRefused(t, a, refusal{status: 429, code: "rate_limit_exceeded", scope: "model", kind: "rpm", retryAfter: "*"})
			if id := a.Header.Get("X-Tm-Limit-Id"); id != "strict" {
				t.Errorf("limit id %s", id)
			}
		}},
		{"workspace limits add up across the keys bound to it, at all gateways", func(t *testing.T, s *stack.Stack) {
			for i, key := range []string{"bob", "ben", "bob"} {
				passes(t, stack.Do(t, stack.Request{URL: s.Gateways[i%2].URL + "/v1/chat/completions", Key: key, Body: body("gpt-4o", `"max_tokens":5,`, 4)}))
			}
			for i, key := range []string{"ben", "bob"} {
				a := stack.Do(t, stack.Request{URL: s.Gateways[i].URL + "/v1/chat/completions", Key: key, Body: body("gpt-4o", `"max_tokens":5,`, 4)})
				isRefused(t, a, refusal{status: 429, code: "rate_limit_exceeded", scope: "workspace", kind: "rpm", retryAfter: "*"})
			}
		}},
		{"bindings come from server-managed keys, never from request headers", func(t *testing.T, s *stack.Stack) {
			headers := map[string]string{}
			for _, name := range []string{"X-Workspace", "X-Workspace-Id", "X-Principal", "X-Tm-Workspace", "X-Tm-Principal", "OpenAI-Organization", "OpenAI-Project", "Anthropic-Workspace-Id"} {
				headers[name] = "research"
			}
			a := stack.Do(t, stack.Request{URL: s.URL() + "/v1/chat/completions", Key: "plain", Header: headers, Body: body("gpt-4o", `"max_tokens":5,`, 4)})
			passes(t, a)
			if d := s.Trail(t, a.ID()).Reserves[0]; d.Org != "plain" || d.Workspace != "" || d.Principal != "" {
				t.Errorf("%s %s %s", d.Org, d.Workspace, d.Principal)
			}
		}},
		{"a provider 429 pauses the leaf pool for the provider's retry-after, across all gateways", func(t *testing.T, s *stack.Stack) {
			a := call(t, s, "ann", "status=429;retry-after=60", body("cools", "", 4))
			if a.Status != 429 || a.Header.Get("X-Tm-Error-Origin") != "upstream" {
				t.Fatalf("status %d, origin %s", a.Status, a.Header.Get("X-Tm-Error-Origin"))
			}
			for _, g := range s.Gateways {
				var b *stack.Answer
				stack.Eventually(t, g.URL+" knows of the pause", func() bool {
					b = stack.Do(t, stack.Request{URL: g.URL + "/v1/chat/completions", Key: "plain", Body: body("cools", "", 4)})
					return b.Status != 200
				})
				isRefused(t, b, refusal{status: 429, code: "upstream_quota_exceeded", scope: "pool", kind: "cooldown", retryAfter: "*"})
				if n, _ := strconv.Atoi(b.Header.Get("Retry-After")); b.Header.Get("X-Tm-Limit-Id") != "leaf" || n > 60 {
					t.Errorf("the pool %s pauses for %d s", b.Header.Get("X-Tm-Limit-Id"), n)
				}
			}
			passes(t, call(t, s, "plain", "", body("gpt-4o", `"max_tokens":5,`, 4))) // another account of the provider
		}},
		{"an error of unknown scope does not mark the provider as down", func(t *testing.T, s *stack.Stack) {
			if a := call(t, s, "plain", "status=500", body("large", `"max_tokens":5,`, 4)); a.Status == 200 {
				t.Fatal("no error")
			}
			passes(t, call(t, s, "plain", "", body("large", `"max_tokens":5,`, 4)))
		}},
	})
}

// TestOtherOriginsNeedAKey: where everybody is let in, that is no page of another origin.
func TestOtherOriginsNeedAKey(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: stack.Settings{Mode: "none", Weir: "models:\n" + local("m")}})
	asks := map[string]string{"Origin": "https://app.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
	if a := stack.Do(t, stack.Request{Method: "OPTIONS", URL: s.URL() + "/v1/chat/completions", Header: asks}); a.Status == 204 {
		t.Errorf("status %d, %v", a.Status, a.Header)
	}
	if a := call(t, s, "", "", body("m", "", 4)); a.Status != 200 || a.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("status %d, %v", a.Status, a.Header)
	}
}

// TestInspectLimitsAndErrors: "Inspect limits and errors".
func TestInspectLimitsAndErrors(t *testing.T) {
	s := newAccounts(t, 1)
	info := func(t *testing.T, key, model string) (v map[string]any) {
		a := stack.Do(t, stack.Request{URL: s.URL() + "/v1/limits?model=" + model, Key: key})
		if err := json.Unmarshal(a.Body, &v); err != nil || a.Status != 200 {
			t.Fatalf("status %d: %s", a.Status, a.Body)
		}
		return v
	}
	prove(t, s, []sentence{
		{"/v1/limits returns the effective limits for the key, inherited limits included, and model is optional", func(t *testing.T, _ *stack.Stack) {
			for model, want := range map[string]string{"": "rpm 120 tpm 1e+06 concurrency 5 out 32768 default 32768 quota 32768 bounded_open",
				"gpt-4o": "rpm 120 tpm 1e+06 concurrency 5 out 16384 default 16384 quota 32768 bounded_open",
				"strict": "rpm 2 tpm 1e+06 concurrency 5 out 10 default 10 quota 32768 bounded_open"} {
				v := info(t, "ann", model)
				got := fmt.Sprintf("rpm %v tpm %v concurrency %v out %v default %v quota %v %v", v["rpm"], v["tpm"], v["concurrency"], v["max_output_tokens"],
					v["default_max_output_tokens"], v["quota_max_output_tokens"], v["outage_mode"])
				if got != want {
					t.Errorf("%q: %s\nwant %s", model, got, want)
				}
			}
			if v := info(t, "closed", ""); v["rpm"] != 7.0 || v["outage_mode"] != "closed" {
				t.Errorf("%v", v)
			}
			for _, model := range []string{"", "undeclared"} { // neither has a price: what an org that pays in advance would be refused for hides no limit
				if v := info(t, "advance", model); v["rpm"] != 9.0 || v["tpm"] != 900.0 || v["concurrency"] != 3.0 || v["outage_mode"] != "bounded_open" {
					t.Errorf("%q: %v", model, v)
				}
			}
			for key, model := range map[string]string{"advance": "gpt-4o", "plain": "own"} { // closed by the org's limit of the model, by the endpoint's
				if v := info(t, key, model); v["outage_mode"] != "closed" {
					t.Errorf("%s: %v", model, v)
				}
			}
			if v := info(t, "plain", "narrow"); v["default_max_output_tokens"] != 900.0 {
				t.Errorf("%v", v)
			}
			if v := info(t, "plain", "own"); v["default_max_output_tokens"] != 40_000.0 {
				t.Errorf("%v", v)
			}
		}},
		{"on a dedicated endpoint a configured default_max_output_tokens is capped at the model's maximum; a larger one that a client sends is rejected", func(t *testing.T, s *stack.Stack) {
			if v := info(t, "ann", "paced"); v["default_max_output_tokens"] != 500.0 || v["max_output_tokens"] != 500.0 {
				t.Errorf("%v", v)
			}
			if a := call(t, s, "ann", "", body("paced", `"max_tokens":501,`, 4)); a.Status != 400 {
				t.Errorf("status %d", a.Status)
			}
		}},
		{"a successful admission returns x-tm-remaining-rpm and x-tm-remaining-tpm: the lowest across the claimed scopes", func(t *testing.T, s *stack.Stack) {
			text := body("gpt-4o", `"max_tokens":5,`, 4)
			a := call(t, s, "ann", "", text)
			passes(t, a)
			if rpm, tpm := a.Header.Get("X-Tm-Remaining-Rpm"), a.Header.Get("X-Tm-Remaining-Tpm"); rpm != "119" || tpm != strconv.Itoa(1_000_000-len(text)-5) {
				t.Errorf("%s requests and %s tokens remain", rpm, tpm)
			}
		}},
		{"on a paced endpoint x-tm-queue-ms gives how long the request waited before admission", func(t *testing.T, s *stack.Stack) {
			waited := int64(0)
			for range 3 {
				a := call(t, s, "ann", "", body("paced", `"max_tokens":5,`, 4))
				passes(t, a)
				n, err := strconv.ParseInt(a.Header.Get("X-Tm-Queue-Ms"), 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				waited += n
			}
			if waited == 0 {
				t.Error("three requests in a row at 5 a second, and none waited")
			}
		}},
		{"failures keep SDK-compatible statuses and include metadata and CORS-readable headers, in either format", func(t *testing.T, s *stack.Stack) {
			for range 7 {
				passes(t, call(t, s, "closed", "", body("gpt-4o", `"max_tokens":5,`, 4)))
			}
			oc := stack.OpenAI(s.URL(), "closed")
			_, err := oc.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{Model: "gpt-4o", MaxTokens: openai.Int(5),
				Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hi")}})
			var oe *openai.Error
			if !errors.As(err, &oe) || oe.StatusCode != 429 || oe.Code != "rate_limit_exceeded" {
				t.Fatalf("OpenAI's SDK: %v", err)
			}
			ac := stack.Anthropic(s.URL(), "closed")
			_, err = ac.Messages.New(t.Context(), anthropic.MessageNewParams{Model: "claude", MaxTokens: 5,
				Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("hi"))}})
			var ae *anthropic.Error
			if !errors.As(err, &ae) || ae.StatusCode != 429 {
				t.Fatalf("Anthropic's SDK: %v", err)
			}
			for format, h := range map[string]http.Header{"openai": oe.Response.Header, "anthropic": ae.Response.Header} {
				got := h.Get("X-Tm-Error-Origin") + " " + h.Get("X-Tm-Limit-Scope") + " " + h.Get("X-Tm-Limit-Kind") + " " + h.Get("X-Tm-Limit-Id")
				if got != "gateway_admission org rpm closed" || h.Get("Retry-After") == "" || h.Get("X-Should-Retry") != "" {
					t.Errorf("%s: %s, retry-after %q, x-should-retry %q", format, got, h.Get("Retry-After"), h.Get("X-Should-Retry"))
				}
				exposed := strings.ToLower(h.Get("Access-Control-Expose-Headers"))
				for _, name := range []string{"x-tm-error-origin", "x-tm-limit-scope", "x-tm-limit-kind", "x-tm-limit-id", "retry-after"} {
					if !strings.Contains(exposed, name) {
						t.Errorf("%s: %s is not exposed", format, name)
					}
				}
			}
			for _, h := range []http.Header{oe.Response.Header, ae.Response.Header} {
				if h.Get("Access-Control-Allow-Origin") != "*" {
					t.Error("scripts of other origins may not read it")
				}
			}
			for _, text := range []string{oe.RawJSON(), ae.RawJSON()} {
				for _, want := range []string{`"origin":"gateway_admission"`, `"limit_scope":"org"`, `"limit_kind":"rpm"`, `"retryable":true`, `"retry_after_ms":`, `"resets_at":`} {
					if !strings.Contains(text, want) {
						t.Errorf("no %s in %s", want, text)
					}
				}
			}
		}},
		{"scripts of other origins may call the API, and nothing else", func(t *testing.T, s *stack.Stack) {
			asks := map[string]string{"Origin": "https://app.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os"}
			a := stack.Do(t, stack.Request{Method: "OPTIONS", URL: s.URL() + "/v1/chat/completions", Header: asks})
			if a.Status != 204 || a.Header.Get("Access-Control-Allow-Origin") != "*" || a.Header.Get("Access-Control-Allow-Methods") != "GET, POST" ||
				a.Header.Get("Access-Control-Allow-Headers") != asks["Access-Control-Request-Headers"] || a.Header.Get("Access-Control-Allow-Credentials") != "" {
				t.Errorf("status %d, %v", a.Status, a.Header)
			}
			if a := call(t, s, "nobody", "", body("gpt-4o", "", 4)); a.Status != 401 || a.Header.Get("Access-Control-Allow-Origin") != "*" {
				t.Errorf("a refused key: status %d, %v", a.Status, a.Header)
			}
			for _, path := range []string{"/admin/orgs", "/api/admission-limits", "/console", "/metrics", "/ready"} {
				if a := stack.Do(t, stack.Request{Method: "OPTIONS", URL: s.URL() + path, Header: asks}); a.Status == 204 || a.Header.Get("Access-Control-Allow-Origin") != "" {
					t.Errorf("%s: status %d, %v", path, a.Status, a.Header)
				}
			}
		}},
		{"refusals after authentication are recorded, also when no attempt was made, and read with /v1/generation", func(t *testing.T, s *stack.Stack) {
			a := call(t, s, "closed", "", body("gpt-4o", `"max_tokens":5,`, 4))
			if a.Status != 429 {
				t.Fatalf("status %d", a.Status)
			}
			stack.Eventually(t, "the record is there", func() bool {
				for _, e := range generation(t, s, "closed", a.ID()).AdmissionEvents {
					if e.Event == "refused" && e.Scope == "org" && e.Kind == "rpm" && e.Origin == "gateway_admission" && e.Status == 429 && e.LimitID == "closed" {
						return true
					}
				}
				return false
			})
			if b := stack.Do(t, stack.Request{URL: s.URL() + "/v1/generation?id=" + a.ID(), Key: "plain"}); b.Status != 404 {
				t.Errorf("another org reads it: %d", b.Status)
			}
		}},
		{"each attempt includes its receipt and error origin", func(t *testing.T, s *stack.Stack) {
			a := call(t, s, "plain", "status=500", body("gpt-4o", `"max_tokens":5,`, 4))
			s.Trail(t, a.ID())
			stack.Eventually(t, "the record is there", func() bool {
				g := generation(t, s, "plain", a.ID())
				return len(g.Attempts) == 1 && len(g.Attempts[0].Claims) > 0 && g.Attempts[0].Released != nil && g.Attempts[0].Released.Error != nil &&
					g.Attempts[0].Released.Error.Origin == "upstream"
			})
		}},
		{"authorization: a bad key is 401, another's request and an unknown model 404", func(t *testing.T, s *stack.Stack) {
			for want, a := range map[int]*stack.Answer{401: call(t, s, "nobody", "", body("gpt-4o", "", 4)), 404: call(t, s, "plain", "", body("none", "", 4))} {
				if a.Status != want || a.Header.Get("X-Tm-Error-Origin") != "authorization" || a.Header.Get("X-Should-Retry") != "false" {
					t.Errorf("status %d, origin %s", a.Status, a.Header.Get("X-Tm-Error-Origin"))
				}
			}
		}},
	})
}
