package e2e

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/outage"
	"github.com/weirhq/weir/test/e2e/stack"
)

// TestNobodyWaitsForALogThatIsAway: once a gateway knows that the log is out of reach, a request is admitted from the allowance without a
// reserve that nobody could answer.
func TestNobodyWaitsForALogThatIsAway(t *testing.T) {
	t.Parallel() // it mostly waits
	s := stack.New(t, stack.Config{Gateways: 2, Settings: stack.Settings{
		Weir: `models: [{id: m, max_output_tokens: 4096, local: {engine: vllm, replicas: ["{{upstream}}"]}}, {id: vast, local: {engine: vllm, replicas: ["{{upstream}}"]}}]`}})
	g := s.Gateways[1]
	s.Broker.Shutdown()
	stack.Eventually(t, "the gateway knows", func() bool { out, _ := g.Outage(); return out })
	reserved := g.Book().Stats().Reserved.Load()
	a := stack.Do(t, stack.Request{URL: g.URL + "/v1/chat/completions", Key: "demo", Body: chat("m", `"max_tokens":8,`)})
	if a.Status != http.StatusOK || a.Header.Get("X-Tm-Admission-Mode") != "bounded_local" {
		t.Fatalf("status %d, mode %q: %s", a.Status, a.Header.Get("X-Tm-Admission-Mode"), a.Body)
	}
	// What declares more than the whole allowance is refused as it is.
	if a := stack.Do(t, stack.Request{URL: g.URL + "/v1/chat/completions", Key: "demo", Body: chat("vast", `"max_tokens":25000,`)}); a.Status != http.StatusServiceUnavailable || !strings.Contains(string(a.Body), "with a smaller max_tokens the request may pass") {
		t.Errorf("more than the allowance: status %d: %s", a.Status, a.Body)
	}
	// What declares nothing is bounded, so that as many fit as may come in a minute.
	undeclared(t, s, g)
	stats := g.Book().Stats()
	if n := stats.Reserved.Load() - reserved; n != 0 || stats.Local.Load() != outage.Requests {
		t.Errorf("%d reserves were asked of a log that is away; %d attempts were admitted without it", n, stats.Local.Load())
	}
}

// undeclared sends requests without an output limit, of a model without one, in each wire format that has output, and checks that each
// is served with a bound in its body and nothing else changed.
func undeclared(t *testing.T, s *stack.Stack, g *stack.Gateway) {
	t.Helper()
	messages := `"messages":[{"role":"user","content":"Hello"}]}`
	for _, c := range []struct{ path, body, bounded string }{
		{"/v1/chat/completions", chat("vast", ""), `,"max_completion_tokens":4096}`},
		{"/v1/completions", `{"model":"vast","n":4,"prompt":"Hello"}`, `,"max_tokens":1024}`},
		{"/v1/responses", `{"model":"vast","input":"Hello"}`, `,"max_output_tokens":4096}`},
		{"/v1/messages", `{"model":"vast",` + messages, `,"max_tokens":4096}`},
	} {
		a := stack.Do(t, stack.Request{URL: g.URL + c.path, Key: "demo", Body: c.body})
		if a.Status != http.StatusOK || a.Header.Get("X-Tm-Admission-Mode") != "bounded_local" {
			t.Errorf("%s: status %d, mode %q: %s", c.path, a.Status, a.Header.Get("X-Tm-Admission-Mode"), a.Body)
			continue
		}
		calls := s.Provider.Ledger().Calls()
		got, want := string(calls[len(calls)-1].Body), strings.TrimSuffix(c.body, "}")+c.bounded
		if got != want {
			t.Errorf("%s: the model was sent\n%s, want\n%s", c.path, got, want)
		}
	}
}

// TestAPauseIsKnownWithoutTheLog: a provider account that asks for a pause is left alone without the log, too, where it is the first to be asked
// and where it is the next.
func TestAPauseIsKnownWithoutTheLog(t *testing.T) {
	t.Parallel() // it mostly waits
	s := stack.New(t, stack.Config{Gateways: 2, Settings: stack.Settings{
		Keys: []stack.Key{{Name: "one"}, {Name: "two"}, {Name: "three"}},
		Weir: `
models:
  - {id: m, local: {engine: vllm, replicas: ["{{upstream}}"]}}
  - {id: tired, max_output_tokens: 64, providers: [{connection: tired}]}
  - {id: next, max_output_tokens: 64, providers: [{connection: broken}, {connection: tired}]}
connections:
  - {id: tired, provider: openai, base_url: "{{upstream}}", pool: tired}
  - {id: broken, provider: openai, base_url: "{{other}}", pool: broken}
pools:
  - {id: tired, provider: openai, rpm: 100, tpm: 1000000, concurrency: 10}
  - {id: broken, provider: openai, rpm: 100, tpm: 1000000, concurrency: 10}
`}})
	g := s.Gateways[1]
	s.Broker.Shutdown()
	stack.Eventually(t, "the gateway knows", func() bool { out, _ := g.Outage(); return out })
	asks := func(key, model, script string) *stack.Answer {
		return stack.Do(t, stack.Request{URL: g.URL + "/v1/chat/completions", Key: key, Body: chat(model, `"max_tokens":8,`), Script: script})
	}
	if a := asks("one", "tired", "status=429;retry-after=60"); a.Status != http.StatusTooManyRequests || a.Header.Get("X-Tm-Error-Origin") != "upstream" {
		t.Fatalf("the account itself: %d %s", a.Status, a.Body)
	}
	for key, model := range map[string]string{"two": "tired", "three": "next"} {
		if a := asks(key, model, "status=500"); a.Status != http.StatusTooManyRequests || a.Error().Metadata.LimitKind != "cooldown" {
			t.Errorf("%s while the account is paused: %d %s", model, a.Status, a.Body)
		}
	}
	if n, next := s.Provider.Ledger().Totals().Calls, s.Other.Ledger().Totals().Calls; n != 1 || next != 1 {
		t.Errorf("the account that is paused was called %d times, the one before it %d times; want 1 and 1", n, next)
	}
}

// TestClosedCallsEndBeforeTheirLease: where nothing may run without the log, a call that is under way ends before the log could give its
// place to another; elsewhere it runs on.
func TestClosedCallsEndBeforeTheirLease(t *testing.T) {
	t.Parallel() // it mostly waits
	s := stack.New(t, stack.Config{Gateways: 2, Script: "tokens=240;gap=50ms", Settings: stack.Settings{
		Keys: []stack.Key{{Name: "demo"}, {Name: "strict"}},
		Weir: `
orgs:
  strict: {limits: {outage_mode: closed}}
models: [{id: m, max_output_tokens: 4096, local: {engine: vllm, replicas: ["{{upstream}}"]}}]
`}})
	g := s.Gateways[1]
	answers := map[string]chan *stack.Answer{}
	for _, key := range []string{"demo", "strict"} {
		answer := make(chan *stack.Answer, 1)
		answers[key] = answer
		go func() {
			a, err := stack.Request{URL: g.URL + "/v1/chat/completions", Key: key, Body: chat("m", `"stream":true,`)}.Send()
			if err != nil {
				t.Error(err)
			}
			answer <- a
		}()
	}
	stack.Eventually(t, "both stream", func() bool { return s.Provider.Ledger().Totals().Live == 2 })
	s.Broker.Shutdown()
	strict, open := <-answers["strict"], <-answers["demo"]
	if strict == nil || !strings.Contains(string(strict.Body), "gateway_infrastructure") || strings.Contains(string(strict.Body), "[DONE]") {
		t.Errorf("the call of a closed org ended with %s", tail(strict))
	}
	if open == nil || !strings.Contains(string(open.Body), "[DONE]") {
		t.Errorf("the call of an open org ended with %s", tail(open))
	}
	if stats := g.Book().Stats(); stats.Lapsed.Load() != 1 || stats.OverAfterLapse.Load() != 1 {
		t.Errorf("%d calls were ended, %d ran on", stats.Lapsed.Load(), stats.OverAfterLapse.Load())
	}
}

// TestAClockThatIsWrongIsNoOutage: a projector that may not answer for the stream's clock can be reached, so nobody goes on by himself: every
// gateway refuses, also one that has joined over TCP, also when the projector and the log are gone then, and says why.
func TestAClockThatIsWrongIsNoOutage(t *testing.T) {
	t.Parallel() // it mostly waits
	var off atomic.Int64
	s := stack.New(t, stack.Config{Gateways: 2, Answer: 5 * time.Second, Now: func() time.Time { return time.Now().Add(time.Duration(off.Load())) }, Settings: stack.Settings{
		Weir: `models: [{id: m, max_output_tokens: 4096, local: {engine: vllm, replicas: ["{{upstream}}"]}}]`}})
	refused := func(g *stack.Gateway) (string, bool) {
		a := stack.Do(t, stack.Request{URL: g.URL + "/v1/chat/completions", Key: "demo", Body: chat("m", `"max_tokens":8,`)})
		if mode := a.Header.Get("X-Tm-Admission-Mode"); mode != "" {
			t.Errorf("admitted in mode %s", mode)
		}
		if a.Status != http.StatusOK && (a.Status != http.StatusServiceUnavailable || a.Error().Code != "gateway_infrastructure" || a.Header.Get("Retry-After") == "") {
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
		return string(a.Body), a.Status != http.StatusOK
	}
	stopped := func(what string) {
		for _, g := range s.Gateways {
			stack.Eventually(t, what, func() bool {
				why, no := refused(g)
				return no && strings.Contains(why, "the stream's clock is off")
			})
			a := stack.Do(t, stack.Request{URL: g.URL + "/ready"})
			if a.Status != http.StatusServiceUnavailable || !strings.Contains(string(a.Body), "the stream's clock is off") || !strings.Contains(string(a.Body), "weir recover") {
				t.Errorf("/ready: %d %s", a.Status, a.Body)
			}
		}
	}
	off.Store(int64(-time.Minute))
	stopped("the clock is a reason")
	off.Store(0)
	stopped("it still is when the clock is right again")
	_, err := s.Log.Publish(t.Context(), events.Event{ID: "recover/1", Data: &events.Recover{Reason: "clock set", Windows: "empty"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range s.Gateways {
		stack.Eventually(t, "it admits again", func() bool { _, no := refused(g); return !no })
	}
	off.Store(int64(time.Minute))
	stopped("the clock is a reason again")
	s.Broker.Shutdown()
	g := s.Gateways[1]
	stack.Eventually(t, "the gateway knows that the log is away", func() bool { out, _ := g.Outage(); return out })
	if why, no := refused(g); !no || !strings.Contains(why, "the stream's clock is off") {
		t.Errorf("with the log away: %s", why)
	}
	if local := g.Book().Stats().Local.Load(); local != 0 {
		t.Errorf("%d attempts were admitted without the log", local)
	}
}

func tail(a *stack.Answer) string {
	if a == nil {
		return "nothing"
	}
	return string(a.Body[max(0, len(a.Body)-300):])
}
