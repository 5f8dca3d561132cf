package insight

import (
	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
)

// Durations of the ledger, ns.
const (
	milli      = int64(1_000_000)
	secondNS   = 1000 * milli
	minuteNS   = 60 * secondNS
	sweepEvery = 5 * minuteNS
	forgetting = 15 * minuteNS // idle for so long, a request is forgotten, as the fold does
)

// maxOwners bounds the owners whose settled charges to one budget are kept apart.
const maxOwners = 100_000

// ledger follows what requests charge to a few meters, so that it can be said who holds them. The numbers that decide are the fold's;
// what the ledger cannot attribute is shown as such.
type ledger struct {
	fold     *admission.Fold
	wanted   map[events.Meter]bool // followed from the first claim on
	books    map[events.Meter]*book
	accounts map[events.RequestID]*account
	waiting  map[attemptID]*events.Reserve
	next     int64 // ns: when to sweep
}

// book is a meter that is followed.
type book struct {
	kind    events.MeterKind
	calends events.Period // of a budget
	posts   []*post
	trimAt  int
	period  int64 // budget: the period that settled counts
	settled map[owner]*tally
	pause   *events.Cooldown // the newest that names it
	paused  int64            // ns: when it came
}

type owner struct {
	org        events.Org
	key, model string
}

type tally struct{ amount, requests int64 }

// account is what is known of a request that can still change.
type account struct {
	id        events.RequestID
	owner     owner
	gateway   events.Gateway
	since     int64
	attempts  []entry
	posts     []*post // on followed meters
	admitted  int
	ended     bool
	endedAt   int64
	idleSince int64
	maxAt     int64 // ns: when it ends by itself
}

// entry is an attempt of an account.
type entry struct {
	number     int64
	admitted   bool
	refused    bool
	final      bool
	fixed      bool
	dispatched events.Dispatched
	last       int64
	values     []events.Charge
	kept       []events.Data
}

// post is what a claim of an admitted attempt charged.
type post struct {
	account *account
	book    *book
	claim   *events.Claim
	attempt int64
	amount  int64
	at      int64 // ns: when it was charged; a window's bucket and a budget's period follow from it
	touched int64 // ns: when it was last changed
	frozen  bool
	back    bool
	freed   bool
	freedAt int64
	closed  bool // counted among its owner's
}

// newLedger follows the meters that a request's reserves claim, and those on which gateways have turned it away.
func newLedger(fold *admission.Fold, target *Target) *ledger {
	l := &ledger{fold: fold, books: map[events.Meter]*book{}, accounts: map[events.RequestID]*account{}, waiting: map[attemptID]*events.Reserve{},
		wanted: map[events.Meter]bool{}}
	for _, d := range target.Reserves {
		for i := range d.Claims {
			l.follow(&d.Claims[i])
		}
	}
	for _, d := range target.Turned {
		for _, m := range metersOf(d) {
			l.wanted[m] = true
		}
	}
	return l
}

// follow begins the book of a claim's meter.
func (l *ledger) follow(c *events.Claim) {
	l.books[c.Meter] = &book{kind: c.Kind, calends: c.Period, settled: map[owner]*tally{}}
}

// want begins the books of wanted meters that a reserve claims: only claims tell what kind a meter is of.
func (l *ledger) want(d *events.Reserve) {
	if len(l.wanted) == 0 {
		return
	}
	for i := range d.Claims {
		if c := &d.Claims[i]; l.wanted[c.Meter] && l.books[c.Meter] == nil {
			l.follow(c)
		}
	}
}

// take follows a record that the fold has just taken, with the verdicts that fell.
func (l *ledger) take(r *events.Record, verdicts []events.Verdict) {
	now := l.fold.Now()
	if now >= l.next {
		l.sweep(now)
	}
	d, isReserve := r.Data.(*events.Reserve)
	isReserve = isReserve && r.Fault == ""
	if isReserve {
		l.waiting[attemptID{d.Request, d.Attempt}] = d
		l.want(d)
	}
	rest := verdicts
	for len(rest) > 0 && rest[0].Time < now { // what timers decided on the way
		l.decide(&rest[0])
		rest = rest[1:]
	}
	if r.Fault == "" {
		l.fact(r.Data, now)
	}
	for i := range rest {
		l.decide(&rest[i])
	}
	if isReserve && !l.undecided(d) {
		delete(l.waiting, attemptID{d.Request, d.Attempt}) // a duplicate: nothing more is decided
	}
}

// undecided says whether a reserve's attempt has no verdict yet.
func (l *ledger) undecided(d *events.Reserve) bool {
	a := l.accounts[d.Request]
	if a == nil {
		return true
	}
	e := a.entry(d.Attempt)
	return e == nil || !e.admitted && !e.refused
}

func (l *ledger) fact(d events.Data, now int64) {
	switch d := d.(type) {
	case *events.TrueUp:
		if d.Fault == "" {
			l.trueUp(d, now)
		}
	case *events.Release:
		l.release(d, now)
	case *events.Cooldown:
		if b := l.books[d.Meter]; b != nil {
			b.pause, b.paused = d, now
		}
	}
}

func (a *account) entry(number int64) *entry {
	for i := range a.attempts {
		if a.attempts[i].number == number {
			return &a.attempts[i]
		}
	}
	return nil
}

// known gives an account and its entry, making both if they are new.
func (l *ledger) known(id events.RequestID, number int64) (*account, *entry) {
	a := l.accounts[id]
	if a == nil {
		a = &account{id: id}
		l.accounts[id] = a
	}
	if e := a.entry(number); e != nil {
		return a, e
	}
	a.attempts = append(a.attempts, entry{number: number})
	return a, &a.attempts[len(a.attempts)-1]
}

// decide takes in a verdict.
func (l *ledger) decide(v *events.Verdict) {
	id := attemptID{v.Request, v.Attempt}
	d := l.waiting[id]
	if d == nil {
		return // asked before the ledger began
	}
	delete(l.waiting, id)
	a, e := l.known(v.Request, v.Attempt)
	a.idleSince = max(a.idleSince, v.Time)
	if !v.Admitted {
		e.refused, e.kept = true, nil
		return
	}
	e.admitted = true
	if a.admitted++; a.admitted == 1 {
		a.owner, a.gateway, a.since = owner{d.Org, d.Key, d.Model}, d.Gateway, v.Time
		a.maxAt = v.Time + d.MaxMS*milli
	}
	at := v.Time
	if d.Mode == events.ModeBoundedLocal && d.At != 0 {
		at = min(at, d.At)
	}
	for i := range d.Claims {
		l.post(a, &d.Claims[i], d.Attempt, v.Time, at)
	}
	kept := e.kept
	e.kept = nil
	for _, d := range kept {
		l.fact(d, v.Time)
	}
}

func (l *ledger) post(a *account, c *events.Claim, attempt, now, at int64) {
	b := l.books[c.Meter]
	if b == nil || b.kind != c.Kind {
		return
	}
	p := &post{account: a, book: b, claim: c, attempt: attempt, amount: c.Amount, at: now, touched: now}
	switch {
	case c.Kind == events.Window:
		p.at = at
	case c.Kind == events.Bucket && c.Basis == events.BasisOutput:
		p.amount = 0
	}
	a.posts = append(a.posts, p)
	if c.Kind == events.Gauge || c.Kind == events.Balance {
		return // the fold knows who holds them
	}
	b.posts = append(b.posts, p)
	if len(b.posts) > b.trimAt {
		l.trim(b, now)
	}
}

func (l *ledger) trueUp(d *events.TrueUp, now int64) {
	a, e := l.known(d.Request, d.Attempt)
	if !e.admitted {
		if !e.refused {
			e.kept = append(e.kept, d)
			a.idleSince = max(a.idleSince, now)
		}
		return
	}
	n := d.N
	if n == 0 {
		n = e.last + 1
	}
	if n <= e.last || e.final {
		return
	}
	e.last = n
	if e.fixed && e.dispatched == events.DispatchedNo {
		if !d.Final {
			return
		}
		a.putBack(d.Attempt)
	}
	for _, c := range d.Charges {
		e.set(c)
	}
	if d.Final {
		e.final, e.fixed, e.dispatched = true, true, events.DispatchedYes
	}
	for _, p := range a.posts {
		p.correct(a, e, d, now)
	}
}

func (a *account) putBack(attempt int64) {
	for _, p := range a.posts {
		if p.claim.Life != events.LifeAttempt || p.attempt == attempt {
			p.back = false
		}
	}
}

func (e *entry) set(c events.Charge) {
	for i := range e.values {
		if e.values[i].Basis == c.Basis {
			e.values[i].Amount = c.Amount
			return
		}
	}
	e.values = append(e.values, c)
}

func charged(charges []events.Charge, basis string) (int64, bool) {
	for _, c := range charges {
		if c.Basis == basis {
			return c.Amount, true
		}
	}
	return 0, false
}

// correct moves a post to what a true-up of entry e makes of it, by the rules of the fold.
func (p *post) correct(a *account, e *entry, d *events.TrueUp, now int64) {
	c := p.claim
	_, named := charged(d.Charges, c.Basis)
	if p.frozen || !named || c.Kind == events.Balance || c.Basis == events.BasisRequest || c.Basis == events.BasisSlot ||
		c.Life == events.LifeAttempt && p.attempt != e.number {
		return
	}
	onlyFinals := c.Kind == events.Bucket && c.Basis == events.BasisOutput
	if onlyFinals && !d.Final {
		return
	}
	target := p.worth(e, onlyFinals)
	if c.Basis != events.BasisFootprint && c.Life != events.LifeAttempt {
		target = 0
		for i := range a.attempts {
			target += p.worth(&a.attempts[i], onlyFinals)
		}
	}
	sets := d.Quality == events.QualityExact || d.Final && c.Basis == events.BasisCost && d.Quality != events.QualityNone
	if sets || target > p.worthNow() {
		p.amount, p.back, p.touched = target, false, now
	}
}

func (p *post) worth(e *entry, onlyFinals bool) int64 {
	v, _ := charged(e.values, p.claim.Basis)
	switch {
	case !onlyFinals:
		return v
	case !e.final:
		return 0
	}
	return min(v, p.claim.Limit)
}

// worthNow is what the post comes to now, apart from a gauge's being freed.
func (p *post) worthNow() int64 {
	if p.back {
		return 0
	}
	return p.amount
}

func (l *ledger) release(d *events.Release, now int64) {
	a := l.accounts[d.Request]
	if a == nil || a.admitted == 0 || d.Of == events.OfAttempt {
		var e *entry
		a, e = l.known(d.Request, d.Attempt)
		if !e.admitted {
			if !e.refused {
				e.kept = append(e.kept, d)
				a.idleSince = max(a.idleSince, now)
			}
			return
		}
	}
	if d.Of == events.OfLocal {
		for _, p := range a.posts {
			if p.claim.Life == events.LifeLocal {
				p.free(now)
				p.frozen = true
			}
		}
		return
	}
	e := a.entry(d.Attempt)
	switch {
	case e == nil: // kept for the attempt, should it come
		_, e = l.known(d.Request, d.Attempt)
		e.kept = append(e.kept, d)
	case e.admitted && !e.fixed:
		e.fixed, e.dispatched = true, d.Dispatched
	}
	if d.Of == events.OfRequest && !a.ended {
		a.end(now)
	}
	if e.admitted {
		a.releaseAttempt(e, now)
	}
	if d.Of != events.OfRequest {
		return
	}
	if a.unsent() {
		a.giveBack()
	}
}

func (p *post) free(now int64) {
	if p.claim.Kind == events.Gauge && !p.freed {
		p.freed, p.freedAt = true, now
	}
}

// end frees what an account holds.
func (a *account) end(now int64) {
	a.ended, a.endedAt, a.idleSince = true, now, max(a.idleSince, now)
	for _, p := range a.posts {
		p.free(now)
	}
}

func (a *account) releaseAttempt(e *entry, now int64) {
	for _, p := range a.posts {
		if p.claim.Life == events.LifeAttempt && p.attempt == e.number {
			p.free(now)
			if e.dispatched == events.DispatchedNo {
				p.giveBack()
			}
		}
	}
}

func (a *account) giveBack() {
	for _, p := range a.posts {
		if p.claim.Life != events.LifeAttempt && p.claim.Basis != events.BasisRequest && p.claim.Basis != events.BasisSlot {
			p.giveBack()
		}
	}
}

func (p *post) giveBack() {
	switch p.claim.Kind {
	case events.Window, events.Bucket, events.Budget:
		p.back = p.back || !p.frozen
	}
}

func (a *account) unsent() bool {
	for i := range a.attempts {
		if e := &a.attempts[i]; e.admitted && !(e.fixed && e.dispatched == events.DispatchedNo) {
			return false
		}
	}
	return true
}
