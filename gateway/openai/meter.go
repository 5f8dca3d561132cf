// Package openai knows the answers, streams, errors and lists of the OpenAI wire format, and of the servers that speak it:
// what to read in passing, and what to leave out.
package openai

import (
	"github.com/weirhq/weir/gateway/estimate"
	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/gateway/wire/scan"
	"github.com/weirhq/weir/gateway/wire/sse"
)

// Options say how one response is to be read.
type Options struct {
	Operation      wire.Operation
	Stream         bool // the response is a stream of server-sent events
	HideUsage      bool // the client did not ask for the usage in its stream: wire.Request.NeedsUsage
	ReasoningApart bool // the provider counts reasoning beside the output instead of in it
}

// Meter reads one response in passing. It is fed the bytes as they arrive and says which to forward. It belongs to one
// goroutine.
type Meter struct {
	o    Options
	sse  sse.Stream
	body scan.Keeper

	usage     usage
	bytes     int64
	finish    string
	final     bool
	terminal  bool
	malformed int
	cut       bool
	err       *wire.StreamError
	done      bool
}

// NewMeter returns a meter for one response.
func NewMeter(o Options) *Meter {
	m := &Meter{o: o}
	m.body.Max = sse.MaxEvent
	if o.Operation == wire.Embeddings || o.Operation == wire.Rerank {
		m.body.Drop = bulk
	}
	return m
}

// bulk names what of an embeddings or rerank answer is not looked at.
func bulk(key []byte) bool {
	switch string(key) {
	case "data", "results", "embeddings":
		return true
	}
	return false
}

// Write takes the next bytes of the response and returns those to forward now: of a stream whole events only, edited in
// place. They are valid until the next call. The only error is sse.ErrTooLarge.
func (m *Meter) Write(piece []byte) ([]byte, error) {
	if m.o.Stream {
		return m.sse.Write(piece, (*events)(m))
	}
	m.body.Write(piece)
	return piece, nil
}

// Finish is called once, when the response has ended or was cut. It returns the last bytes to forward, if any, and what
// the response said.
func (m *Meter) Finish() ([]byte, wire.Result) {
	if m.done {
		return nil, m.Result()
	}
	m.done = true
	if !m.o.Stream {
		m.readBody()
		return nil, m.Result()
	}
	malformed := m.malformed
	rest, cut := m.sse.Finish((*events)(m))
	if m.cut = cut; cut {
		m.malformed = malformed // an unfinished event is not a wrong one
	}
	return rest, m.Result()
}

// OutputBytes is the text, reasoning and tool arguments that have streamed so far, in UTF-8 bytes.
func (m *Meter) OutputBytes() int64 { return m.bytes }

// Terminal says that the event which ends a complete stream came.
func (m *Meter) Terminal() bool { return m.terminal }

// Usage is what was reported so far; explicit says which fields were.
func (m *Meter) Usage() (u wire.Usage, explicit wire.Fields) { return m.usage.merged(m.o) }

// Result says what is known so far; after Finish it is complete.
func (m *Meter) Result() wire.Result {
	r := wire.Result{FinishReason: m.finish, OutputBytes: m.bytes, Terminal: m.terminal, Cut: m.cut, Malformed: m.malformed, Err: m.err}
	r.Usage, r.Explicit = m.usage.merged(m.o)
	needs := wire.FieldInput
	if m.o.Operation.Generates() {
		needs |= wire.FieldOutput
	}
	r.Grade(m.final, needs, estimate.Streamed(m.bytes))
	return r
}

// readBody reads an answer that is no stream.
func (m *Meter) readBody() {
	kept := m.body.Kept()
	if len(kept) == 0 {
		return
	}
	var e event
	ok := e.read(kept, m.o.Operation)
	m.apply(&e)
	if m.o.Operation.Generates() {
		m.bytes += m.body.Dropped()
	}
	if !ok {
		m.malformed++
		m.final = false
		if m.bytes == 0 && m.o.Operation.Generates() { // cut short: all there is to estimate from
			m.bytes = int64(len(kept))
		}
		return
	}
	m.final = e.hasUsage
	m.terminal = true
}

// apply merges what one event or body said.
func (m *Meter) apply(e *event) {
	m.usage.merge(&e.usage)
	m.bytes += e.bytes
	m.bytes = max(m.bytes, e.whole)
	if len(e.finish) > 0 && m.finish != string(e.finish) {
		m.finish = string(e.finish)
	}
	if e.failed {
		m.err = e.fault()
	}
}

// events is the Meter as the stream's handler.
type events Meter

// doneMark is the data of the event that ends a stream.
const doneMark = "[DONE]"

// Event reads one event of a stream.
func (h *events) Event(_, data []byte) sse.Edit {
	m := (*Meter)(h)
	if string(data) == doneMark {
		m.terminal = true
		return sse.Edit{}
	}
	if len(data) == 0 {
		return sse.Edit{}
	}
	var e event
	if !e.read(data, m.o.Operation) {
		m.malformed++
		return sse.Edit{Bad: true}
	}
	m.apply(&e)
	if e.terminal {
		m.terminal = true
	}
	if e.hasUsage && (e.choices == 0 || m.finish != "" || e.terminal) {
		m.final = true
	}
	if !m.o.HideUsage {
		return sse.Edit{}
	}
	if e.hasUsage && e.choices == 0 && !e.failed {
		return sse.Edit{Drop: true}
	}
	return sse.Edit{From: e.told.from, To: e.told.to}
}
