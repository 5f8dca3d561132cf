package provider

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/gateway/wire/scan"
)

// words are the tokens of every text: four bytes each, nothing to escape.
var words = [...]string{"The ", "weir", " at ", "dawn", " is ", "calm", " and", " low", " lit", " by ", "the ", "sun."}

// answer is one call being answered.
type answer struct {
	server  *Server
	op      wire.Operation
	script  Script
	request request
	w       http.ResponseWriter
	ctx     context.Context
	id      int64
	call    *Call

	input  int64
	tokens int    // visible tokens of each choice
	think  int    // reasoning tokens of each choice
	short  bool   // the limit ended it
	sent   int64  // output tokens so far
	status int    // that was sent
	model  []byte // as a JSON string

	buf    []byte // not written yet
	events int
	broke  bool // nothing more can be sent
}

// plan decides what the answer holds before anything is sent.
func (a *answer) plan() {
	a.input = int64((a.request.size + 3) / 4)
	if a.script.Input > 0 {
		a.input = int64(a.script.Input)
	}
	a.model = scan.AppendString(nil, a.request.model)
	if !a.op.Generates() {
		return
	}
	a.tokens, a.think = a.script.Tokens, a.script.Reasoning
	if limit := int(a.request.limit); limit > 0 && a.tokens+a.think > limit {
		a.short = true
		a.think = min(a.think, limit)
		a.tokens = limit - a.think
	}
}

// perChoice is how many output tokens each choice uses.
func (a *answer) perChoice() int64 { return int64(a.tokens + a.think) }

// output is how many output tokens the whole answer uses.
func (a *answer) output() int64 { return a.perChoice() * a.copies() }

func (a *answer) copies() int64 { return a.request.choices * a.request.prompts }

func (a *answer) end(how Outcome) {
	a.server.ledger.end(a.call, how, a.status, a.sent)
}

func (a *answer) run() {
	s := &a.script
	if s.Delay > 0 && !a.wait(s.Delay) {
		return
	}
	switch {
	case s.Abort:
		a.end(Broken)
		panic(http.ErrAbortHandler)
	case s.Hang && s.HangAfter == 0:
		<-a.ctx.Done()
		return
	case s.Status != 0:
		a.status = s.Status
		a.end(Failed)
		if s.RetryAfter > 0 {
			a.w.Header().Set("Retry-After", seconds(s.RetryAfter))
		}
		fail(a.w, a.op.Format(), s.Status, "the script says so")
		return
	}
	if a.request.stream && a.op.Streams() {
		a.stream()
		return
	}
	a.buf = make([]byte, 0, 512+6*int(a.output()))
	a.body()
	a.sent = a.output()
	a.send()
}

// send writes a whole answer that is no stream.
func (a *answer) send() {
	h := a.w.Header()
	h["Content-Type"] = jsonType
	h["Content-Length"] = []string{strconv.Itoa(len(a.buf))}
	a.status = http.StatusOK
	if a.script.Cut && a.script.CutAfter < len(a.buf) {
		a.end(Broken)
		_, _ = a.w.Write(a.buf[:a.script.CutAfter])
		_ = http.NewResponseController(a.w).Flush()
		panic(http.ErrAbortHandler)
	}
	a.end(Completed)
	_, _ = a.w.Write(a.buf) // the client may have left
}

// wait reports false when the client left in the meantime.
func (a *answer) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-a.ctx.Done():
		return false
	}
}

var streamType = []string{"text/event-stream; charset=utf-8"}

// stream sends the events of the operation.
func (a *answer) stream() {
	h := a.w.Header()
	h["Content-Type"] = streamType
	h["Cache-Control"] = []string{"no-cache"}
	a.status = http.StatusOK
	a.buf = make([]byte, 0, 4096)
	switch a.op {
	case wire.Messages:
		a.messageEvents()
	case wire.Responses:
		a.responseEvents()
	default:
		a.chunks()
	}
	if a.broke {
		return
	}
	a.end(Completed)
	_, _ = a.w.Write(a.buf) // the client may have left
}

// flushAt is how much is collected before it is written, when nothing asks for single events.
const flushAt = 32 << 10

// event appends one event, name and data, and does what the script has at this place. It reports false when the stream
// is over.
func (a *answer) event(name string, data ...[]byte) bool {
	if a.broke {
		return false
	}
	s := &a.script
	if s.Error && a.events == s.ErrorAfter {
		a.errorEvent()
		return false
	}
	if s.Hang && a.events == s.HangAfter {
		a.flush()
		<-a.ctx.Done()
		a.broke = true
		return false
	}
	start := len(a.buf)
	a.append(name, data)
	if s.Cut && a.events == s.CutAfter {
		a.buf = a.buf[:start+(len(a.buf)-start)/2]
		a.end(Broken)
		a.flush()
		panic(http.ErrAbortHandler)
	}
	a.events++
	if s.Gap > 0 {
		a.flush()
		if !a.wait(s.Gap) {
			a.broke = true
			return false
		}
	} else if len(a.buf) > flushAt {
		a.flush()
	}
	return true
}

// last appends the event that ends the stream. It is sent when the call has been marked as ended.
func (a *answer) last(name string, data ...[]byte) {
	if a.broke {
		return
	}
	s := &a.script
	if s.Error && a.events <= s.ErrorAfter || s.Hang && a.events <= s.HangAfter || s.Cut && a.events <= s.CutAfter {
		s.ErrorAfter, s.HangAfter, s.CutAfter = min(s.ErrorAfter, a.events), min(s.HangAfter, a.events), min(s.CutAfter, a.events)
		a.event(name, data...)
		return
	}
	a.append(name, data)
}

func (a *answer) append(name string, data [][]byte) {
	end := "\n"
	if a.script.CRLF {
		end = "\r\n"
	}
	if a.script.Comments && a.events%3 == 0 {
		a.buf = append(append(a.buf, ": keep-alive"...), end+end...)
	}
	if name != "" {
		a.buf = append(append(append(a.buf, "event: "...), name...), end...)
	}
	a.buf = append(a.buf, "data: "...)
	for _, d := range data {
		a.buf = append(a.buf, d...)
	}
	a.buf = append(append(a.buf, end...), end...)
}

func (a *answer) errorEvent() {
	a.broke = true
	const message = "the script says so"
	switch a.op {
	case wire.Messages:
		a.append("error", [][]byte{errorBody(wire.Anthropic, 529, message)})
	case wire.Responses:
		a.append("error", [][]byte{[]byte(`{"type":"error","code":"server_error","message":"` + message + `","param":null,"sequence_number":`),
			strconv.AppendInt(nil, int64(a.events), 10), []byte("}")})
	default:
		a.append("", [][]byte{errorBody(wire.OpenAI, 500, message)})
	}
	a.end(Failed)
	a.flush()
}

func (a *answer) flush() {
	if _, err := a.w.Write(a.buf); err == nil { // a client that left shows in the context
		_ = http.NewResponseController(a.w).Flush()
	}
	a.buf = a.buf[:0]
}

func errorBody(f wire.Format, status int, message string) []byte {
	kind := "invalid_request_error"
	switch {
	case status == http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case status == 529:
		kind = "overloaded_error"
	case status >= 500 && f == wire.Anthropic:
		kind = "api_error"
	case status >= 500:
		kind = "server_error"
	}
	text := scan.AppendString(nil, message)
	if f == wire.Anthropic {
		return []byte(`{"type":"error","error":{"type":"` + kind + `","message":` + string(text) + `},"request_id":"req_provider"}`)
	}
	return []byte(`{"error":{"message":` + string(text) + `,"type":"` + kind + `","param":null,"code":null}}`)
}
