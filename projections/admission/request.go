package admission

import (
	"strings"

	"github.com/weirhq/weir/events"
)

func cloneString(s string) string { return strings.Clone(s) }

// request is what the fold knows of a request that can still change.
type request struct {
	id        events.RequestID
	attempts  []attempt
	charges   []charge // of all admitted attempts, in the order of their claims
	gateway   *gateway // of the first admitted attempt; nil before
	epoch     int64
	order     uint64 // place of the first admitted attempt's reserve in the log
	place     int    // in gateway.running, from 1; 0 when not running
	admitted  int    // attempts
	waiters   int    // attempts that wait
	maxAt     int64  // ns: when it ends by itself
	ended     bool
	idleSince int64 // ns: since when it could be forgotten
	endedAt   int64
	balance   *meter
	hold      int64
	endTimer  timer
	holdTimer timer
}

func (r *request) running() bool { return r.place > 0 }

// attemptState says how far an attempt has come.
type attemptState uint8

const (
	attemptAhead   attemptState = iota // only its true-ups or releases have come
	attemptWaiting                     //
	attemptAdmitted
	attemptRefused
)

// attempt is one try of a request.
type attempt struct {
	number     int64
	state      attemptState
	dispatched events.Dispatched
	fixed      bool // dispatched can no longer change, but by a final
	final      bool
	last       int64         // highest n folded
	values     []value       // last value folded for each basis
	kept       []events.Data // true-ups and releases that came before it was admitted
	waiter     *waiter
}

// value is what a true-up said of a basis.
type value struct {
	basis  string
	amount int64
	final  bool // said by the final
}

// value gives the last value folded for a basis.
func (a *attempt) value(basis string) value {
	for i := range a.values {
		if a.values[i].basis == basis {
			return a.values[i]
		}
	}
	return value{}
}

func (a *attempt) setValue(v value) {
	for i := range a.values {
		if a.values[i].basis == v.basis {
			a.values[i] = v
			return
		}
	}
	a.values = append(a.values, v)
}

func (r *request) attempt(number int64) *attempt {
	for i := range r.attempts {
		if r.attempts[i].number == number {
			return &r.attempts[i]
		}
	}
	return nil
}

// anyFinal says whether an admitted attempt has had its final.
func (r *request) anyFinal() bool {
	for i := range r.attempts {
		if r.attempts[i].state == attemptAdmitted && r.attempts[i].final {
			return true
		}
	}
	return false
}

// request gives a request that can change, bringing back one of which only the ids are left; nil if it is not known.
func (f *Fold) request(id events.RequestID) *request {
	if req := f.requests[id]; req != nil {
		return req
	}
	return f.revive(id)
}

func (f *Fold) newRequest(id events.RequestID) *request {
	req := f.recycled()
	req.id = events.RequestID(cloneString(string(id)))
	req.endTimer = timer{kind: timerEnd, request: req}
	req.holdTimer = timer{kind: timerHold, request: req}
	f.requests[req.id] = req
	f.peakRequests = max(f.peakRequests, len(f.requests))
	return req
}

// known gives a request's attempt, making both if they are new.
func (f *Fold) known(id events.RequestID, number int64) (*request, *attempt) {
	req := f.request(id)
	if req == nil {
		req = f.newRequest(id)
	}
	if a := req.attempt(number); a != nil {
		return req, a
	}
	req.attempts = append(req.attempts, attempt{number: number})
	return req, &req.attempts[len(req.attempts)-1]
}

// keep sets a true-up or release aside until its attempt is admitted.
func (f *Fold) keep(id events.RequestID, number int64, d events.Data) {
	req, a := f.known(id, number)
	if len(a.kept) >= maxKept {
		f.Counts.Orphans++
		return
	}
	a.kept = append(a.kept, d)
	req.idleSince = max(req.idleSince, f.now)
}

// end ends a request: its gauges are freed first, then its waiters refused. Charges and the hold are the caller's.
func (f *Fold) end(req *request) {
	if req.ended {
		return
	}
	req.ended, req.endedAt = true, f.now
	req.idleSince = max(req.idleSince, f.now)
	f.timers.remove(&req.endTimer)
	req.gateway.drop(req)
	for i := range req.charges {
		f.free(&req.charges[i], freed)
	}
	f.refuseWaiters(func(w *waiter) bool { return w.req == req })
}

// endRequest ends a request that its time, its lapse or a higher epoch has ended.
func (f *Fold) endRequest(req *request) {
	f.noteLapse(req, events.LapseEnded)
	f.end(req)
	f.closeHold(req)
	f.settle(req)
}

// closeHold closes the hold of a request that ends with a final, and lets any other run for an hour.
func (f *Fold) closeHold(req *request) {
	if req.anyFinal() {
		f.dropHold(req)
	}
	f.holdOn(req)
}

// holdOn lets what an ended request holds run until an hour after its end.
func (f *Fold) holdOn(req *request) {
	if req.hold > 0 {
		f.timers.set(&req.holdTimer, req.endedAt+holdDrops)
	}
}

// settle keeps only the ids of a request that nothing can change any more.
func (f *Fold) settle(req *request) {
	if req.running() || req.waiters > 0 || req.hold != 0 || len(req.attempts) == 0 || f.requests[req.id] != req {
		return
	}
	s := settled{since: req.idleSince, endedAt: req.endedAt}
	for i := range req.attempts {
		a := &req.attempts[i]
		if a.number < 0 || a.number >= 64 || len(a.kept) > 0 {
			return
		}
		switch {
		case a.state == attemptRefused:
			s.refused |= 1 << a.number
		case a.state == attemptAdmitted && a.final && req.ended:
			s.admitted |= 1 << a.number
		default:
			return
		}
	}
	delete(f.requests, req.id)
	f.settled.put(req.id, s)
	f.recycle(req)
}

// recycle keeps a settled request's memory for the next one; nothing refers to it any more.
func (f *Fold) recycle(req *request) {
	if len(f.spare) >= maxSpare || cap(req.charges) > events.MaxClaims {
		return
	}
	attempts, charges := req.attempts[:0], req.charges[:0]
	clear(attempts[:cap(attempts)])
	clear(charges[:cap(charges)])
	*req = request{attempts: attempts, charges: charges}
	f.spare = append(f.spare, req)
}

func (f *Fold) recycled() *request {
	if n := len(f.spare); n > 0 {
		req := f.spare[n-1]
		f.spare[n-1] = nil
		f.spare = f.spare[:n-1]
		return req
	}
	return &request{}
}

// revive makes a request of its ids.
func (f *Fold) revive(id events.RequestID) *request {
	s, ok := f.settled.get(id)
	if !ok {
		return nil
	}
	f.settled.remove(id)
	req := f.newRequest(id)
	req.ended, req.idleSince, req.endedAt = s.endedAt != 0, s.since, s.endedAt
	for n := int64(0); n < 64; n++ {
		a := attempt{number: n}
		switch bit := uint64(1) << n; {
		case s.refused&bit != 0:
			a.state = attemptRefused
		case s.admitted&bit != 0:
			a.state, a.final, a.fixed, a.dispatched = attemptAdmitted, true, true, events.DispatchedYes
			req.admitted++
		default:
			continue
		}
		req.attempts = append(req.attempts, a)
	}
	return req
}
