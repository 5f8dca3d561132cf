package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/postgres/sums"
	"github.com/weirhq/weir/projections/usage"
	"github.com/weirhq/weir/services/biller"
)

// live verifies a live log, and what is kept beside it.
func (v *verifier) live(ctx context.Context, l streams, dataDir string, records auditRecords, table *sums.Table, p *progress) error {
	state, err := l.state(ctx, journal.DefaultStream)
	if err == nil && state == nil {
		err = errors.New("there is no log")
	}
	if err != nil {
		return err
	}
	info := journal.InfoOf(state)
	from := info.First
	if v.chained = from == 1; !v.chained {
		start, found, err := biller.EarliestStart(dataDir, info.Created, from)
		switch {
		case err != nil:
			return err
		case !found:
			return fmt.Errorf("the log begins at sequence %d, and no biller's state in %s/biller reaches back to it: who was admitted cannot be known", from, dataDir)
		}
		from = start.Applied + 1
		v.continueFrom(start)
	}
	if err := v.log(ctx, l, from, info.Last, p); err != nil {
		return err
	}
	if err := v.billing(ctx, l, info); err != nil {
		return err
	}
	if records == nil {
		records = bucketRecords{l}
	}
	if err := v.audit(ctx, records, info); err != nil || table == nil {
		return err
	}
	return v.tables(ctx, table, info)
}

// log folds a stretch of a live log.
func (v *verifier) log(ctx context.Context, l streams, from, to uint64, p *progress) error {
	if err := v.corrections(ctx, l, from, to); err != nil {
		return err
	}
	v.next = from
	err := l.read(ctx, journal.DefaultStream, "", from, to, func(m *journal.Stored) error { return v.take(m, p) })
	if err == nil && v.next <= to {
		v.differs(difference{What: "the log lacks messages", Seq: v.next, Kept: fmt.Sprintf("nothing up to its end at sequence %d", to)})
	}
	return err
}

// take folds the log's next message.
func (v *verifier) take(m *journal.Stored, p *progress) error {
	if v.next != 0 && m.Seq != v.next {
		v.differs(difference{What: "the log lacks messages", Seq: v.next, Kept: fmt.Sprintf("nothing before sequence %d", m.Seq)})
	}
	v.next = m.Seq + 1
	v.message(m.Seq)
	if v.chained {
		v.chain = v.chain.Next(m.Seq, m.Subject, m.Header.Get(nats.MsgIdHdr), m.Data)
	}
	for _, r := range journal.Decode(m.Subject, m.Header, m.Data, m.Seq, m.At.UnixNano()) {
		p.step(&r)
		if err := v.record(&r); err != nil {
			return err
		}
	}
	return nil
}

// corrections notes which attempts the log corrects, so that of all others the lines need not be kept.
func (v *verifier) corrections(ctx context.Context, l streams, from, to uint64) error {
	v.corrected = map[attemptKey]bool{}
	subject := events.Subject{Org: "*", Kind: events.KindCorrection}.String()
	return l.read(ctx, journal.DefaultStream, subject, from, to, func(m *journal.Stored) error {
		for _, r := range journal.Decode(m.Subject, m.Header, m.Data, m.Seq, m.At.UnixNano()) {
			if d, ok := r.Data.(*events.Correction); ok {
				v.corrected[attemptKey{d.Request, d.Attempt}] = true
			}
		}
		return nil
	})
}

// billing compares the stream of lines with those that the log comes to.
func (v *verifier) billing(ctx context.Context, l streams, log journal.Info) error {
	state, err := l.state(ctx, biller.Stream)
	if err != nil || state == nil {
		return err
	}
	k := &keptCount{}
	v.report.Billing = k
	end := uint64(0) // the last line's sequence in this log
	created := log.Created.UTC().Format(time.RFC3339Nano)
	err = l.read(ctx, biller.Stream, "", state.State.FirstSeq, state.State.LastSeq, func(m *journal.Stored) error {
		l, err := usage.Decode(m.Data)
		if err != nil {
			v.differs(difference{What: "a line that cannot be read", Kept: fmt.Sprintf("sequence %d of %s: %v", m.Seq, biller.Stream, err)})
			return nil
		}
		if m.Header.Get("weir-log") != created {
			k.Outside++
			v.stray(&l, log.Created)
			return nil
		}
		at, _, _ := strings.Cut(m.Header.Get("weir-position"), ".")
		if seq, err := strconv.ParseUint(at, 10, 64); err == nil {
			end = max(end, seq)
		}
		v.billed(k, &l, m.Data, log.Created)
		return nil
	})
	if err != nil {
		return err
	}
	for id, mark := range v.lines {
		b := v.attempts[mark.key]
		switch {
		case mark.seen:
		case noLongerKept(state, b.at):
			k.Outside++
			b.noBill = true
		case mark.fell > end:
			k.Behind++
			b.noBill = true
		default:
			v.differs(difference{What: "a line is missing from billing", Org: b.org, Day: dayOf(b.at), Request: mark.key.request, Attempt: mark.key.attempt, Seq: mark.fell, Log: id})
		}
	}
	return nil
}

// billed compares one line of the stream.
func (v *verifier) billed(k *keptCount, l *usage.Line, text []byte, created time.Time) {
	mark := v.lines[l.EventID()]
	d := difference{Org: l.Org, Day: dayOf(int64(l.Time)), Request: l.Request, Attempt: l.Attempt, Seq: l.Seq, Kept: string(text)}
	b := v.attempts[attemptKey{l.Request, l.Attempt}]
	if mark == nil && (l.Seq < v.report.FromSeq || l.Seq > v.last) || v.isGone(l.Seq) {
		k.Outside++
		v.stray(l, created)
		if mark != nil { // what it tells was written to the log again
			mark.seen = true
			b.noBill = true
		}
		return
	}
	if b != nil {
		b.billed = b.billed.Plus(l.Change)
	}
	switch {
	case mark == nil:
		d.What = "a line that the log does not come to"
	case mark.seen:
		d.What = "a line stands twice in billing"
	case mark.sum != sumOf(text):
		d.What = "another line in billing"
		if b != nil {
			d.Log = fmt.Sprintf("the attempt comes to %+v", b.log)
		}
	default:
		k.Agree++
	}
	if mark != nil {
		mark.seen = true
	}
	if d.What != "" {
		v.differs(d)
	}
}

// stray notes that a line to which the log does not come counts in the usage tables. What is before the first day that is known does not matter.
func (v *verifier) stray(l *usage.Line, created time.Time) {
	at := int64(l.Time)
	if at < max(created.UnixNano(), v.since)/usage.Day*usage.Day {
		return
	}
	if l.State != usage.Corrected {
		v.strays[l.ID] = at
	} else if first, known := v.strays[l.ID]; known {
		at = first
	} else if b := v.attempts[attemptKey{l.Request, l.Attempt}]; b != nil && b.counts != 0 {
		at = b.counts
	}
	v.tallies.of(l, at).outside = true
}

// noLongerKept says whether a stream may have dropped what was written at an instant: by its age, or to make room.
func noLongerKept(s *jetstream.StreamInfo, at int64) bool {
	old := s.Config.MaxAge > 0 && time.Since(time.Unix(0, at)) >= s.Config.MaxAge
	full := s.Config.Discard == jetstream.DiscardOld && s.Config.MaxBytes > 0 && s.State.Bytes > uint64(s.Config.MaxBytes)/10*9
	return old || full && at <= s.State.FirstTime.UnixNano()
}

// money follows balances by what lines cost, apart from the fold: credits less debits is the total.
type money struct {
	totals  map[events.Meter]int64
	credits map[string]bool                   // org, 0, reference
	asked   map[events.RequestID]askedBalance // reserves with a balance claim
	holds   map[events.RequestID]events.Meter // requests that are debited
}

type askedBalance struct {
	seq   uint64
	meter events.Meter
}

func newMoney() money {
	return money{map[events.Meter]int64{}, map[string]bool{}, map[events.RequestID]askedBalance{}, map[events.RequestID]events.Meter{}}
}

func (m *money) record(r *events.Record) {
	if r.Fault != "" {
		return
	}
	switch d := r.Data.(type) {
	case *events.Credit:
		ref := string(d.Org) + "\x00" + d.Reference
		if m.credits[ref] || d.AmountNano > events.MaxAmount || d.AmountNano < -events.MaxAmount {
			return
		}
		m.credits[ref] = true
		m.totals[events.NewMeter(events.ScopeOrg, "balance", string(d.Org))] += d.AmountNano
	case *events.Reserve:
		for i := range d.Claims {
			if d.Claims[i].Kind == events.Balance {
				m.asked[d.Request] = askedBalance{r.Seq, d.Claims[i].Meter}
			}
		}
	}
}

// decided notes which requests are debited from now on. Verdicts come before the lines of the same record.
func (m *money) decided(v *events.Verdict) {
	if a, known := m.asked[v.Request]; known && a.seq == v.Seq {
		if delete(m.asked, v.Request); v.Admitted {
			m.holds[v.Request] = a.meter
		}
	}
}

func (m *money) line(l *usage.Line) {
	if meter, prepaid := m.holds[l.Request]; prepaid && l.State == usage.Settled {
		m.totals[meter] -= l.CostNano
	}
}

// check compares with the fold: credits - debits - holds = available.
func (m *money) check(f *admission.Fold, differs func(difference)) {
	for _, r := range f.Meters() {
		if r.Kind != events.Balance {
			continue
		}
		if want := m.totals[r.Meter]; r.Total != want || r.Available != want-r.Used {
			differs(difference{What: "a balance", Log: fmt.Sprintf("%s: credits less debits is %d, less holds %d", r.Meter, want, want-r.Used),
				Kept: fmt.Sprintf("total %d, available %d", r.Total, r.Available)})
		}
	}
}
