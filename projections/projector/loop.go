package projector

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/admission"
)

const (
	giveFor    = 10 * time.Second // an answer older than this is kept, not given: its gateway has given up, or asks
	drainEvery = 5 * time.Millisecond
	drainIdle  = time.Second // the same while nobody watches the meters
	resting    = time.Hour   // the timer while nothing is due
)

// batch is what the source gave at once.
type batch struct {
	records []events.Record
	chain   journal.Chain
	behind  uint64
}

// loop is the fold with all that belongs to its goroutine.
type loop struct {
	p      *Projector
	js     jetstream.JetStream
	ctx    context.Context
	group  *errgroup.Group
	source Source

	fold    *admission.Fold
	next    uint64        // the sequence to fold next
	chain   journal.Chain // after the last batch
	created time.Time     // of the stream
	failed  error         // what was folded is not the log's
	target  uint64        // the log's end at the start: caught up when it has been folded

	borrowed bool // it began from a shared snapshot

	out  answering
	fell []decided // of this batch

	full, free chan *batch
	then       chan func() // what asynchronous work ends with
	timer      *time.Timer
	now        time.Time // of this turn
	quietSince time.Time // when the last record was read

	clock   streamClock
	packs   packs
	writer  writer
	ticker  ticker
	saver   saver
	sharer  sharer
	drainAt time.Time

	stats Stats
}

func (p *Projector) newLoop() *loop {
	l := &loop{
		p:     p,
		fold:  admission.New(),
		out:   answering{known: make(map[events.Gateway]*recipient)},
		full:  make(chan *batch, 1),
		free:  make(chan *batch, batchBuffers),
		then:  make(chan func(), 8),
		timer: time.NewTimer(resting),
		now:   p.cfg.Now(),
	}
	for range batchBuffers {
		l.free <- &batch{}
	}
	l.quietSince = l.now
	l.saver.at = l.now.Add(p.cfg.SnapshotEvery)
	return l
}

// read brings batches from the source, one ahead of the fold.
func (l *loop) read(ctx context.Context) error {
	if c, ok := l.source.(interface{ Close() }); ok {
		defer c.Close()
	}
	pending, _ := l.source.(interface{ Pending() uint64 })
	for {
		records, err := l.source.Next(ctx)
		if ctx.Err() != nil || errors.Is(err, context.Canceled) { // the source's context may end a moment before this one
			return nil
		}
		if err != nil {
			return err
		}
		var b *batch
		select {
		case b = <-l.free:
		case <-ctx.Done():
			return nil
		}
		b.records = append(b.records[:0], records...)
		b.chain = l.source.Chain()
		if pending != nil {
			b.behind = pending.Pending()
		}
		select {
		case l.full <- b:
		case <-ctx.Done():
			return nil
		}
	}
}

// run takes batches, questions and what is due, until ctx ends.
func (l *loop) run(ctx context.Context) error {
	defer l.timer.Stop()
	l.publishStats() // nothing may come for long
	for {
		l.timer.Reset(l.wait())
		select {
		case <-ctx.Done():
			return nil
		case b := <-l.full:
			l.now = l.p.cfg.Now()
			if err := l.take(b); err != nil {
				return err
			}
			clear(b.records)
			l.free <- b
		case command := <-l.p.commands:
			l.now = l.p.cfg.Now()
			command(l)
		case then := <-l.then:
			l.now = l.p.cfg.Now()
			then()
		case <-l.timer.C:
			l.now = l.p.cfg.Now()
		}
		l.due()
		l.publishStats()
	}
}

// async lets work run on a goroutine of its own; what it returns is then called on the fold's.
func (l *loop) async(work func(ctx context.Context) (then func())) {
	l.group.Go(func() error {
		if then := work(l.ctx); then != nil {
			select {
			case l.then <- then:
			case <-l.ctx.Done():
			}
		}
		return nil
	})
}

// take folds a batch and answers.
func (l *loop) take(b *batch) error {
	start := time.Now()
	now := l.now.UnixNano()
	give := false
	for i := range b.records {
		r := &b.records[i]
		if r.Seq != l.next && r.Seq != l.next-1 {
			return fmt.Errorf("the source gave sequence %d where %d was due", r.Seq, l.next)
		}
		l.next = r.Seq + 1
		give = l.watch(r, now) || give
		for _, v := range l.fold.Apply(r) {
			l.decide(&v, r.Seq)
		}
		for _, lapse := range l.fold.Lapses() {
			l.packs.add(decided{fell: r.Seq, lapse: lapse})
		}
		if l.p.cfg.Traced != nil && r.TraceParent != "" && give {
			l.p.cfg.Traced(r, l.now, l.p.cfg.Now())
		}
		if l.noted(r); l.failed != nil {
			return l.failed
		}
		if i+1 == len(b.records) || b.records[i+1].Seq != r.Seq {
			l.packs.digest(r.Seq, l.fold.Digest())
		}
	}
	l.chain = b.chain
	l.stats.FoldTime += time.Since(start)
	l.stats.Records += uint64(len(b.records))
	l.stats.Batches++
	l.stats.Behind = b.behind
	l.stats.Lag = time.Duration(now - l.fold.LastTime())
	l.stats.ReadAt = l.now
	l.quietSince = l.now
	l.caughtUp()
	l.end(b, give)
	return nil
}

// end answers what a batch decided.
func (l *loop) end(b *batch, give bool) {
	trusted, _ := l.p.Answering()
	give = give && trusted
	if !give {
		l.stats.Withheld += uint64(len(l.fell))
	}
	l.stats.Messages += uint64(l.answer(give))
	l.packs.ended(l.fold.Seq(), l.fold.Digest(), l.chain)
	if l.writer.active() {
		l.writer.views.At(l.fold.Seq(), l.fold.Now())
	}
	if len(l.fell) == 0 {
		return
	}
	if len(b.records) > 0 && l.now.UnixNano()-b.records[len(b.records)-1].At < keepFor {
		l.p.answers.keep(l.fell, l.now.UnixNano())
	}
	clear(l.fell)
	l.fell = l.fell[:0]
}

// decide takes in a verdict that fell with the record at a sequence.
func (l *loop) decide(v *events.Verdict, seq uint64) {
	r := l.out.to(v.Gateway)
	l.out.add(r, v)
	d := decided{verdict: keepable(v, r.gateway), fell: seq}
	l.fell = append(l.fell, d)
	l.packs.add(d)
	l.stats.Verdicts++
}

// watch looks at a record's time, and says whether what it decides is still wanted.
func (l *loop) watch(r *events.Record, now int64) bool {
	if r.Seq <= l.target {
		return false
	}
	l.clock.sample(r.At, l.now)
	if off := time.Duration(l.clock.off(r.Seq, r.At, now)); max(off, -off) > skewAlarm {
		l.clockIsOff(off)
	} else {
		l.clockMayBeRight(r, now)
	}
	if l.clock.suspicious(r.At, now) {
		l.probe()
	}
	return r.Seq > l.clock.end || now-r.At < int64(giveFor)
}

func (l *loop) clockIsOff(off time.Duration) {
	condition := clockOff
	if max(off, -off) > skewStop {
		condition = clockStop
	}
	if l.p.status.get(condition) != "" {
		return
	}
	why := ClockOff(off, l.p.cfg.Name)
	l.p.cfg.Logger.Error("projector: " + why)
	l.p.status.set(condition, why)
	l.clock.alarm = l.clock.alarm || condition == clockOff
	if condition == clockStop {
		l.saveSoon()
	}
}

// clockMayBeRight takes the alarm back once a record shows that the clock is right.
func (l *loop) clockMayBeRight(r *events.Record, now int64) {
	if l.clock.alarm && !l.clock.suspicious(r.At, now) {
		l.clock.alarm = false
		l.p.status.set(clockOff, "")
	}
}

// probe asks where the log ends, to tell records that waited from a clock that is behind.
func (l *loop) probe() {
	if l.clock.asking || l.now.Before(l.clock.next) {
		return
	}
	l.clock.asking, l.clock.next = true, l.now.Add(probeGap)
	l.async(func(ctx context.Context) func() {
		asked := l.p.cfg.Now().UnixNano()
		info, err := l.p.cfg.Log.Info(ctx)
		return func() {
			l.clock.asking = false
			if err == nil {
				l.clock.probed(asked, info.Last)
			}
		}
	})
}

// noted takes in what a record says to the projector itself.
func (l *loop) noted(r *events.Record) {
	if r.Fault != "" {
		return
	}
	switch d := r.Data.(type) {
	case *events.Verdicts:
		l.check(d, r.Seq)
	case *events.Rules:
		if !l.fold.Supported() {
			l.unsupported()
		}
	case *events.Recover:
		for _, c := range []condition{clockStop, clockOff, diverged} {
			l.p.status.set(c, "")
		}
	}
}

func (l *loop) unsupported() {
	l.p.status.set(rules, fmt.Sprintf("the log's rules are version %d; this binary knows up to %d", l.fold.Rules(), admission.RulesVersion))
}

// caughtUp says when the log has been read to the end that it had at the start.
func (l *loop) caughtUp() {
	if at := l.next - 1; at < l.target {
		l.p.status.set(catching, fmt.Sprintf("catching up: at sequence %d of %d", at, l.target))
	} else {
		l.p.status.set(catching, "")
	}
}

// due does what is due by the projector's own clock.
func (l *loop) due() {
	l.tick()
	l.drain()
	l.pack()
	l.save()
}

// wait gives how long nothing is due.
func (l *loop) wait() time.Duration {
	at := l.now.Add(resting)
	for _, due := range []time.Time{l.tickAt(), l.drainAt, l.packAt(), l.saver.at} {
		if !due.IsZero() && due.Before(at) {
			at = due
		}
	}
	return max(0, at.Sub(l.now))
}

// drain hands on what the meters that changed show.
func (l *loop) drain() {
	if l.now.Before(l.drainAt) {
		return
	}
	view, seq, at := l.p.cfg.View, l.fold.Seq(), l.fold.Now()
	writing := l.writer.active()
	any := false
	l.fold.Drain(func(r admission.Reading) {
		any = true
		if view != nil {
			view.Put(r, seq, at)
		}
		if writing {
			l.writer.views.Put(r, seq, at)
		}
	})
	every := drainEvery
	if view == nil && !writing {
		every = drainIdle
	}
	l.drainAt = l.now.Add(every)
	if !any {
		l.drainAt = time.Time{} // nothing is dirty until the next batch
	}
}

func (l *loop) publishStats() {
	s := &l.stats
	s.Seq, s.FoldNow, s.Rules, s.Counts = l.fold.Seq(), l.fold.Now(), l.fold.Rules(), l.fold.Counts
	s.Offset = time.Duration(max(l.clock.current, l.clock.before))
	s.Meters, s.Requests, s.Settled, s.Waiting = l.fold.Size()
	s.Pending = len(l.packs.pending)
	l.p.statsMu.Lock()
	l.p.stats = *s
	l.p.statsMu.Unlock()
}
