package relay_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/weirhq/weir/gateway/relay"
	"github.com/weirhq/weir/gateway/wire"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 3, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		after, ms string
		want      time.Duration
	}{
		{"", "", 0},
		{"3", "", 3 * time.Second},
		{" 3 ", "", 3 * time.Second},
		{"0.5", "", 500 * time.Millisecond},
		{"0", "", 0},
		{"-5", "", 0},
		{"soon", "", 0},
		{"NaN", "", 0},
		{"Inf", "", relay.MaxRetryAfter},
		{"1e300", "", relay.MaxRetryAfter},
		{"99999999999999999999", "", relay.MaxRetryAfter},
		{"86400", "", relay.MaxRetryAfter},
		{"3", "1250", 1250 * time.Millisecond},
		{"3", "0", 3 * time.Second},
		{"3", "later", 3 * time.Second},
		{"Tue, 03 Nov 2026 12:00:09 GMT", "", 9 * time.Second},
		{"Tue, 03 Nov 2026 11:00:00 GMT", "", 0},
		{"Tue, 03 Nov 2027 11:00:00 GMT", "", relay.MaxRetryAfter},
	} {
		h := http.Header{}
		h.Set("Retry-After", c.after)
		h.Set("Retry-After-Ms", c.ms)
		if got := relay.RetryAfter(h, now); got != c.want {
			t.Errorf("retry-after %q, ms %q: %v, want %v", c.after, c.ms, got, c.want)
		}
	}
}

func TestOutgoing(t *testing.T) {
	client := http.Header{"Authorization": {"Bearer c"}, "X-Api-Key": {"c"}, "Anthropic-Version": {"2024-01-01"}, "Anthropic-Beta": {"a,b"},
		"Openai-Beta": {"c"}, "User-Agent": {"sdk/1"}, "Accept": {"*/*"}, "Accept-Encoding": {"gzip"}, "Content-Type": {"text/plain"}, "X-Extra": {"e"}}
	h := relay.Outgoing(wire.Anthropic, "r", client, http.Header{"X-Api-Key": {"house"}}, "X-Extra")
	want := map[string]string{"Authorization": "", "X-Api-Key": "house", "Anthropic-Version": "2024-01-01", "Anthropic-Beta": "a,b", "Openai-Beta": "",
		"User-Agent": "sdk/1", "Accept": "*/*", "Accept-Encoding": "identity", "Content-Type": "application/json", "X-Extra": "e", "X-Request-Id": "r"}
	for name, v := range want {
		if h.Get(name) != v {
			t.Errorf("%s is %q, want %q", name, h.Get(name), v)
		}
	}
	if len(client["X-Api-Key"]) != 1 || client.Get("X-Api-Key") != "c" {
		t.Error("the client's headers were changed")
	}
	h = relay.Outgoing(wire.Anthropic, "", http.Header{}, nil)
	if h.Get("Anthropic-Version") != relay.AnthropicVersion || h["X-Request-Id"] != nil {
		t.Errorf("%v", h)
	}
	if h := relay.Outgoing(wire.OpenAI, "", client, nil); h["Anthropic-Version"] != nil || h["Anthropic-Beta"] != nil || h.Get("Openai-Beta") != "c" {
		t.Errorf("%v", h)
	}
}

func TestForwardLetsTheGatewayAddHeaders(t *testing.T) {
	w := httptest.NewRecorder()
	a := relay.Answer{Status: 429, Header: http.Header{"Content-Type": {"application/json"}, "Retry-After": {"3"}}, Body: []byte(`{"error":{}}`)}
	if err := a.Forward(w, func(status int, h http.Header) { h["X-Tm-Error-Origin"] = []string{"upstream"} }); err != nil {
		t.Fatal(err)
	}
	if w.Code != 429 || w.Body.String() != `{"error":{}}` || w.Header().Get("X-Tm-Error-Origin") != "upstream" || w.Header().Get("Retry-After") != "3" || w.Header().Get("Content-Length") != "12" {
		t.Errorf("%d, %v, %s", w.Code, w.Header(), w.Body)
	}
}
