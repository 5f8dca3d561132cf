package auditor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/estimator"
	"github.com/weirhq/weir/services/follow"
)

// When records are written.
const (
	pageEvery  = 200 * time.Millisecond // all that have changed, and the position, to a Store
	pageSize   = 2048                   // changed records that are not kept waiting for it
	pageMost   = 8192                   // records of one write
	turnEvery  = 20 * time.Millisecond  // those that are complete
	restAfter  = 300 * time.Millisecond // without anything new from the log: all that have changed
	storeEvery = time.Second            // all that have changed, and the position
	manyChange = 512                    // changed records that are not kept waiting
	finishFor  = 5 * time.Second        // for the last writes when the auditor stops
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
	cfg  Config
	warn func(doing string, err error)

	mu     sync.Mutex
	status Status
	ratios map[string]estimator.Ratio
}

// New makes an auditor; Run runs it.
func New(cfg Config) (*Auditor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("make the auditor: %w", err)
	}
	cfg = cfg.withDefaults()
	return &Auditor{cfg: cfg, warn: follow.NewWarnings("auditor", cfg.Logger, cfg.Now).Warn, ratios: map[string]estimator.Ratio{}}, nil
}

// Status says where the auditor stands.
func (a *Auditor) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status
}

// Ratio gives what this auditor has learned of a model's tokens per byte, while it is the one that writes.
func (a *Auditor) Ratio(model string) estimator.Ratio {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r, ok := a.ratios[model]; ok {
		return r
	}
	return estimator.FirstRatio
}

// Run writes records until ctx ends, while it holds the lease if it is not alone. Then it writes what it has and returns nil. A broker that
// is away is waited for. The error is of a connection that was closed, or of a log that cannot be read for another reason than its loss.
func (a *Auditor) Run(ctx context.Context) error {
	return follow.Election{Conn: a.cfg.Conn, Role: access.Auditor, Name: a.cfg.Name, Replicas: a.cfg.Replicas, Now: a.cfg.Now, Alone: a.cfg.Alone, Joins: a.cfg.Joins, Logger: a.cfg.Logger}.
		Turns(ctx, a.work)
}

// work writes records until ctx ends. What it knows may turn out to be out of date, as when the records were rebuilt: then it begins anew.
func (a *Auditor) work(ctx context.Context) error {
	store := a.cfg.Store
	if store == nil {
		kept, err := newKV(a.cfg, a.warn)
		if err != nil {
			return fmt.Errorf("run the auditor: %w", err)
		}
		store = kept
	}
	if c, ok := store.(interface{ Close() }); ok {
		defer c.Close()
	}
	for {
		w := &worker{a: a, store: store}
		err := w.begin(ctx)
		if err == nil {
			a.note(func(s *Status) { s.Active = true })
			err = w.run(ctx)
			a.note(func(s *Status) { s.Active = false })
		}
		switch {
		case ctx.Err() != nil || err == nil:
			return nil
		case !moved(err):
			return fmt.Errorf("run the auditor: %w", err)
		}
		a.warn("begin anew", err)
		if follow.Pause(ctx, retryPause) != nil {
			return nil
		}
	}
}

func (a *Auditor) note(change func(*Status)) {
	a.mu.Lock()
	change(&a.status)
	a.mu.Unlock()
}
