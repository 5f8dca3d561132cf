package provider

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"
	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"github.com/weirhq/weir/gateway/wire"
)

const (
	signatureScheme = "AWS4-HMAC-SHA256 "
	// mostSkew is how far a signature's time may be from now.
	mostSkew = 5 * time.Minute
)

// bedrock answers as Bedrock's runtime does for Anthropic's models: POST /model/<id>/invoke, /invoke-with-response-stream and
// /count-tokens; and what is signed as AWS asks under /openai/v1, as Bedrock does for OpenAI's. It reports false for any other path.
func (s *Server) bedrock(w http.ResponseWriter, r *http.Request) bool {
	if path, ours := strings.CutPrefix(r.URL.EscapedPath(), "/openai"); ours && strings.HasPrefix(r.Header.Get("Authorization"), signatureScheme) {
		s.likeOpenAI(w, r, path)
		return true
	}
	path, ours := strings.CutPrefix(r.URL.EscapedPath(), "/model/")
	if !ours || r.Method != http.MethodPost {
		return false
	}
	name, action, _ := strings.Cut(path, "/")
	model, err := url.PathUnescape(name)
	if err != nil || strings.Contains(name, ":") { // AWS's own clients never leave one as it is
		awsError(w, http.StatusBadRequest, "the model's id is not escaped")
		return true
	}
	if status, message := s.signed(r); status != 0 {
		awsError(w, status, message)
		return true
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, MaxBody))
	if err != nil {
		awsError(w, http.StatusBadRequest, err.Error())
		return true
	}
	switch action {
	case "invoke":
		s.invoke(w, r, wire.Messages, model, body, false)
	case "invoke-with-response-stream":
		s.invoke(w, r, wire.Messages, model, body, true)
	case "count-tokens":
		inner, err := base64.StdEncoding.DecodeString(gjson.GetBytes(body, "input.invokeModel.body").String())
		if err != nil || len(inner) == 0 {
			awsError(w, http.StatusBadRequest, "input.invokeModel.body must be a request in base64")
			return true
		}
		s.invoke(w, r, wire.CountTokens, model, inner, false)
	default:
		awsError(w, http.StatusNotFound, "there is no "+action)
	}
	return true
}

// likeOpenAI answers what is signed by what would answer it at OpenAI.
func (s *Server) likeOpenAI(w http.ResponseWriter, r *http.Request, path string) {
	op, found := wire.ByPath(path)
	if !found {
		awsError(w, http.StatusNotFound, "there is no "+path)
		return
	}
	if status, message := s.signed(r); status != 0 {
		awsError(w, status, message)
		return
	}
	s.serve(w, r, op)
}

// invoke answers one request for a model by what would answer it at Anthropic.
func (s *Server) invoke(w http.ResponseWriter, r *http.Request, op wire.Operation, model string, body []byte, stream bool) {
	for _, field := range [...]string{"model", "stream"} {
		if gjson.GetBytes(body, field).Exists() {
			awsError(w, http.StatusBadRequest, "Malformed input request: #: extraneous key ["+field+"] is not permitted")
			return
		}
	}
	if gjson.GetBytes(body, "anthropic_version").String() != "bedrock-2023-05-31" || !gjson.GetBytes(body, "max_tokens").Exists() {
		awsError(w, http.StatusBadRequest, "Malformed input request: anthropic_version and max_tokens are required")
		return
	}
	body, err := sjson.SetBytes(body, "model", model)
	if err == nil && stream {
		body, err = sjson.SetBytes(body, "stream", true)
	}
	if err != nil {
		awsError(w, http.StatusBadRequest, err.Error())
		return
	}
	inner := r.Clone(r.Context())
	inner.Body, inner.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	f := &frameWriter{w: w, op: op, stream: stream}
	defer f.finish()
	s.serve(f, inner, op)
}

// signed verifies a request's signature, if the server knows access keys. Status 0: it is right, or none is asked for.
func (s *Server) signed(r *http.Request) (status int, message string) {
	if len(s.config.AccessKeys) == 0 {
		return 0, ""
	}
	fields := map[string]string{}
	rest, _ := strings.CutPrefix(r.Header.Get("Authorization"), signatureScheme)
	for part := range strings.SplitSeq(rest, ", ") {
		name, value, _ := strings.Cut(part, "=")
		fields[name] = value
	}
	scope := strings.Split(fields["Credential"], "/")
	names := strings.Split(fields["SignedHeaders"], ";")
	if len(scope) != 5 || scope[4] != "aws4_request" || scope[3] != "bedrock" || scope[2] == "" || !slices.Contains(names, "host") || !slices.Contains(names, "x-amz-date") {
		return http.StatusForbidden, "The request is not signed for this service"
	}
	secret := s.config.AccessKeys[scope[0]]
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if secret == "" || err != nil || at.Format("20060102") != scope[1] || time.Since(at).Abs() > mostSkew {
		return http.StatusForbidden, "The security token included in the request is invalid"
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, MaxBody))
	if err != nil {
		return http.StatusBadRequest, err.Error()
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	canonical := r.Method + "\n" + escapedTwice(r.URL.EscapedPath()) + "\n" + r.URL.RawQuery + "\n"
	for _, name := range names {
		value := r.Header.Get(name)
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = strconv.FormatInt(r.ContentLength, 10)
		}
		canonical += name + ":" + strings.TrimSpace(value) + "\n"
	}
	canonical += "\n" + fields["SignedHeaders"] + "\n" + digest(body)
	key := []byte("AWS4" + secret)
	for _, part := range scope[1:] {
		key = mac(key, part)
	}
	text := strings.TrimSpace(signatureScheme) + "\n" + r.Header.Get("X-Amz-Date") + "\n" + strings.Join(scope[1:], "/") + "\n" + digest([]byte(canonical))
	if hex.EncodeToString(mac(key, text)) != fields["Signature"] {
		return http.StatusForbidden, "The request signature we calculated does not match the signature you provided"
	}
	return 0, ""
}

// escapedTwice is a path as a signature has it: each byte that is not unreserved is escaped once more.
func escapedTwice(path string) string {
	out := make([]byte, 0, len(path)+16)
	for i := range len(path) {
		switch c := path[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-._~/", c) >= 0:
			out = append(out, c)
		default:
			out = append(append(out, '%'), strings.ToUpper(hex.EncodeToString([]byte{c}))...)
		}
	}
	return string(out)
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// awsError answers with an error in AWS's shape.
func awsError(w http.ResponseWriter, status int, message string) {
	kind := "InternalServerException"
	switch {
	case status == http.StatusTooManyRequests:
		kind = "ThrottlingException"
	case status == http.StatusForbidden:
		kind = "AccessDeniedException"
	case status == http.StatusNotFound:
		kind = "ResourceNotFoundException"
	case status == http.StatusServiceUnavailable:
		kind = "ServiceUnavailableException"
	case status < 500:
		kind = "ValidationException"
	}
	h := w.Header()
	h.Set("X-Amzn-Errortype", kind+":http://internal.amazon.com/coral/com.amazon.bedrock/")
	h["Content-Type"] = jsonType
	delete(h, "Content-Length")
	w.WriteHeader(status)
	b, _ := json.Marshal(map[string]string{"message": message}) // of texts alone: it cannot fail
	_, _ = w.Write(b)                                           // the client may have left
}

// frameWriter makes what Anthropic's API would answer Bedrock's answer: frames out of events, and AWS's errors.
type frameWriter struct {
	w      http.ResponseWriter
	op     wire.Operation
	stream bool
	status int
	part   []byte // of an event or an answer that is not whole
}

// Header gives the answer's headers.
func (f *frameWriter) Header() http.Header { return f.w.Header() }

// WriteHeader keeps the status until the first frame, or the whole answer.
func (f *frameWriter) WriteHeader(status int) { f.status = status }

func (f *frameWriter) framed() bool { return f.stream && (f.status == 0 || f.status == http.StatusOK) }

// Write takes in a piece and sends the frames of the events that are whole.
func (f *frameWriter) Write(b []byte) (int, error) {
	f.part = append(f.part, b...)
	if !f.framed() {
		return len(b), nil
	}
	f.w.Header().Set("Content-Type", "application/vnd.amazon.eventstream")
	for {
		text, rest, whole := bytes.Cut(f.part, []byte("\n\n"))
		if !whole {
			return len(b), nil
		}
		if _, err := f.w.Write(frame(text)); err != nil {
			return 0, err
		}
		f.part = append(f.part[:0], rest...)
	}
}

// Flush sends what is written.
func (f *frameWriter) Flush() { _ = http.NewResponseController(f.w).Flush() }

// finish sends what an answer that is no stream holds, or the half of a frame that a stream was cut in.
func (f *frameWriter) finish() {
	switch {
	case f.framed() && len(f.part) > 0:
		whole := frame(f.part)
		_, _ = f.w.Write(whole[:len(whole)/2]) // the client may have left
		f.Flush()
	case f.framed():
	case f.status >= 400:
		awsError(f.w, f.status, gjson.GetBytes(f.part, "error.message").String())
	case f.op == wire.CountTokens:
		delete(f.w.Header(), "Content-Length")
		_, _ = f.w.Write([]byte(`{"inputTokens":` + gjson.GetBytes(f.part, "input_tokens").Raw + `}`))
	default:
		_, _ = f.w.Write(f.part)
	}
}

// frame is the frame for one event: a chunk, or an exception for an error.
func frame(text []byte) []byte {
	var data []byte
	for line := range bytes.Lines(text) {
		if d, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: ")); ok {
			data = d
		}
	}
	m := eventstream.Message{}
	set := func(name, value string) { m.Headers.Set(name, eventstream.StringValue(value)) }
	set(":content-type", "application/json")
	if gjson.GetBytes(data, "type").String() == "error" {
		set(":message-type", "exception")
		set(":exception-type", "serviceUnavailableException")
		m.Payload, _ = json.Marshal(map[string]string{"message": gjson.GetBytes(data, "error.message").String()}) // of a text alone: it cannot fail
	} else {
		set(":message-type", "event")
		set(":event-type", "chunk")
		m.Payload, _ = json.Marshal(map[string]any{"bytes": data, "p": "abcdefghijkl"}) // of bytes alone: it cannot fail
	}
	var out bytes.Buffer
	_ = eventstream.NewEncoder().Encode(&out, m) // into memory: it cannot fail
	return out.Bytes()
}
