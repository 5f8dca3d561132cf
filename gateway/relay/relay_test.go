package relay_test

import (
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/relay"
	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/services/provider"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen. It is far more than any of it takes.
const patience = time.Minute

// front is a gateway in small: a server that relays every request to one upstream.
type front struct {
	*httptest.Server
	relay   *relay.Relay
	results chan *relay.Result
}

// newFront relays to base. adjust, which may be nil, sees each call before it is made.
func newFront(t *testing.T, base string, o relay.Options, adjust func(*relay.Call, *http.Request)) *front {
	t.Helper()
	o.Now, o.Connect = time.Now, cmp.Or(o.Connect, patience)
	f := &front{relay: relay.New(o), results: make(chan *relay.Result, 16)}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("reading the request: %v", err)
		}
		op, _ := wire.ByPath(r.URL.Path)
		call := &relay.Call{Operation: op, Stream: strings.Contains(string(body), `"stream":true`), URL: base + r.URL.Path, Body: body,
			RequestID: "r-1", Header: relay.Outgoing(op.Format(), "r-1", r.Header, nil, provider.ScriptHeader)}
		if adjust != nil {
			adjust(call, r)
		}
		result := f.relay.Do(r.Context(), w, call)
		f.results <- result
		switch {
		case result.Truncated:
			panic(http.ErrAbortHandler)
		case result.Started || result.Kind == relay.ClientGone:
		case result.Answer != nil:
			_ = result.Answer.Forward(w, nil)
		case result.Kind == relay.FirstByteTimeout:
			w.WriteHeader(http.StatusGatewayTimeout)
		default:
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	t.Cleanup(func() { f.Close(); f.relay.Close() })
	return f
}

// result waits for how the next call went.
func (f *front) result(t *testing.T) *relay.Result {
	t.Helper()
	select {
	case r := <-f.results:
		return r
	case <-time.After(patience):
		t.Fatal("the call did not end")
		return nil
	}
}

// newProvider serves a scripted provider.
func newProvider(t *testing.T, c provider.Config) (*provider.Server, string) {
	t.Helper()
	p, err := provider.New(c)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	return p, s.URL
}

// newUpstream serves one handler.
func newUpstream(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// rawUpstream hands each connection to serve, which closes it by returning.
func rawUpstream(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(c)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return "http://" + l.Addr().String()
}

const (
	chatBody      = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	chatStream    = `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}`
	messageStream = `{"model":"m","stream":true,"max_tokens":99,"messages":[{"role":"user","content":"hi"}]}`
	responseBody  = `{"model":"m","stream":true,"input":"hi"}`
)

// post asks url and returns the open answer.
func post(t *testing.T, ctx context.Context, url, body, script string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if script != "" {
		req.Header.Set(provider.ScriptHeader, script)
	}
	return http.DefaultClient.Do(req)
}

// ask asks url and returns the whole answer.
func ask(t *testing.T, url, body, script string) (status int, h http.Header, answer string) {
	t.Helper()
	resp, err := post(t, t.Context(), url, body, script)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("reading the answer: %v after %d bytes", err, len(b))
	}
	return resp.StatusCode, resp.Header, string(b)
}

// eventually waits until ok is true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestUsageIsReadInPassing(t *testing.T) {
	_, base := newProvider(t, provider.Config{})
	f := newFront(t, base, relay.Options{}, nil)
	for _, c := range []struct {
		name, path, body, script string
		want                     wire.Usage
		finish                   string
		streamed                 bool
	}{
		{"chat", "/v1/chat/completions", chatBody, "input=1200;cached=1000;tokens=30;reasoning=10", wire.Usage{Input: 1200, Cached: 1000, Output: 40, Reasoning: 10}, "stop", false},
		{"chat stream", "/v1/chat/completions", chatStream, "input=64;tokens=57;reasoning=78", wire.Usage{Input: 64, Output: 135, Reasoning: 78}, "stop", true},
		{"completions stream", "/v1/completions", `{"model":"m","stream":true,"stream_options":{"include_usage":true},"prompt":"hi"}`, "input=9;tokens=7", wire.Usage{Input: 9, Output: 7}, "stop", true},
		{"responses stream", "/v1/responses", responseBody, "input=50;tokens=6", wire.Usage{Input: 50, Output: 6}, "completed", true},
		{"messages stream", "/v1/messages", messageStream, "input=10007;cached=10000;tokens=15", wire.Usage{Input: 10007, Cached: 10000, Output: 15}, "end_turn", true},
		{"messages", "/v1/messages", `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`, "input=20", wire.Usage{Input: 20, Output: 5}, "max_tokens", false},
		{"embeddings", "/v1/embeddings", `{"model":"m","input":"hi"}`, "input=60", wire.Usage{Input: 60}, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, _, body := ask(t, f.URL+c.path, c.body, c.script)
			r := f.result(t)
			if status != 200 || r.Kind != relay.Completed || r.Status != 200 || !r.Started || r.Dispatched != events.DispatchedYes {
				t.Fatalf("status %d, kind %v, upstream %d, started %v, dispatched %v: %s", status, r.Kind, r.Status, r.Started, r.Dispatched, body)
			}
			if r.Usage != c.want || r.Quality != wire.QualityExact || r.FinishReason != c.finish {
				t.Errorf("usage %+v (%v), finish %q; want %+v, %q", r.Usage, r.Quality, r.FinishReason, c.want, c.finish)
			}
			if (r.TTFT > 0) != c.streamed || r.Latency < r.TTFT {
				t.Errorf("time to first token %v of %v", r.TTFT, r.Latency)
			}
			if r.Outcome() != events.Completed || r.Fault != nil {
				t.Errorf("outcome %v, failure %v", r.Outcome(), r.Fault)
			}
		})
	}
}

// TestStreamsPassByteForByte sends recorded streams in awkward pieces.
func TestStreamsPassByteForByte(t *testing.T) {
	_, origin := newProvider(t, provider.Config{})
	for _, c := range []struct{ name, path, body string }{
		{"chat", "/v1/chat/completions", chatStream},
		{"responses", "/v1/responses", responseBody},
		{"messages", "/v1/messages", messageStream},
	} {
		for _, script := range []string{"tokens=9;reasoning=4", "crlf;comments;tokens=5", "tool", "tokens=4000"} {
			_, _, want := ask(t, origin+c.path, c.body, script)
			for _, size := range []int{1, 7, 1000, 1 << 20} {
				if size < 1000 && len(want) > 50_000 {
					continue // each piece is flushed
				}
				base := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "text/event-stream")
					for rest := want; rest != ""; {
						n := min(size, len(rest))
						_, _ = io.WriteString(w, rest[:n])
						w.(http.Flusher).Flush()
						rest = rest[n:]
					}
				})
				f := newFront(t, base, relay.Options{}, nil)
				_, _, got := ask(t, f.URL+c.path, c.body, "")
				if r := f.result(t); got != want || r.Kind != relay.Completed {
					t.Errorf("%s, %s, pieces of %d: %v, %d bytes became %d", c.name, script, size, r.Kind, len(want), len(got))
				}
			}
		}
	}
}

func TestUsageThatWasNotAskedForIsLeftOut(t *testing.T) {
	_, base := newProvider(t, provider.Config{})
	f := newFront(t, base, relay.Options{}, func(c *relay.Call, _ *http.Request) { c.HideUsage = true })
	_, _, body := ask(t, f.URL+"/v1/chat/completions", chatStream, "input=33;tokens=4")
	if r := f.result(t); r.Usage.Input != 33 || r.Usage.Output != 4 || r.Quality != wire.QualityExact {
		t.Errorf("usage %+v, %v", r.Usage, r.Quality)
	}
	if strings.Contains(body, "usage") || strings.Count(body, "data: ") != 7 || !strings.HasSuffix(body, "data: [DONE]\n\n") {
		t.Errorf("the client got:\n%s", body)
	}
}

// TestEachEventIsFlushed has an upstream that goes on only when the client has seen what was sent so far.
func TestEachEventIsFlushed(t *testing.T) {
	seen := make(chan struct{})
	base := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 3 {
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n")
			w.(http.Flusher).Flush()
			<-seen
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	})
	f := newFront(t, base, relay.Options{}, nil)
	resp, err := post(t, t.Context(), f.URL+"/v1/chat/completions", chatStream, "")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	event := make([]byte, len("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n"))
	for range 3 {
		if _, err := io.ReadFull(resp.Body, event); err != nil {
			t.Fatal(err)
		}
		seen <- struct{}{}
	}
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "data: [DONE]\n\n" {
		t.Errorf("the end is %q, %v", rest, err)
	}
	if r := f.result(t); r.Kind != relay.Completed || r.Quality != wire.QualityEstimated || r.Usage.Output != 1 {
		t.Errorf("%v, %v, %+v", r.Kind, r.Quality, r.Usage)
	}
}

func TestLargeAnswersStreamThrough(t *testing.T) {
	vector := strings.Repeat("0.0123,", 10<<20/7)
	want := `{"object":"list","data":[{"embedding":[` + vector + `0]}],"usage":{"prompt_tokens":60,"total_tokens":60}}`
	for _, chunked := range []bool{false, true} {
		base := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if !chunked {
				w.Header().Set("Content-Length", itoa(len(want)))
			}
			_, _ = io.WriteString(w, want)
		})
		f := newFront(t, base, relay.Options{}, nil)
		_, h, got := ask(t, f.URL+"/v1/embeddings", `{"model":"m","input":"hi"}`, "")
		r := f.result(t)
		if got != want || r.Kind != relay.Completed || r.Usage.Input != 60 || r.Quality != wire.QualityExact {
			t.Errorf("chunked %v: %v, %d bytes of %d, %+v", chunked, r.Kind, len(got), len(want), r.Usage)
		}
		if (h.Get("Content-Length") == "") != chunked {
			t.Errorf("chunked %v: content-length %q", chunked, h.Get("Content-Length"))
		}
	}
}

// TestSettledBeforeTheLastByte holds the answer back in Ending and looks at what the client has got by then.
func TestSettledBeforeTheLastByte(t *testing.T) {
	_, base := newProvider(t, provider.Config{})
	for _, c := range []struct{ name, path, body, script, last string }{
		{"whole", "/v1/chat/completions", chatBody, "", "}"},
		{"large", "/v1/chat/completions", chatBody, "tokens=90000", "}"},
		{"chat", "/v1/chat/completions", chatStream, "gap=1ms;tokens=5", "[DONE]\n\n"},
		{"responses", "/v1/responses", responseBody, "gap=1ms;tokens=5", "\n\n"},
		{"messages", "/v1/messages", messageStream, "gap=1ms;tokens=5", "\n\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ending, goOn := make(chan *relay.Result, 2), make(chan struct{})
			f := newFront(t, base, relay.Options{}, func(call *relay.Call, _ *http.Request) {
				call.Ending = func(r *relay.Result) { ending <- r; <-goOn }
			})
			answer := make(chan string, 1)
			go func() {
				_, _, body := ask(t, f.URL+c.path, c.body, c.script)
				answer <- body
			}()
			given := <-ending
			if given.Kind != relay.Completed || given.Quality != wire.QualityExact || given.Usage.Output == 0 || given.Latency <= 0 {
				t.Errorf("when settled: %v, %v, %+v", given.Kind, given.Quality, given.Usage)
			}
			select {
			case body := <-answer:
				t.Errorf("the client had everything: %.80s", body)
			default:
			}
			latency := given.Latency
			close(goOn)
			if body := <-answer; !strings.HasSuffix(body, c.last) {
				t.Errorf("the answer ends in %q", body[max(0, len(body)-20):])
			}
			if r := f.result(t); r != given || r.Latency != latency || len(ending) != 0 {
				t.Errorf("the result changed after it was settled, or was settled twice")
			}
		})
	}
}

func TestHooks(t *testing.T) {
	_, base := newProvider(t, provider.Config{})
	var progress []int64
	var input int64
	f := newFront(t, base, relay.Options{}, func(c *relay.Call, _ *http.Request) {
		c.Commit = func(status int, h http.Header) { h["X-Tm-Remaining-Rpm"] = []string{itoa(status)} }
		c.Progress = func(m relay.Meter) {
			progress = append(progress, m.OutputBytes())
			if u, explicit := m.Usage(); explicit.Has(wire.FieldInput) && input == 0 {
				input = u.Input
			}
		}
	})
	_, h, _ := ask(t, f.URL+"/v1/messages", messageStream, "gap=1ms;tokens=5;input=77")
	f.result(t)
	if h.Get("X-Tm-Remaining-Rpm") != "200" || h.Get("Cache-Control") != "no-cache" {
		t.Errorf("headers %v", h)
	}
	if input != 77 || len(progress) < 5 || progress[len(progress)-1] < 20 {
		t.Errorf("progress %v, input %d", progress, input)
	}
	for i := 1; i < len(progress); i++ {
		if progress[i] < progress[i-1] {
			t.Errorf("progress went back: %v", progress)
		}
	}
}

func TestStreamWasAskedForAndAnObjectCame(t *testing.T) {
	base := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_, _ = io.WriteString(w, `{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":1}}`)
	})
	f := newFront(t, base, relay.Options{}, nil)
	_, h, body := ask(t, f.URL+"/v1/chat/completions", chatStream, "")
	if r := f.result(t); r.Usage.Input != 5 || r.Quality != wire.QualityExact || len(body) == 0 || h.Get("Content-Type") != "application/json; charset=utf-8" {
		t.Errorf("%+v, %v, %q", r.Usage, r.Quality, body)
	}
}

func TestOnlySomeHeadersPass(t *testing.T) {
	got := make(chan http.Header, 1)
	base := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Clone()
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("X-Request-Id", "up-7")
		h.Set("Openai-Processing-Ms", "12")
		h.Set("Anthropic-Ratelimit-Requests-Remaining", "3")
		h.Set("X-Ratelimit-Remaining-Requests", "3")
		h.Set("Set-Cookie", "a=b")
		h.Set("Server", "secret")
		_, _ = io.WriteString(w, "{}")
	})
	f := newFront(t, base, relay.Options{}, func(c *relay.Call, r *http.Request) {
		r.Header.Set("Authorization", "Bearer sk-weir-client")
		r.Header.Set("X-Api-Key", "sk-weir-client")
		r.Header.Set("Cookie", "a=b")
		r.Header.Set("Idempotency-Key", "k")
		r.Header.Set("Anthropic-Beta", "b1")
		r.Header.Set("Openai-Beta", "b2")
		r.Header.Set("X-Forwarded-For", "10.0.0.1")
		c.Header = relay.Outgoing(wire.OpenAI, "r-1", r.Header, http.Header{"Authorization": {"Bearer sk-house"}})
	})
	_, h, _ := ask(t, f.URL+"/v1/chat/completions", chatBody, "")
	if r := f.result(t); r.UpstreamID != "up-7" {
		t.Errorf("upstream id %q", r.UpstreamID)
	}
	if h.Get("X-Upstream-Request-Id") != "up-7" || h.Get("Openai-Processing-Ms") != "12" || h.Get("X-Request-Id") != "" {
		t.Errorf("the client got %v", h)
	}
	for _, name := range []string{"Anthropic-Ratelimit-Requests-Remaining", "X-Ratelimit-Remaining-Requests", "Set-Cookie", "Server"} {
		if h.Get(name) != "" {
			t.Errorf("the client got %s", name)
		}
	}
	sent := <-got
	if sent.Get("Authorization") != "Bearer sk-house" || sent.Get("X-Request-Id") != "r-1" || sent.Get("Openai-Beta") != "b2" || sent.Get("Accept-Encoding") != "identity" {
		t.Errorf("the upstream got %v", sent)
	}
	for _, name := range []string{"X-Api-Key", "Cookie", "Idempotency-Key", "Anthropic-Beta", "X-Forwarded-For"} {
		if sent.Get(name) != "" {
			t.Errorf("the upstream got %s", name)
		}
	}
}
