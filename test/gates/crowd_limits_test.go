package gates

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/test/e2e/stack"
	"github.com/weirhq/weir/test/utcday"
)

const (
	limitsFor     = 5 * time.Second  // at least
	limitsAtMost  = 40 * time.Second // if the machine has much else to do: a pool's minute is to be one
	atOnce        = 9                // requests of the org held to a concurrency
	trunkRPM      = 60               // of the pool above
	trunkAtOnce   = 5                // of it
	shareAtOnce   = 3                // one org's of it: 0.6, rounded down
	credited      = 12_000_000       // nano-dollars: some fifty requests
	capped        = 9_000_000
	nanoInput     = 1000 // a token
	nanoOutput    = 4000
	backOffAtMost = 20 // ms
)

// crowded is a world with a limit of each kind, each with a model of its own, so that the upstream's record tells them apart.
var crowded = stack.Settings{
	Keys: []stack.Key{{Name: "held"}, {Name: "one"}, {Name: "two"}, {Name: "paid"}, {Name: "capped"}},
	Weir: fmt.Sprintf(`
orgs:
  held: {limits: {concurrency: %d}}
  paid: {billing: prepaid}
  capped: {limits: {spend_day: "%s"}}
models:
  - {id: held, local: {engine: vllm, replicas: ["{{upstream}}"]}}
  - {id: shared, providers: [{connection: house}]}
  - {id: paid, price: {input: "1", output: "4"}, local: {engine: vllm, replicas: ["{{upstream}}"]}}
  - {id: capped, price: {input: "1", output: "4"}, local: {engine: vllm, replicas: ["{{upstream}}"]}}
connections:
  - {id: house, provider: openai, base_url: "{{upstream}}", pool: leaf}
pools:
  - {id: trunk, provider: openai, rpm: %d, tpm: 10000000, concurrency: %d, headroom_percent: 100, fair_share: 0.6}
  - {id: leaf, provider: openai, rpm: 1000, tpm: 10000000, concurrency: 100, headroom_percent: 100, parent: trunk, fair_share: 1}
`, atOnce, "0.009", trunkRPM, trunkAtOnce),
}

// watched are the meters that no admission may leave over their limits.
var watched = map[events.Meter]int64{
	"org/held/concurrency": atOnce, "pool/trunk/rpm": trunkRPM, "pool/trunk/concurrency": trunkAtOnce,
	"pool/trunk.one/concurrency": shareAtOnce, "pool/trunk.two/concurrency": shareAtOnce, "org/capped/spend-day": capped,
}

// TestNoLimitIsPassedByACrowd: 300 clients on four gateways, of which the last three join over TCP as other processes do, against an org's
// concurrency, a shared pool's concurrency and rate below two orgs, a prepaid balance and a spend cap. None is ever passed: not as the log
// has it, at any record, and not as the upstream saw it. What was paid is what the upstream's usage costs, to the nano-dollar.
func TestNoLimitIsPassedByACrowd(t *testing.T) {
	s := stack.New(t, stack.Config{Gateways: crowdGateways, Settings: crowded})
	utcday.Whole(t)
	e := events.Event{ID: "credit", Source: "test", Org: "paid", Data: &events.Credit{Org: "paid", AmountNano: credited, Reference: "first"}}
	if _, err := s.Log.Publish(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	refused := besiege(t, s)
	stack.Eventually(t, "all that was held is given back", func() bool { return len(s.Story(t).Gauges()) == 0 })
	s.StopGateways()
	story := s.Story(t)
	underTheLimits(t, story)
	if held := story.Gauges(); len(held) != 0 {
		t.Errorf("still held: %v", held)
	}
	upstream := s.Provider.Ledger()
	for model, most := range map[string]int64{"held": atOnce, "shared": trunkAtOnce} {
		if live := upstream.Model(model).MaxLive; live > most || live < most/2 {
			t.Errorf("%s: the upstream saw at most %d at once, and %d are allowed", model, live, most)
		}
	}
	if calls := upstream.Model("shared").Calls; calls > trunkRPM || calls < trunkRPM/2 {
		t.Errorf("%d calls of the pool within a minute: %d are allowed", calls, trunkRPM)
	}
	spent := func(model string) int64 {
		m := upstream.Model(model)
		if m.Completed != m.Calls {
			t.Errorf("%s: %d of %d calls were completed", model, m.Completed, m.Calls)
		}
		return m.Input*nanoInput + m.Output*nanoOutput
	}
	balance, _ := story.Fold.Reading("org/paid/balance")
	if balance.Used != 0 || balance.Total != credited-spent("paid") {
		t.Errorf("%d remain and %d are held, of %d of which %d were used", balance.Total, balance.Used, credited, spent("paid"))
	}
	if used, _ := story.Fold.Reading("org/capped/spend-day"); used.Used != spent("capped") {
		t.Errorf("the cap counts %d, and %d were used", used.Used, spent("capped"))
	}
	t.Logf("refused: %v; paid: %d calls for %d of %d; capped: %d calls for %d of %d", refused, upstream.Model("paid").Calls, spent("paid"), credited,
		upstream.Model("capped").Calls, spent("capped"), capped)
	for _, code := range wanted {
		if refused[code] == 0 {
			t.Errorf("nobody got %s: the test proves little", code)
		}
	}
}

// wanted are the refusals without which the test proves little.
var wanted = []string{"held rate_limit_exceeded", "one upstream_quota_exceeded", "two upstream_quota_exceeded", "paid insufficient_balance", "capped spend_limit_exceeded"}

// besiege keeps 300 clients busy until every limit was met, and gives how many refusals each org got by code.
func besiege(t *testing.T, s *stack.Stack) map[string]int64 {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: crowdClients}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	begin := time.Now()
	var all sync.WaitGroup
	var mu sync.Mutex
	refused := map[string]int64{}
	var broken atomic.Int64
	goesOn := func() bool {
		took := time.Since(begin)
		if took < limitsFor || took > limitsAtMost {
			return took < limitsFor
		}
		mu.Lock()
		defer mu.Unlock()
		for _, code := range wanted {
			if refused[code] == 0 {
				return true
			}
		}
		m := s.Provider.Ledger().Models()
		return m["held"].MaxLive < atOnce || m["shared"].MaxLive < trunkAtOnce || m["shared"].Calls < trunkRPM
	}
	for c := range crowdClients {
		key := []string{"held", "one", "two", "paid", "capped"}[c%5]
		model := map[string]string{"one": "shared", "two": "shared"}[key]
		if model == "" {
			model = key
		}
		all.Go(func() {
			random := rand.New(rand.NewPCG(2, uint64(c)))
			for goesOn() && broken.Load() < 10 {
				input, output := []int{20, 100, 300}[random.IntN(3)], []int{5, 20, 50}[random.IntN(3)]
				sent := time.Now()
				a, err := ask(client, stack.Request{URL: s.Gateways[c%crowdGateways].URL + "/v1/chat/completions", Key: key,
					Script: fmt.Sprintf("delay=%dms;input=%d;tokens=%d", 20+random.IntN(80), input, output),
					Body:   chatBody(model, input, fmt.Sprintf(`"max_tokens":%d,`, output))})
				if err != nil && time.Since(sent) > slow {
					continue
				}
				if err != nil || a.Status != http.StatusOK && a.Status != http.StatusTooManyRequests && a.Error().Code != "gateway_infrastructure" {
					broken.Add(1)
					t.Errorf("%s: %v, %v", key, a, err)
					continue
				}
				if a.Status != http.StatusOK { // refused, or on a machine that is too busy not decided in time
					mu.Lock()
					refused[key+" "+a.Error().Code]++
					mu.Unlock()
					time.Sleep(time.Duration(1+random.IntN(backOffAtMost)) * time.Millisecond)
				}
			}
		})
	}
	all.Wait()
	return refused
}

// ask sends a request by a client, and reads the whole answer.
func ask(client *http.Client, r stack.Request) (*stack.Answer, error) {
	q, err := r.New()
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(q)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return &stack.Answer{Status: answer.StatusCode, Header: answer.Header, Body: body}, err
}

// underTheLimits folds the log again, and holds every watched meter against its limit and the balance against 0 after each record.
func underTheLimits(t *testing.T, story *stack.Story) {
	t.Helper()
	f := admission.New()
	credits, debits := int64(0), int64(0)
	for i := range story.Records {
		r := &story.Records[i]
		f.Apply(r)
		switch d := r.Data.(type) {
		case *events.Credit:
			credits += d.AmountNano
		case *events.TrueUp:
			if d.Final && story.Requests[d.Request].Reserves[0].Org == "paid" {
				debits += d.CostNano
			}
		}
		for m, limit := range watched {
			if reading, _ := f.Reading(m); reading.Used > limit {
				t.Fatalf("after record %d %s is %d, of %d", r.Seq, m, reading.Used, limit)
			}
		}
		balance, known := f.Reading("org/paid/balance")
		if balance.Available < 0 || known && balance.Total != credits-debits {
			t.Fatalf("after record %d %d are available; the total is %d, of credits of %d and debits of %d", r.Seq, balance.Available, balance.Total, credits, debits)
		}
	}
}
