package twin

import "github.com/weirhq/weir/events"

// foldTrueUp: "A true-up or release of an attempt that is not known yet, or that waits, is kept for it and folded when it is admitted,
// dropped when it is refused; of a refused one, ignored."
func (t *Twin) foldTrueUp(d *events.TrueUp) {
	a := t.request(d.Request).attempt(d.Attempt)
	switch a.state {
	case unseen, waiting:
		a.kept, a.of.early = append(a.kept, d), t.now
	case admitted:
		t.trueUp(a, d)
	case refused:
	}
}

// trueUp folds a true-up of an admitted attempt.
func (t *Twin) trueUp(a *attempt, d *events.TrueUp) {
	// "one whose `n` (default: the next) is not above the highest folded is ignored, as is all after the attempt's `final`"
	n := d.N
	if n == 0 {
		n = a.highest + 1
	}
	if a.final || n <= a.highest {
		return
	}
	a.highest = n
	if a.dispatched == events.DispatchedNo {
		// "After a `dispatched: no` release, a non-final is ignored (its `n` counts); a final proves the guess wrong: what was given
		// back is put back first"
		if !d.Final {
			return
		}
		for _, x := range a.of.charges {
			if x.life != events.LifeAttempt || x.attempt == a.n {
				t.putBack(x)
			}
		}
	}
	if d.Final {
		// "a final before it makes it `yes`"
		a.final, a.fixed, a.dispatched = true, true, events.DispatchedYes
	}
	for _, c := range d.Charges {
		a.values[c.Basis] = c.Amount
		if d.Final {
			a.finals[c.Basis] = c.Amount
		}
	}
	for _, c := range d.Charges {
		for _, x := range a.of.charges {
			if x.basis == c.Basis {
				t.adjust(a, x, d)
			}
		}
	}
	if d.Final {
		t.debit(a.of, d.CostNano)
	}
	t.settle(a.of)
}

// adjust changes one charge by a true-up of attempt a that names its basis.
func (t *Twin) adjust(a *attempt, x *charge, d *events.TrueUp) {
	switch {
	case x.life == events.LifeAttempt && x.attempt != a.n: // "attempt-life claims: of that attempt only"
		return
	case x.basis == events.BasisRequest, x.basis == events.BasisSlot, x.kind == events.Balance: // "never change"
		return
	case x.frozen: // "no true-up, no return"
		return
	case x.kind == events.Bucket && x.basis == events.BasisOutput && !d.Final: // "takes only finals"
		return
	}
	value := t.valueOf(a, x)
	// "quality `exact` sets it, up or down, and so does any final but `none` for basis `cost`; any other only raises"
	sets := d.Quality == events.QualityExact || d.Final && d.Quality != events.QualityNone && x.basis == events.BasisCost
	if value == x.value || !sets && value < x.value {
		return
	}
	// "a window changes in the bucket it was charged to, if that is still live; a budget if its period still runs; […] a gauge while it
	// is held (while lapsed only the value that will come back)"
	switch {
	case x.lapsed:
		x.value = value
	case t.live(x):
		t.set(x, value)
		x.back = 0 // the rules are silent: what was given back is 0, and what is known now takes its place
	}
}

// valueOf gives a charge's new value: "the sum over the request's attempts of the last value folded for each […]; for `footprint`, and
// for an attempt-life claim, just this value"; of an output bucket "only finals, each with at most its limit".
func (t *Twin) valueOf(a *attempt, x *charge) int64 {
	value := func(a *attempt) int64 {
		if x.kind == events.Bucket && x.basis == events.BasisOutput {
			return min(a.finals[x.basis], x.limit)
		}
		return a.values[x.basis]
	}
	if x.basis == events.BasisFootprint || x.life == events.LifeAttempt {
		return value(a)
	}
	sum := int64(0)
	for _, other := range a.of.admitted {
		sum = add(sum, value(other))
	}
	return sum
}

// debit: "A final debits `cost_nano` from the total of the request's balance claim (always, once an attempt) and lowers the hold by as
// much, not below 0; if the request has ended, what is left of the hold goes."
func (t *Twin) debit(r *request, cost int64) {
	if r.hold == nil {
		return
	}
	t.totals[r.hold.meter] = add(t.totals[r.hold.meter], -cost)
	r.hold.value = max(0, r.hold.value-cost)
	if r.ended {
		t.dropHold(r)
	}
}

func (t *Twin) dropHold(r *request) {
	if r.hold != nil {
		r.hold.value = 0
	}
}

// settle: "Of a request that is released, with a final for every admitted attempt, the ids are enough until then: nothing changes it
// any more." However it ended: a release of what has ended and has its finals changes nothing either. But not while something is kept for an
// attempt that is still to come.
func (t *Twin) settle(r *request) {
	if !r.ended {
		return
	}
	for _, a := range r.attempts {
		if a.state == admitted && !a.final || len(a.kept) > 0 {
			return
		}
	}
	r.charges, r.hold = nil, nil
	for _, a := range r.admitted {
		a.settled, a.values, a.finals = true, map[string]int64{}, map[string]int64{}
	}
}

func (t *Twin) foldRelease(d *events.Release) {
	r := t.request(d.Request)
	a := r.attempt(d.Attempt)
	// "Once an attempt of it is admitted, `local` and `request` act on the request whatever attempt they name." "While no attempt of a
	// request is admitted, `of: request` means its attempt alone."
	if len(r.admitted) > 0 && d.Of == events.OfLocal {
		t.leaveLocal(r)
		return
	}
	whole := len(r.admitted) > 0 && d.Of == events.OfRequest
	switch a.state {
	case unseen:
		a.kept, r.early = append(a.kept, d), t.now
		if whole {
			t.releaseRequest(r, nil)
		}
	case waiting:
		switch {
		case whole:
			t.releaseRequest(r, nil)
		case d.Of == events.OfLocal:
			a.kept = append(a.kept, d)
		default: // "A release (not `local`) of a waiter ends it: refused `released`."
			t.dismiss(a)
		}
	case admitted:
		t.release(a, d)
	case refused:
		if whole {
			t.releaseRequest(r, nil)
		}
	}
}

// release folds a release of an admitted attempt.
func (t *Twin) release(a *attempt, d *events.Release) {
	r := a.of
	if d.Of == events.OfLocal {
		t.leaveLocal(r)
		return
	}
	// "The first release of an attempt (not `local`) fixes its `dispatched`"
	first := !a.fixed
	if first {
		a.fixed, a.dispatched = true, d.Dispatched
	}
	gives := a
	if !first || a.dispatched != events.DispatchedNo {
		gives = nil
	}
	if d.Of == events.OfRequest {
		t.releaseRequest(r, gives)
		return
	}
	// "`of: attempt`: that attempt's attempt-life gauges are freed."
	for _, x := range r.charges {
		if x.kind == events.Gauge && x.life == events.LifeAttempt && x.attempt == a.n {
			t.free(x)
		}
	}
	t.giveBackAttempt(gives)
	t.settle(r)
}

// leaveLocal: "the local-life gauges it holds are freed, its local-life charges frozen (no true-up, no return)".
func (t *Twin) leaveLocal(r *request) {
	for _, x := range r.charges {
		if x.life == events.LifeLocal && x.kind != events.Balance {
			if x.kind == events.Gauge {
				t.free(x)
			}
			x.frozen = true
		}
	}
}

// releaseRequest ends a request by a release; gives is the attempt that it proves not dispatched, or nil.
func (t *Twin) releaseRequest(r *request, gives *attempt) {
	if !r.ended {
		t.end(r)
	}
	t.giveBackAttempt(gives)
	// "When a release `of: request` is folded and every admitted attempt is `no`: also the request- and local-life ones, except basis
	// `request` and `slot`, and the hold."
	all := true
	for _, a := range r.admitted {
		all = all && a.dispatched == events.DispatchedNo
	}
	if all {
		for _, x := range r.charges {
			if x.life != events.LifeAttempt && x.basis != events.BasisRequest && x.basis != events.BasisSlot && !x.frozen || x.kind == events.Balance {
				t.giveBackUnlessGauge(x)
			}
		}
	}
	t.settle(r)
}

// giveBackAttempt: "`no` gives back that attempt's attempt-life window, bucket and budget charges."
func (t *Twin) giveBackAttempt(a *attempt) {
	if a == nil {
		return
	}
	for _, x := range a.of.charges {
		if x.life == events.LifeAttempt && x.attempt == a.n && x.kind != events.Balance {
			t.giveBackUnlessGauge(x)
		}
	}
}

func (t *Twin) giveBackUnlessGauge(x *charge) {
	if x.kind != events.Gauge {
		t.giveBack(x)
	}
}

// end ends a request: "However a request ends, its gauges are freed first, then its waiters are refused `released` in arrival order,
// then charges are given back." "A hold is closed when the request ends with any attempt final".
func (t *Twin) end(r *request) {
	r.ended, r.endedAt, r.lapsed = true, t.now, false
	for _, x := range r.charges {
		t.free(x)
	}
	t.dismissOf(r)
	for _, a := range r.admitted {
		if a.final {
			t.dropHold(r)
		}
	}
	t.settle(r)
}
