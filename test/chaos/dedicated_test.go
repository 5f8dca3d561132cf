package chaos

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/weirhq/weir/test/e2e/stack"
)

const (
	dedicatedRPM    = 60
	dedicatedAtOnce = 6
	pacedRPS        = 4
)

const dedicatedSettings = `
orgs:
  strict: {limits: {concurrency: 4, outage_mode: closed}}
  dedicated: {limits: {rpm: 2, concurrency: 1}}
  paced: {limits: {rpm: 2, concurrency: 1}}
models:
  - {id: strict, price: {input: "1", output: "2"}, local: {engine: vllm, replicas: ["{{upstream}}"]}}
  - id: dedicated
    price: {input: "1", output: "2"}
    dedicated: {rpm: 60, concurrency: 6}
    local: {engine: vllm, replicas: ["{{upstream}}"]}
  - id: paced
    price: {input: "1", output: "2"}
    dedicated: {rps: 4, queue_ms: 1000}
    local: {engine: vllm, replicas: ["{{upstream}}"]}
`

// Without the log a dedicated endpoint has its own limits, divided by the gateways that serve, and for longer than everybody else; a paced one
// paces each gateway at its share.
func TestDedicatedEndpointsWhileTheLogIsDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{weir: dedicatedSettings, keys: []stack.Key{{Name: "strict"}, {Name: "dedicated"}, {Name: "paced"}}})
	time.Sleep(7 * time.Second) // until every gateway knows of the other
	w.core.kill()
	w.until("the gateways notice", func() bool {
		a, err := ask(w.urls[0], "dedicated")
		return err == nil && a.Header.Get("X-Tm-Admission-Mode") == "bounded_local"
	})
	l := w.run(clients(), "dedicated", "paced")
	time.Sleep(between(8*time.Second, 75*time.Second))
	w.core.start()
	w.ready()
	all := l.end()
	for i := range all {
		if r := &all[i]; r.status == http.StatusTooManyRequests && r.code != "rate_limit_exceeded" {
			t.Errorf("429 %s", r.code)
		}
	}
	lost := w.check(all, checks{dedicated: true})
	line(t, "the log's process was killed, with dedicated endpoints", say(all), lost+w.shares(all))
}

// shares checks that what gateways granted of an endpoint without the log is never more than its limits, and says how much it was.
func (w *world) shares(all []result) string {
	type granted struct{ at, end time.Time }
	by := map[string][]granted{}
	for i := range all {
		if r := &all[i]; r.bounded && r.status == http.StatusOK {
			by[r.org] = append(by[r.org], granted{r.began, r.began.Add(r.took)})
		}
	}
	words := ""
	for org, calls := range by {
		if len(calls) == 0 {
			w.tb.Errorf("nothing of %s was admitted without the log", org)
		}
		most, first, last := 0, calls[0].at, calls[0].at
		for _, c := range calls {
			n := 0
			for _, other := range calls {
				if d := other.end.Sub(c.end); d >= 0 && d < time.Minute {
					n++
				}
			}
			most = max(most, n)
			if c.at.Before(first) {
				first = c.at
			}
			if c.end.After(last) {
				last = c.end
			}
		}
		if org == "dedicated" && most > dedicatedRPM {
			w.tb.Errorf("%d requests of the dedicated endpoint within a minute, its limit is %d", most, dedicatedRPM)
		}
		if allowed := int(last.Sub(first).Seconds()*pacedRPS) + 2*len(w.urls); org == "paced" && len(calls) > allowed {
			w.tb.Errorf("%d requests of the paced endpoint in %s, its pace allows %d", len(calls), last.Sub(first), allowed)
		}
		words += fmt.Sprintf("; %d of %s, at most %d in a minute", len(calls), org, most)
	}
	if n := w.provider.Ledger().Model("dedicated").MaxLive; n > dedicatedAtOnce {
		w.tb.Errorf("%d calls of the dedicated endpoint at once, its limit is %d", n, dedicatedAtOnce)
	}
	return words
}
