package auditor

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/projections/generation"
)

// BenchmarkCatchUp reads a log of requests, each a reserve with 8 claims, its verdict, a final and a release, in packs of 16 requests.
func BenchmarkCatchUp(b *testing.B) {
	b.Run("kv", func(b *testing.B) { catchUp(b, newNode(b)) })
	b.Run("postgres", func(b *testing.B) { catchUp(b, newPostgres(b)) })
}

func catchUp(b *testing.B, n *node) {
	const requests, pack = 20_000, 16
	last := n.state(&events.Tick{})
	time.Sleep(3 * time.Second) // what is made soon after an auditor's beginning is looked for in the bucket
	ids := make([]events.RequestID, requests)
	for k := 0; k < requests; k += pack {
		var evs []events.Event
		var verdicts []events.Verdict
		for i := k; i < k+pack; i++ {
			ids[i] = events.RequestID(uuid.Must(uuid.NewV7()).String())
			d := reserve(0)
			d.Request = ids[i]
			for c := range 6 {
				d.Claims = append(d.Claims, eventstest.Slot(events.Meter(fmt.Sprintf("org/acme/x%d", c)), 100))
			}
			for _, data := range []events.Data{d, eventstest.Final(ids[i], 250, 40, 91_000), eventstest.Release(ids[i])} {
				evs = append(evs, eventstest.Event(fmt.Sprint("p", n.ids.Add(1)), data))
			}
			verdicts = append(verdicts, eventstest.Admitted(d, last+1, 1_780_000_000_000_000_000))
		}
		m := &nats.Msg{Subject: "acct._.pack." + string(eventstest.Gateway), Data: events.AppendPack(nil, evs),
			Header: nats.Header{"content-type": {"application/cloudevents-batch+json"}, "Nats-Msg-Id": {fmt.Sprint("pack", k)}}}
		if _, err := n.js.PublishMsg(context.Background(), m); err != nil {
			b.Fatal(err)
		}
		last = n.state(&events.Verdicts{FromSeq: last + 1, ToSeq: last + 1, Rules: 1, Verdicts: verdicts})
	}
	b.ResetTimer()
	for range b.N {
		b.StopTimer()
		n.forget()                   // what was kept
		n.moveTo(generation.Place{}) // makes what records are kept in
		b.StartTimer()
		a := n.run(nil)
		n.stored(a, last)
		if s := a.Status(); s.Restored > 0 {
			b.Errorf("%d records were read back", s.Restored)
		}
		a.stop()
	}
	seconds := b.Elapsed().Seconds() / float64(b.N)
	b.ReportMetric(requests/seconds, "requests/s")
	b.ReportMetric(4*requests/seconds, "events/s") // a reserve, its verdict, a final and a release
	if n.record(eventstest.Org, ids[requests-1]) == nil {
		b.Error("the last request has no record")
	}
}
