package ledger

import (
	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/generation"
)

// Past is what balances, budgets and fences have come to by a log: a fold of its beginning, brought forward by what the audit tells of the
// rest. Only budgets whose period still runs count. A receipt says what the fold charged, so that both come to the same.
type Past struct {
	Balances map[events.Meter]int64 // nano-dollars, holds aside
	Budgets  map[events.Meter]Budget
	Fences   map[events.Org]int64

	Running   []*generation.Record // requests that ran at the end, as far as is known
	Undecided int                  // attempts of which no verdict is known, nor anything that says that they were admitted: they do not count

	base    *admission.Fold
	seq     uint64 // from which on the audit must tell, and when it came, ns since 1970
	at      int64
	now     int64
	credits map[credit]bool // that were counted
}

// Budget is what a budget was charged in the period that runs.
type Budget struct {
	Used, Limit int64
	HasLimit    bool
}

type credit struct {
	org       events.Org
	reference string
}

// PastOf gives what a fold says itself, for budgets whose period runs at an instant, ns since 1970.
func PastOf(base *admission.Fold, now int64) *Past {
	p := &Past{Balances: map[events.Meter]int64{}, Budgets: map[events.Meter]Budget{}, Fences: base.Fences(), base: base, seq: base.Seq(), at: base.Now(), now: now, credits: map[credit]bool{}}
	for _, m := range base.Meters() {
		switch m.Kind {
		case events.Balance:
			p.Balances[m.Meter] = m.Total
		case events.Budget:
			if p.runs(m.Meter, base.Now()) {
				p.Budgets[m.Meter] = Budget{m.Used, m.Limit, m.HasLimit}
			}
		}
	}
	base.Credits(func(org events.Org, reference string) { p.credits[credit{org, reference}] = true })
	return p
}

// Seq is the sequence up to which the fold tells, and from which on the audit must.
func (p *Past) Seq() uint64 { return p.seq }

// Now is the time there, ns since 1970; 0 before the first record.
func (p *Past) Now() int64 { return p.at }

// Until says that the fold tells up to a sequence alone, which came at an instant, ns since 1970: what it has beyond is of a log that was
// cut there and written on since, and counts beside what stood there before.
func (p *Past) Until(seq uint64, at int64) {
	if seq < p.seq {
		p.seq, p.at = seq, at
	}
}

// PeriodOf is the period of a budget, which its name says.
func PeriodOf(m events.Meter) events.Period {
	if _, _, dimension := m.Split(); dimension == "spend-month" {
		return events.Month
	}
	return events.Day
}

// runs says whether the period of a budget that held an instant still runs.
func (p *Past) runs(m events.Meter, at int64) bool {
	period := PeriodOf(m)
	return admission.PeriodOf(period, at) == admission.PeriodOf(period, p.now)
}

// Credited gives the credits that were counted.
func (p *Past) Credited(each func(org events.Org, reference string)) {
	for c := range p.credits {
		each(c.org, c.reference)
	}
}

// HasCredit says whether a credit was counted.
func (p *Past) HasCredit(org events.Org, reference string) bool {
	return p.credits[credit{org, reference}]
}

// Fact takes in the next fact beyond the fold.
func (p *Past) Fact(f *generation.Fact) {
	switch f.Kind {
	case generation.FactCredit:
		c := credit{f.Org, f.Reference}
		if p.credits[c] || f.AmountNano > events.MaxAmount || f.AmountNano < -events.MaxAmount {
			return
		}
		p.credits[c] = true
		p.Balances[events.NewMeter(events.ScopeOrg, "balance", string(f.Org))] += f.AmountNano
	case generation.FactFence:
		p.Fences[f.Org] = max(p.Fences[f.Org], f.Version)
	}
}

// Record takes in the record of a request. What it tells counts if it tells of more than the fold.
func (p *Past) Record(rec *generation.Record) {
	before, known := p.base.Standing(rec.ID)
	if before.Settled {
		return // nothing changes it any more
	}
	runs, more, balance := false, rec.AsOf.Seq > p.seq, events.Meter("")
	for i := range rec.Attempts {
		a := &rec.Attempts[i]
		for k := range a.Claims {
			if a.Verdict != generation.VerdictRefused && a.Claims[k].Counts == events.Balance.String() {
				balance = a.Claims[k].Meter
			}
		}
	}
	for i := range rec.Attempts {
		a := &rec.Attempts[i]
		was, had := standingOf(&before, a.Attempt)
		switch {
		case a.Verdict == generation.VerdictRefused:
			continue
		case !had && a.Seq <= p.seq:
			continue // the fold has forgotten it
		case a.Verdict == "" && !a.Final && a.Released == nil && !was.Admitted:
			p.Undecided++
			continue
		}
		if more {
			p.budgets(a, before.Charges)
		}
		if more && a.Final && !was.Final && a.CostNano != nil && balance != "" {
			p.Balances[balance] -= *a.CostNano
		}
		runs = runs || !a.Final && a.Released == nil && p.now-int64(a.ReservedAt) < events.DefaultMaxMS*1_000_000
	}
	if runs && rec.State == generation.InProgress && !(known && before.Ended) {
		p.Running = append(p.Running, rec)
	}
}

func standingOf(s *admission.Standing, attempt int64) (admission.AttemptStanding, bool) {
	for _, a := range s.Attempts {
		if a.Attempt == attempt {
			return a, true
		}
	}
	return admission.AttemptStanding{}, false
}

// budgets moves budgets from what the fold had charged for an attempt to what its receipt says.
func (p *Past) budgets(a *generation.Attempt, before []admission.Charged) {
	decided := int64(a.DecidedAt)
	if decided == 0 {
		decided = int64(a.ReservedAt)
	}
	for i := range a.Claims {
		c := &a.Claims[i]
		if c.Counts != events.Budget.String() {
			continue
		}
		b := p.Budgets[c.Meter]
		if c.Settled != nil && p.runs(c.Meter, decided) {
			b.Used += *c.Settled
		}
		for _, ch := range before {
			if ch.Attempt == a.Attempt && ch.Meter == c.Meter && ch.Period == admission.PeriodOf(PeriodOf(c.Meter), p.now) {
				b.Used -= ch.Amount
			}
		}
		if b.HasLimit = c.Limit != nil; b.HasLimit {
			b.Limit = *c.Limit
		}
		p.Budgets[c.Meter] = b
	}
}
