package upstream

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir/gateway/relay"
	"github.com/weirhq/weir/gateway/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen. It is far more than any of it takes.
const patience = time.Minute

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// server is a model server that can be told how it is.
type server struct {
	*httptest.Server
	status  atomic.Int64 // of /health
	metrics atomic.Value // string; "" is a 404
	probes  atomic.Int64
	auth    atomic.Value
}

func newServer(t *testing.T, metrics string) *server {
	t.Helper()
	s := &server{}
	s.status.Store(200)
	s.metrics.Store(metrics)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.auth.Store(r.Header.Get("Authorization"))
		switch r.URL.Path {
		case "/health":
			s.probes.Add(1)
			w.WriteHeader(int(s.status.Load()))
		case "/metrics":
			if text := s.metrics.Load().(string); text != "" {
				_, _ = w.Write([]byte(text))
				return
			}
			w.WriteHeader(404)
		default:
			w.WriteHeader(404)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// start runs a set until the test ends.
func start(t *testing.T, c Config) *Set {
	t.Helper()
	s, err := New(c, Options{Poll: 20 * time.Millisecond, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	select {
	case <-s.Ready():
	case <-time.After(patience):
		t.Fatal("never ready")
	}
	return s
}

func pool(model string, l Local, servers ...*server) Config {
	for _, s := range servers {
		l.Replicas = append(l.Replicas, s.URL)
	}
	return Config{Models: []Model{{ID: model, Local: &l}}}
}

func only(t *testing.T, s *Set, model string) *Route {
	t.Helper()
	routes, known := s.Routes(model, wire.Chat, "")
	if !known || len(routes) != 1 {
		t.Fatalf("%d routes, known %v", len(routes), known)
	}
	return routes[0]
}

func TestReplicasAreProbed(t *testing.T) {
	a, b := newServer(t, ""), newServer(t, "")
	b.status.Store(503)
	s := start(t, pool("m", Local{Engine: "vllm", Key: func() string { return "k1" }}, a, b))
	if n := s.Healthy("m"); n != 1 || s.Healthy("other") != 0 {
		t.Fatalf("%d healthy", n)
	}
	if got := a.auth.Load(); got != "Bearer k1" {
		t.Errorf("the probe's credentials are %q", got)
	}
	b.status.Store(200)
	eventually(t, "both healthy", func() bool { return s.Healthy("m") == 2 })
	a.status.Store(500)
	eventually(t, "one healthy", func() bool { return s.Healthy("m") == 1 })
	states := s.Replicas("m")
	if len(states) != 2 || states[0].Healthy || states[0].Fault != "asking /health: status 500" || !states[1].Healthy || states[1].Fault != "" || states[1].Checked.IsZero() {
		t.Errorf("%+v", states)
	}
	if ollama := newModelsOnly(t); start(t, pool("o", Local{Engine: "ollama"}, ollama)).Healthy("o") != 1 {
		t.Error("a server with /v1/models alone is healthy")
	}
}

// newModelsOnly is a server without /health, as Ollama is.
func newModelsOnly(t *testing.T) *server {
	s := &server{Server: httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/models" {
			w.WriteHeader(404)
		}
	}))}
	t.Cleanup(s.Close)
	return s
}

func TestAReplicaThatIsDownComesBackByProbe(t *testing.T) {
	a := newServer(t, "")
	s := start(t, pool("m", Local{}, a))
	target, done, ok := only(t, s, "m").Pick()
	if !ok || target.URL != a.URL+"/v1/chat/completions" || !target.Local || target.Model != "m" || target.Header != nil {
		t.Fatalf("%+v, %v", target, ok)
	}
	before := a.probes.Load()
	a.status.Store(503) // so that it stays out
	done(relay.Unreachable, 0)
	if s.Healthy("m") != 0 {
		t.Error("a replica that cannot be reached is out at once")
	}
	if _, _, ok := only(t, s, "m").Pick(); ok {
		t.Error("it was picked")
	}
	a.status.Store(200)
	eventually(t, "healthy again", func() bool { return s.Healthy("m") == 1 && a.probes.Load() > before })

	_, done, _ = only(t, s, "m").Pick()
	done(relay.Broken, 0)
	done(relay.Broken, 0) // of the same call: it counts once
	if s.Healthy("m") != 1 {
		t.Error("one broken connection may be chance")
	}
	_, done, _ = only(t, s, "m").Pick()
	a.status.Store(503)
	done(relay.Broken, 0)
	if s.Healthy("m") != 0 {
		t.Error("two in a row are not")
	}
}

func TestUpdateKeepsWhatIsKnown(t *testing.T) {
	a, b := newServer(t, ""), newServer(t, "")
	s := start(t, pool("m", Local{}, a))
	_, done, _ := only(t, s, "m").Pick()
	if err := s.Update(Config{Models: []Model{{ID: "bad"}}}); err == nil || s.Healthy("m") != 1 {
		t.Fatalf("an invalid update: %v", err)
	}
	if err := s.Update(pool("m", Local{}, a, b)); err != nil {
		t.Fatal(err)
	}
	if s.Healthy("m") < 1 || s.Replicas("m")[0].Inflight != 1 {
		t.Errorf("%+v", s.Replicas("m"))
	}
	eventually(t, "the new one is asked too", func() bool { return s.Healthy("m") == 2 })
	done(relay.Completed, 0)
	if s.Replicas("m")[0].Inflight != 0 {
		t.Errorf("%+v", s.Replicas("m"))
	}
	if err := s.Update(pool("m", Local{}, b)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the old one is left alone", func() bool {
		n := a.probes.Load()
		time.Sleep(60 * time.Millisecond)
		return a.probes.Load() == n
	})
	if s.Healthy("m") != 1 || s.Models()[0] != "m" {
		t.Errorf("%+v", s.Replicas("m"))
	}
}

func TestSignals(t *testing.T) {
	a := newServer(t, "vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 3.0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n")
	b := newServer(t, "vllm:num_requests_waiting 5\nvllm:kv_cache_usage_perc 0.7\n")
	c := newServer(t, "")
	down := newServer(t, "vllm:num_requests_waiting 1000\n")
	down.status.Store(503)
	s := start(t, pool("m", Local{Engine: "vllm"}, a, b, c, down))
	got := s.Signals("m")
	if !got.HasKV || !got.HasWaiting || got.Waiting != 4 || got.KV < 0.599 || got.KV > 0.601 {
		t.Errorf("%+v", got)
	}
	if none := start(t, pool("n", Local{Engine: "vllm"}, c)).Signals("n"); none.HasKV || none.HasWaiting {
		t.Errorf("%+v", none)
	}
	if other := s.Signals("other"); other != (Signals{}) {
		t.Errorf("%+v", other)
	}
}

func TestOldSignalsAreMissing(t *testing.T) {
	r := &replica{healthy: true}
	at := time.Unix(1000, 0)
	r.report(signals{at: at, kv: reading{0.5, true}})
	if _, s := r.state(at.Add(signalAge)); !s.kv.set {
		t.Error("they are fresh enough")
	}
	if _, s := r.state(at.Add(signalAge + 1)); s.kv.set {
		t.Error("they are old")
	}
}

func TestAProbeDoesNotUndoALaterFailure(t *testing.T) {
	r := &replica{healthy: true, kick: make(chan struct{}, 1)}
	epoch := r.epoch()
	r.called(relay.Unreachable, 0, time.Unix(1, 0))
	r.probed(epoch, probe{}, time.Unix(1, 0)) // began before
	if r.isHealthy() {
		t.Error("the older probe won")
	}
	r.probed(r.epoch(), probe{}, time.Unix(2, 0))
	if !r.isHealthy() {
		t.Error("the newer probe did not count")
	}
}

func TestSlowProbesAreForgivenForAWhile(t *testing.T) {
	r := &replica{healthy: true}
	slow := probe{err: context.DeadlineExceeded, timeout: true}
	for i := 1; i < probeTimeouts; i++ {
		r.probed(0, slow, time.Unix(1, 0))
		if !r.isHealthy() {
			t.Fatalf("out after %d", i)
		}
	}
	r.probed(0, slow, time.Unix(1, 0))
	if r.isHealthy() {
		t.Error("it was forgiven for ever")
	}
	r.probed(r.epoch(), slow, time.Unix(1, 0))
	if r.isHealthy() {
		t.Error("a slow probe brought it back")
	}
}

func TestMetricsOfEachServer(t *testing.T) {
	for name, c := range map[string]struct {
		text                 string
		running, waiting, kv reading
	}{
		"vllm": {"# HELP vllm:num_requests_running Number of requests\n# TYPE vllm:num_requests_running gauge\n" +
			"vllm:num_requests_running{engine=\"0\",model_name=\"a}b\"} 2.0\nvllm:num_requests_running{engine=\"1\"} 3.0\n" +
			"vllm:num_requests_waiting{engine=\"0\"} 4.0\nvllm:gpu_cache_usage_perc{engine=\"0\"} 0.25\nvllm:gpu_cache_usage_perc{engine=\"1\"} 0.75\n",
			reading{5, true}, reading{4, true}, reading{0.5, true}},
		"vllm between versions": {"vllm:gpu_cache_usage_perc 0.25\nvllm:kv_cache_usage_perc 0.25\n", reading{}, reading{}, reading{0.25, true}},
		"sglang":                {"sglang:num_running_reqs{model_name=\"m\"} 7\nsglang:num_queue_reqs 1\nsglang:token_usage 0.28\n", reading{7, true}, reading{1, true}, reading{0.28, true}},
		"llama.cpp":             {"llamacpp:requests_processing 1\nllamacpp:requests_deferred 6 1700000000000\nllamacpp:kv_cache_usage_ratio 0.9\n", reading{1, true}, reading{6, true}, reading{0.9, true}},
		"tgi":                   {"tgi_batch_current_size 3\ntgi_queue_size 12\n", reading{3, true}, reading{12, true}, reading{}},
		"nothing known":         {"process_cpu_seconds_total 12\n\n{} 4\nvllm:num_requests_running_total 9\n", reading{}, reading{}, reading{}},
		"no numbers":            {"vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\nvllm:kv_cache_usage_perc\nsglang:token_usage{ 1\n", reading{}, reading{}, reading{}},
		"a share beyond one":    {"vllm:kv_cache_usage_perc 1.5", reading{}, reading{}, reading{1, true}},
	} {
		var s signals
		if err := s.read(strings.NewReader(c.text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if s.running != c.running || s.waiting != c.waiting || s.kv != c.kv {
			t.Errorf("%s: running %v, waiting %v, kv %v", name, s.running, s.waiting, s.kv)
		}
	}
	var s signals
	if err := s.read(strings.NewReader(strings.Repeat("x", maxLine+1))); err == nil {
		t.Error("a line without an end was taken")
	}
}

func FuzzMetrics(f *testing.F) {
	f.Add("vllm:num_requests_running{a=\"b\"} 1\n")
	f.Add("sglang:token_usage{ 0.5 }\nllamacpp:requests_deferred\t3")
	f.Fuzz(func(t *testing.T, text string) {
		var s signals
		_ = s.read(strings.NewReader(text))
		for _, r := range []reading{s.running, s.waiting, s.kv} {
			if r.value < 0 || r.value != r.value || !r.set && r.value != 0 {
				t.Errorf("%v from %q", r, text)
			}
		}
		if s.kv.value > 1 {
			t.Errorf("a share of %v", s.kv.value)
		}
	})
}

func TestLeastLoadedTakesTurns(t *testing.T) {
	a, b, c := newServer(t, ""), newServer(t, ""), newServer(t, "")
	s := start(t, pool("m", Local{}, a, b, c))
	counts := map[string]int{}
	for range 9 { // all idle
		target, done, _ := only(t, s, "m").Pick()
		counts[target.Deployment]++
		done(relay.Completed, 0)
	}
	if len(counts) != 3 || counts[s.Replicas("m")[0].Name] != 3 {
		t.Errorf("idle: %v", counts)
	}
	var held []Done
	for range 9 {
		_, done, _ := only(t, s, "m").Pick()
		held = append(held, done)
	}
	for _, r := range s.Replicas("m") {
		if r.Inflight != 3 {
			t.Errorf("%s has %d", r.Name, r.Inflight)
		}
	}
	held[4](relay.Completed, 0)
	held[4](relay.Completed, 0)
	free := ""
	for _, r := range s.Replicas("m") {
		if r.Inflight == 2 {
			free = r.Name
		}
	}
	if target, done, _ := only(t, s, "m").Pick(); target.Deployment != free || free == "" {
		t.Errorf("%s was picked, %s is free", target.Deployment, free)
	} else {
		done(relay.ClientGone, 0)
	}
	for _, done := range held {
		done(relay.Completed, 0)
	}
	for _, r := range s.Replicas("m") {
		if r.Inflight != 0 {
			t.Errorf("%s has %d", r.Name, r.Inflight)
		}
	}
}

func TestPressureCounts(t *testing.T) {
	busy := newServer(t, "vllm:num_requests_running 8\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.2\n")
	full := newServer(t, "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.95\n")
	free := newServer(t, "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.1\n")
	s := start(t, pool("m", Local{Engine: "vllm", Steps: []Step{{Exclude: []Bound{{KVCache, "gt", 0.9}}}}}, busy, full, free))
	eventually(t, "all report", func() bool {
		for _, r := range s.Replicas("m") {
			if !r.Signals {
				return false
			}
		}
		return true
	})
	route := only(t, s, "m")
	var order []string
	for {
		target, done, ok := route.Pick()
		if !ok {
			break
		}
		order = append(order, "http://"+target.Deployment)
		done(relay.Unreachable, 0)
	}
	if len(order) != 2 || order[0] != free.URL || order[1] != busy.URL {
		t.Errorf("picked %v of busy %s, full %s, free %s", order, busy.URL, full.URL, free.URL)
	}
}

func TestTriesAreBounded(t *testing.T) {
	servers := make([]*server, 5)
	for i := range servers {
		servers[i] = newServer(t, "")
	}
	s := start(t, pool("m", Local{}, servers...))
	route, seen := only(t, s, "m"), map[string]bool{}
	for {
		target, done, ok := route.Pick()
		if !ok {
			break
		}
		seen[target.Deployment] = true
		done(relay.Broken, 0)
	}
	if len(seen) != DefaultMaxTries {
		t.Errorf("tried %v", seen)
	}
}

func BenchmarkPick(b *testing.B) {
	c := Config{Models: []Model{{ID: "m", Local: &Local{Replicas: []string{"http://a:1", "http://b:1", "http://c:1", "http://d:1"}}}}}
	s, err := New(c, Options{Now: time.Now})
	if err != nil {
		b.Fatal(err)
	}
	for _, r := range s.table.Load().replicas {
		r.healthy = true
	}
	b.ReportAllocs()
	for b.Loop() {
		routes, _ := s.Routes("m", wire.Chat, "")
		_, done, ok := routes[0].Pick()
		if !ok {
			b.Fatal("nothing to pick")
		}
		done(relay.Completed, 0)
	}
}
