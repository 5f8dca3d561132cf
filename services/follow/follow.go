// Package follow is what the roles that follow the log have in common: they read one batch ahead of what they work on, write in turns, wait
// for a broker that is away and say so now and then, and of several processes with a role one writes.
package follow

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
)

// Source gives the log's records in order and without a gap: a *journal.Tap, or what shares one among several readers. It is used by
// one goroutine. A source that has a method Close() is closed when it is done with; one that has Pending() or Chain() is asked for them.
type Source interface {
	// Next waits for the next whole messages. The slice may be reused by the next call. The error is ctx's, or says why the log cannot
	// be read on: *journal.Replaced, *journal.Lost.
	Next(ctx context.Context) ([]events.Record, error)

	// Created is when the log's stream was made, known once Next has returned.
	Created() time.Time
}

// Open gives the log from a position on.
type Open func(ctx context.Context, from journal.TapConfig) (Source, error)

// Tap opens a log by a tap of its own.
func Tap(log *journal.Log) Open {
	return func(ctx context.Context, from journal.TapConfig) (Source, error) { return log.Tap(ctx, from), nil }
}

// Batch is records of whole messages.
type Batch struct {
	Records []events.Record
	Created time.Time     // when the log's stream was made
	Chain   journal.Chain // after the last record, if the source knows it
	Behind  uint64        // messages that are still to be read, if the source says
}

// Loop is how a reader works. Take and Turn are called by one goroutine, whichever is due.
type Loop struct {
	Every time.Duration // between turns, at most
	Ready func() bool   // whether a batch may be taken now. Defaults to always.
	Take  func(ctx context.Context, b Batch) error
	Turn  func(ctx context.Context) error // after each batch, and where none comes
}

// Run takes what a source gives until ctx ends or something fails. One batch is read ahead: a reader that is held up holds no more.
func (l Loop) Run(ctx context.Context, source Source) error {
	group, ctx := errgroup.WithContext(ctx)
	batches := make(chan Batch, 1)
	group.Go(func() error {
		if c, ok := source.(interface{ Close() }); ok {
			defer c.Close()
		}
		return read(ctx, source, batches)
	})
	group.Go(func() error { return l.work(ctx, batches) })
	return group.Wait()
}

func (l Loop) work(ctx context.Context, batches <-chan Batch) error {
	turn := time.NewTicker(l.Every)
	defer turn.Stop()
	for {
		more := batches
		if l.Ready != nil && !l.Ready() {
			more = nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-more:
			if err := l.Take(ctx, b); err != nil {
				return err
			}
		case <-turn.C:
		}
		if err := l.Turn(ctx); err != nil {
			return err
		}
	}
}

func read(ctx context.Context, source Source, batches chan<- Batch) error {
	pending, _ := source.(interface{ Pending() uint64 })
	chain, _ := source.(interface{ Chain() journal.Chain })
	for {
		records, err := source.Next(ctx)
		if err != nil {
			return err
		}
		b := Batch{Records: append([]events.Record(nil), records...), Created: source.Created()}
		if pending != nil {
			b.Behind = pending.Pending()
		}
		if chain != nil {
			b.Chain = chain.Chain()
		}
		select {
		case batches <- b:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// GoneFor is how long is waited before a log that is not there is looked for again.
const GoneFor = time.Second

// Pause waits, or gives ctx's error.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// warnEvery is how often the same thing is warned about, and maxWarned how many things are told apart.
const (
	warnEvery = 10 * time.Second
	maxWarned = 64
)

// Warnings logs failures, but not the same thing again and again. It may be used by several goroutines.
type Warnings struct {
	who    string
	logger *slog.Logger
	now    func() time.Time

	mu     sync.Mutex
	warned map[string]time.Time
}

// NewWarnings makes warnings of a role.
func NewWarnings(who string, logger *slog.Logger, now func() time.Time) *Warnings {
	return &Warnings{who: who, logger: logger, now: now, warned: map[string]time.Time{}}
}

// Warn says what failed.
func (w *Warnings) Warn(doing string, err error) {
	if w.due(doing) {
		w.logger.Warn(w.who+": "+doing, "error", err)
	}
}

func (w *Warnings) due(doing string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	if last, known := w.warned[doing]; known && now.Sub(last) < warnEvery {
		return false
	}
	if len(w.warned) >= maxWarned {
		clear(w.warned)
	}
	w.warned[doing] = now
	return true
}
