// Package load measures the engine alone, without HTTP: reserves and verdicts over a real broker. Its numbers are printed, not asserted.
package load

import (
	"context"
	"fmt"
	"sort"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/access/accesstest"
	"github.com/weirhq/weir/events/journal/embedded"
	"github.com/weirhq/weir/gateway/reservation"
	"github.com/weirhq/weir/projections/projector"
)

// engine is a broker, a projector, and gateways that are connected over TCP.
type engine struct {
	books []*reservation.Book
	nc    []*nats.Conn
	pubs  []*journal.Publisher
}

func newEngine(tb testing.TB, gateways int, always bool) *engine {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	tb.Cleanup(func() { cancel(); running.Wait() })
	check := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	gate, secret, err := access.NewCredentials("gw", access.Gateway)
	check(err)
	broker, err := embedded.Start(ctx, embedded.Config{DataDir: tb.TempDir(), Listen: "127.0.0.1:0", SyncAlways: always,
		Credentials: access.Credentials{Identities: []access.Credential{gate}}})
	check(err)
	tb.Cleanup(broker.Shutdown)
	name, err := access.NewName("projector")
	check(err)
	core, err := broker.Connect(access.Identity{Name: name, Roles: []access.Role{access.System}}, journal.Options(name)...)
	check(err)
	log, err := journal.Open(ctx, core, journal.Config{Create: true})
	check(err)
	p, err := projector.New(projector.Config{Log: log, Conn: core, Name: name})
	check(err)
	running.Go(func() { _ = p.Run(ctx) })
	e := &engine{}
	for range gateways {
		full, err := access.NewName("gw")
		check(err)
		nc, err := accesstest.Connect(broker.URL(), append(journal.Options(full), secret.Options(access.Identity{Name: full, Roles: []access.Role{access.Gateway}})...)...)
		check(err)
		own, err := journal.Open(ctx, nc, journal.Config{})
		check(err)
		pub, err := own.Publisher(ctx, journal.PublisherConfig{Gateway: events.Gateway(full)})
		check(err)
		book := reservation.NewBook(reservation.Config{Gateway: events.Gateway(full), Epoch: 1, Publisher: pub, Now: time.Now, MaybeAppended: journal.MaybeAppended})
		_, err = nc.Subscribe(access.VerdictPrefix+full, func(m *nats.Msg) {
			if verdicts, err := events.DecodeVerdicts(m.Data); err == nil {
				book.Verdicts(verdicts)
			}
		})
		check(err)
		running.Go(func() { _ = pub.Run(ctx) })
		running.Go(func() { _ = book.Run(ctx) })
		e.books, e.nc, e.pubs = append(e.books, book), append(e.nc, nc), append(e.pubs, pub)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if ready, why := p.Ready(); ready {
			return e
		} else if time.Now().After(deadline) {
			tb.Fatal("the projector is not ready: ", why)
		}
	}
}

// claims are six of a usual request: rpm, tpm and concurrency of its org and its key, far from their limits.
func claims(org, key string) []events.Claim {
	var all []events.Claim
	for _, s := range []struct {
		scope   events.Scope
		subject string
	}{{events.ScopeOrg, org}, {events.ScopeKey, key}} {
		all = append(all,
			events.Claim{Meter: events.NewMeter(s.scope, "rpm", s.subject), Kind: events.Window, WindowMS: 60_000, Amount: 1, Limit: 1 << 40, HasLimit: true, Basis: events.BasisRequest},
			events.Claim{Meter: events.NewMeter(s.scope, "tpm", s.subject), Kind: events.Window, WindowMS: 60_000, Amount: 500, Limit: 1 << 40, HasLimit: true, Basis: events.BasisTotal},
			events.Claim{Meter: events.NewMeter(s.scope, "concurrency", s.subject), Kind: events.Gauge, WindowMS: 60_000, Amount: 1, Limit: 1 << 20, HasLimit: true, Basis: events.BasisSlot})
	}
	return all
}

// BenchmarkEngine measures admissions: a reserve that is waited for, a final and a release that are not.
func BenchmarkEngine(b *testing.B) {
	for _, always := range []bool{false, true} {
		for _, clients := range []int{1, 16, 64, 256} {
			name := fmt.Sprintf("sync=1s/clients=%d", clients)
			if always {
				name = fmt.Sprintf("sync=always/clients=%d", clients)
			}
			b.Run(name, func(b *testing.B) { admissions(b, newEngine(b, 2, always), clients) })
		}
	}
}

func admissions(b *testing.B, e *engine, clients int) {
	ctx := context.Background()
	took := make([][]time.Duration, clients)
	var all sync.WaitGroup
	b.ResetTimer()
	for c := range clients {
		all.Go(func() {
			book := e.books[c%len(e.books)]
			org := events.Org(fmt.Sprintf("org%d", c%7))
			want := claims(string(org), fmt.Sprintf("key%d", c))
			for i := c; i < b.N; i += clients {
				r := book.Begin(events.RequestID(fmt.Sprintf("%08x-0000-7000-8000-%012x", c, i)), org)
				d := &events.Reserve{Request: r.ID(), Org: org, Gateway: e.gateway(c), Epoch: 1, MaxMS: events.DefaultMaxMS, Claims: want}
				begin := time.Now()
				v, err := r.Reserve(ctx, d)
				took[c] = append(took[c], time.Since(begin))
				if err != nil || !v.Admitted {
					b.Errorf("not admitted: %+v, %v", v.Refusal, err)
					return
				}
				r.TrueUp(events.TrueUp{Final: true, Quality: events.QualityExact, Charges: []events.Charge{{Basis: events.BasisTotal, Amount: 321}}})
				r.End(events.Release{Outcome: events.Completed, Dispatched: events.DispatchedYes, Status: 200})
			}
		})
	}
	all.Wait()
	b.StopTimer()
	var flat []time.Duration
	for _, t := range took {
		flat = append(flat, t...)
	}
	sort.Slice(flat, func(i, j int) bool { return flat[i] < flat[j] })
	if len(flat) == 0 {
		return
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "admissions/s")
	b.ReportMetric(float64(flat[len(flat)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(flat[len(flat)*99/100].Microseconds()), "p99-µs")
}

func (e *engine) gateway(client int) events.Gateway {
	return e.books[client%len(e.books)].Gateway()
}
