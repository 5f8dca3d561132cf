package relay

import (
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/wire"
)

// Kind says how a call ended.
type Kind uint8

// How a call can end.
const (
	// Completed: the whole answer passed.
	Completed Kind = iota
	// UpstreamStatus: the upstream answered with an error; Result.Answer holds it. Nothing was written.
	UpstreamStatus
	// Unreachable: no connection, and nothing was sent: refused, not resolved, TLS failed, time-out on the way.
	Unreachable
	// Broken: the connection broke before an answer began; the upstream may have the request. Nothing was written.
	Broken
	// Barred: Guard said no. Nothing was written.
	Barred
	// FirstByteTimeout: no answer began in time. Nothing was written: 504.
	FirstByteTimeout
	// IdleTimeout: an answer began and fell silent.
	IdleTimeout
	// Cut: the upstream ended its answer before its end.
	Cut
	// StreamError: the upstream reported an error inside the stream; it was forwarded.
	StreamError
	// TooLarge: an event was larger than can be read.
	TooLarge
	// BadAnswer: the upstream answered with something that is no answer, such as a redirect. Nothing was written.
	BadAnswer
	// ClientGone: the client left, or did not read what was sent.
	ClientGone
	// Stopped: the gateway itself ended the call, through the cause of the context.
	Stopped
)

var kindNames = [...]string{"completed", "upstream_status", "unreachable", "broken", "barred", "first_byte_timeout", "idle_timeout",
	"cut", "stream_error", "too_large", "bad_answer", "client_gone", "stopped"}

// String is the name for logs and metrics.
func (k Kind) String() string { return kindNames[k] }

// Result is how a call went. The embedded result of the meter holds usage, its quality, finish reason and in-stream error.
type Result struct {
	wire.Result

	Kind Kind
	// Status is the upstream's; 0 when it sent none.
	Status int
	// Dispatched is no only if proven: no connection was made for the call (lookup, connect or TLS handshake failed or was
	// not finished), or the connection failed, or the call was ended, before one byte of the request was handed to the
	// operating system. It is yes once any answer came, and unknown otherwise: also over HTTP/2, whose connections are
	// shared, as soon as there was a connection.
	Dispatched events.Dispatched
	// Started says that something of the answer went to the client: no other attempt can be made.
	Started bool
	// Truncated says that a response which is no stream broke off. The caller has to abort the client's connection
	// (panic with http.ErrAbortHandler) when it has settled, or the client would take the part for the whole.
	Truncated bool
	// TTFT is the time to the first output of a stream; 0 when there was none.
	TTFT time.Duration
	// Latency is the time from Do to the end of the answer.
	Latency time.Duration
	// RetryAfter is what an error answer asked for, at most MaxRetryAfter; 0 when it asked for nothing.
	RetryAfter time.Duration
	// UpstreamID is the upstream's id of the request; "" when it gave none.
	UpstreamID string
	// Answer is the upstream's error answer; nil when there was none, or it was too large or broken.
	Answer *Answer
	// Fault says what went wrong; nil when the call completed. Its text holds no part of a prompt or an answer.
	Fault error
}

// Outcome is the word for the release of the attempt.
func (r *Result) Outcome() events.Outcome {
	switch {
	case r.Kind == Completed:
		return events.Completed
	case r.Dispatched == events.DispatchedNo:
		return events.NotDispatched
	}
	switch r.Kind {
	case FirstByteTimeout, IdleTimeout:
		return events.TimedOut
	case ClientGone, Stopped:
		return events.Cancelled
	}
	return events.Failed
}

// Retryable says whether another upstream may be tried: nothing has reached the client, it is still there, and the failure
// says nothing about the request itself.
func (r *Result) Retryable() bool {
	if r.Started {
		return false
	}
	switch r.Kind {
	case Unreachable, Broken, FirstByteTimeout, IdleTimeout, Cut, BadAnswer:
		return true
	case UpstreamStatus:
		return r.Status == 408 || r.Status == 429 || r.Status >= 500
	}
	return false
}
