package usage

import (
	"fmt"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
)

// Durations, in ns of the fold's time, and bounds.
const (
	minute       = int64(60_000_000_000)
	settleWithin = 15 * minute          // after its end an attempt without a final is unsettled
	forgetEvery  = 5 * minute           // the fold forgets then
	strayFor     = 25 * minute          // after which it has surely forgotten what was never admitted
	openFor      = 60*minute + strayFor // the same of what was: a hold lasts an hour
	maxKept      = 256                  // true-ups and releases that the fold keeps for an attempt that is not admitted
)

// Counts says what could not be used.
type Counts struct {
	Lines   uint64 // of all states
	Late    uint64 // corrections that are not above the revision that holds
	Orphans uint64 // corrections of attempts without a line, or of another org's
}

// Usage is the billing lines after some prefix of the log.
type Usage struct {
	fold     *admission.Fold
	requests map[events.RequestID]*request // those that can still give a line
	due      []ending                      // attempts that end without a final, in the order in which they are unsettled
	swept    int64                         // the minute in which it was last looked who still runs
	restored map[place]Line
	sums     sums

	lines    []Line
	verdicts []events.Verdict
	taken    int // how many of the verdicts are taken in

	Counts Counts
}

// place names an attempt.
type place struct {
	request events.RequestID
	attempt int64
}

// ending is an attempt that has ended.
type ending struct {
	place
	at int64 // ns: when it is unsettled
}

// request is what is known of a request that can still give a line.
type request struct {
	id       events.RequestID
	attempts []*attempt
	admitted int   // attempts
	ended    bool  // no attempt of it runs
	spoken   int64 // ns: when the log last spoke of it
	touched  int64 // ns: that, or when it was seen to have ended
}

// attempt is one try of a request.
type attempt struct {
	number     int64
	state      attemptState
	kept       int // true-ups and releases before it was admitted
	last       int64
	final      bool
	fixed      bool // dispatched is known
	dispatched events.Dispatched
	due        int64             // ns: when it is unsettled; 0 while it runs
	released   []*events.Release // before it was admitted
	line       Line              // what it is, then the newest line it gave
	given      bool              // line is one that was given
}

type attemptState uint8

const (
	ahead attemptState = iota // its reserve has not come
	asked
	admitted
	refused
)

// New gives the lines of a log that fold is the fold of: admission.New() for one that begins. The fold is the Usage's from here on.
func New(fold *admission.Fold) *Usage {
	return &Usage{fold: fold, requests: map[events.RequestID]*request{}, restored: map[place]Line{}, sums: newSums(), swept: fold.Now() / minute}
}

// Fold is the fold of admission at the same record. It is only to be looked at.
func (u *Usage) Fold() *admission.Fold { return u.fold }

// Verdicts are those that fell with the last record, valid until the next Apply.
func (u *Usage) Verdicts() []events.Verdict { return u.verdicts }

// Open is how many requests can still give a line.
func (u *Usage) Open() int { return len(u.requests) }

// Missing says whether a record corrects an attempt whose newest line is no longer in memory: the caller gives it to Restore, if there is
// one, before it applies the record.
func (u *Usage) Missing(r *events.Record) (id events.RequestID, attempt int64, missing bool) {
	d, ok := r.Data.(*events.Correction)
	if !ok || r.Fault != "" {
		return "", 0, false
	}
	a := u.requests[d.Request].find(d.Attempt)
	return d.Request, d.Attempt, a == nil || !a.given
}

// Restore brings back the newest line of an attempt, for the next record.
func (u *Usage) Restore(l Line) { u.restored[place{l.Request, l.Attempt}] = l }

// Apply folds the log's next record and gives the lines that fall with it, in order. They are valid until the next call.
func (u *Usage) Apply(r *events.Record) []Line {
	u.lines, u.verdicts, u.taken = u.lines[:0], u.verdicts[:0], 0
	u.decide(r)
	u.unsettle()
	if r.Fault == "" {
		switch d := r.Data.(type) {
		case *events.Reserve:
			u.reserve(r, d)
		case *events.TrueUp:
			u.trueUp(r, d)
		case *events.Release:
			u.release(d)
		case *events.Correction:
			u.correction(r, d)
		}
	}
	u.take()
	u.sweep()
	clear(u.restored)
	return u.lines
}

// decide applies a record to the fold, and drops what is known here of its request if the fold had forgotten it.
func (u *Usage) decide(r *events.Record) {
	id := events.RequestID("")
	if r.Fault == "" {
		switch d := r.Data.(type) {
		case *events.Reserve:
			id = d.Request
		case *events.TrueUp:
			id = d.Request
		case *events.Release:
			id = d.Request
		}
	}
	req := u.requests[id]
	if req == nil || !u.mayBeForgotten(req, r.At) {
		u.verdicts = append(u.verdicts, u.fold.Apply(r)...)
		return
	}
	// A tick at the same instant lets time pass, which is all that the record would have done first. What then makes the fold know one
	// request more than before is a record of a request that it did not know.
	u.verdicts = append(u.verdicts, u.fold.Apply(&events.Record{Seq: r.Seq, At: r.At, Event: events.Event{Data: &events.Tick{}}})...)
	u.unsettle()
	u.take() // what falls by then is about the request that may be forgotten now, not about the record's
	before := u.known()
	u.verdicts = append(u.verdicts, u.fold.Apply(r)...)
	if u.known() > before {
		u.forget(req)
	}
}

// take takes in the verdicts that have fallen.
func (u *Usage) take() {
	for ; u.taken < len(u.verdicts); u.taken++ {
		u.verdict(&u.verdicts[u.taken])
	}
}

func (u *Usage) known() int {
	_, requests, settled, _ := u.fold.Size()
	return requests + settled
}

// mayBeForgotten says whether the fold may have forgotten a request, or will before it takes a record at an instant: it knew it when the log
// last spoke of it, and forgets at multiples of 5 minutes alone.
func (u *Usage) mayBeForgotten(req *request, at int64) bool {
	now := max(u.fold.Now(), at+u.fold.Now()-u.fold.LastTime())
	return now/forgetEvery > req.spoken/forgetEvery
}

// request gives what is known of a request, making it if need be.
func (u *Usage) request(id events.RequestID) *request {
	req := u.requests[id]
	if req == nil {
		req = &request{id: id}
		u.requests[id] = req
	}
	req.spoken, req.touched = u.fold.Now(), u.fold.Now()
	return req
}

func (req *request) find(number int64) *attempt {
	if req == nil {
		return nil
	}
	for _, a := range req.attempts {
		if a.number == number {
			return a
		}
	}
	return nil
}

func (req *request) attempt(number int64) *attempt {
	a := req.find(number)
	if a == nil {
		a = &attempt{number: number}
		req.attempts = append(req.attempts, a)
	}
	return a
}

// reserve notes whose an attempt is.
func (u *Usage) reserve(r *events.Record, d *events.Reserve) {
	req := u.request(d.Request)
	a := req.attempt(d.Attempt)
	if a.state != ahead {
		return
	}
	a.state = asked
	l := &a.line
	l.Org, l.Workspace, l.Principal, l.Key, l.Model, l.Deployment, l.Operation = r.Org, d.Workspace, d.Principal, d.Key, d.Model, d.Deployment, d.Operation
	l.Request, l.Attempt, l.BYOK = d.Request, d.Attempt, d.BYOK
	if l.PriceVersion == "" {
		l.PriceVersion = d.PriceVersion
	}
	if !a.final {
		l.Seq = r.Seq
	}
}

// verdict notes whether an attempt was admitted, and if so takes in what came before.
func (u *Usage) verdict(v *events.Verdict) {
	req := u.requests[v.Request]
	a := req.find(v.Attempt)
	if a == nil || a.state == admitted || a.state == refused {
		return
	}
	if !v.Admitted {
		a.state, a.final, a.released = refused, false, nil
		u.drop(req)
		return
	}
	a.state = admitted
	req.admitted++
	early := a.released
	a.released = nil
	for _, d := range early {
		u.released(req, a, d)
	}
	if a.final {
		u.settle(a)
	}
	if req.ended { // admitted by its gateway alone
		u.end(req, a)
	}
	u.drop(req)
}

// trueUp takes a true-up as the fold does: of an admitted attempt, or to be kept until it is admitted.
func (u *Usage) trueUp(r *events.Record, d *events.TrueUp) {
	if d.Fault != "" {
		return
	}
	req := u.request(d.Request)
	a := req.attempt(d.Attempt)
	switch {
	case a.state == refused:
		return
	case a.state != admitted:
		if a.kept >= maxKept {
			return
		}
		a.kept++
	}
	n := d.N
	if n == 0 {
		n = a.last + 1
	}
	if n <= a.last || a.final {
		return
	}
	a.last = n
	if !d.Final {
		return
	}
	a.final, a.fixed, a.dispatched = true, true, events.DispatchedYes
	l := &a.line
	l.ID, l.Time, l.Seq = r.ID, Instant(r.At), r.Seq
	if l.ID == "" { // a recording without ids
		l.ID = fmt.Sprintf("%s.%d", d.Request, d.Attempt)
	}
	l.Quality, l.Usage, l.CostNano, l.ListNano = d.Quality.String(), d.Usage, d.CostNano, d.ListNano
	if d.PriceVersion != "" {
		l.PriceVersion = d.PriceVersion
	}
	if a.state == admitted {
		u.settle(a)
		u.drop(req)
	}
}

// settle gives an attempt's line.
func (u *Usage) settle(a *attempt) {
	l := &a.line
	l.Revision, l.State, l.Reason = 0, Settled, ""
	l.Change = amounts(l.Usage, l.CostNano)
	u.give(a)
}

func (u *Usage) give(a *attempt) {
	a.given = true
	u.emit(a.line)
}

func (u *Usage) emit(l Line) {
	if l.Org == events.Platform { // nobody's: what a recovery says of budgets
		return
	}
	u.Counts.Lines++
	u.sums.add(&l)
	u.lines = append(u.lines, l)
}

// correction gives a line of a higher revision.
func (u *Usage) correction(r *events.Record, d *events.Correction) {
	a := u.requests[d.Request].find(d.Attempt)
	l, known := u.restored[place{d.Request, d.Attempt}]
	if a != nil && a.given {
		l, known = a.line, true
	}
	switch {
	case !known || l.Org != r.Org:
		u.Counts.Orphans++
		return
	case d.Revision <= l.Revision:
		u.Counts.Late++
		return
	}
	before := amounts(l.Usage, l.CostNano)
	l.Revision, l.State, l.Time, l.Seq, l.Reason = d.Revision, Corrected, Instant(r.At), r.Seq, d.Reason
	l.Usage, l.CostNano = d.Usage, d.CostNano
	l.Change = amounts(l.Usage, l.CostNano).Minus(before)
	if a != nil && a.given {
		a.line = l
	}
	u.emit(l)
}
