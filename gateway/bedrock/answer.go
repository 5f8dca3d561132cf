package bedrock

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"
	"github.com/tidwall/gjson"

	"github.com/weirhq/weir/gateway/wire"
)

const (
	// maxAnswer bounds an error or a count that is read whole, in bytes.
	maxAnswer = 256 << 10
	// readAhead is how much of a stream is read at once, in bytes.
	readAhead = 32 << 10
)

// Response makes an answer of Bedrock one of the SDK's format: frames become events, and AWS's errors errors of the format.
func (d *dialect) Response(r *http.Response) {
	switch {
	case r.StatusCode >= 400:
		d.fault(r)
	case strings.HasPrefix(r.Header.Get("Content-Type"), eventStream):
		r.Header["Content-Type"] = []string{"text/event-stream; charset=utf-8"}
		r.Body = &frames{in: bufio.NewReaderSize(r.Body, readAhead), body: r.Body, decoder: eventstream.NewDecoder()}
		r.ContentLength = -1
	case d.op == wire.CountTokens && d.invoke:
		b, err := io.ReadAll(io.LimitReader(r.Body, maxAnswer))
		if n := gjson.GetBytes(b, "inputTokens"); err == nil && n.Exists() {
			b = strconv.AppendInt([]byte(`{"input_tokens":`), n.Int(), 10)
			b = append(b, '}')
		}
		replace(r, b, err)
	}
}

// replace puts a body in place of the one that was read.
func replace(r *http.Response, b []byte, err error) {
	var rest io.Reader = bytes.NewReader(b)
	if err != nil {
		rest = io.MultiReader(rest, failing{err})
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{rest, r.Body}
	r.ContentLength = int64(len(b))
	delete(r.Header, "Content-Length")
}

type failing struct{ err error }

// Read gives the error.
func (f failing) Read([]byte) (int, error) { return 0, f.err }

// fault gives an error of AWS's shape, a message in the body and its kind in a header, the shape of the SDK. One that has it stays.
func (d *dialect) fault(r *http.Response) {
	b, err := io.ReadAll(io.LimitReader(r.Body, maxAnswer))
	if err == nil && !gjson.GetBytes(b, "error").IsObject() {
		kind, _, _ := strings.Cut(r.Header.Get("X-Amzn-Errortype"), ":")
		text := gjson.GetBytes(b, "message")
		if !text.Exists() {
			text = gjson.GetBytes(b, "Message")
		}
		message := text.String()
		if message == "" {
			message = "the provider answered with status " + strconv.Itoa(r.StatusCode)
		}
		if d.op.Format() == wire.Anthropic {
			b = faultBody(kind, r.StatusCode, message)
		} else {
			b = marshal(map[string]any{"error": map[string]any{"message": message, "type": kindOf(kind, r.StatusCode), "param": nil, "code": kind}})
		}
		r.Header["Content-Type"] = []string{"application/json"}
	}
	replace(r, b, err)
}

// frames reads frames and gives them as server-sent events.
type frames struct {
	in      *bufio.Reader
	body    io.Closer
	decoder *eventstream.Decoder
	payload []byte
	ready   []byte // of the last frames, not yet read
	err     error
}

// Close closes the answer.
func (f *frames) Close() error { return f.body.Close() }

// Read gives what the next frame holds as soon as it is whole.
func (f *frames) Read(p []byte) (int, error) {
	for len(f.ready) == 0 {
		if f.err != nil {
			return 0, f.err
		}
		f.ready, f.err = f.next(f.ready[:0])
	}
	n := copy(p, f.ready)
	f.ready = f.ready[n:]
	return n, nil
}

func (f *frames) next(to []byte) ([]byte, error) {
	if _, err := f.in.Peek(1); err != nil {
		return to, err // io.EOF between frames is the end
	}
	m, err := f.decoder.Decode(f.in, f.payload[:0])
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return to, fmt.Errorf("reading a frame: %w", err)
	}
	f.payload = m.Payload[:0]
	header := func(name string) string {
		if v := m.Headers.Get(name); v != nil {
			return v.String()
		}
		return ""
	}
	switch header(":message-type") {
	case "event":
		if header(":event-type") != "chunk" {
			return to, nil // of a kind that carries nothing of the answer
		}
		return chunk(to, m.Payload)
	case "exception":
		return fault(to, header(":exception-type"), gjson.GetBytes(m.Payload, "message").String()), nil
	default:
		return fault(to, header(":error-code"), header(":error-message")), nil
	}
}

// chunk appends the event that a payload carries in base64.
func chunk(to, payload []byte) ([]byte, error) {
	data, err := base64.StdEncoding.DecodeString(gjson.GetBytes(payload, "bytes").String())
	if err != nil {
		return to, fmt.Errorf("reading a frame: its bytes are no base64: %w", err)
	}
	if !gjson.ValidBytes(data) {
		return to, errors.New("reading a frame: its bytes are no JSON")
	}
	if bytes.ContainsAny(data, "\r\n") { // would end the event's line
		var flat bytes.Buffer
		if err := json.Compact(&flat, data); err != nil {
			return to, fmt.Errorf("reading a frame: %w", err)
		}
		data = flat.Bytes()
	}
	return event(to, gjson.GetBytes(data, "type").String(), data), nil
}

func event(to []byte, name string, data []byte) []byte {
	to = append(append(to, "event: "...), name...)
	to = append(append(to, "\ndata: "...), data...)
	return append(to, "\n\n"...)
}

func fault(to []byte, kind, message string) []byte {
	return event(to, "error", faultBody(kind, 0, message))
}

func faultBody(kind string, status int, message string) []byte {
	return marshal(map[string]any{"type": "error", "error": map[string]string{"type": kindOf(kind, status), "message": message}})
}

func marshal(v any) []byte {
	b, _ := json.Marshal(v) // of texts alone: it cannot fail
	return b
}

// kindOf is Anthropic's word, and OpenAI's where that has one, for what went wrong: by AWS's word for it, or by the status.
func kindOf(kind string, status int) string {
	switch strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(kind, "Exception"), "exception")) {
	case "throttling", "modelnotready":
		return "rate_limit_error"
	case "servicequotaexceeded", "validation":
		return "invalid_request_error"
	case "accessdenied":
		return "permission_error"
	case "resourcenotfound":
		return "not_found_error"
	case "modeltimeout":
		return "timeout_error"
	case "serviceunavailable":
		return "overloaded_error"
	}
	switch {
	case status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return "permission_error"
	case status >= 400 && status < 500:
		return "invalid_request_error"
	}
	return "api_error"
}
