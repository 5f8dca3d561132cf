package admission

import "github.com/weirhq/weir/events"

// takeRelease takes a release from the log.
func (f *Fold) takeRelease(d *events.Release) {
	req := f.request(d.Request)
	if req == nil {
		f.keep(d.Request, d.Attempt, d)
		return
	}
	a := req.attempt(d.Attempt)
	state := attemptAhead
	if a != nil {
		state = a.state
	}
	wholeRequest := req.admitted > 0 && d.Of != events.OfAttempt
	if state == attemptAhead && !(wholeRequest && d.Of == events.OfLocal) ||
		state == attemptWaiting && d.Of == events.OfLocal && !wholeRequest {
		f.keep(d.Request, d.Attempt, d)
	}
	switch {
	case wholeRequest, state == attemptAdmitted:
		f.release(req, d)
	case state == attemptWaiting && d.Of != events.OfLocal:
		f.refuseWaiters(func(w *waiter) bool { return w.req == req && w.attempt == d.Attempt })
	}
	f.settle(req)
}

// release folds a release of a request of which an attempt is admitted.
func (f *Fold) release(req *request, d *events.Release) {
	if d.Of == events.OfLocal {
		for i := range req.charges {
			if ch := &req.charges[i]; ch.life == events.LifeLocal {
				f.free(ch, freed)
				ch.frozen = true
			}
		}
		return
	}
	a := req.attempt(d.Attempt)
	if a != nil && a.state == attemptAdmitted && !a.fixed {
		a.fixed, a.dispatched = true, d.Dispatched
	}
	ends := d.Of == events.OfRequest && !req.ended
	if ends {
		f.end(req)
		a = req.attempt(d.Attempt)
	}
	if a != nil && a.state == attemptAdmitted {
		f.releaseAttempt(req, a)
	}
	if d.Of != events.OfRequest {
		return
	}
	if req.unsent() {
		for i := range req.charges {
			if ch := &req.charges[i]; ch.life != events.LifeAttempt && ch.basis != events.BasisRequest && ch.basis != events.BasisSlot {
				f.giveBack(ch)
			}
		}
		f.dropHold(req)
	}
	if ends {
		f.closeHold(req)
	}
}

// releaseAttempt frees an attempt's own gauges, and gives its own charges back if it never was dispatched.
func (f *Fold) releaseAttempt(req *request, a *attempt) {
	for i := range req.charges {
		ch := &req.charges[i]
		if ch.life != events.LifeAttempt || ch.attempt != a.number {
			continue
		}
		f.free(ch, freed)
		if a.dispatched == events.DispatchedNo {
			f.giveBack(ch)
		}
	}
}

// unsent says whether every admitted attempt is known not to have been dispatched.
func (r *request) unsent() bool {
	for i := range r.attempts {
		a := &r.attempts[i]
		if a.state == attemptAdmitted && !(a.fixed && a.dispatched == events.DispatchedNo) {
			return false
		}
	}
	return true
}
