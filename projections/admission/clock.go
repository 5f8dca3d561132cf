package admission

import "github.com/weirhq/weir/events"

// advance moves time to that of a record, and fires what falls due on the way. A clock that steps back stands still here, and the time
// that was added for it is taken back by a tenth of what passes.
func (f *Fold) advance(t int64) {
	if !f.started {
		f.started = true
		f.now, f.last = t, t
		f.nextSweep = (t/sweepEvery + 1) * sweepEvery
		return
	}
	if passed := t - f.last; passed < 0 {
		f.Counts.Backwards++
		f.skew -= passed
	} else {
		f.skew = max(0, f.skew-passed/10)
	}
	f.last = t
	target := t + f.skew
	if gap := target - f.now; gap > silence {
		for _, g := range f.gateways {
			if !g.lapsed {
				g.end += gap
			}
		}
	}
	f.fire(target)
	f.now = target
}

// fire lets everything happen that is due at or before target, each at its own instant.
func (f *Fold) fire(target int64) {
	for {
		f.settleLeaseTimer()
		if len(f.timers) == 0 || f.timers[0].at > target {
			f.sweepBefore(target + 1)
			return
		}
		t := f.timers[0]
		f.sweepBefore(t.at)
		f.now = max(f.now, t.at)
		f.timers.remove(t)
		switch t.kind {
		case timerLease:
			f.lapse(t.gateway)
		case timerPark:
			f.expire(t.waiter)
		case timerEnd:
			f.endRequest(t.request)
		case timerHold:
			f.dropHold(t.request)
			f.settle(t.request)
		}
		f.wake()
	}
}

// settleLeaseTimer moves lease timers on the top to where their leases end: renewals do not move them, as they come by the thousand.
func (f *Fold) settleLeaseTimer() {
	for len(f.timers) > 0 {
		t := f.timers[0]
		if t.kind != timerLease || t.at >= t.gateway.end {
			return
		}
		f.timers.move(t, t.gateway.end)
	}
}

// sweepBefore forgets idle state at the last sweeping instant before t. The ones before that one would have forgotten part of the same.
func (f *Fold) sweepBefore(t int64) {
	if f.nextSweep >= t {
		return
	}
	at := (t - 1) / sweepEvery * sweepEvery
	f.nextSweep = at + sweepEvery
	f.forget(at)
}

// forget removes what has been idle for long enough at an instant.
func (f *Fold) forget(at int64) {
	for name, m := range f.meters {
		if m.kind == events.Balance || len(m.waiters) > 0 {
			continue
		}
		if since, empty := m.emptySince(at); empty && since+forgetAfter <= at {
			m.forgotten = true
			delete(f.meters, name)
		}
	}
	for id, req := range f.requests {
		if req.hold == 0 && req.idleSince > 0 && req.idleSince+forgetAfter <= at && !req.running() && req.waiters == 0 {
			delete(f.requests, id)
		}
	}
	f.settled.forget(at - forgetAfter)
	f.meters = shrunk(f.meters, &f.peakMeters)
	f.requests = shrunk(f.requests, &f.peakRequests)
}

// timerKind orders timers that are due at the same instant.
type timerKind uint8

const (
	timerLease timerKind = 1 + iota
	timerPark
	timerEnd
	timerHold
)

// timer is something that will happen by itself.
type timer struct {
	at      int64
	kind    timerKind
	place   int // in the heap, from 1; 0 when not in it
	gateway *gateway
	waiter  *waiter
	request *request
}

// before orders timers by (instant, kind, who).
func (t *timer) before(u *timer) bool {
	if t.at != u.at {
		return t.at < u.at
	}
	if t.kind != u.kind {
		return t.kind < u.kind
	}
	switch t.kind {
	case timerLease:
		return t.gateway.name < u.gateway.name
	case timerPark:
		return t.waiter.arrival < u.waiter.arrival
	default:
		return t.request.id < u.request.id
	}
}

// timerHeap is a binary heap of timers that know their places.
type timerHeap []*timer

// set puts t in the heap at an instant, or moves it there.
func (h *timerHeap) set(t *timer, at int64) {
	if t.place > 0 {
		h.move(t, at)
		return
	}
	t.at = at
	*h = append(*h, t)
	t.place = len(*h)
	h.up(len(*h) - 1)
}

func (h *timerHeap) move(t *timer, at int64) {
	t.at = at
	h.down(h.up(t.place - 1))
}

// remove takes t out, if it is in.
func (h *timerHeap) remove(t *timer) {
	if t.place == 0 {
		return
	}
	i, last := t.place-1, len(*h)-1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	t.place = 0
	if i < last {
		h.down(h.up(i))
	}
}

func (h timerHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

func (h timerHeap) up(i int) int {
	for i > 0 {
		parent := (i - 1) / 2
		if !h[i].before(h[parent]) {
			break
		}
		h.swap(i, parent)
		i = parent
	}
	return i
}

func (h timerHeap) down(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(h); c++ {
			if h[c].before(h[least]) {
				least = c
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}
