package gateway

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/anthropic"
	"github.com/weirhq/weir/gateway/estimate"
	"github.com/weirhq/weir/gateway/policy"
	"github.com/weirhq/weir/gateway/refusal"
	"github.com/weirhq/weir/gateway/relay"
	"github.com/weirhq/weir/gateway/upstream"
	"github.com/weirhq/weir/gateway/wire"
)

// barred is how a call ended that was not made.
const barred = relay.Barred

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// pick chooses a target of a route. Without one, done does nothing, and the deployment names the route.
func (x *exchange) pick(route int) (upstream.Target, upstream.Done, bool) {
	t, done, ok := x.routes[route].Pick()
	if !ok {
		return upstream.Target{Deployment: x.routes[route].Deployment, Own: x.routes[route].Own}, func(relay.Kind, int) {}, false
	}
	return t, done, true
}

// first chooses the first attempt's target: of the local pool that of the first step that has one.
func (x *exchange) first() (t upstream.Target, done upstream.Done, picked bool) {
	for x.at = 0; ; x.at++ {
		t, done, picked = x.pick(x.at)
		if next := x.at + 1; picked || next == len(x.routes) || !x.routes[next].Local {
			return t, done, picked
		}
	}
}

// attempts calls one target after the other until one has answered the client, or none is left.
func (x *exchange) attempts(target upstream.Target, done upstream.Done, picked bool) {
	route := x.at
	x.local = x.routes[route].Local
	var last *relay.Result
	for {
		if picked {
			last = x.send(target)
			done(last.Kind, last.Status)
			x.s.config.Meters.attempts.WithLabelValues(target.Provider, last.Kind.String()).Inc()
			if !last.Retryable() {
				x.finish(last)
				return
			}
			x.cool(route, last)
		}
		for {
			target, done, picked = x.pick(route)
			if picked {
				break
			}
			if route++; route == len(x.routes) {
				x.exhausted(last)
				return
			}
			if x.local && !x.routes[route].Local {
				x.reservation.Leave()
				x.local = false
			}
		}
		if !x.again(target, last) {
			done(barred, 0)
			return
		}
	}
}

// again ends the attempt that failed and reserves for the next one. It answers and gives false unless that is admitted.
func (x *exchange) again(target upstream.Target, failed *relay.Result) bool {
	if failed != nil {
		x.endAttempt(failed)
	} else {
		x.reservation.EndAttempt(events.Release{Outcome: events.NotDispatched, Dispatched: events.DispatchedNo})
	}
	x.own = target.Own
	claims, local := policy.AttemptClaims(&x.input, x.plan, policy.Target{Local: target.Local, Pool: target.Pool, Own: target.Own})
	if local != nil {
		a := refusal.OfLocal(local)
		x.lost(failed)
		x.refuse(&a)
		return false
	}
	if x.reservation.Local() {
		if x.aloneAgain(claims, target.Deployment) {
			return true
		}
		x.lost(failed)
		return false
	}
	x.attempt++
	v, err := x.verdictOn(claims, target.Deployment)
	if err != nil {
		x.lost(failed)
		x.undecided(err)
		return false
	}
	if !v.Admitted {
		a := refusal.OfVerdict(v.Refusal, time.Unix(0, v.Time))
		x.lost(failed)
		x.count(&a)
		x.write(&a)
		return false
	}
	return true
}

// lost ends a request whose last attempt has ended and that gets no other.
func (x *exchange) lost(failed *relay.Result) {
	d := events.Release{Outcome: events.Failed, Dispatched: events.DispatchedNo}
	if failed != nil {
		d.Dispatched = failed.Dispatched
		if failed.Dispatched != events.DispatchedNo {
			x.last(x.reservation.Owed(events.TrueUp{Final: true, Quality: events.QualityNone, PriceVersion: x.plan.PriceVersion()}))
		}
	}
	x.reservation.End(d)
	x.ended(events.Failed)
}

// send makes one call.
func (x *exchange) send(target upstream.Target) *relay.Result {
	if x.op != wire.CountTokens {
		return x.call(target, x.w)
	}
	counted := &countWriter{ResponseWriter: x.w}
	r := x.call(target, counted)
	if r.Kind == relay.Completed {
		counted.finish(r.Usage.Input)
	}
	return r
}

func (x *exchange) call(target upstream.Target, w http.ResponseWriter) *relay.Result {
	x.beforeCall()
	span, header := x.span.Call(spanCall, x.r.Header)
	c := &relay.Call{
		Operation: x.op, Stream: x.request.Stream, HideUsage: x.request.NeedsUsage(), Apart: target.Apart,
		RequestID: string(x.id), URL: target.URL, Local: target.Local,
		Header: relay.Outgoing(x.format, string(x.id), header, target.Header, x.s.config.Forward...),
		Body:   x.request.Rewrite(wire.Edit{Model: target.Model, Usage: true, Bound: x.plan.Bound, OldField: target.OldField}),
		Guard:  x.reservation.Held, Dialect: target.Dialect,
		Commit: func(status int, h http.Header) { x.status = status; x.headers(h) },
		Ending: x.settle,
	}
	if target.Local {
		c.Progress = x.grow
	}
	r := x.s.config.Relay.Do(x.r.Context(), w, c)
	called(span, &target, x.attempt, r)
	return r
}

// beforeCall notes how long the whole request was here before the first call, less what it waited for its place.
func (x *exchange) beforeCall() {
	if x.called {
		return
	}
	x.called = true
	waited := time.Duration(x.verdict.ParkedMS+x.verdict.WaitMS) * time.Millisecond
	x.s.config.Meters.added.Observe(max(x.s.config.Now().Sub(x.arrived)-waited, 0).Seconds())
}

// headers are those of an admitted request.
func (x *exchange) headers(h http.Header) {
	x.begun = true
	refusal.Admitted(h, x.format, x.plan.Claims, &x.verdict)
}

// grow publishes what a running request occupies of its model: exact input as soon as it is known, and output as it streams.
func (x *exchange) grow(m relay.Meter) {
	usage, explicit := m.Usage()
	first := false
	if explicit.Has(wire.FieldInput) && usage.Input > 0 && x.exact == 0 {
		x.exact, first = usage.Input, true
	}
	c, ok := x.plan.Growth(x.exact, estimate.Streamed(m.OutputBytes()))
	if !ok {
		return
	}
	if first {
		x.reservation.Correct(c)
		return
	}
	x.reservation.Grow(c.Amount)
}

// cool pauses a provider account that asked for it: its own pool, on every gateway, for as long as it asked. An error of unknown
// scope pauses nothing.
func (x *exchange) cool(route int, r *relay.Result) {
	if r.Status != http.StatusTooManyRequests {
		return
	}
	chain := x.snap.Chain(x.routes[route].Pool)
	if len(chain) == 0 {
		return
	}
	wait := r.RetryAfter
	if wait <= 0 {
		wait = time.Second
	}
	wait = x.s.config.Book.Cool(chain[0].Pause, wait)
	if x.s.config.View != nil {
		x.s.config.View.Pause(chain[0].Pause, x.s.config.Now(), wait)
	}
}

// finish settles a call after which no other is made, and answers unless it did.
func (x *exchange) finish(r *relay.Result) {
	x.settle(r)
	x.gone = r.Kind == relay.ClientGone
	if r.Truncated {
		panic(http.ErrAbortHandler) // or the client would take the part for the whole
	}
	if !r.Started {
		x.failed(r)
	}
}

// exhausted settles and answers when nothing is left to try.
func (x *exchange) exhausted(last *relay.Result) {
	if last != nil {
		x.finish(last)
		return
	}
	x.reservation.End(events.Release{Outcome: events.NotDispatched, Dispatched: events.DispatchedNo, Status: http.StatusServiceUnavailable})
	x.ended(events.NotDispatched)
	a := refusal.ForModel(refusal.NoCapacity, x.model.ID, "no healthy server of this model is available, please retry")
	x.write(&a)
}

// failed answers for a call that gave the client nothing.
func (x *exchange) failed(r *relay.Result) {
	var a refusal.Answer
	switch r.Kind {
	case relay.ClientGone:
		return
	case relay.UpstreamStatus:
		x.forward(r)
		return
	case relay.FirstByteTimeout, relay.IdleTimeout:
		a = refusal.ForModel(refusal.TimedOut, x.model.ID, "the model did not answer in time")
	case relay.Barred:
		a = refusal.OfLog("the request was not sent: this gateway could not renew its lease", 0)
	case relay.Stopped:
		a = refusal.For(refusal.Overloaded, "the gateway stops, please retry")
		if context.Cause(x.r.Context()) == errLapsed { //nolint:errorlint // the very one
			a = refusal.OfLog("the call was ended: the log is out of reach, and nothing runs on without it here", 0)
		}
	default:
		a = refusal.ForModel(refusal.NoCapacity, x.model.ID, "the model's server could not be reached or broke off, please retry")
	}
	x.write(&a)
}

// forward passes an upstream's own error on, in its own words.
func (x *exchange) forward(r *relay.Result) {
	a := refusal.OfUpstream(r.Status, "upstream_error", "the model's server answered with an error", x.model.ID, r.RetryAfter.Milliseconds())
	if r.Answer == nil || len(r.Answer.Body) == 0 {
		x.write(&a)
		return
	}
	h := x.w.Header()
	for name, v := range r.Answer.Header {
		h[name] = v
	}
	a.Headers(h)
	x.headers(h)
	x.status, x.origin = r.Status, a.Origin
	x.w.WriteHeader(r.Status)
	_, _ = x.w.Write(r.Answer.Body) // a client that is gone needs no answer
}

// countWriter answers a token count with the number and nothing else, whatever the provider said beside it.
type countWriter struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

// maxCount bounds the answer to a token count that is read.
const maxCount = 64 << 10

// WriteHeader keeps the status until the count is known.
func (w *countWriter) WriteHeader(status int) { w.status = status }

// Write takes in the provider's answer.
func (w *countWriter) Write(p []byte) (int, error) {
	if w.body.Len()+len(p) <= maxCount {
		w.body.Write(p)
	}
	return len(p), nil
}

// Flush does nothing before the count is known.
func (w *countWriter) Flush() {}

func (w *countWriter) finish(tokens int64) {
	h := w.Header()
	h["Content-Type"] = jsonContent
	delete(h, "Content-Length")
	w.ResponseWriter.WriteHeader(max(w.status, http.StatusOK))
	_, _ = w.ResponseWriter.Write(anthropic.CountBody(tokens)) // a client that is gone needs no answer
}
