package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/insight"
)

var requests = flag.Int("requests", 50_000, "requests of the log that is simulated")

// writeTraffic writes a log of requests of twelve claims over orgs, keys and models, each with a final and a release a while later, a lease
// now and then; about 500 requests a second. One key in eight is refused.
func writeTraffic(b *testing.B, n int) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "traffic.jsonl")
	file, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	w := bufio.NewWriterSize(file, 1<<20)
	at, seq := int64(1_780_000_000_000_000_000), 0
	var text []byte
	put := func(org events.Org, d events.Data) {
		seq++
		text = events.AppendData(text[:0], d)
		gateway := ""
		if d.Kind().FromGateway() {
			gateway = ".edge-a1b2c3d4"
		}
		fmt.Fprintf(w, `{"seq":%d,"time":"%s","subject":"acct.%s.%s%s","data":%s}`+"\n", seq, events.AppendTime(nil, at), org, d.Kind(), gateway, text)
	}
	const gw = events.Gateway("edge-a1b2c3d4")
	open := []*events.Reserve{}
	for i := range n {
		at += 2_000_000
		d := trafficReserve(i, at)
		put(d.Org, d)
		if i%8 != 7 {
			open = append(open, d)
		}
		if len(open) > 500 {
			r := open[0]
			open = open[1:]
			put(r.Org, &events.TrueUp{Request: r.Request, Gateway: gw, N: 1, Final: true, Quality: events.QualityExact, Train: true, CostNano: 213_000, PriceVersion: "2026-03",
				Usage:   events.Usage{InputTokens: 380, OutputTokens: 260},
				Charges: []events.Charge{{Basis: "total", Amount: 640}, {Basis: "input", Amount: 380}, {Basis: "output", Amount: 260}, {Basis: "footprint", Amount: 640}, {Basis: "cost", Amount: 213_000}}})
			put(r.Org, &events.Release{Request: r.Request, Gateway: gw, Outcome: events.Completed, Dispatched: events.DispatchedYes, Status: 200, FinishReason: "stop", LatencyMS: 1000, TTFTMS: 120})
		}
		if i%500 == 0 {
			put("_", &events.Lease{Gateway: gw, Epoch: 1, TTLMS: 10_000})
		}
	}
	if err := w.Flush(); err != nil {
		b.Fatal(err)
	}
	if err := file.Close(); err != nil {
		b.Fatal(err)
	}
	return path
}

func trafficReserve(i int, at int64) *events.Reserve {
	org, key, model := fmt.Sprintf("org%d", i%97), fmt.Sprintf("key%d", i%997), fmt.Sprintf("model%d", i%7)
	ms := uint64(at / 1_000_000)
	d := &events.Reserve{
		Request: events.RequestID(fmt.Sprintf("%08x-%04x-7000-8000-%012x", ms>>16, ms&0xffff, i)), Org: events.Org(org), Workspace: "w1", Key: key, Model: model,
		Deployment: "replica-1", Operation: "chat", Gateway: "edge-a1b2c3d4", Epoch: 1, MaxMS: events.DefaultMaxMS, PriceVersion: "2026-03",
		Estimate: events.Estimate{InputTokens: 400, OutputTokens: 500, TextBytes: 1600},
	}
	claim := func(m events.Meter, kind events.MeterKind, amount, limit int64, basis string, life events.Life) {
		d.Claims = append(d.Claims, events.Claim{Meter: m, Kind: kind, WindowMS: 60_000, Amount: amount, Limit: limit, HasLimit: true, Basis: basis, Life: life})
	}
	limit := int64(1 << 40)
	if i%8 == 7 {
		limit = 0
	}
	claim("platform/_/rpm", events.Window, 1, 1<<40, "request", 0)
	claim(events.NewMeter("org", "rpm", org), events.Window, 1, 1<<40, "request", 0)
	claim(events.NewMeter("key", "rpm", key), events.Window, 1, limit, "request", 0)
	claim(events.NewMeter("model", "occupancy", model), events.Gauge, 900, 1<<40, "footprint", events.LifeLocal)
	claim(events.NewMeter("model", "inflight", model), events.Gauge, 1, 1<<40, "slot", events.LifeLocal)
	claim(events.NewMeter("key", "itpm", key, model), events.Bucket, 400, 1<<30, "input", events.LifeLocal)
	claim(events.NewMeter("org", "tpm", org), events.Window, 900, 1<<40, "total", 0)
	claim(events.NewMeter("key", "tpm", key), events.Window, 900, 1<<40, "total", 0)
	claim(events.NewMeter("org", "concurrency", org), events.Gauge, 1, 1<<40, "slot", 0)
	claim(events.NewMeter("key", "concurrency", key), events.Gauge, 1, 1<<40, "slot", 0)
	claim(events.NewMeter("org", "daily", org), events.Budget, 400, 1<<40, "total", events.LifeLocal)
	claim("pool/house/rpm", events.Window, 1, 1<<40, "request", events.LifeAttempt)
	return d
}

// BenchmarkSimulate folds a recorded log under other limits, at its own load and at twice that.
func BenchmarkSimulate(b *testing.B) {
	path := writeTraffic(b, *requests)
	defer debug.SetGCPercent(debug.SetGCPercent(simulateGC))
	n := int64(250)
	for _, scale := range []int64{insight.ScaleOnce, 2 * insight.ScaleOnce} {
		b.Run(fmt.Sprintf("scale=%d", scale), func(b *testing.B) {
			for b.Loop() {
				limits, err := insight.NewLimits(map[string]*int64{"org/*/rpm": &n, "key/*/rpm": &n})
				if err != nil {
					b.Fatal(err)
				}
				r, err := simulateLog(b.Context(), &fileLog{name: path}, insight.SimulationConfig{Limits: limits, Scale: scale})
				if err != nil {
					b.Fatal(err)
				}
				if r.Recorded.Asked != int64(*requests) || r.Changed.NowRefused == 0 || r.Changed.NowAdmitted == 0 {
					b.Fatalf("%+v", r)
				}
			}
			b.ReportMetric(float64(*requests)*float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}
