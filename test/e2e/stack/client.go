package stack

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicopt "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	openaiopt "github.com/openai/openai-go/v3/option"

	"github.com/weirhq/weir/services/provider"
)

// OpenAI is a client of the SDK as an application makes it, but for retries, of which it makes none unless asked to.
func OpenAI(url, key string, more ...openaiopt.RequestOption) openai.Client {
	return openai.NewClient(append([]openaiopt.RequestOption{openaiopt.WithBaseURL(url + "/v1"), openaiopt.WithAPIKey(KeyText(key)), openaiopt.WithMaxRetries(0)}, more...)...)
}

// Anthropic is a client of the SDK as an application makes it, but for retries, of which it makes none unless asked to.
func Anthropic(url, key string, more ...anthropicopt.RequestOption) anthropic.Client {
	return anthropic.NewClient(append([]anthropicopt.RequestOption{anthropicopt.WithBaseURL(url), anthropicopt.WithAPIKey(KeyText(key)), anthropicopt.WithMaxRetries(0)}, more...)...)
}

// Answer is what a plain HTTP request got.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	Close  bool // the connection is not used again
}

// Error is an error in either SDK's shape.
type Error struct {
	Type     string
	Code     string
	Message  string
	Param    string
	Source   string
	Metadata struct {
		Origin       string
		LimitScope   string `json:"limit_scope"`
		LimitKind    string `json:"limit_kind"`
		LimitID      string `json:"limit_id"`
		Retryable    bool
		RetryAfterMS int64  `json:"retry_after_ms"`
		ResetsAt     string `json:"resets_at"`
	}
	// Outer and RequestID stand in Anthropic's shape alone.
	Outer     string
	RequestID string
}

// Error reads the answer's error; the zero Error if it holds none.
func (a *Answer) Error() Error {
	var body struct {
		Type      string
		RequestID string `json:"request_id"`
		Error     Error
	}
	_ = json.Unmarshal(a.Body, &body) // what is no JSON holds no error
	body.Error.Outer, body.Error.RequestID = body.Type, body.RequestID
	return body.Error
}

// ID is the request's id.
func (a *Answer) ID() string { return a.Header.Get("X-Request-Id") }

// Request is a plain HTTP request.
type Request struct {
	Method string // Defaults to POST with a body, GET without
	URL    string
	Key    string // name of a key; empty: none is sent
	Body   string
	Script string // for the upstream
	Header map[string]string
}

// Do sends a request and reads the whole answer.
func Do(tb testing.TB, r Request) *Answer {
	tb.Helper()
	a, err := r.Send()
	check(tb, err)
	return a
}

// New makes the HTTP request.
func (r Request) New() (*http.Request, error) {
	method := r.Method
	switch {
	case method != "":
	case r.Body != "":
		method = http.MethodPost
	default:
		method = http.MethodGet
	}
	q, err := http.NewRequest(method, r.URL, bytes.NewReader([]byte(r.Body)))
	if err != nil {
		return nil, err
	}
	q.Header.Set("Content-Type", "application/json")
	if r.Key != "" {
		q.Header.Set("Authorization", "Bearer "+KeyText(r.Key))
	}
	if r.Script != "" {
		q.Header.Set(provider.ScriptHeader, r.Script)
	}
	for name, value := range r.Header {
		q.Header.Set(name, value)
	}
	return q, nil
}

// Send sends a request and reads the whole answer. With an error, what was read until then is in the answer, if it began.
func (r Request) Send() (*Answer, error) {
	q, err := r.New()
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(q)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return &Answer{response.StatusCode, response.Header, body, response.Close}, err
}

// Chat sends a chat completion.
func (s *Stack) Chat(tb testing.TB, key, script, body string) *Answer {
	tb.Helper()
	return Do(tb, Request{URL: s.URL() + "/v1/chat/completions", Key: key, Script: script, Body: body})
}

// Limit is one entry of /v1/limits.
type Limit struct {
	Meter                  string
	Scope, ID, Kind        string
	Limit, Used, Remaining int64
	Shadow                 bool
}

// Limits asks a gateway what is left.
func Limits(tb testing.TB, url, key, model string) map[string]Limit {
	tb.Helper()
	a := Do(tb, Request{URL: url + "/v1/limits?model=" + model, Key: key})
	var info struct{ Limits []Limit }
	if err := json.Unmarshal(a.Body, &info); err != nil || a.Status != http.StatusOK {
		tb.Fatalf("/v1/limits: status %d, %s", a.Status, a.Body)
	}
	all := make(map[string]Limit, len(info.Limits))
	for _, l := range info.Limits {
		all[l.Meter] = l
	}
	return all
}

// Healthy waits until a gateway is ready and its models' replicas have answered.
func Healthy(tb testing.TB, url string) {
	tb.Helper()
	Eventually(tb, url+" is ready", func() bool {
		a, err := Request{URL: url + "/ready"}.Send()
		return err == nil && a.Status == http.StatusOK
	})
}
