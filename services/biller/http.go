package biller

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/usage"
)

// Bounds of exports over HTTP.
const (
	httpFor    = 30 * time.Second // for one request, its answer included
	answerMost = 4 << 10          // bytes of an answer that are looked at
	laterMost  = time.Hour        // what a receiver may ask for by Retry-After
)

// Endpoint is where an export over HTTP sends.
type Endpoint struct {
	// URL takes the events by POST. There is no default.
	URL string

	// Header is sent with each request. Defaults to none.
	Header http.Header

	// Secret gives what is sent as Authorization: Bearer. It is asked each time, so that it can be changed. Defaults to none.
	Secret func() (string, error)

	// Timeout bounds one request, its answer included. Defaults to 30 s.
	Timeout time.Duration

	// Client sends. Defaults to one that follows no redirect.
	Client *http.Client
}

var plainClient = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// post sends a body. What the answer's status means stands in the errors: nil (2xx), *Rejected (400, 413, 422), or to be tried again (all
// others, with the time that Retry-After gives).
func (e *Endpoint) post(ctx context.Context, contentType string, body []byte) error {
	limit := e.Timeout
	if limit == 0 {
		limit = httpFor
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL, bytes.NewReader(body))
	if err != nil {
		return withoutURL(err)
	}
	for name, values := range e.Header {
		request.Header[http.CanonicalHeaderKey(name)] = values
	}
	request.Header.Set("Content-Type", contentType)
	if e.Secret != nil {
		secret, err := e.Secret()
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+secret)
	}
	client := e.Client
	if client == nil {
		client = plainClient
	}
	answer, err := client.Do(request)
	if err != nil {
		return withoutURL(err)
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, answerMost)) // what it says is only told
	said := strings.TrimSpace(answer.Status + " " + strings.ToValidUTF8(string(text), "?"))
	switch answer.StatusCode {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return &Rejected{said}
	}
	if answer.StatusCode/100 == 2 {
		return nil
	}
	err = errors.New(said)
	if after := retryAfter(answer.Header); after > 0 {
		return &later{err, after}
	}
	return err
}

// withoutURL leaves the URL out of an error of a request: receivers may have a secret in it, and errors are logged and shown.
func withoutURL(err error) error {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err
	}
	return fmt.Errorf("send: %w", err)
}

// retryAfter reads how long a receiver wants to be left alone: seconds, or an instant, which is held against the receiver's own clock.
func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.Atoi(text); err == nil {
		return min(max(time.Duration(seconds), 0), laterMost/time.Second) * time.Second
	}
	at, err := http.ParseTime(text)
	now, noDate := http.ParseTime(h.Get("Date"))
	if err != nil || noDate != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), laterMost)
}

// CloudEvents sends lines in batches of CloudEvents 1.0 in JSON (application/cloudevents-batch+json), the form that OpenMeter and other
// receivers of CloudEvents take. The subject is the org. A receiver that adds up takes the values of data.change; one that keeps the newest
// takes those of data.usage and data.cost_nano of the highest revision.
type CloudEvents struct {
	Endpoint
}

// cloudEvent is a line as a CloudEvent in JSON.
type cloudEvent struct {
	SpecVersion string          `json:"specversion"`
	Type        string          `json:"type"`
	Source      string          `json:"source"`
	ID          string          `json:"id"`
	Subject     events.Org      `json:"subject"`
	Time        usage.Instant   `json:"time"`
	ContentType string          `json:"datacontenttype"`
	Data        json.RawMessage `json:"data"`
}

// Export sends one batch.
func (c *CloudEvents) Export(ctx context.Context, records []Record) (taken int, err error) {
	batch := make([]cloudEvent, len(records))
	for i := range records {
		r := &records[i]
		batch[i] = cloudEvent{"1.0", usage.Type, EventSource, r.ID, r.Line.Org, r.Line.Time, "application/json", r.Data}
	}
	body, err := json.Marshal(batch)
	if err != nil {
		return 0, fmt.Errorf("encode a batch: %w", err)
	}
	return 0, c.post(ctx, "application/cloudevents-batch+json", body)
}

// Amount says which of a line's amounts a meter counts, by its name in data.change: input_tokens, cached_tokens, cache_write_tokens,
// output_tokens, reasoning_tokens, total_tokens (input and output) or cost_nano.
type Amount string

// Of gives the amount of a line: what it adds to what was said before.
func (a Amount) Of(l *usage.Line) (n int64, known bool) {
	c := &l.Change
	switch a {
	case "input_tokens":
		return c.InputTokens, true
	case "cached_tokens":
		return c.CachedTokens, true
	case "cache_write_tokens":
		return c.CacheWriteTokens, true
	case "output_tokens":
		return c.OutputTokens, true
	case "reasoning_tokens":
		return c.ReasoningTokens, true
	case "total_tokens":
		return c.InputTokens + c.OutputTokens, true
	case "cost_nano":
		return c.CostNano, true
	}
	return 0, false
}

// MeterEvents sends lines as meter events, one a request, the form that Stripe takes at /v2/billing/meter_events: its identifier is the
// line's CloudEvents id, a dot and the amount's name, so that several meters of one line do not take each other for repetitions. One that adds nothing is not sent; a correction is sent as what it changes, which may be negative. Several meters
// are several exports.
type MeterEvents struct {
	Endpoint

	// Event is the meter's event name. There is no default.
	Event string

	// Amount is what it counts. There is no default.
	Amount Amount

	// Customer gives an org's customer; false makes the line a dead letter. Defaults to the org's own name.
	Customer func(events.Org) (string, bool)
}

// maxIdentifier bounds an identifier, in bytes; a longer id is sent as its SHA-256.
const maxIdentifier = 100

type meterEvent struct {
	Event      string            `json:"event_name"`
	Identifier string            `json:"identifier"`
	Time       usage.Instant     `json:"timestamp"`
	Payload    map[string]string `json:"payload"`
}

// Export sends each record by itself.
func (m *MeterEvents) Export(ctx context.Context, records []Record) (taken int, err error) {
	for i := range records {
		if err := m.send(ctx, &records[i]); err != nil {
			return i, err
		}
	}
	return len(records), nil
}

func (m *MeterEvents) send(ctx context.Context, r *Record) error {
	n, known := m.Amount.Of(&r.Line)
	if !known {
		return fmt.Errorf("amount %q: a line has none of that name", m.Amount)
	}
	if n == 0 {
		return nil
	}
	customer, known := string(r.Line.Org), true
	if m.Customer != nil {
		customer, known = m.Customer(r.Line.Org)
	}
	if !known {
		return &Rejected{fmt.Sprintf("org %s has no customer", r.Line.Org)}
	}
	id := r.ID + "." + string(m.Amount)
	if len(id) > maxIdentifier {
		sum := sha256.Sum256([]byte(id))
		id = hex.EncodeToString(sum[:])
	}
	body, err := json.Marshal(meterEvent{m.Event, id, r.Line.Time, map[string]string{"stripe_customer_id": customer, "value": strconv.FormatInt(n, 10)}})
	if err != nil {
		return fmt.Errorf("encode a meter event: %w", err)
	}
	err = m.post(ctx, "application/json", body)
	if rejected, ok := errors.AsType[*Rejected](err); ok && strings.Contains(rejected.Reason, "duplicate_meter_event") {
		return nil // taken before
	}
	return err
}
