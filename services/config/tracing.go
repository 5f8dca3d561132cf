package config

import (
	"time"

	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/strictyaml"
)

// Tracing says where traces of requests go. They hold ids, sizes, times and outcomes; no prompt, no answer, no key.
type Tracing struct {
	// Endpoint is the base URL of a collector that takes OTLP over HTTP, such as http://127.0.0.1:4318. Defaults to none: nothing is
	// traced, and what a client sends as traceparent is passed on as it is.
	Endpoint string

	// SamplePPM is how many of a million requests are traced of which the client does not say itself that they are (a traceparent with
	// the sampled flag). Defaults to 10,000: sample: 0.01.
	SamplePPM int64

	// Timeout bounds one delivery to the collector. Defaults to 10 s.
	Timeout time.Duration
}

// defaultTracing holds for what the file does not say.
var defaultTracing = Tracing{SamplePPM: 10_000, Timeout: 10 * time.Second}

func (l *loader) tracing(m *strictyaml.Map) {
	t := &l.c.Tracing
	t.Endpoint = m.Get("endpoint").URL("", "http", "https")
	if n := m.Get("sample"); !n.Absent() {
		if text, ok := n.Text(); ok {
			v, err := authority.ParseFraction(text)
			if err != nil {
				n.Wrong("must be from 0 to 1: the share of requests that are traced, 0.5 for half")
			} else {
				t.SamplePPM = v
			}
		}
	}
	t.Timeout = m.Get("timeout").Duration(t.Timeout, minWait, maxWait)
	m.End()
}
