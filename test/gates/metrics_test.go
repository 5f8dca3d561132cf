package gates

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/services/provider"
	"github.com/weirhq/weir/test/e2e/stack"
)

// metered are three models: one on a replica, one whose replica is away so that a provider serves it, and one that few may use at once.
const metered = `
models:
  - {id: qwen, local: {engine: vllm, replicas: ["LOCAL"]}}
  - {id: away, local: {engine: vllm, replicas: ["http://127.0.0.1:1"]}, providers: [{connection: house, model: gpt}]}
  - {id: tight, local: {engine: vllm, replicas: ["LOCAL"], model: qwen}}
connections: [{id: house, provider: openai, base_url: "HOUSE", api_key_env: HOUSE_KEY, pool: house}]
pools: [{id: house, provider: openai, rpm: 1000, tpm: 10000000, concurrency: 100}]
`

func meteredConfig(t *testing.T) stack.Config {
	t.Helper()
	house, err := provider.New(provider.Config{Script: "input=70;tokens=30"})
	check(t, err)
	local, err := provider.New(provider.Config{})
	check(t, err)
	return stack.Config{
		Settings: stack.Settings{
			Weir: strings.NewReplacer(`"HOUSE"`, serve(t, house), "LOCAL", serve(t, local)).Replace(metered),
			Keys: []stack.Key{
				{Name: "alice"}, {Name: "bob"}, {Name: "slow", Extra: "quota: {requests_per_minute: 2}"},
				{Name: "shared", Extra: "max_occupancy_share: 0.01, quota: {input_tokens_per_minute: 1000, tokens_per_day: 500}"},
			},
			Policies: map[string]string{
				"qwen":  "models: [qwen]\nmode: serverless\nmax_input_tokens: 900\nimages_max: 1\nadmit_budget_tokens: 10000",
				"away":  "models: [away]\nadmit_budget_tokens: 1000",
				"tight": "models: [tight]\nadmit_budget_tokens: 2000\nmax_inflight: 1",
			},
		},
		Env: map[string]string{"HIVENET_ROUTER_ADMIT_PARK_TIMEOUT": "5s", "HOUSE_KEY": "sk-house"},
	}
}

// TestMetrics compares /metrics with what was sent.
func TestMetrics(t *testing.T) {
	m := newMeasured(t, meteredConfig(t))
	expect := func(what string, got *stack.Answer, status int) {
		t.Helper()
		if got.Status != status {
			t.Fatalf("%s: %d %s", what, got.Status, got.Body)
		}
	}
	for range 3 {
		expect("alice", m.chat(t, "alice", "input=100;tokens=20", chatBody("qwen", 100, `"max_tokens":50,`)), 200)
	}
	expect("a stream of bob's", m.chat(t, "bob", "input=50;tokens=10", chatBody("qwen", 50, `"stream":true,`)), 200)
	expect("a failure", m.chat(t, "bob", "status=400", chatBody("qwen", 50, "")), 400)
	expect("alice, by the provider", m.chat(t, "alice", "", chatBody("away", 50, "")), 200)
	expect("too long", m.chat(t, "alice", "", chatBody("qwen", 901, "")), 400)
	expect("too large", m.chat(t, "alice", "", chatBody("qwen", 100, `"max_tokens":10000,`)), 429)
	expect("more than its share", m.chat(t, "shared", "", chatBody("qwen", 101, "")), 429)
	expect("more than is left of its day", m.chat(t, "shared", "", chatBody("tight", 100, `"max_tokens":401,`)), 429)
	for range 2 {
		expect("slow", m.chat(t, "slow", "input=10;tokens=5", chatBody("qwen", 10, "")), 200)
	}
	expect("too fast", m.chat(t, "slow", "", chatBody("qwen", 10, "")), 429)
	expect("a name that alice made up", m.chat(t, "alice", "", chatBody("gpt-from-alice", 10, "")), 404)

	all := m.scrape(t)
	for name, want := range map[string]series{
		"weir_org_requests_total": {
			`{model="qwen",org="alice",outcome="completed"}`: 3, `{model="away",org="alice",outcome="completed"}`: 1,
			`{model="qwen",org="bob",outcome="completed"}`: 1, `{model="qwen",org="bob",outcome="failed"}`: 1, `{model="qwen",org="slow",outcome="completed"}`: 2,
		},
		"weir_org_tokens_total": { // a provider's usage is under the model asked for
			`{direction="input",model="qwen",org="alice"}`: 300, `{direction="output",model="qwen",org="alice"}`: 60,
			`{direction="input",model="away",org="alice"}`: 70, `{direction="output",model="away",org="alice"}`: 30,
			`{direction="input",model="qwen",org="bob"}`: 50, `{direction="output",model="qwen",org="bob"}`: 10,
			`{direction="input",model="qwen",org="slow"}`: 20, `{direction="output",model="qwen",org="slow"}`: 10,
		},
		"weir_refusals_total": { // no tenant, and no name that a client made up
			`{gate="b1",kind="input",model="qwen"}`: 1, `{gate="b2",kind="occupancy",model="qwen"}`: 1, `{gate="b4",kind="occupancy",model="qwen"}`: 1,
			`{gate="daily",kind="daily",model="tight"}`: 1, `{gate="limits",kind="rpm",model="qwen"}`: 1, `{gate="model_not_found",kind="",model="_"}`: 1,
		},
		"weir_attempts_total": {
			`{ended="completed",provider="vllm"}`: 6, `{ended="upstream_status",provider="vllm"}`: 1, `{ended="completed",provider="openai"}`: 1,
		},
		"weir_responses_total": {
			`{class="2xx",operation="chat",origin="none"}`: 7, `{class="4xx",operation="chat",origin="upstream"}`: 1,
			`{class="4xx",operation="chat",origin="gateway_admission"}`: 5, `{class="4xx",operation="chat",origin="authorization"}`: 1,
		},
		"weir_added_seconds_count":         {"": 8},
		"weir_admission_budget_tokens":     {`{model="qwen"}`: 9000, `{model="away"}`: 900, `{model="tight"}`: 1800},
		"weir_admission_occupancy_tokens":  {`{model="qwen"}`: 0, `{model="away"}`: 0, `{model="tight"}`: 0},
		"weir_admission_max_inflight":      {`{model="tight"}`: 1},
		"weir_admission_inflight_requests": {`{model="tight"}`: 0},
		"weir_upstream_healthy_replicas":   {`{model="qwen"}`: 1, `{model="away"}`: 0, `{model="tight"}`: 1},
		"weir_upstream_inflight_requests":  {`{model="qwen"}`: 0, `{model="away"}`: 0, `{model="tight"}`: 0},
	} {
		got := all.of(name)
		if name == "weir_admission_occupancy_tokens" {
			stack.Eventually(t, "the view shows that nothing is held", func() bool { got = m.scrape(t).of(name); return cmp.Equal(got, want) })
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
	if n := all["weir_publish_seconds_count"]; n < 8 {
		t.Errorf("%g acknowledgements were timed", n)
	}
	for name := range all {
		if strings.Contains(name, "gpt-from-alice") || strings.HasPrefix(name, "weir_refusals_total") && strings.Contains(name, "alice") {
			t.Errorf("%s has a label of a client's making", name)
		}
	}
	m.ratios(t)
	m.parking(t)
}

// ratios: the gauge is what the auditor has learned. Requests so far said a token for 3.2 bytes; these say two.
func (m *measured) ratios(t *testing.T) {
	const name = "weir_estimator_tokens_per_byte"
	for range 5 {
		m.chat(t, "alice", "input=200;tokens=1", chatBody("qwen", 100, ""))
	}
	ratio := int64(312_500) // millionths, rounded down; a new one weighs 0.2
	for range 5 {
		ratio = (ratio*4 + 625_000) / 5
	}
	want := float64(ratio) / 1e6 // and the provider has taught away nothing
	var got series
	stack.Eventually(t, fmt.Sprintf("the ratio of qwen is %g", want), func() bool { got = m.scrape(t).of(name); return got[`{model="qwen"}`] == want })
	if diff := cmp.Diff(series{`{model="qwen"}`: want, `{model="away"}`: 0.3125, `{model="tight"}`: 0.3125}, got); diff != "" {
		t.Error(diff)
	}
}

// parking: while one request runs another waits, and both are seen.
func (m *measured) parking(t *testing.T) {
	var both sync.WaitGroup
	gate := make(chan struct{})
	running, leave := context.WithCancel(t.Context())
	defer leave()
	both.Go(func() {
		r := stack.Request{URL: m.url + "/v1/chat/completions", Key: "alice", Script: "delay=1h;input=100;tokens=5", Body: chatBody("tight", 100, `"max_tokens":60,`)}
		q, err := r.New()
		check(t, err)
		if a, err := http.DefaultClient.Do(q.WithContext(running)); err == nil {
			a.Body.Close()
			t.Errorf("status %d", a.StatusCode)
		}
	})
	stack.Eventually(t, "the first has its place", func() bool { return m.scrape(t)[`weir_admission_inflight_requests{model="tight"}`] == 1 })
	begin := time.Now()
	both.Go(func() {
		close(gate)
		r := stack.Request{URL: m.url + "/v1/chat/completions", Key: "bob", Script: "input=100;tokens=5", Body: chatBody("tight", 100, "")}
		a, err := r.Send()
		if err != nil || a.Status != http.StatusOK {
			t.Errorf("%v, %+v", err, a)
		}
	})
	<-gate
	var seen series
	stack.Eventually(t, "the second waits", func() bool { seen = m.scrape(t); return seen[`weir_admission_parked_requests{model="tight"}`] == 1 })
	if held := seen[`weir_admission_occupancy_tokens{model="tight"}`]; held != 160 {
		t.Errorf("the first occupies %g tokens", held)
	}
	leave()
	both.Wait()
	took := time.Since(begin).Seconds()
	stack.Eventually(t, "nobody waits and nothing is held", func() bool {
		seen = m.scrape(t)
		return seen[`weir_admission_parked_requests{model="tight"}`] == 0 && seen[`weir_admission_occupancy_tokens{model="tight"}`] == 0
	})
	count, sum := seen[`weir_parked_seconds_count{model="tight",outcome="admitted"}`], seen[`weir_parked_seconds_sum{model="tight",outcome="admitted"}`]
	if count != 1 || sum <= 0 || sum > took {
		t.Errorf("%g waited for %g s together", count, sum)
	}
	if len(seen.of("weir_parked_seconds_count")) != 1 {
		t.Errorf("%v", seen.of("weir_parked_seconds_count"))
	}
}

// TestSeriesDoNotGrowWithKeys: a hundred keys of one org, each used once, leave as many series as one.
func TestSeriesDoNotGrowWithKeys(t *testing.T) {
	c := meteredConfig(t)
	c.Keys = []stack.Key{{Name: "alice"}}
	const many = 100
	for i := range many {
		c.Keys = append(c.Keys, stack.Key{Name: fmt.Sprintf("one-off-%d", i), Owner: "alice", Extra: "quota: {requests_per_minute: 300}"})
	}
	m := newMeasured(t, c)
	use := func(key string) {
		if a := m.chat(t, key, "input=10;tokens=5", chatBody("qwen", 10, "")); a.Status != http.StatusOK {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		if a := m.chat(t, key, "", chatBody("qwen", 901, "")); a.Status != http.StatusBadRequest {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
	}
	use("alice")
	before := m.scrape(t)
	for i := range many {
		use(fmt.Sprintf("one-off-%d", i))
	}
	after := m.scrape(t)
	if len(after) != len(before) {
		for name := range after {
			if _, known := before[name]; !known {
				t.Errorf("new: %s", name)
			}
		}
	}
	if n := after[`weir_org_requests_total{model="qwen",org="alice",outcome="completed"}`]; n != many+1 {
		t.Errorf("%g requests of alice's are counted", n)
	}
	t.Logf("%d series before and after %d keys", len(before), many)
}
