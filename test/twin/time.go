package twin

import (
	"sort"

	"github.com/weirhq/weir/events"
)

// moveTime brings now to a line's stream time and lets everything that was due until then happen.
func (t *Twin) moveTime(at int64) {
	if !t.started {
		t.started, t.lastT, t.now = true, at, at
		t.forgotten = floorDiv(t.now, forgetEvery) * forgetEvery
		return
	}
	// "a t lower than the line's before raises skew by the difference (so time goes on, at once, where it was), any other lowers it
	// by a tenth of the time passed (integer ns, not below 0)"
	if passed := at - t.lastT; passed < 0 {
		t.skew -= passed
	} else {
		t.skew = max(0, t.skew-passed/10)
	}
	t.lastT = at
	target := at + t.skew

	// "When more than 2,000 ms of `now` lie between two lines nobody could renew: before anything else every running lease moves on by
	// the whole gap."
	if gap := target - t.now; gap > silence {
		for _, g := range t.gateways {
			if g.running {
				g.end += gap
			}
		}
	}
	// "Before an event at t, timers due at or before t fire […], each with `now` at its own instant, each followed by the waiters that
	// it wakes"
	for {
		next, due := t.nextTimer()
		due = due && next.at <= target
		if due {
			t.forgetBefore(next.at) // what is forgotten at an instant is so after that instant's timers
			t.now = max(t.now, next.at)
			next.fire()
			t.wake()
			continue
		}
		t.forgetBefore(target + 1)
		t.now = target
		return
	}
}

// NextTimer gives the instant at which something falls due without any event, ns in the fold's time.
func (t *Twin) NextTimer() (at int64, is bool) {
	next, is := t.nextTimer()
	return next.at, is
}

// timer is something that happens when nothing comes.
type timer struct {
	at   int64
	kind int // 1 a lease ends, 2 a parking deadline, 3 a request ends, 4 a hold is dropped
	name string
	seq  uint64
	n    int // place in the pack
	fire func()
}

// nextTimer looks at everything: "in order of (instant, kind, who)".
func (t *Twin) nextTimer() (timer, bool) {
	var all []timer
	for name, g := range t.gateways {
		if g.running {
			all = append(all, timer{at: g.end, kind: 1, name: string(name), fire: func() { t.lapse(g) }})
		}
	}
	for _, w := range t.waiters {
		all = append(all, timer{at: w.arrived + w.reserve.ParkMS*ms, kind: 2, seq: w.seq, n: w.index, fire: func() { t.deadline(w) }})
	}
	for id, r := range t.requests {
		switch {
		case r.ended && r.hold != nil && r.hold.value > 0:
			all = append(all, timer{at: r.endedAt + holdOutlives, kind: 4, name: string(id), fire: func() { t.dropHold(r) }})
		case !r.ended && len(r.admitted) > 0:
			at := r.began + r.maxMS*ms
			if r.lapsed {
				at = min(at, r.lapsedAt+lapseEnds)
			}
			all = append(all, timer{at: at, kind: 3, name: string(id), fire: func() { t.end(r) }})
		}
	}
	if len(all) == 0 {
		return timer{}, false
	}
	sort.Slice(all, func(i, j int) bool { return all[i].before(all[j]) })
	return all[0], true
}

func (a timer) before(b timer) bool {
	switch {
	case a.at != b.at:
		return a.at < b.at
	case a.kind != b.kind:
		return a.kind < b.kind
	case a.name != b.name:
		return a.name < b.name
	case a.seq != b.seq:
		return a.seq < b.seq
	}
	return a.n < b.n
}

// forgetBefore forgets at the last multiple of five minutes before an instant: nothing changes between timers, so what could be
// forgotten at an earlier multiple can be at this one.
func (t *Twin) forgetBefore(instant int64) {
	at := floorDiv(instant-1, forgetEvery) * forgetEvery
	if at <= t.forgotten {
		return
	}
	t.forgotten = at
	t.now = max(t.now, at)
	// "a meter since when it was last not empty […] Never forgotten: fences, credit references, epochs, balances."
	for name, m := range t.meters {
		if m.kind != events.Balance && m.emptyFrom <= at-forgetAfter {
			delete(t.meters, name)
		}
	}
	// "a request since it ended or its last attempt was refused, but not while it has a hold"
	for id, r := range t.requests {
		if r.hold != nil && r.hold.value > 0 {
			continue
		}
		if since, is := r.over(); is && since <= at-forgetAfter {
			delete(t.requests, id)
		}
	}
}

// over says since when nothing is left of a request but its memory: "since it ended or its last attempt was refused", the later. The
// rules do not speak of true-ups and releases of attempts that never came; the last of them counts as a refusal does.
func (r *request) over() (since int64, is bool) {
	if r.busy() && !r.ended {
		return 0, false
	}
	return max(r.endedAt, r.refusal, r.early), true // 0 is never
}

// busy says whether an attempt was admitted or waits.
func (r *request) busy() bool {
	for _, a := range r.attempts {
		if a.state == waiting || a.state == admitted {
			return true
		}
	}
	return false
}
