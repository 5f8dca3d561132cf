package scenario

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/test/twin"
)

// TestRandomLogsReachEverything guards the generator: what random logs never come to, they do not test.
func TestRandomLogsReachEverything(t *testing.T) {
	seen := map[string]int{}
	logs := rapid.Custom(Log)
	for seed := range 300 {
		w := twin.New()
		for _, r := range logs.Example(seed) {
			seen["kind "+r.Kind().String()]++
			if r.Fault != "" {
				seen["fault"]++
			}
			for _, v := range w.Apply(r) {
				seen[sort(&r, &v)]++
			}
		}
	}
	for _, want := range []string{
		"admitted", "admitted later", "admitted shadow", "admitted to wait", "over_limit", "over_limit later", "too_large", "paused", "no_balance", "stale_fence",
		"recovering", "released", "released later", "invalid", "fault", "kind reserve", "kind true-up", "kind release", "kind lease", "kind cooldown", "kind tick",
		"kind fence", "kind credit", "kind recover", "kind refused", "kind verdicts", "kind unknown", "kind rules", "kind correction",
	} {
		if seen[want] == 0 {
			t.Errorf("no random log came to %q", want)
		}
	}
	if t.Failed() {
		t.Log(seen)
	}
}

// sort names what kind of verdict fell with a record.
func sort(r *events.Record, v *events.Verdict) string {
	name := "admitted"
	switch {
	case v.Refusal != nil:
		name = string(v.Refusal.Reason)
	case len(v.Shadow) > 0:
		return "admitted shadow"
	case v.WaitMS > 0:
		return "admitted to wait"
	}
	if d, is := r.Data.(*events.Reserve); !is || d.Request != v.Request || d.Attempt != v.Attempt {
		name += " later"
	}
	return name
}

// TestSnapshotsChangeNothing: a fold that is put away and taken up again at random places says the same from there on, and comes to the
// same state, byte for byte.
func TestSnapshotsChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := Log(t)
		every := rapid.IntRange(1, 20).Draw(t, "every")
		whole, pieces := admission.New(), admission.New()
		for i := range records {
			if i%every == every-1 {
				text := pieces.Snapshot(nil)
				restored, err := admission.Restore(text)
				if err != nil {
					t.Fatalf("before line %d: %v", i+1, err)
				}
				if again := restored.Snapshot(nil); !bytes.Equal(again, text) {
					t.Fatalf("before line %d: a restored fold has another snapshot, %d bytes where there were %d", i+1, len(again), len(text))
				}
				pieces = restored
			}
			want := lines(whole.Apply(&records[i]))
			if got := lines(pieces.Apply(&records[i])); got != want {
				t.Fatalf("line %d:\n got %s\nwant %s", i+1, got, want)
			}
			if g, w := fmt.Sprint(pieces.Meters()), fmt.Sprint(whole.Meters()); g != w {
				t.Fatalf("line %d:\n got %s\nwant %s", i+1, g, w)
			}
		}
		if whole.Digest() != pieces.Digest() || !bytes.Equal(whole.Snapshot(nil), pieces.Snapshot(nil)) {
			t.Fatalf("the states differ after line %d", len(records))
		}
	})
}

func lines(verdicts []events.Verdict) string {
	var text []byte
	for i := range verdicts {
		text = append(events.AppendVerdict(text, &verdicts[i]), '\n')
	}
	return string(text)
}

// TestBadSnapshots: a snapshot that was cut off is an error, one with a wrong byte is an error or another fold, and never a panic.
func TestBadSnapshots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := admission.New()
		records := Log(t)
		for i := range records {
			f.Apply(&records[i])
		}
		text := f.Snapshot(nil)
		at := rapid.IntRange(0, len(text)-1).Draw(t, "at")
		if _, err := admission.Restore(text[:at]); err == nil {
			t.Fatalf("a snapshot of %d bytes is taken for one of %d", at, len(text))
		}
		spoiled := bytes.Clone(text)
		spoiled[at] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
		if g, err := admission.Restore(spoiled); err == nil {
			g.Meters()
		}
	})
}

// TestNoAdmissionOverALimit: "No admission leaves a gauge, window, budget or balance over its limit (shadow, `limit: null` and bounded_local
// aside)", as far as the check is not less than the amount.
func TestNoAdmissionOverALimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := admission.New()
		reserves := map[string]*events.Reserve{}
		early := map[string]bool{} // true-ups came first: a balance may be debited with the admission
		records := Log(t)
		for i := range records {
			r := &records[i]
			switch d := r.Data.(type) {
			case *events.Reserve:
				if id := fmt.Sprint(r.Seq, attemptOf(d.Request, d.Attempt)); reserves[id] == nil {
					reserves[id] = d
				}
			case *events.TrueUp:
				early[attemptOf(d.Request, d.Attempt)] = true
			}
			verdicts := f.Apply(r)
			for k := range verdicts {
				v := &verdicts[k]
				id := attemptOf(v.Request, v.Attempt)
				if d := reserves[fmt.Sprint(v.Seq, id)]; v.Admitted && d.Mode == events.ModeNormal {
					holdsTo(t, f, v, d, len(verdicts) > 1 || early[id])
				}
			}
		}
	})
}

func attemptOf(r events.RequestID, n int64) string { return fmt.Sprint(r, "/", n) }

// holdsTo checks an admission against the reserve's own limits.
func holdsTo(t *rapid.T, f *admission.Fold, v *events.Verdict, d *events.Reserve, moved bool) {
	for i := range d.Claims {
		c := &d.Claims[i]
		if c.Shadow || c.Need() < c.Amount {
			continue
		}
		switch c.Kind {
		case events.Window, events.Gauge, events.Budget:
			if c.HasLimit && v.Used[i] > c.Limit {
				t.Fatalf("%s: claim %d: %d used of %d after its admission", attemptOf(v.Request, v.Attempt), i, v.Used[i], c.Limit)
			}
		case events.Balance:
			if now, _ := f.Reading(c.Meter); !moved && now.Available < 0 {
				t.Fatalf("%s: claim %d: %d available after its admission", attemptOf(v.Request, v.Attempt), i, now.Available)
			}
		}
	}
}

// TestWhenAllHasEnded: "When all requests have ended or expired, every gauge is 0", and so is every hold.
func TestWhenAllHasEnded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := admission.New()
		records := Log(t)
		for i := range records {
			f.Apply(&records[i])
		}
		at := records[len(records)-1].At
		for range 3 { // a day of max_ms, an hour of holds, and all that is left of the skew
			at += 26 * 3600_000_000_000
			f.Apply(&events.Record{Seq: 1 << 40, At: at, Event: events.Event{Org: events.Platform, Data: &events.Tick{}}})
		}
		for _, m := range f.Meters() {
			if m.Kind == events.Gauge || m.Kind == events.Balance && m.Used != 0 {
				t.Fatalf("%s still shows %d", m.Meter, m.Used)
			}
			if m.Waiting != 0 {
				t.Fatalf("%d still wait on %s", m.Waiting, m.Meter)
			}
		}
		if meters, requests, settled, waiting := f.Size(); requests != 0 || settled != 0 || waiting != 0 {
			t.Fatalf("%d requests, %d settled ones and %d waiters are still known, of %d meters", requests, settled, waiting, meters)
		}
	})
}

// TestAvailableIsExact: "Credits - debits - holds = available, in integers": what is held and what is available is what was credited less
// what finals cost.
func TestAvailableIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := admission.New()
		credits, seen := map[events.Meter]int64{}, map[string]bool{}
		records := Log(t)
		for i := range records {
			r := &records[i]
			f.Apply(r)
			d, is := r.Data.(*events.Credit)
			if is && r.Fault == "" && d.AmountNano >= -events.MaxAmount && d.AmountNano <= events.MaxAmount && !seen[string(d.Org)+d.Reference] {
				seen[string(d.Org)+d.Reference] = true
				credits["org/"+events.Meter(d.Org)+"/balance"] += d.AmountNano
			}
		}
		for _, m := range f.Meters() {
			if m.Kind != events.Balance {
				continue
			}
			if m.Total != m.Used+m.Available {
				t.Fatalf("%s: total %d, holds %d, available %d", m.Meter, m.Total, m.Used, m.Available)
			}
			if debits := credits[m.Meter] - m.Total; debits < 0 {
				t.Fatalf("%s: total %d of %d credited", m.Meter, m.Total, credits[m.Meter])
			}
		}
	})
}

// TestTwiceIsOnce: "Any reserve, true-up, release, fence or credit delivered twice changes nothing". The second follows the first before
// anything else happens; credits, fences, reserves and numbered true-ups also later, while the request is known.
func TestTwiceIsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := Log(t)
		i := rapid.IntRange(0, len(records)-1).Draw(t, "which")
		later := rapid.IntRange(0, 30).Draw(t, "later")
		const known = int64(10 * time.Minute) // nothing is forgotten so soon
		var from int64
		r := records[i]
		switch d := r.Data.(type) {
		case *events.Credit, *events.Fence:
		case *events.Reserve:
			if d.Request == "" {
				later = 0
			}
		case *events.TrueUp:
			if d.N == 0 && !d.Final {
				return // it means the next, so twice is two
			}
			if d.N == 0 || !slices.ContainsFunc(records[:i], func(r events.Record) bool {
				e, is := r.Data.(*events.Reserve)
				return is && e.Request == d.Request && e.Attempt == d.Attempt
			}) {
				later = 0 // for an attempt that is to come, the second is remembered longer than the first
			}
		case *events.Release:
			later = 0
		default:
			return
		}
		after := min(i+later, len(records)-1)
		for f, k := admission.New(), 0; k <= after; k++ {
			f.Apply(&records[k])
			if id := requestOf(&records[k]); id != "" && id == requestOf(&r) && from == 0 {
				from = f.Now()
			}
			if k > i && from != 0 && f.Now()-from > known {
				after = k - 1
			}
		}
		records[i].ID = original
		again := r
		again.At, again.Seq, again.Index, again.ID = records[after].At, records[after].Seq, records[after].Index+1, marked
		same(t, insert(records, after+1, again), 0, func(records []events.Record) []events.Record {
			i := find(records, marked)
			if find(records, original) < 0 {
				return records
			}
			tick := records[i]
			tick.Data, tick.Fault = &events.Tick{}, ""
			return insert(append(append([]events.Record(nil), records[:i]...), records[i+1:]...), i, tick)
		})
	})
}

// requestOf gives the request that a record is about, if it is about one.
func requestOf(r *events.Record) events.RequestID {
	switch d := r.Data.(type) {
	case *events.Reserve:
		return d.Request
	case *events.TrueUp:
		return d.Request
	case *events.Release:
		return d.Request
	}
	return ""
}

// Ids of the records that a law is about.
const (
	original = "original"
	marked   = "marked"
)

// find gives the place of the record with an id, −1 if it is not there.
func find(records []events.Record, id string) int {
	for i := range records {
		if records[i].ID == id {
			return i
		}
	}
	return -1
}

func insert(records []events.Record, at int, more ...events.Record) []events.Record {
	return append(append(append([]events.Record(nil), records[:at]...), more...), records[at:]...)
}

// same folds a log and what change makes of it, and wants the same verdicts and meters with the record that is so many behind the marked
// one and with all that follow it.
func same(t *rapid.T, records []events.Record, behind int, change func([]events.Record) []events.Record) {
	bad := func(records []events.Record) bool {
		i := find(records, marked)
		return i >= 0 && apart(records, change(records), i+behind) != ""
	}
	if !bad(records) {
		return
	}
	records = shrink(records, bad)
	t.Fatalf("the marked line is %d of\n%s%s", find(records, marked)+1, written(records), apart(records, change(records), find(records, marked)+behind))
}

// apart says where two logs lead to different things from a line on.
func apart(a, b []events.Record, from int) string {
	f, g := admission.New(), admission.New()
	for i := range a {
		v, w := lines(f.Apply(&a[i])), lines(g.Apply(&b[i]))
		if i < from {
			continue
		}
		if x, y := shown(f), shown(g); v != w || x != y {
			return fmt.Sprintf("line %d:\n got %s%s\nwant %s%s", i+1, w, y, v, x)
		}
	}
	return ""
}

func written(records []events.Record) string {
	var text strings.Builder
	if err := WriteLog(&text, records); err != nil {
		return err.Error()
	}
	return text.String()
}

func shown(f *admission.Fold) string {
	var text strings.Builder
	for _, m := range f.Meters() {
		fmt.Fprintf(&text, "%s %s %d %d\n", m.Meter, m.Kind, m.Used, m.Available)
	}
	return text.String()
}

// TestTrueUpAndReleaseCommute: the last true-up of an attempt and its release may come in either order, when the backend may have had the
// request and nobody waits for what they free. Not so for buckets: giving back stops at full, putting back does not.
func TestTrueUpAndReleaseCommute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := Log(t)
		for i := range records {
			if d, is := records[i].Data.(*events.Reserve); is {
				d.Claims = slices.DeleteFunc(d.Claims, func(c events.Claim) bool { return c.Kind == events.Bucket })
			}
		}
		i := rapid.IntRange(0, len(records)-1).Draw(t, "after")
		f := admission.New()
		for k := range records[:i+1] {
			f.Apply(&records[k])
		}
		if _, _, _, waiting := f.Size(); waiting > 0 {
			return
		}
		id := events.RequestID(fmt.Sprint("r", rapid.IntRange(0, 8).Draw(t, "request")))
		n := int64(rapid.IntRange(0, 2).Draw(t, "attempt"))
		at := records[i]
		up, release := at, at
		up.Fault, release.Fault = "", ""
		up.Data = &events.TrueUp{Request: id, Attempt: n, N: 50, Final: rapid.Bool().Draw(t, "final"), Quality: events.Quality(rapid.IntRange(0, 3).Draw(t, "quality")),
			CostNano: 70, Charges: []events.Charge{{Basis: "total", Amount: 40}, {Basis: "footprint", Amount: 9}, {Basis: "cost", Amount: 70}, {Basis: "input", Amount: 20}, {Basis: "output", Amount: 20}}}
		release.Data = &events.Release{Request: id, Attempt: n, Of: events.Of(rapid.IntRange(0, 1).Draw(t, "of")), Dispatched: events.Dispatched(rapid.IntRange(0, 1).Draw(t, "dispatched"))}
		up.ID = marked
		same(t, insert(records, i+1, up, release), 1, func(records []events.Record) []events.Record {
			swapped := append([]events.Record(nil), records...)
			if i := find(records, marked); i+1 < len(records) && records[i+1].Kind() == events.KindRelease {
				swapped[i], swapped[i+1] = swapped[i+1], swapped[i]
			}
			return swapped
		})
	})
}

// TestNextTimer: what the fold says is due next is what the twin finds.
func TestNextTimer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, w := admission.New(), twin.New()
		records := Log(t)
		for i := range records {
			f.Apply(&records[i])
			w.Apply(records[i])
			a, is := f.NextTimer()
			b, want := w.NextTimer()
			if is != want || is && a != b {
				t.Fatalf("after line %d of\n%s: %v %d, the twin says %v %d", i+1, written(records[:i+1]), is, a, want, b)
			}
			if f.Now() != w.Now() {
				t.Fatalf("after line %d: now is %d, the twin says %d", i+1, f.Now(), w.Now())
			}
		}
	})
}

// TestFallsComeTrue: what a reading says will fall by itself does, at its instant and not before. Buckets, paces and pauses fall all the
// time; their falls are not checked.
func TestFallsComeTrue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := admission.New()
		records := Log(t)
		for i := range records {
			f.Apply(&records[i])
		}
		if _, _, _, waiting := f.Size(); waiting > 0 {
			return // who is admitted may charge it again
		}
		last := records[len(records)-1]
		text := f.Snapshot(nil)
		for _, shown := range f.Meters() {
			m, _ := f.Reading(shown.Meter)
			if m.Kind != events.Window && m.Kind != events.Budget && m.Kind != events.Gauge {
				continue
			}
			used := m.Used
			for _, fall := range m.Falls {
				if fall.At <= f.Now() {
					t.Fatalf("%s: falls at %d, now is %d", m.Meter, fall.At, f.Now())
				}
				used -= fall.Amount
				for _, aside := range []int64{-1, 0} {
					g, err := admission.Restore(text)
					if err != nil {
						t.Fatal(err)
					}
					g.Apply(&events.Record{Seq: 1 << 40, At: last.At + fall.At + aside - f.Now(), Event: events.Event{Org: events.Platform, Data: &events.Tick{}}})
					if g.Now() != fall.At+aside {
						continue // the stream's clock had stepped back: the fold's time catches up with it
					}
					want := used
					if aside < 0 {
						want += fall.Amount
					}
					if got, _ := g.Reading(m.Meter); got.Used != want {
						t.Fatalf("%s (%s): %d at %d%+d ns, its falls say %d", m.Meter, m.Kind, got.Used, fall.At, aside, want)
					}
				}
			}
		}
	})
}

// TestGaugesAreWhatIsHeld: "A gauge is exactly the sum held by live reservations": what the fold lists by request adds up to what the
// meter shows, and is what the twin's reservations hold.
func TestGaugesAreWhatIsHeld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, w := admission.New(), twin.New()
		records := Log(t)
		for i := range records {
			f.Apply(&records[i])
			w.Apply(records[i])
			gauges := w.Gauges()
			for _, m := range f.Meters() {
				var sum int64
				f.Holdings(m.Meter, func(h admission.Holding) { sum += h.Amount })
				switch m.Kind {
				case events.Gauge:
					if sum != m.Used || sum != gauges[m.Meter] {
						t.Fatalf("after line %d: %s shows %d, %d are listed, reservations hold %d", i+1, m.Meter, m.Used, sum, gauges[m.Meter])
					}
					delete(gauges, m.Meter)
				case events.Balance:
					if sum != m.Used {
						t.Fatalf("after line %d: %s holds %d, %d are listed", i+1, m.Meter, m.Used, sum)
					}
				case events.Window, events.Budget: // what settled requests charged is not listed
					if sum > m.Used {
						t.Fatalf("after line %d: %s shows %d, %d are listed", i+1, m.Meter, m.Used, sum)
					}
				}
			}
			for name, held := range gauges {
				if held != 0 {
					t.Fatalf("after line %d: %s shows nothing, reservations hold %d", i+1, name, held)
				}
			}
		}
	})
}

// TestDrainMissesNothing: who keeps what Drain gives knows every meter that does not fall by itself.
func TestDrainMissesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := admission.New()
		kept := map[events.Meter]admission.Reading{}
		records := Log(t)
		every := rapid.IntRange(1, 5).Draw(t, "every")
		for i := range records {
			f.Apply(&records[i])
			if i%every != 0 {
				continue
			}
			f.Drain(func(r admission.Reading) { kept[r.Meter] = r })
			for _, m := range f.Meters() {
				if k := kept[m.Meter]; (m.Kind == events.Gauge || m.Kind == events.Balance) && (k.Used != m.Used || k.Available != m.Available || k.Waiting != m.Waiting) {
					t.Fatalf("after line %d: %s shows %d, %d available, %d waiting; kept are %d, %d, %d", i+1, m.Meter, m.Used, m.Available, m.Waiting, k.Used, k.Available, k.Waiting)
				}
			}
			for name, k := range kept {
				if now, _ := f.Reading(name); k.Kind == events.Gauge && k.Used != now.Used {
					t.Fatalf("after line %d: %s shows %d, kept are %d", i+1, name, now.Used, k.Used)
				}
			}
		}
	})
}
