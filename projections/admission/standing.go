package admission

import (
	"maps"
	"strings"

	"github.com/weirhq/weir/events"
)

// Standing is how a request stands: what a fold that goes on elsewhere must know to take it up.
type Standing struct {
	Ended    bool
	Settled  bool // ended, with a final for each admitted attempt: nothing changes it any more, and its charges may no longer be named
	Attempts []AttemptStanding
	Charges  []Charged // of all admitted attempts, in the order of their claims
}

// AttemptStanding is how one attempt stands.
type AttemptStanding struct {
	Attempt  int64
	Admitted bool // else refused, or not decided yet
	Final    bool
}

// Charged is what a claim was charged: Amount is 0 once it was given back.
type Charged struct {
	Attempt int64
	Meter   events.Meter
	Kind    events.MeterKind
	Amount  int64
	Period  int64 // of a budget, as PeriodOf counts
}

// PeriodOf numbers the calendar period, UTC, that holds an instant, ns since 1970.
func PeriodOf(p events.Period, at int64) int64 { return periodOf(p, at) }

// Standing gives how a request stands; known is false of one that the fold has never seen, or has forgotten.
func (f *Fold) Standing(id events.RequestID) (s Standing, known bool) {
	req := f.requests[id]
	if req == nil {
		kept, known := f.settled.get(id)
		s.Settled, s.Ended = known, known
		for n := int64(0); known && n < 64; n++ {
			if bit := uint64(1) << n; (kept.admitted|kept.refused)&bit != 0 {
				admitted := kept.admitted&bit != 0
				s.Attempts = append(s.Attempts, AttemptStanding{n, admitted, admitted})
			}
		}
		return s, known
	}
	s.Ended, s.Settled = req.ended, req.ended && req.admitted > 0
	for i := range req.attempts {
		a := &req.attempts[i]
		s.Settled = s.Settled && (a.state != attemptAdmitted || a.final)
		s.Attempts = append(s.Attempts, AttemptStanding{a.number, a.state == attemptAdmitted, a.state == attemptAdmitted && a.final})
	}
	for i := range req.charges {
		ch := &req.charges[i]
		c := Charged{Attempt: ch.attempt, Meter: ch.meter.name, Kind: ch.meter.kind, Amount: ch.amount}
		if ch.back {
			c.Amount = 0
		}
		if c.Kind == events.Budget {
			c.Period = ch.at
		}
		s.Charges = append(s.Charges, c)
	}
	return s, true
}

// Fences gives the version of each org's authority that reserves must present.
func (f *Fold) Fences() map[events.Org]int64 { return maps.Clone(f.fences) }

// Credits gives the reference of each credit that was counted.
func (f *Fold) Credits(each func(org events.Org, reference string)) {
	for _, key := range sorted(f.credits) {
		org, reference, _ := strings.Cut(key, "\x00")
		each(events.Org(org), reference)
	}
}
