package gateway

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/policy"
	"github.com/weirhq/weir/gateway/wire"
)

// registerGauges shows what the gateway holds now.
func (g *Gateway) registerGauges(r prometheus.Registerer) {
	gauge := func(name, help string, value func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weir_" + name, Help: help}, value))
	}
	counter := func(name, help string, value func() float64) {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weir_" + name, Help: help}, value))
	}
	gauge("requests_in_hand", "Requests for models under way.", func() float64 { return float64(g.server.InHand()) })
	gauge("reservations", "Requests that hold a reservation or wait for one.", func() float64 { return float64(g.book.Live()) })
	gauge("reserves_unanswered", "Reserves that wait for their verdict.", func() float64 { return float64(g.book.Unanswered()) })
	gauge("outbox_events", "Events that the log has not acknowledged.", func() float64 { return float64(g.publisher.Stats().Waiting) })
	gauge("outbox_oldest_seconds", "Age of the oldest of them.", func() float64 { return g.publisher.Stats().Oldest.Seconds() })
	counter("published_messages_total", "Messages that the log has acknowledged, packs included.", func() float64 { return float64(g.publisher.Stats().Messages) })
	counter("published_events_total", "Events that the log has acknowledged.", func() float64 { return float64(g.publisher.Stats().Events) })
	counter("publish_retries_total", "Messages sent again.", func() float64 { return float64(g.publisher.Stats().Retries) })
	counter("strays_released_total", "Reservations that the log held for this gateway and it did not.", func() float64 { return float64(g.book.Stats().Strays.Load()) })
	counter("refusals_unreported_total", "The gateway's own refusals that the audit will not show.", func() float64 { return float64(g.reporter.Lost()) })
	gauge("ready", "1 while the gateway admits requests by the log: what /ready says.", func() float64 { return yes(g.why() == "" && !g.reach.Out() && !g.draining.Load()) })
	gauge("outage", "1 while the log is out of reach and nobody waits for it.", func() float64 { return yes(g.reach.Out()) })
	gauge("spool_events", "Events of requests admitted without the log that it does not have yet.", func() float64 { return float64(g.spool.Waiting()) })
	counter("local_admissions_total", "Attempts admitted without the log.", func() float64 { return float64(g.book.Stats().Local.Load()) })
	gauge("outbox_full", "1 while the log takes no more events.", func() float64 { return yes(g.publisher.Stats().Full) })
	counter("lapse_cancelled_total", "Calls of closed scopes ended because the lease could not be renewed.", func() float64 { return float64(g.book.Stats().Lapsed.Load()) })
	counter("over_after_lapse_total", "Requests that ran on when their lease may have ended.", func() float64 { return float64(g.book.Stats().OverAfterLapse.Load()) })
	if g.c.Projector == nil && g.c.View != nil { // in the projector's process nothing comes while nothing changes
		gauge("view_age_seconds", "Time since the view last heard from the projector that writes it, every second if all is well.",
			func() float64 { return g.c.View.Age(time.Now()).Seconds() })
	}
	gauge("authority_files_valid", "1 while the files of keys and policies in use are those on the disk; 0 when those are not valid.", func() float64 { return yes(g.authority.Last().Err == nil) })
	if g.mirror != nil {
		gauge("authority_ready", "1 once all authority made through the API has come.", func() float64 { return yes(g.mirror.Ready()) })
		gauge("authority_behind_changes", "Changes of authority that have come and are not in use yet: by so many the fence is behind.", func() float64 { return float64(g.mirror.Behind()) })
		gauge("authority_unread_records", "Records of authority that could not be read.", func() float64 { return float64(g.mirror.Unread()) })
	}
	r.MustRegister(newModelGauges(g), newReplicaGauges(g), newBalanceGauges(g))
}

// publishBuckets are for acknowledgements: from a log in the process to an election in a cluster.
var publishBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// publishTimes is the histogram of acknowledgements.
func publishTimes() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "weir_publish_seconds", Buckets: publishBuckets,
		Help: "Time from when a message of the gateway's left to the log's acknowledgement."})
}

func yes(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// modelGauges show what each configured model holds of its limits, as the view knows it: the whole log's numbers, not this gateway's.
type modelGauges struct {
	g                                                              *Gateway
	occupancy, budget, inflight, most, parked, ratio, healthy, own *prometheus.Desc
}

func newModelGauges(g *Gateway) *modelGauges {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("weir_"+name, help, []string{"model"}, nil)
	}
	return &modelGauges{
		g:         g,
		occupancy: desc("admission_occupancy_tokens", "Tokens that requests occupy of a model, over all gateways."),
		budget:    desc("admission_budget_tokens", "Tokens that they may: the admit fraction of the budget, for all healthy replicas."),
		inflight:  desc("admission_inflight_requests", "Requests that a model has in hand, over all gateways."),
		most:      desc("admission_max_inflight", "Requests that it may have, for all healthy replicas."),
		parked:    desc("admission_parked_requests", "Requests that wait for a model's occupancy, over all gateways."),
		ratio:     desc("estimator_tokens_per_byte", "Learned tokens for each byte of a model's prompts."),
		healthy:   desc("upstream_healthy_replicas", "Replicas of a model that can be used."),
		own:       desc("upstream_inflight_requests", "Calls to a model's replicas by this gateway."),
	}
}

// Describe is prometheus.Collector's.
func (m *modelGauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.occupancy, m.budget, m.inflight, m.most, m.parked, m.ratio, m.healthy, m.own} {
		ch <- d
	}
}

// Collect is prometheus.Collector's.
func (m *modelGauges) Collect(ch chan<- prometheus.Metric) {
	snap := m.g.current()
	for id, model := range snap.Models {
		set := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, id)
		}
		if m.g.c.Ratio != nil {
			set(m.ratio, float64(m.g.c.Ratio(id))/1e6)
		}
		if model.Local == nil {
			continue
		}
		calls := int64(0)
		for _, r := range m.g.set.Replicas(id) {
			calls += r.Inflight
		}
		set(m.healthy, float64(m.g.set.Healthy(id)))
		set(m.own, float64(calls))
		m.limits(snap, model, set)
	}
}

// limits shows the B2 gauges of a model with the limits that a request would be held to now.
func (m *modelGauges) limits(snap *authority.Snapshot, model *authority.Model, set func(*prometheus.Desc, float64)) {
	plan := policy.New(&policy.Input{Snapshot: snap, Key: &authority.Key{}, Model: model, Request: &wire.Request{Op: wire.Chat, Model: model.ID, Choices: 1},
		Target: policy.Target{Local: true}, Healthy: int64(m.g.set.Healthy(model.ID)), Settings: m.g.c.Config.Admission})
	names, parked, limited := model.Names(), 0, false
	show := func(c *events.Claim, used, limit *prometheus.Desc) {
		held := int64(0)
		if m.g.c.View != nil {
			if e, known := m.g.c.View.Get(c.Meter, time.Now()); known {
				held, parked = e.Used, max(parked, e.Waiting)
			}
		}
		limited = true
		set(used, float64(held))
		set(limit, float64(c.Limit))
	}
	for i := range plan.Claims {
		switch c := &plan.Claims[i]; c.Meter {
		case names.Occupancy:
			show(c, m.occupancy, m.budget)
		case names.Inflight:
			show(c, m.inflight, m.most)
		}
	}
	if limited {
		set(m.parked, float64(parked))
	}
}
