// Package relay makes one call to an upstream: the request's bytes go out, the answer's bytes pass through as they arrive,
// and usage is read in passing. It knows what was proven about the call when it fails: whether anything was sent, how much
// the client got, and what the answer cost so far.
package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/anthropic"
	"github.com/weirhq/weir/gateway/openai"
	"github.com/weirhq/weir/gateway/wire"
)

// Defaults of Options.
const (
	DefaultConnect   = 5 * time.Second
	DefaultFirstByte = 60 * time.Second
	DefaultAnswer    = 10 * time.Minute
	DefaultIdle      = 2 * time.Minute
)

// Options configure a Relay. Zero durations mean their defaults.
type Options struct {
	// Connect bounds name lookup, connection and TLS handshake, each by itself. Defaults to 5 s.
	Connect time.Duration
	// FirstByte bounds the wait for the first byte of a stream's body. Defaults to 60 s.
	FirstByte time.Duration
	// Answer bounds the wait for the first byte of an answer that is no stream, which comes only when everything was
	// generated. Defaults to 10 minutes, as long as the SDKs wait.
	Answer time.Duration
	// Idle bounds the silence between two pieces of an answer, and how long a client may leave what was sent to it unread.
	// Defaults to 2 minutes.
	Idle time.Duration
	// TLS says whom to trust. Defaults to the system's roots.
	TLS *tls.Config
	// Now is the clock that latencies are read from. Required.
	Now func() time.Time
}

// Relay makes calls. It is safe for concurrent use.
type Relay struct {
	o        Options
	local    *http.Transport
	provider *http.Transport
}

// New returns a Relay with connections of its own.
func New(o Options) *Relay {
	for _, d := range []struct {
		value    *time.Duration
		fallback time.Duration
	}{{&o.Connect, DefaultConnect}, {&o.FirstByte, DefaultFirstByte}, {&o.Answer, DefaultAnswer}, {&o.Idle, DefaultIdle}} {
		if *d.value <= 0 {
			*d.value = d.fallback
		}
	}
	return &Relay{o: o, local: newTransport(&o, true), provider: newTransport(&o, false)}
}

// Close closes the connections that are not in use.
func (r *Relay) Close() {
	r.local.CloseIdleConnections()
	r.provider.CloseIdleConnections()
}

// Meter reads an answer in passing. The hooks of a Call may ask it; they run on the goroutine that feeds it.
type Meter interface {
	Write(piece []byte) ([]byte, error)
	Finish() ([]byte, wire.Result)
	OutputBytes() int64
	Terminal() bool
	Usage() (wire.Usage, wire.Fields)
	Result() wire.Result
}

// Call is one call. Its hooks may be nil; they run on the caller's goroutine, and whatever they take delays the answer.
type Call struct {
	Operation wire.Operation
	Stream    bool        // the client asked for a stream
	HideUsage bool        // the usage in the stream was not asked for by the client: wire.Request.NeedsUsage
	Apart     bool        // the upstream counts reasoning beside the output
	RequestID string      // named in the errors that are written into a stream
	URL       string      // absolute
	Header    http.Header // complete, see Outgoing; only its Dialect changes it
	Body      []byte      // its bytes are not changed, and not read after Do has returned
	Local     bool        // one of the operator's own servers rather than a provider

	// Dialect is what differs at an upstream that speaks the format inside a protocol of its own. nil: nothing.
	Dialect Dialect

	FirstByte, Answer, Idle time.Duration // instead of the Relay's, when not 0

	// Guard is asked when a connection is there and nothing was sent yet, and again before each piece that is sent; false ends the
	// call as Barred. It is asked from other goroutines, too.
	Guard func() bool
	// Commit is called once, right before the first byte goes to the client, with the headers that will leave: the place to
	// add to them.
	Commit func(status int, h http.Header)
	// Progress is called whenever events of a stream have been forwarded and before the end: cheap and often.
	Progress func(Meter)
	// Ending is called at most once, with the Result that Do will return, right before the last bytes go to the client. It is
	// not called when Do writes nothing or the client is gone, so whoever settles there settles again, to no effect, after Do.
	Ending func(*Result)
}

// Dialect makes calls and answers of a protocol of its own out of those of a wire format, and the other way round. Both run on the caller's
// goroutine.
type Dialect interface {
	// Prepare changes URL, headers and body of a call that is about to be sent. An error ends the call: nothing is sent.
	Prepare(c *Call, now time.Time) error
	// Response makes an answer one of the wire format, in place.
	Response(r *http.Response)
}

// Do makes the call, and writes the answer to w if it is a success (2xx). A call that fails before that leaves w untouched,
// so that the caller may try elsewhere, answer itself or forward Result.Answer. A stream that fails later is ended with an
// error event in the SDK's shape; any other answer that breaks off sets Result.Truncated.
//
// When ctx ends the upstream call is cancelled at once. A plain cancellation is taken for the client having left; one with
// a cause of its own is the gateway's and still ends a stream with an error event.
func (r *Relay) Do(ctx context.Context, w http.ResponseWriter, c *Call) *Result {
	x := &exchange{call: c, w: w, client: ctx, now: r.o.Now, idle: or(c.Idle, r.o.Idle), result: &Result{}}
	x.start = x.now()
	first := or(c.FirstByte, r.o.FirstByte)
	if !c.Stream {
		first = or(c.Answer, r.o.Answer)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	x.ctx, x.cancel = ctx, cancel
	x.control = http.NewResponseController(w)
	x.timer = time.AfterFunc(first, x.expire)
	defer x.timer.Stop()

	transport := r.provider
	if c.Local {
		transport = r.local
	}
	response, err := x.send(transport)
	if err != nil {
		x.unanswered(err)
		return x.done()
	}
	if c.Dialect != nil {
		c.Dialect.Response(response)
	}
	defer func() { _ = response.Body.Close() }() // what is left of it is of no use
	x.result.Dispatched = events.DispatchedYes
	x.result.Status = response.StatusCode
	x.result.UpstreamID = upstreamID(response.Header)
	switch {
	case response.StatusCode >= 400:
		x.keep(response)
	case response.StatusCode < 200 || response.StatusCode >= 300:
		x.fail(BadAnswer, fmt.Errorf("calling the upstream: it answered with status %d, which is not followed", response.StatusCode))
	default:
		x.pass(response)
	}
	return x.done()
}

func or(d, fallback time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return fallback
}

var (
	errSilent = errors.New("the upstream was silent for too long")
	errBarred = errors.New("the call was no longer allowed when it was about to be sent")
)

// exchange is one call under way.
type exchange struct {
	call   *Call
	w      http.ResponseWriter
	client context.Context // the caller's
	ctx    context.Context // the upstream call's
	cancel context.CancelCauseFunc
	timer  *time.Timer
	idle   time.Duration
	now    func() time.Time
	start  time.Time
	trace  trace
	meter  Meter
	result *Result

	control  *http.ResponseController
	writing  atomic.Bool // a write to the client is under way
	began    bool        // a byte of the answer's body came
	ended    bool        // Ending's moment has passed
	sequence int64       // events that were forwarded
}

// expire runs when the timer does: the upstream was silent, or the client did not read, for too long.
func (x *exchange) expire() {
	x.cancel(errSilent)
	if x.writing.Load() {
		_ = x.control.SetWriteDeadline(longAgo) // a writer without deadlines has bounds of its own
	}
}

var longAgo = time.Unix(1, 0)

// send sends the request and waits for the answer's headers.
func (x *exchange) send(transport *http.Transport) (*http.Response, error) {
	c := x.call
	if c.Dialect != nil {
		if err := c.Dialect.Prepare(c, x.start); err != nil {
			return nil, err
		}
	}
	x.trace.guard, x.trace.bar = c.Guard, func() { x.cancel(errBarred) }
	ctx := httptrace.WithClientTrace(x.ctx, x.trace.hooks())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, http.NoBody)
	if err != nil {
		return nil, err
	}
	if req.ContentLength = int64(len(c.Body)); len(c.Body) > 0 {
		req.GetBody = x.trace.body(c.Body, req.URL.Scheme == "https")
		req.Body, _ = req.GetBody() // in memory: it cannot fail
	}
	defer x.trace.leave()
	if c.Header != nil {
		req.Header = c.Header
	}
	return transport.RoundTrip(req) // no http.Client: redirects are not followed and no cookies kept
}

// unanswered classifies a call without an answer.
func (x *exchange) unanswered(err error) {
	x.result.Dispatched = x.trace.dispatched()
	switch kind := x.interrupted(); {
	case kind != Completed:
		x.fail(kind, fmt.Errorf("calling the upstream: %w", context.Cause(x.ctx)))
	case x.result.Dispatched == events.DispatchedNo:
		x.fail(Unreachable, fmt.Errorf("connecting to the upstream: %w", err))
	default:
		x.fail(Broken, fmt.Errorf("waiting for the upstream's answer: %w", err))
	}
}

// interrupted says why the upstream call's context ended; Completed when it has not.
func (x *exchange) interrupted() Kind {
	cause := context.Cause(x.ctx)
	switch {
	case cause == nil:
		return Completed
	case cause == errSilent && x.began:
		return IdleTimeout
	case cause == errSilent:
		return FirstByteTimeout
	case cause == errBarred:
		return Barred
	case cause == context.Canceled: //nolint:errorlint // a wrapped one is somebody's own cause
		return ClientGone
	}
	return Stopped
}

func (x *exchange) fail(kind Kind, err error) {
	x.result.Kind, x.result.Fault = kind, err
}

// done completes the result. What Ending was given stays as it was.
func (x *exchange) done() *Result {
	if !x.ended {
		x.result.Latency = x.now().Sub(x.start)
	}
	return x.result
}

// pass forwards a success.
func (x *exchange) pass(response *http.Response) {
	stream := isStream(response.Header, x.call.Stream)
	x.meter = newMeter(x.call, stream)
	if stream {
		x.stream(response)
		return
	}
	x.whole(response)
}

func newMeter(c *Call, stream bool) Meter {
	if c.Operation.Format() == wire.Anthropic {
		return anthropic.NewMeter(anthropic.Options{Operation: c.Operation, Stream: stream})
	}
	return openai.NewMeter(openai.Options{Operation: c.Operation, Stream: stream, HideUsage: c.HideUsage, ReasoningApart: c.Apart})
}

// keep reads an error answer whole, without forwarding it.
func (x *exchange) keep(response *http.Response) {
	x.result.RetryAfter = RetryAfter(response.Header, x.now())
	x.fail(UpstreamStatus, fmt.Errorf("calling the upstream: it answered with status %d", response.StatusCode))
	body, err := io.ReadAll(io.LimitReader(response.Body, maxKept+1))
	if err != nil || len(body) > maxKept {
		return // half an error helps nobody: the caller answers with the status alone
	}
	x.result.Answer = &Answer{Status: response.StatusCode, Header: kept(response.Header), Body: body}
}
