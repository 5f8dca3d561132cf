package e2e

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/test/e2e/stack"
	"github.com/weirhq/weir/test/freeport"
)

// way is one way out of a request. Its org has its name, so that its request is found in the log.
type way struct {
	name   string
	take   func(t *testing.T, s *stack.Stack, key string)
	ends   []end // of its attempts, in order; the last one is the request's own
	reason string
}

// end is how one attempt is to stand in the log.
type end struct {
	outcome    events.Outcome
	dispatched events.Dispatched
	quality    events.Quality // of its final; of one that was not dispatched there is none
	status     int64
}

// chat is a body; fields come first.
func chat(model, fields string) string {
	return `{"model":"` + model + `",` + fields + `"messages":[{"role":"user","content":"Hello"}]}`
}

const streaming = `"stream":true,`

// ask takes the way of a request whose whole answer is read, and checks its status.
func ask(model, fields, script string, status int) func(*testing.T, *stack.Stack, string) {
	return func(t *testing.T, s *stack.Stack, key string) {
		if a := s.Chat(t, key, script, chat(model, fields)); a.Status != status {
			t.Errorf("status %d, want %d: %s", a.Status, status, a.Body)
		}
	}
}

// open begins a request that the caller ends. It returns when the answer has begun.
func open(t *testing.T, s *stack.Stack, key, script, body string) (answer *http.Response, leave context.CancelFunc) {
	t.Helper()
	q, err := stack.Request{URL: s.URL() + "/v1/chat/completions", Key: key, Script: script, Body: body}.New()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	answer, err = http.DefaultClient.Do(q.WithContext(ctx))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	return answer, func() { cancel(); answer.Body.Close() }
}

// leaveEarly sends a request and leaves when the condition holds, before anything of an answer.
func leaveEarly(body, script string, when func(s *stack.Stack, key string) bool) func(*testing.T, *stack.Stack, string) {
	return func(t *testing.T, s *stack.Stack, key string) {
		q, err := stack.Request{URL: s.URL() + "/v1/chat/completions", Key: key, Script: script, Body: body}.New()
		if err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			if answer, err := http.DefaultClient.Do(q.WithContext(ctx)); err == nil {
				answer.Body.Close()
				t.Errorf("an answer came with status %d before the client left", answer.StatusCode)
			}
		}()
		stack.Eventually(t, "the request is under way", func() bool { return when(s, key) })
		leave()
		<-gone
	}
}

// called says that the upstream works on a call of the key's request.
func called(s *stack.Stack, key string) bool {
	for _, c := range s.Provider.Ledger().Calls() {
		if c.Outcome == "live" && strings.Contains(string(c.Body), key) {
			return true
		}
	}
	return false
}

// waiting says that a reserve of the key's org is in the log and has no verdict.
func waiting(s *stack.Stack, key string) bool {
	return s.Projector.Stats().Waiting > 0
}

// breakingWriter panics at one write, after so many others.
type breakingWriter struct {
	*httptest.ResponseRecorder
	left int
}

func (w *breakingWriter) Write(p []byte) (int, error) {
	if w.left--; w.left == -1 {
		panic("the writer breaks")
	}
	return w.ResponseRecorder.Write(p)
}

// breaks takes the way of a request whose handler panics at a write, with some of an answer gone: the connection has to be cut off.
func breaks(after int, fields, script string) func(*testing.T, *stack.Stack, string) {
	return func(t *testing.T, s *stack.Stack, key string) {
		q, err := stack.Request{URL: "/v1/chat/completions", Key: key, Script: script, Body: chat("m", fields)}.New()
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if v := recover(); v != http.ErrAbortHandler { //nolint:errorlint // the HTTP server compares it so
				t.Errorf("the connection of a broken answer goes on: %v", v)
			}
		}()
		s.Gateways[0].Handler().ServeHTTP(&breakingWriter{httptest.NewRecorder(), after}, q)
	}
}

var ways = []way{
	{name: "success", take: ask("m", "", "", 200), ends: []end{{events.Completed, events.DispatchedYes, events.QualityExact, 200}}},
	{name: "success-stream", take: ask("m", streaming, "", 200), ends: []end{{events.Completed, events.DispatchedYes, events.QualityExact, 200}}},
	{name: "no-usage-reported", take: ask("m", streaming, "no-usage", 200), ends: []end{{events.Completed, events.DispatchedYes, events.QualityEstimated, 200}}},
	{name: "upstream-400", take: ask("m", "", "status=400", 400), ends: []end{{events.Failed, events.DispatchedYes, events.QualityNone, 400}}},
	{name: "upstream-429", take: ask("m", "", "status=429", 429), ends: []end{{events.Failed, events.DispatchedYes, events.QualityNone, 429}}},
	{name: "upstream-500", take: ask("m", "", "status=500", 500), ends: []end{{events.Failed, events.DispatchedYes, events.QualityNone, 500}}},
	{name: "connection-refused", take: ask("refused", "", "", 503), ends: []end{{events.NotDispatched, events.DispatchedNo, 0, 0}}},
	{name: "no-healthy-replica", take: ask("down", "", "", 503), ends: []end{{events.NotDispatched, events.DispatchedNo, 0, 503}}},
	{name: "connection-aborted", take: ask("m", "", "abort", 503), ends: []end{{events.Failed, events.DispatchedUnknown, events.QualityNone, 0}}},
	{name: "first-byte-timeout", take: ask("m", streaming, "hang", 504), ends: []end{{events.TimedOut, events.DispatchedUnknown, events.QualityNone, 0}}},
	{name: "cut-stream", take: ask("m", streaming, "cut=5;gap=1ms", 200), ends: []end{{events.Failed, events.DispatchedYes, events.QualityEstimated, 200}}},
	{name: "cut-answer", take: ask("m", "", "cut=40", 503), ends: []end{{events.Failed, events.DispatchedYes, events.QualityEstimated, 200}}},
	{name: "error-in-stream", take: ask("m", streaming, "error-event=4;gap=1ms", 200), ends: []end{{events.Failed, events.DispatchedYes, events.QualityEstimated, 200}}},
	{name: "silent-stream", take: ask("m", streaming, "hang=4", 200), ends: []end{{events.TimedOut, events.DispatchedYes, events.QualityEstimated, 200}}},
	{name: "fallback", take: ask("twice", "", "status=500;times=1", 200), ends: []end{
		{events.Failed, events.DispatchedYes, events.QualityNone, 500}, {events.Completed, events.DispatchedYes, events.QualityExact, 200}}},
	{name: "fallback-unreachable", take: ask("spare", "", "", 200), ends: []end{
		{events.NotDispatched, events.DispatchedNo, 0, 0}, {events.Completed, events.DispatchedYes, events.QualityExact, 200}}},
	{name: "fallback-fails", take: ask("twice", "", "status=503", 503), ends: []end{
		{events.Failed, events.DispatchedYes, events.QualityNone, 503}, {events.Failed, events.DispatchedYes, events.QualityNone, 503}}},
	{name: "gone-before-an-answer", take: leaveEarly(chat("m", `"user":"gone-before-an-answer",`), "delay=20s", called),
		ends: []end{{events.Cancelled, events.DispatchedUnknown, events.QualityNone, 0}}},
	{name: "gone-in-the-stream", take: func(t *testing.T, s *stack.Stack, key string) {
		answer, leave := open(t, s, key, "tokens=1000;gap=5ms", chat("m", streaming))
		in := bufio.NewReader(answer.Body)
		for range 12 { // some words of text
			if _, err := in.ReadString('\n'); err != nil {
				t.Error(err)
			}
		}
		leave()
	}, ends: []end{{events.Cancelled, events.DispatchedYes, events.QualityEstimated, 200}}},
	{name: "gone-after-the-stream", take: func(t *testing.T, s *stack.Stack, key string) {
		answer, leave := open(t, s, key, "tokens=3;gap=1ms", chat("m", streaming))
		in := bufio.NewReader(answer.Body)
		for line := ""; !strings.HasPrefix(line, "data: [DONE]"); {
			var err error
			if line, err = in.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		leave()
	}, ends: []end{{events.Completed, events.DispatchedYes, events.QualityExact, 200}}},
	{name: "panic-at-once", take: breaks(0, streaming, "gap=1ms"), ends: []end{{events.Failed, events.DispatchedUnknown, events.QualityNone, 0}}},
	{name: "panic-in-the-stream", take: breaks(3, streaming, "gap=1ms"), ends: []end{{events.Failed, events.DispatchedUnknown, events.QualityNone, 0}}},
	{name: "panic-at-the-end", take: breaks(0, "", ""), ends: []end{{events.Completed, events.DispatchedYes, events.QualityExact, 200}}},
}

// refusedPort gives a base URL at which nobody listens.
func refusedPort(t *testing.T) string {
	t.Helper()
	return "http://" + freeport.Address(t)
}

// TestEveryWayOutEndsInOneRelease: whatever becomes of a request, the log shows it reserved, settled and released, each once, and after
// all of them nothing is held.
func TestEveryWayOutEndsInOneRelease(t *testing.T) {
	var timed, others []way
	for _, w := range ways {
		if slices.ContainsFunc(w.ends, func(e end) bool { return e.outcome == events.TimedOut }) {
			timed = append(timed, w)
		} else {
			others = append(others, w)
		}
	}
	everyWayOut(t, "first_byte: 300ms, idle: 300ms", timed)
	everyWayOut(t, "first_byte: 60s, idle: 60s", others) // however busy the machine is
}

func everyWayOut(t *testing.T, bounds string, ways []way) {
	t.Helper()
	nobody := refusedPort(t)
	settings := stack.Settings{Weir: `
upstream: {connect: 20s, ` + bounds + `}
orgs:
` + orgsOf(ways) + `
models:
  - {id: m, max_output_tokens: 4096, local: {engine: vllm, replicas: ["{{upstream}}"]}, price: {input: "1", output: "2"}}
  - {id: down, local: {engine: vllm, replicas: ["` + nobody + `"]}}
  - {id: refused, providers: [{connection: nobody}]}
  - {id: twice, local: {engine: vllm, replicas: ["{{upstream}}"]}, providers: [{connection: house}]}
  - {id: spare, providers: [{connection: nobody}, {connection: house}]}
connections:
  - {id: nobody, provider: openai, base_url: "` + nobody + `", pool: house}
  - {id: house, provider: openai, base_url: "{{upstream}}", pool: house}
pools:
  - {id: house, provider: openai, rpm: 1000, tpm: 100000000, concurrency: 100}
`, Policies: map[string]string{"m": "models: [m]\nadmit_budget_tokens: 1000000\nmax_inflight: 64\nrouting_policy: {strategy: least-loaded}\n"}}
	for _, w := range ways {
		settings.Keys = append(settings.Keys, stack.Key{Name: w.name})
	}
	s := stack.New(t, stack.Config{Settings: settings})
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) { w.take(t, s, w.name) })
	}
	stack.Eventually(t, "no request is in hand", func() bool { return s.Gateways[0].Book().Live() == 0 })
	s.StopGateways() // nothing can follow
	story := s.Story(t)
	for _, w := range ways {
		t.Run(w.name+" in the log", func(t *testing.T) { w.check(t, ofOrg(story, w.name)) })
	}
	if held := story.Gauges(); len(held) > 0 {
		t.Errorf("still held: %q", held)
	}
	if live := s.Provider.Ledger().Totals().Live; live != 0 {
		t.Errorf("%d calls still run at the upstream", live)
	}
}

func orgsOf(ways []way) string {
	var b strings.Builder
	for _, w := range ways {
		b.WriteString("  " + w.name + ": {limits: {rpm: 100, tpm: 1000000, concurrency: 5}}\n")
	}
	return b.String()
}

// ofOrg gives the only trail of an org's requests.
func ofOrg(story *stack.Story, org string) *stack.Trail {
	var found []*stack.Trail
	for _, id := range story.Order {
		if t := story.Requests[id]; len(t.Reserves) > 0 && string(t.Reserves[0].Org) == org {
			found = append(found, t)
		}
	}
	if len(found) != 1 {
		return &stack.Trail{}
	}
	return found[0]
}

// check holds what the log says of a request against what should have become of it.
func (w *way) check(t *testing.T, trail *stack.Trail) {
	t.Helper()
	n := len(w.ends)
	if len(trail.Reserves) != n {
		t.Fatalf("%d reserves of its request, want %d", len(trail.Reserves), n)
	}
	if ends := trail.Ended(); len(ends) != 1 || ends[0].Attempt != int64(n-1) {
		t.Fatalf("%d releases of the request, want one, of its last attempt", len(ends))
	}
	for i, want := range w.ends {
		attempt := int64(i)
		var releases []*events.Release
		for _, r := range trail.Releases {
			if r.Attempt == attempt && r.Of != events.OfLocal {
				releases = append(releases, r)
			}
		}
		if len(releases) != 1 {
			t.Fatalf("%d releases of attempt %d, want one", len(releases), i)
		}
		if i < n-1 && releases[0].Of != events.OfAttempt {
			t.Errorf("attempt %d, which another follows, is released with its request", i)
		}
		r := releases[0]
		if r.Outcome != want.outcome || r.Dispatched != want.dispatched || r.Status != want.status {
			t.Errorf("attempt %d: %s, dispatched %s, status %d: want %s, %s, %d", i, r.Outcome, r.Dispatched, r.Status, want.outcome, want.dispatched, want.status)
		}
		var finals []*events.TrueUp
		for _, u := range trail.Finals() {
			if u.Attempt == attempt {
				finals = append(finals, u)
			}
		}
		if want.dispatched == events.DispatchedNo {
			if len(finals) > 0 {
				t.Errorf("attempt %d was never sent and has %d finals", i, len(finals))
			}
			continue
		}
		if len(finals) != 1 {
			t.Errorf("attempt %d has %d finals, want one", i, len(finals))
			continue
		}
		if finals[0].Quality != want.quality {
			t.Errorf("attempt %d: usage is %s, want %s", i, finals[0].Quality, want.quality)
		}
	}
}

// brokenBody panics when it is read.
type brokenBody struct{}

func (brokenBody) Read([]byte) (int, error) { panic("the body breaks") }
func (brokenBody) Close() error             { return nil }

// TestPanicBeforeAnAnswer: a client whose handler panics before anything has left gets an error in its SDK's shape.
func TestPanicBeforeAnAnswer(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: sdkSettings})
	for path, kind := range map[string]string{"/v1/chat/completions": "server_error", "/v1/messages": "api_error"} {
		q := httptest.NewRequest(http.MethodPost, path, brokenBody{})
		q.Header.Set("Authorization", "Bearer "+stack.KeyText("demo"))
		w := httptest.NewRecorder()
		s.Gateways[0].Handler().ServeHTTP(w, q)
		a := stack.Answer{Status: w.Code, Header: w.Header(), Body: w.Body.Bytes()}
		if e := a.Error(); a.Status != 500 || e.Type != kind || e.Code != "internal_error" || a.ID() == "" {
			t.Errorf("%s: status %d, %s", path, a.Status, a.Body)
		}
	}
	if n := s.Gateways[0].Book().Live(); n != 0 {
		t.Errorf("%d reservations are held", n)
	}
}

// TestGoneWhileParked: a client that leaves while its request waits for room leaves nothing behind, and no model is called for it.
func TestGoneWhileParked(t *testing.T) {
	s := stack.New(t, stack.Config{Env: map[string]string{"HIVENET_ROUTER_ADMIT_PARK_TIMEOUT": "5s"}, Settings: stack.Settings{
		Keys: []stack.Key{{Name: "first"}, {Name: "second"}},
		Weir: "models:\n  - {id: m, local: {engine: vllm, replicas: [\"{{upstream}}\"]}}\n", Policies: oneAtATime}})
	answer, leave := open(t, s, "first", "tokens=2000;gap=5ms", chat("m", streaming))
	leaveEarly(chat("m", `"user":"second",`), "", waiting)(t, s, "second")
	stack.Eventually(t, "nobody waits", func() bool { return s.Projector.Stats().Waiting == 0 })
	if !called(s, "Hello") {
		t.Error("the first request has ended: the second did not wait for it")
	}
	leave()
	_, _ = io.Copy(io.Discard, answer.Body)
	s.StopGateways()
	story := s.Story(t)
	trail := ofOrg(story, "second")
	if len(trail.Reserves) != 1 || len(trail.Ended()) != 1 || trail.Admitted() {
		t.Fatalf("%d reserves, %d releases, admitted: %v", len(trail.Reserves), len(trail.Ended()), trail.Admitted())
	}
	if r := trail.Ended()[0]; r.Outcome != events.Cancelled || r.Dispatched != events.DispatchedNo {
		t.Errorf("released as %s, dispatched %s", r.Outcome, r.Dispatched)
	}
	if calls := s.Provider.Ledger().Totals().Calls; calls != 1 {
		t.Errorf("%d calls reached the upstream", calls)
	}
	if held := story.Gauges(); len(held) > 0 {
		t.Errorf("still held: %q", held)
	}
}

// oneAtATime lets one request into the model's pool.
var oneAtATime = map[string]string{"m": "models: [m]\nmax_inflight: 1\nrouting_policy: {strategy: least-loaded}\n"}

// within fails the test when something takes longer than it generously may.
func within(t *testing.T, d time.Duration, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(d):
		t.Fatalf("%s takes longer than %s", what, d)
	}
}
