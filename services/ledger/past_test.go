package ledger_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/services/ledger"
)

// life draws a log of a few requests of an org with balances and budgets, with facts in any order and some of them twice, that may go on
// past midnight and the end of a month, but not for as long as it takes until ended requests are forgotten.
func life(t *rapid.T) (records []events.Record) {
	log := eventstest.NewLog(time.Date(2026, 6, 30, 23, 58, 0, 0, time.UTC).UnixNano())
	log.Step = rapid.SampledFrom([]int64{1e6, 3e9, 12e9}).Draw(t, "step")
	number := func(least, most int) int64 { return int64(rapid.IntRange(least, most).Draw(t, "n")) }
	records = append(records, log.Add(&events.Lease{Gateway: eventstest.Gateway, Epoch: 1, TTLMS: events.MaxTTLMS}),
		log.Add(&events.Credit{Org: eventstest.Org, AmountNano: 10_000, Reference: "first"}))
	begun := map[events.RequestID]bool{}
	for range number(1, 30) {
		id, attempt := eventstest.RequestID(int(number(0, 3))), number(0, 1)
		var d events.Data
		switch number(0, 11) {
		case 0, 1, 2, 3:
			if !begun[id] {
				begun[id], attempt = true, 0
			}
			r := eventstest.Reserve(id)
			r.Attempt = attempt
			if attempt == 0 {
				r.Claims = []events.Claim{
					{Meter: "org/acme/daily", Kind: events.Budget, Amount: number(0, 500), Life: events.LifeLocal, Basis: events.BasisTotal},
					{Meter: "org/acme/spend-day", Kind: events.Budget, Amount: number(0, 500), Limit: 3000, HasLimit: number(0, 1) == 0, Basis: events.BasisCost},
					{Meter: "org/acme/spend-month", Kind: events.Budget, Period: events.Month, Amount: number(0, 500), Limit: 9000, HasLimit: true, Basis: events.BasisCost},
					eventstest.Hold("org/acme/balance", number(0, 4000)),
				}
			}
			d = r
		case 4, 5, 6, 7:
			d = &events.TrueUp{Request: id, Attempt: attempt, Gateway: eventstest.Gateway, N: number(0, 4), Final: number(0, 1) == 0, Quality: events.Quality(number(0, 3)),
				CostNano: number(0, 900), Charges: []events.Charge{{Basis: events.BasisTotal, Amount: number(0, 900)}, {Basis: events.BasisCost, Amount: number(0, 900)}}}
		case 8:
			d = &events.Credit{Org: eventstest.Org, AmountNano: number(-500, 900), Reference: fmt.Sprint("r", number(0, 2))}
		case 9:
			d = &events.Fence{Org: eventstest.Org, Version: number(1, 9)}
		default:
			d = &events.Release{Request: id, Attempt: attempt, Gateway: eventstest.Gateway, Of: events.Of(number(0, 2)),
				Outcome: events.Completed, Dispatched: events.Dispatched(number(0, 2))}
		}
		for range number(1, 2) {
			records = append(records, log.Add(d))
		}
	}
	return append(records, log.Add(&events.Lease{Gateway: eventstest.Gateway, Epoch: 1, TTLMS: events.MaxTTLMS}))
}

// audited folds a log as the auditor does: each verdict right behind the record with which it fell. It gives the records whole, and the facts.
func audited(t *rapid.T, records []events.Record) (all []*generation.Record, facts []generation.Fact) {
	fold, g := admission.New(), generation.New()
	for i := range records {
		r := records[i]
		var pack events.Verdicts
		for _, v := range fold.Apply(&r) {
			v.Used, v.Shadow = append([]int64(nil), v.Used...), append([]int(nil), v.Shadow...)
			pack.Verdicts = append(pack.Verdicts, v)
		}
		g.Apply(&r)
		if len(pack.Verdicts) > 0 {
			g.Apply(&events.Record{Seq: r.Seq, Index: 1, At: r.At, Event: events.Event{ID: "v", Org: events.Platform, Data: &pack}})
		}
	}
	for _, rec := range g.Drain(true) {
		text, err := json.Marshal(rec)
		if err != nil {
			t.Fatal(err)
		}
		var kept generation.Record
		if err := json.Unmarshal(text, &kept); err != nil {
			t.Fatal(err)
		}
		all = append(all, &kept)
	}
	return all, g.Facts()
}

// A fold of any beginning of a log, brought forward by what the audit keeps, comes to what the whole log comes to.
func TestThePastComesToTheSameFromAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := life(t)
		cut := rapid.IntRange(0, len(records)).Draw(t, "cut")
		begin, whole := admission.New(), admission.New()
		for i := range records {
			whole.Apply(&records[i])
			if i < cut {
				begin.Apply(&records[i])
			}
		}
		begin, err := admission.Restore(begin.Snapshot(nil))
		if err != nil {
			t.Fatal(err)
		}
		now := records[len(records)-1].At
		want, got := ledger.PastOf(whole, now), ledger.PastOf(begin, now)
		all, facts := audited(t, records)
		for i := range facts {
			if facts[i].At.Seq > begin.Seq() {
				got.Fact(&facts[i])
			}
		}
		for _, rec := range all {
			if rec.AsOf.Seq > begin.Seq() || rec.State == generation.InProgress {
				got.Record(rec)
			}
		}
		used := func(p *ledger.Past) map[events.Meter]int64 {
			all := maps.Clone(p.Balances)
			for m, b := range p.Budgets {
				if b.Used != 0 {
					all[m] = b.Used
				}
			}
			return all
		}
		if diff := cmp.Diff([]any{used(want), want.Fences}, []any{used(got), got.Fences}, cmpopts.EquateEmpty()); diff != "" {
			text := ""
			for i := range records {
				text += fmt.Sprintf("%d %s %s %s\n", records[i].Seq, time.Unix(0, records[i].At).UTC(), records[i].Kind(), events.AppendData(nil, records[i].Data))
			}
			t.Fatalf("from sequence %d (- the log, + brought forward):\n%s\n%s", begin.Seq(), diff, text)
		}
	})
}
