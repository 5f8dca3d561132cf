// Package refusal says what a client gets when its request is refused or fails before a model answers: one table from what
// happened to status, code, words, headers and body, in the shape of the SDK in use. It also writes the limit headers of requests
// that were admitted.
package refusal

import (
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/anthropic"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/openai"
	"github.com/weirhq/weir/gateway/policy"
	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/projections/gate"
)

// Answer is a refusal as the client gets it.
type Answer struct {
	Status  int
	Code    string
	Message string
	Param   string // the field at fault; usually empty

	Gate    gate.Gate
	Origin  string
	Scope   string
	Kind    string
	LimitID string

	Limit     int64
	HasLimit  bool
	Used      int64
	Requested int64

	RetryMS    int64     // retry-after-ms, and in seconds retry-after; 0: neither
	AdviceMS   int64     // retry_after_ms inside the body; 0: not known
	ShouldStop bool      // x-should-retry: false
	ResetsAt   time.Time // zero: not known
}

// soonMS is how long a client may be told to wait: what does not pass within it is not worth repeating. It is a rolling minute with its
// partial second, or a full window would be given up in its first second and waited for in the others.
const soonMS = 61_000

// headerMS is the longest wait in the headers of what is worth repeating: SDKs wait no longer than a minute, and with more would come
// back at once. Who comes a second too early is told to wait that second. The body has the exact time.
const headerMS = 60_000

// wait gives what the headers tell of a wait, and whether it is too long to be worth one.
func wait(ms int64) (header int64, stop bool) {
	if ms > soonMS {
		return ms, true
	}
	return min(ms, headerMS), false
}

// secondMS is the wait of refusals whose end nobody knows.
const secondMS = 1_000

// retry says what a row tells the client about trying again.
type retry uint8

const (
	never    retry = iota
	second         // in a second
	folded         // when the fold says
	advised        // in a second; when the fold says stands in the body
	reset          // when the period ends, and no sooner
	restOr1s       // when the fold says, else in a second
)

// row is one line of the error table.
type row struct {
	status int
	code   string
	origin string
	retry  retry
}

// retries say what each gate's refusals tell the client about trying again. Status, code and origin are the gate's own.
var retries = map[gate.Gate]retry{
	gate.Limits: folded, gate.Pace: folded,
	gate.B1: never, gate.B2: second, gate.B3: second, gate.B4: advised,
	gate.Daily: reset, gate.Spend: reset, gate.Balance: never,
	gate.Pool: folded, gate.Fairness: folded, gate.Pause: folded,
	gate.Unknown: second,
}

func rowOf(g gate.Gate) row {
	own := g.Row()
	return row{own.Status, own.Code, own.Origin, retries[g]}
}

// Cause is what went wrong other than a claim.
type Cause uint8

// The causes.
const (
	Overloaded               Cause = iota // the gateway has as many requests in hand as it takes
	NoCapacity                            // no healthy replica, or their queue is full
	TimedOut                              // the upstream did not answer in time
	Infrastructure                        // log, projector or ledger
	AuthorizationUnavailable              // stale fence twice, snapshot expired
	Unauthorized
	ModelNotFound
	GenerationNotFound
	NotFound // no such path
	CapacityUnknown
	PriceUnknown
	Unsupported // no route speaks the request's format
	InvalidField
	BodyTooLarge
	MethodNotAllowed
)

// causes is the table for everything else.
var causes = [...]struct {
	row
	scope, kind string
}{
	Overloaded:               {row{503, "overloaded", gate.OriginAdmission, second}, "worker", "health"},
	NoCapacity:               {row{503, "no_capacity", gate.OriginUpstream, second}, "model", ""},
	TimedOut:                 {row{504, "request_timeout", gate.OriginUpstream, second}, "model", ""},
	Infrastructure:           {row{503, "gateway_infrastructure", gate.OriginInfrastructure, restOr1s}, "", ""},
	AuthorizationUnavailable: {row{503, "authorization_unavailable", gate.OriginAuthorization, second}, "", ""},
	Unauthorized:             {row{401, "unauthorized", gate.OriginAuthorization, never}, "", ""},
	ModelNotFound:            {row{404, "model_not_found", gate.OriginAuthorization, never}, "", ""},
	GenerationNotFound:       {row{404, "generation_not_found", gate.OriginAuthorization, never}, "", ""},
	NotFound:                 {row{404, "not_found", "", never}, "", ""},
	CapacityUnknown:          {row{503, "capacity_unknown", gate.OriginQuota, never}, "pool", "capacity_unknown"},
	PriceUnknown:             {row{503, "price_unknown", gate.OriginAdmission, never}, "model", "spend"},
	Unsupported:              {row{400, "unsupported_endpoint", "", never}, "", ""},
	InvalidField:             {row{400, wire.CodeParameter, "", never}, "", ""},
	BodyTooLarge:             {row{413, "request_too_large", "", never}, "", ""},
	MethodNotAllowed:         {row{405, "method_not_allowed", "", never}, "", ""},
}

// For answers a cause. The message says what happened, for a person.
func For(c Cause, message string) Answer {
	r := &causes[c]
	a := r.row.answer(0, false)
	a.Scope, a.Kind, a.Message = r.scope, r.kind, message
	return a
}

// ForModel answers a cause that concerns a model: its id is the limit's.
func ForModel(c Cause, model, message string) Answer {
	a := For(c, message)
	if a.Scope == "model" {
		a.LimitID = model
	}
	return a
}

// answer fills in the row's own columns. ms is when the fold says that it may pass.
func (r row) answer(ms int64, known bool) Answer {
	a := Answer{Status: r.status, Code: r.code, Origin: r.origin}
	if known {
		a.AdviceMS = max(ms, 1)
	}
	switch r.retry {
	case never:
		a.ShouldStop, a.AdviceMS = true, 0
	case second, advised:
		a.RetryMS = secondMS
		if r.retry == second || !known {
			a.AdviceMS = secondMS
		}
	case folded, reset:
		a.RetryMS, a.ShouldStop = wait(a.AdviceMS)
		a.ShouldStop = a.ShouldStop || !known || r.retry == reset
	case restOr1s:
		if a.RetryMS = a.AdviceMS; !known {
			a.RetryMS, a.AdviceMS = secondMS, secondMS
		}
		a.RetryMS, a.ShouldStop = wait(a.RetryMS)
	}
	return a
}

// OfVerdict answers a refusal by the fold, or one that a view of its meters shows. at is when it fell.
func OfVerdict(r *events.Refusal, at time.Time) Answer {
	switch r.Reason {
	case events.StaleFence:
		return For(AuthorizationUnavailable, "what this key may do has just changed, please retry")
	case events.Recovering:
		a := causes[Infrastructure].row.answer(r.RetryMS, r.HasRetry)
		a.Message = "the gateway is recovering: limits are counted anew, please retry"
		a.reset(at)
		return a
	case events.Released:
		return For(Infrastructure, "the request ended before it was admitted")
	case events.Invalid:
		a := For(Infrastructure, "the request could not be judged: claim on "+string(r.Meter)+" is not valid")
		a.RetryMS, a.AdviceMS, a.ShouldStop = 0, 0, true
		return a
	}
	w := gate.Which(r.Meter)
	row := rowOf(w.Gate)
	if r.Reason == events.TooLarge {
		row.retry = never
	}
	a := row.answer(r.RetryMS, r.HasRetry)
	if w.Gate == gate.B4 { // its every refusal has the header, also one that says not to try again
		a.RetryMS = secondMS
	}
	a.Gate, a.Scope, a.Kind, a.LimitID = w.Gate, w.Scope, w.Kind, w.LimitID
	a.Limit, a.HasLimit, a.Used, a.Requested = r.Limit, r.HasLimit, r.Used, r.Requested
	a.reset(at)
	a.Message = a.explain(r)
	return a
}

// reset says when the advice is over.
func (a *Answer) reset(at time.Time) {
	if a.AdviceMS > 0 && !at.IsZero() {
		a.ResetsAt = at.Add(time.Duration(a.AdviceMS) * time.Millisecond).UTC()
	}
}

// OfLocal answers a refusal of the gateway's own.
func OfLocal(l *policy.Local) Answer {
	switch l.Cause {
	case policy.UnknownModel:
		a := For(ModelNotFound, "the model "+quote(l.Model)+" does not exist, or this API key may not use it")
		a.Param = "model"
		return a
	case policy.UnsupportedEndpoint:
		return For(Unsupported, "the model "+quote(l.Model)+" is not served at this endpoint")
	case policy.Background:
		a := For(InvalidField, "background is true: background requests are not supported")
		a.Param = l.Param
		return a
	case policy.BadField:
		return OfField(&wire.BadRequest{Param: l.Param, Message: l.Message, Code: l.Code})
	case policy.NoPrice:
		return ForModel(PriceUnknown, l.Model, "the model "+quote(l.Model)+" has no price, and this org pays in advance")
	case policy.CapacityUnknown:
		a := For(CapacityUnknown, "the provider route of the model "+quote(l.Model)+" has no declared capacity")
		a.LimitID = l.Pool
		return a
	}
	return ofGate(l)
}

// ofGate answers B1 and B3.
func ofGate(l *policy.Local) Answer {
	which, kind := gate.B1, "input"
	switch l.Cause {
	case policy.TooManyImages:
		kind = "images"
	case policy.UnderPressure:
		which, kind = gate.B3, "pressure"
	}
	a := rowOf(which).answer(0, false)
	a.Gate, a.Scope, a.Kind, a.LimitID = which, "model", kind, l.Model
	switch l.Cause {
	case policy.TooManyImages:
		a.Message = "request carries " + itoa(l.Requested) + " images, over the model limit of " + itoa(l.Limit)
	case policy.UnderPressure:
		a.Message = "model is under high load, please retry"
		return a
	default:
		a.Message = "input is " + itoa(l.Requested) + " tokens, over the model limit of " + itoa(l.Limit)
	}
	a.Requested, a.Limit, a.HasLimit = l.Requested, l.Limit, true
	return a
}

// OfField answers a fault in the request's body.
func OfField(bad *wire.BadRequest) Answer {
	a := For(InvalidField, bad.Message)
	a.Param = bad.Param
	if bad.Code != "" {
		a.Code = bad.Code
	}
	return a
}

// OfKey answers a key that is not accepted. It does not tell an unknown key from an expired one.
func OfKey(d authority.Denial) Answer {
	if d == authority.DeniedMissing {
		return For(Unauthorized, "no API key: send it as Authorization: Bearer KEY, or as x-api-key")
	}
	return For(Unauthorized, "the API key is not valid")
}

// OfLog answers a log that cannot be reached, or that cannot be trusted. retryMS is when it may be over; 0: not known.
func OfLog(message string, retryMS int64) Answer {
	a := causes[Infrastructure].row.answer(retryMS, retryMS > 0)
	a.Message = message
	return a
}

// OfUpstream answers an upstream's own error, whose status is kept. retryMS is what it asked for; 0: nothing.
func OfUpstream(status int, code, message, model string, retryMS int64) Answer {
	a := Answer{Status: status, Code: code, Message: message, Origin: gate.OriginUpstream, Scope: "model", LimitID: model, RetryMS: retryMS, AdviceMS: retryMS}
	a.ShouldStop = retryMS > soonMS || status < 500 && status != 429 && status != 408 && status != 409
	return a
}

// Body encodes the answer in the shape of the SDK in use.
func (a *Answer) Body(f wire.Format, requestID string) []byte {
	meta := a.metadata()
	if f == wire.Anthropic {
		return anthropic.ErrorBody(anthropic.Error{Message: a.Message, Code: a.Code, Param: a.Param, Status: a.Status, RequestID: requestID, Metadata: meta})
	}
	return openai.ErrorBody(openai.Error{Message: a.Message, Code: a.Code, Param: a.Param, Status: a.Status, Metadata: meta})
}

// Event encodes the answer as the last event of a stream that has begun. sequence is used by the Responses API alone.
func (a *Answer) Event(op wire.Operation, requestID string, sequence int64) []byte {
	meta := a.metadata()
	if op.Format() == wire.Anthropic {
		return anthropic.ErrorEvent(anthropic.Error{Message: a.Message, Code: a.Code, Param: a.Param, Status: a.Status, RequestID: requestID, Metadata: meta})
	}
	return openai.ErrorEvent(op, openai.Error{Message: a.Message, Code: a.Code, Param: a.Param, Status: a.Status, Metadata: meta}, sequence)
}

func (a *Answer) metadata() *wire.Metadata {
	if a.Origin == "" {
		return nil
	}
	return &wire.Metadata{Origin: a.Origin, LimitScope: a.Scope, LimitKind: a.Kind, LimitID: a.LimitID,
		Retryable: !a.ShouldStop, RetryAfterMS: a.AdviceMS, ResetsAt: a.ResetsAt}
}

// Record fills in what the audit record of a refusal says of the answer. Who asked, and for what, is the caller's to fill in.
func (a *Answer) Record(r *events.Refused) {
	r.Gate, r.Origin, r.Scope, r.LimitKind, r.LimitID = string(a.Gate), a.Origin, a.Scope, a.Kind, a.LimitID
	r.Used, r.Requested, r.Status, r.Code, r.Message = a.Used, a.Requested, a.Status, a.Code, a.Message
	if a.HasLimit {
		limit := a.Limit
		r.Limit = &limit
	}
	if !a.ResetsAt.IsZero() {
		r.RetryAt = a.ResetsAt.Format(time.RFC3339Nano)
	}
	if r.Gate == "" {
		r.Gate = a.Code
	}
}
