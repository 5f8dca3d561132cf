package biller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/services/follow"
)

// When things are done, and how much is kept.
const (
	turnEvery  = 20 * time.Millisecond
	lookEvery  = time.Second // where the stream ends, while another writes
	retryPause = 200 * time.Millisecond
	finishFor  = 5 * time.Second // for the last lines when the biller stops
	maxPending = 1 << 16         // lines beyond which the log is not read on until some are written
)

// errBehind says that the stream has lost lines that were in it.
var errBehind = errors.New("the stream has lost its end")

// worker follows the log and writes. It belongs to one goroutine.
type worker struct {
	b      *Biller
	stream *stream
	*state

	end    uint64    // the stream's last sequence
	synced bool      // end is known, and pending begins behind it
	next   time.Time // not before: look where the stream ends, or try again
	saved  time.Time // when the state was last kept
	keep   uint64    // the sequence that the kept state is of
	sharer sharer
}

func (w *worker) run(ctx context.Context) error {
	if err := w.open(ctx); err != nil {
		return ended(ctx, err)
	}
	var err error
	if w.state, err = load(w.b.cfg.DataDir); w.state == nil {
		return err
	}
	if err != nil {
		w.b.warn("read the state", err)
	}
	w.saved, w.keep = w.b.cfg.Now(), w.applied
	defer w.unshare()
	for {
		err := w.read(ctx)
		if ctx.Err() != nil {
			return w.finish(ctx)
		}
		if _, replaced := errors.AsType[*journal.Replaced](err); replaced {
			w.b.warn("billing goes on with what the log holds now", err)
			w.begin(w.pending)
			continue
		}
		if gone := begins(err); gone != nil {
			if err := w.borrow(ctx, gone); err != nil {
				return ended(ctx, err)
			}
			continue
		}
		if isGone(err) {
			w.b.warn("billing waits for a log", err)
			if follow.Pause(ctx, follow.GoneFor) != nil {
				return w.finish(ctx)
			}
			continue
		}
		if errors.Is(err, errBehind) {
			w.b.warn("write lines anew from the log's start", err)
			w.begin(nil)
			continue
		}
		return err
	}
}

// begins says that the log begins too late for the state, if that is what an error means.
func begins(err error) *forgotten {
	if gone, ok := errors.AsType[*forgotten](err); ok {
		return gone
	}
	if lost, ok := errors.AsType[*journal.Lost](err); ok {
		return &forgotten{lost.First}
	}
	return nil
}

// ended gives nothing in place of an error that ctx's end has made.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// begin forgets the log, and what is known of the stream; lines that are still to be written may stay.
func (w *worker) begin(pending []line) {
	w.state = newState()
	w.pending = pending
	w.synced = false
}

// open makes the stream, for as long as it takes.
func (w *worker) open(ctx context.Context) error {
	for {
		err := w.stream.make(ctx, w.b.cfg)
		if err == nil || w.b.cfg.Conn.IsClosed() {
			return err
		}
		w.b.warn("make the stream", err)
		if err := follow.Pause(ctx, retryPause); err != nil {
			return err
		}
	}
}

// read follows the log from where the state is.
func (w *worker) read(ctx context.Context) error {
	from := journal.TapConfig{Name: "biller", Created: w.created, Chain: w.chain}
	if w.applied > 0 {
		from.From = w.applied + 1
	}
	source, err := w.b.cfg.Source(ctx, from)
	if err != nil {
		return err
	}
	return follow.Loop{Every: turnEvery, Ready: func() bool { return len(w.pending) < maxPending }, Take: w.take, Turn: w.turn}.Run(ctx, source)
}

// take folds a batch.
func (w *worker) take(ctx context.Context, b follow.Batch) error {
	if len(b.Records) > 0 && w.applied == 0 {
		if first := b.Records[0].Seq; first > 1 {
			return &forgotten{first}
		}
	}
	w.created, w.chain = b.Created, b.Chain
	for i := range b.Records {
		r := &b.Records[i]
		if err := w.bringBack(ctx, r); err != nil {
			return err
		}
		if r.Seq != w.applied {
			w.applied, w.fell = r.Seq, 0
		}
		for _, l := range w.usage.Apply(r) {
			at := position{w.created, r.Seq, w.fell}
			if w.fell++; w.written.before(at) { // others are read again
				w.pending = append(w.pending, line{at, l})
			}
		}
	}
	if f := w.usage.Fold(); !f.Supported() {
		return fmt.Errorf("the log's rules are version %d, this binary knows %d", f.Rules(), admission.RulesVersion)
	}
	w.b.note(func(s *Status) { s.Behind = b.Behind })
	return nil
}

// bringBack finds the line that a record corrects, if it is no longer in memory.
func (w *worker) bringBack(ctx context.Context, r *events.Record) error {
	id, attempt, missing := w.usage.Missing(r)
	if !missing {
		return nil
	}
	for i := len(w.pending) - 1; i >= 0; i-- {
		if l := &w.pending[i].Line; l.Request == id && l.Attempt == attempt {
			w.usage.Restore(*l)
			return nil
		}
	}
	for {
		l, found, err := w.stream.newest(ctx, r.Org, id, attempt)
		switch {
		case err == nil && found:
			w.usage.Restore(l)
			return nil
		case err == nil:
			w.b.warn("a correction of what was never billed is left out", fmt.Errorf("request %s, attempt %d of %s, sequence %d", id, attempt, r.Org, r.Seq))
			return nil
		case w.b.cfg.Conn.IsClosed():
			return err
		}
		w.b.warn("find the line that is corrected", err)
		if err := follow.Pause(ctx, retryPause); err != nil {
			return err
		}
	}
}

// turn writes what is to be written, and keeps the state if it is time.
func (w *worker) turn(ctx context.Context) error {
	if err := w.write(ctx); err != nil {
		return err
	}
	w.b.note(func(s *Status) {
		s.Applied, s.Pending, s.Open, s.Counts = w.applied, len(w.pending), w.usage.Open(), w.usage.Counts
		s.Billed = w.applied
		if len(w.pending) > 0 {
			s.Billed = w.pending[0].At.Seq - 1
		}
	})
	if w.b.cfg.Now().Sub(w.saved) >= w.b.cfg.SaveEvery && w.keep != w.applied {
		w.save()
	}
	w.share(ctx)
	return nil
}

func (w *worker) save() {
	w.saved, w.keep = w.b.cfg.Now(), w.applied
	hours, days := w.usage.Hours(), w.usage.Days()
	w.b.mu.Lock()
	w.b.hours, w.b.days = hours, days
	w.b.mu.Unlock()
	if w.b.cfg.DataDir == "" || w.applied == 0 {
		return
	}
	if err := save(w.b.cfg.DataDir, w.encode(), w.usage.Fold().Now()); err != nil {
		w.b.warn("keep the state", err)
	}
}

// write appends pending lines while this biller is the one that writes; else it looks now and then what another has written.
func (w *worker) write(ctx context.Context) error {
	if w.b.cfg.Now().Before(w.next) {
		return nil
	}
	if !w.b.writing.Load() {
		w.synced, w.next = false, w.b.cfg.Now().Add(lookEvery)
		if len(w.pending) == 0 {
			return nil
		}
		return w.sync(ctx)
	}
	for len(w.pending) > 0 {
		if !w.synced {
			if err := w.sync(ctx); err != nil || !w.synced {
				return err
			}
			continue
		}
		n, end, err := w.stream.append(ctx, w.pending[:min(len(w.pending), inFlight)], w.end)
		if w.end = end; n > 0 {
			w.written = w.pending[n-1].At
			w.drop(n)
			w.b.note(func(s *Status) { s.Written += uint64(n) })
		}
		if err != nil {
			w.synced, w.next = false, w.b.cfg.Now().Add(retryPause)
			w.b.note(func(s *Status) { s.Conflicts++ })
			if ctx.Err() == nil && !errors.Is(err, errMoved) {
				w.b.warn("write lines", err)
			}
			return w.closed(err)
		}
	}
	return nil
}

// closed gives an error only if the connection will not come back.
func (w *worker) closed(err error) error {
	if w.b.cfg.Conn.IsClosed() {
		return fmt.Errorf("%w: %w", nats.ErrConnectionClosed, err)
	}
	return nil
}

// sync asks where the stream ends, and drops the lines that are in it.
func (w *worker) sync(ctx context.Context) error {
	end, at, known, err := w.stream.end(ctx)
	if err != nil {
		w.next = w.b.cfg.Now().Add(retryPause)
		if ctx.Err() == nil {
			w.b.warn("look where the stream ends", err)
		}
		return errors.Join(w.closed(err), w.openAgain(ctx, err))
	}
	if w.lost(end, at, known) {
		return fmt.Errorf("%w: it ends with the line at %d.%d of the log, and held the one at %d.%d", errBehind, at.Seq, at.N, w.written.Seq, w.written.N)
	}
	if known {
		w.written = at
	}
	n := 0
	for n < len(w.pending) && !w.written.before(w.pending[n].At) {
		n++
	}
	w.drop(n)
	w.end, w.synced = end, true
	return nil
}

// lost says whether the stream, which ends so, has lost lines that were in it.
func (s *state) lost(end uint64, at position, known bool) bool {
	return known && at.before(s.written) || !known && end == 0 && s.written != (position{})
}

// openAgain makes the stream anew if it is gone.
func (w *worker) openAgain(ctx context.Context, err error) error {
	if isGone(err) {
		return ended(ctx, w.open(ctx))
	}
	return nil
}

func (w *worker) drop(n int) {
	clear(w.pending[:n])
	if w.pending = w.pending[n:]; len(w.pending) == 0 {
		w.pending = nil
	}
}

// finish writes the last lines and keeps the state.
func (w *worker) finish(ctx context.Context) error {
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishFor)
	defer cancel()
	w.next = time.Time{}
	if err := w.write(last); err != nil {
		w.b.warn("write the last lines: they are in the state that is kept", err)
	}
	w.save()
	w.shareLast(last)
	return nil
}
