package provider

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"github.com/weirhq/weir/gateway/bedrock"
	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/gateway/wire/scan"
)

// elsewhere is a call as Azure's or Amazon's endpoints take it, for an answer that is the same as everywhere.
type elsewhere struct {
	op    wire.Operation
	model string // the path names it
	amazon
}

// amazon says that a call came to Bedrock's runtime, and whether for a stream.
type amazon struct{ runtime, stream bool }

// foreign reads the path of a call as other providers have it.
func foreign(r *http.Request) (e elsewhere, is bool) {
	parts := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	if r.Method != http.MethodPost || len(parts) < 3 {
		return e, false
	}
	switch {
	case parts[0] == "openai" && parts[1] == "deployments" && len(parts) > 3 && r.URL.Query().Get("api-version") != "" && r.Header.Get("Api-Key") != "":
		if e.op, is = wire.ByPath("/v1/" + strings.Join(parts[3:], "/")); !is {
			return e, false
		}
		parts = parts[1:]
	case parts[0] == "model" && len(parts) == 3 && strings.HasPrefix(parts[2], "invoke"):
		e.op, e.amazon = wire.Messages, amazon{true, parts[2] == "invoke"+bedrock.StreamSuffix}
	default:
		return e, false
	}
	var err error
	e.model, err = url.PathUnescape(parts[1])
	return e, err == nil
}

// serveElsewhere answers a call that another provider's endpoint takes.
func (s *Server) serveElsewhere(w http.ResponseWriter, r *http.Request, e *elsewhere) {
	if e.runtime {
		w = &frames{ResponseWriter: w}
	}
	body, err := readBody(r, nil)
	switch {
	case err != nil:
		fail(w, e.op.Format(), http.StatusRequestEntityTooLarge, err.Error())
		return
	case e.runtime && !s.signed(r, body):
		fail(w, e.op.Format(), http.StatusForbidden, "The request signature we calculated does not match the signature you provided.")
		return
	}
	body = e.named(body)
	again := r.Clone(r.Context())
	again.Body, again.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	s.serve(w, again, e.op)
}

// named is the body with what the path says of it.
func (e *elsewhere) named(body []byte) []byte {
	if !e.runtime {
		body, _ = sjson.SetBytes(body, "model", e.model) // what is no JSON is found out later
		return body
	}
	for _, name := range []string{"model", "stream"} {
		if gjson.GetBytes(body, name).Exists() { // the runtime takes no field that it does not know
			return []byte("{")
		}
	}
	body, _ = sjson.SetBytes(body, "model", e.model)
	body, _ = sjson.SetBytes(body, "stream", e.stream)
	return body
}

// signed says whether a call to the runtime is signed with the key that the provider knows, if it knows one.
func (s *Server) signed(r *http.Request, body []byte) bool {
	if s.config.AWS.ID == "" {
		return true
	}
	given := r.Header.Get("Authorization")
	_, scope, _ := strings.Cut(given, "Credential="+s.config.AWS.ID+"/")
	parts := strings.Split(scope, "/")
	at, err := bedrock.Time(r.Header)
	if err != nil || len(parts) < 3 {
		return false
	}
	u := *r.URL
	u.Host = r.Host
	again := http.Header{"Content-Type": r.Header["Content-Type"]}
	bedrock.Sign(again, &u, body, s.config.AWS, parts[1], at)
	return again.Get("Authorization") == given
}

// frames writes an answer as the runtime does: streams in frames, errors in AWS's shape.
type frames struct {
	http.ResponseWriter
	status int
	stream bool
	event  []byte // not whole yet
}

// Unwrap is for whoever flushes.
func (w *frames) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// faults are AWS's names for what a status says.
var faults = map[int]string{400: "ValidationException", 403: "AccessDeniedException", 404: "ResourceNotFoundException", 429: "ThrottlingException", 503: "ServiceUnavailableException"}

// WriteHeader changes what the headers say of the body.
func (w *frames) WriteHeader(status int) {
	w.status = status
	h := w.Header()
	if w.stream = status < 400 && strings.HasPrefix(h.Get("Content-Type"), "text/event-stream"); w.stream {
		h.Set("Content-Type", bedrock.ContentType)
	}
	if status >= 400 {
		kind := faults[status]
		if kind == "" {
			kind = "InternalServerException"
		}
		h.Set("X-Amzn-Errortype", kind+":http://internal.amazon.com/")
		h.Del("Content-Length")
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write writes what p is there.
func (w *frames) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.status >= 400:
		message := scan.AppendString([]byte(`{"message":`), gjson.GetBytes(p, "error.message").Str)
		_, err := w.ResponseWriter.Write(append(message, '}'))
		return len(p), err
	case !w.stream:
		return w.ResponseWriter.Write(p)
	}
	w.event = append(w.event, p...)
	for {
		whole, rest, found := bytes.Cut(w.event, []byte("\n\n"))
		if !found {
			return len(p), nil
		}
		_, data, _ := bytes.Cut(whole, []byte("data: "))
		if _, err := w.ResponseWriter.Write(frame(data)); err != nil {
			return 0, err
		}
		w.event = append(w.event[:0:0], rest...)
	}
}

// frame packs one event, or for an error an exception.
func frame(data []byte) []byte {
	header := func(b []byte, name, value string) []byte {
		b = append(append(b, byte(len(name))), name...)
		return append(binary.BigEndian.AppendUint16(append(b, 7), uint16(len(value))), value...)
	}
	var headers, payload []byte
	if gjson.GetBytes(data, "type").Str == "error" {
		headers = header(header(nil, ":message-type", "exception"), ":exception-type", "throttlingException")
		payload = append(scan.AppendString([]byte(`{"message":`), gjson.GetBytes(data, "error.message").Str), '}')
	} else {
		headers = header(header(header(nil, ":event-type", "chunk"), ":content-type", "application/json"), ":message-type", "event")
		payload = []byte(`{"bytes":"` + base64.StdEncoding.EncodeToString(data) + `","p":"abcdefgh"}`)
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(12+len(headers)+len(payload)+4))
	b = binary.BigEndian.AppendUint32(b, uint32(len(headers)))
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	b = append(append(b, headers...), payload...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}
