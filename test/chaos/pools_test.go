//go:build chaos

package chaos

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/outage"
	"github.com/weirhq/weir/services/provider"
	"github.com/weirhq/weir/test/e2e/stack"
)

// Everybody here goes through provider accounts. one shares the house's with strict and with large, whose requests may use much; full has used up
// its share of another pool, own has an account of its own, spent has no money left, paused's account has asked for a pause, next's does where
// its first one fails, tired's does as soon as it is asked, and spare gets what another account answers.
const poolSettings = `
orgs:
  strict: {limits: {concurrency: 4, outage_mode: closed}}
  one: {limits: {rpm: 1000000, concurrency: 1000}}
  large: {limits: {rpm: 1000000, concurrency: 1000}}
  full: {limits: {rpm: 1000000, concurrency: 1000}}
  own: {limits: {rpm: 1000000, concurrency: 1000}}
  spent: {billing: prepaid, limits: {rpm: 1000000, concurrency: 1000}}
  paused: {limits: {rpm: 1000000, concurrency: 1000}}
  next: {limits: {rpm: 1000000, concurrency: 1000}}
  tired: {limits: {rpm: 1000000, concurrency: 1000}}
  spare: {limits: {rpm: 1000000, concurrency: 1000}}
models:
  - {id: strict, price: {input: "1", output: "2"}, providers: [{connection: house}]}
  - {id: one, max_output_tokens: 16, price: {input: "1", output: "2"}, providers: [{connection: house}]}
  - {id: large, max_output_tokens: 8000, price: {input: "1", output: "2"}, providers: [{connection: house}]}
  - {id: full, max_output_tokens: 16, price: {input: "1", output: "2"}, providers: [{connection: small}]}
  - {id: own, max_output_tokens: 16, price: {input: "1", output: "2"}, providers: [{connection: house}]}
  - {id: spent, max_output_tokens: 16, price: {input: "1", output: "2"}, providers: [{connection: house}]}
  - {id: paused, max_output_tokens: 16, price: {input: "1", output: "2"}, providers: [{connection: paused}]}
  - {id: next, max_output_tokens: 16, price: {input: "1", output: "2"}, providers: [{connection: broken}, {connection: paused}]}
  - {id: tired, max_output_tokens: 16, price: {input: "1", output: "2"}, providers: [{connection: tired}]}
  - {id: spare, max_output_tokens: 16, price: {input: "1", output: "2"}, providers: [{connection: failing}, {connection: spare}]}
connections:
  - {id: house, provider: openai, base_url: "{{upstream}}", pool: house}
  - {id: small, provider: openai, base_url: "{{upstream}}", pool: small}
  - {id: account, org: own, provider: openai, base_url: "{{account}}", pool: account}
  - {id: paused, provider: openai, base_url: "{{paused}}", pool: paused}
  - {id: tired, provider: openai, base_url: "{{tired}}", pool: tired}
  - {id: broken, provider: openai, base_url: "{{broken}}", pool: broken}
  - {id: failing, provider: openai, base_url: "{{broken}}", pool: failing}
  - {id: spare, provider: openai, base_url: "{{upstream}}", pool: spare}
pools:
  - {id: house, provider: openai, rpm: 1000000, tpm: 1000000000, concurrency: 1000, fair_share: 0.5}
  - {id: small, provider: openai, rpm: 6, tpm: 1000000, concurrency: 10, headroom_percent: 100, fair_share: 0.5}
  - {id: account, org: own, provider: openai, rpm: 1000000, tpm: 1000000000, concurrency: 1000}
  - {id: paused, provider: openai, rpm: 100, tpm: 1000000, concurrency: 10}
  - {id: tired, provider: openai, rpm: 100, tpm: 1000000, concurrency: 10}
  - {id: broken, provider: openai, rpm: 1000000, tpm: 1000000000, concurrency: 1000}
  - {id: failing, provider: openai, rpm: 1000000, tpm: 1000000000, concurrency: 1000}
  - {id: spare, provider: openai, rpm: 1000000, tpm: 1000000000, concurrency: 1000}
`

// What gateways grant without the log of accounts with providers: a little of each pool, nothing of one that is used up or paused, and of an
// account that asks for a pause meanwhile nothing more.
func TestPoolsWhileTheLogIsDown(t *testing.T) {
	t.Parallel()
	orgs := []string{"one", "large", "full", "own", "spent", "paused", "next", "tired", "spare"}
	keys := []stack.Key{{Name: "strict"}}
	for _, org := range orgs {
		keys = append(keys, stack.Key{Name: org})
	}
	w := newWorld(t, setup{weir: poolSettings, keys: keys, script: "tokens=8;delay=200ms", others: map[string]string{
		"account": "tokens=8;delay=200ms", "broken": "status=500", "paused": "status=429;retry-after=60", "tired": "status=429;retry-after=60;delay=200ms"}})
	w.state(events.Event{ID: "credit/spent", Org: "spent", Data: &events.Credit{Org: "spent", AmountNano: poorCredit, Reference: "first"}})
	w.until("what can be used up is", func() bool {
		return w.refusedFor("spent") == "insufficient_balance" && w.refusedFor("full") == "upstream_quota_exceeded" && w.refusedFor("paused") == "upstream_quota_exceeded"
	})
	time.Sleep(2 * time.Second) // until every gateway's view shows it
	strict := w.run(clients()/4, "strict")
	time.Sleep(time.Second)
	before := map[string]int{}
	for _, c := range w.called() {
		before[c.Model]++
	}
	w.core.kill()
	for i := range w.urls {
		w.until(fmt.Sprintf("gateway %d goes on alone", i), func() bool {
			status, text := w.why(i)
			return status == http.StatusOK && strings.Contains(text, "bounded_local")
		})
	}
	l := w.run(clients()*3/4, orgs...)
	time.Sleep(35 * time.Second)
	down := w.called()
	w.core.start()
	w.ready()
	all := append(l.end(), strict.end()...)
	w.granted(all, down, before)
	words := w.check(all, checks{})
	line(t, "the log's process was killed, with accounts of providers", say(all), words+w.poolsWere(all))
}

// granted checks who was admitted without the log, by what the upstreams saw until it was back.
func (w *world) granted(all []result, down []provider.Call, before map[string]int) {
	w.tb.Helper()
	bounded, called := map[string]int{}, map[string]int{}
	for i := range all {
		if all[i].bounded && all[i].status == http.StatusOK {
			bounded[all[i].org]++
		}
	}
	for _, c := range down {
		called[c.Model]++
	}
	for _, org := range []string{"one", "large", "own", "spare"} {
		if bounded[org] == 0 {
			w.tb.Errorf("nothing of %s was admitted without the log", org)
		}
	}
	for _, org := range []string{"full", "spent", "paused"} {
		if n := called[org] - before[org]; n > 0 {
			w.tb.Errorf("%d calls of %s were made without the log", n, org)
		}
	}
	if n := w.others["paused"].Ledger().Model("next").Calls; n > 0 {
		w.tb.Errorf("an account that is paused was called %d times in another's place", n)
	}
	if n := called["tired"]; n == 0 || n > len(w.urls)*outage.AtOnce {
		w.tb.Errorf("an account that asked for a pause was called %d times", n)
	}
	if n := called["own"]; n != int(w.others["account"].Ledger().Totals().Calls) && len(down) == len(w.called()) {
		w.tb.Errorf("%d calls of own, of which its account has %d", n, w.others["account"].Ledger().Totals().Calls)
	}
}

// poolsWere says how much of each org was admitted without the log.
func (w *world) poolsWere(all []result) (words string) {
	bounded := map[string]int{}
	for i := range all {
		if all[i].bounded && all[i].status == http.StatusOK {
			bounded[all[i].org]++
		}
	}
	return fmt.Sprintf("; without the log %d of the house's account, %d of those large, %d of an own one, %d of a spare one", bounded["one"], bounded["large"], bounded["own"], bounded["spare"])
}
