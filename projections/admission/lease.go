package admission

import (
	"sort"

	"github.com/weirhq/weir/events"
)

// gateway is a gateway's lease and what it holds.
type gateway struct {
	name    events.Gateway
	epoch   int64
	ttl     int64 // ns
	end     int64 // ns: when the lease ends unless it is renewed
	lapsed  bool
	running []*request // in no order
	timer   timer
}

// drop takes a request off those running.
func (g *gateway) drop(req *request) {
	if req.place == 0 {
		return
	}
	last := len(g.running) - 1
	g.running[req.place-1] = g.running[last]
	g.running[req.place-1].place = req.place
	g.running[last] = nil
	g.running = g.running[:last]
	req.place = 0
}

// announce takes a lease event.
func (f *Fold) announce(d *events.Lease) {
	ttl := d.TTLMS
	if ttl == 0 {
		ttl = events.DefaultTTLMS
	}
	f.renew(d.Gateway, d.Epoch, min(max(ttl, events.MinTTLMS), events.MaxTTLMS)*ms)
}

// renew takes a sign of life of a gateway's epoch. A ttl of 0 keeps the one announced before.
func (f *Fold) renew(name events.Gateway, epoch, ttl int64) {
	g := f.gateways[name]
	if g == nil {
		g = &gateway{name: events.Gateway(cloneString(string(name))), epoch: epoch, ttl: events.DefaultTTLMS * ms}
		g.timer = timer{kind: timerLease, gateway: g}
		f.gateways[g.name] = g
	}
	if epoch < g.epoch {
		return
	}
	if epoch > g.epoch {
		f.supersede(g, epoch)
	}
	if ttl > 0 {
		g.ttl = ttl
	}
	g.end = f.now + g.ttl
	if g.lapsed {
		g.lapsed = false
		f.comeBack(g)
	}
	if g.timer.place == 0 || g.end < g.timer.at {
		f.timers.set(&g.timer, g.end) // a later end is moved to when the timer comes up
	}
}

// supersede ends the requests of lower epochs, in the order of the log, and refuses their waiters.
func (f *Fold) supersede(g *gateway, epoch int64) {
	g.epoch, g.lapsed = epoch, false
	old := append([]*request(nil), g.running...)
	sort.Slice(old, func(i, j int) bool { return old[i].order < old[j].order })
	for _, req := range old {
		f.endRequest(req)
	}
	f.refuseWaiters(func(w *waiter) bool { return w.reserve.Gateway == g.name && w.reserve.Epoch < epoch })
}

// lapse ends a lease: what it holds is freed, but may come back.
func (f *Fold) lapse(g *gateway) {
	f.Counts.Lapses++
	g.lapsed = true
	for _, req := range g.running {
		f.noteLapse(req, events.LapseBegan)
		for i := range req.charges {
			f.free(&req.charges[i], lapsed)
		}
		f.timers.set(&req.endTimer, min(req.maxAt, f.now+lapseEnds))
	}
}

// comeBack puts back what a lapse had freed.
func (f *Fold) comeBack(g *gateway) {
	for _, req := range g.running {
		f.noteLapse(req, events.LapseOver)
		for i := range req.charges {
			f.hold(&req.charges[i])
		}
		f.timers.set(&req.endTimer, req.maxAt)
	}
}
