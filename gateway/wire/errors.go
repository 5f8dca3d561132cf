package wire

import (
	"strconv"
	"time"

	"github.com/weirhq/weir/gateway/wire/scan"
)

// Metadata says, inside an error body, where a refusal comes from and whether to try again. Empty fields are left out.
type Metadata struct {
	Origin       string
	LimitScope   string
	LimitKind    string
	LimitID      string
	Retryable    bool
	RetryAfterMS int64     // 0: not known
	ResetsAt     time.Time // zero: not known
}

// Append appends the metadata as a JSON object.
func (m *Metadata) Append(dst []byte) []byte {
	dst = append(dst, '{')
	for _, f := range [...]struct{ name, value string }{
		{"origin", m.Origin}, {"limit_scope", m.LimitScope}, {"limit_kind", m.LimitKind}, {"limit_id", m.LimitID},
	} {
		if f.value != "" {
			dst = append(append(append(dst, '"'), f.name...), `":`...)
			dst = append(scan.AppendString(dst, f.value), ',')
		}
	}
	dst = strconv.AppendBool(append(dst, `"retryable":`...), m.Retryable)
	if m.RetryAfterMS > 0 {
		dst = strconv.AppendInt(append(dst, `,"retry_after_ms":`...), m.RetryAfterMS, 10)
	}
	if !m.ResetsAt.IsZero() {
		dst = m.ResetsAt.UTC().AppendFormat(append(dst, `,"resets_at":"`...), "2006-01-02T15:04:05.000Z")
		dst = append(dst, '"')
	}
	return append(dst, '}')
}

// Model is one model in a list.
type Model struct {
	ID            string
	OwnedBy       string
	Created       time.Time
	ContextWindow int64 // 0: not known
	MaxOutput     int64 // 0: not known
}
