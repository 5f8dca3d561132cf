package twin

import "github.com/weirhq/weir/events"

// wake goes through the waiters: "the waiters on a gauge that has fallen, or that a waiter has left, are gone through once in arrival
// order. One with an earlier waiter on any of its park gauges is left as it is. The others are judged again".
func (t *Twin) wake() {
	for _, w := range append([]*attempt(nil), t.waiters...) {
		if w.state == waiting && t.woken(w) && !t.behind(w) {
			t.judgeAgain(w)
		}
	}
	t.fallen = map[events.Meter]bool{}
}

func (t *Twin) woken(w *attempt) bool {
	for m := range w.waitsOn {
		if t.fallen[m] {
			return true
		}
	}
	return false
}

// behind says whether somebody who came earlier waits on one of w's park gauges.
func (t *Twin) behind(w *attempt) bool {
	for i := range w.reserve.Claims {
		if c := &w.reserve.Claims[i]; parks(c) && t.waitingOn(c.Meter, w) > 0 {
			return true
		}
	}
	return false
}

// waitingOn counts the waiters on a gauge, only those before one if it is given.
func (t *Twin) waitingOn(m events.Meter, before *attempt) int {
	n := 0
	for _, w := range t.waiters {
		if w == before {
			break
		}
		if w.waitsOn[m] {
			n++
		}
	}
	return n
}

// judgeAgain: "another failure - refused now; still over - it waits on just the gauges that are over; else admitted".
func (t *Twin) judgeAgain(w *attempt) {
	d := w.reserve
	failures, shadow := t.judgeAll(d)
	if len(failures) == 0 {
		t.leave(w, nil)
		t.admit(w, shadow)
		return
	}
	over := map[events.Meter]bool{}
	for _, f := range failures {
		if !f.parks {
			t.turnAway(w, failures[0])
			return
		}
		m := d.Claims[f.claim].Meter
		if !w.waitsOn[m] && t.waitingOn(m, nil) >= maxWaiters {
			t.turnAway(w, full(f.claim))
			return
		}
		over[m] = true
	}
	// "A gauge that it no longer waits on counts as left."
	t.leave(w, over)
}

// deadline: "At its deadline a waiter is judged as if `park_ms` were 0, counting only those before it."
func (t *Twin) deadline(w *attempt) {
	d := w.reserve
	failures, shadow := t.judgeAll(d)
	if len(failures) > 0 {
		t.turnAway(w, failures[0])
		return
	}
	for i := range d.Claims {
		if c := &d.Claims[i]; parks(c) && t.waitingOn(c.Meter, w) > 0 {
			t.turnAway(w, full(i))
			return
		}
	}
	t.leave(w, nil)
	t.admit(w, shadow)
}

// turnAway refuses a waiter, naming a claim.
func (t *Twin) turnAway(w *attempt, f failure) {
	t.leave(w, nil)
	t.refuse(w, t.named(w.reserve, f), t.list(w.reserve))
}

// dismiss refuses a waiter as released.
func (t *Twin) dismiss(w *attempt) {
	t.leave(w, nil)
	t.refuse(w, events.Refusal{Claim: -1, Reason: events.Released}, t.list(w.reserve))
}

// leave makes a waiter wait on other gauges, or on none.
func (t *Twin) leave(w *attempt, on map[events.Meter]bool) {
	for m := range w.waitsOn {
		if !on[m] {
			t.fallen[m] = true
		}
	}
	w.waitsOn = on
	if len(on) > 0 {
		return
	}
	var others []*attempt
	for _, x := range t.waiters {
		if x != w {
			others = append(others, x)
		}
	}
	t.waiters = others
}

// dismissOf refuses the waiters of a request, in order of arrival.
func (t *Twin) dismissOf(r *request) {
	for _, w := range append([]*attempt(nil), t.waiters...) {
		if w.of == r {
			t.dismiss(w)
		}
	}
}
