package gateway

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/weirhq/weir/events"
	core "github.com/weirhq/weir/gateway"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/projector"
)

const (
	// behindEvery is how often fences are compared. An org is behind its fence when it is so twice: in between, a change is being made.
	behindEvery = 2 * time.Second

	// askedAtOnce bounds the orgs that the fold is asked of at once: while it answers, nobody is admitted.
	askedAtOnce = 1000

	// maxBehind bounds the orgs that are named.
	maxBehind = 100
)

// Behind is an org whose requests are refused because its fence in the log is above the version that its authority has: the change that
// the fence was for was not made.
type Behind struct {
	Org     events.Org `json:"org"`
	Version int64      `json:"version"`
	Fence   int64      `json:"fence,omitempty"` // 0: above the version, by what was refused here
}

// behind knows the orgs that are behind their fence: of a projector in the same process, or else by the requests that were refused.
type behind struct {
	g *Gateway

	mu   sync.Mutex
	met  map[events.Org]int64 // refused as stale at this version
	seen map[events.Org]Behind
	list []Behind

	judged *authority.Snapshot // held against its own keys last
	unfit  string              // which of them do not go with the files; empty: all do
}

// stale takes in that an org's reserve was refused as stale at a version, and that no newer one came.
func (b *behind) stale(org events.Org, version int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.met) < maxBehind {
		b.met[org] = version
	}
}

// run compares until ctx ends.
func (b *behind) run(ctx context.Context) {
	t := time.NewTicker(behindEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			b.look(ctx)
			b.judge()
		}
	}
}

// judge holds the keys made through the API against the files: those that a process starts with nobody has refused.
func (b *behind) judge() {
	s := b.g.mirror.Current()
	if s == b.judged || !b.g.mirror.Ready() {
		return
	}
	b.judged = s
	unfit := ""
	if err := b.g.fitsKeys(b.g.authority.Current()); err != nil {
		unfit = err.Error()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if unfit != "" && unfit != b.unfit {
		b.g.c.Logger.Error("keys made through the API do not go with the policy files", "error", unfit)
	}
	b.unfit = unfit
}

// look compares once. While the authority itself is not known well, it says nothing of orgs.
func (b *behind) look(ctx context.Context) {
	s := b.g.mirror.Current()
	fences := b.fences(ctx, s)
	b.mu.Lock()
	defer b.mu.Unlock()
	now := map[events.Org]Behind{}
	for org, version := range b.met {
		if s.Fence(org) > version {
			delete(b.met, org)
			continue
		}
		now[org] = Behind{Org: org, Version: version}
	}
	for org, fence := range fences {
		now[org] = Behind{org, s.Fence(org), fence}
	}
	var list []Behind
	for _, org := range slices.Sorted(maps.Keys(now)) {
		if b.seen[org] == now[org] && len(list) < maxBehind && b.g.standing() == core.Verified {
			list = append(list, now[org])
		}
	}
	for _, o := range list {
		if !slices.Contains(b.list, o) {
			b.g.c.Logger.Error("an org is behind its fence: its requests are refused until weir authority repair", "org", o.Org, "version", o.Version, "fence", o.Fence)
		}
	}
	b.seen, b.list = now, list
}

// fences are those above an org's version, as the projector of this process knows them.
func (b *behind) fences(ctx context.Context, s *authority.Snapshot) map[events.Org]int64 {
	if b.g.c.Projector == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, behindEvery)
	defer cancel()
	above, err := above(s, func(look fenceLook) (map[events.Org]int64, error) { return projector.Query(ctx, b.g.c.Projector, look) })
	if err != nil {
		return nil
	}
	return above
}

// fenceLook gives the fences of some orgs that are above their versions.
type fenceLook = func(*admission.Fold) map[events.Org]int64

// above asks for the fences of all orgs that are above their versions, of a bounded number at once.
func above(s *authority.Snapshot, ask func(fenceLook) (map[events.Org]int64, error)) (map[events.Org]int64, error) {
	all := map[events.Org]int64{}
	for orgs := range slices.Chunk(slices.Collect(maps.Keys(s.Orgs)), askedAtOnce) {
		above, err := ask(func(f *admission.Fold) map[events.Org]int64 {
			above := map[events.Org]int64{}
			for _, org := range orgs {
				if fence := f.Fence(org); fence > s.Fence(org) {
					above[org] = fence
				}
			}
			return above
		})
		if err != nil {
			return nil, err
		}
		maps.Copy(all, above)
	}
	return all, nil
}

// Behind lists the orgs that are behind their fence, as far as this process knows.
func (g *Gateway) Behind() []Behind {
	if g.behind == nil {
		return nil
	}
	g.behind.mu.Lock()
	defer g.behind.mu.Unlock()
	return slices.Clone(g.behind.list)
}

// Verified is when the authority made through the API was last verified against its store; ok is false where there is none.
func (g *Gateway) Verified() (at time.Time, ok bool) {
	if g.mirror == nil {
		return at, false
	}
	return g.mirror.Verified(), true
}

// degraded says what does not work while requests are admitted.
func (g *Gateway) degraded() (all []string) {
	if g.mirror == nil || !g.mirror.Ready() {
		return nil
	}
	switch age := time.Since(g.mirror.Verified()).Truncate(time.Second); g.standing() {
	case core.Bounded:
		all = append(all, fmt.Sprintf("the authority was last verified %s ago: keys made through the API are served as they were known, up to %s", age, g.c.Config.Dynamic.SnapshotMaxAge))
	case core.Expired:
		all = append(all, fmt.Sprintf("the authority was last verified %s ago: keys made through the API are refused", age))
	case core.Verified:
	}
	g.behind.mu.Lock()
	unfit := g.behind.unfit
	g.behind.mu.Unlock()
	if unfit != "" {
		all = append(all, "keys made through the API do not go with the policy files: "+unfit)
	}
	for _, o := range g.Behind() {
		all = append(all, fmt.Sprintf("org %s is behind its fence: its requests are refused until weir authority repair --org %s", o.Org, o.Org))
	}
	return all
}
