// Package trace tells a collector, over OTLP, what became of requests and how long each part of them took. It is off unless a Tracer is
// made: a nil Tracer begins nil spans, whose methods do nothing and allocate nothing. Spans hold ids, sizes, times and outcomes; never a
// prompt, an answer or a key.
package trace

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// scope names the product as the source of spans.
const scope = "github.com/weirhq/weir"

// Bounds of what waits for the collector. Spans beyond them are lost, never waited for.
const (
	maxQueued = 4096
	maxBatch  = 512
	sendEvery = 2 * time.Second

	// warnEvery is how often at most it is said that the collector takes nothing.
	warnEvery = time.Minute
)

// Config says where spans go, and of whom they are.
type Config struct {
	Endpoint  string        // base URL of a collector
	SamplePPM int64         // of a million requests whose client does not say itself that they are traced
	Timeout   time.Duration // of one delivery
	Service   string        // service.name
	Instance  string        // service.instance.id: the process's name
	Version   string        // service.version
	Roles     string        // weir.roles
	Now       func() time.Time
	Logger    *slog.Logger
}

// Tracer begins spans. Its methods may be called at the same time, and on nil.
type Tracer struct {
	provider   *sdktrace.TracerProvider
	tracer     trace.Tracer
	propagator propagation.TraceContext
}

// New makes a tracer that delivers until it is closed. A collector that is away is no error: spans are lost meanwhile.
func New(ctx context.Context, c Config) (*Tracer, error) {
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(c.Endpoint+"/v1/traces"), otlptracehttp.WithTimeout(c.Timeout))
	if err != nil {
		return nil, fmt.Errorf("trace to %s: %w", c.Endpoint, err)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(&quiet{Exporter: exporter, c: c}, sdktrace.WithMaxQueueSize(maxQueued), sdktrace.WithMaxExportBatchSize(maxBatch), sdktrace.WithBatchTimeout(sendEvery)),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(float64(c.SamplePPM)/1e6))),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", c.Service), attribute.String("service.instance.id", c.Instance),
			attribute.String("service.version", c.Version), attribute.String("weir.roles", c.Roles))),
	)
	return &Tracer{provider: provider, tracer: provider.Tracer(scope)}, nil
}

// quiet is an exporter whose failures go to the product's log, now and then.
type quiet struct {
	*otlptrace.Exporter
	c    Config
	said atomic.Int64 // unix ns
}

// ExportSpans delivers, and says so if it cannot.
func (q *quiet) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if err := q.Exporter.ExportSpans(ctx, spans); err != nil {
		now, last := q.c.Now().UnixNano(), q.said.Load()
		if now-last >= int64(warnEvery) && q.said.CompareAndSwap(last, now) {
			q.c.Logger.Warn("traces are lost: the collector takes none", "endpoint", q.c.Endpoint, "spans", len(spans), "error", err)
		}
	}
	return nil // else it would go to a logger of the library's own
}

// Close delivers what waits, within the context.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// Span is a part of a request's life. Its methods may be called on nil.
type Span struct {
	t    *Tracer
	ctx  context.Context
	span trace.Span
}

// Request begins the span of a request that came with these headers, whose trace it continues.
func (t *Tracer) Request(h http.Header, name string) *Span {
	if t == nil {
		return nil
	}
	ctx := t.propagator.Extract(context.Background(), propagation.HeaderCarrier(h))
	return t.begin(ctx, name, trace.WithSpanKind(trace.SpanKindServer))
}

// Remote notes a span that is over, of the trace that an event carries; its parent is the span that published it.
func (t *Tracer) Remote(traceparent, name string, begin, end time.Time, set func(*Span)) {
	if t == nil || traceparent == "" {
		return
	}
	ctx := t.propagator.Extract(context.Background(), propagation.MapCarrier{"traceparent": traceparent})
	s := t.begin(ctx, name, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(begin))
	set(s)
	s.span.End(trace.WithTimestamp(end))
}

func (t *Tracer) begin(ctx context.Context, name string, options ...trace.SpanStartOption) *Span {
	ctx, span := t.tracer.Start(ctx, name, options...)
	return &Span{t, ctx, span}
}

// Child begins a part of the span.
func (s *Span) Child(name string) *Span {
	if s == nil {
		return nil
	}
	return s.t.begin(s.ctx, name)
}

// Call begins a part of the span that is a call to another service, and gives the headers with which that one continues the trace, in
// place of the client's.
func (s *Span) Call(name string, client http.Header) (*Span, http.Header) {
	if s == nil {
		return nil, client
	}
	call := s.t.begin(s.ctx, name, trace.WithSpanKind(trace.SpanKindClient))
	h := client.Clone()
	if h == nil {
		h = http.Header{}
	}
	s.t.propagator.Inject(call.ctx, propagation.HeaderCarrier(h))
	return call, h
}

// Str notes a word about the span; an empty one is left out.
func (s *Span) Str(key, value string) {
	if s != nil && value != "" {
		s.span.SetAttributes(attribute.String(key, value))
	}
}

// Int notes a number about the span.
func (s *Span) Int(key string, value int64) {
	if s != nil {
		s.span.SetAttributes(attribute.Int64(key, value))
	}
}

// Fail marks the span as failed. Why must not hold what a client sent.
func (s *Span) Fail(why string) {
	if s != nil {
		s.span.SetStatus(codes.Error, why)
	}
}

// End ends the span. Later calls do nothing.
func (s *Span) End() {
	if s != nil {
		s.span.End()
	}
}

// Parent is the span as a traceparent for events; empty unless it is sampled, so that nothing is added to the log for what nobody keeps.
func (s *Span) Parent() string {
	if s == nil || !s.span.SpanContext().IsSampled() {
		return ""
	}
	c := s.span.SpanContext()
	return "00-" + c.TraceID().String() + "-" + c.SpanID().String() + "-01"
}
