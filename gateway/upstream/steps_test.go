package upstream

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/gateway/relay"
	"github.com/weirhq/weir/gateway/wire"
)

// still is a set that does not run: its replicas are as the test says, and its clock stands where the test puts it.
func still(t *testing.T, m Model) (*Set, *time.Time) {
	t.Helper()
	now := time.Unix(1_800_000_000, 0)
	m.ID = "m"
	s, err := New(Config{Models: []Model{m}}, Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range s.table.Load().replicas {
		r.healthy = true
	}
	return s, &now
}

func (s *Set) replica(i int) *replica { return s.table.Load().models["m"].replicas[i] }

// says has a replica report metrics now.
func (s *Set) says(t *testing.T, i int, text string) {
	t.Helper()
	seen := signals{at: s.now(), own: s.replica(i).inflight.Load()}
	if err := seen.read(strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	s.replica(i).report(seen)
}

// walk gives the replicas that one request tries when every call ends in the same way, step by step.
func walk(s *Set, kind relay.Kind, status int) (steps []string) {
	routes, _ := s.Routes("m", wire.Chat, "")
	for _, r := range routes {
		var tried []string
		for {
			target, done, ok := r.Pick()
			if !ok {
				break
			}
			done(kind, status)
			tried = append(tried, target.Deployment)
		}
		slices.Sort(tried)
		steps = append(steps, r.Step+": "+strings.Join(tried, " "))
	}
	return steps
}

var four = []string{"http://a:1", "http://b:1", "http://c:1", "http://d:1"}

func TestStepsAreWalkedInOrder(t *testing.T) {
	s, _ := still(t, Model{Local: &Local{Replicas: four, Steps: []Step{
		{Name: "first", Replicas: []int{0, 1}}, {Name: "nobody", Replicas: []int{}}, {Name: "relaxed"},
	}}})
	want := []string{"first: a:1 b:1", "nobody: ", "relaxed: c:1 d:1"}
	if got := walk(s, relay.FirstByteTimeout, 0); !slices.Equal(got, want) {
		t.Errorf("%q, want %q: a replica is tried once by a request", got, want)
	}
	s, _ = still(t, Model{Local: &Local{Replicas: four, Steps: []Step{{Name: "one", MaxTries: 1}, {Name: "two", MaxTries: 2}}}})
	got := walk(s, relay.FirstByteTimeout, 0)
	if len(strings.Fields(got[0])) != 2 || len(strings.Fields(got[1])) != 3 {
		t.Errorf("%q: one try, then two", got)
	}
}

func TestWhatAStepExcludes(t *testing.T) {
	const vllm = "vllm:num_requests_running %d\nvllm:num_requests_waiting %d\nvllm:kv_cache_usage_perc %g\n"
	for _, c := range []struct {
		bound Bound
		out   string // replicas that are excluded
	}{
		{Bound{KVCache, "gt", 0.85}, "b"},
		{Bound{KVCache, "gte", 0.5}, "ab"},
		{Bound{Waiting, "gt", 20}, "a"},
		{Bound{Running, "gte", 4}, "b"},
		{Bound{Running, "lt", 4}, "a"}, // the others do not report it, and so pass
		{Bound{CapacityUtilization, "gt", 1}, "a"},
		{Bound{CapacityUtilization, "lt", 2}, "bc"},
		{Bound{SuccessRate, "lt", 0.95}, "c"},
		{Bound{ConsecutiveFailures, "gte", 2}, "c"},
		{Bound{RTT, "gt", 500}, "d"},
		{Bound{"gpu_temperature_c", "lt", 200}, ""},
	} {
		s, _ := still(t, Model{Local: &Local{Engine: "vllm", Replicas: four, Capacity: []int64{10, 10, 10, 0}, Steps: []Step{{Exclude: []Bound{c.bound}}}}})
		s.says(t, 0, fmt.Sprintf(vllm, 3, 21, 0.5))
		s.says(t, 1, fmt.Sprintf(vllm, 4, 0, 0.9))
		s.replica(2).known.called(true, s.now())
		s.replica(2).known.called(true, s.now())
		for i := range 4 {
			s.replica(i).known.probed(time.Duration(1+i) * 150 * time.Millisecond)
		}
		e, out := s.table.Load().models["m"], ""
		for i, m := range e.steps[0].replicas {
			_, seen := m.state(s.now())
			if m.excluded(e.steps[0].exclude, &seen, m.capacity, s.now()) {
				out += string(rune('a' + i))
			}
		}
		if out != c.out {
			t.Errorf("%s %s %g excludes %q, want %q", c.bound.Metric, c.bound.Op, c.bound.Value, out, c.out)
		}
	}
}

func TestExperienceIsForgotten(t *testing.T) {
	s, now := still(t, Model{Local: &Local{Replicas: four[:1], Steps: []Step{{Exclude: []Bound{{SuccessRate, "lt", 0.9}, {ConsecutiveFailures, "gt", 2}}}}}})
	picks := func() bool { return walk(s, relay.ClientGone, 0)[0] != ": " }
	r := s.replica(0)
	for _, kind := range []relay.Kind{relay.Completed, relay.UpstreamStatus, relay.ClientGone, relay.Barred} {
		r.called(kind, 400, *now) // nothing of this is the server's fault
	}
	if !picks() {
		t.Error("a client's mistakes count against the server")
	}
	for range 3 {
		r.called(relay.UpstreamStatus, 503, *now)
	}
	if picks() {
		t.Error("three of five failed")
	}
	*now = now.Add(2 * experienceFor)
	if !picks() {
		t.Error("a replica that gets no calls is never tried again")
	}
}

func TestTimesAreOfTheLastWhile(t *testing.T) {
	text := func(count int, sum float64, fast, slow int) string {
		return fmt.Sprintf("vllm:time_to_first_token_seconds_sum{model_name=\"m\"} %g\nvllm:time_to_first_token_seconds_count{model_name=\"m\"} %d\n"+
			"vllm:time_to_first_token_seconds_bucket{le=\"0.1\",model_name=\"m\"} %d\nvllm:time_to_first_token_seconds_bucket{le=\"2.5\",model_name=\"m\"} %d\n"+
			"vllm:time_to_first_token_seconds_bucket{le=\"+Inf\",model_name=\"m\"} %d\n", sum, count, fast, fast+slow, count)
	}
	s, now := still(t, Model{Local: &Local{Engine: "vllm", Replicas: four[:1]}})
	value := func(m Metric) reading {
		r := s.replica(0)
		_, seen := r.state(*now)
		return r.value(m, &seen, 0, 0, *now)
	}
	s.says(t, 0, text(1000, 5000, 0, 1000)) // what was before this gateway looked does not count
	if v := value(AverageTTFT); v.set {
		t.Errorf("an average of nothing: %v", v)
	}
	*now = now.Add(time.Second)
	s.says(t, 0, text(1010, 5001, 5, 1005))
	if avg, p90 := value(AverageTTFT), value(P90TTFT); avg != (reading{0.1, true}) || p90 != (reading{2.5, true}) {
		t.Errorf("average %v, 90 %% within %v", avg, p90)
	}
	if v := value(AverageITL); v.set {
		t.Errorf("what is not reported: %v", v)
	}
	for range 3 { // time passes, and nothing is answered
		*now = now.Add(timesFor)
		s.says(t, 0, text(1010, 5001, 5, 1005))
	}
	if v := value(AverageTTFT); v.set {
		t.Errorf("of long ago: %v", v)
	}
	s.says(t, 0, text(2, 0.1, 2, 0)) // the server has started anew
	*now = now.Add(time.Second)
	s.says(t, 0, text(12, 0.6, 12, 0))
	if avg, p90 := value(AverageTTFT), value(P90TTFT); avg.value < 0.0499 || avg.value > 0.0501 || p90 != (reading{0.1, true}) {
		t.Errorf("after a restart: average %v, 90 %% within %v", avg, p90)
	}
	*now = now.Add(signalAge + 1)
	if v := value(P90TTFT); v.set {
		t.Errorf("it reports no more: %v", v)
	}
}

func TestCapacityWeighsTheLoad(t *testing.T) {
	s, _ := still(t, Model{Local: &Local{Replicas: four[:2], Capacity: []int64{30, 10}}})
	counts := map[string]int{}
	for range 40 {
		routes, _ := s.Routes("m", wire.Chat, "")
		target, _, ok := routes[0].Pick()
		if !ok {
			t.Fatal("nothing to pick")
		}
		counts[target.Deployment]++
	}
	if counts["a:1"] < 29 || counts["a:1"] > 31 {
		t.Errorf("of 40 calls, servers for 30 and 10 got %v", counts)
	}
}

// TestModelsShareAReplica: what one model says of a server does not take away what another does.
func TestModelsShareAReplica(t *testing.T) {
	with := &Local{Engine: "vllm", Replicas: four[:1], Key: key}
	without := &Local{Engine: "ollama", Replicas: four[:1]}
	for _, models := range [][]Model{{{ID: "m", Local: with}, {ID: "n", Local: without}}, {{ID: "m", Local: without}, {ID: "n", Local: with}}} {
		s, err := New(Config{Models: models}, Options{Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		if r := s.replica(0); !r.hasMetrics() || r.secret() != "secret" {
			t.Errorf("metrics %v, key %q", r.hasMetrics(), r.secret())
		}
		if err := s.Update(Config{Models: []Model{{ID: "m", Local: without}}}); err != nil {
			t.Fatal(err)
		}
		if r := s.replica(0); r.hasMetrics() || r.secret() != "" {
			t.Errorf("after the other model has gone: metrics %v, key %q", r.hasMetrics(), r.secret())
		}
	}
}
