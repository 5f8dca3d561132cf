package relay_test

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	openaioption "github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/relay"
	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/services/provider"
)

// stalls is how often a machine that stands still may spoil what a test is about, and have it tried again.
const stalls = 20

func itoa(n int) string { return strconv.Itoa(n) }

// outcome checks what a failed call says of itself.
func outcome(t *testing.T, r *relay.Result, kind relay.Kind, d events.Dispatched, o events.Outcome) {
	t.Helper()
	if r.Kind != kind || r.Dispatched != d || r.Outcome() != o {
		t.Errorf("%v, dispatched %v, %v (%v); want %v, %v, %v", r.Kind, r.Dispatched, r.Outcome(), r.Fault, kind, d, o)
	}
	if r.Fault == nil {
		t.Error("it does not say what failed")
	}
}

// do makes one call without a client.
func do(ctx context.Context, t *testing.T, url string, o relay.Options, adjust func(*relay.Call)) *relay.Result {
	t.Helper()
	o.Now, o.Connect = time.Now, cmp.Or(o.Connect, patience)
	r := relay.New(o)
	defer r.Close()
	w := httptest.NewRecorder()
	c := &relay.Call{Operation: wire.Chat, URL: url + "/v1/chat/completions", Body: []byte(chatBody)}
	if adjust != nil {
		adjust(c)
	}
	result := r.Do(ctx, w, c)
	if !result.Started && (w.Body.Len() > 0 || len(w.Result().Header) > 0) {
		t.Errorf("something was written: %v", w)
	}
	return result
}

func TestNothingWasSent(t *testing.T) {
	t.Run("refused", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		r := do(t.Context(), t, "http://"+l.Addr().String(), relay.Options{}, nil)
		outcome(t, r, relay.Unreachable, events.DispatchedNo, events.NotDispatched)
		if !r.Retryable() {
			t.Error("it must be retryable")
		}
	})
	t.Run("no TLS at the other end", func(t *testing.T) {
		base := rawUpstream(t, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 400 no\r\n\r\n") })
		r := do(t.Context(), t, strings.Replace(base, "http:", "https:", 1), relay.Options{}, nil)
		outcome(t, r, relay.Unreachable, events.DispatchedNo, events.NotDispatched)
	})
	t.Run("a certificate that nobody signed", func(t *testing.T) {
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.Config.ErrorLog = quiet()
		s.StartTLS()
		defer s.Close()
		r := do(t.Context(), t, s.URL, relay.Options{}, nil)
		outcome(t, r, relay.Unreachable, events.DispatchedNo, events.NotDispatched)
		var unknown *tls.CertificateVerificationError
		if !errors.As(r.Fault, &unknown) {
			t.Errorf("the failure is %v", r.Fault)
		}
	})
	t.Run("a handshake that never ends", func(t *testing.T) {
		stop := make(chan struct{})
		base := rawUpstream(t, func(c net.Conn) { <-stop })
		r := do(t.Context(), t, strings.Replace(base, "http:", "https:", 1), relay.Options{Connect: 50 * time.Millisecond}, nil)
		close(stop)
		outcome(t, r, relay.Unreachable, events.DispatchedNo, events.NotDispatched)
	})
	t.Run("the client had left", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r := do(ctx, t, "http://127.0.0.1:1", relay.Options{}, nil)
		outcome(t, r, relay.ClientGone, events.DispatchedNo, events.NotDispatched)
		if r.Retryable() {
			t.Error("nobody waits for a retry")
		}
	})
	t.Run("a URL that cannot be", func(t *testing.T) {
		outcome(t, do(t.Context(), t, "http://bad host", relay.Options{}, nil), relay.Unreachable, events.DispatchedNo, events.NotDispatched)
	})
	// At once, and when the process stood still between the choice of a connection and the first byte.
	for allowed := range int64(2) {
		t.Run(fmt.Sprintf("barred when asked for the %d. time", allowed+1), func(t *testing.T) {
			read := make(chan int64, 1)
			base := rawUpstream(t, func(c net.Conn) { n, _ := io.Copy(io.Discard, c); read <- n })
			var asked atomic.Int64
			r := do(t.Context(), t, base, relay.Options{}, func(c *relay.Call) { c.Guard = func() bool { return asked.Add(1) <= allowed } })
			outcome(t, r, relay.Barred, events.DispatchedNo, events.NotDispatched)
			if n := <-read; n != 0 || asked.Load() <= allowed || r.Retryable() {
				t.Errorf("%d bytes were sent, asked %d times, retryable %v", n, asked.Load(), r.Retryable())
			}
		})
	}
}

func TestPerhapsSent(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"accepted and closed": func(c net.Conn) {
			b := bufio.NewReader(c)
			_, _ = b.ReadByte() // else the reset may come before anything was written
		},
		"closed after the headers": func(c net.Conn) { _, _ = http.ReadRequest(bufio.NewReader(c)) },
		"closed after the request": func(c net.Conn) {
			if req, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				_, _ = io.Copy(io.Discard, req.Body)
			}
		},
		"half a status line": func(c net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, "HTTP/1.1 2")
		},
		"no HTTP": func(c net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, "SSH-2.0-OpenSSH\r\n\r\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			var connections atomic.Int64
			base := rawUpstream(t, func(c net.Conn) { connections.Add(1); serve(c) })
			r := do(t.Context(), t, base, relay.Options{}, nil)
			outcome(t, r, relay.Broken, events.DispatchedUnknown, events.Failed)
			if !r.Retryable() || r.Started || r.Quality != wire.QualityNone || connections.Load() != 1 {
				t.Errorf("retryable %v, started %v, %v, %d connections", r.Retryable(), r.Started, r.Quality, connections.Load())
			}
		})
	}
}

// TestAnIdleConnectionThatWasClosed: a connection that the server closed while it was kept is no failure at all.
func TestAnIdleConnectionThatWasClosed(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{}")
	}))
	defer s.Close()
	f := newFront(t, s.URL, relay.Options{}, nil)
	const pause = 100 * time.Millisecond
	for served, wait := 0, pause; served < 5; {
		status, _, _ := ask(t, f.URL+"/v1/chat/completions", chatBody, "")
		r := f.result(t)
		switch {
		case status == 200:
			served, wait = served+1, pause
		case r.Dispatched == events.DispatchedUnknown && wait < patience: // the close had not arrived: the fate of such a request is unknown
			wait *= 2
		default:
			t.Fatalf("status %d, %v", status, r.Fault)
		}
		s.CloseClientConnections()
		time.Sleep(wait)
	}
}

func TestErrorAnswersAreKept(t *testing.T) {
	_, base := newProvider(t, provider.Config{})
	f := newFront(t, base, relay.Options{}, nil)
	for _, c := range []struct {
		path, body, script string
		status             int
		retryable          bool
		wait               time.Duration
	}{
		{"/v1/chat/completions", chatBody, "status=429;retry-after=3", 429, true, 3 * time.Second},
		{"/v1/chat/completions", chatStream, "status=500", 500, true, 0},
		{"/v1/messages", messageStream, "status=529;retry-after=7", 529, true, 7 * time.Second},
		{"/v1/messages", messageStream, "status=400", 400, false, 0},
	} {
		_, _, want := ask(t, base+c.path, c.body, c.script)
		status, h, got := ask(t, f.URL+c.path, c.body, c.script)
		r := f.result(t)
		outcome(t, r, relay.UpstreamStatus, events.DispatchedYes, events.Failed)
		if status != c.status || got != want || r.Started || r.RetryAfter != c.wait || r.Retryable() != c.retryable || h.Get("Content-Type") != "application/json" {
			t.Errorf("%s: status %d, %q for %q, retry after %v, retryable %v, %v", c.script, status, got, want, r.RetryAfter, r.Retryable(), h)
		}
		if (h.Get("Retry-After") != "") != (c.wait > 0) {
			t.Errorf("%s: retry-after %q", c.script, h.Get("Retry-After"))
		}
	}
	huge := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(502)
		_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
	})
	if r := do(t.Context(), t, huge, relay.Options{}, nil); r.Answer != nil || r.Status != 502 || r.Kind != relay.UpstreamStatus {
		t.Errorf("a huge error: %v, %d", r.Kind, r.Status)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	var calls atomic.Int64
	base := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		http.Redirect(w, r, "/v1/elsewhere", http.StatusTemporaryRedirect)
	})
	r := do(t.Context(), t, base, relay.Options{}, nil)
	outcome(t, r, relay.BadAnswer, events.DispatchedYes, events.Failed)
	if calls.Load() != 1 || r.Status != 307 || r.Answer != nil {
		t.Errorf("%d calls, status %d", calls.Load(), r.Status)
	}
}

func TestHangBeforeTheFirstByte(t *testing.T) {
	p, base := newProvider(t, provider.Config{})
	f := newFront(t, base, relay.Options{FirstByte: 60 * time.Millisecond, Answer: 50 * time.Millisecond}, nil)
	for i, body := range []string{chatBody, chatStream} {
		status, _, _ := ask(t, f.URL+"/v1/chat/completions", body, "hang")
		r := f.result(t)
		for tries := 1; r.Dispatched == events.DispatchedNo && tries < stalls; tries++ {
			status, _, _ = ask(t, f.URL+"/v1/chat/completions", body, "hang")
			r = f.result(t)
		}
		outcome(t, r, relay.FirstByteTimeout, events.DispatchedUnknown, events.TimedOut)
		if status != 504 || !r.Retryable() {
			t.Errorf("status %d, retryable %v", status, r.Retryable())
		}
		eventually(t, "the upstream saw the cancellation", func() bool { return p.Ledger().Totals().Cancelled == int64(i+1) })
	}
	// headers alone are no first byte
	silent := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	g := newFront(t, silent, relay.Options{FirstByte: 50 * time.Millisecond}, nil)
	status, _, _ := ask(t, g.URL+"/v1/chat/completions", chatStream, "")
	r := g.result(t)
	for tries := 1; r.Dispatched != events.DispatchedYes && tries < stalls; tries++ {
		status, _, _ = ask(t, g.URL+"/v1/chat/completions", chatStream, "")
		r = g.result(t)
	}
	outcome(t, r, relay.FirstByteTimeout, events.DispatchedYes, events.TimedOut)
	if status != 504 {
		t.Errorf("status %d", status)
	}
}

// TestFaultsInsideAStreamReachTheSDKs has each SDK read a stream that falls silent, one that is cut and one with an error.
func TestFaultsInsideAStreamReachTheSDKs(t *testing.T) {
	p, base := newProvider(t, provider.Config{})
	ending := make(chan *relay.Result, 1)
	f := newFront(t, base, relay.Options{}, func(c *relay.Call, r *http.Request) {
		if strings.HasPrefix(r.Header.Get(provider.ScriptHeader), "hang") {
			c.Idle = 400 * time.Millisecond
		}
		c.Ending = func(r *relay.Result) { ending <- r }
	})
	clients := map[string]func(script string) (events int, err error){
		"chat": func(script string) (n int, err error) {
			c := openai.NewClient(openaioption.WithBaseURL(f.URL+"/v1"), openaioption.WithAPIKey("k"), openaioption.WithMaxRetries(0), openaioption.WithHeader(provider.ScriptHeader, script))
			s := c.Chat.Completions.NewStreaming(t.Context(), openai.ChatCompletionNewParams{Model: "m", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hi")}})
			for s.Next() {
				n++
			}
			return n, s.Err()
		},
		"responses": func(script string) (n int, err error) {
			c := openai.NewClient(openaioption.WithBaseURL(f.URL+"/v1"), openaioption.WithAPIKey("k"), openaioption.WithMaxRetries(0), openaioption.WithHeader(provider.ScriptHeader, script))
			s := c.Responses.NewStreaming(t.Context(), responses.ResponseNewParams{Model: "m", Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("hi")}})
			for s.Next() {
				if e := s.Current(); e.Type == "error" {
					err = errors.New(e.Message)
					continue
				}
				n++
			}
			return n, errors.Join(err, s.Err())
		},
		"messages": func(script string) (n int, err error) {
			c := anthropic.NewClient(anthropicoption.WithBaseURL(f.URL), anthropicoption.WithAPIKey("k"), anthropicoption.WithMaxRetries(0), anthropicoption.WithHeader(provider.ScriptHeader, script))
			s := c.Messages.NewStreaming(t.Context(), anthropic.MessageNewParams{Model: "m", MaxTokens: 99, Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("hi"))}})
			for s.Next() {
				n++
			}
			return n, s.Err()
		},
	}
	for name, call := range clients {
		for _, c := range []struct {
			script, says string
			kind         relay.Kind
			outcome      events.Outcome
		}{
			{"hang=9;tokens=20", "sent nothing for 400ms", relay.IdleTimeout, events.TimedOut},
			{"cut=9;tokens=20", "ended its answer before its end", relay.Cut, events.Failed},
			{"error-event=9;tokens=20", "the script says so", relay.StreamError, events.Failed},
		} {
			t.Run(name+" "+c.script, func(t *testing.T) {
				p.Ledger().Reset()
				want := 9
				if name == "messages" {
					want-- // that SDK keeps the ping to itself
				}
				n, err := call(c.script)
				r := f.result(t)
				for tries := 1; c.kind == relay.IdleTimeout && n < want && tries < stalls; tries++ { // it was silent before
					if r.Started {
						<-ending
					}
					n, err = call(c.script)
					r = f.result(t)
				}
				if n != want || err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("the SDK saw %d events and %v", n, err)
				}
				outcome(t, r, c.kind, events.DispatchedYes, c.outcome)
				if !r.Started || r.Retryable() || r.Quality == wire.QualityExact || r.Usage.Output < 1 {
					t.Errorf("started %v, retryable %v, %v, %+v", r.Started, r.Retryable(), r.Quality, r.Usage)
				}
				if given := <-ending; given != r {
					t.Error("it was not settled before its last byte")
				}
				eventually(t, "the upstream's call ended", func() bool { return p.Ledger().Totals().Live == 0 })
			})
		}
	}
}

func TestCutAnswers(t *testing.T) {
	_, base := newProvider(t, provider.Config{})
	f := newFront(t, base, relay.Options{}, nil)
	t.Run("small", func(t *testing.T) {
		status, _, _ := ask(t, f.URL+"/v1/chat/completions", chatBody, "cut=200;tokens=50")
		r := f.result(t)
		outcome(t, r, relay.Cut, events.DispatchedYes, events.Failed)
		if status != 502 || r.Started || r.Truncated || !r.Retryable() {
			t.Errorf("status %d, started %v, truncated %v", status, r.Started, r.Truncated)
		}
	})
	t.Run("large", func(t *testing.T) {
		resp, err := post(t, t.Context(), f.URL+"/v1/chat/completions", chatBody, "cut=200000;tokens=90000")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		got, err := io.ReadAll(resp.Body)
		r := f.result(t)
		outcome(t, r, relay.Cut, events.DispatchedYes, events.Failed)
		if err == nil || len(got) >= 200_000 || !r.Truncated || r.Quality != wire.QualityEstimated || r.Usage.Output < 10_000 {
			t.Errorf("%d bytes, %v, truncated %v, %v, %+v", len(got), err, r.Truncated, r.Quality, r.Usage)
		}
	})
	t.Run("before the first event", func(t *testing.T) {
		status, _, _ := ask(t, f.URL+"/v1/chat/completions", chatStream, "cut=0")
		r := f.result(t)
		outcome(t, r, relay.Cut, events.DispatchedYes, events.Failed)
		if status != 502 || r.Started || !r.Retryable() {
			t.Errorf("status %d, started %v", status, r.Started)
		}
	})
	t.Run("a clean end before the end", func(t *testing.T) {
		for end, kind := range map[string]relay.Kind{"null": relay.Cut, `"stop"`: relay.Completed} {
			one := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, `data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":`+end+"}]}\n\n")
			})
			g := newFront(t, one, relay.Options{}, nil)
			_, _, body := ask(t, g.URL+"/v1/chat/completions", chatStream, "")
			if r := g.result(t); r.Kind != kind || strings.Contains(body, `"error"`) != (kind == relay.Cut) {
				t.Errorf("finish %s: %v, %s", end, r.Kind, body)
			}
		}
	})
}

func TestAnEventThatIsTooLarge(t *testing.T) {
	base := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\ndata: ")
		piece := strings.Repeat("x", 1<<20)
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, piece)
		}
	})
	f := newFront(t, base, relay.Options{}, nil)
	_, _, body := ask(t, f.URL+"/v1/chat/completions", chatStream, "")
	outcome(t, f.result(t), relay.TooLarge, events.DispatchedYes, events.Failed)
	if !strings.Contains(body, "too large") || len(body) > 1000 {
		t.Errorf("the client got %d bytes: %.200s", len(body), body)
	}
}

// TestTheEndIsTheEnd: an upstream that keeps the connection open behind its last event holds nothing up for long.
func TestTheEndIsTheEnd(t *testing.T) {
	gone := make(chan struct{})
	base := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(gone)
	})
	f := newFront(t, base, relay.Options{}, nil)
	_, _, body := ask(t, f.URL+"/v1/chat/completions", chatStream, "")
	if r := f.result(t); r.Kind != relay.Completed || !strings.HasSuffix(body, "[DONE]\n\n") {
		t.Errorf("%v, %q", r.Kind, body)
	}
	<-gone
}

func TestTheClientLeaves(t *testing.T) {
	p, base := newProvider(t, provider.Config{})
	ended := make(chan struct{}, 1)
	f := newFront(t, base, relay.Options{}, func(c *relay.Call, _ *http.Request) {
		c.Ending = func(*relay.Result) { ended <- struct{}{} }
	})
	for _, c := range []struct {
		name, path, body, script string
		events                   int // read before leaving
		dispatched               events.Dispatched
		quality                  wire.Quality
	}{
		{"before an answer", "/v1/chat/completions", chatBody, "delay=1h", 0, events.DispatchedUnknown, wire.QualityNone},
		{"before a stream", "/v1/messages", messageStream, "hang", 0, events.DispatchedUnknown, wire.QualityNone},
		{"during chat", "/v1/chat/completions", chatStream, "gap=2ms;tokens=100000", 40, events.DispatchedYes, wire.QualityEstimated},
		{"during messages", "/v1/messages", messageStream, "gap=2ms;tokens=90;hang=60;input=1000", 42, events.DispatchedYes, wire.QualityPartial},
		{"during a silence", "/v1/responses", responseBody, "hang=5;tokens=50", 5, events.DispatchedYes, wire.QualityEstimated},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.Ledger().Reset()
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			if c.events == 0 {
				go func() {
					for p.Ledger().Totals().Live == 0 {
						time.Sleep(time.Millisecond)
					}
					leave()
				}()
			}
			resp, err := post(t, ctx, f.URL+c.path, c.body, c.script)
			if (err == nil) != (c.events > 0) {
				t.Fatalf("the answer: %v", err)
			}
			if err == nil {
				lines := bufio.NewScanner(resp.Body)
				for seen := 0; seen < c.events && lines.Scan(); {
					if strings.HasPrefix(lines.Text(), "data:") {
						seen++
					}
				}
				leave()
				_ = resp.Body.Close()
			}
			r := f.result(t)
			outcome(t, r, relay.ClientGone, c.dispatched, events.Cancelled)
			eventually(t, "the upstream saw the cancellation", func() bool { return p.Ledger().Totals().Cancelled == 1 })
			if r.Quality != c.quality || r.Retryable() || len(ended) > 0 {
				t.Errorf("%v, retryable %v, settled by Ending %v", r.Quality, r.Retryable(), len(ended) > 0)
			}
			if c.quality == wire.QualityPartial && (r.Usage.Input != 1000 || r.Usage.Output < 36) {
				t.Errorf("usage %+v", r.Usage)
			}
		})
	}
}

func TestTheClientLeavesAfterTheEnd(t *testing.T) {
	_, base := newProvider(t, provider.Config{})
	f := newFront(t, base, relay.Options{}, func(c *relay.Call, r *http.Request) {
		c.Ending = func(*relay.Result) { r.Body.Close() }
	})
	for range 10 {
		ctx, leave := context.WithCancel(t.Context())
		resp, err := post(t, ctx, f.URL+"/v1/chat/completions", chatStream, "tokens=3;gap=1ms")
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() && lines.Text() != "data: [DONE]" {
		}
		leave()
		_ = resp.Body.Close()
		if r := f.result(t); r.Kind != relay.Completed || r.Quality != wire.QualityExact {
			t.Errorf("%v, %v", r.Kind, r.Quality)
		}
	}
}

// TestAClientThatDoesNotRead must not hold a call for ever.
func TestAClientThatDoesNotRead(t *testing.T) {
	for _, body := range []string{chatStream, chatBody} {
		r := unread(t, body)
		for tries := 1; r.Kind == relay.IdleTimeout && tries < stalls; tries++ { // the upstream had no turn
			r = unread(t, body)
		}
		outcome(t, r, relay.ClientGone, events.DispatchedYes, events.Cancelled)
		if r.Usage.Output == 0 {
			t.Errorf("usage %+v", r.Usage)
		}
	}
}

// unread makes a call whose answer has no end, and does not read it.
func unread(t *testing.T, body string) *relay.Result {
	t.Helper()
	gone := make(chan struct{})
	base := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		piece := strings.Repeat("x", 1<<16)
		if body == chatStream {
			w.Header().Set("Content-Type", "text/event-stream")
			piece = `data: {"choices":[{"delta":{"content":"` + piece + "\"}}]}\n\n"
		}
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, piece)
		}
	})
	f := newFront(t, base, relay.Options{Idle: time.Second}, nil)
	resp, err := post(t, t.Context(), f.URL+"/v1/chat/completions", body, "")
	if err != nil {
		t.Fatal(err)
	}
	r := f.result(t)
	<-gone
	_ = resp.Body.Close()
	return r
}

func TestTheGatewayEndsACall(t *testing.T) {
	p, base := newProvider(t, provider.Config{})
	reason := errors.New("the lease ran out")
	stop := make(chan context.CancelCauseFunc, 1)
	r := relay.New(relay.Options{Now: time.Now})
	defer r.Close()
	results := make(chan *relay.Result, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx, cancel := context.WithCancelCause(req.Context())
		defer cancel(nil)
		stop <- cancel
		results <- r.Do(ctx, w, &relay.Call{Operation: wire.Messages, Stream: true, URL: base + "/v1/messages", Body: []byte(messageStream), RequestID: "r-9",
			Header: http.Header{provider.ScriptHeader: {"hang=4"}}})
	}))
	defer s.Close()
	resp, err := post(t, t.Context(), s.URL+"/v1/messages", messageStream, "")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	(<-stop)(reason)
	body, err := io.ReadAll(resp.Body)
	got := <-results
	outcome(t, got, relay.Stopped, events.DispatchedYes, events.Cancelled)
	if err != nil || !strings.Contains(string(body), "event: error\n") || !strings.Contains(string(body), `"request_id":"r-9"`) {
		t.Errorf("the client got %q, %v", body, err)
	}
	eventually(t, "the upstream saw the cancellation", func() bool { return p.Ledger().Totals().Cancelled == 1 })
}

// TestAPanicLeaksNothing: goleak looks at the end of all tests, the ledger here.
func TestAPanicLeaksNothing(t *testing.T) {
	p, base := newProvider(t, provider.Config{})
	for name, adjust := range map[string]func(*relay.Call){
		"commit":   func(c *relay.Call) { c.Commit = func(int, http.Header) { panic("commit") } },
		"progress": func(c *relay.Call) { c.Progress = func(relay.Meter) { panic("progress") } },
		"guard":    func(c *relay.Call) { c.Guard = func() bool { panic("guard") } },
	} {
		t.Run(name, func(t *testing.T) {
			p.Ledger().Reset()
			func() {
				defer func() {
					if got := recover(); got != name {
						t.Errorf("recovered %v", got)
					}
				}()
				do(t.Context(), t, base, relay.Options{}, func(c *relay.Call) {
					c.Stream, c.Body = true, []byte(chatStream)
					c.Header = http.Header{provider.ScriptHeader: {"hang=2"}}
					adjust(c)
				})
			}()
			eventually(t, "the upstream's call ended", func() bool { return p.Ledger().Totals().Live == 0 })
		})
	}
}
