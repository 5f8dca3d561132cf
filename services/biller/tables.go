package biller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/postgres/sums"
	"github.com/weirhq/weir/projections/usage"
	"github.com/weirhq/weir/services/follow"
)

// How lines are counted in the database.
const (
	countBatch   = 1000             // lines of one transaction
	countFor     = 30 * time.Second // for one transaction
	countMaxWait = 10 * time.Second // before another try, while the database is away
	consumerIdle = time.Minute      // after which the broker forgets a reader that is gone
)

// Tables is where usage by hour and day is kept.
type Tables struct {
	// Table is the tables. There is no default.
	Table *sums.Table

	// Prepare brings the database's schema up to date; it is called before the first line is counted, until it succeeds. Defaults to nothing.
	Prepare func(context.Context) error
}

// CountStatus is where counting stands.
type CountStatus struct {
	Counted  uint64 // lines counted by this biller
	Behind   uint64 // lines of the stream that are still to be counted, as of the last read
	Failures uint64 // tries that failed
	Missed   uint64 // lines that the stream no longer held when they were to be counted
}

// counter reads the stream and counts lines in the database, while this biller writes. Its place is in the database, beside what it has
// counted; the broker keeps nothing of it. It belongs to one goroutine.
type counter struct {
	Tables
	b      *Biller
	stream *stream
	at     sums.Position
}

func (c *counter) run(ctx context.Context) error {
	wait := &backoff.ExponentialBackOff{InitialInterval: firstWait, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: countMaxWait}
	wait.Reset()
	prepared := false
	for ctx.Err() == nil {
		if !c.b.writing.Load() {
			_ = follow.Pause(ctx, idlePause)
			continue
		}
		err := error(nil)
		if !prepared && c.Prepare != nil {
			err = c.Prepare(ctx)
		}
		if err == nil {
			prepared = true
			err = c.follow(ctx, wait.Reset)
		}
		if err != nil && ctx.Err() == nil {
			if !errors.Is(err, sums.ErrMoved) {
				c.b.note(func(s *Status) { s.Usage.Failures++ })
				c.b.warn("count usage", err)
			}
			_ = follow.Pause(ctx, wait.NextBackOff())
		}
	}
	return nil
}

// follow counts from the database's position on, until something fails or another biller writes.
func (c *counter) follow(ctx context.Context, counted func()) (err error) {
	if c.at, err = c.Table.Position(ctx); err != nil {
		return err
	}
	consumer, created, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.stream.js.DeleteConsumer(context.WithoutCancel(ctx), Stream, consumer.CachedInfo().Name) }() // otherwise it is dropped soon
	for c.b.writing.Load() && ctx.Err() == nil {
		batch, err := consumer.Fetch(countBatch, jetstream.FetchMaxWait(fetchFor))
		if err != nil {
			return err
		}
		if err := c.count(ctx, batch, created); err != nil {
			return err
		}
		if err := batch.Error(); err != nil {
			return err
		}
		counted()
	}
	return nil
}

// open makes a consumer behind the position, or at the stream's start if it is another stream: lines that were counted are known by their
// place in the log.
func (c *counter) open(ctx context.Context) (consumer jetstream.Consumer, created int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	have, err := c.stream.js.Stream(ctx, Stream)
	if err != nil {
		return nil, 0, fmt.Errorf("open %s: %w", Stream, err)
	}
	info := have.CachedInfo()
	created = events.Nanos(info.Created)
	next := uint64(1)
	if c.at.StreamCreated == created {
		next = c.at.StreamSeq + 1
		if first := info.State.FirstSeq; first > next && info.State.LastSeq > c.at.StreamSeq {
			c.b.note(func(s *Status) { s.Usage.Missed += first - next })
			c.b.warn("count usage", fmt.Errorf("the lines %d to %d of %s are gone by age and were not counted", next, first-1, Stream))
		}
	}
	consumer, err = c.stream.js.CreateConsumer(ctx, Stream, jetstream.ConsumerConfig{Description: "Weir: usage by hour and day", AckPolicy: jetstream.AckNonePolicy,
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: next, InactiveThreshold: consumerIdle, MemoryStorage: true})
	return consumer, created, err
}

// count takes in a batch and moves the position. The broker gives a gap's messages again by way of the next consumer.
func (c *counter) count(ctx context.Context, batch jetstream.MessageBatch, created int64) error {
	to := c.at
	var lines []sums.Counted
	behind := uint64(0)
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		if to.StreamCreated == created && to.StreamSeq != 0 && meta.Sequence.Stream > to.StreamSeq+1 && meta.Sequence.Consumer != 1 {
			return fmt.Errorf("sequence %d of %s came after %d", meta.Sequence.Stream, Stream, to.StreamSeq)
		}
		behind = meta.NumPending
		to.StreamCreated, to.StreamSeq = created, meta.Sequence.Stream
		at, err := positionOf(m.Headers())
		if err != nil {
			c.b.warn("count usage", fmt.Errorf("sequence %d of %s is no biller's: %w", meta.Sequence.Stream, Stream, err))
			continue
		}
		l, err := usage.Decode(m.Data())
		if err != nil {
			c.b.warn("count usage", err)
			continue
		}
		if !to.Before(events.Nanos(at.Log), at.Seq, int64(at.N)) {
			continue // it was counted when it stood in another stream
		}
		to.LogCreated, to.LogSeq, to.LogN, to.AsOf = events.Nanos(at.Log), at.Seq, int64(at.N), int64(l.Time)
		counts, err := c.when(ctx, &l, lines)
		if err != nil {
			return err
		}
		lines = append(lines, sums.Counted{Line: l, At: counts})
	}
	c.b.note(func(s *Status) { s.Usage.Behind = behind })
	if to == c.at {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, countFor)
	defer cancel()
	if err := c.Table.Add(ctx, c.at, to, lines); err != nil {
		return err
	}
	c.at = to
	c.b.note(func(s *Status) { s.Usage.Counted += uint64(len(lines)) })
	return nil
}

// when gives the instant whose hour and day a line counts in: its own, and for a correction that of the line which it corrects, as long as
// the stream holds that.
func (c *counter) when(ctx context.Context, l *usage.Line, before []sums.Counted) (usage.Instant, error) {
	if l.State != usage.Corrected {
		return l.Time, nil
	}
	for i := range before {
		if before[i].Line.ID == l.ID {
			return before[i].At, nil
		}
	}
	first, found, err := c.stream.first(ctx, l)
	if err != nil || !found {
		return l.Time, err
	}
	return first.Time, nil
}
