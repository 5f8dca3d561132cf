package generation

import (
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
)

// A request whose gateway died ends when the gateway's lease has; what is said of it later is believed.
func TestALostRequest(t *testing.T) {
	log := eventstest.NewLog(time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC).UnixNano())
	g := New()
	d := eventstest.Reserve(eventstest.RequestID(1), eventstest.Tokens("org/acme/tpm", 500, 100_000))
	now := func() *Record {
		t.Helper()
		found := g.Drain(true)
		if len(found) != 1 {
			t.Fatalf("%d records changed", len(found))
		}
		return found[0]
	}
	apply := func(facts ...events.Data) {
		for _, d := range facts {
			r := log.Add(d)
			g.Apply(&r)
		}
	}
	lapse := func(state events.LapseState) (at int64) {
		at = log.Now
		apply(&events.Verdicts{Rules: 1, Lapses: []events.Lapse{{Request: d.Request, State: state, Time: at}}})
		return at
	}
	reserved := log.Add(d)
	g.Apply(&reserved)
	apply(&events.Verdicts{Rules: 1, Verdicts: []events.Verdict{eventstest.Admitted(d, reserved.Seq, reserved.At)}})
	if rec := now(); rec.State != InProgress || rec.Lapsed != 0 {
		t.Errorf("admitted: %+v", rec)
	}

	lost := func(what string, at int64) {
		t.Helper()
		rec := now()
		if rec.State != Ended || rec.Outcome != events.Abandoned || int64(rec.EndedAt) != at || rec.Error == nil || rec.Error.Code != CodeLost ||
			rec.Cost.Settled || !rec.complete() || rec.Attempts[0].Released != nil || rec.Summary().ErrorCode != CodeLost {
			t.Errorf("%s: %+v, %+v", what, rec, rec.Error)
		}
	}
	at := lapse(events.LapseBegan)
	lost("lapsed", at)
	lapse(events.LapseOver)
	if rec := now(); rec.State != InProgress || rec.Outcome != "" || rec.Error != nil || rec.EndedAt != 0 {
		t.Errorf("returned: %+v", rec)
	}
	at = lapse(events.LapseBegan)
	lapse(events.LapseEnded)
	lost("ended after it had lapsed", at)

	// What had been spooled comes after all.
	apply(eventstest.Final(d.Request, 250, 40, 91_000))
	if rec := now(); rec.State != Ended || rec.Outcome != events.Abandoned || rec.TotalCost != 91_000 || !rec.Cost.Settled || *rec.Attempts[0].Claims[0].Settled != 290 {
		t.Errorf("with a late final: %+v", rec)
	}
	apply(eventstest.Release(d.Request))
	if rec := now(); rec.Outcome != events.Completed || rec.Status != 200 || rec.Error != nil || rec.EndedAt == Instant(at) {
		t.Errorf("with a late release: %+v", rec)
	}

	// A lapse is of what is known, and asks for what has left memory.
	other := log.Add(&events.Verdicts{Rules: 1, Lapses: []events.Lapse{{Request: eventstest.RequestID(2), State: events.LapseBegan, Time: log.Now}}})
	if missing := g.Missing(nil, &other); len(missing) != 1 || missing[0] != eventstest.RequestID(2) {
		t.Errorf("missing are %v", missing)
	}
	g.Apply(&other)
	if g.Counts.Orphans != 1 || g.Held() != 1 {
		t.Errorf("%d orphans, %d held", g.Counts.Orphans, g.Held())
	}
}
