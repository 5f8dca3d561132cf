package main

import (
	"context"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/trace"
)

// endTraceWithin bounds the delivery of the last spans.
const endTraceWithin = 2 * time.Second

// trace makes the tracer, if the configuration has one.
func (n *node) trace(ctx context.Context) (err error) {
	c := n.config.Tracing
	if c.Endpoint == "" {
		return nil
	}
	n.tracer, err = trace.New(ctx, trace.Config{Endpoint: c.Endpoint, SamplePPM: c.SamplePPM, Timeout: c.Timeout, Service: "weir", Instance: n.name,
		Version: version, Roles: strings.Join(n.roles, ","), Now: time.Now, Logger: n.logger})
	return err
}

// endTrace delivers the last spans.
func (n *node) endTrace() {
	ctx, cancel := context.WithTimeout(context.Background(), endTraceWithin)
	defer cancel()
	if err := n.tracer.Close(ctx); err != nil && n.logger != nil {
		n.logger.Warn("the last spans were not delivered", "error", err)
	}
}

// folded gives the projector what notes the fold of a traced reserve; nil without tracing.
func (n *node) folded() func(r *events.Record, begin, end time.Time) {
	if n.tracer == nil {
		return nil
	}
	return func(r *events.Record, begin, end time.Time) {
		n.tracer.Remote(r.TraceParent, "weir.fold", begin, end, func(s *trace.Span) {
			s.Str("weir.request", r.Subject)
			s.Int("weir.seq", int64(r.Seq))
		})
	}
}
