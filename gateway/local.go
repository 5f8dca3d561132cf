package gateway

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/estimate"
	"github.com/weirhq/weir/gateway/outage"
	"github.com/weirhq/weir/gateway/policy"
	"github.com/weirhq/weir/gateway/refusal"
	"github.com/weirhq/weir/gateway/reservation"
)

// modeHeader marks what was admitted otherwise than by the log.
const modeHeader = "X-Tm-Admission-Mode"

// Reach knows whether the log can be reached.
type Reach interface {
	// Out says that it cannot: nobody waits for it then.
	Out() bool
	// Missed is asked after a reserve without a verdict, for the reason in err. It says whether that was for want of the log, or of every projector, rather than
	// a log that is slow or full, or projectors that may not answer.
	Missed(ctx context.Context, err error) bool
	// Gateways is how many serve, as far as is known; at least 1.
	Gateways() int64
}

// Allowance is what the gateway may admit by itself while the log is out of reach. Its methods may be called at the same time.
type Allowance struct {
	now func() time.Time
	mu  sync.Mutex
	a   *outage.Allowance
}

// NewAllowance makes one that grants nothing yet.
func NewAllowance(now func() time.Time) *Allowance { return &Allowance{now: now, a: outage.New()} }

// Failed notes that the log is out of reach.
func (a *Allowance) Failed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.a.Failed(a.now())
}

// Stop notes why projectors that can be reached may not answer, until they do: then nothing is admitted. It says whether that is news. An empty
// reason says that they answer.
func (a *Allowance) Stop(why string) (news bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	news = a.a.Stopped() != why
	a.a.Stop(why)
	return news
}

// Stopped is why projectors may not answer, as far as is known; empty: they may.
func (a *Allowance) Stopped() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.a.Stopped()
}

// Until says when the allowance of all but dedicated endpoints is over; zero before the first failure.
func (a *Allowance) Until() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.a.Until(false)
}

func (a *Allowance) admit(r *outage.Request) outage.Decision {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.a.Admit(a.now(), r)
}

func (a *Allowance) done(t outage.Ticket) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.a.Done(t)
}

// without says whether requests are not to wait for the log.
func (s *Server) without() bool { return s.config.Reach != nil && s.config.Reach.Out() }

// missed says whether a reserve got no verdict because the log is out of reach.
func (x *exchange) missed(err error) bool {
	var why *reservation.Unavailable
	if x.s.config.Reach == nil || !errors.As(err, &why) || why.Overloaded {
		return false
	}
	return x.s.config.Reach.Missed(x.r.Context(), err)
}

// alone admits the request's first attempt from the gateway's own allowance, and answers unless it is admitted.
//
// After a reserve that stayed unanswered the request goes on under an id of its own. The unanswered one may be in the log, and may have
// been admitted there: as an attempt of the same request it would keep charging, and trueing up, the same windows and caps a second time,
// and the request could have no balance claim. As another request it is released whole, proven not to have been dispatched.
func (x *exchange) alone(deployment string) bool {
	if a := x.unheard(); a != nil {
		x.refuse(a)
		return false
	}
	if x.reservation != nil {
		x.id = x.s.config.NewID()
		h := x.w.Header()
		h["X-Request-Id"], h["Request-Id"] = []string{string(x.id)}, []string{string(x.id)}
	}
	x.attempt, x.reservation = 0, x.s.config.Book.BeginLocal(x.id, x.key.Org)
	x.shorten()
	d := x.granted(x.asked(x.plan.Claims))
	if d == nil || !x.intend(x.plan.Claims, deployment) {
		return false
	}
	x.verdict = events.Verdict{Request: x.id, Time: x.s.config.Now().UnixNano(), Admitted: true, WaitMS: (d.Wait + time.Millisecond - 1).Milliseconds()}
	x.w.Header()[modeHeader] = []string{events.BoundedLocal}
	return true
}

// shorten plans a request that declares no output anew, with one that the allowance has room for. Dedicated endpoints have their own
// limits for an allowance, and need none.
func (x *exchange) shorten() {
	if x.model.Dedicated != nil || x.request.Output.Declared || !x.op.Generates() {
		return
	}
	x.input.MaxUndeclared = outage.MaxUndeclared
	x.plan = policy.New(&x.input) // what was not refused with a larger output is not refused now
}

// aloneAgain admits a further attempt likewise: the pools of its account, as the request itself is counted already.
func (x *exchange) aloneAgain(claims []events.Claim, deployment string) bool {
	x.attempt++
	if a := x.seen(claims); a != nil {
		x.refuse(a)
		return false
	}
	return x.granted(x.asked(claims)) != nil && x.intend(claims, deployment)
}

// granted asks the allowance, and answers if it grants nothing.
func (x *exchange) granted(r *outage.Request) *outage.Decision {
	d := x.s.config.Allowance.admit(r)
	if d.Admitted {
		x.tickets = append(x.tickets, d.Ticket)
		return &d
	}
	x.s.config.Meters.unusable.WithLabelValues("outage_" + string(d.Reason)).Inc()
	why := "the log is out of reach, and what this gateway may admit without it is used up, please retry"
	switch {
	case d.Reason == outage.Stopped:
		why = "nothing can be admitted: " + x.s.config.Allowance.Stopped()
	case d.Reason == outage.Closed:
		why = "the log is out of reach, and nothing is admitted without it here, please retry"
	case d.Reason == outage.TooLarge && d.Retry == 0 && !x.plan.Estimate.IsDeclared: // the request alone
		why = "the log is out of reach, and without it this gateway admits few tokens: a shorter request may pass, or this one later, please retry"
	case d.Reason == outage.TooLarge && d.Retry == 0:
		why = "the log is out of reach, and without it this gateway admits few tokens: with a smaller max_tokens the request may pass, or later, please retry"
	}
	a := refusal.OfLog(why, d.Retry.Milliseconds())
	x.refuse(&a)
	return nil
}

// intend puts the attempt's intent on the disk, and answers if that cannot be done.
func (x *exchange) intend(claims []events.Claim, deployment string) bool {
	d := x.event(claims, deployment)
	d.Mode, d.At, d.ParkMS = events.ModeBoundedLocal, x.s.config.Now().UnixNano(), 0
	x.reservation.Trace(x.span.Parent())
	err := x.reservation.Intend(d)
	if err == nil {
		return true
	}
	x.s.config.Meters.unusable.WithLabelValues("no_intent").Inc()
	x.s.config.Logger.Error("no intent", "request", x.id, "error", err)
	a := refusal.OfLog("the log is out of reach, and the request could not be noted down for it, please retry", 0)
	x.write(&a)
	return false
}

// handBack gives back what the request held of the allowance.
func (x *exchange) handBack() {
	for _, t := range x.tickets {
		x.s.config.Allowance.done(t)
	}
	x.tickets = nil
}

// closed says whether any scope that applies admits nothing without the log.
func (x *exchange) closed() bool { return closed(x.snap, x.key, x.model) }

// closed says whether any scope of a key and a model admits nothing without the log.
func closed(snap *authority.Snapshot, key *authority.Key, model *authority.Model) bool {
	for _, s := range snap.Scopes(key) {
		if s.Limits.Closed {
			return true
		}
	}
	if org := snap.Orgs[key.Org]; org != nil && org.Models[model.ID].Closed {
		return true
	}
	return model.Dedicated != nil && model.Dedicated.Limits.Closed
}

// errLapsed is the cause of calls that end because the lease could not be renewed.
var errLapsed = errors.New("the gateway could not renew its lease")

// bound ends the request's calls when the lease is about to end, if a scope is closed without the log.
func (x *exchange) bound() (end func()) {
	if !x.closed() {
		return func() {}
	}
	ctx, cancel := context.WithCancelCause(x.r.Context())
	x.r = x.r.WithContext(ctx)
	x.reservation.EndBy(func() { cancel(errLapsed) })
	return func() { cancel(nil) }
}

// asked is what claims ask of the allowance: by scope what its limits are, and what was known to be left where nothing flows back. A
// first attempt also asks the org and the key, which may have no limits of their own.
func (x *exchange) asked(claims []events.Claim) *outage.Request {
	tokens := estimate.Add(x.plan.Estimate.Reservation, x.plan.Estimate.Counted)
	r := &outage.Request{Dedicated: x.model.Dedicated != nil, Gateways: x.s.config.Reach.Gateways(), Closed: x.closed()}
	byName := map[string]int{}
	scope := func(name string) *outage.Scope {
		i, ok := byName[name]
		if !ok {
			i = len(r.Scopes)
			byName[name] = i
			r.Scopes = append(r.Scopes, outage.Scope{Name: name, Tokens: tokens, Endpoint: strings.HasPrefix(name, string(events.ScopeEndpoint)+"/")})
		}
		return &r.Scopes[i]
	}
	for i := range claims {
		if c := &claims[i]; !c.Shadow {
			x.ask(r, c, scope)
		}
	}
	if !r.Dedicated && x.attempt == 0 {
		scope(nameOf(events.NewMeter(events.ScopeOrg, "", string(x.key.Org))))
		scope(nameOf(events.NewMeter(events.ScopeKey, "", x.key.ID)))
	}
	return r
}

// nameOf is a meter's scope and subject.
func nameOf(m events.Meter) string { return string(m[:strings.LastIndexByte(string(m), '/')]) }

// ask adds one claim.
func (x *exchange) ask(r *outage.Request, c *events.Claim, scope func(name string) *outage.Scope) {
	_, _, dimension := c.Meter.Split()
	name := nameOf(c.Meter)
	switch {
	case dimension == "rpm" && c.HasLimit:
		scope(name).RPM = c.Limit
	case dimension == "rps" && c.HasLimit:
		scope(name).RPS = c.Limit
	case dimension == "tpm" && c.HasLimit:
		s := scope(name)
		s.TPM, s.Tokens = c.Limit, max(s.Tokens, c.Amount)
	case dimension == "concurrency" && c.HasLimit:
		scope(name).Concurrency = c.Limit
	case c.Kind == events.Pace:
		s := scope(name)
		s.PaceRPS, s.Queue = c.Limit, time.Duration(c.QueueMS)*time.Millisecond
	case c.Kind == events.Gauge && c.HasLimit:
		r.Gauges = append(r.Gauges, outage.Gauge{Name: string(c.Meter), Amount: c.Amount, Limit: c.Limit})
	case c.Kind == events.Budget && c.HasLimit, c.Kind == events.Bucket, c.Kind == events.Balance:
		r.Sums = append(r.Sums, outage.Sum{Name: string(c.Meter), Amount: c.Amount, Need: c.Need(), Left: x.left(c)})
	}
}

// left is what the view last showed to be left of a meter. Of a balance that it does not show nothing is; of a limit all of it.
func (x *exchange) left(c *events.Claim) int64 {
	if x.s.config.View == nil {
		return math.MinInt64
	}
	known, ok := x.s.config.View.Remaining(c.Meter, c.Limit, x.s.config.Now())
	if !ok && c.Kind == events.Balance {
		return math.MinInt64
	}
	return known.Remaining
}
