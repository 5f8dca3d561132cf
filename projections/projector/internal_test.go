package projector

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/admission"
)

// A tick at the instant that streamDue gives lets the fold's next timer fire, and one a µs earlier does not, whatever the skew.
func TestStreamDue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const ms, begin = int64(1e6), int64(1_700_000_000e9)
		f := admission.New()
		seq := uint64(0)
		apply := func(at int64, d events.Data) {
			seq++
			f.Apply(&events.Record{Seq: seq, At: at, Event: events.Event{Org: events.Platform, Data: d}})
		}
		at := begin
		apply(at, &events.Lease{Gateway: "g", Epoch: 1})
		for _, step := range rapid.SliceOfN(rapid.Int64Range(-1500, 1500), 0, 8).Draw(t, "steps") {
			at += step * ms
			apply(at, &events.Lease{Gateway: "g", Epoch: 1})
		}
		gauge := func(id events.RequestID, parkMS int64) *events.Reserve {
			return &events.Reserve{Request: id, Org: "o", Gateway: "g", Epoch: 1, ParkMS: parkMS, MaxMS: events.DefaultMaxMS, Claims: []events.Claim{
				{Meter: "model/m/occupancy", Kind: events.Gauge, Park: true, Amount: 1, HasLimit: true, Limit: 1}}}
		}
		apply(at, gauge("holds", 0))
		apply(at, gauge("waits", rapid.Int64Range(1, 1900).Draw(t, "park")))
		due, ok := f.NextTimer()
		if !ok {
			t.Fatal("no timer")
		}
		when := streamDue(due, f.LastTime(), f.Now()-f.LastTime())
		if when-1000 > at {
			before, err := admission.Restore(f.Snapshot(nil))
			if err != nil {
				t.Fatal(err)
			}
			if got := before.Apply(&events.Record{Seq: seq + 1, At: when - 1000, Event: events.Event{Org: events.Platform, Data: &events.Tick{}}}); len(got) != 0 {
				t.Fatalf("it fires %d ns before", 1000)
			}
		}
		if got := f.Apply(&events.Record{Seq: seq + 1, At: when, Event: events.Event{Org: events.Platform, Data: &events.Tick{}}}); len(got) != 1 {
			t.Fatalf("it does not fire: due %d, at %d, now %d", due, when, f.Now())
		}
	})
}

func verdict(n int) events.Verdict {
	return events.Verdict{Request: events.RequestID(fmt.Sprintf("r%d", n)), Seq: uint64(n), Admitted: true}
}

// fill decides n verdicts with the record at a sequence, and ends the batch.
func fill(p *packs, from *int, n int, seq uint64) {
	for range n {
		p.add(decided{verdict: verdict(*from), fell: seq})
		*from++
	}
	p.digest(seq, seq)
	p.ended(seq, seq, journal.Chain{byte(seq)})
}

func TestPacksHoldWholeBatchesUpToTheirBound(t *testing.T) {
	p, n := &packs{from: 1}, 0
	fill(p, &n, 100, 3)
	fill(p, &n, 156, 5)
	fill(p, &n, 0, 6)
	fill(p, &n, 300, 9) // one message that decides more than a pack holds
	fill(p, &n, 1, 10)
	type cut struct {
		from, to uint64
		n        int
		hash     string
		chained  bool
	}
	want := []cut{
		{1, 5, 256, fmt.Sprintf("%016x", 5), true},
		{6, 9, 256, fmt.Sprintf("%016x", 9), false},
		{9, 10, 45, fmt.Sprintf("%016x", 10), true},
	}
	first := 0
	for _, w := range want {
		d, upTo := p.cut()
		got := cut{d.FromSeq, d.ToSeq, len(d.Verdicts), d.StateHash, d.Chain != ""}
		if got != w || upTo != uint64(first+w.n) {
			t.Fatalf("%+v up to %d, want %+v", got, upTo, w)
		}
		for i, v := range d.Verdicts {
			if v.Seq != uint64(first+i) {
				t.Fatalf("verdict %d is %d", first+i, v.Seq)
			}
		}
		first += w.n
		p.written(d)
		p.written(d) // by the acknowledgement, and by the record
		if p.base != uint64(first) || len(p.pending) != n-first {
			t.Fatalf("%d are left after %d, want %d after %d", len(p.pending), p.base, n-first, first)
		}
	}
	if len(p.marks) != 0 || p.from != 11 {
		t.Errorf("marks %v, from %d", p.marks, p.from)
	}
}

// Another writer's pack may end where no batch of this projector did.
func TestPacksOfAnotherWriter(t *testing.T) {
	p, n := &packs{from: 1}, 0
	fill(p, &n, 2, 1)
	for seq := uint64(2); seq < 6; seq++ { // one batch of four messages
		p.add(decided{verdict: verdict(n), fell: seq})
		p.digest(seq, seq)
		n++
	}
	p.ended(5, 5, journal.Chain{5})
	p.written(&events.Verdicts{FromSeq: 1, ToSeq: 3, Verdicts: []events.Verdict{verdict(0), verdict(1), verdict(2), verdict(3)}})
	d, _ := p.cut()
	if d.FromSeq != 4 || d.ToSeq != 5 || len(d.Verdicts) != 2 || d.Verdicts[0].Seq != 4 {
		t.Errorf("%+v", d)
	}
}

// Lapses go into packs in their places among the verdicts, and through snapshots.
func TestLapsesAreInPacks(t *testing.T) {
	lapse := func(n int, state events.LapseState) events.Lapse {
		return events.Lapse{Request: events.RequestID(fmt.Sprintf("r%d", n)), State: state, Time: int64(n)}
	}
	p := &packs{from: 1}
	p.add(decided{verdict: verdict(0), fell: 1})
	p.add(decided{fell: 1, lapse: lapse(7, events.LapseBegan)})
	p.add(decided{verdict: verdict(1), fell: 2})
	p.digest(2, 2)
	p.ended(2, 2, journal.Chain{2})
	for n := range packMost + 1 { // all of one message
		p.add(decided{fell: 3, lapse: lapse(n, events.LapseEnded)})
	}
	p.digest(3, 3)
	p.ended(3, 3, journal.Chain{3})
	s := save(p.pending, true)
	loaded, err := s.load()
	if err != nil {
		t.Fatal(err)
	}
	again := &packs{from: 1, pending: loaded}
	again.digest(3, 3)
	again.ended(3, 3, journal.Chain{3})
	if diff := cmp.Diff(p.pending, loaded, cmp.AllowUnexported(decided{})); diff != "" {
		t.Errorf("- kept, + loaded:\n%s", diff)
	}
	d, _ := p.cut()
	if d.FromSeq != 1 || d.ToSeq != 2 || len(d.Verdicts) != 2 || len(d.Lapses) != 1 || d.Lapses[0] != lapse(7, events.LapseBegan) || d.Chain == "" {
		t.Fatalf("the first pack is %+v", d)
	}
	for _, held := range []*packs{p, again} {
		held.written(d)
		d, _ := held.cut()
		if d.FromSeq != 3 || d.ToSeq != 3 || len(d.Verdicts) != 0 || len(d.Lapses) != packMost || d.Lapses[packMost-1] != lapse(packMost-1, events.LapseEnded) {
			t.Fatalf("the second pack is %+v", d)
		}
		held.written(d)
		held.written(d)
		if d, _ = held.cut(); d.FromSeq != 3 || d.ToSeq != 3 || len(d.Lapses) != 1 || d.Chain == "" {
			t.Errorf("the last pack is %+v", d)
		}
		held.written(d)
		if len(held.pending) != 0 || held.from != 4 {
			t.Errorf("%d are left, from %d", len(held.pending), held.from)
		}
	}
}

func TestAnswersForget(t *testing.T) {
	a := newAnswers()
	many := make([]decided, maxAnswers+5)
	for i := range many {
		many[i].verdict = verdict(i)
	}
	a.keep(many, 1)
	if a.size() != maxAnswers || len(a.index) != maxAnswers {
		t.Fatalf("%d answers are kept, %d found", a.size(), len(a.index))
	}
	if _, ok := a.find("r4", 0); ok {
		t.Error("the oldest is kept")
	}
	if v, ok := a.find("r5", 0); !ok || v.Seq != 5 {
		t.Errorf("the sixth: %+v %v", v, ok)
	}
	if got := a.newest(3, 1); len(got) != 3 || got[2].Seq != uint64(len(many)-1) {
		t.Errorf("the newest: %+v", got)
	}
	if got := a.newest(3, 2); len(got) != 0 {
		t.Errorf("too old: %+v", got)
	}
	a.keep([]decided{{verdict: verdict(-1), fell: 1}}, keepFor+2)
	if a.size() != 1 || len(a.index) != 1 {
		t.Errorf("%d answers are kept after a minute", a.size())
	}
}

func TestMayAsk(t *testing.T) {
	info := func(s string) nats.Header { return nats.Header{requestInfo: []string{s}} }
	for _, c := range []struct {
		name  string
		msg   nats.Msg
		asks  Question
		wants bool
	}{
		{"in the log's account", nats.Msg{Subject: access.SubjectAsk, Reply: "_INBOX.op-abcdefgh.1"}, Question{Request: "r"}, true},
		{"nobody's live requests", nats.Msg{Subject: access.SubjectLive, Reply: "_INBOX.op-abcdefgh.1"}, Question{}, false},
		{"from outside", nats.Msg{Subject: access.SubjectAsk, Reply: "_R_.x", Header: info(`{"acc":"GATES"}`)}, Question{Gateway: "g"}, true},
		{"from outside without a name", nats.Msg{Subject: access.SubjectAsk, Reply: "_R_.x", Header: info(`{"acc":"GATES"}`)}, Question{}, false},
		{"its own", nats.Msg{Subject: access.SubjectAsk, Reply: "_R_.x", Header: info(`{"acc":"GATES","user":"g"}`)}, Question{Gateway: "g"}, true},
		{"another's", nats.Msg{Subject: access.SubjectAsk, Reply: "_R_.x", Header: info(`{"acc":"GATES","user":"h"}`)}, Question{Gateway: "g"}, false},
		{"unreadable", nats.Msg{Subject: access.SubjectAsk, Reply: "_R_.x", Header: info(`{`)}, Question{Gateway: "g"}, false},
		{"no header at all", nats.Msg{Subject: access.SubjectAsk, Reply: "_R_.x"}, Question{}, false},
	} {
		if got := mayAsk(&c.msg, &c.asks); got != c.wants {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
