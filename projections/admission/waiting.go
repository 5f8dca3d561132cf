package admission

import (
	"sort"

	"github.com/weirhq/weir/events"
)

// waiter is a reserve on its way to a verdict; one that has to wait is in Fold.waiting.
type waiter struct {
	req      *request
	attempt  int64
	reserve  *events.Reserve
	meters   []*meter // per claim
	seq      uint64
	org      events.Org
	since    int64    // ns: when it came
	arrival  uint64   // its place among all that ever waited; 0 if it never did
	on       []*meter // gauges that it waits on
	deadline timer
	waitMS   int64
	shadow   []int
}

func (w *waiter) verdict(now int64) events.Verdict {
	return events.Verdict{Request: w.req.id, Attempt: w.attempt, Gateway: w.reserve.Gateway, Org: w.org, Seq: w.seq, Time: now, ParkedMS: (now - w.since) / ms}
}

// parks says whether a claim is a gauge on which the request may wait.
func (w *waiter) parks(i int) bool {
	c := &w.reserve.Claims[i]
	return c.Park && c.Kind == events.Gauge && !c.Shadow
}

// behind says whether somebody who came earlier waits on a gauge.
func (w *waiter) behind(m *meter) bool {
	return len(m.waiters) > 0 && m.waiters[0].arrival < w.arrival
}

// park lets a reserve wait on gauges.
func (f *Fold) park(w *waiter, on []*meter) {
	f.arrived++
	w.arrival = f.arrived
	w.on = on
	for _, m := range on {
		m.waiters = append(m.waiters, w)
		f.changed(m)
	}
	f.waiting = append(f.waiting, w)
	a := w.req.attempt(w.attempt)
	a.state, a.waiter = attemptWaiting, w
	w.req.waiters++
	w.deadline = timer{kind: timerPark, waiter: w}
	f.timers.set(&w.deadline, f.now+w.reserve.ParkMS*ms)
}

// leave takes a waiter off all its gauges.
func (f *Fold) leave(w *waiter) {
	for _, m := range w.on {
		f.leaveGauge(w, m)
	}
	w.on = nil
	i := sort.Search(len(f.waiting), func(i int) bool { return f.waiting[i].arrival >= w.arrival })
	f.waiting = append(f.waiting[:i], f.waiting[i+1:]...)
	f.timers.remove(&w.deadline)
	w.req.waiters--
}

func (f *Fold) leaveGauge(w *waiter, m *meter) {
	i := sort.Search(len(m.waiters), func(i int) bool { return m.waiters[i].arrival >= w.arrival })
	m.waiters = append(m.waiters[:i], m.waiters[i+1:]...)
	f.changed(m)
	f.fell(m)
}

// wake goes once, in order of arrival, through those who wait on gauges that fell or were left. Behind a gauge's first waiter
// nobody can pass, so only the first is looked at, then the one after it if it left.
func (f *Fold) wake() {
	var last uint64
	for len(f.fallen) > 0 {
		var next *waiter
		for _, m := range f.fallen {
			if len(m.waiters) > 0 && m.waiters[0].arrival > last && (next == nil || m.waiters[0].arrival < next.arrival) {
				next = m.waiters[0]
			}
		}
		if next == nil {
			break
		}
		last = next.arrival
		f.reconsider(next)
	}
	for _, m := range f.fallen {
		m.hasFallen = false
	}
	f.fallen = f.fallen[:0]
}

// reconsider judges a waiter again, unless somebody before it waits on one of its gauges.
func (f *Fold) reconsider(w *waiter) {
	for i := range w.meters {
		if w.parks(i) && w.behind(w.meters[i]) {
			return
		}
	}
	t := f.try(w)
	switch {
	case t.first < 0:
		f.leave(w)
		f.admitDecided(w, &t)
	case !t.parkable:
		f.leave(w)
		f.refuse(w, w.refusal(t.first, t.failed))
	default:
		for i, m := range w.meters {
			if len(m.waiters) >= maxWaiters && contains(t.over, m) && !contains(w.on, m) {
				f.leave(w)
				f.refuse(w, w.busy(i, m))
				return
			}
		}
		f.waitOn(w, t.over)
	}
}

// waitOn makes a waiter wait on just these gauges.
func (f *Fold) waitOn(w *waiter, over []*meter) {
	was := w.on
	w.on = over
	for _, m := range was {
		if !contains(over, m) {
			f.leaveGauge(w, m)
		}
	}
	for _, m := range over {
		if !contains(was, m) {
			i := sort.Search(len(m.waiters), func(i int) bool { return m.waiters[i].arrival >= w.arrival })
			m.waiters = append(m.waiters, nil)
			copy(m.waiters[i+1:], m.waiters[i:])
			m.waiters[i] = w
			f.changed(m)
		}
	}
}

// expire judges a waiter at its deadline, as one that may not wait and before whom only earlier ones count.
func (f *Fold) expire(w *waiter) {
	t := f.try(w)
	f.leave(w)
	if t.first >= 0 {
		f.refuse(w, w.refusal(t.first, t.failed))
		return
	}
	for i, m := range w.meters {
		if w.parks(i) && w.behind(m) {
			f.refuse(w, w.busy(i, m))
			return
		}
	}
	f.admitDecided(w, &t)
}

// refuseWaiters refuses, in order of arrival, those waiters whose attempt has been released or whose request has ended.
func (f *Fold) refuseWaiters(which func(*waiter) bool) {
	var gone []*waiter
	for _, w := range f.waiting {
		if which(w) {
			gone = append(gone, w)
		}
	}
	for _, w := range gone {
		f.leave(w)
		f.refuse(w, events.Refusal{Claim: -1, Reason: events.Released})
	}
}
