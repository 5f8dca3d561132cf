package gateway

import (
	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/relay"
	"github.com/weirhq/weir/gateway/trace"
	"github.com/weirhq/weir/gateway/upstream"
)

// The spans of a request, each a child of the first. What they are called in the world's conventions they are called here.
const (
	spanRequest  = "weir.request"
	spanEstimate = "weir.estimate"
	spanReserve  = "weir.reserve"
	spanCall     = "weir.call"
	spanSettle   = "weir.settle"
)

// traced begins the request's span.
func (x *exchange) traced() {
	x.span = x.s.config.Tracer.Request(x.r.Header, spanRequest)
	x.span.Str("weir.request", string(x.id))
	x.span.Str("weir.operation", x.op.String())
	x.span.Str("weir.org", string(x.key.Org))
}

// told ends the request's span with its answer.
func (x *exchange) told(class, origin string) {
	if x.span == nil {
		return
	}
	if x.model != nil {
		x.span.Str("gen_ai.request.model", x.model.ID)
	}
	x.span.Int("http.response.status_code", int64(x.status))
	if class == "5xx" || class == "aborted" {
		x.span.Fail(origin)
	}
	if origin != "none" {
		x.span.Str("error.type", origin)
	}
	x.span.End()
}

// decided ends the span of a reserve with its verdict.
func decided(span *trace.Span, v *events.Verdict, err error) {
	if span == nil {
		return
	}
	switch {
	case err != nil:
		span.Fail("no verdict")
	case v.Admitted:
		span.Str("weir.outcome", "admitted")
	default:
		span.Str("weir.outcome", "refused")
		span.Str("weir.reason", string(v.Refusal.Reason))
		span.Str("weir.meter", string(v.Refusal.Meter))
	}
	if err == nil {
		span.Int("weir.seq", int64(v.Seq))
		span.Int("weir.parked_ms", v.ParkedMS)
		span.Int("weir.wait_ms", v.WaitMS)
	}
	span.End()
}

// called ends the span of a call to an upstream.
func called(span *trace.Span, t *upstream.Target, attempt int64, r *relay.Result) {
	if span == nil {
		return
	}
	span.Str("weir.deployment", t.Deployment)
	span.Str("gen_ai.provider.name", t.Provider)
	span.Int("weir.attempt", attempt)
	span.Int("http.response.status_code", int64(r.Status))
	span.Int("weir.ttft_ms", r.TTFT.Milliseconds())
	span.Str("weir.ended", r.Kind.String())
	if r.Kind != relay.Completed {
		span.Fail(r.Kind.String())
	}
	span.End()
}

// used ends the span of a settlement.
func used(span *trace.Span, d *events.TrueUp) {
	if span == nil {
		return
	}
	span.Str("weir.usage_quality", d.Quality.String())
	span.Int("gen_ai.usage.input_tokens", d.Usage.InputTokens)
	span.Int("gen_ai.usage.output_tokens", d.Usage.OutputTokens)
	span.Int("weir.cost_nano", d.CostNano)
	span.End()
}
