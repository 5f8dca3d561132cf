package scenario

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

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
		r := records[i]
		switch d := r.Data.(type) {
		case *events.Reserve, *events.Credit, *events.Fence:
		case *events.TrueUp:
			if d.N == 0 {
				later = 0 // it means the next
			}
		case *events.Release:
			later = 0
		default:
			return
		}
		after := min(i+later, len(records)-1)
		const known = 10 * 60 * 1_000_000_000
		for k := i + 1; k <= after; k++ {
			if gap := records[k].At - r.At; gap > known || gap < 0 {
				after = k - 1
				break
			}
		}
		again, tick := r, r
		again.At, tick.At = records[after].At, records[after].At
		again.Seq, tick.Seq = records[after].Seq, records[after].Seq
		again.Index = records[after].Index + 1
		tick.Data, tick.Fault = &events.Tick{}, ""
		sameBut(t, insert(records, after+1, tick), insert(records, after+1, again), after+1)
	})
}

func insert(records []events.Record, at int, r events.Record) []events.Record {
	return append(append(append([]events.Record(nil), records[:at]...), r), records[at:]...)
}

// sameBut folds two logs that differ from line i on, and wants the same verdicts and meters after every line from there.
func sameBut(t *rapid.T, a, b []events.Record, from int) {
	f, g := admission.New(), admission.New()
	for i := range a {
		v, w := lines(f.Apply(&a[i])), lines(g.Apply(&b[i]))
		if i < from {
			continue
		}
		if v != w {
			t.Fatalf("line %d of\n%s\n got %s\nwant %s", i+1, written(b), w, v)
		}
		if x, y := shown(f), shown(g); x != y {
			t.Fatalf("after line %d of\n%s\n got %s\nwant %s", i+1, written(b), y, x)
		}
	}
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
// request and nobody waits for what they free.
func TestTrueUpAndReleaseCommute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := Log(t)
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
		rest := records[i+1:]
		a := append(append(append([]events.Record(nil), records[:i+1]...), up, release), rest...)
		b := append(append(append([]events.Record(nil), records[:i+1]...), release, up), rest...)
		sameBut(t, a, b, i+2)
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
