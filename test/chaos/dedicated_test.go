package chaos

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/test/e2e/stack"
)

const (
	dedicatedRPM    = 60
	dedicatedAtOnce = 6
	pacedRPS        = 4
	pacedQueue      = time.Second // for so long a granted one may wait
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
	line(t, "the log's process was killed, with dedicated endpoints", say(all), lost+w.shares())
}

// shares checks that what gateways granted of an endpoint without the log is never more than its limits, and says how much it was: by when each was
// granted, as the intents say.
func (w *world) shares() string {
	nc, log, _ := w.join(access.Auditor)
	defer nc.Close()
	story := stack.Read(w.tb, log)
	by := map[events.Org][]time.Time{}
	for _, id := range story.Order {
		for _, d := range story.Requests[id].Reserves {
			if d.Mode == events.ModeBoundedLocal && !again(story, d) {
				by[d.Org] = append(by[d.Org], time.Unix(0, d.At))
			}
		}
	}
	words := ""
	for _, org := range []events.Org{"dedicated", "paced"} {
		granted := by[org]
		if len(granted) == 0 {
			w.tb.Errorf("nothing of %s was admitted without the log", org)
			continue
		}
		slices.SortFunc(granted, time.Time.Compare)
		most, begin := 0, 0
		for end, at := range granted {
			for at.Sub(granted[begin]) >= time.Minute {
				begin++
			}
			most = max(most, end-begin+1)
		}
		if org == "dedicated" && most > dedicatedRPM {
			w.tb.Errorf("%d requests of the dedicated endpoint within a minute, its limit is %d", most, dedicatedRPM)
		}
		took := granted[len(granted)-1].Sub(granted[0])
		if allowed := int((took+pacedQueue).Seconds()*pacedRPS) + 2*len(w.urls); org == "paced" && len(granted) > allowed {
			w.tb.Errorf("%d requests of the paced endpoint in %s, its pace allows %d", len(granted), took, allowed)
		}
		words += fmt.Sprintf("; %d of %s, at most %d in a minute", len(granted), org, most)
	}
	if n := w.provider.Ledger().Model("dedicated").MaxLive; n > dedicatedAtOnce {
		w.tb.Errorf("%d calls of the dedicated endpoint at once, its limit is %d", n, dedicatedAtOnce)
	}
	return words
}
