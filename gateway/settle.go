package gateway

import (
	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/relay"
	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/projections/gate"
)

// nanoPerDollar turns money as it is counted into money as it is shown.
const nanoPerDollar = 1e9

// settle publishes what a request used and its release, once. It runs right before the last byte of an answer leaves, so that who has
// the whole answer finds its place free; and again after the call, to no effect, for those that never came so far.
func (x *exchange) settle(r *relay.Result) {
	if x.settled {
		return
	}
	x.settled = true
	if d := x.final(r); d != nil {
		x.last(d)
	}
	d := x.outcome(r)
	x.reservation.End(d)
	x.observe(r)
}

// endAttempt publishes the end of a failed attempt. What it used is said when it is known whether another follows.
func (x *exchange) endAttempt(r *relay.Result) {
	if d := x.final(r); d != nil {
		x.reservation.Owe(*d)
	}
	x.reservation.EndAttempt(x.outcome(r))
}

// last publishes the final after which the request ends. One of which nothing is known is billed nothing, and then a spend cap counts
// nothing of it either; while a further attempt may cost something, what was reserved for the request stays there.
func (x *exchange) last(d *events.TrueUp) {
	if d.Quality == events.QualityNone && x.plan.Capped() {
		x.reservation.TrueUp(events.TrueUp{Quality: events.QualityExact, Charges: []events.Charge{{Basis: events.BasisCost}}})
	}
	x.reservation.TrueUp(*d)
}

// final is what an attempt used; nil for one that was never dispatched and so has used nothing.
func (x *exchange) final(r *relay.Result) *events.TrueUp {
	if r.Dispatched == events.DispatchedNo {
		return nil
	}
	span := x.span.Child(spanSettle)
	usage, quality := x.plan.Usage(&r.Result)
	if r.Status >= 400 {
		usage, quality = events.Usage{}, events.QualityNone
	}
	d := events.TrueUp{Final: true, Quality: quality, Usage: usage, Charges: x.plan.Charges(usage, quality, x.own), PriceVersion: x.plan.PriceVersion(),
		Train: x.local && r.Kind == relay.Completed && x.plan.Trains(quality)}
	if x.op != wire.CountTokens && quality != events.QualityNone {
		d.CostNano = x.plan.CostNano(usage, x.own)
		if x.own {
			d.ListNano = x.plan.ListNano(usage)
		}
	}
	if x.s.config.FreeEstimates && quality != events.QualityExact {
		d.CostNano, d.ListNano = 0, 0
		for i := range d.Charges {
			if d.Charges[i].Basis == events.BasisCost {
				d.Charges[i].Amount = 0
			}
		}
	}
	if d.CostNano > 0 {
		x.s.config.Meters.cost.WithLabelValues(x.s.config.Meters.org(x.key.Org, x.model.ID), x.model.ID).Add(float64(d.CostNano) / nanoPerDollar)
	}
	used(span, &d)
	x.s.config.Meters.quality.WithLabelValues(quality.String()).Inc()
	if quality != events.QualityNone {
		org := x.s.config.Meters.org(x.key.Org, x.model.ID)
		x.s.config.Meters.tokens.WithLabelValues(org, x.model.ID, "input").Add(float64(usage.InputTokens))
		x.s.config.Meters.tokens.WithLabelValues(org, x.model.ID, "output").Add(float64(usage.OutputTokens))
	}
	return &d
}

// outcome is the release of an attempt or a request after a call.
func (x *exchange) outcome(r *relay.Result) events.Release {
	d := events.Release{Outcome: r.Outcome(), Dispatched: r.Dispatched, Status: int64(r.Status), FinishReason: r.FinishReason,
		LatencyMS: r.Latency.Milliseconds(), TTFTMS: r.TTFT.Milliseconds()}
	if r.Kind != relay.Completed {
		d.Error = r.Kind.String()
		d.Origin = gate.OriginUpstream
		switch r.Kind {
		case relay.ClientGone:
			d.Origin = "client"
		case relay.Barred, relay.Stopped:
			d.Origin = gate.OriginInfrastructure
		}
	}
	return d
}

// ended counts a request that was admitted, by how it ended.
func (x *exchange) ended(how events.Outcome) {
	x.s.config.Meters.requests.WithLabelValues(x.op.String(), x.model.ID, string(how)).Inc()
	x.s.config.Meters.tenants.WithLabelValues(x.s.config.Meters.org(x.key.Org, x.model.ID), x.model.ID, string(how)).Inc()
}

// observe counts what a request came to.
func (x *exchange) observe(r *relay.Result) {
	x.ended(r.Outcome())
	if r.TTFT > 0 {
		x.s.config.Meters.first.WithLabelValues(x.model.ID).Observe(r.TTFT.Seconds())
	}
}
