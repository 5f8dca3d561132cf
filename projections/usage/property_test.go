package usage

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/projections/admission"
)

const (
	credit     = int64(1_000_000)
	costMeter  = events.Meter("org/acme/spend-month")
	tokenMeter = events.Meter("org/acme/tokens-month")
)

// steps are by how much time moves between two records: within a request, beyond leases, beyond what the fold remembers, and back.
var steps = []int64{1_000_000, 1_000_000, 400_000_000, 3_000_000_000, 40_000_000_000, 4 * minute, 16 * minute, -2_000_000_000}

// history draws a log of a few requests with facts in any order, many of them twice. Two budgets without a limit count what finals say
// of all attempts, and a balance what those of prepaid requests, which have one attempt, cost.
func history(t *rapid.T, numbered bool) []events.Record {
	log := eventstest.NewLog(began)
	number := func(least, most int) int64 { return int64(rapid.IntRange(least, most).Draw(t, "n")) }
	var records []events.Record
	add := func(d events.Data) {
		log.Step = rapid.SampledFrom(steps).Draw(t, "step")
		records = append(records, log.Add(d))
	}
	add(&events.Credit{Org: eventstest.Org, AmountNano: credit, Reference: "c"})
	var said []events.Data
	for range number(1, 40) {
		n := int(number(0, 3))
		prepaid := n < 2
		attempt := int64(0)
		if !prepaid {
			attempt = number(0, 2)
		}
		var d events.Data
		switch number(0, 12) {
		case 0, 1, 2, 3:
			d = someReserve(t, id(n), attempt, prepaid)
		case 4, 5, 6, 7:
			d = someTrueUp(t, id(n), attempt, numbered)
		case 8, 9, 10:
			d = &events.Release{Request: id(n), Attempt: attempt, Gateway: eventstest.Gateway, Of: events.Of(number(0, 2)),
				Outcome: events.Completed, Dispatched: events.Dispatched(number(0, 2))}
		case 11:
			d = &events.Lease{Gateway: eventstest.Gateway, Epoch: 1}
		default:
			if len(said) > 0 && !numbered {
				d = rapid.SampledFrom(said).Draw(t, "again")
			} else {
				d = &events.Tick{}
			}
		}
		said = append(said, d)
		add(d)
	}
	return records
}

func someReserve(t *rapid.T, request events.RequestID, attempt int64, prepaid bool) *events.Reserve {
	count := func(meter events.Meter, basis string) events.Claim {
		return events.Claim{Meter: meter, Kind: events.Budget, Period: events.Month, Basis: basis, Life: events.LifeAttempt}
	}
	d := eventstest.Reserve(request, count(costMeter, events.BasisCost), count(tokenMeter, events.BasisTotal))
	d.Attempt = attempt
	switch rapid.IntRange(0, 4).Draw(t, "how") {
	case 0:
		d.Mode = events.ModeBoundedLocal
	case 1:
		d.ParkMS = 2000
		d.Claims = append(d.Claims, eventstest.Occupancy("model/qwen3/occupancy", 6, 10))
	case 2:
		d.Claims = append(d.Claims, eventstest.Rate("org/acme/rpm", 2))
	case 3:
		d.MaxMS = 60_000
	}
	if prepaid {
		d.Claims = append(d.Claims, eventstest.Hold("org/acme/balance", int64(rapid.IntRange(0, 5000).Draw(t, "hold"))))
	}
	return d
}

func someTrueUp(t *rapid.T, request events.RequestID, attempt int64, numbered bool) *events.TrueUp {
	number := func(least, most int) int64 { return int64(rapid.IntRange(least, most).Draw(t, "n")) }
	least := 0
	if numbered {
		least = 1
	}
	u := &events.TrueUp{Request: request, Attempt: attempt, Gateway: eventstest.Gateway, N: number(least, 4), Final: number(0, 2) > 0,
		Quality: events.Quality(number(0, 3)), Charges: []events.Charge{}}
	if u.Final {
		u.CostNano, u.Usage = number(0, 900), events.Usage{InputTokens: number(0, 500), OutputTokens: number(0, 90)}
		u.Charges = []events.Charge{{Basis: events.BasisCost, Amount: u.CostNano}, {Basis: events.BasisTotal, Amount: u.Usage.InputTokens + u.Usage.OutputTokens}}
	}
	return u
}

// What lines say was used and what it cost is what the meters have, and what was debited.
func TestConservation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := history(t, false)
		u, plain := New(admission.New()), admission.New()
		var cost, prepaid, tokens int64
		asked := map[place]bool{}
		for i := range records {
			lines := u.Apply(&records[i])
			verdicts := plain.Apply(&records[i])
			if diff := cmp.Diff(string(events.AppendVerdicts(nil, verdicts)), string(events.AppendVerdicts(nil, u.Verdicts()))); diff != "" {
				t.Fatalf("verdicts at %d (- fold, + usage):\n%s", records[i].Seq, diff)
			}
			for k := range verdicts {
				if verdicts[k].Admitted {
					asked[place{verdicts[k].Request, verdicts[k].Attempt}] = true
				}
			}
			for _, l := range lines {
				cost += l.CostNano
				tokens += l.Usage.InputTokens + l.Usage.OutputTokens
				if l.Request == id(0) || l.Request == id(1) {
					prepaid += l.CostNano
				}
				if !asked[place{l.Request, l.Attempt}] {
					t.Fatalf("a line of an attempt that was not admitted: %+v", l)
				}
			}
			if u.Fold().Digest() != plain.Digest() {
				t.Fatalf("digests differ at %d", records[i].Seq)
			}
			used := func(m events.Meter) int64 { r, _ := plain.Reading(m); return r.Used }
			balance, _ := plain.Reading("org/acme/balance")
			if used(costMeter) != cost || used(tokenMeter) != tokens || credit-balance.Total != prepaid {
				t.Fatalf("at %d lines come to %d nano-dollars, %d tokens, %d prepaid; the fold to %d, %d, %d\n%s", records[i].Seq, cost, tokens, prepaid,
					used(costMeter), used(tokenMeter), credit-balance.Total, logText(records[:i+1]))
			}
		}
	})
}

// In the end every admitted attempt has a line, unless it is known never to have been sent, and nothing is kept.
func TestEveryAttemptIsToldOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := history(t, false)
		last := records[len(records)-1]
		for n := range int64(120) {
			last.Seq, last.At, last.Fault, last.Event = last.Seq+1, max(last.At, began)+minute*(1+n/4), "", eventstest.Event("t", &events.Tick{})
			records = append(records, last)
		}
		u := New(admission.New())
		admittedOnce, told, unsent := map[place]bool{}, map[place]bool{}, map[place]bool{}
		for i := range records {
			if d, ok := records[i].Data.(*events.Release); ok && d.Dispatched == events.DispatchedNo {
				unsent[place{d.Request, d.Attempt}] = true
			}
			for _, l := range u.Apply(&records[i]) {
				told[place{l.Request, l.Attempt}] = true
			}
			for _, v := range u.Verdicts() {
				if v.Admitted {
					admittedOnce[place{v.Request, v.Attempt}] = true
				}
			}
		}
		for p := range admittedOnce {
			if !told[p] && !unsent[p] {
				t.Fatalf("attempt %v was admitted and has no line\n%s", p, logText(records))
			}
		}
		if u.Open() != 0 || len(u.due) != 0 {
			t.Fatalf("%d requests are open, %d due\n%s", u.Open(), len(u.due), logText(records))
		}
	})
}

// What stands in the log twice makes no further line, and no other.
func TestDuplicatesChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := history(t, true)
		var twice []events.Record
		for _, r := range records {
			twice = append(twice, r)
			for range rapid.IntRange(0, 2).Draw(t, "again") {
				twice = append(twice, r)
			}
		}
		for i := range twice {
			twice[i].Seq = uint64(i + 1)
		}
		if diff := cmp.Diff(withoutPlaces(linesOf(records)), withoutPlaces(linesOf(twice))); diff != "" {
			t.Fatalf("(- once, + twice):\n%s\n%s", diff, logText(records))
		}
	})
}

func linesOf(records []events.Record) (lines []Line) {
	u := New(admission.New())
	for i := range records {
		lines = append(lines, u.Apply(&records[i])...)
	}
	return lines
}

func withoutPlaces(lines []Line) []Line {
	for i := range lines {
		lines[i].Seq = 0
	}
	return lines
}

// Whatever the snapshots on the way, the lines and the state are the same.
func TestSnapshotsAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := history(t, false)
		straight, u := New(admission.New()), New(admission.New())
		for i := range records {
			want := fmt.Sprintf("%+v", straight.Apply(&records[i]))
			if rapid.IntRange(0, 3).Draw(t, "snapshot") == 0 {
				var err error
				if u, err = Restore(u.Snapshot(nil)); err != nil {
					t.Fatal(err)
				}
			}
			if got := fmt.Sprintf("%+v", u.Apply(&records[i])); got != want {
				t.Fatalf("lines at %d: %s, want %s", records[i].Seq, got, want)
			}
		}
		if !bytes.Equal(straight.Snapshot(nil), u.Snapshot(nil)) {
			t.Fatal("another state")
		}
	})
}

func TestSnapshotsThatAreNone(t *testing.T) {
	good := newTeller().tell(eventstest.Reserve(id(1)), eventstest.Release(id(2)), &events.Lease{Gateway: eventstest.Gateway, Epoch: 1}).u.Snapshot(nil)
	if _, err := Restore(good); err != nil {
		t.Fatal(err)
	}
	for n := range good {
		if _, err := Restore(good[:n]); err == nil {
			t.Fatalf("cut off after %d of %d bytes, it is taken", n, len(good))
		}
	}
}

func logText(records []events.Record) string {
	text := ""
	for i := range records {
		text += fmt.Sprintf("%d %d %s %s\n", records[i].Seq, (records[i].At-began)/1_000_000, records[i].Kind(), events.AppendData(nil, records[i].Data))
	}
	return text
}
