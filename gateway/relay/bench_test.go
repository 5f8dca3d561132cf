package relay_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/gateway/relay"
	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/services/provider"
)

// discard is a response writer that keeps nothing.
type discard struct{ h http.Header }

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) Flush()                      {}

var benchClient = http.Header{"User-Agent": {"bench"}, "Accept": {"*/*"}}

func bench(b *testing.B) string {
	p, err := provider.New(provider.Config{Calls: 1})
	if err != nil {
		b.Fatal(err)
	}
	s := httptest.NewServer(p)
	b.Cleanup(s.Close)
	return s.URL
}

// BenchmarkDirect is the floor: the same call by the standard client, its answer read whole.
func BenchmarkDirect(b *testing.B) {
	base := bench(b)
	t := &http.Transport{DisableCompression: true}
	defer t.CloseIdleConnections()
	c := &http.Client{Transport: t}
	b.ReportAllocs()
	for b.Loop() {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, base+"/v1/chat/completions", strings.NewReader(chatBody))
		if err != nil {
			b.Fatal(err)
		}
		req.Header = relay.Outgoing(wire.OpenAI, "r", benchClient, nil)
		resp, err := c.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}

func benchmarkDo(b *testing.B, body string, stream bool, script string) {
	base := bench(b)
	r := relay.New(relay.Options{Now: time.Now})
	defer r.Close()
	client := benchClient.Clone()
	if script != "" {
		client.Set(provider.ScriptHeader, script)
	}
	b.ReportAllocs()
	for b.Loop() {
		result := r.Do(b.Context(), &discard{http.Header{}}, &relay.Call{Operation: wire.Chat, Stream: stream, URL: base + "/v1/chat/completions",
			Body: []byte(body), Local: true, Header: relay.Outgoing(wire.OpenAI, "r", client, nil, provider.ScriptHeader), Guard: func() bool { return true }})
		if result.Kind != relay.Completed {
			b.Fatal(result.Fault)
		}
	}
}

func BenchmarkDo(b *testing.B)       { benchmarkDo(b, chatBody, false, "") }
func BenchmarkDoStream(b *testing.B) { benchmarkDo(b, chatStream, true, "tokens=200") }
