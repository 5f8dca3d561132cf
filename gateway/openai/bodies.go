package openai

import (
	"strconv"

	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/gateway/wire/scan"
)

// Error is the content of an error body.
type Error struct {
	Message  string
	Type     string // "" is written as the SDK's type for Status
	Code     string // "" is written as null
	Param    string // "" is written as null
	Status   int
	Metadata *wire.Metadata // nil is left out
}

// TypeOf gives the error type that goes with a status.
func TypeOf(status int) string {
	switch {
	case status == 401:
		return "authentication_error"
	case status == 402:
		return "insufficient_quota"
	case status == 403:
		return "permission_error"
	case status == 404:
		return "not_found_error"
	case status == 429:
		return "rate_limit_error"
	case status >= 500:
		return "server_error"
	}
	return "invalid_request_error"
}

// ErrorBody encodes an error as the SDK expects it.
func ErrorBody(e Error) []byte { return appendError(make([]byte, 0, 512), e) }

func appendError(dst []byte, e Error) []byte {
	if e.Type == "" {
		e.Type = TypeOf(e.Status)
	}
	dst = scan.AppendString(append(dst, `{"error":{"message":`...), e.Message)
	dst = scan.AppendString(append(dst, `,"type":`...), e.Type)
	dst = appendNullable(append(dst, `,"code":`...), e.Code)
	dst = appendNullable(append(dst, `,"param":`...), e.Param)
	dst = append(dst, `,"source":"router"`...)
	if e.Metadata != nil {
		dst = e.Metadata.Append(append(dst, `,"metadata":`...))
	}
	return append(dst, "}}"...)
}

func appendNullable(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return scan.AppendString(dst, s)
}

// ErrorEvent encodes an error inside a stream of op, which ends it: the SDK raises it. sequence is used by the Responses
// API alone, which numbers its events.
func ErrorEvent(op wire.Operation, e Error, sequence int64) []byte {
	dst := make([]byte, 0, 512)
	if op == wire.Responses {
		dst = append(dst, "event: error\ndata: "...)
		dst = scan.AppendString(append(dst, `{"type":"error","message":`...), e.Message)
		dst = appendNullable(append(dst, `,"code":`...), e.Code)
		dst = appendNullable(append(dst, `,"param":`...), e.Param)
		dst = strconv.AppendInt(append(dst, `,"sequence_number":`...), sequence, 10)
		if e.Metadata != nil {
			dst = e.Metadata.Append(append(dst, `,"metadata":`...))
		}
		return append(dst, "}\n\n"...)
	}
	return append(appendError(append(dst, "data: "...), e), "\n\n"...)
}

// ModelList encodes the answer of GET /v1/models.
func ModelList(models []wire.Model) []byte {
	dst := append(make([]byte, 0, 64+160*len(models)), `{"object":"list","data":[`...)
	for i := range models {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendModel(dst, &models[i])
	}
	return append(dst, "]}"...)
}

// ModelBody encodes the answer of GET /v1/models/{id}.
func ModelBody(m wire.Model) []byte { return appendModel(nil, &m) }

func appendModel(dst []byte, m *wire.Model) []byte {
	dst = scan.AppendString(append(dst, `{"id":`...), m.ID)
	created := int64(0)
	if !m.Created.IsZero() {
		created = m.Created.Unix()
	}
	dst = strconv.AppendInt(append(dst, `,"object":"model","created":`...), created, 10)
	dst = scan.AppendString(append(dst, `,"owned_by":`...), m.OwnedBy)
	if m.ContextWindow > 0 {
		dst = strconv.AppendInt(append(dst, `,"context_window":`...), m.ContextWindow, 10)
	}
	if m.MaxOutput > 0 {
		dst = strconv.AppendInt(append(dst, `,"max_output_tokens":`...), m.MaxOutput, 10)
	}
	return append(dst, '}')
}
