package projector_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/kv"
	"github.com/weirhq/weir/projections/projector"
)

// request as a gateway sends it: the claims of a chat completion, its final true-up and its release.
func usual(n int) []events.Event {
	window := func(scope events.Scope, dimension, basis string, amount, limit int64, subject ...string) events.Claim {
		return events.Claim{Meter: events.NewMeter(scope, dimension, subject...), Kind: events.Window, WindowMS: 60_000, Amount: amount, HasLimit: true, Limit: limit, Basis: basis}
	}
	gauge := func(scope events.Scope, dimension, basis string, amount, limit int64, life events.Life, subject ...string) events.Claim {
		return events.Claim{Meter: events.NewMeter(scope, dimension, subject...), Kind: events.Gauge, Amount: amount, HasLimit: true, Limit: limit, Basis: basis, Life: life}
	}
	const plenty = 1 << 40
	org := "org" + string(rune('a'+n%16))
	r := reserve(gateway,
		window(events.ScopeOrg, "rpm", events.BasisRequest, 1, plenty, org),
		window(events.ScopeKey, "rpm", events.BasisRequest, 1, plenty, "k"+org),
		gauge(events.ScopeModel, "occupancy", events.BasisFootprint, 900, plenty, events.LifeLocal, "qwen3"),
		gauge(events.ScopeModel, "inflight", events.BasisSlot, 1, plenty, events.LifeLocal, "qwen3"),
		window(events.ScopeOrg, "tpm", events.BasisTotal, 900, plenty, org),
		window(events.ScopeKey, "tpm", events.BasisTotal, 900, plenty, "k"+org),
		gauge(events.ScopeOrg, "concurrency", events.BasisSlot, 1, plenty, events.LifeRequest, org),
		gauge(events.ScopeKey, "concurrency", events.BasisSlot, 1, plenty, events.LifeRequest, "k"+org),
	)
	final := events.Event{ID: "t/" + r.Subject, Org: r.Org, Subject: r.Subject, Data: &events.TrueUp{
		Request: id(r), Gateway: gateway, N: 1, Final: true, Quality: events.QualityExact,
		Usage:   events.Usage{InputTokens: 400, OutputTokens: 300},
		Charges: []events.Charge{{Basis: events.BasisTotal, Amount: 700}, {Basis: events.BasisFootprint, Amount: 700}}, CostNano: 1000,
	}}
	return []events.Event{r, final, release(gateway, id(r))}
}

func (w *world) preload(requests int) {
	w.t.Helper()
	for i := range requests {
		for _, ev := range usual(i) {
			for w.sender.Submit(ev, nil) != nil {
				flush(w.t, w.sender) // the outbox is full
			}
		}
	}
	flush(w.t, w.sender)
}

// BenchmarkCatchUp reads a log from its beginning, decodes, folds and keeps what is decided.
func BenchmarkCatchUp(b *testing.B) {
	const requests = 30_000
	w := newWorld(b)
	w.preload(requests)
	last := w.last()
	for _, c := range []struct {
		name   string
		change func(*projector.Config)
	}{
		{"plain", nil},
		{"with a view", func(c *projector.Config) { c.View = kv.NewView(time.Now) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			var spent time.Duration
			for b.Loop() {
				nc := w.connect("bench-aaaaaaaa", "projector")
				cfg := projector.Config{Log: openLog(b, nc, false), Conn: nc, Name: "bench-aaaaaaaa", ReadOnly: true}
				if c.change != nil {
					c.change(&cfg)
				}
				p, err := projector.New(cfg)
				if err != nil {
					b.Fatal(err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 1)
				go func() { done <- p.Run(ctx) }()
				for p.Stats().Seq < last {
					time.Sleep(time.Millisecond)
				}
				spent += p.Stats().FoldTime
				cancel()
				<-done
				nc.Close()
			}
			b.ReportMetric(float64(requests*b.N)/b.Elapsed().Seconds(), "requests/s")
			b.ReportMetric(float64(spent.Nanoseconds())/float64(3*requests*b.N), "fold-ns/event")
		})
	}
}

// given is a source that gives batches from memory, then waits.
type given struct {
	batches [][]events.Record
	at      int
}

func (g *given) Next(ctx context.Context) ([]events.Record, error) {
	if g.at == len(g.batches) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	g.at++
	records := g.batches[g.at-1]
	for i := range records {
		records[i].At = time.Now().UnixNano()
	}
	return records, nil
}

func (g *given) Chain() journal.Chain { return journal.Chain{} }

// BenchmarkAnswer folds what is decoded already, and answers by call: what a verdict costs the fold's goroutine.
func BenchmarkAnswer(b *testing.B) {
	const requests = 30_000
	w := newWorld(b)
	w.project("maker-aaaaaaaa", nil)
	g := &given{}
	seq := uint64(0)
	for i := range requests {
		for j, ev := range usual(i) {
			if seq++; j == 0 && i%64 == 0 {
				g.batches = append(g.batches, nil)
			}
			last := len(g.batches) - 1
			g.batches[last] = append(g.batches[last], events.Record{Seq: seq, Gateway: gateway, Event: ev})
		}
	}
	for b.Loop() {
		g.at = 0
		answered := 0
		p, err := projector.New(projector.Config{Log: w.log, Conn: w.conn, Name: "bench-aaaaaaaa", ReadOnly: true,
			Source: func(context.Context, journal.TapConfig) (projector.Source, error) { return g, nil }})
		if err != nil {
			b.Fatal(err)
		}
		done := make(chan struct{})
		p.AnswerLocal(gateway, func(vs []events.Verdict) {
			if answered += len(vs); answered >= requests-64 {
				select {
				case <-done:
				default:
					close(done)
				}
			}
		})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		<-done
		cancel()
		<-ended
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(requests*b.N), "ns/request")
}

// BenchmarkRoundTrip is one reserve at a time: from its submission to its verdict, by call and by message.
func BenchmarkRoundTrip(b *testing.B) {
	w := newWorld(b)
	p := w.project("bench-aaaaaaaa", func(c *projector.Config) { c.View = kv.NewView(time.Now) })
	ready(b, p)
	eventually(b, "a writer", func() bool { return p.Stats().Writer })
	verdicts := make(chan events.Verdict, 16)
	take := func(vs []events.Verdict) {
		for _, v := range vs {
			verdicts <- v
		}
	}
	bench := func(b *testing.B) {
		for n := 0; b.Loop(); n++ {
			ev := usual(n)[0]
			submit(b, w.sender, ev)
			if v := <-verdicts; v.Request != id(ev) {
				b.Fatalf("a verdict on %s, not on %s", v.Request, ev.Subject)
			}
		}
	}
	stop := p.AnswerLocal(gateway, take)
	b.Run("by call", bench)
	stop()
	nc := w.connect(string(gateway), access.Gateway)
	if _, err := nc.Subscribe(access.VerdictPrefix+string(gateway), func(m *nats.Msg) {
		vs, err := events.DecodeVerdicts(m.Data)
		if err != nil {
			b.Error(err)
		}
		take(vs)
	}); err != nil {
		b.Fatal(err)
	}
	if err := nc.FlushTimeout(patience); err != nil {
		b.Fatal(err)
	}
	b.Run("by message", bench)
}
