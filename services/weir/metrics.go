package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/projections/projector"
)

// registerProjector shows what a projector does.
func registerProjector(r prometheus.Registerer, p *projector.Projector) {
	gauge := func(name, help string, value func(projector.Stats) float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weir_projector_" + name, Help: help}, func() float64 { return value(p.Stats()) }))
	}
	counter := func(name, help string, value func(projector.Stats) float64) {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weir_projector_" + name, Help: help}, func() float64 { return value(p.Stats()) }))
	}
	yes := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	gauge("ready", "Whether the projector answers and has nothing to complain of.", func(projector.Stats) float64 { ok, _ := p.Ready(); return yes(ok) })
	gauge("sequence", "Last sequence of the log that was folded.", func(s projector.Stats) float64 { return float64(s.Seq) })
	gauge("behind", "Messages that the log held beyond it.", func(s projector.Stats) float64 { return float64(s.Behind) })
	gauge("lag_seconds", "Own clock less the time of the last record when it was folded.", func(s projector.Stats) float64 { return s.Lag.Seconds() })
	gauge("writer", "Whether this projector holds the writer's lease.", func(s projector.Stats) float64 { return yes(s.Writer) })
	gauge("meters", "Meters that the fold holds.", func(s projector.Stats) float64 { return float64(s.Meters) })
	gauge("requests", "Requests that the fold holds and that can still change.", func(s projector.Stats) float64 { return float64(s.Requests) })
	gauge("settled", "Requests of which only the ids are kept.", func(s projector.Stats) float64 { return float64(s.Settled) })
	gauge("waiting", "Requests that wait for occupancy.", func(s projector.Stats) float64 { return float64(s.Waiting) })
	gauge("snapshot_bytes", "Size of the newest snapshot.", func(s projector.Stats) float64 { return float64(s.SnapshotBytes) })
	counter("records_total", "Records folded.", func(s projector.Stats) float64 { return float64(s.Records) })
	counter("verdicts_total", "Verdicts decided.", func(s projector.Stats) float64 { return float64(s.Verdicts) })
	counter("fold_seconds_total", "Time spent folding.", func(s projector.Stats) float64 { return s.FoldTime.Seconds() })
	counter("faulty_total", "Records that may not be folded: forged, misplaced or unreadable.", func(s projector.Stats) float64 { return float64(s.Counts.Faulty) })
	counter("lapses_total", "Gateway leases that ended.", func(s projector.Stats) float64 { return float64(s.Counts.Lapses) })
	counter("divergences_total", "Verdict packs of another projector that did not agree.", func(s projector.Stats) float64 { return float64(s.Divergences) })
	counter("snapshots_total", "Snapshots written.", func(s projector.Stats) float64 { return float64(s.Snapshots) })
	counter("packs_total", "Verdict packs appended.", func(s projector.Stats) float64 { return float64(s.Packs) })
}
