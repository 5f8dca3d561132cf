package admission_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
)

// mixedLog is a log of requests over orgs, models and gateways: a reserve of twelve claims, a growth true-up for one in four, a final and a
// release for each, a lease every 200 records; one request in eight is refused.
func mixedLog(n int) []events.Record {
	log := make([]events.Record, 0, n+4)
	at := int64(1_780_000_000_000_000_000)
	add := func(org events.Org, d events.Data) {
		at += 20_000 // 50,000 records a second
		log = append(log, events.Record{Seq: uint64(len(log) + 1), At: at, Event: events.Event{Org: org, Data: d}})
	}
	const open = 200
	type live struct {
		id  events.RequestID
		org events.Org
	}
	var running []live
	for i := 0; len(log) < n; i++ {
		org := events.Org(fmt.Sprintf("org%d", i%97))
		key := fmt.Sprintf("key%d", i%997)
		model := fmt.Sprintf("model%d", i%7)
		id := events.RequestID(fmt.Sprintf("01890000-0000-7000-8000-%012x", i))
		gw := events.Gateway(fmt.Sprintf("gw%d", i%4))
		d := &events.Reserve{Request: id, Org: org, Gateway: gw, Epoch: 1, MaxMS: events.DefaultMaxMS}
		claim := func(scope events.Scope, subject, dimension string, kind events.MeterKind, amount, limit int64, basis string, life events.Life) {
			d.Claims = append(d.Claims, events.Claim{Meter: events.NewMeter(scope, dimension, subject), Kind: kind, WindowMS: 60_000, Amount: amount, Limit: limit, HasLimit: true, Basis: basis, Life: life})
		}
		claim("platform", "_", "rpm", events.Window, 1, 1<<40, "request", 0)
		claim("org", string(org), "rpm", events.Window, 1, 1<<40, "request", 0)
		limit := int64(1 << 40)
		if i%8 == 7 {
			limit = 0
		}
		claim("key", key, "rpm", events.Window, 1, limit, "request", 0)
		claim("model", model, "occupancy", events.Gauge, 900, 1<<40, "footprint", events.LifeLocal)
		claim("model", model, "inflight", events.Gauge, 1, 1<<40, "slot", events.LifeLocal)
		claim("key", key+"."+model, "itpm", events.Bucket, 400, 1<<30, "input", events.LifeLocal)
		claim("org", string(org), "tpm", events.Window, 900, 1<<40, "total", 0)
		claim("key", key, "tpm", events.Window, 900, 1<<40, "total", 0)
		claim("org", string(org), "concurrency", events.Gauge, 1, 1<<40, "slot", 0)
		claim("key", key, "concurrency", events.Gauge, 1, 1<<40, "slot", 0)
		claim("org", string(org), "daily", events.Budget, 400, 1<<40, "total", events.LifeLocal)
		claim("pool", "house", "rpm", events.Window, 1, 1<<40, "request", events.LifeAttempt)
		add(org, d)
		if i%8 != 7 {
			running = append(running, live{id, org})
		}
		if len(running) > open {
			r := running[0]
			running = running[1:]
			n := int64(1)
			if i%4 == 0 {
				add(r.org, &events.TrueUp{Request: r.id, N: n, Quality: events.QualityEstimated, Charges: []events.Charge{{Basis: "footprint", Amount: 950}}})
				n++
			}
			add(r.org, &events.TrueUp{Request: r.id, N: n, Final: true, Quality: events.QualityExact, CostNano: 5000,
				Charges: []events.Charge{{Basis: "total", Amount: 640}, {Basis: "input", Amount: 380}, {Basis: "output", Amount: 260}, {Basis: "footprint", Amount: 640}}})
			add(r.org, &events.Release{Request: r.id, Dispatched: events.DispatchedYes})
		}
		if i%70 == 0 {
			add("_", &events.Lease{Gateway: gw, Epoch: 1, TTLMS: 10_000})
		}
	}
	return log
}

func BenchmarkApplyMixed(b *testing.B) {
	log := mixedLog(300_000)
	b.ReportAllocs()
	b.ResetTimer()
	i, f := len(log), admission.New()
	for range b.N {
		if i == len(log) {
			b.StopTimer()
			i, f = 0, admission.New()
			b.StartTimer()
		}
		f.Apply(&log[i])
		i++
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

func BenchmarkSnapshot(b *testing.B) {
	f := admission.New()
	log := mixedLog(300_000)
	for i := range log {
		f.Apply(&log[i])
	}
	var buf []byte
	for b.Loop() {
		buf = f.Snapshot(buf[:0])
	}
	b.ReportMetric(float64(len(buf)), "bytes")
}

// BenchmarkMemory reports what a live reservation of twelve claims, a settled request and an idle meter take.
func BenchmarkMemory(b *testing.B) {
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	for range b.N {
		const requests = 100_000
		log := mixedLog(1)
		claims := log[0].Data.(*events.Reserve).Claims
		f := admission.New()
		reserve := func(i int, claims []events.Claim) {
			d := &events.Reserve{Request: events.RequestID(fmt.Sprintf("01890000-0000-7000-8000-%012x", i)), Org: "org0", Gateway: "gw0", Epoch: 1, MaxMS: events.DefaultMaxMS, Claims: claims}
			f.Apply(&events.Record{Seq: uint64(i + 1), At: log[0].At, Event: events.Event{Org: "org0", Data: d}})
		}
		before := heap()
		for i := range requests {
			reserve(i, claims)
		}
		live := heap()
		for i := range requests {
			id := events.RequestID(fmt.Sprintf("01890000-0000-7000-8000-%012x", i))
			f.Apply(&events.Record{At: log[0].At, Event: events.Event{Org: "org0", Data: &events.TrueUp{Request: id, Final: true}}})
			f.Apply(&events.Record{At: log[0].At, Event: events.Event{Org: "org0", Data: &events.Release{Request: id}}})
		}
		settled := heap()
		runtime.KeepAlive(f)
		b.ReportMetric((live-before)/requests, "B/live")
		b.ReportMetric((settled-before)/requests, "B/settled")
		f = admission.New()
		before = heap()
		for i := range requests {
			c := []events.Claim{{Meter: events.NewMeter("key", "rpm", fmt.Sprint(i)), Kind: events.Window, WindowMS: 60_000, Amount: 1, Basis: "request"}}
			d := &events.Reserve{Request: events.RequestID(fmt.Sprint(i)), Org: "org0", Gateway: "gw0", Epoch: 1, Fence: -1, MaxMS: events.DefaultMaxMS, Claims: c}
			d.Claims[0].Limit, d.Claims[0].HasLimit = 0, true // refused: the meter is named and stays empty
			f.Apply(&events.Record{At: log[0].At, Event: events.Event{Org: "org0", Data: d}})
		}
		b.ReportMetric((heap()-before)/requests, "B/meter")
		runtime.KeepAlive(f)
	}
}
