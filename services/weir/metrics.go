package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/projections/projector"
	"github.com/weirhq/weir/services/auditor"
	"github.com/weirhq/weir/services/biller"
)

func yes(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// shown registers what a role says of itself, under its prefix.
type shown[S any] struct {
	r      prometheus.Registerer
	prefix string
	state  func() S
}

func (s shown[S]) gauge(name, help string, value func(S) float64) {
	s.r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: s.prefix + name, Help: help}, func() float64 { return value(s.state()) }))
}

func (s shown[S]) counter(name, help string, value func(S) float64) {
	s.r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: s.prefix + name, Help: help}, func() float64 { return value(s.state()) }))
}

// counters registers one counter with a label that takes a few fixed values.
func (s shown[S]) counters(name, help, label string, values map[string]func(S) float64) {
	for is, value := range values {
		s.r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: s.prefix + name, Help: help, ConstLabels: prometheus.Labels{label: is}},
			func() float64 { return value(s.state()) }))
	}
}

// ageOf is the age of an instant; 0 for none.
func ageOf(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return time.Since(t).Seconds()
}

// registerProjector shows what a projector does.
func registerProjector(r prometheus.Registerer, p *projector.Projector) {
	type stats = projector.Stats
	s := shown[stats]{r, "weir_projector_", p.Stats}
	s.gauge("ready", "1 while the projector answers and has nothing to complain of.", func(stats) float64 { ok, _ := p.Ready(); return yes(ok) })
	s.gauge("answering", "1 while the projector gives verdicts.", func(stats) float64 { ok, _ := p.Answering(); return yes(ok) })
	s.gauge("sequence", "Last sequence of the log that was folded.", func(s stats) float64 { return float64(s.Seq) })
	s.gauge("behind", "Messages that the log held beyond it.", func(s stats) float64 { return float64(s.Behind) })
	s.gauge("lag_seconds", "Own clock less the time of the last record when it was folded.", func(s stats) float64 { return s.Lag.Seconds() })
	s.gauge("read_age_seconds", "Time since anything was read: with a writer more than about a second means that the log is out of reach.", func(s stats) float64 { return ageOf(s.ReadAt) })
	s.gauge("clock_offset_seconds", "The stream's clock less the projector's own, as far as is known: an alarm beyond 2, and beyond 30 nothing is answered.", func(s stats) float64 { return s.Offset.Seconds() })
	s.gauge("writer", "1 while this projector holds the writer's lease.", func(s stats) float64 { return yes(s.Writer) })
	s.gauge("rules", "Version of the fold's rules.", func(s stats) float64 { return float64(s.Rules) })
	s.gauge("meters", "Meters that the fold holds.", func(s stats) float64 { return float64(s.Meters) })
	s.gauge("requests", "Requests that the fold holds and that can still change.", func(s stats) float64 { return float64(s.Requests) })
	s.gauge("settled", "Requests of which only the ids are kept.", func(s stats) float64 { return float64(s.Settled) })
	s.gauge("waiting", "Requests that wait for occupancy.", func(s stats) float64 { return float64(s.Waiting) })
	s.gauge("pending_verdicts", "Verdicts that are in no pack of the log yet.", func(s stats) float64 { return float64(s.Pending) })
	s.gauge("snapshot_bytes", "Size of the newest snapshot.", func(s stats) float64 { return float64(s.SnapshotBytes) })
	s.gauge("snapshot_sequence", "The sequence that it is of.", func(s stats) float64 { return float64(s.SnapshotSeq) })
	s.gauge("snapshot_age_seconds", "Time since this process wrote it; 0 before its first.", func(s stats) float64 { return ageOf(s.SnapshotAt) })
	s.gauge("shared_sequence", "The sequence of the newest snapshot that this process shared.", func(s stats) float64 { return float64(s.SharedSeq) })
	s.gauge("shared_age_seconds", "Time since this process shared a snapshot; 0 before its first.", func(s stats) float64 { return ageOf(s.SharedAt) })
	s.counter("records_total", "Records folded.", func(s stats) float64 { return float64(s.Records) })
	s.counter("verdicts_total", "Verdicts decided.", func(s stats) float64 { return float64(s.Verdicts) })
	s.counter("verdicts_withheld_total", "Verdicts that were kept and not given, as the projector could not be trusted or they came too late.", func(s stats) float64 { return float64(s.Withheld) })
	s.counter("fold_seconds_total", "Time spent folding.", func(s stats) float64 { return s.FoldTime.Seconds() })
	s.counter("faulty_total", "Records that may not be folded: forged, misplaced or unreadable.", func(s stats) float64 { return float64(s.Counts.Faulty) })
	s.counter("lapses_total", "Gateway leases that ended.", func(s stats) float64 { return float64(s.Counts.Lapses) })
	s.counter("divergences_total", "Verdict packs of another projector that did not agree.", func(s stats) float64 { return float64(s.Divergences) })
	s.counter("asks_total", "Questions of gateways for verdicts that had not come.", func(s stats) float64 { return float64(s.Asks) })
	s.counter("snapshots_total", "Snapshots written.", func(s stats) float64 { return float64(s.Snapshots) })
	s.counter("snapshots_failed_total", "Snapshots that could not be written.", func(s stats) float64 { return float64(s.SnapshotsFailed) })
	s.counter("shares_total", "Snapshots shared with other projectors.", func(s stats) float64 { return float64(s.Shares) })
	s.counter("shares_failed_total", "Snapshots that could not be shared.", func(s stats) float64 { return float64(s.SharesFailed) })
	s.counter("packs_total", "Verdict packs appended.", func(s stats) float64 { return float64(s.Packs) })
	s.counter("packs_failed_total", "Appends of verdict packs that failed.", func(s stats) float64 { return float64(s.PacksLost) })
	s.counters("anomalies_total", "Records that the fold met and could not use as they stand.", "anomaly", map[string]func(stats) float64{
		"out_of_range": func(s stats) float64 { return float64(s.Counts.OutOfRange) },
		"unknown_kind": func(s stats) float64 { return float64(s.Counts.Unknown) },
		"late":         func(s stats) float64 { return float64(s.Counts.Late) },
		"orphan":       func(s stats) float64 { return float64(s.Counts.Orphans) },
		"backwards":    func(s stats) float64 { return float64(s.Counts.Backwards) },
	})
}

// registerAuditor shows what an auditor does.
func registerAuditor(r prometheus.Registerer, a *auditor.Auditor) {
	type status = auditor.Status
	s := shown[status]{r, "weir_auditor_", a.Status}
	s.gauge("active", "1 while this auditor is the one that writes.", func(s status) float64 { return yes(s.Active) })
	s.gauge("sequence", "Last sequence of the log that the stored records tell of.", func(s status) float64 { return float64(s.Position) })
	s.gauge("behind", "Messages of the log that are still to be read.", func(s status) float64 { return float64(s.Pending) })
	s.gauge("held_records", "Records of requests in memory.", func(s status) float64 { return float64(s.Held) })
	s.counter("records_total", "Records of the log applied since it became active.", func(s status) float64 { return float64(s.Records) })
	s.counter("written_total", "Records of requests written.", func(s status) float64 { return float64(s.Written) })
	s.counters("anomalies_total", "Facts that could not be added to a request's record.", "anomaly", map[string]func(status) float64{
		"orphan":  func(s status) float64 { return float64(s.Orphans) },
		"dropped": func(s status) float64 { return float64(s.Dropped) },
		"foreign": func(s status) float64 { return float64(s.Foreign) },
	})
}

// registerBiller shows what a biller does.
func registerBiller(r prometheus.Registerer, b *biller.Biller, now func() time.Time) {
	type status = biller.Status
	s := shown[status]{r, "weir_biller_", b.Status}
	s.gauge("active", "1 while this biller is the one that writes.", func(s status) float64 { return yes(s.Writing) })
	s.gauge("sequence", "The sequence of the log up to which every line is in the stream.", func(s status) float64 { return float64(s.Billed) })
	s.gauge("behind", "Messages of the log that are still to be read.", func(s status) float64 { return float64(s.Behind) })
	s.gauge("pending_lines", "Lines that are not known to be in the stream.", func(s status) float64 { return float64(s.Pending) })
	s.gauge("open_requests", "Requests that can still give a line.", func(s status) float64 { return float64(s.Open) })
	s.gauge("shared_sequence", "The sequence of the newest state that this biller shared.", func(s status) float64 { return float64(s.Shared) })
	s.counter("lines_total", "Lines written.", func(s status) float64 { return float64(s.Written) })
	s.counter("conflicts_total", "Times that the stream did not end where this biller knew it to end.", func(s status) float64 { return float64(s.Conflicts) })
	s.counter("counted_total", "Lines counted by hour and day in the database.", func(s status) float64 { return float64(s.Usage.Counted) })
	s.gauge("counted_behind", "Lines of the stream that are still to be counted in the database.", func(s status) float64 { return float64(s.Usage.Behind) })
	s.counter("count_failures_total", "Tries to count lines in the database that failed.", func(s status) float64 { return float64(s.Usage.Failures) })
	s.counter("count_missed_total", "Lines that were gone from the stream before they were counted in the database.", func(s status) float64 { return float64(s.Usage.Missed) })
	r.MustRegister(newExportMetrics(b, now))
}
