package e2e

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/test/e2e/stack"
)

// TestBadInput: each request that cannot be served gets an error in its SDK's shape that says what is wrong, and reserves nothing.
func TestBadInput(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: sdkSettings})
	const messages = `"messages":[{"role":"user","content":"Hello"}]`
	big := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 50<<20) + `"}]}`
	for _, c := range []struct {
		name    string
		request stack.Request
		status  int
		code    string
		param   string
		message string // a part of it
	}{
		{"unknown model", stack.Request{Key: "demo", Body: chat("gpt-9", "")}, 404, "model_not_found", "model", "gpt-9"},
		{"no model", stack.Request{Key: "demo", Body: `{` + messages + `}`}, 400, "invalid_parameter", "model", "model is missing"},
		{"model of 10,000 bytes", stack.Request{Key: "demo", Body: chat(strings.Repeat("a", 10_000), "")}, 400, "invalid_parameter", "model", "10000 bytes"},
		{"malformed JSON", stack.Request{Key: "demo", Body: `{"model":"m",` + messages}, 400, "request_invalid", "", "not valid JSON"},
		{"JSON with more behind it", stack.Request{Key: "demo", Body: chat("m", "") + "}"}, 400, "request_invalid", "", "not valid JSON"},
		{"no JSON object", stack.Request{Key: "demo", Body: `[1]`}, 400, "request_invalid", "", "must be a JSON object"},
		{"empty body", stack.Request{Key: "demo", Method: "POST"}, 400, "request_invalid", "", "empty"},
		{"not UTF-8", stack.Request{Key: "demo", Body: chat("m", "\"user\":\"\xff\",")}, 400, "request_invalid", "", "UTF-8"},
		{"NUL bytes", stack.Request{Key: "demo", Body: "\x00\x00\x00"}, 400, "request_invalid", "", "JSON"},
		{"nesting of 100,000", stack.Request{Key: "demo", Body: `{"model":"m","x":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `,` + messages + `}`}, 400, "request_invalid", "", "JSON"},
		{"model is a number", stack.Request{Key: "demo", Body: `{"model":7,` + messages + `}`}, 400, "invalid_parameter", "model", "got the number 7"},
		{"messages is a string", stack.Request{Key: "demo", Body: `{"model":"m","messages":"Hello"}`}, 400, "invalid_parameter", "messages", "got a string"},
		{"messages is missing", stack.Request{Key: "demo", Body: `{"model":"m"}`}, 400, "invalid_parameter", "messages", "messages is missing"},
		{"a message is a number", stack.Request{Key: "demo", Body: `{"model":"m","messages":[7]}`}, 400, "invalid_parameter", "messages[0]", "got a number"},
		{"stream is a string", stack.Request{Key: "demo", Body: chat("m", `"stream":"yes",`)}, 400, "invalid_parameter", "stream", `got the string "yes"`},
		{"max_tokens is a string", stack.Request{Key: "demo", Body: chat("m", `"max_tokens":"100",`)}, 400, "invalid_parameter", "max_tokens", `got the string "100"`},
		{"max_tokens is 2^31", stack.Request{Key: "demo", Body: chat("m", `"max_tokens":2147483648,`)}, 400, "invalid_parameter", "max_tokens", "at most 4096"},
		{"max_tokens is 10^18", stack.Request{Key: "demo", Body: chat("m", `"max_tokens":1000000000000000000,`)}, 400, "invalid_parameter", "max_tokens", "at most 4096"},
		{"max_tokens is 10^30", stack.Request{Key: "demo", Body: chat("m", `"max_tokens":1000000000000000000000000000000,`)}, 400, "invalid_parameter", "max_tokens", "64 bits"},
		{"max_tokens is 1e3", stack.Request{Key: "demo", Body: chat("m", `"max_tokens":1e3,`)}, 400, "invalid_parameter", "max_tokens", "whole number"},
		{"max_tokens is 1.5", stack.Request{Key: "demo", Body: chat("m", `"max_tokens":1.5,`)}, 400, "invalid_parameter", "max_tokens", "whole number"},
		{"max_tokens twice", stack.Request{Key: "demo", Body: chat("m", `"max_tokens":1,"max_tokens":2,`)}, 400, "invalid_parameter", "max_tokens", "twice"},
		{"two limits that differ", stack.Request{Key: "demo", Body: chat("m", `"max_tokens":1,"max_completion_tokens":2,`)}, 400, "invalid_parameter", "max_tokens", "must not differ"},
		{"n is 10^9", stack.Request{Key: "demo", Body: chat("m", `"n":1000000000,`)}, 400, "invalid_parameter", "n", "between 1 and 2048"},
		{"n is 0", stack.Request{Key: "demo", Body: chat("m", `"n":0,`)}, 400, "invalid_parameter", "n", "between 1 and 2048"},
		{"a body of 50 MB", stack.Request{Key: "demo", Body: big}, 413, "request_too_large", "", "33554432 bytes"},
		{"no key", stack.Request{Body: chat("m", "")}, 401, "unauthorized", "", "no API key"},
		{"a key that there is not", stack.Request{Key: "nobody", Body: chat("m", "")}, 401, "unauthorized", "", "not valid"},
		{"a key of 100,000 bytes", stack.Request{Key: strings.Repeat("k", 50_000), Body: chat("m", "")}, 401, "unauthorized", "", "not valid"},
		{"wrong method", stack.Request{Method: "PUT", Key: "demo", Body: chat("m", "")}, 405, "method_not_allowed", "", "use POST"},
		{"GET where POST belongs", stack.Request{Method: "GET", Key: "demo"}, 405, "method_not_allowed", "", "use POST"},
	} {
		for _, path := range []string{"/v1/chat/completions", "/v1/messages"} {
			request := c.request
			request.URL = s.URL() + path
			if path == "/v1/messages" {
				if strings.Contains(request.Body, "max_completion_tokens") || strings.HasPrefix(c.param, "n") {
					continue // fields of OpenAI's alone
				}
				request.Header = map[string]string{"Anthropic-Version": "2023-06-01"}
			}
			t.Run(c.name+" "+path, func(t *testing.T) {
				a, err := request.Send()
				for tries := 1; err != nil && len(request.Body) == len(big) && tries < lostAnswers; tries++ {
					a, err = request.Send()
				}
				if err != nil {
					t.Fatalf("no answer: %v", err)
				}
				e := a.Error()
				if a.Status != c.status || e.Code != c.code || e.Param != c.param || !strings.Contains(e.Message, c.message) {
					t.Errorf("status %d, code %q, param %q, message %q", a.Status, e.Code, e.Param, e.Message)
				}
				if e.Source != "router" || a.ID() == "" || a.Header.Get("Content-Type") != "application/json" {
					t.Errorf("source %q, id %q, content type %q", e.Source, a.ID(), a.Header.Get("Content-Type"))
				}
				if path == "/v1/messages" && (e.Outer != "error" || e.RequestID != a.ID()) {
					t.Errorf("not in Anthropic's shape: %.300s", a.Body)
				}
				if len(e.Message) > 500 {
					t.Errorf("the message has %d bytes: it repeats what the client sent", len(e.Message))
				}
				if a.Header.Get("X-Should-Retry") != "false" {
					t.Error("the SDK is not told to leave it at that")
				}
			})
		}
	}
	a := stack.Do(t, stack.Request{URL: s.URL() + "/v1/nothing", Key: "demo"})
	if e := a.Error(); a.Status != http.StatusNotFound || e.Code != "not_found" || !strings.Contains(e.Message, "/v1/nothing") {
		t.Errorf("unknown path: status %d, %s", a.Status, a.Body)
	}
	if a := stack.Do(t, stack.Request{Method: "PUT", URL: s.URL() + "/v1/chat/completions", Key: "demo"}); a.Header.Get("Allow") != "POST" {
		t.Errorf("the answer to a wrong method allows %q", a.Header.Get("Allow"))
	}
	s.StopGateways()
	story := s.Story(t)
	for _, r := range story.Records {
		switch r.Kind() {
		case events.KindRefused, events.KindLease, events.KindTick, events.KindVerdicts:
		default:
			t.Errorf("the log has a %s", r.Kind())
		}
	}
	for id, trail := range story.Requests {
		for _, r := range trail.Refused {
			if r.Org != "demo" || r.Status == 0 || r.Code == "" {
				t.Errorf("the record of %s says %+v", id, r)
			}
		}
	}
	if calls := s.Provider.Ledger().Totals().Calls; calls != 0 {
		t.Errorf("%d calls reached the upstream", calls)
	}
}

// lostAnswers is how often the answer to a body that is too large may be lost: the server closes the connection half a second after it has
// answered, and a client that had no turn until then, and still writes, never reads it.
const lostAnswers = 10

// TestChunkedBodyTooLarge: a body whose length is not announced is bounded all the same.
func TestChunkedBodyTooLarge(t *testing.T) {
	text := chat("m", `"user":"`+strings.Repeat("x", 200_000)+`",`)
	s := stack.New(t, stack.Config{Settings: stack.Settings{Weir: "max_request_bytes: 100000\n" + sdkSettings.Weir, Keys: sdkSettings.Keys, Policies: sdkSettings.Policies}})
	q, err := stack.Request{URL: s.URL() + "/v1/chat/completions", Key: "demo", Body: text}.New()
	if err != nil {
		t.Fatal(err)
	}
	q.ContentLength, q.GetBody = -1, nil
	response, err := http.DefaultClient.Do(q)
	for tries := 1; err != nil && tries < lostAnswers; tries++ {
		again := q.Clone(t.Context())
		again.Body = io.NopCloser(strings.NewReader(text))
		response, err = http.DefaultClient.Do(again)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d", response.StatusCode)
	}
}
