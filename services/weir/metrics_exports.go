package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/services/biller"
)

// exportMetrics shows what the exports that the configuration names do. It is a prometheus.Collector.
type exportMetrics struct {
	biller  *biller.Biller
	now     func() time.Time
	figures []exportFigure
}

// exportFigure is one metric of each export.
type exportFigure struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*biller.ExportStatus, time.Time) float64
}

func newExportMetrics(b *biller.Biller, now func() time.Time) *exportMetrics {
	m := &exportMetrics{biller: b, now: now}
	add := func(name, help string, kind prometheus.ValueType, value func(*biller.ExportStatus, time.Time) float64) {
		m.figures = append(m.figures, exportFigure{prometheus.NewDesc("weir_export_"+name, help, []string{"export"}, nil), kind, value})
	}
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	add("sent_total", "Lines that an export's receiver took.", counter, func(s *biller.ExportStatus, _ time.Time) float64 { return float64(s.Exported) })
	add("retried_total", "Tries that failed and were followed by another.", counter, func(s *biller.ExportStatus, _ time.Time) float64 { return float64(s.Failures) })
	add("dead_letters_total", "Lines that the receiver will never take as they are.", counter, func(s *biller.ExportStatus, _ time.Time) float64 { return float64(s.Dead) })
	add("lag_records", "Lines that are still to be handed on.", gauge, func(s *biller.ExportStatus, _ time.Time) float64 { return float64(s.Behind) })
	add("lag_seconds", "Age of the oldest line that is still to be handed on.", gauge, func(s *biller.ExportStatus, now time.Time) float64 {
		if s.Oldest.IsZero() {
			return 0
		}
		return max(now.Sub(s.Oldest).Seconds(), 0)
	})
	add("last_error_seconds", "When a try last failed, in seconds since 1970; 0 if none has.", gauge, func(s *biller.ExportStatus, _ time.Time) float64 {
		if s.FailedAt.IsZero() {
			return 0
		}
		return float64(s.FailedAt.UnixMilli()) / 1000
	})
	return m
}

// Describe is prometheus.Collector's.
func (m *exportMetrics) Describe(to chan<- *prometheus.Desc) {
	for i := range m.figures {
		to <- m.figures[i].desc
	}
}

// Collect is prometheus.Collector's.
func (m *exportMetrics) Collect(to chan<- prometheus.Metric) {
	now := m.now()
	for name, x := range m.biller.Status().Exports {
		for i := range m.figures {
			f := &m.figures[i]
			to <- prometheus.MustNewConstMetric(f.desc, f.kind, f.value(&x, now), name)
		}
	}
}
