package generation

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
)

const start = 1_780_000_000_000_000_000

// young gives the n-th request made at an instant of the log.
func youngID(at int64, n int) events.RequestID {
	ms := uint64(at / 1_000_000)
	return events.RequestID(fmt.Sprintf("%08x-%04x-7000-8000-%012x", ms>>16, ms&0xffff, n))
}

// What is complete is drained at once, anything else after a while; what is drained leaves memory when it is idle.
func TestDrain(t *testing.T) {
	g, log := New(), eventstest.NewLog(start)
	apply := func(d events.Data) uint64 {
		r := log.Add(d)
		g.Apply(&r)
		return r.Seq
	}
	id := eventstest.RequestID(1)
	d := eventstest.Reserve(id)
	seq := apply(d)
	apply(eventstest.Release(id))
	if got := g.Drain(false); len(got) != 0 {
		t.Fatalf("%d records are drained before the verdict, want none", len(got))
	}
	apply(&events.Verdicts{Verdicts: []events.Verdict{eventstest.Admitted(d, seq, log.Now)}})
	if got := g.Drain(false); len(got) != 1 || got[0].State != Ended {
		t.Fatalf("%d records are drained, want the one that is complete", len(got))
	}
	other := eventstest.RequestID(2)
	apply(eventstest.Reserve(other))
	if got := g.Drain(false); len(got) != 0 {
		t.Fatalf("%d records are drained at once, want none", len(got))
	}
	log.Now += int64(time.Second)
	apply(&events.Tick{})
	if got := g.Drain(false); len(got) != 1 || got[0].ID != other {
		t.Fatalf("%d records are drained after a second, want the one in progress", len(got))
	}
	if g.Changed() != 0 || g.Held() != 2 {
		t.Fatalf("%d changed and %d held, want 0 and 2", g.Changed(), g.Held())
	}
	log.Now += int64(time.Minute)
	apply(&events.Tick{})
	if g.Drain(true); g.Held() != 0 {
		t.Errorf("%d are held after a minute, want none", g.Held())
	}
}

// Records that are stored make room; those that are not never leave, and Full says so.
func TestMemoryIsBounded(t *testing.T) {
	g, log := New(), eventstest.NewLog(start)
	log.Step = 1000
	n := 0
	more := func(many int) {
		for range many {
			n++
			r := log.Add(eventstest.Reserve(eventstest.RequestID(n)))
			g.Apply(&r)
		}
	}
	more(maxMemory)
	if !g.Full() || g.Changed() != maxMemory {
		t.Fatalf("with %d changed records it is full: %t", g.Changed(), g.Full())
	}
	for g.Changed() > 0 {
		if got := len(g.Drain(true)); got == 0 || got > maxDrain {
			t.Fatalf("%d records of one drain", got)
		}
	}
	if g.Held() > maxHeld {
		t.Errorf("%d are held, want at most %d", g.Held(), maxHeld)
	}
}

// A record is bounded too, whatever a gateway sends.
func TestARecordIsBounded(t *testing.T) {
	g, log := New(), eventstest.NewLog(start)
	id := eventstest.RequestID(1)
	for i := range int64(1000) {
		d := eventstest.Reserve(id)
		d.Attempt = i
		u := eventstest.Final(id, 1, 1, 1)
		u.Attempt, u.Charges = 2000+i, []events.Charge{{Basis: fmt.Sprint(i), Amount: 1}}
		own := eventstest.Final(id, 1, 1, 1)
		own.Final, own.N, own.Charges = false, i+1, u.Charges
		for _, data := range []events.Data{d, u, own, &events.Refused{Request: id, Org: eventstest.Org, Gate: "b1"}} {
			r := log.Add(data)
			g.Apply(&r)
			if d, ok := data.(*events.Reserve); ok {
				v := log.Verdicts(eventstest.Admitted(d, r.Seq, r.At))
				g.Apply(&v)
			}
		}
	}
	rec := g.Drain(true)[0]
	if len(rec.Attempts) > maxTries || len(rec.AdmissionEvents) > maxEvents || len(rec.Early) > maxEarly || len(rec.Attempts[0].Charges) > maxBases {
		t.Errorf("%d attempts, %d events, %d early, %d bases", len(rec.Attempts), len(rec.AdmissionEvents), len(rec.Early), len(rec.Attempts[0].Charges))
	}
	if !rec.Truncated || g.Counts.Dropped == 0 {
		t.Error("nothing says that something was left out")
	}
}

// A request that is surely new is not looked for in the store.
func TestMissing(t *testing.T) {
	g, log := New(), eventstest.NewLog(start)
	missing := func(d events.Data) []events.RequestID {
		r := log.Add(d)
		return g.Missing(nil, &r)
	}
	if got := missing(eventstest.Reserve(youngID(log.Now, 1))); len(got) != 1 {
		t.Error("at the beginning every request is looked for")
	}
	log.Now += int64(time.Minute)
	if got := missing(eventstest.Reserve(youngID(log.Now-int64(time.Second), 2))); len(got) != 0 {
		t.Errorf("%v is looked for, but was made only now", got)
	}
	for _, id := range []events.RequestID{youngID(log.Now-int64(time.Hour), 3), "r1", "zzzzzzzz-zzzz-zzzz"} {
		if got := missing(eventstest.Release(id)); len(got) != 1 {
			t.Errorf("%s is not looked for", id)
		}
	}
	r := log.Verdicts(events.Verdict{Request: "a"}, events.Verdict{Request: "b"})
	if got := g.Missing(nil, &r); len(got) != 2 {
		t.Errorf("of two verdicts' requests %v are looked for", got)
	}
	if r.Fault = "not to be folded"; len(g.Missing(nil, &r)) != 0 {
		t.Error("a record that may not be folded has requests looked for")
	}
}

// Facts of another org do not touch a record.
func TestForeign(t *testing.T) {
	g, log := New(), eventstest.NewLog(start)
	id := eventstest.RequestID(1)
	r := log.Add(eventstest.Reserve(id))
	g.Apply(&r)
	r = log.Add(eventstest.Release(id))
	r.Org = "beta"
	g.Apply(&r)
	if rec := g.Drain(true)[0]; rec.State != InProgress || g.Counts.Foreign != 1 {
		t.Errorf("the record is %s, %d foreign facts", rec.State, g.Counts.Foreign)
	}
}

// A gateway releases a stray under the platform's org, as it does not know the request's: the record ends all the same. Nothing else of the
// platform's touches it, and a stray of which there is no record begins none.
func TestAStrayEnds(t *testing.T) {
	g, log := New(), eventstest.NewLog(start)
	apply := func(d events.Data, org events.Org) {
		r := log.Add(d)
		r.Org = org
		g.Apply(&r)
	}
	id := eventstest.RequestID(1)
	apply(eventstest.Reserve(id), eventstest.Org)
	apply(eventstest.Final(id, 1, 1, 1), events.Platform)
	apply(&events.Release{Request: id, Gateway: eventstest.Gateway, Outcome: events.Abandoned}, events.Platform)
	apply(&events.Release{Request: eventstest.RequestID(2), Gateway: eventstest.Gateway, Outcome: events.Abandoned}, events.Platform)
	records := g.Drain(true)
	if len(records) != 1 || records[0].Org != eventstest.Org || records[0].State != Ended || records[0].Outcome != events.Abandoned {
		t.Fatalf("the records are %+v, want the one that was abandoned", records)
	}
	if g.Counts.Foreign != 1 || g.Counts.Orphans != 1 {
		t.Errorf("%d foreign facts and %d orphans, want one of each", g.Counts.Foreign, g.Counts.Orphans)
	}
}

// An org's list is of requests by when they came, newest first, and by id where that is the same.
func TestNewest(t *testing.T) {
	all := []Summary{{ID: "x"}, {ID: eventstest.RequestID(1)}, {ID: "y"}, {ID: eventstest.RequestID(300)}}
	slices.SortFunc(all, Newest)
	for i, want := range []events.RequestID{eventstest.RequestID(300), eventstest.RequestID(1), "y", "x"} {
		if all[i].ID != want {
			t.Errorf("place %d has %s, want %s", i, all[i].ID, want)
		}
	}
}

// The log's clock was 6 s behind that of who makes the ids, and is put right in the middle of a request: what it has stored leaves memory at once,
// and is read back for its end.
func TestAClockThatIsPutRightLosesNothing(t *testing.T) {
	g, log := New(), eventstest.NewLog(start)
	apply := func(d events.Data) {
		r := log.Add(d)
		g.Apply(&r)
	}
	missing := func(d events.Data) []events.RequestID {
		r := log.Add(d)
		return g.Missing(nil, &r)
	}
	missing(&events.Tick{}) // where this memory begins
	log.Now += int64(time.Minute)
	const behind = int64(6 * time.Second)
	id, next := youngID(log.Now+behind, 1), youngID(log.Now+behind+1_000_000, 2)
	apply(eventstest.Reserve(id))
	if got := g.Drain(true); len(got) != 1 {
		t.Fatalf("%d records are stored, want the one that runs", len(got))
	}
	log.Now += behind
	apply(&events.Tick{})
	if g.Drain(true); g.Held() != 0 {
		t.Fatalf("%d records are held, want that it left", g.Held())
	}
	if got := missing(eventstest.Release(id)); !slices.Equal(got, []events.RequestID{id}) {
		t.Errorf("missing are %v, want the one that was stored", got)
	}
	if got := missing(eventstest.Reserve(next)); len(got) != 0 {
		t.Errorf("missing are %v, want none: it is new", got)
	}
}

// The log's clock is 4 minutes behind that of who makes the ids, and the auditor starts anew while requests run: whatever comes of them after
// that, their records are read back, though their ids seem to have been made since. What begins after that is not looked for.
func TestAStartBesideAClockThatIsBehindLosesNothing(t *testing.T) {
	log := eventstest.NewLog(start)
	const behind = int64(4 * time.Minute)
	made := func(n int) events.RequestID { return youngID(log.Now+behind, n) }
	before := New()
	running := []events.RequestID{made(1), made(2), made(3), made(4), made(5), made(6)}
	stored := map[events.RequestID][]byte{}
	for _, id := range running {
		r := log.Add(eventstest.Reserve(id))
		before.Missing(nil, &r)
		before.Apply(&r)
	}
	for _, rec := range before.Drain(true) {
		stored[rec.ID] = rec.Row().JSON
	}

	after := New()
	restored := 0
	apply := func(d events.Data) {
		r := log.Add(d)
		for _, id := range after.Missing(nil, &r) {
			if stored[id] != nil {
				restored++
				if _, err := after.Restore(stored[id]); err != nil {
					t.Fatal(err)
				}
			}
		}
		after.Apply(&r)
	}
	apply(&events.Tick{})
	log.Now += 3 * youngFor
	again := eventstest.Reserve(running[3])
	again.Attempt = 1
	told := eventstest.Reserve(running[4])
	told.Mode = events.ModeBoundedLocal
	for i, d := range []events.Data{eventstest.Final(running[0], 250, 40, 91_000), eventstest.Release(running[1]),
		&events.Verdicts{Rules: 1, Lapses: []events.Lapse{{Request: running[2], State: events.LapseBegan, Time: log.Now}}}, again, told,
		&events.Correction{Request: running[5], Revision: 1}} {
		if apply(d); restored != i+1 {
			t.Errorf("after %T %d records were read back, want %d", d, restored, i+1)
		}
	}
	for _, rec := range after.Drain(true) {
		if len(rec.Attempts) == 0 || rec.Attempts[0].Seq == 0 || rec.New {
			t.Errorf("the record of %s begins anew: %+v", rec.ID, rec)
		}
	}
	if after.Held() != len(running) || after.Counts.Orphans > 0 {
		t.Errorf("%d records are held, %d orphans, want the %d that run", after.Held(), after.Counts.Orphans, len(running))
	}
	for _, d := range []events.Data{eventstest.Reserve(made(7)), &events.Refused{Request: made(8), Org: eventstest.Org, Gate: "b1"}} {
		r := log.Add(d)
		if got := after.Missing(nil, &r); len(got) > 0 {
			t.Errorf("%v is looked for: %T is the first of it", got, d)
		}
	}
}
