package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	v1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/weirhq/weir/events"
)

// received is a collector that takes OTLP over HTTP.
type received struct {
	mu    sync.Mutex
	spans []*v1.Span
	from  map[string]string // attributes of the resource
	raw   bytes.Buffer
}

func (c *received) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var q collector.ExportTraceServiceRequest
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &q) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw.Write(body)
	for _, res := range q.ResourceSpans {
		for _, a := range res.Resource.Attributes {
			c.from[a.Key] = a.Value.GetStringValue()
		}
		for _, s := range res.ScopeSpans {
			c.spans = append(c.spans, s.Spans...)
		}
	}
}

// named gives the spans of one name.
func (c *received) named(name string) (all []*v1.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.Name == name {
			all = append(all, s)
		}
	}
	return all
}

const (
	sampled   = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	unsampled = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-00f067aa0ba902b7-00"
	secret    = "a prompt that nobody may see"
)

// ask sends a chat with a trace context.
func ask(t *testing.T, n *node, traceparent string) {
	t.Helper()
	q, err := http.NewRequest(http.MethodPost, "http://"+n.gateway.Addr().String()+"/v1/chat/completions",
		strings.NewReader(`{"model":"qwen","max_tokens":8,"messages":[{"role":"user","content":"`+secret+`"}]}`))
	must(t, err)
	q.Header.Set("Traceparent", traceparent)
	q.Header.Set("Authorization", "Bearer sk-of-a-client")
	a, err := http.DefaultClient.Do(q)
	must(t, err)
	body, _ := io.ReadAll(a.Body)
	_ = a.Body.Close()
	if a.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", a.StatusCode, body)
	}
}

// TestTraces: a request that its client traces has its spans at the collector, the model's server gets the trace, and so do the log and
// who folds it. One that is not sampled leaves nothing anywhere, and its trace context goes on all the same.
func TestTraces(t *testing.T) {
	spans := &received{from: map[string]string{}}
	at := httptest.NewServer(spans)
	t.Cleanup(at.Close)
	var mu sync.Mutex
	var parents []string
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			mu.Lock()
			parents = append(parents, r.Header.Get("Traceparent"))
			mu.Unlock()
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"id":"c","object":"chat.completion","model":"qwen","choices":[{"index":0,"message":{"role":"assistant","content":"`+secret+`"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}}`)
	}))
	t.Cleanup(model.Close)
	n := startNode(t, t.TempDir(), `listen: 127.0.0.1:0
tracing: {endpoint: "`+at.URL+`", sample: 0}
models: [{id: qwen, local: {engine: openai, replicas: ["`+model.URL+`"]}}]
`, "", nil)
	until(t, "the model is healthy", func() bool { return n.gateway.Why() == "" && healthy(t, n) })
	ask(t, n, unsampled)
	ask(t, n, sampled)

	request := one(t, spans, "weir.request")
	if id := hexOf(request.TraceId); id != sampled[3:35] || hexOf(request.ParentSpanId) != sampled[36:52] {
		t.Errorf("the request's span is of trace %s under %s", id, hexOf(request.ParentSpanId))
	}
	for _, name := range []string{"weir.estimate", "weir.reserve", "weir.call", "weir.settle"} {
		if s := one(t, spans, name); !bytes.Equal(s.ParentSpanId, request.SpanId) || !bytes.Equal(s.TraceId, request.TraceId) {
			t.Errorf("%s is not a part of the request", name)
		}
	}
	reserve, call, settle := one(t, spans, "weir.reserve"), one(t, spans, "weir.call"), one(t, spans, "weir.settle")
	if fold := one(t, spans, "weir.fold"); !bytes.Equal(fold.ParentSpanId, reserve.SpanId) || number(fold, "weir.seq") != number(reserve, "weir.seq") || number(fold, "weir.seq") == 0 {
		t.Errorf("the fold's span %v is not of the reserve %v", fold, reserve)
	}
	if number(settle, "gen_ai.usage.input_tokens") != 7 || number(settle, "gen_ai.usage.output_tokens") != 5 || number(call, "http.response.status_code") != 200 {
		t.Errorf("%v %v", settle, call)
	}
	if spans.from["service.name"] != "weir" || spans.from["service.instance.id"] != n.name || spans.from["weir.roles"] != strings.Join(allRoles, ",") {
		t.Errorf("the spans are of %v", spans.from)
	}
	mu.Lock()
	got := slices.Clone(parents)
	mu.Unlock()
	if len(got) != 2 || !strings.HasPrefix(got[0], unsampled[:36]) || !strings.HasSuffix(got[0], "-00") || got[1] != "00-"+hexOf(call.TraceId)+"-"+hexOf(call.SpanId)+"-01" {
		t.Errorf("the model was told %q", got)
	}
	var inLog []string
	must(t, n.log.Read(t.Context(), 0, 0, func(r events.Record) error {
		if r.TraceParent != "" {
			inLog = append(inLog, r.Data.Kind().String()+" "+r.TraceParent)
		}
		return nil
	}))
	if want := []string{"reserve 00-" + hexOf(reserve.TraceId) + "-" + hexOf(reserve.SpanId) + "-01"}; !slices.Equal(inLog, want) {
		t.Errorf("the log has %q, not %q", inLog, want)
	}
	spans.mu.Lock()
	defer spans.mu.Unlock()
	if len(spans.spans) != 6 {
		t.Errorf("%d spans of one request", len(spans.spans))
	}
	for _, word := range []string{secret, "sk-of-a-client"} {
		if bytes.Contains(spans.raw.Bytes(), []byte(word)) {
			t.Errorf("spans hold %q", word)
		}
	}
}

// one waits for the only span of a name.
func one(t *testing.T, c *received, name string) *v1.Span {
	t.Helper()
	until(t, name+" is at the collector", func() bool { return len(c.named(name)) > 0 })
	all := c.named(name)
	if len(all) != 1 {
		t.Fatalf("%d spans %s", len(all), name)
	}
	return all[0]
}

func number(s *v1.Span, key string) int64 {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.GetIntValue()
		}
	}
	return 0
}

func hexOf(b []byte) string {
	const digits = "0123456789abcdef"
	var s strings.Builder
	for _, c := range b {
		s.WriteByte(digits[c>>4])
		s.WriteByte(digits[c&15])
	}
	return s.String()
}

func healthy(t *testing.T, n *node) bool {
	families, err := n.registry.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() == "weir_upstream_healthy_replicas" {
			return f.Metric[0].Gauge.GetValue() > 0
		}
	}
	return false
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}
