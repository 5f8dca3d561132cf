package gates

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/test/e2e/stack"
)

const (
	crowdGateways = 4
	crowdClients  = 300
	crowdBudget   = 66_000 // of which 0.9 may be occupied: some seventy requests of the mix, so that fewer than 256 wait
	crowdFor      = 6 * time.Second
	crowdEnough   = crowdClients    // answers that there must be, on a machine that is slow, too
	crowdAtMost   = 3 * time.Minute // and how long they may take

	// slow is how long a client must have waited at least for a connection that breaks, or an answer that the log was out of reach, to be blamed
	// on the machine: the gateway gives up one that says nothing for 10 s, also where the client had no turn to say it.
	slow = 5 * time.Second

	// heldFloor is how much of the budget is held, in the log's time, while somebody waits for it: all but what the first of the queue is
	// too large for. That no room was left which was enough for it is asserted exactly.
	heldFloor = 0.9
)

// order is one request of the mix.
type order struct{ body, script string }

// orders is a mix of sizes: a fifth declares no output and streams. The upstream counts as input what the gateway estimates.
func orders(r *rand.Rand) order {
	input := []int{50, 150, 400, 900, 2000}[r.IntN(5)]
	declared := []int64{0, 20, 60, 150, 400}[r.IntN(5)]
	var o order
	delay := fmt.Sprintf("delay=%dms", 600+100*r.IntN(5))
	if declared == 0 {
		o.script = fmt.Sprintf("%s;input=%d;tokens=5", delay, input)
		o.body = chatBody("qwen", input, `"stream":true,`)
		return o
	}
	o.script = fmt.Sprintf("%s;input=%d;tokens=10", delay, input)
	o.body = chatBody("qwen", input, fmt.Sprintf(`"max_tokens":%d,`, declared))
	return o
}

// crowd keeps every client busy for a while, and gives how many answers came. Until full says that the upstream has had its hands full, it
// keeps what it has.
func crowd(t *testing.T, urls []string, full func() bool) (answers, refused int64) {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: crowdClients}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	begin := time.Now()
	filling, filled := context.WithTimeout(context.Background(), crowdAtMost)
	defer filled()
	var clients sync.WaitGroup
	var good, bad atomic.Int64
	goesOn := func() bool {
		took := time.Since(begin)
		return took < crowdFor || took < crowdAtMost && (good.Load() < crowdEnough || filling.Err() == nil)
	}
	for c := range crowdClients {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(c)))
			for goesOn() {
				o, ctx := orders(random), context.Background()
				if filling.Err() == nil {
					o.script, ctx = o.script+";delay=1h", filling
				}
				sent := time.Now()
				status, err := post(ctx, client, urls[c%len(urls)], &o)
				switch {
				case ctx.Err() != nil || (err != nil || status == http.StatusServiceUnavailable) && time.Since(sent) > slow:
				case err != nil || status != http.StatusOK && status != http.StatusTooManyRequests:
					t.Errorf("status %d, %v", status, err)
					return
				case status == http.StatusOK:
					good.Add(1)
				default:
					bad.Add(1)
				}
			}
		})
	}
	for filling.Err() == nil {
		if time.Sleep(20 * time.Millisecond); full() {
			filled()
		}
	}
	clients.Wait()
	return good.Load(), bad.Load()
}

func post(ctx context.Context, client *http.Client, url string, o *order) (int, error) {
	q, err := stack.Request{URL: url + "/v1/chat/completions", Key: "demo", Body: o.body, Script: o.script}.New()
	if err != nil {
		return 0, err
	}
	answer, err := client.Do(q.WithContext(ctx))
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}

// TestTheBudgetHoldsUnderACrowd: 300 clients on four gateways, of which the last three join over TCP as other processes do. What the
// upstream has in hand at once never passes the budget, almost all of the budget is held while anybody waits, and nobody who waits is overtaken.
func TestTheBudgetHoldsUnderACrowd(t *testing.T) {
	const budget = crowdBudget * 9 / 10
	s := stack.New(t, stack.Config{
		Gateways: crowdGateways,
		Settings: stack.Settings{
			Weir:     `models: [{id: qwen, local: {engine: vllm, replicas: ["{{upstream}}"]}}]`,
			Policies: map[string]string{"qwen": fmt.Sprintf("models: [qwen]\nadmit_budget_tokens: %d", crowdBudget)},
		},
		Env: map[string]string{"HIVENET_ROUTER_ADMIT_PARK_TIMEOUT": "5s"},
	})
	var urls []string
	for _, g := range s.Gateways {
		urls = append(urls, g.URL)
	}
	begin := time.Now()
	answers, refused := crowd(t, urls, func() bool { return s.Provider.Ledger().Model("qwen").MaxFootprint >= budget*8/10 })
	totals := s.Provider.Ledger().Model("qwen")
	t.Logf("%d answers in %s, %d refused; at most %d tokens at the upstream, of %d; at most %d calls at once",
		answers, time.Since(begin), refused, totals.MaxFootprint, budget, totals.MaxLive)
	if totals.MaxFootprint > budget {
		t.Errorf("the upstream had %d tokens in hand, more than %d", totals.MaxFootprint, budget)
	}
	if totals.MaxFootprint < budget*8/10 || answers < crowdEnough {
		t.Errorf("the upstream never had more than %d tokens of %d in hand, and there were %d answers: the test proves little", totals.MaxFootprint, budget, answers)
	}
	s.StopGateways()
	q := queue(t, s)
	t.Logf("%d waited, at most %d at once; while any did (%s), %.1f %% of the budget was held", q.waited, q.most, q.queued.Round(time.Millisecond), 100*q.held)
	if q.held < heldFloor {
		t.Errorf("only %.1f %% of the budget was held while somebody waited", 100*q.held)
	}
	if q.waited < crowdClients/2 {
		t.Errorf("only %d waited: the test proves little", q.waited)
	}
	for _, o := range append(q.overtaken, q.idle...) {
		t.Error(o)
	}
	if held := s.Story(t).Gauges(); len(held) != 0 {
		t.Errorf("still held: %v", held)
	}
}

// waits is what a log says of those who waited on its one parking gauge.
type waits struct {
	waited, most int
	overtaken    []string
	idle         []string      // records after which the first of the queue would have fitted
	held         float64       // of the budget, on average over the time in which somebody waited
	queued       time.Duration // that time
}

// queue reads the log of a stack whose requests all claim the same gauge.
func queue(t *testing.T, s *stack.Stack) (q waits) {
	t.Helper()
	const shown = 10
	type place struct {
		id      events.RequestID
		attempt int64
	}
	claims := map[place]*events.Claim{} // on the gauge, of those who wait
	var since int64
	var used float64
	fold, line := admission.New(), []place{}
	note := func(format string, args ...any) {
		if len(q.overtaken) < shown {
			q.overtaken = append(q.overtaken, fmt.Sprintf(format, args...))
		}
	}
	info, err := s.Log.Info(t.Context())
	check(t, err)
	check(t, s.Log.Read(t.Context(), 1, info.Last, func(r events.Record) error {
		own, reserves := r.Data.(*events.Reserve)
		decided := false
		if len(line) > 0 && r.At > since {
			q.queued += time.Duration(r.At - since)
			q.held += used * float64(r.At-since)
		}
		since = max(since, r.At)
		for _, v := range fold.Apply(&r) {
			p := place{v.Request, v.Attempt}
			at := len(line)
			for i := range line {
				if line[i] == p {
					at = i
				}
			}
			switch {
			case at < len(line):
				if at > 0 && v.Admitted {
					note("%s was admitted at sequence %d before %s, which came first", p.id, r.Seq, line[0].id)
				}
				line = append(line[:at], line[at+1:]...)
			case reserves && own.Request == v.Request && own.Attempt == v.Attempt:
				decided = true
				if len(line) > 0 && v.Admitted {
					note("%s was admitted at once at sequence %d while %s waited", p.id, r.Seq, line[0].id)
				}
			default:
				note("a verdict on %s, which neither waits nor came", p.id)
			}
		}
		if reserves && !decided && r.Fault == "" {
			line = append(line, place{own.Request, own.Attempt})
			claims[line[len(line)-1]] = gauge(own)
			q.waited++
			q.most = max(q.most, len(line))
		}
		if len(line) > 0 {
			first := claims[line[0]]
			reading, _ := fold.Reading(first.Meter)
			used = float64(reading.Used) / float64(first.Limit)
			if reading.Used+first.Need() <= first.Limit && len(q.idle) < shown {
				q.idle = append(q.idle, fmt.Sprintf("after sequence %d %s waits for %d with %d of %d used", r.Seq, line[0].id, first.Amount, reading.Used, first.Limit))
			}
		}
		return nil
	}))
	if strings.Join(q.overtaken, "") == "" && len(line) != 0 {
		note("%d wait for ever", len(line))
	}
	q.held /= max(float64(q.queued), 1)
	return q
}

// gauge is the claim on which a reserve may wait.
func gauge(r *events.Reserve) *events.Claim {
	for i := range r.Claims {
		if r.Claims[i].Park {
			return &r.Claims[i]
		}
	}
	return nil
}
