package generation

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/projections/admission"
)

const credit = 1_000_000_000

// localID is the request that its gateway admits by itself, so that it is admitted even after its release.
var localID = eventstest.RequestID(2)

// life draws a log of a few requests with facts in any order, some of them twice. Each claim but the balance's has a meter of its own.
func life(t *rapid.T, step int64) []events.Record {
	log := eventstest.NewLog(1_780_000_000_000_000_000)
	log.Step = step
	records := []events.Record{
		log.Add(&events.Lease{Gateway: eventstest.Gateway, Epoch: 1, TTLMS: events.MaxTTLMS}),
		log.Add(&events.Credit{Org: eventstest.Org, AmountNano: credit, Reference: "c"}),
	}
	number := func(least, most int) int64 { return int64(rapid.IntRange(least, most).Draw(t, "n")) }
	for range number(1, 25) {
		id, attempt := eventstest.RequestID(int(number(0, 2))), number(0, 2)
		if id == localID {
			attempt = 0
		}
		var d events.Data
		switch number(0, 9) {
		case 0, 1, 2:
			d = lifeReserve(t, id, attempt)
		case 3, 4, 5, 6:
			u := &events.TrueUp{Request: id, Attempt: attempt, Gateway: eventstest.Gateway, N: number(0, 4), Final: number(0, 3) == 0,
				Quality: events.Quality(number(0, 3)), CostNano: number(0, 900)}
			for _, basis := range []string{events.BasisTotal, events.BasisCost, events.BasisOutput, events.BasisFootprint} {
				if number(0, 2) > 0 {
					u.Charges = append(u.Charges, events.Charge{Basis: basis, Amount: number(0, 900)})
				}
			}
			d = u
		default:
			d = &events.Release{Request: id, Attempt: attempt, Gateway: eventstest.Gateway, Of: events.Of(number(0, 2)),
				Outcome: events.Completed, Dispatched: events.Dispatched(number(0, 2))}
		}
		records = append(records, log.Add(d))
		if number(0, 5) == 0 {
			records = append(records, log.Add(d))
		}
	}
	return records
}

func lifeReserve(t *rapid.T, id events.RequestID, attempt int64) *events.Reserve {
	number := func(least, most int) int64 { return int64(rapid.IntRange(least, most).Draw(t, "n")) }
	d := eventstest.Reserve(id)
	d.Attempt = attempt
	if id == localID {
		d.Mode = events.ModeBoundedLocal
	}
	for i := range number(0, 6) {
		c := events.Claim{
			Meter:    events.Meter(fmt.Sprintf("org/%s.%d.%d/x", id, attempt, i)),
			Kind:     rapid.SampledFrom([]events.MeterKind{events.Window, events.Bucket, events.Budget}).Draw(t, "kind"),
			WindowMS: events.DefaultWindowMS, Life: events.Life(number(0, 2)), Amount: number(0, 500), Period: events.Month,
			Basis: rapid.SampledFrom([]string{events.BasisRequest, events.BasisTotal, events.BasisCost, events.BasisOutput, events.BasisFootprint}).Draw(t, "basis"),
		}
		if c.Kind == events.Bucket {
			c.HasLimit, c.Limit, c.HasCheck, c.Check, c.Period = true, 600, true, 1, events.Day
		}
		if c.Kind == events.Window {
			c.Period = events.Day
		}
		if c.Kind == events.Budget && number(0, 9) == 0 {
			c.HasLimit, c.Limit = true, 200 // refuses some
		}
		d.Claims = append(d.Claims, c)
	}
	if attempt == 0 && number(0, 1) == 0 {
		d.Claims = append(d.Claims, eventstest.Hold("org/acme/balance", number(0, 5000)))
	}
	return d
}

// What a receipt says that a claim came to is what the fold has on the claim's meter.
func TestReceiptsAgreeWithTheFold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := decided(life(t, 1000))
		fold, g := admission.New(), New()
		for i := range records {
			fold.Apply(&records[i])
			g.Apply(&records[i])
		}
		debits := int64(0)
		for _, rec := range g.Drain(true) {
			for k := range rec.Attempts {
				for _, c := range rec.Attempts[k].Claims {
					if c.Counts == balance {
						if c.Settled != nil {
							debits += *c.Settled
						}
						continue
					}
					reading, _ := fold.Reading(c.Meter)
					settled := int64(0)
					if c.Settled != nil {
						settled = *c.Settled
					}
					if reading.Used != settled {
						t.Fatalf("request %s, attempt %d: %s is settled to %d, the fold has %d\n%s", rec.ID, rec.Attempts[k].Attempt, c.Meter, settled, reading.Used, logText(records, rec.ID))
					}
				}
			}
		}
		if reading, ok := fold.Reading("org/acme/balance"); !ok || reading.Total != credit-debits {
			t.Fatalf("records say %d was debited, the fold %d\n%s", debits, credit-reading.Total, logText(records, ""))
		}
	})
}

func subjectOf(r *events.Record) events.RequestID { return events.RequestID(r.Subject) }

// logText shows what a log says of a request, or all of it.
func logText(records []events.Record, about events.RequestID) string {
	text := ""
	for i := range records {
		if about != "" && subjectOf(&records[i]) != about && records[i].Kind() != events.KindVerdicts {
			continue
		}
		text += fmt.Sprintf("%d %s %s\n", records[i].Seq, records[i].Kind(), events.AppendData(nil, records[i].Data))
	}
	return text
}

// store is what a store of records holds, and up to where in the log.
type store struct {
	texts    map[events.RequestID][]byte
	position uint64
}

func (s *store) drain(t *rapid.T, g *Generations, all bool, seq uint64) {
	for _, rec := range g.Drain(all) {
		text, err := json.Marshal(rec)
		if err != nil {
			t.Fatal(err)
		}
		s.texts[rec.ID] = text
	}
	if all {
		s.position = seq
	}
}

func (s *store) apply(t *rapid.T, g *Generations, r *events.Record) {
	for _, id := range g.Missing(nil, r) {
		if text := s.texts[id]; text != nil {
			if _, err := g.Restore(text); err != nil {
				t.Fatal(err)
			}
		}
	}
	g.Apply(r)
}

// Records come to the same wherever the work was interrupted, and whatever had left memory.
func TestInterruptedWorkComesToTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		step := rapid.SampledFrom([]int64{1000, 100_000_000, 7 * second}).Draw(t, "step")
		records := decided(life(t, step))
		straight := &store{texts: map[events.RequestID][]byte{}}
		g := New()
		for i := range records {
			g.Apply(&records[i])
		}
		straight.drain(t, g, true, records[len(records)-1].Seq)

		s := &store{texts: map[events.RequestID][]byte{}}
		g = New()
		crashes := rapid.IntRange(0, 4).Draw(t, "crashes")
		for i := 0; i < len(records); i++ {
			s.apply(t, g, &records[i])
			switch rapid.IntRange(0, 5).Draw(t, "then") {
			case 0:
				s.drain(t, g, true, records[i].Seq)
			case 1:
				s.drain(t, g, false, records[i].Seq)
			case 2:
				if crashes > 0 {
					crashes--
					g = New()
					i = -1
					for i+1 < len(records) && records[i+1].Seq <= s.position {
						i++
					}
				}
			}
		}
		s.drain(t, g, true, records[len(records)-1].Seq)
		for id, want := range straight.texts {
			if diff := cmp.Diff(string(want), string(s.texts[id])); diff != "" {
				t.Fatalf("request %s (- straight, + interrupted):\n%s", id, diff)
			}
		}
		if len(s.texts) != len(straight.texts) {
			t.Fatalf("%d records, want %d", len(s.texts), len(straight.texts))
		}
	})
}

func TestUSD(t *testing.T) {
	for nano, want := range map[USD]string{
		0: "0", 1: "0.000000001", 1_500_000_000: "1.5", -1: "-0.000000001", -2_000_000_001: "-2.000000001",
		9_223_372_036_854_775_807: "9223372036.854775807", -9_223_372_036_854_775_808: "-9223372036.854775808",
	} {
		text, err := json.Marshal(nano)
		if err != nil || string(text) != want {
			t.Errorf("%d is %s, %v; want %s", int64(nano), text, err, want)
		}
		var back USD
		if err := json.Unmarshal(text, &back); err != nil || back != nano {
			t.Errorf("%s is read as %d, %v", text, int64(back), err)
		}
	}
}
