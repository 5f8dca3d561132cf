package projector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/admission"
)

// Source gives the log's records in order and without a gap: a *journal.Tap, or what shares one among several readers. It is used by
// one goroutine. A source that has a method Close() is closed when the projector stops.
type Source interface {
	// Next waits for the next whole messages. The slice may be reused by the next call. The error is ctx's, or says why the log
	// cannot be read on: *journal.Replaced, *journal.Lost.
	Next(ctx context.Context) ([]events.Record, error)

	// Chain is the log's hash chain after the last record that Next gave; zero if it is not kept.
	Chain() journal.Chain
}

// View takes what meters show, in the process, as soon as it changes. Put must not block; it keeps the reading's Falls.
type View interface {
	Put(r admission.Reading, seq uint64, now int64)
}

// Config is how a projector runs.
type Config struct {
	// Log is the log. There is no default.
	Log *journal.Log

	// Conn is the connection by which it answers, and writes the views. There is no default.
	Conn *nats.Conn

	// Name is the process's own, "<configured>-<8 random characters>": the source of what it writes, and the holder of its lease.
	// There is no default.
	Name string

	// Source gives the log from a position on. Defaults to a tap of Log.
	Source func(ctx context.Context, from journal.TapConfig) (Source, error)

	// Traced is told of each record with a trace context that is folded in time to be answered, and when by its own clock. Defaults to
	// nothing.
	Traced func(r *events.Record, begin, end time.Time)

	// DataDir is the process's data directory; snapshots are kept in snapshots/ in it. Defaults to none: each start folds the whole log, or
	// what is left of it from a shared snapshot on.
	DataDir string

	// SnapshotEvery is how much time lies between two snapshots, at least; they also never take more than a twentieth of it.
	// Defaults to 30 s.
	SnapshotEvery time.Duration

	// ShareEvery is how much time lies between two snapshots that the writer shares with other projectors, at least; it also shares one when it
	// stops. Defaults to 5 minutes.
	ShareEvery time.Duration

	// Ledger is the id of the log's ledger. Defaults to none: it is not compared.
	Ledger string

	// View takes the meters in the process, whether or not this projector is the writer. Defaults to none.
	View View

	// ReadOnly keeps the projector from ever becoming the writer. Defaults to false.
	ReadOnly bool

	// Replicas is how many servers hold the buckets that the writer makes. Defaults to 1.
	Replicas int

	// Now is the clock. Its readings should carry monotonic time. Defaults to time.Now.
	Now func() time.Time

	// Logger takes warnings. Defaults to none.
	Logger *slog.Logger
}

const (
	defaultSnapshotEvery = 30 * time.Second
	defaultShareEvery    = 5 * time.Minute
	snapshotShare        = 20 // a snapshot may take one part in so many of the time
)

func (c Config) withDefaults() Config {
	if c.Source == nil {
		log := c.Log
		c.Source = func(ctx context.Context, from journal.TapConfig) (Source, error) { return log.Tap(ctx, from), nil }
	}
	if c.SnapshotEvery == 0 {
		c.SnapshotEvery = defaultSnapshotEvery
	}
	if c.ShareEvery == 0 {
		c.ShareEvery = defaultShareEvery
	}
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate names every fault of the configuration.
func (c Config) Validate() error {
	var faults []error
	if c.Log == nil {
		faults = append(faults, errors.New("log: is missing"))
	}
	if c.Conn == nil {
		faults = append(faults, errors.New("conn: is missing"))
	}
	if c.Name == "" {
		faults = append(faults, errors.New("name: is missing"))
	}
	if c.SnapshotEvery < 0 {
		faults = append(faults, fmt.Errorf("snapshot every %s: is negative", c.SnapshotEvery))
	}
	if c.ShareEvery < 0 {
		faults = append(faults, fmt.Errorf("share every %s: is negative", c.ShareEvery))
	}
	if c.Replicas < 0 {
		faults = append(faults, fmt.Errorf("replicas %d: is negative", c.Replicas))
	}
	return errors.Join(faults...)
}
