package usage

import (
	"fmt"
	"slices"

	"github.com/weirhq/weir/events"
)

// release notes the ends of attempts.
func (u *Usage) release(d *events.Release) {
	req := u.request(d.Request)
	a := req.find(d.Attempt)
	whole := req.admitted > 0 && d.Of != events.OfAttempt
	if !(whole && d.Of == events.OfLocal) && (a == nil || a.state == ahead || a.state == asked) {
		a = req.attempt(d.Attempt)
		if a.kept < maxKept {
			a.kept++
			a.released = append(a.released, d)
		}
	}
	if d.Of == events.OfLocal || !whole && (a == nil || a.state != admitted) {
		return
	}
	u.released(req, a, d)
	u.drop(req)
}

// released ends an attempt, or with it all of its request.
func (u *Usage) released(req *request, a *attempt, d *events.Release) {
	if d.Of == events.OfLocal {
		return
	}
	if a != nil && a.state == admitted {
		if !a.fixed {
			a.fixed, a.dispatched = true, d.Dispatched
		}
		u.end(req, a)
	}
	if d.Of == events.OfRequest {
		u.endAll(req)
	}
}

func (u *Usage) endAll(req *request) {
	req.ended = true
	for _, a := range req.attempts {
		if a.state == admitted {
			u.end(req, a)
		}
	}
}

// end begins the time within which an attempt's final must come.
func (u *Usage) end(req *request, a *attempt) {
	if a.due != 0 || a.final {
		return
	}
	a.due = u.fold.Now() + settleWithin
	u.due = append(u.due, ending{place{req.id, a.number}, a.due})
}

// unsettle gives lines of attempts whose final has not come in time.
func (u *Usage) unsettle() {
	n := 0
	for ; n < len(u.due) && u.due[n].at <= u.fold.Now(); n++ {
		e := &u.due[n]
		if a := u.requests[e.request].find(e.attempt); a != nil && a.due == e.at {
			u.giveUp(e.request, a, e.at)
		}
	}
	if n > 0 {
		u.due = append(u.due[:0], u.due[n:]...)
	}
}

// giveUp gives the line of an attempt whose final is no longer waited for. One that never reached a backend used nothing.
func (u *Usage) giveUp(id events.RequestID, a *attempt, at int64) {
	if a.final || a.given || a.state != admitted || a.dispatched == events.DispatchedNo {
		return
	}
	l := &a.line
	l.ID, l.Time, l.State = fmt.Sprintf("%s.%d.unsettled", id, a.number), Instant(at), Unsettled
	l.Quality = events.QualityNone.String()
	u.give(a)
}

// forget drops a request that the fold has forgotten: it ended at least 15 minutes ago, though it may have been noticed here a little later.
func (u *Usage) forget(req *request) {
	for _, a := range req.attempts {
		u.giveUp(req.id, a, u.fold.Now())
	}
	delete(u.requests, req.id)
}

// drop forgets a request that can give no further line but by a correction: it has ended, and every attempt of it was refused or has its
// final. What the log says of it again changes nothing in the fold, and makes no line here, as no verdict falls.
func (u *Usage) drop(req *request) {
	if !req.ended && req.admitted > 0 {
		return
	}
	for _, a := range req.attempts {
		if a.state != refused && !(a.state == admitted && a.final) {
			return
		}
	}
	delete(u.requests, req.id)
}

// sweep looks once a minute for requests that ended without a release, and forgets what the fold has surely forgotten.
func (u *Usage) sweep() {
	now := u.fold.Now()
	if now/minute == u.swept {
		return
	}
	if now/Hour != u.swept/60 {
		u.sums.prune(now)
	}
	u.swept = now / minute
	if len(u.requests) == 0 {
		return
	}
	running := map[events.RequestID]bool{}
	for _, g := range u.fold.Gateways() {
		for _, id := range u.fold.Live(g.Gateway) {
			running[id] = true
		}
	}
	var ended []*request
	for id, req := range u.requests {
		switch {
		case req.admitted == 0 && req.touched+strayFor <= now,
			req.admitted > 0 && req.ended && req.touched+openFor <= now:
			delete(u.requests, id)
		case req.admitted > 0 && !req.ended && !running[id]:
			ended = append(ended, req)
		}
	}
	slices.SortFunc(ended, func(a, b *request) int { return cmpIDs(a.id, b.id) })
	for _, req := range ended {
		req.touched = now // its end
		u.endAll(req)
		u.drop(req)
	}
}

func cmpIDs(a, b events.RequestID) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
