package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/store"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/projections/postgres/audit"
	"github.com/weirhq/weir/services/auditor"
	"github.com/weirhq/weir/services/ledger"
)

// authorityWithin bounds the reading of the authority's store.
const authorityWithin = 30 * time.Second

// errUnknown refuses to go on with an empty allowance.
var errUnknown = errors.New("what balances, budgets and fences were is not known: find a projector's snapshots, or the database with the audit, and run this again; to go on without, run it with --accept-unknown (prepaid orgs then have nothing until they are credited anew, spend caps and daily budgets begin unused)")

// heldBefore is what is known of the log before.
type heldBefore struct {
	*ledger.Past
	records map[events.RequestID]*generation.Record // of requests that the log as it is has not at their end
	used    uint64                                  // the last sequence of this very log that is known to have been used
}

// past finds what was held before the log was lost.
func (r *recovery) past(ctx context.Context, old ledger.Mark, found bool, present *admission.Fold) (*heldBefore, error) {
	before := old.Created
	if !found {
		switch {
		case len(r.snapshots) > 0:
			before = r.snapshots[0].created
		case r.info.Last > 0:
			before = r.info.Created // nothing speaks of another
		}
	}
	whole, err := r.leads(ctx, &old, found, before)
	if err != nil {
		return nil, err
	}
	base, from := r.base(before, whole, present)
	p := &heldBefore{records: map[events.RequestID]*generation.Record{}}
	empty := base == nil
	if empty {
		base = admission.New()
	}
	p.Past = ledger.PastOf(base, r.now.UnixNano())
	if whole && r.kept.seq < r.info.Last {
		r.say("it was cut after sequence %d, and gateways wrote on before they noticed", r.kept.seq)
		if base.Seq() == present.Seq() { // the log as it is
			p.Until(r.kept.seq, r.kept.at)
		}
	}
	kept, err := r.forward(ctx, p, before, present)
	if err != nil {
		return nil, err
	}
	if found && whole && max(old.Seq, base.Seq(), kept.To) <= r.info.Last && old.Recovered.IsZero() && !r.clock {
		r.say("the log is the one that its mark names, and nothing here tells of another: if one was used before, what it held is not known")
		if !r.unknown {
			return nil, errUnknown
		}
	}
	if empty {
		if why := r.incomplete(before, found, kept); why != "" {
			r.say("%s", why)
			if !r.unknown {
				return nil, errUnknown
			}
		}
		from = "the audit alone"
	}
	if before.Equal(r.info.Created) {
		p.used = max(kept.To, base.Seq())
		if found {
			p.used = max(p.used, old.Seq)
		}
	}
	r.say("what was held before is taken from %s, as of sequence %d, and from the audit up to %d", from, p.Seq(), kept.To)
	r.doubt(p, old, found, kept, empty)
	return p, r.authority(ctx, p.Fences)
}

// leads says whether the log as it is begins the one before, cut short or whole.
func (r *recovery) leads(ctx context.Context, old *ledger.Mark, found bool, before time.Time) (bool, error) {
	if !before.Equal(r.info.Created) {
		return false, nil
	}
	if !found || old.Seq > r.info.Last || old.Tail == "" || old.Seq < r.info.First {
		return true, nil
	}
	tail := ""
	err := r.log.Read(ctx, old.Seq, old.Seq, func(rec events.Record) error { tail = ledger.Tail(&rec); return nil })
	return tail == old.Tail, err
}

// base is the newest fold of the log before, and where it is from: a snapshot, or the log itself if it goes further; nil if there is none.
func (r *recovery) base(before time.Time, whole bool, present *admission.Fold) (*admission.Fold, string) {
	for i := range r.snapshots {
		s := &r.snapshots[i]
		if s.created.Equal(before) && !(whole && s.seq <= r.info.Last) {
			return s.fold, s.path
		}
	}
	if whole {
		return cloned(present), "the log as it is"
	}
	return nil, ""
}

// auditReader reads what the audit keeps.
type auditReader interface {
	After(ctx context.Context, log generation.Instant, seq uint64, at generation.Instant, each func([]byte) error) (generation.Kept, error)
}

func (r *recovery) audit() auditReader {
	if r.n.pool != nil {
		return audit.NewReader(r.n.pool)
	}
	return auditor.NewReader(r.n.conn)
}

// forward brings what is known forward by what the audit keeps.
func (r *recovery) forward(ctx context.Context, p *heldBefore, before time.Time, present *admission.Fold) (kept generation.Kept, err error) {
	if before.IsZero() {
		return kept, nil
	}
	n, from, at := 0, p.Seq(), p.Now()
	if before.Equal(r.info.Created) && r.kept.seq < from { // the ends of what runs in the log are asked for, too
		from, at = r.kept.seq, r.kept.at
	}
	kept, err = r.audit().After(ctx, generation.Instant(before.UnixNano()), from, generation.Instant(at), func(text []byte) error {
		rec := &generation.Record{}
		if err := json.Unmarshal(text, rec); err != nil {
			return fmt.Errorf("read an audit record: %w", err)
		}
		if p.Record(rec); rec.AsOf.Seq > p.Seq() {
			n++
		}
		if stands, known := present.Standing(rec.ID); known && !stands.Settled {
			p.records[rec.ID] = rec
		}
		return nil
	})
	if err != nil {
		return kept, err
	}
	kept.Facts = slices.DeleteFunc(kept.Facts, func(f generation.Fact) bool { return f.At.Seq <= p.Seq() })
	for i := range kept.Facts {
		p.Fact(&kept.Facts[i])
	}
	r.say("the audit tells of %d requests and %d credits, fences and recoveries beyond sequence %d", n, len(kept.Facts), p.Seq())
	return kept, nil
}

// incomplete says why the audit does not tell the whole of a log.
func (r *recovery) incomplete(before time.Time, found bool, kept generation.Kept) string {
	retention := r.n.config.Audit.Retention
	if retention == 0 {
		retention = auditor.DefaultTTL
		if r.n.pool != nil {
			retention = audit.DefaultRetention
		}
	}
	switch {
	case !found && before.IsZero():
		return "nothing is left that tells of a log before: no mark, no snapshot"
	case kept.To == 0:
		return "no snapshot of a projector is there, and no audit of that log"
	case before.Before(r.now.Add(-retention)):
		return fmt.Sprintf("no snapshot of a projector is there, and the audit keeps %s: the log before was made %s, so that the first credits and this month's spend may be missing", retention, at(before))
	}
	for _, f := range kept.Facts {
		if f.Kind == generation.FactGap || f.Kind == generation.FactRecover && f.To > 0 {
			return fmt.Sprintf("no snapshot of a projector is there, and the audit does not tell all of the log before: it lacks credits, fences or requests of sequences %d to %d", f.From, f.To)
		}
	}
	return ""
}

// doubt says what is not known for sure.
func (r *recovery) doubt(p *heldBefore, old ledger.Mark, found bool, kept generation.Kept, empty bool) {
	if to := max(p.Seq(), kept.To); found && to < old.Seq {
		r.say("what came after sequence %d is not known: sequence %d was used", to, old.Seq)
	}
	for _, f := range kept.Facts {
		if !empty && (f.Kind == generation.FactGap || f.Kind == generation.FactRecover && f.To > 0) {
			r.say("the audit does not tell of sequences %d to %d: credits and usage of that time may be missing", f.From, f.To)
		}
	}
	if p.Undecided > 0 {
		r.say("of %d attempts no verdict is known: those that run are published again by their gateways", p.Undecided)
	}
	for _, m := range slices.Sorted(maps.Keys(p.Budgets)) {
		if b := p.Budgets[m]; b.Used < 0 {
			r.say("%s came to %d, which cannot be: its org's records do not agree with the snapshot", m, b.Used)
		}
	}
}

// authority raises fences to the versions that the authority's store has.
func (r *recovery) authority(ctx context.Context, fences map[events.Org]int64) error {
	ctx, cancel := context.WithTimeout(ctx, authorityWithin)
	defer cancel()
	var from interface {
		Follow(ctx context.Context, to func(store.Update)) error
	}
	if r.n.pool != nil {
		from = store.OpenPostgres(r.n.pool, store.PostgresConfig{})
	} else {
		kv, err := store.OpenKV(ctx, r.n.conn, store.KVConfig{})
		if err != nil {
			return err
		}
		from = kv
	}
	reading, stop := context.WithCancel(ctx)
	defer stop()
	var fault error
	read := false
	err := from.Follow(reading, func(u store.Update) {
		defer stop()
		for _, w := range u.Writes {
			if read || w.Ref.Kind != authority.KindOrg || w.Value == nil {
				continue
			}
			var org authority.OrgRecord
			if err := json.Unmarshal(w.Value, &org); err != nil {
				fault = errors.Join(fault, fmt.Errorf("read the authority's record of org %s: %w", w.Ref.Org, err))
				continue
			}
			fences[w.Ref.Org] = max(fences[w.Ref.Org], org.Version)
		}
		read = true
	})
	if !read && err == nil {
		err = ctx.Err()
	}
	if read {
		err = nil
	}
	if err := errors.Join(err, fault); err != nil {
		return fmt.Errorf("read the versions of orgs from the authority's store: %w", err)
	}
	return nil
}
