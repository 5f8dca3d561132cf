package store

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
)

const (
	// buildEvery is how often at most a snapshot is made: what changes in between goes into one. A large one is made less often, so that
	// making snapshots takes at most a fifth of the time, but so often at least as buildLeast.
	buildEvery = 20 * time.Millisecond
	buildLeast = 100 * time.Millisecond

	// FreshWithin is how long Fresh waits for a change whose fence is in the log.
	FreshWithin = time.Second

	// verifyEvery is how often the store is asked whether the snapshot is all that there is.
	verifyEvery = 500 * time.Millisecond

	// VerifiedFor is how old the last verification may be while the store is taken to be there: a few looks.
	VerifiedFor = 2 * time.Second
)

// MirrorConfig says what a mirror shows. All fields without a default are required.
type MirrorConfig struct {
	Backend Backend

	// Static is the authority of the files, sealed.
	Static *authority.Snapshot

	// Credential gives what tells a connection's credential at the moment of a call, or nil if it cannot be opened. Defaults to none.
	Credential func(*authority.ConnectionRecord) func() string

	// Changed is told of each snapshot that differs from the last by more than keys: of its upstreams, perhaps. It is told
	// before the snapshot is the current one, and must not call the mirror. Defaults to nothing.
	Changed func(*authority.Snapshot)

	Now    func() time.Time
	Logger *slog.Logger // Defaults to none
}

// Mirror keeps dynamic authority as a backend has it, laid over that of the files. Until all of it has come, it shows that of the files
// and is not Ready.
type Mirror struct {
	config  MirrorConfig
	current atomic.Pointer[authority.Snapshot]
	ready   atomic.Bool
	work    chan struct{} // something is to be built

	mu      sync.RWMutex // held while records are changed or read, and while a snapshot is made of them
	overlay *authority.Overlay
	mark    Mark
	loaded  bool

	wait  sync.Mutex
	next  chan struct{} // closed with the next change or snapshot
	taken Mark          // of the records
	seen  Mark          // of the current snapshot

	unread   atomic.Int64
	verified atomic.Pointer[time.Time]
}

// NewMirror makes a mirror; Run fills it.
func NewMirror(config MirrorConfig) *Mirror {
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Mirror{config: config, overlay: authority.NewOverlay(config.Static, config.Credential), work: make(chan struct{}, 1), next: make(chan struct{})}
	m.current.Store(config.Static)
	return m
}

// Current is the snapshot to decide on. It never blocks.
func (m *Mirror) Current() *authority.Snapshot { return m.current.Load() }

// Ready says whether all dynamic authority has come.
func (m *Mirror) Ready() bool { return m.ready.Load() }

// Unread counts records that could not be read: another binary's, perhaps.
func (m *Mirror) Unread() int64 { return m.unread.Load() }

// Behind counts the changes that have come and are in no snapshot yet.
func (m *Mirror) Behind() uint64 {
	_, taken, seen := m.turn()
	return taken.N - min(seen.N, taken.N)
}

// Verified is the latest instant of which it is known that the current snapshot had all that the store held. Zero: there is none yet.
func (m *Mirror) Verified() time.Time {
	if at := m.verified.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// SetStatic takes another snapshot of the files into use; it is laid under the records at once.
func (m *Mirror) SetStatic(s *authority.Snapshot) {
	m.mu.Lock()
	m.overlay.SetStatic(s)
	loaded := m.loaded
	m.mu.Unlock()
	if !loaded {
		m.current.Store(s)
		return
	}
	m.build()
}

// Fresh gives the snapshot in which an org's authority has at least a version, or after a bounded wait the current one. It is for a
// gateway whose fence was stale: the fence is in the log before its change is committed.
func (m *Mirror) Fresh(ctx context.Context, org events.Org, atLeast int64) *authority.Snapshot {
	ctx, cancel := context.WithTimeout(ctx, FreshWithin)
	defer cancel()
	for {
		next, _, _ := m.turn()
		if s := m.Current(); s.Fence(org) >= atLeast {
			return s
		}
		select {
		case <-next:
		case <-ctx.Done():
			return m.Current()
		}
	}
}

// Reached waits until the current snapshot has all changes up to a mark.
func (m *Mirror) Reached(ctx context.Context, mark Mark) error {
	return m.await(ctx, func(_, seen Mark) bool { return m.Ready() && seen.N >= mark.N })
}

// took waits until the records have all changes up to a mark; a snapshot of them may be yet to come.
func (m *Mirror) took(ctx context.Context, mark Mark) error {
	return m.await(ctx, func(taken, _ Mark) bool { return m.Ready() && taken.N >= mark.N })
}

func (m *Mirror) await(ctx context.Context, holds func(taken, seen Mark) bool) error {
	for {
		next, taken, seen := m.turn()
		if holds(taken, seen) {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return &failure{err: context.Cause(ctx), unavailable: true}
		}
	}
}

func (m *Mirror) turn() (next <-chan struct{}, taken, seen Mark) {
	m.wait.Lock()
	defer m.wait.Unlock()
	return m.next, m.taken, m.seen
}

// announce wakes those who wait.
func (m *Mirror) announce(change func()) {
	m.wait.Lock()
	defer m.wait.Unlock()
	change()
	close(m.next)
	m.next = make(chan struct{})
}

// Read calls f with the records, which it may only read and only until it returns, and with the authority of the files.
func (m *Mirror) Read(f func(*authority.State, *authority.Snapshot)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	f(m.overlay.State(), m.overlay.Static())
}

// Run follows the backend until ctx ends.
func (m *Mirror) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return m.config.Backend.Follow(ctx, m.take) })
	group.Go(func() error { m.builds(ctx); return nil })
	group.Go(func() error { m.verifies(ctx); return nil })
	return group.Wait()
}

// verifies asks the store again and again whether the snapshot is all that there is.
func (m *Mirror) verifies(ctx context.Context) {
	t := time.NewTicker(verifyEvery)
	defer t.Stop()
	away := false
	for {
		err := m.verify(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !away:
			m.config.Logger.Warn("the authority cannot be verified now: it is decided on as it was last known", "error", err)
		case err == nil && away:
			m.config.Logger.Info("the authority is verified again")
		}
		away = err != nil
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// verify asks once. What the store answers was so when it was asked, at the earliest.
func (m *Mirror) verify(ctx context.Context) error {
	begin := m.config.Now()
	_, before, _ := m.turn()
	head, err := m.config.Backend.Head(ctx)
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, FreshWithin)
	defer cancel()
	if err := m.Reached(within, head); err != nil {
		return fmt.Errorf("wait for change %d: %w", head.N, err)
	}
	_, taken, _ := m.turn()
	if head.N < before.N || taken.N == head.N && taken.ID != head.ID {
		return fmt.Errorf("the store is at change %d %q, and %d %q was known", head.N, head.ID, before.N, before.ID)
	}
	m.verified.Store(&begin)
	return nil
}

// take takes in what the backend gives.
func (m *Mirror) take(u Update) {
	changes := make([]authority.Change, 0, len(u.Writes))
	for _, w := range u.Writes {
		c := authority.Change{Ref: w.Ref}
		if w.Value != nil {
			r, err := authority.DecodeRecord(w.Ref, w.Value)
			if err != nil {
				m.unread.Add(1)
				m.config.Logger.Error("a record of the authority cannot be read; it is passed over", "error", err)
				continue
			}
			c.Record = r
		}
		changes = append(changes, c)
	}
	m.mu.Lock()
	if u.Reset {
		m.overlay.Reset()
	}
	m.overlay.Apply(changes)
	m.mark, m.loaded = u.Mark, true
	m.announce(func() { m.taken = u.Mark })
	m.mu.Unlock()
	select {
	case m.work <- struct{}{}:
	default:
	}
}

// builds makes snapshots of what was taken in, and when a price begins.
func (m *Mirror) builds(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.work:
		case <-timer.C:
		}
		begin := m.config.Now()
		until := m.build()
		rest := min(max(4*m.config.Now().Sub(begin), buildEvery), buildLeast)
		timer.Reset(until)
		select {
		case <-ctx.Done():
			return
		case <-time.After(rest):
		}
	}
}

// build makes the snapshot of now and gives how long it holds at most.
func (m *Mirror) build() (until time.Duration) {
	m.mu.Lock()
	now := m.config.Now()
	s := m.overlay.Build(now)
	mark := m.mark
	until = time.Hour
	if at := m.overlay.NextPrice(); !at.IsZero() {
		until = min(until, max(at.Sub(now), buildEvery))
	}
	if m.config.Changed != nil && authority.OtherUpstreams(m.current.Load(), s) {
		m.config.Changed(s) // first: who decides on the new snapshot must find its upstreams
	}
	m.current.Store(s)
	m.ready.Store(true)
	m.announce(func() { m.seen = mark })
	m.mu.Unlock()
	return until
}
