package projector

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/kv"
)

// LeaseKey is the key in the leases' bucket under which the writer's lease is.
const LeaseKey = "projector.writer"

// writer is what the projector is while it holds the writer's lease. It belongs to the fold's goroutine.
type writer struct {
	lease *kv.Lease
	views *kv.Writer

	held     bool
	term     uint64
	fenced   bool   // expected is known
	expected uint64 // the last sequence of the verdicts' subject
	inFlight bool   // an append is on its way
	waits    bool   // the log takes no more for now
	packAt   time.Time
}

func (w *writer) active() bool { return w.held && w.fenced }

// mayWrite says whether the next pack can be appended: the last one has been folded, so that what is pending is just what is not in the
// log, and none is on its way.
func (w *writer) mayWrite(folded uint64) bool {
	return w.active() && !w.inFlight && folded >= w.expected
}

// follow takes in that a pack is in the log at a sequence.
func (w *writer) follow(seq uint64) {
	if w.fenced {
		w.expected = max(w.expected, seq)
	}
}

// prepare makes the lease and the views' writer. It does no I/O.
func (l *loop) prepare() error {
	var err error
	if l.js, err = jetstream.New(l.p.cfg.Conn); err != nil {
		return err
	}
	cfg := &l.p.cfg
	l.writer.views = kv.NewWriter(kv.WriterConfig{Conn: cfg.Conn, Name: cfg.Name, Replicas: cfg.Replicas, Now: cfg.Now, Logger: cfg.Logger})
	l.writer.lease = kv.NewLease(kv.LeaseConfig{
		JetStream: l.js,
		Bucket:    access.BucketLeases,
		Key:       LeaseKey,
		Holder:    cfg.Name,
		Replicas:  cfg.Replicas,
		Now:       cfg.Now,
		Wants:     func() bool { ok, _ := l.p.Answering(); return ok },
	})
	return nil
}

// write seeks the writer's lease, and writes the views while it is held, until ctx ends.
func (l *loop) write(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.writer.views.Run(ctx) })
	group.Go(func() error {
		return l.writer.lease.Run(ctx, func(held bool) {
			select {
			case l.then <- func() { l.leased(held) }:
			case <-ctx.Done():
			}
		})
	})
	return group.Wait()
}

// leased takes in that the lease was won or lost.
func (l *loop) leased(held bool) {
	w := &l.writer
	if held == w.held {
		return
	}
	w.held, w.fenced, w.waits = held, false, false
	w.term++
	l.stats.Writer = held
	if !held {
		w.views.Activate(false)
		l.unshare()
		return
	}
	l.stats.Terms++
	term := w.term
	l.async(func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, packFor)
		defer cancel()
		_, last, err := l.p.cfg.Log.Last(ctx, verdictsSubject)
		return func() {
			switch {
			case w.term != term:
			case err != nil:
				l.p.cfg.Logger.Warn("projector: cannot become the writer", "error", err)
				l.resign()
			default:
				l.fence(last)
			}
		}
	})
}

// fence begins to write after the last pack of verdicts.
func (l *loop) fence(last uint64) {
	w := &l.writer
	w.fenced, w.expected = true, last
	w.views.Activate(true)
	seq, at := l.fold.Seq(), l.fold.Now()
	for _, m := range l.fold.Meters() {
		if r, ok := l.fold.Reading(m.Meter); ok {
			w.views.Put(r, seq, at)
		}
	}
	l.reconcile()
	l.shareSoon()
}

// reconcile writes anew the views of meters that the fold shows empty, or does not know, where the writer before may have left more.
func (l *loop) reconcile() {
	term := l.writer.term
	l.async(func(ctx context.Context) func() {
		keys := l.writer.views.Keys(ctx)
		return func() {
			if l.writer.term != term {
				return
			}
			seq, at := l.fold.Seq(), l.fold.Now()
			for _, key := range keys {
				r, ok := l.fold.Reading(key)
				if !ok {
					l.writer.views.Forget(key)
				} else if r.Used == 0 && r.Total == 0 {
					l.writer.views.Put(r, seq, at)
				}
			}
		}
	})
}

// resign gives the lease up, so that another projector may have it.
func (l *loop) resign() {
	l.writer.lease.Resign()
	l.leased(false)
}

var _ View = (*kv.View)(nil)
