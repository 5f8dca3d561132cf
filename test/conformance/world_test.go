// Package conformance holds the gateway against the sentences of the admission-control specification, over HTTP. Each test has the
// sentence as its name.
package conformance

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/services/provider"
	"github.com/weirhq/weir/test/e2e/stack"
)

func TestMain(m *testing.M) {
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		os.Stderr.WriteString(err.Error())
		code = 1
	}
	os.Exit(code)
}

// sentence is a test of what the specification says.
type sentence struct {
	says string
	test func(t *testing.T, s *stack.Stack)
}

// prove runs the tests of sentences against a stack.
func prove(t *testing.T, s *stack.Stack, sentences []sentence) {
	t.Helper()
	for _, one := range sentences {
		t.Run(one.says, func(t *testing.T) { one.test(t, s) })
	}
}

// policy is the text of a policy file.
func policy(model, fields string) string {
	return "models: [" + model + "]\n" + fields + "\nrouting_policy: {strategy: least-loaded}\n"
}

// local declares models that the upstream serves.
func local(models ...string) string {
	var b strings.Builder
	for _, m := range models {
		b.WriteString("  - {id: " + m + ", local: {engine: vllm, replicas: [\"{{upstream}}\"]}}\n")
	}
	return b.String()
}

// body is a request with a prompt of so many bytes in one message; fields come first.
func body(model, fields string, bytes int) string {
	return `{"model":"` + model + `",` + fields + `"messages":[{"role":"user","content":"` + strings.Repeat("x", bytes) + `"}]}`
}

// estimated is the first estimate of a prompt: one token for 3.2 bytes, rounded up, at least 4 a message.
func estimated(bytes int64) int64 { return max((bytes*10+31)/32, 4) }

// call sends a chat completion.
func call(t *testing.T, s *stack.Stack, key, script, body string) *stack.Answer {
	t.Helper()
	return s.Chat(t, key, script, body)
}

// refusal is what a refused client gets.
type refusal struct {
	status        int
	code, message string
	scope, kind   string
	retryAfter    string // "": none; "*": a whole number, which may be too large for the client to be told to wait
	final         bool   // the client is told not to try again
}

// isRefused holds an answer against a refusal.
func isRefused(t *testing.T, a *stack.Answer, want refusal) {
	t.Helper()
	e := a.Error()
	if a.Status != want.status || e.Code != want.code || e.Source != "router" {
		t.Fatalf("status %d, code %q, source %q, want %d, %q: %s", a.Status, e.Code, e.Source, want.status, want.code, a.Body)
	}
	if want.message != "" && e.Message != want.message {
		t.Errorf("message %q, want %q", e.Message, want.message)
	}
	if scope, kind := a.Header.Get("X-Tm-Limit-Scope"), a.Header.Get("X-Tm-Limit-Kind"); scope != want.scope || kind != want.kind {
		t.Errorf("limit %s %s, want %s %s", scope, kind, want.scope, want.kind)
	}
	got := a.Header.Get("Retry-After")
	if want.retryAfter == "*" {
		if n, err := strconv.Atoi(got); err != nil || n < 1 {
			t.Errorf("retry-after %q, want a whole number", got)
		}
	} else if got != want.retryAfter {
		t.Errorf("retry-after %q, want %q", got, want.retryAfter)
	}
	if final := a.Header.Get("X-Should-Retry") == "false"; final != want.final && want.retryAfter != "*" {
		t.Errorf("x-should-retry: false is %v, want %v", final, want.final)
	}
}

// passes checks that a request is served.
func passes(t *testing.T, a *stack.Answer) {
	t.Helper()
	if a.Status != http.StatusOK {
		t.Fatalf("status %d: %s", a.Status, a.Body)
	}
}

// hold begins a stream and keeps it open until the function is called, which waits until the log knows of its end.
func hold(t *testing.T, s *stack.Stack, key, body string) (end func()) {
	t.Helper()
	return holdWith(t, s, key, "tokens=50;hang=2;gap=1ms", body)
}

// holdWith is hold with a script of the caller's.
func holdWith(t *testing.T, s *stack.Stack, key, script, body string) (end func()) {
	t.Helper()
	q, err := stack.Request{URL: s.URL() + "/v1/chat/completions", Key: key, Script: script, Body: body}.New()
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(context.Background())
	answer, err := http.DefaultClient.Do(q.WithContext(ctx))
	if err != nil {
		leave()
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(answer.Body).ReadString('\n'); err != nil || answer.StatusCode != http.StatusOK {
		leave()
		t.Fatalf("a stream to hold: status %d, %v", answer.StatusCode, err)
	}
	return func() {
		leave()
		answer.Body.Close()
		s.Trail(t, answer.Header.Get("X-Request-Id"))
	}
}

// claim gives the claim of a request's first reserve on a meter's dimension within a scope.
func claim(t *testing.T, s *stack.Stack, id string, scope events.Scope, dimension string) events.Claim {
	t.Helper()
	for _, c := range s.Trail(t, id).Reserves[0].Claims {
		if sc, _, d := c.Meter.Split(); sc == scope && d == dimension {
			return c
		}
	}
	t.Fatalf("request %s claims no %s of its %s", id, dimension, scope)
	return events.Claim{}
}

// claims says whether a request claims a dimension of a scope at all.
func claims(t *testing.T, s *stack.Stack, id string, dimension string) bool {
	t.Helper()
	for _, r := range s.Trail(t, id).Reserves {
		for _, c := range r.Claims {
			if _, _, d := c.Meter.Split(); d == dimension {
				return true
			}
		}
	}
	return false
}

// keyMeter names a meter of a key and a model.
func keyMeter(key, model, dimension string) events.Meter {
	return events.NewMeter(events.ScopeKey, dimension, authority.KeyID(authority.HashKey(stack.KeyText(key))), model)
}

// pressed waits until the gateway knows of the upstream's pressure.
func pressed(t *testing.T, s *stack.Stack, model string, waiting float64) {
	t.Helper()
	s.Provider.SetMetric(provider.MetricWaiting, waiting)
	stack.Eventually(t, "the gateway knows of the pressure", func() bool {
		return call(t, s, "plain", "", body(model, "", 4)).Status == http.StatusTooManyRequests
	})
}

// parkDefault is how long a request waits for room where nothing is set.
const parkDefault = 250 * time.Millisecond
