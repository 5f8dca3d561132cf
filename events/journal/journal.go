package journal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events"
)

// Defaults of Config.
const (
	DefaultStream = "ACCOUNTING"
	DefaultMaxAge = 720 * time.Hour
)

// DuplicateWindow is how long the stream remembers ids. It must be longer than RetryFor and an election together.
const DuplicateWindow = 2 * time.Minute

// callFor bounds one call of the broker's API when the caller's context does not end earlier.
const callFor = 5 * time.Second

// Config says which stream holds the log.
type Config struct {
	// Stream is the stream's name. Defaults to ACCOUNTING.
	Stream string

	// Create makes the stream if there is none, and brings MaxAge, MaxBytes, Replicas and Compress of one that is there to what is asked for.
	// Roles that may not make streams leave it false. Defaults to false.
	Create bool

	// Replicas is how many servers hold the log: 1, 3 or 5. Defaults to 1.
	Replicas int

	// Compress has the broker compress the log on its disk with S2, to about a quarter. It does so 8 MB at a time, and whoever still has to
	// read from there waits: up to a tenth of a second every few seconds at 500 requests a second. Defaults to false.
	Compress bool

	// MaxAge is how long the log keeps a message. Defaults to 720 hours.
	MaxAge time.Duration

	// MaxBytes is how much the log may hold; beyond it the stream takes no more. Defaults to no bound.
	MaxBytes int64
}

func (c Config) withDefaults() Config {
	if c.Stream == "" {
		c.Stream = DefaultStream
	}
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	if c.MaxAge == 0 {
		c.MaxAge = DefaultMaxAge
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = -1
	}
	return c
}

// Validate names every fault of the configuration.
func (c Config) Validate() error {
	c = c.withDefaults()
	var faults []error
	if c.Replicas != 1 && c.Replicas != 3 && c.Replicas != 5 {
		faults = append(faults, fmt.Errorf("replicas %d: is none of 1, 3, 5", c.Replicas))
	}
	if c.MaxAge <= DuplicateWindow {
		faults = append(faults, fmt.Errorf("max age %s: is not longer than the duplicate window of %s", c.MaxAge, DuplicateWindow))
	}
	if c.MaxBytes < -1 {
		faults = append(faults, fmt.Errorf("max bytes %d: is negative", c.MaxBytes))
	}
	return errors.Join(faults...)
}

// Log is the log, through one connection. Its methods may be called at the same time.
type Log struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	config Config
}

// Info is the state of the log.
type Info struct {
	Created     time.Time // when the stream was made: the log's identity
	First, Last uint64    // sequences; First is Last+1 when it holds nothing
	Bytes       uint64    // what it holds
	MaxBytes    int64     // what it may hold, -1 for no bound
	Replicas    int
}

// Options are what a connection to the log needs: to come back for as long as it takes, and to keep nothing for later while it is
// away, since what may still be sent then is for the publisher to say.
func Options(name string) []nats.Option {
	return []nats.Option{
		nats.Name(name),
		nats.MaxReconnects(-1),
		nats.ReconnectBufSize(-1),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(50*time.Millisecond, 100*time.Millisecond),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
	}
}

// Open opens the log, or makes it if Config.Create says so. The error names the field of the stream's configuration that is not what
// must hold.
func Open(ctx context.Context, nc *nats.Conn, config Config) (*Log, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	l := &Log{nc: nc, js: js, config: config.withDefaults()}
	info, err := l.streamInfo(ctx)
	if errors.Is(err, jetstream.ErrStreamNotFound) && config.Create {
		info, err = l.create(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("open the log in stream %s: %w", l.config.Stream, unreachable(err))
	}
	if err := mustHold(&info.Config); err != nil {
		return nil, fmt.Errorf("open the log in stream %s: %w", l.config.Stream, err)
	}
	if config.Create {
		if err := l.adjust(ctx, info.Config); err != nil {
			return nil, fmt.Errorf("open the log in stream %s: %w", l.config.Stream, err)
		}
	}
	return l, nil
}

// Stream gives the name of the stream that holds the log.
func (l *Log) Stream() string { return l.config.Stream }

// Info asks the stream's leader for the log's state.
func (l *Log) Info(ctx context.Context) (Info, error) {
	s, err := l.streamInfo(ctx)
	if err != nil {
		return Info{}, fmt.Errorf("ask for the log's state: %w", unreachable(err))
	}
	return InfoOf(s), nil
}

// InfoOf is the state of a log, as its stream tells it.
func InfoOf(s *jetstream.StreamInfo) Info {
	info := Info{
		Created:  s.Created,
		First:    s.State.FirstSeq,
		Last:     s.State.LastSeq,
		Bytes:    s.State.Bytes,
		MaxBytes: s.Config.MaxBytes,
		Replicas: s.Config.Replicas,
	}
	if s.State.Msgs == 0 {
		info.First = info.Last + 1
	}
	return info
}

func (l *Log) streamInfo(ctx context.Context) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	s, err := l.js.Stream(ctx, l.config.Stream)
	if err != nil {
		return nil, err
	}
	info := s.CachedInfo()
	if info.State.Msgs == 0 {
		info.State.FirstSeq = info.State.LastSeq + 1
	}
	return info, nil
}

// unreachable marks err as the log's silence if it is.
func unreachable(err error) error {
	for _, silent := range []error{
		context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, nats.ErrConnectionClosed, nats.ErrDisconnected,
		nats.ErrReconnectBufExceeded, nats.ErrConnectionReconnecting, nats.ErrConnectionDraining,
		jetstream.ErrNoStreamResponse, jetstream.ErrJetStreamNotEnabled, jetstream.ErrJetStreamNotEnabledForAccount,
	} {
		if errors.Is(err, silent) {
			return &failure{err: err, unreachable: true}
		}
	}
	if api, ok := errors.AsType[*jetstream.APIError](err); ok && api.Code == 503 {
		return &failure{err: err, unreachable: true}
	}
	return err
}

// streamSubjects is what the stream holds.
const streamSubjects = events.Prefix + ".>"
