package relay

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/weirhq/weir/gateway/anthropic"
	"github.com/weirhq/weir/gateway/openai"
	"github.com/weirhq/weir/gateway/wire"
)

const (
	// pieceSize is how much of an answer is read at once. An answer that is no stream and not larger is forwarded only
	// when it is whole.
	pieceSize = 32 << 10
	// lingerAfterEnd is how long an upstream may keep a stream open behind its last event.
	lingerAfterEnd = time.Second
)

var pieces = sync.Pool{New: func() any { return new([pieceSize]byte) }}

// stream forwards the events of a stream as they come.
func (x *exchange) stream(response *http.Response) {
	room := pieces.Get().(*[pieceSize]byte)
	defer pieces.Put(room)
	for {
		n, err := response.Body.Read(room[:])
		if n > 0 {
			x.began = true
			out, bad := x.meter.Write(room[:n])
			if !x.events(response, out) {
				return
			}
			if bad != nil {
				x.breakOff(response, TooLarge, bad)
				return
			}
			x.timer.Reset(x.patience())
		}
		if err != nil {
			x.endStream(response, err)
			return
		}
	}
}

// patience is how long the upstream may be silent now.
func (x *exchange) patience() time.Duration {
	if x.ended {
		return min(lingerAfterEnd, x.idle)
	}
	return x.idle
}

// events forwards whole events. It reports false when the client is gone.
func (x *exchange) events(response *http.Response, out []byte) bool {
	if len(out) == 0 {
		return true
	}
	if !x.result.Started {
		h := x.w.Header()
		h["Cache-Control"] = []string{"no-cache"}
		h["X-Accel-Buffering"] = []string{"no"} // proxies on the way would collect the events
		x.commit(response, -1)
	}
	if x.result.TTFT == 0 && x.meter.OutputBytes() > 0 {
		x.result.TTFT = max(x.now().Sub(x.start), 1)
	}
	if x.call.Operation == wire.Responses {
		x.sequence += int64(bytes.Count(out, []byte("\n\n")))
	}
	if !x.ended && x.meter.Terminal() {
		x.end(x.meter.Result())
	}
	if !x.write(out, true) {
		return false
	}
	if !x.ended && x.call.Progress != nil {
		x.call.Progress(x.meter)
	}
	return true
}

// endStream settles how a stream ended: err is what reading it returned.
func (x *exchange) endStream(response *http.Response, err error) {
	if x.ended {
		return // everything that counts has passed
	}
	if kind := x.interrupted(); err != io.EOF && kind != Completed {
		x.breakOff(response, kind, err)
		return
	}
	rest, read := x.meter.Finish()
	switch {
	case read.Err != nil:
		x.fail(StreamError, fmt.Errorf("reading the stream: the upstream reported an error (%s %s)", read.Err.Type, read.Err.Code))
	case err == io.EOF && !read.Cut && (read.Terminal || read.FinishReason != ""):
	default:
		x.breakOff(response, Cut, err)
		return
	}
	x.finishRest(response, rest, read)
}

func (x *exchange) finishRest(response *http.Response, rest []byte, read wire.Result) {
	if len(rest) > 0 && !x.result.Started {
		x.commit(response, -1)
	}
	x.end(read)
	if len(rest) > 0 {
		x.write(rest, true)
	}
}

// breakOff ends a stream before its end: with an error event, when the client has got something and is still there.
func (x *exchange) breakOff(response *http.Response, kind Kind, err error) {
	if x.ended {
		return
	}
	_, read := x.meter.Finish()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	x.fail(kind, fmt.Errorf("reading the stream: %w", err))
	x.result.Result = read
	if !x.result.Started || kind == ClientGone {
		return
	}
	x.end(read)
	x.write(x.faultEvent(), true)
}

// whole forwards an answer that is no stream. The last piece is held back until it is known to be the last.
func (x *exchange) whole(response *http.Response) {
	a, b := pieces.Get().(*[pieceSize]byte), pieces.Get().(*[pieceSize]byte)
	defer func() { pieces.Put(a); pieces.Put(b) }()
	held := a[:0]
	next := b
	for {
		into := held[len(held):pieceSize]
		if len(into) == 0 {
			into = next[:]
		}
		n, err := response.Body.Read(into)
		if n > 0 {
			x.began = true
			_, _ = x.meter.Write(into[:n]) // no error outside a stream, and the piece itself is to be forwarded
		}
		switch {
		case len(held) < pieceSize:
			held = held[:len(held)+n]
		case n > 0:
			if !x.part(response, held) {
				return
			}
			held, next = into[:n], (*[pieceSize]byte)(held[:pieceSize])
		}
		if err != nil {
			x.endWhole(response, held, err)
			return
		}
		x.timer.Reset(x.idle)
	}
}

// part forwards a piece that is not the last.
func (x *exchange) part(response *http.Response, piece []byte) bool {
	if !x.result.Started {
		x.commit(response, response.ContentLength)
	}
	return x.write(piece, false)
}

func (x *exchange) endWhole(response *http.Response, held []byte, err error) {
	_, read := x.meter.Finish()
	if err != io.EOF {
		kind := x.interrupted()
		if kind == Completed {
			kind = Cut
		}
		x.fail(kind, fmt.Errorf("reading the answer: %w", err))
		x.result.Result = read
		x.result.Truncated = x.result.Started
		return
	}
	if !x.result.Started {
		x.commit(response, int64(len(held)))
	}
	x.end(read)
	x.write(held, false)
}

// commit sends the headers. length is -1 when it is not known.
func (x *exchange) commit(response *http.Response, length int64) {
	h := x.w.Header()
	forward(h, response.Header)
	if length >= 0 {
		h["Content-Length"] = []string{strconv.FormatInt(length, 10)}
	}
	if x.call.Commit != nil {
		x.call.Commit(response.StatusCode, h)
	}
	x.w.WriteHeader(response.StatusCode)
	x.result.Started = true
}

// end completes the result and lets the caller settle before the last bytes leave.
func (x *exchange) end(read wire.Result) {
	x.result.Result = read
	x.result.Latency = x.now().Sub(x.start)
	x.ended = true
	if x.call.Ending != nil {
		x.call.Ending(x.result)
	}
}

// write writes to the client, which has the idle time to read it. It reports false when the client is gone.
func (x *exchange) write(b []byte, flush bool) bool {
	x.timer.Reset(x.idle)
	x.writing.Store(true)
	_, err := x.w.Write(b)
	if err == nil && flush {
		err = x.control.Flush()
	}
	x.writing.Store(false)
	if err == nil {
		return true
	}
	if !x.ended {
		_, read := x.meter.Finish()
		x.result.Result = read
		x.fail(ClientGone, fmt.Errorf("writing to the client: %w", err))
	}
	return false
}

// faultEvent is the error that ends a stream, in the SDK's shape.
func (x *exchange) faultEvent() []byte {
	status, code, message := 502, "backend_error", "the upstream ended its answer before its end"
	switch x.result.Kind {
	case IdleTimeout, FirstByteTimeout:
		status, code, message = 504, "request_timeout", "the upstream sent nothing for "+x.idle.String()
	case TooLarge:
		message = "the upstream sent an event that is too large"
	case Stopped:
		status, code, message = 503, "gateway_infrastructure", "the gateway had to end this answer"
	}
	meta := &wire.Metadata{Origin: "upstream", LimitScope: "model", Retryable: true}
	if x.result.Kind == Stopped {
		meta = &wire.Metadata{Origin: "gateway_infrastructure", Retryable: true}
	}
	if x.call.Operation.Format() == wire.Anthropic {
		return anthropic.ErrorEvent(anthropic.Error{Message: message, Code: code, Status: status, RequestID: x.call.RequestID, Metadata: meta})
	}
	return openai.ErrorEvent(x.call.Operation, openai.Error{Message: message, Code: code, Status: status, Metadata: meta}, x.sequence)
}
