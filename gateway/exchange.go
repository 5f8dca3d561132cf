package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/outage"
	"github.com/weirhq/weir/gateway/policy"
	"github.com/weirhq/weir/gateway/refusal"
	"github.com/weirhq/weir/gateway/reservation"
	"github.com/weirhq/weir/gateway/trace"
	"github.com/weirhq/weir/gateway/upstream"
	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/projections/gate"
	"github.com/weirhq/weir/projections/kv"
)

// exchange is one request for a model.
type exchange struct {
	*client
	s       *Server
	op      wire.Operation
	request *wire.Request
	model   *authority.Model
	input   policy.Input
	plan    *policy.Plan
	routes  []*upstream.Route
	at      int // the route of the first attempt

	reservation *reservation.Reservation
	verdict     events.Verdict // of the attempt that claimed everything
	attempt     int64          // the newest
	local       bool           // the newest attempt went to the local pool
	own         bool           // it goes to an account of the org's own
	exact       int64          // exact input, once the upstream has told; 0 before
	settled     bool
	begun       bool            // something of an answer is leaving
	cut         bool            // it was cut off
	gone        bool            // the client did not wait for its end
	called      bool            // a model was called
	span        *trace.Span     // nil: not traced
	arrived     time.Time       // when its whole body was here
	tickets     []outage.Ticket // what it holds of the allowance
}

// serveModel is the way of every request for a model.
func (s *Server) serveModel(w http.ResponseWriter, r *http.Request, op wire.Operation) {
	c := s.begin(w, r, op.Format())
	if c == nil {
		return
	}
	x := &exchange{client: c, s: s, op: op}
	x.traced()
	defer x.answered()
	if s.inHand.Add(1) > s.config.MaxInHand || s.closed.Load() {
		s.inHand.Add(-1)
		why := "the gateway has as many requests in hand as it takes, please retry"
		if s.closed.Load() {
			why = "the gateway stops, please retry"
		}
		answer := refusal.For(refusal.Overloaded, why)
		x.refuse(&answer)
		return
	}
	defer s.inHand.Add(-1)
	if why := s.config.Ready(); why != "" {
		s.config.Meters.unusable.WithLabelValues("not_ready").Inc()
		answer := refusal.OfLog("nothing can be admitted: "+why, 0)
		x.write(&answer)
		return
	}
	if answer := x.read(); answer != nil {
		x.refuse(answer)
		return
	}
	planning := x.span.Child(spanEstimate)
	answer := x.prepare()
	planning.End()
	if answer != nil {
		x.refuse(answer)
		return
	}
	defer x.cutOff()
	defer x.release()
	x.run()
}

// answered counts the answer by the class of its status and the origin of its error. It runs last, also while a panic cuts the answer off.
func (x *exchange) answered() {
	class, origin := "none", x.origin
	if x.status > 0 {
		class = strconv.Itoa(x.status/100) + "xx"
	}
	switch {
	case x.gone:
		class = "left"
	case x.cut:
		class = "aborted"
	}
	if origin == "" {
		origin = "none"
	}
	x.s.config.Meters.responses.WithLabelValues(x.op.String(), class, origin).Inc()
	x.told(class, origin)
}

// cutOff aborts the connection when the handler panics in the middle of an answer: with anything else the client would take the part
// for the whole.
func (x *exchange) cutOff() {
	if !x.begun {
		return
	}
	v := recover()
	if v == nil {
		return
	}
	x.cut = true
	if err, ok := v.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
		x.s.panicked(x.id, v)
	}
	panic(http.ErrAbortHandler)
}

// read takes in the body and finds the model.
func (x *exchange) read() *refusal.Answer {
	body, answer := x.body()
	if answer != nil {
		return answer
	}
	x.arrived = x.s.config.Now()
	if a := x.renewed(); a != nil {
		return a
	}
	request, err := wire.Parse(x.op, body)
	if err != nil {
		var bad *wire.BadRequest
		if !errors.As(err, &bad) {
			bad = &wire.BadRequest{Message: err.Error(), Code: wire.CodeMalformed}
		}
		a := refusal.OfField(bad)
		return &a
	}
	x.request = request
	model, local := policy.Lookup(x.snap, x.key, request.Model)
	if local != nil {
		a := refusal.OfLocal(local)
		return &a
	}
	x.model = model
	return nil
}

// bodyWithin bounds how long a client may take to send a body.
const bodyWithin = 2 * time.Minute

// body reads the body, within its bounds.
func (x *exchange) body() ([]byte, *refusal.Answer) {
	most := x.s.config.MaxRequestBytes
	tooLarge := func() *refusal.Answer {
		a := refusal.For(refusal.BodyTooLarge, "the body is larger than "+itoa(most)+" bytes")
		return &a
	}
	if x.r.ContentLength > most {
		return nil, tooLarge()
	}
	control := http.NewResponseController(x.w)
	_ = control.SetReadDeadline(x.s.config.Now().Add(bodyWithin)) // where it cannot be set, the client's own patience is the bound
	defer func() { _ = control.SetReadDeadline(time.Time{}) }()
	in := http.MaxBytesReader(x.w, x.r.Body, most)
	var body []byte
	var err error
	if n := x.r.ContentLength; n > 0 {
		body = make([]byte, n)
		_, err = io.ReadFull(in, body)
	} else {
		body, err = io.ReadAll(in)
	}
	if err == nil {
		return body, nil
	}
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return nil, tooLarge()
	}
	a := refusal.OfField(&wire.BadRequest{Message: "the body could not be read to its end: " + err.Error(), Code: wire.CodeMalformed})
	return nil, &a
}

// prepare plans the first attempt, and refuses what this gateway can refuse by itself.
func (x *exchange) prepare() *refusal.Answer {
	if a := x.planned(); a != nil {
		return a
	}
	if a := x.seen(x.plan.Claims[:x.plan.Rates]); a != nil {
		return a
	}
	if x.plan.Refusal != nil {
		a := refusal.OfLocal(x.plan.Refusal)
		return &a
	}
	return x.seen(x.plan.Claims[x.plan.Rates:])
}

// route finds where the request can go and plans it. It gives an answer if that is nowhere.
func (x *exchange) route() *refusal.Answer {
	set := x.s.config.Upstream
	x.routes, _ = set.Routes(x.model.ID, x.op, string(x.key.Org))
	if len(x.routes) == 0 {
		a := refusal.OfLocal(&policy.Local{Cause: policy.UnsupportedEndpoint, Model: x.model.ID})
		return &a
	}
	signals, first := set.Signals(x.model.ID), x.routes[0]
	x.input = policy.Input{
		Snapshot: x.snap, Key: x.key, Model: x.model, Request: x.request,
		Target:   policy.Target{Local: first.Local, Pool: first.Pool, Own: first.Own},
		OwnOnly:  !slices.ContainsFunc(x.routes, func(r *upstream.Route) bool { return !r.Own }),
		Ratio:    x.s.config.Ratio(x.model.ID),
		Healthy:  int64(set.Healthy(x.model.ID)),
		Pressure: policy.Pressure{KVCache: signals.KV, HasKVCache: signals.HasKV, Waiting: signals.Waiting, HasWaiting: signals.HasWaiting},
		Settings: x.s.config.Settings, Now: x.s.config.Now(),
	}
	x.plan = policy.New(&x.input)
	return nil
}

// seen refuses what a fresh view shows over, without asking the log.
func (x *exchange) seen(claims []events.Claim) *refusal.Answer {
	if x.s.config.View == nil {
		return nil
	}
	now := x.s.config.Now()
	_, hint, over := x.s.config.View.RefusesAny(claims, now)
	if !over {
		return nil
	}
	x.s.config.Meters.view.Inc()
	a := refusal.OfVerdict(refusalOf(&hint), now)
	return &a
}

// refusalOf is what the fold would say of what the view shows.
func refusalOf(h *kv.Hint) *events.Refusal {
	return &events.Refusal{Meter: h.Meter, Reason: h.Reason, Used: h.Used, Limit: h.Limit, HasLimit: h.HasLimit, Requested: h.Requested, RetryMS: h.RetryMS, HasRetry: true}
}

// refuse answers with a refusal of the gateway's own, and reports it for the audit.
func (x *exchange) refuse(a *refusal.Answer) {
	x.count(a)
	d := &events.Refused{Request: x.id, Org: x.key.Org, Workspace: x.key.Workspace, Principal: x.key.Principal, Key: x.key.ID, Operation: x.op.String()}
	if x.request != nil {
		d.Model = x.request.Model
	}
	a.Record(d)
	x.s.config.Reporter.Refused(d)
	x.write(a)
}

// count counts a refusal by its gate and the kind of its limit.
func (x *exchange) count(a *refusal.Answer) {
	gate, model := string(a.Gate), "_"
	if gate == "" {
		gate = a.Code
	}
	if x.model != nil { // never a name that a client made up
		model = x.model.ID
	}
	x.s.config.Meters.refusals.WithLabelValues(gate, a.Kind, model).Inc()
}

// run reserves, and when admitted makes the calls.
func (x *exchange) run() {
	for {
		first, done, picked := x.first()
		x.own = first.Own
		admitted, again := x.admitted(first.Deployment)
		if admitted && x.pace() {
			defer x.bound()()
			x.attempts(first, done, picked)
			return
		}
		if done(barred, 0); !again {
			return
		}
	}
}

// admitted asks the log, or the gateway's own allowance while it is out of reach. It answers unless the request is admitted, or planned
// anew: then it is to be asked again.
func (x *exchange) admitted(deployment string) (admitted, again bool) {
	if x.s.without() {
		return x.alone(deployment), false
	}
	if x.reservation == nil {
		x.reservation = x.s.config.Book.Begin(x.id, x.key.Org)
	}
	return x.reserve(deployment)
}

// verdictOn publishes the claims of the newest attempt and waits for the verdict.
func (x *exchange) verdictOn(claims []events.Claim, deployment string) (events.Verdict, error) {
	span := x.span.Child(spanReserve)
	x.reservation.Trace(span.Parent())
	v, err := x.reservation.Reserve(x.r.Context(), x.event(claims, deployment))
	decided(span, &v, err)
	return v, err
}

// reserve publishes the claims and waits for the verdict. A request whose fence was stale is planned anew, once.
func (x *exchange) reserve(deployment string) (admitted, again bool) {
	begin := x.s.config.Now()
	v, err := x.verdictOn(x.plan.Claims, deployment)
	if err != nil && x.missed(err) {
		return x.alone(deployment), false
	}
	if err != nil {
		x.undecided(err)
		return false, false
	}
	x.verdict = v
	took := x.s.config.Now().Sub(begin) - time.Duration(v.ParkedMS)*time.Millisecond
	x.s.config.Meters.admission.Observe(max(took, 0).Seconds())
	x.parked(&v)
	if v.Admitted {
		x.shadowed(&v)
		return true, false
	}
	if v.Refusal.Reason == events.StaleFence {
		x.s.config.Meters.stale.Inc()
	}
	a := refusal.OfVerdict(v.Refusal, time.Unix(0, v.Time))
	if v.Refusal.Reason == events.StaleFence && x.attempt == 0 {
		now, newer := x.refreshed()
		if newer && now == nil {
			x.attempt++
			x.verdict = events.Verdict{} // it stands as if it were the first
			return false, true
		}
		if now != nil {
			a = *now
		}
	}
	x.count(&a)
	x.write(&a)
	return false, false
}

// shadowed counts what shadow limits would have refused.
func (x *exchange) shadowed(v *events.Verdict) {
	for _, i := range v.Shadow {
		if i >= 0 && int(i) < len(x.plan.Claims) {
			w := gate.Which(x.plan.Claims[i].Meter)
			x.s.config.Meters.shadows.WithLabelValues(w.Scope, w.Kind, x.model.ID).Inc()
		}
	}
}

// parked notes how long a request waited for occupancy.
func (x *exchange) parked(v *events.Verdict) {
	if x.plan.ParkMS == 0 || v.ParkedMS == 0 {
		return
	}
	outcome := "refused"
	if v.Admitted {
		outcome = "admitted"
	}
	x.s.config.Meters.parked.WithLabelValues(x.model.ID, outcome).Observe(float64(v.ParkedMS) / 1000)
}

// event is the reserve of the newest attempt.
func (x *exchange) event(claims []events.Claim, deployment string) *events.Reserve {
	d := &events.Reserve{
		Request: x.id, Attempt: x.attempt, Org: x.key.Org, Workspace: x.key.Workspace, Principal: x.key.Principal, Key: x.key.ID,
		Model: x.request.Model, Deployment: deployment, Operation: x.op.String(),
		Gateway: x.s.config.Gateway, Epoch: x.s.config.Book.Epoch(), Fence: x.snap.Fence(x.key.Org),
		MaxMS: x.plan.MaxMS, PriceVersion: x.plan.PriceVersion(), BYOK: x.own, Estimate: x.plan.Recorded, Claims: claims,
	}
	if x.verdict.Seq == 0 { // a fallback does not wait
		d.ParkMS = x.plan.ParkMS
	}
	return d
}

// undecided answers a request on which no verdict could be had.
func (x *exchange) undecided(err error) {
	if reservation.Gone(err) {
		x.gone = true
		x.s.config.Meters.unusable.WithLabelValues("client_gone").Inc()
		return
	}
	var why *reservation.Unavailable
	if errors.As(err, &why) && why.Overloaded {
		x.s.config.Meters.unusable.WithLabelValues("overloaded").Inc()
		a := refusal.For(refusal.Overloaded, "too many requests wait for their admission, please retry")
		x.write(&a)
		return
	}
	x.s.config.Meters.unusable.WithLabelValues("no_verdict").Inc()
	x.s.config.Logger.Warn("no verdict", "request", x.id, "error", err)
	message := "the request could not be admitted: the log did not answer in time, please retry"
	if why := x.s.config.Ready(); why != "" { // learned while it waited
		message = "nothing can be admitted: " + why
	}
	a := refusal.OfLog(message, 0)
	x.write(&a)
}

// pace waits for a paced request's slot. It gives false when the client has left meanwhile.
func (x *exchange) pace() bool {
	if x.verdict.WaitMS == 0 {
		return true
	}
	wait := time.NewTimer(time.Duration(x.verdict.WaitMS) * time.Millisecond)
	defer wait.Stop()
	select {
	case <-wait.C:
		return true
	case <-x.r.Context().Done():
		x.reservation.End(events.Release{Outcome: events.Cancelled, Dispatched: events.DispatchedNo})
		x.ended(events.Cancelled)
		return false
	}
}

// release makes sure that nothing is held when the request is over, whatever happened, a panic included.
func (x *exchange) release() {
	x.handBack()
	if x.reservation != nil && !x.reservation.Ended() {
		x.last(x.reservation.Owed(events.TrueUp{Final: true, Quality: events.QualityNone, PriceVersion: x.plan.PriceVersion()}))
		x.reservation.End(events.Release{Outcome: events.Failed, Dispatched: events.DispatchedUnknown})
	}
}

// stopped is the cause of contexts that end because the gateway stops.
var errStopped = errors.New("the gateway stops")

// Stop ends the calls under way with an error in their streams: what is left when a drain takes too long.
func Stop(cancel context.CancelCauseFunc) { cancel(errStopped) }
