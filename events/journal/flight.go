package journal

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
)

// flight is a message on its way: made once, sent under one id until it is acknowledged.
type flight struct {
	n         uint64 // its number at this publisher
	id        string // Nats-Msg-Id
	msg       *nats.Msg
	items     []item
	pack      bool
	renews    bool      // holds a lease or a reserve
	since     time.Time // when its oldest event was submitted
	after     uint64    // the highest sequence seen before it was first sent
	sent      time.Time // when the oldest copy that may be in the log was sent
	began     time.Time // the same, or when it was last looked for in vain
	again     time.Time // when to send it again
	sends     int       // how often it left
	rejects   int       // how many of those were surely refused
	tries     int       // sends that failed in a row, for the pause
	searching bool
}

// maybe says whether a copy may be in the log.
func (f *flight) maybe() bool { return f.sends > f.rejects }

// end appends the endings of the events that are not over yet.
func (f *flight) end(over []ending, seq uint64, err error) []ending {
	for i := range f.items {
		if it := &f.items[i]; !it.over {
			it.over = true
			over = append(over, ending{it.done, seq, err})
		}
	}
	return over
}

// send makes a message of a batch whose place is taken, and sends it. A batch that turns out too large is sent in halves.
func (p *Publisher) send(batch []item) {
	f := p.flight(batch)
	if len(f.msg.Data) > maxMessage {
		p.tooLarge(batch)
		return
	}
	now := p.now()
	p.mu.Lock()
	if p.closed {
		p.finish(f.end(nil, 0, &failure{err: ErrClosed}))
		return
	}
	f.after, f.msg.Reply = p.last, p.reply(f.n)
	p.flights[f.n] = f
	p.leaves(f, now)
	p.mu.Unlock()
	p.post(f)
}

// flight makes the message of a batch.
func (p *Publisher) flight(batch []item) *flight {
	p.mu.Lock()
	p.counter++
	f := &flight{n: p.counter, items: batch, since: batch[0].since}
	p.mu.Unlock()
	for i := range batch {
		if c := classOf(batch[i].event.Data.Kind()); c == classLease || c == classReserve {
			f.renews = true
		}
		if batch[i].since.Before(f.since) {
			f.since = batch[i].since
		}
	}
	if len(batch) == 1 {
		f.id, f.msg = batch[0].event.ID, encode(&batch[0].event, p.gateway)
		return f
	}
	evs := make([]events.Event, len(batch))
	for i := range batch {
		evs[i] = batch[i].event
	}
	f.pack, f.id = true, p.packs+strconv.FormatUint(f.n, 10)
	f.msg = encodePack(evs, p.gateway, f.id)
	return f
}

// tooLarge sends a batch in halves, or ends the one event that no message can hold.
func (p *Publisher) tooLarge(batch []item) {
	if len(batch) > 1 {
		p.mu.Lock()
		p.slots++
		p.mu.Unlock()
		p.send(batch[: len(batch)/2 : len(batch)/2])
		p.send(batch[len(batch)/2:])
		return
	}
	err := fmt.Errorf("publish event %s: larger than %d bytes", batch[0].event.ID, maxMessage)
	p.mu.Lock()
	p.slots--
	p.stats.Refused++
	p.finish([]ending{{batch[0].done, 0, &failure{err: err}}})
}

// leaves notes that a message is about to be sent. The lock is held.
func (p *Publisher) leaves(f *flight, now time.Time) {
	if !f.maybe() { // no copy that left before can be in the log
		f.began, f.sent = now, now
	}
	if f.sends > 0 {
		p.stats.Retries++
	}
	f.sends++
	f.again = now.Add(min(ackFor<<min(f.tries, 4), ackMost))
	p.watch()
}

// post sends a message. While the connection is away nothing leaves: it would be kept and sent after the deadline.
func (p *Publisher) post(f *flight) {
	err := nats.ErrConnectionReconnecting
	if p.log.nc.Status() == nats.CONNECTED {
		err = p.log.nc.PublishMsg(f.msg)
	}
	if err == nil {
		return
	}
	now := p.now()
	p.mu.Lock()
	f.rejects++
	f.later(now)
	p.mu.Unlock()
}

// later puts off the next send. The lock is held.
func (f *flight) later(now time.Time) {
	f.again = now.Add(min(pauseFor<<min(f.tries, 8), pauseMost))
	f.tries++
}

// advance sends what may leave now. All says whether what waits for company goes too.
func (p *Publisher) advance(all bool) {
	for {
		p.mu.Lock()
		var batch []item
		if p.open() && (all || p.outbox.reserves() > 0) {
			batch = p.take()
		}
		p.mu.Unlock()
		if batch == nil {
			return
		}
		p.send(batch)
	}
}

// answers takes in an answer and those that came with it, lets the next messages leave, then tells who waited.
func (p *Publisher) answers(m *nats.Msg, more <-chan *nats.Msg) {
	now := p.now()
	var over []ending
	p.mu.Lock()
	busy := p.slots >= MaxInFlight
	for range ackChannel {
		over = p.answer(m, now, over)
		select {
		case m = <-more:
			continue
		default:
		}
		break
	}
	var batch []item
	if p.open() && (busy || p.outbox.reserves() > 0) {
		batch = p.take()
	}
	if batch != nil {
		p.mu.Unlock()
		p.send(batch)
		p.advance(busy)
		p.mu.Lock()
	}
	p.finish(over)
}

// answer takes in one answer. The lock is held.
func (p *Publisher) answer(m *nats.Msg, now time.Time, over []ending) []ending {
	n, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, p.prefix), 36, 64)
	f := p.flights[n]
	if err != nil || f == nil {
		return over // of a message that was given up, or a second answer
	}
	a := readAck(m)
	switch {
	case a.seq > 0 && a.err == nil:
		if a.duplicate {
			p.stats.Duplicate++
		}
		p.onAck(now.Sub(f.sent))
		return p.landed(f, a.seq, over)
	case a.silent:
		f.rejects++
		f.later(now)
	case a.err.full():
		return p.refusedFull(f, a, now, over)
	case a.err.final():
		err := a.failed("publish", f.sends-1 > f.rejects)
		before := len(over)
		over = f.end(over, 0, err)
		p.stats.Refused += uint64(len(over) - before)
		p.gone(f)
	default:
		if a.err.refused() {
			f.rejects++
		}
		f.later(now)
	}
	return over
}

// landed notes that a message is in the log. The lock is held.
func (p *Publisher) landed(f *flight, seq uint64, over []ending) []ending {
	p.last = max(p.last, seq)
	p.stats.Messages++
	p.stats.Events += uint64(len(f.items))
	if f.pack {
		p.stats.Packs++
	}
	if f.renews && f.sent.After(p.acked) {
		if !p.acked.IsZero() && p.now().Sub(p.acked) > events.DefaultTTLMS*time.Millisecond {
			p.lapsed = p.acked
		}
		p.acked = f.sent
	}
	p.full = time.Time{}
	p.gone(f)
	return f.end(over, seq, nil)
}

// gone gives up a message's place. The lock is held.
func (p *Publisher) gone(f *flight) {
	delete(p.flights, f.n)
	p.slots--
}

// refusedFull takes in that the stream takes no more: reserves are over; the rest waits, in the outbox if no copy can be in the log.
// The lock is held.
func (p *Publisher) refusedFull(f *flight, a ack, now time.Time, over []ending) []ending {
	f.rejects++
	p.full = now.Add(fullFor)
	err := a.failed("publish", f.maybe())
	var rest []item
	for i := range f.items {
		it := &f.items[i]
		switch {
		case it.over:
		case classOf(it.event.Data.Kind()) == classReserve:
			it.over = true
			over = append(over, ending{it.done, 0, err})
		default:
			rest = append(rest, *it)
		}
	}
	switch {
	case len(rest) == 0:
		p.gone(f)
	case f.maybe():
		f.again = now.Add(fullFor)
	default:
		p.gone(f)
		p.outbox.putBack(rest)
	}
	return over
}

// reconnected sends again what may have been lost with the connection.
func (p *Publisher) reconnected() {
	now := p.now()
	p.mu.Lock()
	for _, f := range p.flights {
		f.again, f.tries = now, 0
	}
	p.watch()
	p.mu.Unlock()
	p.resend(now)
	p.advance(true)
}

// resend sends again what is due.
func (p *Publisher) resend(now time.Time) {
	p.mu.Lock()
	var due []*flight
	for _, f := range p.flights {
		if !f.searching && !now.Before(f.again) && !p.overdue(f, now) {
			if f.maybe() {
				f.tries++
			}
			p.leaves(f, now)
			due = append(due, f)
		}
	}
	p.mu.Unlock()
	for _, f := range due {
		p.post(f)
	}
}

// overdue says whether a message must be looked for before it is sent again. The lock is held.
func (p *Publisher) overdue(f *flight, now time.Time) bool {
	return f.maybe() && now.Sub(f.began) >= RetryFor
}

// sweepNow ends what is past its deadline, sends again what is due, and has looked for what is overdue.
func (p *Publisher) sweepNow(ctx context.Context) {
	now := p.now()
	p.mu.Lock()
	late := p.expire(now)
	if !p.full.IsZero() && !now.Before(p.full) {
		p.full = time.Time{} // try again
	}
	for _, f := range p.flights {
		if !f.searching && !now.Before(f.again) && p.overdue(f, now) {
			p.search(ctx, f)
		}
	}
	p.watched = p.total > 0 || p.slots > 0 || !p.full.IsZero()
	if p.watched {
		p.sweep.Reset(sweepEvery)
	}
	p.stats.Expired += uint64(len(late))
	p.finish(late)
	p.resend(now)
	p.advance(false)
	p.unstick(now)
}

// unstick sends what waits though nothing is under way, as after a full stream.
func (p *Publisher) unstick(now time.Time) {
	p.mu.Lock()
	oldest := p.outbox.oldest()
	stuck := !oldest.IsZero() && now.Sub(oldest) > sweepEvery
	p.mu.Unlock()
	if stuck {
		p.advance(true)
	}
}

// expire ends events that are past their deadline. The lock is held.
func (p *Publisher) expire(now time.Time) (over []ending) {
	for _, it := range p.outbox.expire(now) {
		over = append(over, ending{it.done, 0, &failure{err: ErrDeadline, unreachable: true}})
	}
	for _, f := range p.flights {
		before := len(over)
		var rest []item
		for i := range f.items {
			it := &f.items[i]
			if !it.over && !it.by.IsZero() && !now.Before(it.by) {
				it.over = true
				over = append(over, ending{it.done, 0, &failure{err: ErrDeadline, unreachable: true, maybe: f.maybe()}})
			}
			if !it.over {
				rest = append(rest, *it)
			}
		}
		switch {
		case f.searching:
		case len(rest) == 0: // nobody waits for it
			p.gone(f)
		case len(over) > before && !f.maybe(): // the others leave without what is over, which else would be in the log with nobody to release it
			p.gone(f)
			p.outbox.putBack(rest)
		}
	}
	return over
}

// search is what came of looking for a message.
type search struct {
	n     uint64
	seq   uint64 // 0 if it is not in the log
	began time.Time
	err   error
}

// search looks for a message in the log. The lock is held.
func (p *Publisher) search(ctx context.Context, f *flight) {
	f.searching = true
	p.stats.Searches++
	n, id, after, began := f.n, f.id, f.after, p.now()
	p.searcher.Go(func() {
		found, err := p.find(ctx, after, id)
		select {
		case p.searches <- search{n, found[id], began, err}:
		case <-ctx.Done():
		}
	})
}

// searched takes in what came of a search: it landed, or is sent again under the same id, or is looked for again.
func (p *Publisher) searched(s search) {
	now := p.now()
	p.mu.Lock()
	f := p.flights[s.n]
	if f == nil {
		p.mu.Unlock()
		return
	}
	f.searching = false
	var over []ending
	switch {
	case s.err != nil && errors.Is(s.err, context.Canceled):
	case s.err != nil:
		f.later(now)
	case s.seq > 0:
		over = p.landed(f, s.seq, nil)
	default:
		f.began, f.again = s.began, now
	}
	p.watch()
	p.finish(over)
	p.resend(now)
}
