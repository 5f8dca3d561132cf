package gateway

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/events"
)

// What bounds the counters of an org's own use, of which each pair of an org and a model has about eight series for as long as the process
// runs: pairs that come when there are so many are counted under otherOrgs, which is no org's name.
const (
	maxOrgModels = 2000
	otherOrgs    = "_other"
)

// Metrics are the gateway's counters. No label names a key, and none a tenant but on the counters of an org's own use: an org has a few
// series for each model that it uses, however many keys it has. A model in a label is a configured one, never what a client made up.
type Metrics struct {
	requests   *prometheus.CounterVec   // by operation, model, outcome
	refusals   *prometheus.CounterVec   // by gate, kind, model
	shadows    *prometheus.CounterVec   // by scope, kind, model
	tenants    *prometheus.CounterVec   // by org, model, outcome
	tokens     *prometheus.CounterVec   // by org, model, direction
	admission  prometheus.Histogram     // seconds from reserve to verdict, parking left out
	parked     *prometheus.HistogramVec // seconds, by model and outcome
	first      *prometheus.HistogramVec // seconds to the first output
	attempts   *prometheus.CounterVec   // by deployment's provider, how it ended
	denied     *prometheus.CounterVec   // by why
	unusable   *prometheus.CounterVec   // by why: no verdict could be had
	panics     prometheus.Counter
	view       prometheus.Counter // refusals by the view, without the log
	quality    *prometheus.CounterVec
	responses  *prometheus.CounterVec // by operation, status class, origin
	cost       *prometheus.CounterVec // dollars, by org, model
	added      prometheus.Histogram   // seconds until the first call upstream, waiting left out
	stale      prometheus.Counter     // reserves refused for an old fence
	collectors []prometheus.Collector

	mu    sync.Mutex
	pairs map[orgModel]struct{} // that are counted each by itself
}

// orgModel is an org and a model that it uses.
type orgModel struct {
	org   events.Org
	model string
}

// org gives the label under which an org's use of a model is counted.
func (m *Metrics) org(org events.Org, model string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	pair := orgModel{org, model}
	if _, known := m.pairs[pair]; known {
		return string(org)
	}
	if len(m.pairs) >= maxOrgModels {
		return otherOrgs
	}
	m.pairs[pair] = struct{}{}
	return string(org)
}

// NewMetrics makes the counters.
func NewMetrics() *Metrics {
	m := &Metrics{pairs: map[orgModel]struct{}{}}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_" + name, Help: help}, labels)
		m.collectors = append(m.collectors, c)
		return c
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "weir_" + name, Help: help, Buckets: buckets}, labels)
		m.collectors = append(m.collectors, h)
		return h
	}
	fast := []float64{.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .25, .5, 1, 2}
	slow := []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
	m.requests = counter("requests_total", "Requests for models, by how they ended.", "operation", "model", "outcome")
	m.refusals = counter("refusals_total", "Refused requests, by the gate that refused and the kind of its limit.", "gate", "kind", "model")
	m.shadows = counter("shadow_refusals_total", "Admitted requests that a shadow limit would have refused.", "scope", "kind", "model")
	m.tenants = counter("org_requests_total", "Requests of an org that were admitted, by how they ended, under the model asked for.", "org", "model", "outcome")
	m.tokens = counter("org_tokens_total", "Tokens used by an org, provider usage included, under the model asked for.", "org", "model", "direction")
	m.parked = histogram("parked_seconds", "How long requests waited for occupancy.", slow, "model", "outcome")
	m.first = histogram("first_output_seconds", "Time to the first output of a stream.", slow, "model")
	m.attempts = counter("attempts_total", "Calls to upstreams, by how they ended.", "provider", "ended")
	m.denied = counter("denied_total", "Requests whose key was not accepted.", "why")
	m.unusable = counter("undecided_total", "Requests that could not be decided.", "why")
	m.quality = counter("usage_total", "Settled attempts, by how well their usage is known.", "quality")
	m.admission = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "weir_admission_seconds", Help: "Time from a reserve to its verdict, parking left out.", Buckets: fast})
	m.responses = counter("responses_total", "Answers to requests for models, by class of their status (aborted: cut off in the middle; left: the client did not wait for its end) and the origin of an error (none without one).", "operation", "class", "origin")
	m.cost = counter("org_cost_dollars_total", "What an org's settled attempts cost, in US dollars, under the model asked for.", "org", "model")
	m.added = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "weir_added_seconds", Help: "Time from when a request's body was here whole to its first call upstream, parking and pacing left out.", Buckets: fast})
	m.stale = prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_stale_fences_total", Help: "Reserves refused because the log knew a newer version of the org's authority."})
	m.panics = prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_panics_total", Help: "Requests whose handler panicked."})
	m.view = prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_view_refusals_total", Help: "Requests refused by the view, without the log."})
	m.collectors = append(m.collectors, m.admission, m.added, m.stale, m.panics, m.view)
	return m
}

// Describe is prometheus.Collector's.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.collectors {
		c.Describe(ch)
	}
}

// Collect is prometheus.Collector's.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.collectors {
		c.Collect(ch)
	}
}
