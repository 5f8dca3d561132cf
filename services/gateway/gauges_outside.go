package gateway

import (
	"sort"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
)

// maxBalances bounds the orgs whose balance is shown each by itself, so that an installation with very many of them does not drown its
// monitoring: beyond it only the sums are.
const maxBalances = 1000

// nanoPerDollar turns money as it is counted into money as it is shown.
const nanoPerDollar = 1e9

// replicaGauges show what is known of each replica that the configuration names.
type replicaGauges struct {
	g                         *Gateway
	up, inflight, waiting, kv *prometheus.Desc
}

func newReplicaGauges(g *Gateway) *replicaGauges {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("weir_upstream_replica_"+name, help, []string{"model", "replica"}, nil)
	}
	return &replicaGauges{
		g:        g,
		up:       desc("up", "1 while a replica can be used."),
		inflight: desc("inflight_requests", "Calls of this gateway to a replica."),
		waiting:  desc("waiting_requests", "Requests that wait in a replica, as it reports."),
		kv:       desc("kv_cache_ratio", "Share of a replica's KV cache in use, as it reports."),
	}
}

// Describe is prometheus.Collector's.
func (r *replicaGauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{r.up, r.inflight, r.waiting, r.kv} {
		ch <- d
	}
}

// Collect is prometheus.Collector's.
func (r *replicaGauges) Collect(ch chan<- prometheus.Metric) {
	for _, model := range r.g.set.Models() {
		for _, s := range r.g.set.Replicas(model) {
			set := func(d *prometheus.Desc, v float64) {
				ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, model, s.Name)
			}
			set(r.up, yes(s.Healthy))
			set(r.inflight, float64(s.Inflight))
			if s.Signals {
				set(r.waiting, s.Waiting)
				set(r.kv, s.KV)
			}
		}
	}
}

// balanceGauges show the prepaid money of orgs, as the view knows it.
type balanceGauges struct {
	g                       *Gateway
	total, held, org, holds *prometheus.Desc
}

func newBalanceGauges(g *Gateway) *balanceGauges {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("weir_"+name, help, labels, nil)
	}
	return &balanceGauges{
		g:     g,
		total: desc("balances_dollars", "Prepaid money of all orgs together, in US dollars, holds included."),
		held:  desc("balances_held_dollars", "What running requests hold of it."),
		org:   desc("org_balance_dollars", "Prepaid money of an org that is left, holds taken off, in US dollars. Shown while at most 1000 orgs are prepaid.", "org"),
		holds: desc("org_balance_held_dollars", "What running requests of an org hold of its balance, in US dollars. Shown likewise.", "org"),
	}
}

// Describe is prometheus.Collector's.
func (b *balanceGauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{b.total, b.held, b.org, b.holds} {
		ch <- d
	}
}

// Collect is prometheus.Collector's.
func (b *balanceGauges) Collect(ch chan<- prometheus.Metric) {
	if b.g.c.View == nil {
		return
	}
	now := time.Now()
	var orgs []string
	for id, o := range b.g.current().Orgs {
		if o.Billing == authority.Prepaid {
			orgs = append(orgs, string(id))
		}
	}
	sort.Strings(orgs)
	set := func(d *prometheus.Desc, nano int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(nano)/nanoPerDollar, labels...)
	}
	var total, held int64
	for _, org := range orgs {
		e, known := b.g.c.View.Get(events.NewMeter(events.ScopeOrg, "balance", org), now)
		if !known {
			continue
		}
		total, held = total+e.Total, held+e.Total-e.Available
		if len(orgs) <= maxBalances {
			set(b.org, e.Available, org)
			set(b.holds, e.Total-e.Available, org)
		}
	}
	set(b.total, total)
	set(b.held, held)
}
