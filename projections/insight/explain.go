package insight

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
)

// maxMoments bounds the timeline: a long stream grows many times.
const maxMoments = 400

// Explainer folds a log up to the end of one request, and retells it.
type Explainer struct {
	fold      *admission.Fold
	ledger    *ledger
	target    *Target
	account   *account
	story     Story
	reserves  map[int64]*events.Reserve
	decisions map[int64]int // attempt: place in story.Decisions
	looking   []look
	lapsed    bool
	released  *events.Release
	dropped   int // moments beyond maxMoments
	firstAt   int64
	other     []string // verdicts that were really given, and are not what was folded
}

// look is a refusal of which it is still asked when it would have passed.
type look struct {
	decision int
	reserve  *events.Reserve
	since    int64
}

// NewExplainer begins to retell a request. The fold is that of the log before the first record to come: admission.New() for the log's
// first, or one restored from a snapshot that is not above the target's first record. Holders of what was charged before are not known.
func NewExplainer(fold *admission.Fold, target *Target) *Explainer {
	e := &Explainer{
		fold: fold, target: target, ledger: newLedger(fold, target),
		reserves: map[int64]*events.Reserve{}, decisions: map[int64]int{},
	}
	e.story.Request = string(target.Request)
	e.story.Folded.Snapshot = fold.Seq() > 0
	return e
}

// Done says that nothing in the rest of the log changes the story.
func (e *Explainer) Done() bool {
	return e.fold.Seq() > e.target.Last && len(e.looking) == 0 && (e.account == nil || e.account.ended)
}

// Apply folds the next record. The error says that the log needs other rules than this binary knows.
func (e *Explainer) Apply(r *events.Record) error {
	if e.story.Folded.From == 0 {
		e.story.Folded.From = r.Seq
	}
	e.story.Folded.To = r.Seq
	verdicts := e.fold.Apply(r)
	if !e.fold.Supported() {
		return fmt.Errorf("explain %s: the log asks for rules version %d at sequence %d, this binary knows %d", e.target.Request, e.fold.Rules(), r.Seq, admission.RulesVersion)
	}
	e.ledger.take(r, verdicts)
	if r.Seq < e.target.First {
		return nil
	}
	e.watchLapse(r)
	for i := range verdicts {
		if v := &verdicts[i]; v.Request == e.target.Request {
			if d := e.reserveOf(r, v.Attempt); d != nil {
				e.asked(r, d) // it may have been decided at once
				e.decided(v, d)
			}
		}
	}
	if r.Fault == "" && RequestOf(r.Data) == e.target.Request {
		e.happened(r)
	}
	if d, ok := r.Data.(*events.Verdicts); ok && r.Fault == "" {
		e.recorded(r.Seq, d)
	}
	e.lookOn()
	return nil
}

// recorded compares what was folded with what was really decided: they differ where what was before is not known.
func (e *Explainer) recorded(seq uint64, d *events.Verdicts) {
	for i := range d.Verdicts {
		v := &d.Verdicts[i]
		at, told := e.decisions[v.Attempt]
		if v.Request != e.target.Request || !told || len(e.other) >= maxTargetAttempts {
			continue
		}
		really := "refused"
		if v.Admitted {
			really = "admitted"
		}
		if outcome := e.story.Decisions[at].Outcome; outcome != really {
			e.other = append(e.other, fmt.Sprintf("attempt %d was really %s, as the verdicts at sequence %d say; folded here it is %s", v.Attempt, really, seq, outcome))
		}
	}
}

// reserveOf gives an attempt's reserve: the record's own, or one that came before.
func (e *Explainer) reserveOf(r *events.Record, attempt int64) *events.Reserve {
	if d := e.reserves[attempt]; d != nil {
		return d
	}
	if d, ok := r.Data.(*events.Reserve); ok && d.Request == e.target.Request && d.Attempt == attempt {
		return d
	}
	return nil
}

// asked notes a reserve, once.
func (e *Explainer) asked(r *events.Record, d *events.Reserve) {
	if _, known := e.decisions[d.Attempt]; known || len(e.story.Decisions) >= maxTargetAttempts {
		return
	}
	e.reserves[d.Attempt] = d
	e.decisions[d.Attempt] = len(e.story.Decisions)
	if len(e.story.Decisions) == 0 {
		s := &e.story
		s.Org, s.Workspace, s.Principal, s.Key, s.Model, s.Operation = string(d.Org), d.Workspace, d.Principal, d.Key, d.Model, d.Operation
	}
	decision := Decision{
		Attempt: d.Attempt, Seq: r.Seq, Asked: stamp(e.fold.Now()), Outcome: "waiting", Gateway: string(d.Gateway), Epoch: d.Epoch,
		Deployment: d.Deployment, Fence: d.Fence, FenceNow: e.fold.Fence(d.Org), ParkMS: d.ParkMS, PriceVersion: d.PriceVersion,
		Estimate: Estimate{d.Estimate.InputTokens, d.Estimate.OutputTokens, d.Estimate.OutputDeclared, estimateWords(d)},
	}
	if d.Mode == events.ModeBoundedLocal {
		decision.Mode = events.BoundedLocal
	}
	e.story.Decisions = append(e.story.Decisions, decision)
	e.moment(r.Seq, e.fold.Now(), "reserve", d.Attempt, reserveWords(d))
}

// waits notes what a reserve that is not decided waits for.
func (e *Explainer) waits(r *events.Record, d *events.Reserve) {
	decision := &e.story.Decisions[e.decisions[d.Attempt]]
	for i := range d.Claims {
		c := &d.Claims[i]
		reading, ok := e.fold.Reading(c.Meter)
		if !ok || !c.Park || c.Shadow || c.Kind != events.Gauge || reading.Waiting == 0 {
			continue
		}
		w := WaitedFor{Meter: string(c.Meter), Used: reading.Used, Need: c.Need(), Limit: limitOf(c), Ahead: reading.Waiting - 1}
		w.By = e.ledger.holders(c.Meter, e.target.Request, reading.Used)
		if reading.Used+c.Need() <= c.Limit && w.Ahead == 0 {
			continue // others came to it since
		}
		decision.WaitedFor = append(decision.WaitedFor, w)
	}
	names := make([]string, len(decision.WaitedFor))
	for i := range decision.WaitedFor {
		names[i] = waitedWords(&decision.WaitedFor[i])
	}
	decision.Why = "waits for " + strings.Join(names, " and ")
	e.moment(r.Seq, e.fold.Now(), "parked", d.Attempt, decision.Why)
}

func waitedWords(w *WaitedFor) string {
	text := fmt.Sprintf("%s %s", w.Meter, Number(w.Used))
	if w.Limit != nil {
		text += " of " + Number(*w.Limit)
	}
	text += ", asks " + Number(w.Need)
	if w.Ahead > 0 {
		text += fmt.Sprintf(", %d ahead", w.Ahead)
	}
	return text
}

func limitOf(c *events.Claim) *int64 {
	if !c.HasLimit {
		return nil
	}
	limit := c.Limit
	return &limit
}

// decided takes in the verdict on an attempt.
func (e *Explainer) decided(v *events.Verdict, d *events.Reserve) {
	decision := &e.story.Decisions[e.decisions[d.Attempt]]
	if decision.Decided != "" {
		return
	}
	decision.Decided, decision.ParkedMS, decision.WaitMS = stamp(v.Time), v.ParkedMS, v.WaitMS
	decision.Outcome = "refused"
	if v.Admitted {
		decision.Outcome, decision.Why = "admitted", admittedWords(v, d)
		e.account = e.ledger.accounts[v.Request]
	} else {
		decision.Why = refusedWords(v)
		decision.Refusal = refusalOf(v.Refusal)
	}
	e.moment(decision.Seq, v.Time, decision.Outcome, d.Attempt, decision.Why)
	for i := range d.Claims {
		decision.Claims = append(decision.Claims, e.claim(v, d, i))
	}
	if !v.Admitted && v.Refusal != nil && v.Refusal.Reason != events.Invalid && v.Refusal.Reason != events.Released {
		e.looking = append(e.looking, look{decision: e.decisions[d.Attempt], reserve: d, since: v.Time})
	}
}

func refusalOf(r *events.Refusal) *Refusal {
	if r == nil {
		return nil
	}
	out := &Refusal{Claim: r.Claim, Meter: string(r.Meter), Reason: string(r.Reason), Used: r.Used, Requested: r.Requested}
	if r.HasLimit {
		out.Limit = &r.Limit
	}
	if r.HasRetry {
		out.RetryAfterMS = &r.RetryMS
	}
	return out
}

// claim shows a claim at the instant of a verdict.
func (e *Explainer) claim(v *events.Verdict, d *events.Reserve, i int) Claim {
	c := &d.Claims[i]
	view := Claim{
		Meter: string(c.Meter), Kind: c.Kind.String(), Basis: c.Basis, Life: c.Life.String(), Amount: c.Amount, Need: c.Need(),
		Limit: limitOf(c), Shadow: c.Shadow, Park: c.Park, unit: unitOf(c.Kind, c.Meter),
	}
	if i < len(v.Used) {
		view.Used = v.Used[i]
	}
	others := view.Used
	if v.Admitted {
		others -= charge(c)
	}
	if view.Fits = !slices.Contains(v.Shadow, i); !v.Admitted || d.Mode == events.ModeBoundedLocal {
		view.Fits = e.fits(c, others)
	}
	view.Failed = v.Refusal != nil && v.Refusal.Claim == i
	if view.Failed {
		view.Used, view.Fits = v.Refusal.Used, false
		others = v.Refusal.Used
	}
	view.By = e.ledger.holders(c.Meter, e.target.Request, others)
	if view.Limit != nil && *view.Limit > 0 {
		view.percent = view.Used * 100 / *view.Limit
	}
	if b := e.ledger.books[c.Meter]; b != nil && b.pause != nil && c.Kind == events.Pause {
		view.Pause = fmt.Sprintf("paused for %s by %s at %s", Span(b.pause.ForMS), b.pause.Gateway, clock(b.paused))
	}
	return view
}

// charge is what an admission adds to what a claim's meter shows.
func charge(c *events.Claim) int64 {
	switch {
	case c.Kind == events.Pace, c.Kind == events.Pause, c.Kind == events.Bucket && c.Basis == events.BasisOutput:
		return 0
	}
	return c.Amount
}

// fits says whether a claim fits what its meter shows without it.
func (e *Explainer) fits(c *events.Claim, used int64) bool {
	switch c.Kind {
	case events.Pause:
		return used == 0
	case events.Pace:
		return used <= c.QueueMS
	case events.Balance:
		r, ok := e.fold.Reading(c.Meter)
		return ok && r.Total-used >= c.Need()
	}
	return !c.HasLimit || used+c.Need() <= c.Limit
}

// happened notes what a record says of the request.
func (e *Explainer) happened(r *events.Record) {
	now := e.fold.Now()
	switch d := r.Data.(type) {
	case *events.Reserve:
		_, known := e.decisions[d.Attempt]
		e.asked(r, d)
		if i, ok := e.decisions[d.Attempt]; ok && !known && e.story.Decisions[i].Decided == "" {
			e.waits(r, d)
		}
	case *events.TrueUp:
		what := "growth"
		if d.Final {
			what = "final"
		}
		e.moment(r.Seq, now, what, d.Attempt, trueUpWords(d))
		if d.Final && d.Fault == "" {
			e.final(d)
		}
	case *events.Release:
		e.moment(r.Seq, now, "release", d.Attempt, releaseWords(d))
		if d.Of == events.OfRequest {
			e.released = d
		}
	case *events.Refused:
		e.turned(r, d)
	case *events.Correction:
		e.moment(r.Seq, now, "correction", d.Attempt, correctionWords(d))
	case *events.Credit:
		e.story.Cost.Corrected += d.AmountNano
		e.moment(r.Seq, now, "credit", 0, creditWords(d))
	}
}

// final notes the first final of an admitted attempt: the bill.
func (e *Explainer) final(d *events.TrueUp) {
	for _, c := range e.story.Cost.Attempts {
		if c.Attempt == d.Attempt {
			return
		}
	}
	price := d.PriceVersion
	if reserve := e.reserves[d.Attempt]; price == "" && reserve != nil {
		price = reserve.PriceVersion
	}
	u := &d.Usage
	e.story.Cost.Attempts = append(e.story.Cost.Attempts, AttemptCost{
		Attempt: d.Attempt, Nano: d.CostNano, PriceVersion: price, Quality: d.Quality.String(),
		Usage: usageFields{u.InputTokens, u.CachedTokens, u.CacheWriteTokens, u.OutputTokens, u.ReasoningTokens},
	})
}

func (e *Explainer) turned(r *events.Record, d *events.Refused) {
	s := &e.story
	if s.Org == "" {
		s.Org, s.Workspace, s.Principal, s.Key, s.Model, s.Operation = string(d.Org), d.Workspace, d.Principal, d.Key, d.Model, d.Operation
	}
	why := gatewayRefusedWords(d)
	e.moment(r.Seq, e.fold.Now(), "refused", 0, why)
	t := TurnedAway{
		Seq: r.Seq, Time: stamp(r.At), Gate: d.Gate, Origin: d.Origin, Scope: d.Scope, Kind: d.LimitKind, Limit: d.Limit, Used: d.Used,
		Asked: d.Requested, Status: d.Status, Code: d.Code, RetryAt: d.RetryAt, Why: why,
	}
	for _, m := range metersOf(d) {
		reading, known := e.fold.Reading(m)
		if b := e.ledger.books[m]; b != nil && known && reading.Used > 0 {
			t.Meter, t.By, t.unit = string(m), e.ledger.holders(m, e.target.Request, reading.Used), unitOf(b.kind, m)
			break
		}
	}
	s.Turned = append(s.Turned, t)
}

// watchLapse notes when the lease that holds the request ends, and when it comes back.
func (e *Explainer) watchLapse(r *events.Record) {
	if e.account == nil || e.account.ended {
		return
	}
	for _, g := range e.fold.Gateways() {
		if g.Gateway != e.account.gateway || g.Lapsed == e.lapsed {
			continue
		}
		e.lapsed = g.Lapsed
		text := "its gateway's lease ended: what it held is freed"
		if !g.Lapsed {
			text = "its gateway is back: what it held is held again"
		}
		e.moment(r.Seq, e.fold.Now(), "lapse", 0, text)
	}
}

// lookOn asks whether refusals would have passed by now.
func (e *Explainer) lookOn() {
	now := e.fold.Now()
	rest := e.looking[:0]
	for _, l := range e.looking {
		decision := &e.story.Decisions[l.decision]
		decision.WouldPass = &WouldPass{Looked: stamp(now)}
		switch {
		case now > l.since && e.passes(l.reserve):
			decision.WouldPass.At, decision.WouldPass.AfterMS = stamp(now), (now-l.since+milli-1)/milli
		case now-l.since > lookBeyond:
		default:
			rest = append(rest, l)
		}
	}
	e.looking = rest
}

// passes says whether all claims of a reserve fit now.
func (e *Explainer) passes(d *events.Reserve) bool {
	if d.Fence < e.fold.Fence(d.Org) || e.fold.Recovering() != 0 {
		return false
	}
	for i := range d.Claims {
		c := &d.Claims[i]
		if c.Shadow {
			continue
		}
		r, ok := e.fold.Reading(c.Meter)
		if !ok {
			r = admission.Reading{} // empty
		}
		if c.Kind == events.Bucket && ok {
			r.Used = c.Limit - min(c.Limit, r.Limit-r.Used)
		}
		if !e.fits(c, r.Used) || c.Park && r.Waiting > 0 {
			return false
		}
	}
	return true
}

func (e *Explainer) moment(seq uint64, at int64, what string, attempt int64, text string) {
	if e.firstAt == 0 {
		e.firstAt = at
	}
	if len(e.story.Timeline) >= maxMoments && what == "growth" {
		e.dropped++
		return
	}
	e.story.Timeline = append(e.story.Timeline, Moment{
		Seq: seq, Time: stamp(at), AfterMS: (at - e.firstAt) / milli, What: what, Attempt: attempt, Text: text, at: at,
	})
}
