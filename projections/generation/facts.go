package generation

import (
	"slices"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/gate"
)

// reserve takes in the reserve of an attempt, and after it what came for it too early.
func (g *Generations) reserve(rec *Record, r *events.Record, d *events.Reserve) {
	if rec.attempt(d.Attempt) != nil {
		return
	}
	if len(rec.Attempts) >= maxTries {
		g.drop(rec)
		return
	}
	rec.Principal, rec.KeyID, rec.Gateway, rec.Operation, rec.Model = d.Principal, d.Key, d.Gateway, d.Operation, d.Model
	rec.WorkspaceID = textOrNull(d.Workspace)
	a := newAttempt(r, d)
	if len(rec.Attempts) == 0 {
		rec.CreatedAt = a.ReservedAt
		rec.NumMediaPrompt = &a.Estimate.Images
	} else {
		g.anotherTry(rec, &a)
	}
	rec.Attempts = append(rec.Attempts, a)
	rec.settle()
	g.takeEarly(rec)
}

func newAttempt(r *events.Record, d *events.Reserve) Attempt {
	a := Attempt{
		Attempt: d.Attempt, Seq: r.Seq, ReservedAt: Instant(r.At), Deployment: d.Deployment, Gateway: d.Gateway, Epoch: d.Epoch,
		PriceVersion: d.PriceVersion, BYOK: d.BYOK, Estimate: Estimate(d.Estimate), Claims: make([]Claim, 0, len(d.Claims)),
	}
	if d.Mode == events.ModeBoundedLocal {
		a.Mode = events.BoundedLocal
		if d.At != 0 {
			a.ReservedAt = Instant(min(d.At, r.At))
		}
	}
	for i := range d.Claims {
		a.Claims = append(a.Claims, newClaim(&d.Claims[i]))
	}
	return a
}

func newClaim(c *events.Claim) Claim {
	claim := Claim{
		Meter: c.Meter, Counts: c.Kind.String(), Basis: c.Basis, Amount: c.Amount, Shadow: c.Shadow, Park: c.Park,
	}
	words := gate.Which(c.Meter)
	claim.Scope, claim.Kind = words.Scope, words.Kind
	if c.Life != events.LifeRequest {
		claim.Life = c.Life.String()
	}
	if c.HasCheck {
		claim.Check = number(c.Check)
	}
	if c.HasLimit {
		claim.Limit = number(c.Limit)
	}
	switch c.Kind {
	case events.Window, events.Gauge, events.Budget:
		claim.Settled = number(c.Amount)
	case events.Bucket:
		claim.Settled = number(c.Amount)
		if c.Basis == events.BasisOutput {
			claim.Settled = number(0) // charged when the output is known
		}
	}
	return claim
}

// anotherTry notes that an attempt follows another.
func (g *Generations) anotherTry(rec *Record, a *Attempt) {
	before := &rec.Attempts[len(rec.Attempts)-1]
	e := AdmissionEvent{Event: EventRetry, Seq: a.Seq, Time: a.ReservedAt, Attempt: a.Attempt, To: a.Deployment, From: before.Deployment}
	if before.Deployment != a.Deployment {
		e.Event = EventFallback
	}
	if r := before.Released; r != nil && r.Error != nil {
		e.Origin, e.Code, e.Status = r.Error.Origin, r.Error.Code, int(r.Status)
	}
	g.note(rec, e)
}

// verdict takes in the answer to a reserve.
func (g *Generations) verdict(rec *Record, v *events.Verdict) {
	a := rec.attempt(v.Attempt)
	if a == nil || a.Verdict != "" {
		return
	}
	a.Verdict, a.DecidedAt, a.ParkedMS, a.WaitMS = VerdictAdmitted, Instant(v.Time), v.ParkedMS, v.WaitMS
	for i := range min(len(v.Used), len(a.Claims)) {
		a.Claims[i].Used = number(v.Used[i])
	}
	if !v.Admitted {
		a.refuse()
		if !rec.admitted() {
			rec.Released = nil // it meant the attempt alone
		}
		g.note(rec, refusalOf(v))
		rec.settle()
		g.takeEarly(rec)
		return
	}
	if v.ParkedMS > 0 {
		g.note(rec, parkOf(a, v))
	}
	if v.WaitMS > 0 {
		e := AdmissionEvent{Event: EventPaced, Seq: v.Seq, Time: Instant(v.Time), Attempt: v.Attempt, WaitMS: v.WaitMS}
		e.Gate, e.Origin, e.Scope, e.Kind = string(gate.Pace), gate.OriginAdmission, string(events.ScopeModel), "rps_queue"
		g.note(rec, e)
	}
	for _, i := range v.Shadow {
		if i >= 0 && i < len(a.Claims) {
			g.note(rec, shadowOf(&a.Claims[i], v))
		}
	}
	rec.settle()
	g.takeEarly(rec)
}

func refusalOf(v *events.Verdict) AdmissionEvent {
	e := AdmissionEvent{Event: EventRefused, Seq: v.Seq, Time: Instant(v.Time), Attempt: v.Attempt, ParkedMS: v.ParkedMS}
	r := v.Refusal
	if r == nil {
		return e
	}
	e.limit(gate.Of(r.Meter, r.Reason))
	e.Meter, e.Reason, e.Used, e.Requested = r.Meter, r.Reason, number(r.Used), number(r.Requested)
	if r.HasLimit {
		e.Limit = number(r.Limit)
	}
	if r.HasRetry {
		e.RetryAfterMS = number(r.RetryMS)
		e.RetryAt = Instant(v.Time + r.RetryMS*1_000_000)
	}
	return e
}

func (e *AdmissionEvent) limit(l gate.Limit) {
	e.Gate, e.Origin, e.Scope, e.Kind, e.LimitID, e.Status, e.Code = string(l.Gate), l.Origin, l.Scope, l.Kind, l.LimitID, l.Status, l.Code
}

// parkOf tells of a wait. Which gauge was waited for the verdict does not say, unless there is only one.
func parkOf(a *Attempt, v *events.Verdict) AdmissionEvent {
	e := AdmissionEvent{Event: EventParked, Seq: v.Seq, Time: Instant(v.Time), Attempt: v.Attempt, ParkedMS: v.ParkedMS}
	var parks []*Claim
	for i := range a.Claims {
		if a.Claims[i].Park {
			parks = append(parks, &a.Claims[i])
		}
	}
	if len(parks) == 0 {
		return e
	}
	l := gate.Of(parks[0].Meter, events.OverLimit)
	e.Gate, e.Origin, e.Scope, e.LimitID = string(l.Gate), l.Origin, l.Scope, l.LimitID
	if len(parks) == 1 {
		c := parks[0]
		e.Kind, e.Meter, e.Limit, e.Requested = l.Kind, c.Meter, c.Limit, c.need()
	}
	return e
}

func shadowOf(c *Claim, v *events.Verdict) AdmissionEvent {
	e := AdmissionEvent{Event: EventShadow, Seq: v.Seq, Time: Instant(v.Time), Attempt: v.Attempt}
	e.limit(gate.Of(c.Meter, events.OverLimit))
	e.Status, e.Code = 0, ""
	e.Meter, e.Limit, e.Used, e.Requested = c.Meter, c.Limit, c.Used, c.need()
	return e
}

func (c *Claim) need() *int64 {
	if c.Check != nil {
		return c.Check
	}
	return number(c.Amount)
}

// lapse takes in what became of a request that runs. What its gateway says of it later, if it does, is believed instead.
func (rec *Record) lapse(l *events.Lapse) {
	switch l.State {
	case events.LapseBegan:
		rec.Lapsed = Instant(l.Time)
	case events.LapseOver:
		rec.Lapsed = 0
	case events.LapseEnded:
		if rec.Lapsed == 0 {
			rec.Lapsed = Instant(l.Time)
		}
	}
	rec.settle()
}

// refused takes in a refusal that a gateway made by itself.
func (g *Generations) refused(rec *Record, r *events.Record, d *events.Refused) {
	if r.ID != "" && slices.ContainsFunc(rec.AdmissionEvents, func(e AdmissionEvent) bool { return e.EventID == r.ID }) {
		return
	}
	if len(rec.Attempts) == 0 {
		rec.Principal, rec.KeyID, rec.Gateway, rec.Operation, rec.Model = d.Principal, d.Key, d.Gateway, d.Operation, d.Model
		rec.WorkspaceID = textOrNull(d.Workspace)
	}
	e := AdmissionEvent{
		Event: EventRefused, Seq: r.Seq, Time: Instant(r.At), EventID: r.ID, Gate: d.Gate, Origin: d.Origin, Scope: d.Scope, Kind: d.LimitKind,
		LimitID: d.LimitID, Limit: d.Limit, Used: number(d.Used), Requested: number(d.Requested), RetryAt: instantOf(d.RetryAt),
		Status: d.Status, Code: d.Code, Message: d.Message, First: instantOf(d.First), Last: instantOf(d.Last),
	}
	if d.Count > 1 {
		e.Count = d.Count
	}
	if e.RetryAt > e.Time {
		e.RetryAfterMS = number((int64(e.RetryAt-e.Time) + 999_999) / 1_000_000)
	}
	if last := len(rec.Attempts) - 1; last >= 0 {
		e.Attempt = rec.Attempts[last].Attempt
	}
	g.note(rec, e)
	rec.settle()
}

// correction takes in what an operator said an attempt had come to.
func (g *Generations) correction(rec *Record, at int64, d *events.Correction) {
	a := rec.attempt(d.Attempt)
	if a == nil {
		g.Counts.Orphans++
		return
	}
	if a.Correction == nil || a.Correction.Revision < d.Revision {
		a.Correction = &Correction{Revision: d.Revision, At: Instant(at), Usage: d.Usage, CostNano: d.CostNano, Reason: d.Reason}
	}
}

// note adds an admission event.
func (g *Generations) note(rec *Record, e AdmissionEvent) {
	if len(rec.AdmissionEvents) >= maxEvents {
		g.drop(rec)
		return
	}
	rec.AdmissionEvents = append(rec.AdmissionEvents, e)
}

func (g *Generations) drop(rec *Record) {
	rec.Truncated = true
	g.Counts.Dropped++
}

// early keeps a true-up or release for its attempt's reserve, or if unclear for the next verdict.
func (g *Generations) early(rec *Record, at int64, d events.Data, unclear bool) {
	if len(rec.Early) >= maxEarly {
		g.drop(rec)
		return
	}
	rec.Early = append(rec.Early, Early{Instant(at), events.TypeOf(d), string(events.AppendData(nil, d)), unclear})
}

// takeEarly folds what was kept and now is clear. What was kept for an attempt that has been refused is dropped.
func (g *Generations) takeEarly(rec *Record) {
	early := rec.Early
	rec.Early = nil
	for _, e := range early {
		d, err := events.DecodeData(e.Type, []byte(e.Data))
		if err != nil { // cannot be: it was encoded here
			continue
		}
		number := attemptOf(d)
		a := rec.attempt(number)
		switch {
		case !e.Unclear && a != nil && a.Verdict == VerdictRefused:
		case !e.Unclear && a == nil, rec.unclear(number):
			rec.Early = append(rec.Early, e)
		default:
			g.takeFact(rec, int64(e.At), d)
		}
	}
}

func attemptOf(d events.Data) int64 {
	switch d := d.(type) {
	case *events.TrueUp:
		return d.Attempt
	case *events.Release:
		return d.Attempt
	}
	return 0
}

func (g *Generations) takeFact(rec *Record, at int64, d events.Data) {
	switch d := d.(type) {
	case *events.TrueUp:
		g.takeTrueUp(rec, at, d)
	case *events.Release:
		g.takeRelease(rec, at, d)
	}
}

func number(n int64) *int64 { return &n }

func textOrNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
