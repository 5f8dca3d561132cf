package anthropic

import (
	"strconv"
	"time"

	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/gateway/wire/scan"
)

// Error is the content of an error body.
type Error struct {
	Message   string
	Type      string // "" is written as the SDK's type for Status
	Code      string // the gateway's own code, beside the SDK's fields; "" is left out
	Param     string // "" is left out
	Status    int
	RequestID string         // "" is written as null
	Metadata  *wire.Metadata // nil is left out
}

// TypeOf gives the error type that goes with a status.
func TypeOf(status int) string {
	switch {
	case status == 401:
		return "authentication_error"
	case status == 402:
		return "billing_error"
	case status == 403:
		return "permission_error"
	case status == 404:
		return "not_found_error"
	case status == 413:
		return "request_too_large"
	case status == 429:
		return "rate_limit_error"
	case status == 503 || status == 529:
		return "overloaded_error"
	case status == 504:
		return "timeout_error"
	case status >= 500:
		return "api_error"
	}
	return "invalid_request_error"
}

// ErrorBody encodes an error as the SDK expects it.
func ErrorBody(e Error) []byte { return appendError(make([]byte, 0, 512), e) }

func appendError(dst []byte, e Error) []byte {
	if e.Type == "" {
		e.Type = TypeOf(e.Status)
	}
	dst = scan.AppendString(append(dst, `{"type":"error","error":{"type":`...), e.Type)
	dst = scan.AppendString(append(dst, `,"message":`...), e.Message)
	if e.Code != "" {
		dst = scan.AppendString(append(dst, `,"code":`...), e.Code)
	}
	if e.Param != "" {
		dst = scan.AppendString(append(dst, `,"param":`...), e.Param)
	}
	dst = append(dst, `,"source":"router"`...)
	if e.Metadata != nil {
		dst = e.Metadata.Append(append(dst, `,"metadata":`...))
	}
	dst = append(dst, `},"request_id":`...)
	if e.RequestID == "" {
		return append(dst, "null}"...)
	}
	return append(scan.AppendString(dst, e.RequestID), '}')
}

// ErrorEvent encodes an error inside a stream, which ends it: the SDK raises it.
func ErrorEvent(e Error) []byte {
	return append(appendError(append(make([]byte, 0, 512), "event: error\ndata: "...), e), "\n\n"...)
}

// CountBody encodes the answer of count_tokens.
func CountBody(inputTokens int64) []byte {
	return append(strconv.AppendInt([]byte(`{"input_tokens":`), inputTokens, 10), '}')
}

// ModelList encodes the answer of GET /v1/models: one page with everything.
func ModelList(models []wire.Model) []byte {
	dst := append(make([]byte, 0, 96+192*len(models)), `{"data":[`...)
	for i := range models {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendModel(dst, &models[i])
	}
	dst = append(dst, `],"has_more":false,"first_id":`...)
	if len(models) == 0 {
		return append(dst, `null,"last_id":null}`...)
	}
	dst = scan.AppendString(dst, models[0].ID)
	dst = scan.AppendString(append(dst, `,"last_id":`...), models[len(models)-1].ID)
	return append(dst, '}')
}

// ModelBody encodes the answer of GET /v1/models/{id}.
func ModelBody(m wire.Model) []byte { return appendModel(nil, &m) }

func appendModel(dst []byte, m *wire.Model) []byte {
	dst = scan.AppendString(append(dst, `{"type":"model","id":`...), m.ID)
	dst = scan.AppendString(append(dst, `,"display_name":`...), m.ID)
	created := m.Created
	if created.IsZero() {
		created = time.Unix(0, 0)
	}
	dst = created.UTC().AppendFormat(append(dst, `,"created_at":"`...), time.RFC3339)
	dst = append(dst, '"')
	if m.ContextWindow > 0 {
		dst = strconv.AppendInt(append(dst, `,"max_input_tokens":`...), m.ContextWindow, 10)
	}
	if m.MaxOutput > 0 {
		dst = strconv.AppendInt(append(dst, `,"max_tokens":`...), m.MaxOutput, 10)
	}
	return append(dst, '}')
}
