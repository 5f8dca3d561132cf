package auditor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/estimator"
	"github.com/weirhq/weir/projections/kv"
)

// When records are written.
const (
	turnEvery  = 20 * time.Millisecond  // those that are complete
	restAfter  = 300 * time.Millisecond // without anything new from the log: all that have changed
	storeEvery = time.Second            // all that have changed, and the position
	manyChange = 512                    // changed records that are not kept waiting
	finishFor  = 5 * time.Second        // for the last writes when the auditor stops
	warnEvery  = 10 * time.Second       // about the same thing
)

// Status is where an auditor stands.
type Status struct {
	Active   bool   // it is the one that writes
	Position uint64 // the last sequence that the stored records tell of
	Applied  uint64 // the last sequence taken
	Records  uint64 // records of the log applied since it became active
	Written  uint64 // records of requests written
	Restored uint64 // records of requests read back
	Orphans  uint64 // facts of requests that are not known
	Dropped  uint64 // facts beyond a record's bounds
	Foreign  uint64 // facts of a request under another org
	Held     int    // records in memory
	Pending  uint64 // messages of the log that are still to be read, if the source says
}

// Auditor writes the records. Its methods may be called at the same time.
type Auditor struct {
	cfg Config

	mu     sync.Mutex
	status Status
	ratios map[string]estimator.Ratio
	warned map[string]time.Time
}

// New makes an auditor; Run runs it.
func New(cfg Config) (*Auditor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("make the auditor: %w", err)
	}
	return &Auditor{cfg: cfg.withDefaults(), ratios: map[string]estimator.Ratio{}, warned: map[string]time.Time{}}, nil
}

// Status says where the auditor stands.
func (a *Auditor) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status
}

// Ratio gives what this auditor has learned of a model's tokens per byte.
func (a *Auditor) Ratio(model string) estimator.Ratio {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r, ok := a.ratios[model]; ok {
		return r
	}
	return estimator.FirstRatio
}

// warn logs a failure, but not the same thing again and again.
func (a *Auditor) warn(doing string, err error) {
	const most = 64
	a.mu.Lock()
	now := a.cfg.Now()
	last, known := a.warned[doing]
	quiet := known && now.Sub(last) < warnEvery
	if !quiet {
		if len(a.warned) >= most {
			clear(a.warned)
		}
		a.warned[doing] = now
	}
	a.mu.Unlock()
	if !quiet {
		a.cfg.Logger.Warn("auditor: "+doing, "error", err)
	}
}

// Run writes records until ctx ends, while it holds the lease if it is not alone. Then it writes what it has and returns nil. A broker that
// is away is waited for. The error is of a connection that was closed, or of a log that cannot be read for another reason than its loss.
func (a *Auditor) Run(ctx context.Context) error {
	if a.cfg.Alone {
		return a.work(ctx)
	}
	js, err := jetstream.New(a.cfg.Conn)
	if err != nil {
		return fmt.Errorf("run the auditor: %w", err)
	}
	lease := kv.NewLease(kv.LeaseConfig{JetStream: js, Bucket: access.BucketLeases, Key: string(access.Auditor), Holder: a.cfg.Name,
		Replicas: a.cfg.Replicas, Now: a.cfg.Now})
	group, ctx := errgroup.WithContext(ctx)
	turns := make(chan bool, 1)
	leased, release := context.WithCancel(context.WithoutCancel(ctx)) // kept until the last writes are done
	group.Go(func() error {
		return lease.Run(leased, func(held bool) {
			select {
			case <-turns: // only the last word counts
			default:
			}
			turns <- held
		})
	})
	group.Go(func() error {
		defer release()
		return a.takeTurns(ctx, turns)
	})
	return group.Wait()
}

// takeTurns works while the lease is held.
func (a *Auditor) takeTurns(ctx context.Context, turns <-chan bool) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case held := <-turns:
			for held {
				working, stop := context.WithCancelCause(ctx)
				done := make(chan error, 1)
				go func() { done <- a.work(working) }()
				select {
				case err := <-done:
					stop(nil)
					return err
				case held = <-turns:
					stop(errLost)
					if err := <-done; err != nil {
						return err
					}
				}
			}
		}
	}
}

var errLost = errors.New("another auditor writes")

// work writes records until ctx ends.
func (a *Auditor) work(ctx context.Context) error {
	s, err := newStore(a.cfg.Conn, a.warn)
	if err != nil {
		return fmt.Errorf("run the auditor: %w", err)
	}
	w := &worker{a: a, store: s}
	if err := w.begin(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("run the auditor: %w", err)
	}
	a.note(func(s *Status) { s.Active = true })
	defer a.note(func(s *Status) { s.Active = false })
	if err := w.run(ctx); err != nil {
		return fmt.Errorf("run the auditor: %w", err)
	}
	return nil
}

func (a *Auditor) note(change func(*Status)) {
	a.mu.Lock()
	change(&a.status)
	a.mu.Unlock()
}

// encode makes what is written of a record.
func encode(record any) []byte {
	text, err := json.Marshal(record)
	if err != nil { // cannot be: a record is strings, integers and times
		panic("auditor: " + err.Error())
	}
	return text
}
