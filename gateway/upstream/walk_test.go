package upstream

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/gateway/relay"
	"github.com/weirhq/weir/gateway/wire"
)

// TestARequestFindsAnUpstreamThatWorks walks the routes as a gateway does: two replicas that fail each in its way, an
// account that is used up, and one that answers.
func TestARequestFindsAnUpstreamThatWorks(t *testing.T) {
	refuses, breaks := newServer(t, ""), newServer(t, "")
	healthy := breaks.Config.Handler
	breaks.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_, _ = io.Copy(io.Discard, r.Body)
			panic(http.ErrAbortHandler)
		}
		healthy.ServeHTTP(w, r)
	})
	account := func(status int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer secret" {
				t.Errorf("authorization %q", r.Header.Get("Authorization"))
			}
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, `{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}`)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	c := pool("m", Local{}, refuses, breaks)
	c.Connections = []Connection{{ID: "full", Provider: "openai", BaseURL: account(429), Key: key, Pool: "p1"}, {ID: "free", Provider: "openai", BaseURL: account(200), Key: key, Pool: "p2"}}
	c.Models[0].Providers = []Offer{{Connection: "full"}, {Connection: "free", Model: "gpt"}}
	s := start(t, c)
	refuses.Listener.(*net.TCPListener).Close()
	refuses.CloseClientConnections()

	r := relay.New(relay.Options{Now: time.Now})
	defer r.Close()
	w, went := httptest.NewRecorder(), map[string]relay.Kind{}
	routes, _ := s.Routes("m", wire.Chat, "")
	var result *relay.Result
	for _, route := range routes {
		for result == nil || result.Retryable() {
			target, done, ok := route.Pick()
			if !ok {
				break
			}
			result = r.Do(t.Context(), w, &relay.Call{Operation: wire.Chat, URL: target.URL, Local: target.Local, Body: []byte(`{"model":"m"}`),
				Header: relay.Outgoing(wire.OpenAI, "", http.Header{}, target.Header)})
			done(result.Kind, result.Status)
			went[target.Deployment] = result.Kind
		}
	}
	want := map[string]relay.Kind{strings.TrimPrefix(refuses.URL, "http://"): relay.Unreachable, strings.TrimPrefix(breaks.URL, "http://"): relay.Broken,
		"full/m": relay.UpstreamStatus, "free/gpt": relay.Completed}
	for name, kind := range want {
		if went[name] != kind {
			t.Errorf("%s: %v, want %v", name, went[name], kind)
		}
	}
	if len(went) != len(want) || w.Code != 200 || result.Usage.Output != 4 || s.Healthy("m") > 1 {
		t.Errorf("went %v, status %d, %+v, %d healthy", went, w.Code, result.Usage, s.Healthy("m"))
	}
}
