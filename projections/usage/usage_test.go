package usage

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/projections/admission"
)

const began = int64(1_780_000_000_000_000_000)

// teller applies facts one after another and keeps the lines.
type teller struct {
	*eventstest.Log
	u     *Usage
	lines []Line
}

func newTeller() *teller { return &teller{Log: eventstest.NewLog(began), u: New(admission.New())} }

func (t *teller) tell(facts ...events.Data) *teller {
	for _, d := range facts {
		r := t.Add(d)
		if id, attempt, missing := t.u.Missing(&r); missing {
			for i := len(t.lines) - 1; i >= 0; i-- {
				if l := t.lines[i]; l.Request == id && l.Attempt == attempt {
					t.u.Restore(l)
					break
				}
			}
		}
		t.lines = append(t.lines, t.u.Apply(&r)...)
	}
	return t
}

// pass lets time pass, with a sign of life of the gateway every 1.5 s if it lives. A longer silence would be the log's own, in which no lease ends.
func (t *teller) pass(minutes int64, lives bool) {
	for end := t.Now + minutes*minute; t.Now < end; t.Now += 1_500_000_000 {
		if lives {
			t.tell(&events.Lease{Gateway: eventstest.Gateway, Epoch: 1})
		} else {
			t.tell(&events.Tick{})
		}
	}
}

var id = eventstest.RequestID

// states gives what the lines say of a request's attempts.
func (t *teller) states(n int) (out []State) {
	for _, l := range t.lines {
		if l.Request == id(n) {
			out = append(out, l.State)
		}
	}
	return out
}

func (t *teller) want(tb testing.TB, n int, states ...State) {
	tb.Helper()
	if diff := cmp.Diff(states, t.states(n)); diff != "" {
		tb.Errorf("lines of request %d (- want, + got):\n%s", n, diff)
	}
}

func TestASettledLine(t *testing.T) {
	tell := newTeller()
	d := eventstest.Reserve(id(1))
	d.Workspace, d.Principal, d.Deployment, d.PriceVersion = "w", "p", "house/gpt", "v7"
	tell.tell(d, eventstest.Final(id(1), 250, 40, 91_000), eventstest.Release(id(1)))
	want := Line{ID: "event-2", State: Settled, Time: Instant(began + 1_000_000), Org: eventstest.Org, Workspace: "w", Principal: "p", Key: eventstest.Key,
		Model: eventstest.Model, Deployment: "house/gpt", Operation: "chat", Request: id(1), Quality: "exact",
		Usage: events.Usage{InputTokens: 250, OutputTokens: 40}, CostNano: 91_000, Change: Amounts{InputTokens: 250, OutputTokens: 40, CostNano: 91_000},
		PriceVersion: "v7", Seq: 2}
	if diff := cmp.Diff([]Line{want}, tell.lines); diff != "" {
		t.Errorf("(- want, + got):\n%s", diff)
	}
	if tell.u.Open() != 0 {
		t.Errorf("%d requests are still open", tell.u.Open())
	}
	back, err := Decode(tell.lines[0].Encode())
	if diff := cmp.Diff(want, back); err != nil || diff != "" {
		t.Errorf("read back: %v\n%s", err, diff)
	}
}

func TestOnlyAdmittedAttemptsHaveLines(t *testing.T) {
	tell := newTeller()
	full := eventstest.Reserve(id(1), eventstest.Tokens("org/acme/tpm", 500, 100))
	tell.tell(eventstest.Final(id(1), 1, 1, 1), full, eventstest.Final(id(1), 1, 1, 1), eventstest.Release(id(1)), eventstest.Final(id(2), 1, 1, 1), eventstest.Release(id(2)))
	if len(tell.lines) > 0 {
		t.Errorf("lines without an admission: %+v", tell.lines)
	}
	// A final before its reserve counts when the reserve is admitted.
	tell.tell(eventstest.Final(id(3), 5, 6, 7), eventstest.Reserve(id(3)))
	tell.want(t, 3, Settled)
}

// What a recovery tells of budgets is nobody's usage.
func TestThePlatformIsNotBilled(t *testing.T) {
	tell := newTeller()
	d := eventstest.Reserve(id(1))
	d.Org, d.Mode = events.Platform, events.ModeBoundedLocal
	tell.tell(d, eventstest.Final(id(1), 1, 1, 1), eventstest.Release(id(1)))
	if len(tell.lines) > 0 || tell.u.Open() != 0 {
		t.Errorf("lines of the platform: %+v", tell.lines)
	}
}

func TestTheFirstFinalCounts(t *testing.T) {
	tell := newTeller()
	early := eventstest.Final(id(1), 10, 10, 100)
	early.N, early.Final = 3, false
	low, second := eventstest.Final(id(1), 1, 1, 1), eventstest.Final(id(1), 20, 20, 200)
	low.N, second.N = 2, 4
	third := *second
	third.N, third.CostNano = 5, 999
	tell.tell(eventstest.Reserve(id(1)), early, low, second, &third, eventstest.Release(id(1)), second)
	tell.want(t, 1, Settled)
	if tell.lines[0].CostNano != 200 {
		t.Errorf("it costs %d, want 200", tell.lines[0].CostNano)
	}
}

func TestCorrections(t *testing.T) {
	tell := newTeller()
	tell.tell(eventstest.Reserve(id(1)), eventstest.Final(id(1), 250, 40, 91_000), eventstest.Release(id(1)))
	correct := func(n int, revision, input, cost int64) *events.Correction {
		return &events.Correction{Request: id(n), Revision: revision, Usage: events.Usage{InputTokens: input, OutputTokens: 40}, CostNano: cost, Reason: "misread"}
	}
	tell.tell(correct(1, 1, 200, 80_000), correct(1, 1, 0, 0), correct(1, 3, 260, 95_000), correct(1, 2, 0, 0), correct(2, 1, 5, 5))
	tell.want(t, 1, Settled, Corrected, Corrected)
	total := Amounts{}
	for i, l := range tell.lines {
		total = total.Plus(l.Change)
		if l.ID != "event-2" || l.Key != eventstest.Key || (l.Revision > 0) != (l.EventID() != "event-2") {
			t.Errorf("line %d is %+v", i, l)
		}
	}
	if want := (Amounts{InputTokens: 260, OutputTokens: 40, CostNano: 95_000}); total != want {
		t.Errorf("the changes come to %+v, want %+v", total, want)
	}
	if tell.u.Counts.Late != 2 || tell.u.Counts.Orphans != 1 {
		t.Errorf("counts are %+v", tell.u.Counts)
	}
}

func TestUnsettled(t *testing.T) {
	tell := newTeller()
	sent, unsent := eventstest.Release(id(1)), eventstest.Release(id(2))
	sent.Dispatched, unsent.Dispatched = events.DispatchedUnknown, events.DispatchedNo
	tell.tell(eventstest.Reserve(id(1)), eventstest.Reserve(id(2)), eventstest.Reserve(id(3)), eventstest.Reserve(id(4)), sent, unsent)
	tell.pass(14, true)
	tell.want(t, 1)
	tell.pass(2, true)
	tell.want(t, 1, Unsettled)
	tell.want(t, 2) // nothing was sent
	tell.want(t, 3) // runs
	if l := tell.lines[0]; l.CostNano != 0 || l.Usage != (events.Usage{}) || l.Quality != "none" || l.Key != eventstest.Key {
		t.Errorf("it is %+v", l)
	}
	// A final that comes after all counts by itself.
	tell.tell(eventstest.Final(id(1), 5, 6, 7))
	tell.want(t, 1, Unsettled, Settled)
	// The gateway dies: its requests lapse, end 15 minutes later, and are unsettled 15 minutes after that.
	tell.pass(29, false)
	tell.want(t, 3)
	tell.pass(4, false)
	tell.want(t, 3, Unsettled)
	tell.want(t, 4, Unsettled)
	tell.pass(120, false)
	if tell.u.Open() != 0 || len(tell.lines) != 4 {
		t.Errorf("%d open, %d lines", tell.u.Open(), len(tell.lines))
	}
}

func TestSums(t *testing.T) {
	tell := newTeller()
	for n := range 5 {
		d := eventstest.Reserve(id(n))
		if n == 4 {
			d.Key = "other"
		}
		tell.tell(d, eventstest.Final(id(n), 10, 3, 70), eventstest.Release(id(n)))
	}
	tell.tell(&events.Correction{Request: id(0), Revision: 1, Usage: events.Usage{InputTokens: 9, OutputTokens: 3}, CostNano: 60})
	hour, day := Instant(began-began%int64(Hour)), Instant(began-began%int64(Day))
	sum := func(start Instant, key string, lines, corrections, input, output, cost int64) Sum {
		return Sum{Group: Group{start, eventstest.Org, "", key, eventstest.Model}, Lines: lines, Corrections: corrections,
			Amounts: Amounts{InputTokens: input, OutputTokens: output, CostNano: cost}}
	}
	if diff := cmp.Diff([]Sum{sum(hour, "key1", 4, 1, 39, 12, 270), sum(hour, "other", 1, 0, 10, 3, 70)}, tell.u.Hours()); diff != "" {
		t.Errorf("hours (- want, + got):\n%s", diff)
	}
	if diff := cmp.Diff([]Sum{sum(day, "key1", 4, 1, 39, 12, 270), sum(day, "other", 1, 0, 10, 3, 70)}, tell.u.Days()); diff != "" {
		t.Errorf("days (- want, + got):\n%s", diff)
	}
	tell.Now += 3 * Day
	tell.tell(&events.Tick{})
	if len(tell.u.Hours()) != 0 || len(tell.u.Days()) != 2 {
		t.Errorf("after three days: %d hours, %d days", len(tell.u.Hours()), len(tell.u.Days()))
	}
}

// A waiter is refused and forgotten in the same silence in which its id comes again: the refusal is the old one's, not the new one's.
func TestARefusalIsOfTheRequestThatWasForgotten(t *testing.T) {
	parked := func(n int) *events.Reserve {
		d := eventstest.Reserve(id(n), eventstest.Occupancy("model/qwen3/occupancy", 6, 10))
		d.ParkMS = 2000
		return d
	}
	l := newTeller().tell(parked(1), parked(0)) // 0 waits for 1
	l.Now += 30 * minute                        // in which it is refused, and forgotten
	l.tell(parked(0), &events.Release{Request: id(1), Gateway: eventstest.Gateway, Dispatched: events.DispatchedNo},
		&events.TrueUp{Request: id(0), Gateway: eventstest.Gateway, N: 1, Final: true, Quality: events.QualityExact, CostNano: 7, Charges: []events.Charge{}})
	if len(l.lines) != 1 || l.lines[0].Request != id(0) || l.lines[0].CostNano != 7 {
		t.Errorf("lines %+v, want the one of what was admitted", l.lines)
	}
}
