package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
)

// Bounds of changes.
const (
	// ChangeWithin bounds a change, and each of its calls by what is left.
	ChangeWithin = 20 * time.Second

	// largeWithin bounds a change of more than largeFrom records.
	largeWithin = 2 * time.Minute
	largeFrom   = 1_000

	// fenceWithin bounds the publication of fences: what the log does not take in time is refused.
	fenceWithin = 5 * time.Second

	// seenWithin is how long a change that was made is waited for in the mirror.
	seenWithin = 5 * time.Second

	// MaxOrgs is how many orgs one change may touch: each has its own fence.
	MaxOrgs = 10_000

	// conflicts is how often a change is tried again because another came first.
	conflicts = 10

	// fencers is how many fences are published at once.
	fencers = 64
)

// Log is where fences are published; it is a journal.Log.
type Log interface {
	Publish(ctx context.Context, ev events.Event) (seq uint64, err error)
	Last(ctx context.Context, subject string) ([]events.Record, uint64, error)
}

// Config is what an Authority works with. All fields are required.
type Config struct {
	Backend Backend
	Mirror  *Mirror // of the same backend; it must run
	Log     Log
	Source  string        // who makes the changes: the source of the fences' events
	NewID   func() string // a new unique id, in [A-Za-z0-9-]
}

// Authority makes changes, one after another.
type Authority struct {
	config Config
	turn   chan struct{}
}

// New makes an authority.
func New(config Config) *Authority {
	return &Authority{config: config, turn: make(chan struct{}, 1)}
}

// Mirror is what the authority decides on.
func (a *Authority) Mirror() *Mirror { return a.config.Mirror }

// Tx is one change while it is decided. State is what it decides on, and must not be kept.
type Tx struct {
	State  *authority.State
	Static *authority.Snapshot

	puts  map[authority.Ref]authority.Record // nil: taken away
	order []authority.Ref
	orgs  map[events.Org]bool
}

// Put puts a record in place of the one with its name.
func (tx *Tx) Put(r authority.Record) { tx.write(r.Ref(), r) }

// Delete takes a record away, if it is there.
func (tx *Tx) Delete(ref authority.Ref) {
	if tx.Get(ref) != nil {
		tx.write(ref, nil)
	}
}

// Touch raises an org's version, whatever else changes.
func (tx *Tx) Touch(org events.Org) { tx.orgs[org] = true }

// Get finds a record as it will be; nil if there will be none.
func (tx *Tx) Get(ref authority.Ref) authority.Record {
	if r, there := tx.puts[ref]; there {
		return r
	}
	return tx.State.Get(ref)
}

func (tx *Tx) write(ref authority.Ref, r authority.Record) {
	if _, there := tx.puts[ref]; !there {
		tx.order = append(tx.order, ref)
	}
	tx.puts[ref] = r
	tx.orgs[ref.Org] = true
}

// Done is a change that was made.
type Done struct {
	Mark     Mark
	Versions map[events.Org]int64  // of the orgs that it touched
	Fences   map[events.Org]uint64 // sequences in the log
}

// Change makes a change, whole or not at all. decide is called on the newest state, perhaps several times, and writes to its Tx; its
// error refuses the change and is given back as it is; writing nothing changes nothing. Of other errors, Unavailable means that nothing can
// be changed now; then, if the error is not Unsure, nothing was. When Change returns, the mirror has the change.
func (a *Authority) Change(ctx context.Context, decide func(*Tx) error) (Done, error) {
	ctx, cancel := context.WithTimeout(ctx, largeWithin)
	defer cancel()
	done, err := a.made(ctx, decide)
	if err == nil {
		seen, cancelSeen := context.WithTimeout(ctx, seenWithin)
		defer cancelSeen()
		_ = a.config.Mirror.Reached(seen, done.Mark) // made it is, seen or not
	}
	return done, err
}

// made makes a change when it is its turn. It returns before there is a snapshot of it, so that several may go into one.
func (a *Authority) made(ctx context.Context, decide func(*Tx) error) (Done, error) {
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return Done{}, &failure{err: fmt.Errorf("wait for other changes: %w", ctx.Err()), unavailable: true}
	}
	id := a.config.NewID()
	for try := 0; ; try++ {
		done, err := a.try(ctx, fmt.Sprintf("%s-%d", id, try), decide)
		if !Conflict(err) || try == conflicts {
			if Conflict(err) {
				err = &failure{err: err, unavailable: true}
			}
			return done, err
		}
	}
}

func (a *Authority) try(ctx context.Context, id string, decide func(*Tx) error) (Done, error) {
	head, err := a.config.Backend.Head(ctx)
	if err != nil {
		return Done{}, err
	}
	reach, cancel := context.WithTimeout(ctx, ChangeWithin)
	defer cancel()
	if err := a.config.Mirror.took(reach, head); err != nil {
		return Done{}, &failure{err: fmt.Errorf("wait for change %d: %w", head.N, err), unavailable: true}
	}
	tx, base, err := a.decide(decide)
	if err != nil || len(tx.orgs) == 0 {
		return Done{Mark: base}, err
	}
	if base.N != head.N { // the mirror was ahead of what was read
		if head, err = a.config.Backend.Head(ctx); err != nil {
			return Done{}, err
		}
	}
	if base.N != head.N {
		return Done{}, &failure{err: fmt.Errorf("change %d came first", head.N), conflict: true}
	}
	if len(tx.order) <= largeFrom {
		ctx, cancel = context.WithTimeout(ctx, ChangeWithin)
		defer cancel()
	}
	done := Done{}
	if done.Versions, err = a.versions(ctx, tx); err != nil {
		return Done{}, err
	}
	writes, err := tx.writes(done.Versions)
	if err != nil {
		return Done{}, err
	}
	done.Mark, err = a.config.Backend.Commit(ctx, head, id, writes, func(ctx context.Context) (err error) {
		done.Fences, err = a.fence(ctx, id, done.Versions)
		return err
	})
	if Unsure(err) {
		if head, again := a.config.Backend.Head(ctx); again == nil && head.ID == id {
			done.Mark, err = head, nil
		}
	}
	if err != nil {
		return Done{}, err
	}
	return done, nil
}

// decide calls the caller's decision on the state of the mirror.
func (a *Authority) decide(decide func(*Tx) error) (*Tx, Mark, error) {
	m := a.config.Mirror
	m.mu.RLock()
	defer m.mu.RUnlock()
	tx := &Tx{State: m.overlay.State(), Static: m.overlay.Static(), puts: map[authority.Ref]authority.Record{}, orgs: map[events.Org]bool{}}
	if err := decide(tx); err != nil {
		return nil, m.mark, err
	}
	if len(tx.orgs) > MaxOrgs {
		return nil, m.mark, &failure{err: fmt.Errorf("the change touches %d orgs: at most %d at once", len(tx.orgs), MaxOrgs), tooLarge: true}
	}
	if len(tx.order)+len(tx.orgs) > MaxWrites {
		return nil, m.mark, &failure{err: fmt.Errorf("the change writes %d records: at most %d at once", len(tx.order)+len(tx.orgs), MaxWrites), tooLarge: true}
	}
	for org := range tx.orgs { // the org's record has its version
		ref := authority.Ref{Org: org, Kind: authority.KindOrg}
		if tx.Get(ref) == nil {
			tx.write(ref, &authority.OrgRecord{Org: org})
		} else if _, there := tx.puts[ref]; !there {
			tx.write(ref, tx.State.Org(org).Record)
		}
	}
	return tx, m.mark, nil
}

// versions gives every org that the change touches a version above all before it, in the store and in the log.
func (a *Authority) versions(ctx context.Context, tx *Tx) (map[events.Org]int64, error) {
	versions := make(map[events.Org]int64, len(tx.orgs))
	a.config.Mirror.Read(func(s *authority.State, _ *authority.Snapshot) {
		for org := range tx.orgs {
			versions[org] = s.Version(org) + 1
		}
	})
	var mu sync.Mutex
	err := a.every(ctx, versions, func(ctx context.Context, org events.Org, next int64) error {
		logged, err := a.logged(ctx, org)
		if err == nil && logged >= next {
			mu.Lock()
			versions[org] = logged + 1
			mu.Unlock()
		}
		return err
	})
	return versions, err
}

// fence publishes the fence of every org that the change touches, and gives their places in the log.
func (a *Authority) fence(ctx context.Context, id string, versions map[events.Org]int64) (map[events.Org]uint64, error) {
	fences := make(map[events.Org]uint64, len(versions))
	var mu sync.Mutex
	err := a.every(ctx, versions, func(ctx context.Context, org events.Org, version int64) error {
		seq, err := a.config.Log.Publish(ctx, events.Event{ID: "fence/" + string(org) + "/" + id, Source: a.config.Source, Org: org,
			Data: &events.Fence{Org: org, Version: version}})
		if err != nil {
			return &failure{err: fmt.Errorf("publish the fence of org %s: %w", org, err), unavailable: true}
		}
		mu.Lock()
		fences[org] = seq
		mu.Unlock()
		return nil
	})
	return fences, err
}

// every calls f for every org, some at a time.
func (a *Authority) every(ctx context.Context, versions map[events.Org]int64, f func(context.Context, events.Org, int64) error) error {
	ctx, cancel := context.WithTimeout(ctx, max(fenceWithin, time.Duration(len(versions))*10*time.Millisecond))
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(fencers)
	for org, version := range maps.Clone(versions) {
		group.Go(func() error { return f(ctx, org, version) })
	}
	return group.Wait()
}

// logged is the version of the org's newest fence in the log; 0 if the log holds none.
func (a *Authority) logged(ctx context.Context, org events.Org) (int64, error) {
	records, _, err := a.config.Log.Last(ctx, events.Subject{Org: org, Kind: events.KindFence}.String())
	if err != nil {
		return 0, &failure{err: fmt.Errorf("read the fence of org %s: %w", org, err), unavailable: true}
	}
	for i := range records {
		if f, ok := records[i].Data.(*events.Fence); ok && records[i].Fault == "" {
			return f.Version, nil
		}
	}
	return 0, nil
}

// writes are the change's records as they are kept, with the orgs' new versions.
func (tx *Tx) writes(versions map[events.Org]int64) ([]Write, error) {
	all := make([]Write, 0, len(tx.order))
	for _, ref := range tx.order {
		r := tx.puts[ref]
		if r == nil {
			all = append(all, Write{Ref: ref})
			continue
		}
		if o, ok := r.(*authority.OrgRecord); ok {
			raised := *o
			raised.Version = versions[ref.Org]
			r = &raised
		}
		value, err := json.Marshal(r)
		if err != nil {
			return nil, fmt.Errorf("write record %s: %w", ref, err)
		}
		if len(value) > MaxRecord {
			return nil, &failure{err: fmt.Errorf("record %s is %d bytes long: at most %d", ref, len(value), MaxRecord), tooLarge: true}
		}
		all = append(all, Write{ref, value})
	}
	return all, nil
}

// Behind is an org whose fence in the log is above its version in the store: its reserves are refused until it is repaired.
type Behind struct {
	Org    events.Org
	Store  int64 // version
	Fenced int64 // version
}

// Behind lists the orgs whose fence was published for a change that was not committed.
func (a *Authority) Behind(ctx context.Context) ([]Behind, error) {
	versions := map[events.Org]int64{events.Platform: 0}
	for org := range a.config.Mirror.Current().Orgs {
		versions[org] = 0
	}
	a.config.Mirror.Read(func(s *authority.State, _ *authority.Snapshot) {
		for org := range s.Orgs() {
			versions[org] = s.Version(org)
		}
	})
	var all []Behind
	for _, org := range slices.Sorted(maps.Keys(versions)) {
		fenced, err := a.logged(ctx, org)
		if err != nil {
			return nil, err
		}
		if fenced > versions[org] {
			all = append(all, Behind{org, versions[org], fenced})
		}
	}
	return all, nil
}

// Repair raises an org's version above its newest fence, and changes nothing else.
func (a *Authority) Repair(ctx context.Context, org events.Org) error {
	_, err := a.Change(ctx, func(tx *Tx) error { tx.Touch(org); return nil })
	return err
}
