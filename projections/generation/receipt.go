package generation

import (
	"github.com/weirhq/weir/events"
)

// takeTrueUp takes in a true-up by the rules of the admission fold, so that a receipt says what the fold charged.
func (g *Generations) takeTrueUp(rec *Record, at int64, d *events.TrueUp) {
	a := rec.attempt(d.Attempt)
	if unclear := rec.unclear(d.Attempt); a == nil || unclear {
		g.early(rec, at, d, unclear)
		return
	}
	n := d.N
	if n == 0 {
		n = a.TrueUps + 1
	}
	if a.Verdict == VerdictRefused || a.Final || n <= a.TrueUps {
		return
	}
	a.TrueUps = n
	if a.unsent() {
		if !d.Final {
			return
		}
		rec.putBack(a)
	}
	if a.Charges == nil {
		a.Charges = make(map[string]int64, len(d.Charges))
	}
	for i := range d.Charges {
		if _, has := a.Charges[d.Charges[i].Basis]; !has && len(a.Charges) >= maxBases {
			g.drop(rec)
			continue
		}
		a.Charges[d.Charges[i].Basis] = d.Charges[i].Amount
	}
	a.known(d)
	for i := range rec.Attempts {
		rec.Attempts[i].correct(rec, a, d)
	}
	rec.settle()
}

// known takes in what a true-up says of usage and cost.
func (a *Attempt) known(d *events.TrueUp) {
	a.UsageQuality = d.Quality.String()
	if d.Usage != (events.Usage{}) || d.Final && d.Quality != events.QualityNone {
		usage := d.Usage
		a.Usage = &usage
	}
	if d.PriceVersion != "" {
		a.PriceVersion = d.PriceVersion
	}
	if d.Final {
		a.Final = true
		a.CostNano, a.ListNano = number(d.CostNano), d.ListNano
	}
}

// correct moves the charges of attempt a to what a true-up of the attempt by makes of them.
func (a *Attempt) correct(rec *Record, by *Attempt, d *events.TrueUp) {
	if a.Verdict == VerdictRefused {
		return
	}
	for i := range a.Claims {
		c := &a.Claims[i]
		if c.Counts == balance && d.Final {
			c.debit(d.CostNano)
			continue
		}
		if c.Settled == nil || c.Frozen || c.Basis == events.BasisRequest || c.Basis == events.BasisSlot || c.Counts == balance {
			continue
		}
		alone := c.Life == lifeAttempt
		if alone && a != by || !names(d.Charges, c.Basis) || c.onlyFinals() && !d.Final {
			continue
		}
		target := int64(0)
		for k := range rec.Attempts {
			if other := &rec.Attempts[k]; other == by || !alone && c.Basis != events.BasisFootprint {
				target += c.worth(other)
			}
		}
		current := *c.Settled
		sets := d.Quality == events.QualityExact || d.Final && c.Basis == events.BasisCost && d.Quality != events.QualityNone
		if sets || target > current {
			c.Settled, c.Returned = number(target), nil
		}
	}
}

var (
	balance     = events.Balance.String()
	bucket      = events.Bucket.String()
	window      = events.Window.String()
	budget      = events.Budget.String()
	lifeAttempt = events.LifeAttempt.String()
	lifeLocal   = events.LifeLocal.String()
)

func (c *Claim) onlyFinals() bool { return c.Counts == bucket && c.Basis == events.BasisOutput }

// worth gives what an attempt's last value comes to for a claim.
func (c *Claim) worth(a *Attempt) int64 {
	if !c.onlyFinals() {
		return a.Charges[c.Basis]
	}
	if !a.Final || c.Limit == nil {
		return 0
	}
	return min(a.Charges[c.Basis], *c.Limit)
}

// debit adds a final's cost to what a balance was debited.
func (c *Claim) debit(cost int64) {
	if c.Settled != nil {
		cost += *c.Settled
	}
	c.Settled, c.Returned = number(cost), nil
}

func names(charges []events.Charge, basis string) bool {
	for i := range charges {
		if charges[i].Basis == basis {
			return true
		}
	}
	return false
}

// unsent says whether the attempt is known not to have been dispatched.
func (a *Attempt) unsent() bool {
	return !a.Final && a.Released != nil && a.Released.Dispatched == events.DispatchedNo.String()
}

// takeRelease takes in a release by the rules of the admission fold.
func (g *Generations) takeRelease(rec *Record, at int64, d *events.Release) {
	a := rec.attempt(d.Attempt)
	whole := d.Of != events.OfAttempt && rec.admitted()
	if unclear := rec.unclear(d.Attempt); unclear || a == nil && !(whole && d.Of == events.OfLocal) {
		g.early(rec, at, d, unclear) // also for its own attempt, if it acts on the whole request
		if unclear || !whole {
			return
		}
	}
	if d.Of == events.OfLocal {
		rec.leaveLocal(at)
		return
	}
	released := releasedBy(at, d)
	if a != nil && a.Released == nil {
		a.Released = released
	}
	if d.Of == events.OfRequest && rec.Released == nil {
		rec.Released = released
	}
	if a != nil && a.unsent() {
		a.giveBack(func(c *Claim) bool { return c.Life == lifeAttempt })
	}
	if d.Of == events.OfRequest && rec.unsent() {
		for i := range rec.Attempts {
			rec.Attempts[i].giveBack(func(c *Claim) bool {
				return c.Life != lifeAttempt && c.Basis != events.BasisRequest && c.Basis != events.BasisSlot
			})
		}
	}
	rec.settle()
}

func releasedBy(at int64, d *events.Release) *Released {
	r := &Released{
		At: Instant(at), Of: d.Of.String(), Attempt: d.Attempt, Outcome: d.Outcome, Dispatched: d.Dispatched.String(), Status: d.Status,
		FinishReason: d.FinishReason, LatencyMS: d.LatencyMS, TTFTMS: d.TTFTMS,
	}
	if d.Error != "" || d.Origin != "" {
		r.Error = &Error{Code: d.Error, Origin: d.Origin}
	}
	return r
}

// leaveLocal freezes what was charged for the local pool.
func (rec *Record) leaveLocal(at int64) {
	if rec.LeftLocal == 0 {
		rec.LeftLocal = Instant(at)
	}
	for i := range rec.Attempts {
		for k := range rec.Attempts[i].Claims {
			if c := &rec.Attempts[i].Claims[k]; c.Life == lifeLocal {
				c.Frozen = true
			}
		}
	}
}

// unclear says whether what a fact of an attempt means hangs on a verdict that is not known yet. While a request has one attempt, a
// refusal takes back all that the attempt's facts have done.
func (rec *Record) unclear(attempt int64) bool {
	for i := range rec.Attempts {
		if a := &rec.Attempts[i]; a.Verdict == "" && (len(rec.Attempts) > 1 || a.Attempt != attempt) {
			return true
		}
	}
	return false
}

// admitted says whether an attempt is admitted, or may be.
func (rec *Record) admitted() bool {
	for i := range rec.Attempts {
		if rec.Attempts[i].Verdict != VerdictRefused {
			return true
		}
	}
	return false
}

// unsent says whether every admitted attempt is known not to have been dispatched.
func (rec *Record) unsent() bool {
	for i := range rec.Attempts {
		if a := &rec.Attempts[i]; a.Verdict != VerdictRefused && !a.unsent() {
			return false
		}
	}
	return true
}

// giveBack returns the charges of windows, buckets, budgets and balances.
func (a *Attempt) giveBack(which func(*Claim) bool) {
	if a.Verdict == VerdictRefused {
		return
	}
	for i := range a.Claims {
		c := &a.Claims[i]
		if c.Frozen || c.Returned != nil || !which(c) {
			continue
		}
		switch c.Counts {
		case window, bucket, budget:
			c.Returned, c.Settled = c.Settled, number(0)
		case balance:
			c.Returned, c.Settled = number(c.Amount), number(0)
		}
	}
}

// putBack undoes what was given back because the attempt by had been thought not to be dispatched.
func (rec *Record) putBack(by *Attempt) {
	for i := range rec.Attempts {
		a := &rec.Attempts[i]
		for k := range a.Claims {
			c := &a.Claims[k]
			if c.Returned == nil || c.Life == lifeAttempt && a != by {
				continue
			}
			if c.Settled, c.Returned = c.Returned, nil; c.Counts == balance {
				c.Settled = nil
			}
		}
	}
}

// refuse takes back what was noted while the attempt was taken to be admitted.
func (a *Attempt) refuse() {
	a.Verdict = VerdictRefused
	a.Charges, a.UsageQuality, a.Usage, a.CostNano, a.Final = nil, "", nil, nil, false
	for i := range a.Claims {
		c := &a.Claims[i]
		c.Settled, c.Returned = nil, nil
	}
}
