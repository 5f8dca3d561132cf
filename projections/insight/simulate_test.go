package insight

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/test/scenario"
)

type fatalist interface{ Fatal(args ...any) }

// simulate folds a log under a configuration, and gives what was said to each reserve.
func simulate(t fatalist, log []events.Record, config SimulationConfig) (*Simulation, []string) {
	s, err := NewSimulation(admission.New(), config)
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	s.each = func(v *events.Verdict) { said = append(said, string(events.AppendVerdict(nil, v))) }
	for i := range log {
		recorded, err := s.Recording().Apply(&log[i])
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Take(&recorded); err != nil {
			t.Fatal(err)
		}
	}
	s.Finish()
	return s, said
}

func limits(t fatalist, meters map[string]int64) *Limits {
	all := map[string]*int64{}
	for name, n := range meters {
		all[name] = &n
	}
	l, err := NewLimits(all)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// really gives the verdicts on a log.
func really(log []events.Record) (said []string) {
	f := admission.New()
	for i := range log {
		for _, v := range f.Apply(&log[i]) {
			said = append(said, string(events.AppendVerdict(nil, &v)))
		}
	}
	return said
}

// TestUnchangedIsWhatHappened: with the limits and the load that were recorded, a simulation gives the recorded verdicts one by one and
// ends in the same state, whatever it begins at.
func TestUnchangedIsWhatHappened(t *testing.T) {
	check := func(t fatalist, name string, log []events.Record, from int64) {
		s, said := simulate(t, log, SimulationConfig{From: from, Scale: ScaleOnce})
		if s.sim == nil {
			return // it begins after the log
		}
		if from == 0 {
			if diff := cmp.Diff(really(log), said); diff != "" {
				t.Fatal(name + ": the simulation differs from what was recorded (-recorded +simulated):\n" + diff)
			}
		}
		if s.sim.Digest() != s.recording.fold.Digest() {
			t.Fatal(name + ": another state")
		}
		r := s.Report()
		if r.Changed != (Changed{}) || r.Recorded != r.Simulated {
			t.Fatal(fmt.Sprintf("%s: changed %+v, recorded %+v, simulated %+v", name, r.Changed, r.Recorded, r.Simulated))
		}
	}
	for name, log := range scenarios(t) {
		check(t, name, log, 0)
		check(t, name+" from its middle", log, log[len(log)/2].At)
	}
	rapid.Check(t, func(t *rapid.T) {
		log := scenario.Log(t)
		check(t, "random log", log, 0)
		check(t, "random log from its middle", log, log[len(log)/2].At)
	})
}

// TestNoLimitRefusesWhatFits: when every limit is as high as can be, only what is too large for that, money, paces, pauses and what no
// claim is to blame for still refuse.
func TestNoLimitRefusesWhatFits(t *testing.T) {
	const most = events.MaxBucketAmount
	seen := 0
	rapid.Check(t, func(t *rapid.T) {
		log := scenario.Log(t)
		for _, d := range reserves(log) { // who waits on a gauge keeps others from it, whatever its limit
			d.ParkMS = 0
			for j := range d.Claims {
				d.Claims[j].Park = false
			}
		}
		_, said := simulate(t, log, SimulationConfig{Limits: limits(t, map[string]int64{"*/*/*": most})})
		for _, text := range said {
			var v struct {
				Refusal *struct {
					Claim           int
					Meter, Reason   string
					Requested, Used int64
					RetryAfterMS    *int64 `json:"retry_after_ms"`
				}
			}
			if err := json.Unmarshal([]byte(text), &v); err != nil {
				continue // an invalid claim's number that is no integer
			}
			seen++
			r := v.Refusal
			if r == nil || r.Claim < 0 || r.Reason == "invalid" || r.Reason == "paused" || r.Reason == "no_balance" || strings.HasSuffix(r.Meter, "/pace") {
				continue
			}
			if r.Requested+r.Used <= most {
				t.Fatalf("refused %s", text)
			}
		}
	})
	if seen == 0 {
		t.Error("nothing was decided")
	}
}

// TestHigherNeverRefusesMore: requests that each take one of one window, at random times. A higher limit refuses no more of them, a lower
// one no fewer.
func TestHigherNeverRefusesMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := eventstest.NewLog(1_780_000_000_000_000_000)
		limit := rapid.Int64Range(1, 10).Draw(t, "limit")
		var log []events.Record
		for i, gap := range rapid.SliceOfN(rapid.Int64Range(0, 20_000), 5, 60).Draw(t, "gaps") {
			l.Now += gap * 1_000_000
			log = append(log, l.Add(eventstest.Reserve(eventstest.RequestID(i), eventstest.Rate("org/acme/rpm", limit))))
		}
		other := rapid.Int64Range(0, 20).Draw(t, "other")
		s, _ := simulate(t, log, SimulationConfig{Limits: limits(t, map[string]int64{"org/acme/rpm": other})})
		r := s.Report()
		if other >= limit && r.Simulated.Refused > r.Recorded.Refused || other <= limit && r.Simulated.Refused < r.Recorded.Refused {
			t.Fatalf("limit %d refuses %d, limit %d %d", limit, r.Recorded.Refused, other, r.Simulated.Refused)
		}
		if r.Changed.NowRefused-r.Changed.NowAdmitted != r.Simulated.Refused-r.Recorded.Refused {
			t.Fatalf("changed %+v, recorded %+v, simulated %+v", r.Changed, r.Recorded, r.Simulated)
		}
	})
}

// TestScaleCopiesRequests: at twice the load everything is asked twice, at half about half.
func TestScaleCopiesRequests(t *testing.T) {
	l := eventstest.NewLog(1_780_000_000_000_000_000)
	var log []events.Record
	const n = 2000
	for i := range n {
		id := eventstest.RequestID(i)
		log = append(log, l.Add(eventstest.Reserve(id, eventstest.Slot("org/acme/concurrency", 1<<40))), l.Add(eventstest.Final(id, 10, 5, 100)), l.Add(eventstest.Release(id)))
	}
	for scale, want := range map[int64][2]int64{500: {900, 1100}, 1000: {n, n}, 2000: {2 * n, 2 * n}, 2500: {4900, 5100}, 12_000: {12 * n, 12 * n}} {
		s, _ := simulate(t, log, SimulationConfig{Scale: scale})
		r := s.Report()
		if r.Simulated.Asked < want[0] || r.Simulated.Asked > want[1] || r.Simulated.Refused != 0 || r.Recorded.Asked != n {
			t.Errorf("scale %d: %+v", scale, r.Simulated)
		}
		if m, ok := s.sim.Reading("org/acme/concurrency"); !ok || m.Used != 0 {
			t.Errorf("scale %d: %d are still held at the end", scale, m.Used)
		}
		if len(s.lives) != 0 || len(s.origins) != 0 || len(s.running) != 0 || s.scheduled.Len() != 0 {
			t.Errorf("scale %d: %d lives, %d origins, %d runs and %d events are left", scale, len(s.lives), len(s.origins), len(s.running), s.scheduled.Len())
		}
	}
}

// TestCopiesKnowWhatWasChanged: a copy comes after changes that the request came before, and is not refused for that.
func TestCopiesKnowWhatWasChanged(t *testing.T) {
	l := eventstest.NewLog(1_780_000_000_000_000_000)
	var log []events.Record
	for i := range 20 {
		id := eventstest.RequestID(i)
		asks := eventstest.Reserve(id, eventstest.Slot("org/acme/concurrency", 1<<40))
		asks.Fence = int64(i)
		log = append(log, l.Add(asks), l.Add(eventstest.Final(id, 10, 5, 100)), l.Add(eventstest.Release(id)), l.Add(&events.Fence{Org: asks.Org, Version: int64(i) + 1}))
	}
	s, _ := simulate(t, log, SimulationConfig{Scale: 2 * ScaleOnce})
	if r := s.Report(); r.Simulated.Asked != 40 || r.Simulated.Refused != 0 {
		t.Errorf("%+v", r.Simulated)
	}
}

// TestNewlyAdmittedEnds: a request that was refused and is now admitted holds its slot for the median life of its model, then lets go.
func TestNewlyAdmittedEnds(t *testing.T) {
	l := eventstest.NewLog(1_780_000_000_000_000_000)
	var log []events.Record
	add := func(d events.Data) { log = append(log, l.Add(d)) }
	wait := func(ms int64) { l.Now += ms * 1_000_000 }
	slot := func(n int) {
		add(eventstest.Reserve(eventstest.RequestID(n), eventstest.Slot("org/acme/concurrency", 1)))
	}
	slot(0)
	wait(600)
	add(eventstest.Release(eventstest.RequestID(0)))
	slot(1)
	slot(2) // refused: 1 holds
	wait(400)
	slot(3) // refused: 1 holds; with two slots 2 still holds the other
	wait(300)
	slot(4) // with two slots 2 has let go
	wait(300)
	add(eventstest.Release(eventstest.RequestID(1)))
	s, said := simulate(t, log, SimulationConfig{Limits: limits(t, map[string]int64{"org/*/concurrency": 2})})
	want := []bool{true, true, true, false, true}
	if len(said) != len(want) {
		t.Fatalf("%d verdicts: %v", len(said), said)
	}
	for i, text := range said {
		if strings.Contains(text, `"admitted"`) != want[i] {
			t.Errorf("request %d: %s", i, text)
		}
	}
	if r := s.Report(); r.Changed.NowAdmitted != 2 || r.Changed.Invented != 2 || r.Recorded.Refused != 3 || r.Simulated.Refused != 1 {
		t.Errorf("changed %+v, recorded %+v, simulated %+v", r.Changed, r.Recorded, r.Simulated)
	}
}

// TestSimulateRecorded reports on a recorded log under lower and higher limits, and at twice the load.
func TestSimulateRecorded(t *testing.T) {
	log := recorded(t, "ten.jsonl")
	var b strings.Builder
	for _, c := range []struct {
		name   string
		config SimulationConfig
	}{
		{"lower", SimulationConfig{Limits: limits(t, map[string]int64{"key/*/rpm": 2, "org/acme/concurrency": 1, "org/nobody/rpm": 5})}},
		{"higher", SimulationConfig{Limits: limits(t, map[string]int64{"key/k1/rpm": 60, "model/*/occupancy": 20_000})}},
		{"twice", SimulationConfig{Scale: 2000}},
	} {
		s, _ := simulate(t, log, c.config)
		fmt.Fprintf(&b, "# %s\n\n%s\n", c.name, s.Report().Text())
	}
	golden(t, "ten.simulated", b.String())
}

func TestLimitsFaults(t *testing.T) {
	n := int64(-1)
	_, err := NewLimits(map[string]*int64{"rpm": nil, "org/acme/rpm/x": nil, "org/a/rpm": &n, "org/[/rpm": nil, "key/*/tpm": nil})
	if err == nil || strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("faults: %v", err)
	}
	if _, err := NewSimulation(admission.New(), SimulationConfig{Scale: MaxScale + 1}); err == nil {
		t.Error("a scale beyond the largest is taken")
	}
}

func TestTheMostParticularLimitHolds(t *testing.T) {
	l := limits(t, map[string]int64{"*/*/rpm": 1, "org/*/rpm": 2, "org/a*/rpm": 3, "org/acme/rpm": 4})
	for m, want := range map[events.Meter]int64{"key/k/rpm": 1, "org/beta/rpm": 2, "org/abc/rpm": 3, "org/acme/rpm": 4} {
		d := l.apply(eventstest.Reserve("r", eventstest.Rate(m, 100)), &events.Reserve{})
		if d.Claims[0].Limit != want {
			t.Errorf("%s: limit %d, want %d", m, d.Claims[0].Limit, want)
		}
	}
	d := eventstest.Reserve("r", eventstest.Rate("org/acme/rps", 100))
	if l.apply(d, &events.Reserve{}) != d {
		t.Error("a reserve without a new limit is copied")
	}
}
