package biller

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/services/follow"
)

// Config is how a biller runs.
type Config struct {
	// Conn is the connection by which lines are written and read back. There is no default.
	Conn *nats.Conn

	// Log is the log. There is no default.
	Log *journal.Log

	// Name is the process's own, for the lease. There is no default.
	Name string

	// DataDir is where the state is kept, in its folder "biller". Defaults to none: then a biller begins with the log's first
	// record, or a shared state.
	DataDir string

	// Source gives the log from a position on. Defaults to a tap of Log.
	Source follow.Open

	// Alone says that there can be no other biller, as with a broker in this process that does not listen: no lease is sought. After a
	// crash a lease takes 3 s to run out. Defaults to false.
	Alone bool

	// Joins says that the bucket in which is elected is for another process to make, a projector's, and is waited for. Defaults to false.
	Joins bool

	// MaxAge is how long the stream keeps a line. It must not be shorter than the log keeps its events. Defaults to 400 days.
	MaxAge time.Duration

	// MaxBytes is how much the stream may hold; beyond it no more is written until there is room: nothing is dropped. Defaults to no bound.
	MaxBytes int64

	// Replicas is how many servers hold the stream. Defaults to 1.
	Replicas int

	// Exports hand lines on. Defaults to none.
	Exports []Export

	// Usage is where usage by hour and day is kept. Defaults to nowhere but the biller's own state.
	Usage *Tables

	// SaveEvery is how often the state is kept. Defaults to 1 minute.
	SaveEvery time.Duration

	// ShareEvery is how often the state is put where other billers find it, while this one writes; once more when it stops. Defaults to 5 minutes.
	ShareEvery time.Duration

	// Now is the clock; only its differences count. Defaults to time.Now.
	Now func() time.Time

	// Logger takes warnings. Defaults to none.
	Logger *slog.Logger
}

// Defaults of Config.
const (
	DefaultMaxAge    = 400 * 24 * time.Hour
	DefaultSaveEvery = time.Minute

	DefaultShareEvery = 5 * time.Minute
)

func (c Config) withDefaults() Config {
	if c.Source == nil {
		c.Source = follow.Tap(c.Log)
	}
	if c.MaxAge == 0 {
		c.MaxAge = DefaultMaxAge
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = -1
	}
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	if c.SaveEvery == 0 {
		c.SaveEvery = DefaultSaveEvery
	}
	if c.ShareEvery == 0 {
		c.ShareEvery = DefaultShareEvery
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	exports := make([]Export, len(c.Exports))
	for i, x := range c.Exports {
		exports[i] = x.withDefaults()
	}
	c.Exports = exports
	return c
}

// Validate names every fault of the configuration.
func (c Config) Validate() error {
	var faults []error
	if c.Conn == nil {
		faults = append(faults, errors.New("conn: is missing"))
	}
	if c.Log == nil {
		faults = append(faults, errors.New("log: is missing"))
	}
	if c.Name == "" {
		faults = append(faults, errors.New("name: is missing"))
	}
	if c.MaxAge < 0 {
		faults = append(faults, fmt.Errorf("max age %s: is negative", c.MaxAge))
	}
	if c.MaxBytes < -1 {
		faults = append(faults, fmt.Errorf("max bytes %d: is negative", c.MaxBytes))
	}
	if c.Replicas < 0 {
		faults = append(faults, fmt.Errorf("replicas %d: is negative", c.Replicas))
	}
	if c.SaveEvery < 0 {
		faults = append(faults, fmt.Errorf("save every %s: is negative", c.SaveEvery))
	}
	if c.ShareEvery < 0 {
		faults = append(faults, fmt.Errorf("share every %s: is negative", c.ShareEvery))
	}
	names := map[string]bool{}
	for i, x := range c.Exports {
		if err := x.validate(); err != nil {
			faults = append(faults, fmt.Errorf("export %d: %w", i, err))
		}
		if names[x.Name] {
			faults = append(faults, fmt.Errorf("export %d: name %q stands twice", i, x.Name))
		}
		names[x.Name] = true
	}
	return errors.Join(faults...)
}

// Export is a system outside that lines are handed to.
type Export struct {
	// Name names its place in the stream, which it keeps: [a-z0-9-]{1,32}. There is no default.
	Name string

	// To takes the lines. There is no default.
	To Exporter

	// Batch is how many lines it gets at once at most. Defaults to 100.
	Batch int

	// From is the first line's time; earlier ones are passed over. It counts when the export is new. Defaults to the first line kept.
	From time.Time

	// DeadLetters is the file that takes, one JSON line each, the lines that To will never take, and why. Defaults to
	// biller/<name>.dead.jsonl in the data directory.
	DeadLetters string

	// AckWait is how long the stream waits for a batch to be acknowledged before it gives it again; while To is tried the time is renewed.
	// Defaults to 30 s.
	AckWait time.Duration

	// FirstWait is the pause before the first try again; it is doubled up to MaxWait, unless the receiver asks for more. Default to 100 ms and
	// 1 minute.
	FirstWait, MaxWait time.Duration

	// Orgs are those whose lines it gets. Defaults to all.
	Orgs []events.Org
}

var exportName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

const maxBatch = 1000

func (x Export) withDefaults() Export {
	if x.Batch == 0 {
		x.Batch = 100
	}
	if x.AckWait == 0 {
		x.AckWait = 30 * time.Second
	}
	if x.FirstWait == 0 {
		x.FirstWait = firstWait
	}
	if x.MaxWait == 0 {
		x.MaxWait = time.Minute
	}
	return x
}

func (x Export) validate() error {
	switch {
	case !exportName.MatchString(x.Name):
		return fmt.Errorf("name %q: does not match %s", x.Name, exportName)
	case x.To == nil:
		return errors.New("to: is missing")
	case x.Batch < 0 || x.Batch > maxBatch:
		return fmt.Errorf("batch %d: is not from 1 to %d", x.Batch, maxBatch)
	}
	return nil
}
