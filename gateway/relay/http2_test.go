package relay_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/relay"
	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/services/provider"
)

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

// newTLS serves the provider as real ones are: over TLS and HTTP/2. It returns how to trust it.
func newTLS(t *testing.T, h http.Handler) (base string, trust *tls.Config) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.Config.ErrorLog = quiet()
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return s.URL, &tls.Config{RootCAs: roots}
}

func TestHTTP2(t *testing.T) {
	p, err := provider.New(provider.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	connections := map[string]int{}
	base, trust := newTLS(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		connections[r.Proto+" "+r.RemoteAddr]++
		mu.Unlock()
		p.ServeHTTP(w, r)
	}))
	f := newFront(t, base, relay.Options{TLS: trust}, func(c *relay.Call, r *http.Request) {
		if r.Header.Get(provider.ScriptHeader) == "hang=4" {
			c.Idle = 400 * time.Millisecond
		}
	})

	_, _, body := ask(t, f.URL+"/v1/messages", messageStream, "tokens=7;input=9")
	if r := f.result(t); r.Kind != relay.Completed || r.Quality != wire.QualityExact || r.Usage.Output != 7 || !strings.Contains(body, "message_stop") {
		t.Fatalf("%v (%v), %+v", r.Kind, r.Fault, r.Usage)
	}
	ctx, leave := context.WithCancel(t.Context())
	resp, err := post(t, ctx, f.URL+"/v1/messages", messageStream, "gap=2ms;tokens=90;hang=70")
	if err != nil {
		t.Fatal(err)
	}
	leave()
	_ = resp.Body.Close()
	outcome(t, f.result(t), relay.ClientGone, events.DispatchedYes, events.Cancelled)
	eventually(t, "the upstream saw the cancellation", func() bool { return p.Ledger().Totals().Cancelled == 1 })

	_, _, body = ask(t, f.URL+"/v1/chat/completions", chatStream, "hang=4")
	outcome(t, f.result(t), relay.IdleTimeout, events.DispatchedYes, events.TimedOut)
	if !strings.Contains(body, `"code":"request_timeout"`) {
		t.Errorf("the client got %q", body)
	}
	_, _, _ = ask(t, f.URL+"/v1/chat/completions", chatBody, "abort")
	outcome(t, f.result(t), relay.Broken, events.DispatchedUnknown, events.Failed)

	mu.Lock()
	defer mu.Unlock()
	if len(connections) != 1 {
		t.Errorf("connections: %v", connections)
	}
	for name := range connections {
		if !strings.HasPrefix(name, "HTTP/2.0 ") {
			t.Errorf("connections: %v", connections)
		}
	}
}

func TestBarredOverHTTP2(t *testing.T) {
	p, err := provider.New(provider.Config{})
	if err != nil {
		t.Fatal(err)
	}
	base, trust := newTLS(t, p)
	for allowed := range int64(2) {
		var asked atomic.Int64
		r := do(t.Context(), t, base, relay.Options{TLS: trust}, func(c *relay.Call) { c.Guard = func() bool { return asked.Add(1) <= allowed } })
		if r.Kind != relay.Barred || r.Started {
			t.Errorf("allowed %d times: %v, %v", allowed, r.Kind, r.Fault)
		}
	}
	if n := p.Ledger().Totals().Completed; n != 0 {
		t.Errorf("%d calls were answered", n)
	}
}

func TestNothingWasSentOverTLS(t *testing.T) {
	base, _ := newTLS(t, http.NotFoundHandler())
	ctx, leave := context.WithCancel(t.Context())
	leave()
	outcome(t, do(ctx, t, base, relay.Options{}, nil), relay.ClientGone, events.DispatchedNo, events.NotDispatched)
}
