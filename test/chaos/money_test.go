package chaos

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/services/provider"
	"github.com/weirhq/weir/test/e2e/stack"
)

// rich has far more money than it can spend here, poor has none left, capped has reached what it may spend in a day, and narrow's pool of a
// provider is used up for a minute.
const moneySettings = `
orgs:
  strict: {limits: {concurrency: 4, outage_mode: closed}}
  rich: {billing: prepaid, limits: {rpm: 1000000, concurrency: 1000}}
  poor: {billing: prepaid, limits: {rpm: 1000000, concurrency: 1000}}
  capped: {limits: {rpm: 1000000, concurrency: 1000, spend_day: "0.0001"}}
models:
  - {id: strict, price: {input: "1", output: "2"}, local: {engine: vllm, replicas: ["{{upstream}}"]}}
  - {id: rich, max_output_tokens: 16, price: {input: "1", output: "2"}, local: {engine: vllm, replicas: ["{{upstream}}"]}}
  - {id: poor, max_output_tokens: 16, price: {input: "1", output: "2"}, local: {engine: vllm, replicas: ["{{upstream}}"]}}
  - {id: capped, max_output_tokens: 16, price: {input: "1", output: "2"}, local: {engine: vllm, replicas: ["{{upstream}}"]}}
`

const (
	richCredit = 10_000_000_000 // nano-dollars
	poorCredit = 100_000        // of a call or two
)

// What is known to be used up stays used up while the log is down, and afterwards every balance is exact.
func TestMoneyWhileTheLogIsDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{weir: moneySettings, keys: []stack.Key{{Name: "strict"}, {Name: "rich"}, {Name: "poor"}, {Name: "capped"}}})
	credits := map[events.Org]int64{"rich": richCredit, "poor": poorCredit}
	for org, amount := range credits {
		w.state(events.Event{ID: "credit/" + string(org), Org: org, Data: &events.Credit{Org: org, AmountNano: amount, Reference: "first"}})
	}
	w.until("both are used up", func() bool {
		_, poor := w.admits(0, "poor")
		_, capped := w.admits(0, "capped")
		return poor != "bounded_local" && capped != "bounded_local" && w.refusedFor("poor") == "insufficient_balance" && w.refusedFor("capped") == "spend_limit_exceeded"
	})
	time.Sleep(2 * time.Second) // until every gateway's view shows it
	l := w.run(clients(), "rich", "poor", "capped")
	time.Sleep(time.Second)
	w.core.kill()
	died := time.Now()
	time.Sleep(between(5*time.Second, 40*time.Second))
	w.core.start()
	w.ready()
	time.Sleep(time.Second)
	all := l.end()
	bounded := map[string]int{}
	for i := range all {
		if all[i].bounded && all[i].status == http.StatusOK {
			bounded[all[i].org]++
		}
		if all[i].org != "rich" && all[i].status == http.StatusOK && all[i].began.After(died) {
			t.Errorf("%s, which has nothing left, was admitted", all[i].org)
		}
	}
	if bounded["rich"] == 0 {
		t.Error("rich was not admitted without the log")
	}
	lost := w.check(all, checks{})
	nc, log, _ := w.join(access.Auditor)
	defer nc.Close()
	story := stack.Read(t, log)
	used := map[events.Org]int64{}
	for _, c := range w.provider.Ledger().Calls() {
		if c.Outcome == provider.Completed {
			used[events.Org(c.Model)] += c.Input*1000 + c.Output*2000
		}
	}
	for org, credit := range credits {
		got := reading(story, events.NewMeter(events.ScopeOrg, "balance", string(org)))
		if want := credit - used[org]; got.Total != want || got.Used != 0 {
			t.Errorf("%s: the balance is %d with holds of %d, want %d: %d less what its calls cost", org, got.Total, got.Used, want, credit)
		}
	}
	line(t, "the log's process was killed, with balances and spend caps", say(all),
		fmt.Sprintf("%s; balances exact, %d of rich admitted meanwhile, none of those with nothing left", lost, bounded["rich"]))
}

// refusedFor is the code with which the first gateway refuses an org; empty: it does not.
func (w *world) refusedFor(org string) string {
	l := &load{}
	return l.one(w.urls[0], org).code
}

// reading is what a meter shows at the end of the log.
func reading(s *stack.Story, m events.Meter) admission.Reading {
	for _, r := range s.Fold.Meters() {
		if r.Meter == m {
			return r
		}
	}
	return admission.Reading{Meter: m}
}
