package auditor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/services/follow"
)

// Store keeps records, and how far in the log they tell. It is used by one goroutine. One that has a method Close()
// is closed when the auditor no longer writes; then it may be opened again.
type Store interface {
	// Open makes ready what records are kept in, and gives the place in the log up to which they tell.
	Open(ctx context.Context) (generation.Place, error)

	// Read gives the records of requests as JSON, nil for those that are not kept.
	Read(ctx context.Context, ids []events.RequestID) ([][]byte, error)

	// Write keeps records, new or changed ones, facts, of which some may be kept already, and the place in the log up to which all that are
	// kept now tell. A write that fails is tried again with the same. An error with a method Moved() that says true means that what was
	// read is out of date.
	Write(ctx context.Context, rows []generation.Row, facts []generation.Fact, to generation.Place) error
}

// moved says whether an error means that the records were written by another.
func moved(err error) bool {
	m, ok := errors.AsType[interface {
		error
		Moved() bool
	}](err)
	return ok && m.Moved()
}

// Config is how an auditor runs.
type Config struct {
	// Conn is the connection by which records are written and read back. There is no default.
	Conn *nats.Conn

	// Log is the log. It is not needed if Source is given.
	Log *journal.Log

	// Name is the process's own, for the lease. There is no default.
	Name string

	// Source gives the log from a position on. Defaults to a tap of Log.
	Source follow.Open

	// Alone says that there can be no other auditor, as with a broker in this process that does not listen: no lease is sought. After a
	// crash a lease takes 3 s to run out. Defaults to false.
	Alone bool

	// Joins says that the bucket in which is elected is for another process to make, a projector's, and is waited for. Defaults to false.
	Joins bool

	// Store keeps the records. Defaults to the bucket "generations".
	Store Store

	// TTL is how long a record is kept after it was last changed. Defaults to 7 days.
	TTL time.Duration

	// MaxBytes is how much the records may take; beyond it the oldest go. Defaults to 4 GiB.
	MaxBytes int64

	// Replicas is how many servers hold the buckets. Defaults to 1.
	Replicas int

	// NoEstimates leaves out the bucket "estimator". Defaults to false.
	NoEstimates bool

	// Now is the clock; only its differences count. Defaults to time.Now.
	Now func() time.Time

	// Logger takes warnings. Defaults to none.
	Logger *slog.Logger
}

// Defaults of Config.
const (
	DefaultTTL      = 7 * 24 * time.Hour
	DefaultMaxBytes = 4 << 30
)

func (c Config) withDefaults() Config {
	if c.Source == nil {
		c.Source = follow.Tap(c.Log)
	}
	if c.TTL == 0 {
		c.TTL = DefaultTTL
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxBytes
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
	if c.Conn == nil {
		faults = append(faults, errors.New("conn: is missing"))
	}
	if c.Log == nil && c.Source == nil {
		faults = append(faults, errors.New("log: is missing"))
	}
	if c.Name == "" {
		faults = append(faults, errors.New("name: is missing"))
	}
	if c.TTL < 0 {
		faults = append(faults, fmt.Errorf("ttl %s: is negative", c.TTL))
	}
	if c.MaxBytes < 0 {
		faults = append(faults, fmt.Errorf("max bytes %d: is negative", c.MaxBytes))
	}
	if c.Replicas < 0 {
		faults = append(faults, fmt.Errorf("replicas %d: is negative", c.Replicas))
	}
	return errors.Join(faults...)
}
