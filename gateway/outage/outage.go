// Package outage is the bounded local allowance: what one gateway may admit by itself while the log, or every projector, is out of
// reach. Each scope that a request falls under grants little, for a short time that counts from the first failure and that no later
// failure prolongs. Nothing is granted while projectors can be reached and say that they may not answer, as when the stream's clock is wrong: then the
// log goes on, and would count what is admitted beside it. It decides on values alone: the time is an argument.
package outage

import (
	"math"
	"time"
)

// What a scope grants on one gateway while the log is out of reach. The lesser of this and the scope's own limit holds.
const (
	// Requests of a scope in any minute.
	Requests = 5
	// AtOnce bounds those that run at the same time.
	AtOnce = 2
	// Tokens of a scope in any minute, as estimated for reservations.
	Tokens = 25_000
	// MaxUndeclared bounds the output, all choices together, of a request that declares none: Requests of them must fit into Tokens and
	// leave something for their input. A usual bound, such as 32,768, would alone be more than Tokens, and the request be refused.
	MaxUndeclared = 4_096
	// For is how long anything is granted, from the first failure.
	For = 30 * time.Second
	// DedicatedFor is the same for dedicated endpoints.
	DedicatedFor = 10 * time.Minute
	// RearmAfter without a failure makes the next failure a first one.
	RearmAfter = 60 * time.Second
)

const (
	minute = time.Minute

	// MaxScopes bounds the scopes, gauges and sums that are counted at the same time; a request that brings more is refused.
	MaxScopes = 16_384
)

// Scope is one scope that a request falls under, with the limits of its own. 0 is no limit.
type Scope struct {
	Name        string // unique among scopes, such as "org/acme"
	RPM         int64
	RPS         int64
	TPM         int64
	Concurrency int64
	Tokens      int64 // what the request counts in TPM
	Endpoint    bool  // a dedicated endpoint: its limits, divided by the live gateways, instead of the bounds above
	PaceRPS     int64 // with Endpoint: requests are spread evenly at this rate, divided likewise. 0: not paced
	Queue       time.Duration
}

// Gauge is what a request holds of something while it runs, such as a model's occupancy.
type Gauge struct {
	Name   string
	Amount int64
	Limit  int64
}

// Sum is what a request takes from what was left when the log was last seen, such as a balance or a spend cap.
type Sum struct {
	Name   string
	Amount int64 // what it takes
	Need   int64 // what must be left
	Left   int64 // last known, not counting what was admitted here since
}

// Request is what is to be admitted.
type Request struct {
	Closed    bool // a scope that applies refuses whatever cannot be counted
	Dedicated bool // to a dedicated endpoint
	Gateways  int64
	Scopes    []Scope
	Gauges    []Gauge
	Sums      []Sum
}

// Reason says why nothing is granted.
type Reason string

// The reasons.
const (
	Closed      Reason = "closed"      // outage_mode closed
	Stopped     Reason = "stopped"     // projectors may not answer
	Over        Reason = "over"        // the time is over, or has not begun
	TooMany     Reason = "requests"    // of this minute or second
	AtLimit     Reason = "concurrency" // they run
	TooLarge    Reason = "tokens"      // of this minute
	Queue       Reason = "queue"       // a paced endpoint's
	Full        Reason = "occupancy"   // of the model
	Used        Reason = "used"        // the last known balance or cap
	OutOfBounds Reason = "bounds"      // more scopes than are counted
)

// Decision is the answer to a request.
type Decision struct {
	Admitted bool
	Wait     time.Duration // of a paced request, before it is sent
	Ticket   Ticket        // to be given back with Done

	Reason Reason        // when it is not admitted
	Name   string        // of the scope, gauge or sum that refuses
	Retry  time.Duration // when it may pass; 0: not known
}

// Ticket is what an admitted request holds.
type Ticket struct {
	scopes []*scope
	gauges []*gauge
	held   []int64
}

// Allowance is what one gateway grants, and has granted. It belongs to one goroutine at a time.
type Allowance struct {
	first, last time.Time // failures
	stopped     string    // why projectors may not answer
	scopes      map[string]*scope
	gauges      map[string]*gauge
	sums        map[string]int64 // taken since the first failure
}

// scope counts what was granted of one.
type scope struct {
	granted []grant // of the last minute, oldest first
	live    int64
	slot    time.Time // of a paced endpoint: when the next may leave
}

type grant struct {
	at     time.Time
	tokens int64
}

type gauge struct{ held int64 }

// New makes an allowance that grants nothing before the first failure.
func New() *Allowance {
	return &Allowance{scopes: map[string]*scope{}, gauges: map[string]*gauge{}, sums: map[string]int64{}}
}

// Failed notes that the log was out of reach. The time that is granted begins with the first failure after RearmAfter without any.
func (a *Allowance) Failed(now time.Time) {
	if a.first.IsZero() || now.Sub(a.last) >= RearmAfter {
		a.first = now
		clear(a.sums)
	}
	if now.After(a.last) {
		a.last = now
	}
}

// Stop notes why projectors that can be reached may not answer; an empty reason, that they answer. Until they do, nothing is granted: also
// not when they can no longer be reached, as whatever stopped them is not over by that.
func (a *Allowance) Stop(why string) { a.stopped = why }

// Stopped is why projectors may not answer, as far as is known; empty: they may.
func (a *Allowance) Stopped() string { return a.stopped }

// Until says when the allowance is over: zero before the first failure.
func (a *Allowance) Until(dedicated bool) time.Time {
	if a.first.IsZero() {
		return time.Time{}
	}
	if dedicated {
		return a.first.Add(DedicatedFor)
	}
	return a.first.Add(For)
}

// Admit grants a request, or says why not: all that it asks for, or nothing.
func (a *Allowance) Admit(now time.Time, r *Request) Decision {
	if r.Closed {
		return Decision{Reason: Closed}
	}
	if a.stopped != "" {
		return Decision{Reason: Stopped}
	}
	if a.first.IsZero() || now.Before(a.first) || !now.Before(a.Until(r.Dedicated)) {
		return Decision{Reason: Over}
	}
	if !a.room(now, r) {
		return Decision{Reason: OutOfBounds}
	}
	d := Decision{Admitted: true}
	for i := range r.Scopes {
		wait, no := a.fits(now, &r.Scopes[i], r)
		if no.Reason != "" {
			return no
		}
		d.Wait = max(d.Wait, wait)
	}
	for i := range r.Gauges {
		g := &r.Gauges[i]
		if held := a.gauges[g.Name]; g.Amount > g.Limit || held != nil && held.held > g.Limit-g.Amount {
			return Decision{Reason: Full, Name: g.Name}
		}
	}
	for i := range r.Sums {
		s := &r.Sums[i]
		if taken := a.sums[s.Name]; s.Left < s.Need || taken > s.Left-s.Need {
			return Decision{Reason: Used, Name: s.Name}
		}
	}
	d.Ticket = a.take(now, r)
	return d
}

// Done gives back what a request held. It must be called once for each ticket.
func (a *Allowance) Done(t Ticket) {
	for _, s := range t.scopes {
		s.live--
	}
	for i, g := range t.gauges {
		g.held -= t.held[i]
	}
}

// limits are what a scope grants on this gateway. The largest integer is no limit.
type limits struct{ rpm, rps, tpm, concurrency int64 }

func (s *Scope) limits(r *Request) limits {
	if s.Endpoint || r.Dedicated {
		n := max(r.Gateways, 1)
		part := func(limit int64) int64 {
			if limit == 0 {
				return math.MaxInt64
			}
			return limit / n // what cannot be divided is granted by nobody: together they never exceed it
		}
		return limits{part(s.RPM), part(s.RPS), part(s.TPM), part(s.Concurrency)}
	}
	least := func(bound, own int64) int64 {
		if own == 0 {
			return bound
		}
		return min(bound, own)
	}
	return limits{least(Requests, s.RPM), least(math.MaxInt64, s.RPS), least(Tokens, s.TPM), least(AtOnce, s.Concurrency)}
}

// fits judges one scope. The decision has a reason when it does not fit.
func (a *Allowance) fits(now time.Time, s *Scope, r *Request) (wait time.Duration, no Decision) {
	l := s.limits(r)
	refuse := func(why Reason, retry time.Duration) (time.Duration, Decision) {
		return 0, Decision{Reason: why, Name: s.Name, Retry: max(retry, 0)}
	}
	have := a.scopes[s.Name]
	if have == nil {
		have = &scope{}
	}
	have.age(now)
	switch {
	case have.live >= l.concurrency:
		return refuse(AtLimit, 0)
	case int64(len(have.granted)) >= l.rpm:
		if l.rpm == 0 {
			return refuse(TooMany, 0)
		}
		return refuse(TooMany, have.granted[int64(len(have.granted))-l.rpm].at.Add(minute).Sub(now))
	case have.since(now.Add(-time.Second)) >= l.rps:
		return refuse(TooMany, time.Second)
	case s.Tokens > l.tpm:
		return refuse(TooLarge, 0)
	case have.tokens() > l.tpm-s.Tokens:
		return refuse(TooLarge, have.granted[0].at.Add(minute).Sub(now))
	}
	if s.PaceRPS == 0 {
		return 0, no
	}
	if wait = max(have.slot.Sub(now), 0); wait > s.Queue {
		return refuse(Queue, wait-s.Queue)
	}
	return wait, no
}

// age forgets what was granted a minute ago or longer.
func (s *scope) age(now time.Time) {
	n := 0
	for n < len(s.granted) && now.Sub(s.granted[n].at) >= minute {
		n++
	}
	s.granted = append(s.granted[:0], s.granted[n:]...)
}

// since counts what was granted after an instant.
func (s *scope) since(t time.Time) (n int64) {
	for i := len(s.granted) - 1; i >= 0 && s.granted[i].at.After(t); i-- {
		n++
	}
	return n
}

func (s *scope) tokens() (n int64) {
	for i := range s.granted {
		n += s.granted[i].tokens
	}
	return n
}

// take counts an admitted request.
func (a *Allowance) take(now time.Time, r *Request) (t Ticket) {
	for i := range r.Scopes {
		s := &r.Scopes[i]
		have := a.scopes[s.Name]
		if have == nil {
			have = &scope{}
			a.scopes[s.Name] = have
		}
		have.granted = append(have.granted, grant{now, s.Tokens})
		have.live++
		if s.PaceRPS > 0 {
			if have.slot.Before(now) {
				have.slot = now
			}
			have.slot = have.slot.Add(time.Second * time.Duration(max(r.Gateways, 1)) / time.Duration(s.PaceRPS))
		}
		t.scopes = append(t.scopes, have)
	}
	for i := range r.Gauges {
		g := &r.Gauges[i]
		have := a.gauges[g.Name]
		if have == nil {
			have = &gauge{}
			a.gauges[g.Name] = have
		}
		have.held += g.Amount
		t.gauges, t.held = append(t.gauges, have), append(t.held, g.Amount)
	}
	for i := range r.Sums {
		a.sums[r.Sums[i].Name] += r.Sums[i].Amount
	}
	return t
}

// room says whether a request's scopes can be counted, after forgetting those that show nothing any more if there are many.
func (a *Allowance) room(now time.Time, r *Request) bool {
	more := len(r.Scopes) + len(r.Gauges) + len(r.Sums)
	if a.size()+more <= MaxScopes {
		return true
	}
	for name, s := range a.scopes {
		if s.age(now); len(s.granted) == 0 && s.live == 0 && !s.slot.After(now) {
			delete(a.scopes, name)
		}
	}
	for name, g := range a.gauges {
		if g.held == 0 {
			delete(a.gauges, name)
		}
	}
	return a.size()+more <= MaxScopes
}

func (a *Allowance) size() int { return len(a.scopes) + len(a.gauges) + len(a.sums) }
