package relay

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/gateway/wire"
)

const (
	// MaxRetryAfter is the longest wait believed from an upstream.
	MaxRetryAfter = time.Hour
	// maxKept bounds an error answer that is kept, in bytes. Real ones have a few hundred.
	maxKept = 256 << 10
	// AnthropicVersion is sent to Anthropic upstreams when neither client nor target says one.
	AnthropicVersion = "2023-06-01"
)

// toUpstream are the client's headers that go on, by wire format. Its credentials and cookies never do; an idempotency key
// neither, because the transport would take it for leave to send a request twice.
var toUpstream = [...][]string{
	wire.OpenAI:    {"Accept", "User-Agent", "Traceparent", "Tracestate", "Openai-Beta"},
	wire.Anthropic: {"Accept", "User-Agent", "Traceparent", "Tracestate", "Anthropic-Beta", "Anthropic-Version"},
}

var (
	jsonType = []string{"application/json"}
	identity = []string{"identity"}
)

// Outgoing makes the headers of an upstream request: those of the client that its wire format allows, those named in extra
// (in canonical form), and over them the target's own, which carry the credentials. requestID goes out as x-request-id.
func Outgoing(f wire.Format, requestID string, client, target http.Header, extra ...string) http.Header {
	h := make(http.Header, 8+len(target))
	for _, names := range [...][]string{toUpstream[f], extra} {
		for _, name := range names {
			if v := client[name]; len(v) > 0 {
				h[name] = v
			}
		}
	}
	if f == wire.Anthropic && h["Anthropic-Version"] == nil {
		h["Anthropic-Version"] = []string{AnthropicVersion}
	}
	for name, v := range target {
		h[name] = v
	}
	if h["User-Agent"] == nil {
		h["User-Agent"] = []string{""} // keeps the transport from naming itself
	}
	if requestID != "" {
		h["X-Request-Id"] = []string{requestID}
	}
	h["Content-Type"] = jsonType
	h["Accept-Encoding"] = identity // a compressed answer could not be read in passing
	return h
}

// fromUpstream are the headers of any answer that go to the client. The upstream's own rate-limit headers do not: they
// describe the operator's account.
var fromUpstream = []string{"Content-Type", "Content-Encoding", "Openai-Processing-Ms", "Openai-Version"}

// fromErrors are those of error answers in addition.
var fromErrors = []string{"Retry-After", "Retry-After-Ms", "X-Should-Retry"}

// forward copies what of from may reach the client.
func forward(to, from http.Header) {
	for _, name := range fromUpstream {
		if v := from[name]; len(v) > 0 {
			to[name] = v
		}
	}
	if id := upstreamID(from); id != "" {
		to["X-Upstream-Request-Id"] = []string{id}
	}
}

func kept(from http.Header) http.Header {
	h := make(http.Header, 4)
	forward(h, from)
	for _, name := range fromErrors {
		if v := from[name]; len(v) > 0 {
			h[name] = v
		}
	}
	return h
}

// upstreamID finds the id that the upstream gave the request.
func upstreamID(h http.Header) string {
	for _, name := range [...]string{"X-Request-Id", "Request-Id", "Apim-Request-Id", "X-Amzn-Requestid"} {
		if v := h[name]; len(v) > 0 {
			return v[0]
		}
	}
	return ""
}

// isStream says whether an answer is a stream of events. One that does not say is what was asked for.
func isStream(h http.Header, asked bool) bool {
	v := h["Content-Type"]
	if len(v) == 0 {
		return asked
	}
	const stream = "text/event-stream"
	return len(v[0]) >= len(stream) && strings.EqualFold(v[0][:len(stream)], stream)
}

// RetryAfter reads how long an answer asks to wait: retry-after-ms, or retry-after in seconds or as a date. It is 0 when
// nothing usable stands there, and at most MaxRetryAfter.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	if ms, err := strconv.ParseFloat(strings.TrimSpace(h.Get("Retry-After-Ms")), 64); err == nil && ms > 0 {
		return capped(ms, time.Millisecond)
	}
	text := strings.TrimSpace(h.Get("Retry-After"))
	if s, err := strconv.ParseFloat(text, 64); err == nil && s > 0 {
		return capped(s, time.Second)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(at.Sub(now), 0), MaxRetryAfter)
	}
	return 0
}

func capped(v float64, unit time.Duration) time.Duration {
	if v >= float64(MaxRetryAfter/unit) {
		return MaxRetryAfter
	}
	return time.Duration(v * float64(unit))
}

// Answer is an upstream's error answer, kept whole.
type Answer struct {
	Status int
	Header http.Header // only what may reach the client
	Body   []byte
}

// Forward writes the answer to the client as it came. commit, which may be nil, can add to the headers before they leave.
// An error means that the client is gone.
func (a *Answer) Forward(w http.ResponseWriter, commit func(status int, h http.Header)) error {
	h := w.Header()
	for name, v := range a.Header {
		h[name] = v
	}
	h["Content-Length"] = []string{strconv.Itoa(len(a.Body))}
	if commit != nil {
		commit(a.Status, h)
	}
	w.WriteHeader(a.Status)
	_, err := w.Write(a.Body)
	return err
}
