package main

import (
	"context"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/events/journal"
)

// How the log is looked at for metrics: rarely, and never for long.
const (
	logLookEvery = 5 * time.Second
	logLookFor   = time.Second
)

// registerProcess shows the process, its connection to the log, its ledger and its disk.
func (n *node) registerProcess() {
	gauge := func(name, help string, value func() float64) {
		n.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weir_" + name, Help: help}, value))
	}
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weir_info", Help: "1, with the version, the name and the roles of the process."}, []string{"version", "name", "roles"})
	info.WithLabelValues(version, n.name, strings.Join(n.roles, ",")).Set(1)
	n.registry.MustRegister(info)
	gauge("process_ready", "1 while every role of the process does its work.", func() float64 { return yes(n.why() == "") })
	gauge("log_connected", "1 while the connection to the log is there.", func() float64 { return yes(n.conn.Status() == nats.CONNECTED) })
	n.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weir_log_reconnects_total", Help: "How often the connection to the log was made anew."},
		func() float64 { return float64(n.conn.Stats().Reconnects) }))
	gauge("ledger_trusted", "1 while the log is known to be the right one.", func() float64 { return yes(n.ledger.Trusted() && n.ledger.Why() == "") })
	gauge("ledger_sequence", "The ledger's high-water mark: the last sequence of the log that is known for sure.", func() float64 { return float64(n.ledger.Mark().Seq) })
	gauge("data_disk_bytes", "Size of the disk that holds data_dir.", func() float64 { size, _ := disk(n.config.DataDir); return size })
	gauge("data_disk_free_bytes", "What is free on it.", func() float64 { _, free := disk(n.config.DataDir); return free })
	n.registry.MustRegister(newLogGauges(n.log, time.Now))
}

// disk gives the size of a directory's disk and what is free on it; 0 where that cannot be known.
func disk(dir string) (size, free float64) {
	var s syscall.Statfs_t
	if syscall.Statfs(dir, &s) != nil {
		return 0, 0
	}
	return float64(s.Blocks) * float64(s.Bsize), float64(s.Bavail) * float64(s.Bsize)
}

// logGauges show the log's state, as its leader tells it.
type logGauges struct {
	log                              *journal.Log
	now                              func() time.Time
	reach, bytes, most, first, ended *prometheus.Desc

	mu     sync.Mutex
	looked time.Time
	info   journal.Info
	err    error
}

func newLogGauges(log *journal.Log, now func() time.Time) *logGauges {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc("weir_log_"+name, help, nil, nil) }
	return &logGauges{
		log: log, now: now,
		reach: desc("reachable", "1 while the log's leader answers."),
		bytes: desc("bytes", "What the log holds."),
		most:  desc("max_bytes", "What it may hold: 80 % of its disk where it is embedded. Absent without a bound. Full, admission closes."),
		first: desc("first_sequence", "The first sequence that it holds."),
		ended: desc("last_sequence", "The last one."),
	}
}

// Describe is prometheus.Collector's.
func (l *logGauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{l.reach, l.bytes, l.most, l.first, l.ended} {
		ch <- d
	}
}

// Collect is prometheus.Collector's.
func (l *logGauges) Collect(ch chan<- prometheus.Metric) {
	info, err := l.look()
	set := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	set(l.reach, yes(err == nil))
	if err != nil {
		return
	}
	set(l.bytes, float64(info.Bytes))
	if info.MaxBytes > 0 {
		set(l.most, float64(info.MaxBytes))
	}
	set(l.first, float64(info.First))
	set(l.ended, float64(info.Last))
}

// look asks the leader; one answer counts for a while for all who ask.
func (l *logGauges) look() (journal.Info, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := l.now(); l.looked.IsZero() || now.Sub(l.looked) >= logLookEvery {
		ctx, cancel := context.WithTimeout(context.Background(), logLookFor)
		defer cancel()
		l.info, l.err = l.log.Info(ctx)
		l.looked = now
	}
	return l.info, l.err
}
