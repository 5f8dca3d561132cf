package admission

import "github.com/weirhq/weir/events"

// takeTrueUp takes a true-up from the log.
func (f *Fold) takeTrueUp(d *events.TrueUp) {
	if d.Fault != "" {
		f.Counts.OutOfRange++
		return
	}
	req := f.request(d.Request)
	if req == nil {
		f.keep(d.Request, d.Attempt, d)
		return
	}
	a := req.attempt(d.Attempt)
	switch {
	case a == nil || a.state == attemptAhead || a.state == attemptWaiting:
		f.keep(d.Request, d.Attempt, d)
		return
	case a.state == attemptAdmitted:
		f.trueUp(req, d)
	}
	f.settle(req)
}

// trueUp folds a true-up of an admitted attempt.
func (f *Fold) trueUp(req *request, d *events.TrueUp) {
	a := req.attempt(d.Attempt)
	n := d.N
	if n == 0 {
		n = a.last + 1
	}
	if n <= a.last || a.final {
		f.Counts.Late++
		return
	}
	a.last = n
	if a.fixed && a.dispatched == events.DispatchedNo {
		if !d.Final {
			return
		}
		f.putBack(req, a)
	}
	for i := range d.Charges {
		a.setValue(value{f.basis(d.Charges[i].Basis), d.Charges[i].Amount, d.Final})
	}
	if d.Final {
		a.final, a.fixed, a.dispatched = true, true, events.DispatchedYes
	}
	for i := range req.charges {
		f.correct(req, &req.charges[i], a, d)
	}
	if !d.Final {
		return
	}
	f.debit(req, d.CostNano)
	if req.ended {
		f.dropHold(req)
	}
}

// correct moves one charge to what a true-up of attempt a makes of it.
func (f *Fold) correct(req *request, ch *charge, a *attempt, d *events.TrueUp) {
	kind := ch.meter.kind
	if ch.frozen || kind == events.Balance || ch.basis == events.BasisRequest || ch.basis == events.BasisSlot {
		return
	}
	if ch.life == events.LifeAttempt && ch.attempt != a.number || !names(d.Charges, ch.basis) {
		return
	}
	onlyFinals := kind == events.Bucket && ch.basis == events.BasisOutput
	if onlyFinals && !d.Final {
		return
	}
	target := int64(0)
	if ch.basis == events.BasisFootprint || ch.life == events.LifeAttempt {
		target = ch.worth(a, onlyFinals)
	} else {
		for i := range req.attempts {
			target = add(target, ch.worth(&req.attempts[i], onlyFinals))
		}
	}
	current := ch.amount
	if ch.back {
		current = 0
	}
	sets := d.Quality == events.QualityExact || d.Final && ch.basis == events.BasisCost && d.Quality != events.QualityNone
	if !sets && target <= current {
		return
	}
	ch.amount, ch.back = target, false
	f.shift(ch, add(target, -current))
}

// worth gives what an attempt's last value comes to for a charge.
func (ch *charge) worth(a *attempt, onlyFinals bool) int64 {
	v := a.value(ch.basis)
	switch {
	case !onlyFinals:
		return v.amount
	case !v.final:
		return 0
	}
	return min(v.amount, ch.limit)
}

func names(charges []events.Charge, basis string) bool {
	for i := range charges {
		if charges[i].Basis == basis {
			return true
		}
	}
	return false
}

// giveBack takes a charge off its meter, if its kind is given back.
func (f *Fold) giveBack(ch *charge) {
	switch ch.meter.kind {
	case events.Window, events.Bucket, events.Budget:
		if !ch.back && !ch.frozen {
			ch.back = true
			f.shift(ch, -ch.amount)
		}
	}
}

// putBack undoes what was given back because attempt a had been thought not dispatched.
func (f *Fold) putBack(req *request, a *attempt) {
	for i := range req.charges {
		ch := &req.charges[i]
		if ch.back && (ch.life != events.LifeAttempt || ch.attempt == a.number) {
			ch.back = false
			f.shift(ch, ch.amount)
		}
	}
}
