package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/projections/postgres/audit"
	"github.com/weirhq/weir/projections/usage"
)

// auditRecords is where audit records are kept.
type auditRecords interface {
	// each gives every record, with what is kept beside it and says otherwise, the sequence of a log up to which they tell, and what says
	// whether a record made at an instant may be gone by now; gone is nil if no records are kept.
	each(ctx context.Context, log journal.Info, each func(rec *generation.Record, otherwise []string) error) (position uint64, gone func(at int64) bool, err error)
}

// bucketRecords are those in the bucket.
type bucketRecords struct{ streams }

func (b bucketRecords) each(ctx context.Context, log journal.Info, each func(*generation.Record, []string) error) (position uint64, gone func(int64) bool, err error) {
	stream := access.BucketStream(access.BucketGenerations)
	state, err := b.state(ctx, stream)
	if err != nil || state == nil || state.State.Msgs == 0 {
		return 0, nil, err
	}
	prefix := "$KV." + access.BucketGenerations + "."
	err = b.read(ctx, stream, "", state.State.FirstSeq, state.State.LastSeq, func(m *journal.Stored) error {
		if key := m.Subject[min(len(prefix), len(m.Subject)):]; len(key) > 0 && key[0] == '_' {
			var p struct {
				Seq     uint64
				Created time.Time
			}
			if json.Unmarshal(m.Data, &p) == nil && p.Created.Equal(log.Created) {
				position = max(position, p.Seq)
			}
			return nil
		}
		var rec generation.Record
		if err := json.Unmarshal(m.Data, &rec); err != nil || m.Subject != prefix+generation.Key(rec.ID) {
			return nil // a mark of something deleted
		}
		return each(&rec, nil)
	})
	return position, func(at int64) bool { return noLongerKept(state, at) }, err
}

// tableRecords are those in the database.
type tableRecords struct {
	reader    *audit.Reader
	retention time.Duration
}

func (t tableRecords) each(ctx context.Context, log journal.Info, each func(*generation.Record, []string) error) (position uint64, gone func(int64) bool, err error) {
	at, found, err := t.reader.Each(ctx, each)
	if err != nil || !found {
		return 0, nil, err
	}
	if int64(at.Log) == log.Created.UnixNano() {
		position = at.Seq
	}
	oldest := time.Now().Add(-t.retention)
	return position, func(at int64) bool { return time.Unix(0, at).Before(oldest) }, nil
}

// audit compares the records of requests with what the log comes to.
func (v *verifier) audit(ctx context.Context, records auditRecords, log journal.Info) error {
	k := &keptCount{}
	seen := map[attemptKey]bool{}
	runs := map[events.RequestID]uint64{} // by the audit, as of which sequence
	position, gone, err := records.each(ctx, log, func(rec *generation.Record, otherwise []string) error {
		if len(otherwise) > 0 {
			v.differs(difference{What: "an audit record's rows", Org: rec.Org, Day: dayOf(int64(rec.CreatedAt)), Request: rec.ID, Kept: strings.Join(otherwise, "; ")})
		}
		if rec.State == "" {
			return nil // rows without a record
		}
		if rec.AsOf.Log != 0 && int64(rec.AsOf.Log) != log.Created.UnixNano() {
			k.Outside++
			return nil
		}
		v.audited(k, rec, seen)
		if rec.State == generation.InProgress {
			runs[rec.ID] = rec.AsOf.Seq
		}
		return nil
	})
	if err != nil || gone == nil {
		return err
	}
	v.report.Audit = k
	for id, seq := range runs {
		if lost, says := v.lapsed[id]; says && lost <= position {
			v.differs(difference{What: "the audit has a request that runs, and it was lost", Request: id, Seq: lost, Kept: fmt.Sprintf("as of sequence %d", seq)})
		}
	}
	for key, b := range v.attempts {
		switch {
		case seen[key] || !b.final:
			b.noAudit = b.noAudit || !seen[key] && b.log != (usage.Amounts{})
		case b.seq > position:
			k.Behind++
			b.noAudit = true
		case gone(b.at):
			k.Outside++
			b.noAudit = true
		default:
			v.differs(difference{What: "a request has no audit record", Org: b.org, Day: dayOf(b.at), Request: key.request, Attempt: key.attempt, Seq: b.seq})
		}
	}
	return nil
}

// audited compares one record.
func (v *verifier) audited(k *keptCount, rec *generation.Record, seen map[attemptKey]bool) {
	if rec.Org == events.Platform {
		return
	}
	for i := range rec.Attempts {
		a := &rec.Attempts[i]
		key := attemptKey{rec.ID, a.Attempt}
		b := v.attempts[key]
		if b == nil && (a.Seq < v.report.FromSeq || a.Seq > v.last || v.isGone(a.Seq)) || b != nil && !b.final && v.mayBeGone(a.Seq) || b != nil && !b.final && !v.whole {
			k.Outside++
			continue
		}
		kept, counted := auditedAmounts(a)
		d := difference{Org: rec.Org, Day: dayOf(int64(a.ReservedAt)), Request: rec.ID, Attempt: a.Attempt, Seq: a.Seq, Kept: fmt.Sprintf("%+v", kept)}
		switch {
		case b == nil || !b.final:
			if !counted || b != nil && b.log == kept {
				continue
			}
			if rec.AsOf.Seq <= v.last {
				d.What = "the audit has a final that the log does not come to"
			}
		case b.seq > rec.AsOf.Seq && b.log != kept: // the record is older than the final or its correction
			continue
		case b.log != kept:
			if rec.AsOf.Seq <= v.last { // else it may know of what came after
				d.What, d.Log = "another amount in the audit", fmt.Sprintf("%+v", b.log)
			}
		default:
			k.Agree++
		}
		seen[key] = true
		if b != nil {
			b.audit = kept
		}
		if d.What != "" {
			v.differs(d)
		}
	}
}

// auditedAmounts gives what an audit record says that an attempt came to; counted is false if it has no final.
func auditedAmounts(a *generation.Attempt) (kept usage.Amounts, counted bool) {
	if a.Verdict == generation.VerdictRefused || !a.Final && a.Correction == nil {
		return usage.Amounts{}, false
	}
	var u events.Usage
	if a.Usage != nil && a.Final {
		u = *a.Usage
	}
	if a.CostNano != nil {
		kept.CostNano = *a.CostNano
	}
	if c := a.Correction; c != nil {
		u, kept.CostNano = c.Usage, c.CostNano
	}
	kept.InputTokens, kept.CachedTokens, kept.CacheWriteTokens = u.InputTokens, u.CachedTokens, u.CacheWriteTokens
	kept.OutputTokens, kept.ReasoningTokens = u.OutputTokens, u.ReasoningTokens
	return kept, true
}
