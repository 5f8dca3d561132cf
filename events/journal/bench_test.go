package journal_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
)

// transports are how a gateway can reach its broker.
func transports(b *testing.B, each func(*testing.B, *broker, func() *nats.Conn)) {
	b.Run("inprocess", func(b *testing.B) {
		s := startBroker(b)
		each(b, s, func() *nats.Conn { return dial(b, "", nats.InProcessServer(s.Server)) })
	})
	b.Run("tcp", func(b *testing.B) {
		s := startBroker(b)
		each(b, s, func() *nats.Conn { return s.connect() })
	})
}

// BenchmarkSubmit is one reserve until its acknowledgement, from as many submitters at once.
func BenchmarkSubmit(b *testing.B) {
	for _, submitters := range []int{1, 64} {
		b.Run(fmt.Sprintf("submitters=%d", submitters), func(b *testing.B) {
			transports(b, func(b *testing.B, _ *broker, connect func() *nats.Conn) {
				p := startPublisher(b, openLog(b, connect()), journal.PublisherConfig{Gateway: gateway})
				evs := make([]events.Event, b.N)
				for i := range evs {
					evs[i] = reserve(gateway, "acme")
				}
				var next atomic.Int64
				b.ReportAllocs()
				b.ResetTimer()
				done := make(chan error, submitters)
				for range submitters {
					go func() {
						acked := make(chan error, 1)
						tell := func(_ uint64, err error) { acked <- err }
						for i := next.Add(1) - 1; i < int64(b.N); i = next.Add(1) - 1 {
							if err := p.Submit(evs[i], tell); err != nil {
								done <- err
								return
							}
							if err := <-acked; err != nil {
								done <- err
								return
							}
						}
						done <- nil
					}()
				}
				for range submitters {
					if err := <-done; err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				s := p.Stats()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
				b.ReportMetric(float64(s.Events)/float64(s.Messages), "events/message")
			})
		})
	}
}

// BenchmarkTapLatency is from Submit of one reserve in a quiet log until Next has given it.
func BenchmarkTapLatency(b *testing.B) {
	transports(b, func(b *testing.B, _ *broker, connect func() *nats.Conn) {
		p := startPublisher(b, openLog(b, connect()), journal.PublisherConfig{Gateway: gateway})
		tap := openLog(b, connect()).Tap(b.Context(), journal.TapConfig{})
		defer tap.Close()
		write(b, p, 10)
		follow(b, tap, 10)
		time.Sleep(100 * time.Millisecond) // the tap has its consumer
		took := make([]time.Duration, 0, b.N)
		for b.Loop() {
			ev := reserve(gateway, "acme")
			begun := time.Now()
			if err := p.Submit(ev, nil); err != nil {
				b.Fatal(err)
			}
			records, err := tap.Next(b.Context())
			if err != nil || len(records) != 1 || records[0].ID != ev.ID {
				b.Fatalf("%d records, %v", len(records), err)
			}
			took = append(took, time.Since(begun))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
	})
}

// BenchmarkTapReplay is a log of 64,000 reserves in packs, read from its beginning.
func BenchmarkTapReplay(b *testing.B) {
	s := startBroker(b)
	l := openLog(b, dial(b, "", nats.InProcessServer(s.Server)))
	p, err := l.Publisher(b.Context(), journal.PublisherConfig{Gateway: gateway})
	if err != nil {
		b.Fatal(err)
	}
	const held = 64_000
	for range held {
		if err := p.Submit(reserve(gateway, "acme"), nil); err != nil {
			b.Fatal(err)
		}
	}
	run(b, p)
	flush(b, p)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		tap := l.Tap(context.Background(), journal.TapConfig{})
		follow(b, tap, held)
		tap.Close()
		n += held
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkDecode is one reserve, alone.
func BenchmarkDecode(b *testing.B) {
	m, err := journal.Encode(reserve(gateway, "acme"), gateway)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if r := journal.Decode(m.Subject, m.Header, m.Data, 1, 1); r[0].Fault != "" {
			b.Fatal(r[0].Fault)
		}
	}
}

// BenchmarkEncode is one reserve, alone.
func BenchmarkEncode(b *testing.B) {
	ev := reserve(gateway, "acme")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := journal.Encode(ev, gateway); err != nil {
			b.Fatal(err)
		}
	}
}
