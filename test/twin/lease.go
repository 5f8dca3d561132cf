package twin

import (
	"sort"

	"github.com/weirhq/weir/events"
)

// foldLease: "ttl 10,000 by default", "`ttl_ms` is brought into 10,000 to 60,000".
func (t *Twin) foldLease(d *events.Lease) {
	ttl := d.TTLMS
	if ttl == 0 {
		ttl = events.DefaultTTLMS
	}
	t.lease(d.Gateway, d.Epoch, clamp(ttl, events.MinTTLMS, events.MaxTTLMS)*ms)
}

// lease renews a gateway; ttl 0 keeps the announced one.
func (t *Twin) lease(name events.Gateway, epoch, ttl int64) {
	g := t.gateways[name]
	if g == nil {
		g = &gateway{name: name, epoch: epoch, ttl: events.DefaultTTLMS * ms}
		t.gateways[name] = g
	}
	if epoch < g.epoch { // "leases of lower epochs are ignored"
		return
	}
	if ttl != 0 {
		g.ttl = ttl
	}
	if epoch > g.epoch {
		g.epoch = epoch
		t.endEpochs(g)
	}
	g.running, g.end = true, t.now+g.ttl
	// "A later lease of the same epoch puts those gauges back."
	for _, r := range t.requests {
		if r.lapsed && r.gateway == name && r.epoch == epoch {
			r.lapsed = false
			for _, x := range r.charges {
				if x.lapsed {
					x.held, x.lapsed = true, false
					t.meterOf(x)
					t.note(x.meter)
				}
			}
		}
	}
}

// endEpochs: "A higher epoch ends the requests of lower ones at once, in seq order, and refuses their waiters as `released`".
func (t *Twin) endEpochs(g *gateway) {
	var old []*request
	for _, r := range t.requests {
		if len(r.admitted) > 0 && !r.ended && r.gateway == g.name && r.epoch < g.epoch {
			old = append(old, r)
		}
	}
	sort.Slice(old, func(i, j int) bool {
		a, b := old[i].admitted[0], old[j].admitted[0]
		return a.seq < b.seq || a.seq == b.seq && a.index < b.index
	})
	for _, r := range old {
		t.end(r)
	}
	for _, w := range append([]*attempt(nil), t.waiters...) {
		if w.state == waiting && w.reserve.Gateway == g.name && w.reserve.Epoch < g.epoch {
			t.dismiss(w)
		}
	}
}

// lapse: "At last + ttl the gauges of that gateway's running requests are freed and their charges stay: they have lapsed."
func (t *Twin) lapse(g *gateway) {
	g.running = false
	for _, r := range t.requests {
		if len(r.admitted) == 0 || r.ended || r.gateway != g.name {
			continue
		}
		r.lapsed, r.lapsedAt = true, t.now
		for _, x := range r.charges {
			if x.held {
				x.held, x.lapsed = false, true
				t.freed(x)
			}
		}
	}
}
