package biller

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/usage"
	"github.com/weirhq/weir/services/follow"
)

// Status is where a biller stands.
type Status struct {
	Writing   bool   // it is the one that writes
	Applied   uint64 // the last sequence of the log taken
	Billed    uint64 // the sequence up to which every line is in the stream
	Pending   int    // lines that are not known to be in the stream
	Written   uint64 // lines written by this biller
	Conflicts uint64 // times that the stream did not end where this biller knew it to end
	Shared    uint64 // the sequence that the newest state is of which this biller shared
	Open      int    // requests that can still give a line
	Counts    usage.Counts
	Behind    uint64 // messages of the log that are still to be read, if the source says
	Exports   map[string]ExportStatus
	Usage     CountStatus // of usage by hour and day in the database
}

// ExportStatus is where an export stands.
type ExportStatus struct {
	Exported uint64 // lines that were taken
	Dead     uint64 // lines that will never be taken
	Failures uint64 // tries that failed, each of which was followed by another

	Behind   uint64    // lines that are still to be handed on, as of the last read
	Oldest   time.Time // when the oldest of them came into the stream; zero: there are none
	FailedAt time.Time // when a try last failed; zero: none has
	Failed   string    // why
	Failing  time.Time // since when every try has failed; zero: the last one did not
}

// Biller writes lines. Its methods may be called at the same time.
type Biller struct {
	cfg     Config
	warn    func(doing string, err error)
	writing atomic.Bool

	mu          sync.Mutex
	status      Status
	hours, days []usage.Sum
}

// New makes a biller; Run runs it.
func New(cfg Config) (*Biller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("make the biller: %w", err)
	}
	cfg = cfg.withDefaults()
	b := &Biller{cfg: cfg, warn: follow.NewWarnings("biller", cfg.Logger, cfg.Now).Warn, status: Status{Exports: map[string]ExportStatus{}}}
	for _, x := range cfg.Exports { // all are shown from the start
		b.status.Exports[x.Name] = ExportStatus{}
	}
	return b, nil
}

// Status says where the biller stands.
func (b *Biller) Status() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.status
	s.Writing = b.writing.Load()
	s.Exports = make(map[string]ExportStatus, len(b.status.Exports))
	for name, x := range b.status.Exports {
		s.Exports[name] = x
	}
	return s
}

// Sums gives the sums of the last two days by hour, and of the last two months by day, as of the last time that the state was kept. They are
// part of the projection's snapshot and kept nowhere else.
func (b *Biller) Sums() (hours, days []usage.Sum) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hours, b.days
}

func (b *Biller) note(change func(*Status)) {
	b.mu.Lock()
	change(&b.status)
	b.mu.Unlock()
}

func (b *Biller) noteExport(name string, change func(*ExportStatus)) {
	b.note(func(s *Status) {
		x := s.Exports[name]
		change(&x)
		s.Exports[name] = x
	})
}

// Run follows the log until ctx ends, and writes lines and hands them on while it holds the lease or is alone. The error is of a connection
// that was closed, of a log that no longer holds what has not been billed, or of a stream that is no biller's.
func (b *Biller) Run(ctx context.Context) error {
	s, err := newStream(b.cfg.Conn)
	if err != nil {
		return fmt.Errorf("run the biller: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	election := follow.Election{Conn: b.cfg.Conn, Role: access.Biller, Name: b.cfg.Name, Replicas: b.cfg.Replicas, Now: b.cfg.Now, Alone: b.cfg.Alone, Joins: b.cfg.Joins, Logger: b.cfg.Logger}
	group.Go(func() error {
		defer b.writing.Store(false)
		return election.Run(ctx, b.writing.Store, (&worker{b: b, stream: s}).run)
	})
	for _, x := range b.cfg.Exports {
		group.Go(func() error { return (&export{Export: x, b: b, stream: s}).run(ctx) })
	}
	if b.cfg.Usage != nil {
		group.Go(func() error { return (&counter{Tables: *b.cfg.Usage, b: b, stream: s}).run(ctx) })
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("run the biller: %w", err)
	}
	return nil
}
