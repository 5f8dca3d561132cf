package estimator

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
)

func TestObserve(t *testing.T) {
	for _, c := range []struct {
		ratio        Ratio
		bytes, exact int64
		want         Ratio
	}{
		{FirstRatio, 1000, 250, 300_000},       // 4/5 × 312500 + 1/5 × 250000
		{FirstRatio, 10, 1000, 450_000},        // a sample above one token a byte counts as one
		{FirstRatio, 1_000_000, 1, 260_000},    // and one below the minimum as that
		{FirstRatio, 0, 100, FirstRatio},       // nothing to learn from
		{FirstRatio, 100, 0, FirstRatio},       //
		{MinRatio, math.MaxInt64, 1, MinRatio}, // stays in its bounds
		{MaxRatio, 1, math.MaxInt64, MaxRatio}, //
		{MaxRatio, 1 << 50, 1 << 49, 900_000},  // large counts do not overflow
	} {
		if got := Observe(c.ratio, c.bytes, c.exact); got != c.want {
			t.Errorf("Observe(%d, %d, %d) = %d, want %d", c.ratio, c.bytes, c.exact, got, c.want)
		}
	}
}

func TestObserveConverges(t *testing.T) {
	r := FirstRatio
	for range 50 {
		r = Observe(r, 10_000, 2_000)
	}
	if r < 199_990 || r > 200_010 {
		t.Errorf("after 50 observations of 0.2 tokens a byte: %d", r)
	}
}

func reserve(id events.RequestID, model string, bytes, images int64) *events.Reserve {
	d := eventstest.Reserve(id)
	d.Model, d.Estimate.TextBytes, d.Estimate.Images = model, bytes, images
	return d
}

func records() []events.Record {
	log := eventstest.NewLog(1_780_000_000_000_000_000)
	id := eventstest.RequestID
	untrained := eventstest.Final(id(3), 500, 1, 0)
	untrained.Train = false
	estimated := eventstest.Final(id(4), 500, 1, 0)
	estimated.Quality = events.QualityEstimated
	early := eventstest.Final(id(7), 250, 0, 0)
	early.Final = false
	late := eventstest.Final(id(7), 900, 30, 0)
	late.N = 2
	faulty := log.Add(eventstest.Final(id(1), 999, 1, 0))
	faulty.Fault = "not to be folded"
	all := []events.Record{
		log.Add(reserve(id(1), "a", 1000, 0)), log.Add(reserve(id(2), "b/2.0", 1000, 0)),
		log.Add(reserve(id(3), "a", 1000, 0)), log.Add(reserve(id(4), "a", 1000, 0)),
		log.Add(reserve(id(5), "a", 1000, 2)), log.Add(reserve(id(7), "a", 1000, 0)),
		faulty,
	}
	for _, d := range []events.Data{
		eventstest.Final(id(1), 250, 10, 0), eventstest.Final(id(1), 800, 10, 0), // 0.25, then what comes too late
		eventstest.Final(id(2), 500, 10, 0),
		untrained, estimated,
		eventstest.Final(id(5), 500, 10, 0), // with images
		eventstest.Final(id(6), 500, 10, 0), // of no known reserve
		early, late,                         // an attempt teaches once
	} {
		all = append(all, log.Add(d))
	}
	return all
}

func TestEstimatorLearnsFromExactTrueUpsThatTrain(t *testing.T) {
	e := New()
	all := records()
	for i := range all {
		e.Apply(&all[i])
	}
	if got := e.Ratio("a"); got != 290_000 { // 312500 → 300000 → 290000, by 0.25 twice
		t.Errorf("ratio of a is %d, want 290000", got)
	}
	if got := e.Ratio("b/2.0"); got != 350_000 {
		t.Errorf("ratio of b/2.0 is %d, want 350000", got)
	}
	if got := e.Ratio("unheard of"); got != FirstRatio {
		t.Errorf("ratio of a model without observations is %d", got)
	}
	if got := Key("b/2.0"); got != "b=2F2=2E0" {
		t.Errorf("key is %s", got)
	}
}

// Wherever the work was interrupted, and however much of the log is applied again, the same is learned.
func TestEstimatorAgain(t *testing.T) {
	straight := New()
	all := records()
	for i := range all {
		straight.Apply(&all[i])
	}
	want := straight.Drain()
	for cut := range all {
		e := New()
		stored := map[string]Learned{}
		for i := range all[:cut] {
			e.Apply(&all[i])
		}
		for _, l := range e.Drain() {
			back, err := Decode(l.Encode())
			if err != nil {
				t.Fatal(err)
			}
			stored[l.Model] = back
		}
		e = New()
		for _, l := range stored {
			e.Restore(l)
		}
		for i := range all {
			e.Apply(&all[i])
		}
		for _, l := range e.Drain() {
			stored[l.Model] = l
		}
		var got []Learned
		for _, l := range want {
			got = append(got, stored[l.Model])
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("interrupted after %d records (- straight, + interrupted):\n%s", cut, diff)
		}
	}
}

func TestEstimatorIsBounded(t *testing.T) {
	e := New()
	for i := range 3 * maxExpected {
		e.Expect(eventstest.RequestID(i), 0, "a", 10)
	}
	if len(e.expected) > maxExpected || len(e.order) > 2*maxExpected {
		t.Errorf("%d attempts are expected, in %d places", len(e.expected), len(e.order))
	}
	// A log of another beginning teaches, whatever its sequences are.
	e.Of(1)
	e.Restore(Learned{Model: "a", Ratio: FirstRatio, Log: 1, Seq: 1000})
	e.Of(2)
	log := eventstest.NewLog(1_780_000_000_000_000_000)
	id := eventstest.RequestID(5_000_000)
	for _, d := range []events.Data{reserve(id, "a", 1000, 0), eventstest.Final(id, 250, 1, 0)} {
		r := log.Add(d)
		e.Apply(&r)
	}
	if got := e.Ratio("a"); got != 300_000 {
		t.Errorf("ratio is %d after an observation in a new log, want 300000", got)
	}
}
