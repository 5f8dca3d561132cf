package audit

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/generation"
)

// table is one of the tables of a schema: its columns in the order of its rows' values.
type table struct {
	name    string
	key     string // the columns of its primary key
	columns []string
}

var (
	generations = table{"generations", "made, id", []string{"made", "id", "org", "workspace", "principal", "key", "model", "operation", "provider",
		"gateway", "created", "ended", "state", "outcome", "status", "error_code", "error_origin", "limit_scope", "limit_kind", "limit_id",
		"parked_ms", "latency_ms", "usage_quality", "input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens",
		"cost_nano", "price_version", "settled", "attempts", "log", "first_seq", "last_seq", "record"}}
	attempts = table{"attempts", "made, request, attempt", []string{"made", "request", "attempt", "org", "key", "model", "deployment", "gateway",
		"seq", "reserved", "verdict", "mode", "parked_ms", "wait_ms", "final", "usage_quality", "input_tokens", "cached_tokens",
		"cache_write_tokens", "output_tokens", "reasoning_tokens", "cost_nano", "price_version", "revision", "released", "outcome", "dispatched",
		"status", "latency_ms", "ttft_ms", "error_code", "error_origin"}}
	admissionEvents = table{"admission_events", "made, request, n", []string{"made", "request", "n", "org", "key", "model", "event", "at", "seq",
		"attempt", "gate", "origin", "scope", "kind", "limit_id", "meter", "reason", "limit_value", "used", "requested", "retry_after_ms",
		"retry_at", "parked_ms", "wait_ms", "status", "code", "message", "count"}}
	tables = []*table{&generations, &attempts, &admissionEvents}
)

// staging is the name of the temporary table through which rows come.
func (t *table) staging() string { return "staged_" + t.name }

// in names the table in a schema.
func (t *table) in(schema string) string { return pgx.Identifier{schema, t.name}.Sanitize() }

// part names the table's partition of a day, or the one of all other days.
func (t *table) part(schema string, day time.Time) string {
	return pgx.Identifier{schema, t.name + "_" + day.Format(dayName)}.Sanitize()
}

func (t *table) other(schema string) string {
	return pgx.Identifier{schema, t.name + "_other"}.Sanitize()
}

// merge is the statement that brings staged rows in: what is there is replaced.
func (t *table) merge(schema string) string {
	var sets []string
	for _, c := range t.columns {
		if !strings.Contains(", "+t.key+",", ", "+c+",") {
			sets = append(sets, c+" = excluded."+c)
		}
	}
	columns := strings.Join(t.columns, ", ")
	return fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM %s ON CONFLICT (%s) DO UPDATE SET %s",
		t.in(schema), columns, columns, t.staging(), t.key, strings.Join(sets, ", "))
}

// maxText bounds a column of text, in bytes, so that it can be indexed. The record has it whole.
const maxText = 256

// clean makes text that PostgreSQL takes.
func clean(s string) string {
	if len(s) > maxText {
		s = s[:maxText]
	}
	if !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	}
	return s
}

// some is text, or NULL for none.
func some[S ~string](s S) any {
	if s == "" {
		return nil
	}
	return clean(string(s))
}

// at is an instant, or NULL for none.
func at(i generation.Instant) any {
	if i == 0 {
		return nil
	}
	return instant(i)
}

func instant(i generation.Instant) time.Time { return time.Unix(0, int64(i)).UTC() }

// made is when a request came, by its id.
func made(id events.RequestID) time.Time { return instant(generation.Made(id)) }

func number(n *int64) any {
	if n == nil {
		return nil
	}
	return *n
}

// generationRow gives the values of a row of generations.
func generationRow(r *generation.Row, record []byte) []any {
	outcome := string(r.Outcome)
	if r.State == generation.InProgress {
		outcome = string(generation.Running)
	}
	t := &r.Tokens
	return []any{made(r.ID), generation.Key(r.ID), clean(string(r.Org)), some(r.Workspace), some(r.Principal), some(r.Key), some(r.Model), some(r.Operation),
		some(r.Provider), some(r.Gateway), instant(r.CreatedAt), at(r.EndedAt), r.State, clean(outcome), r.Status, some(r.ErrorCode), some(r.ErrorOrigin),
		some(r.LimitScope), some(r.LimitKind), some(r.LimitID), r.ParkedMS, r.Latency, some(r.UsageQuality), t.InputTokens, t.CachedTokens,
		t.CacheWriteTokens, t.OutputTokens, t.ReasoningTokens, r.CostNano, some(r.PriceVersion), r.Settled, r.Summary.Attempts, int64(r.AsOf.Log),
		int64(r.Began), int64(r.AsOf.Seq), record}
}

// attemptRow gives the values of a row of attempts.
func attemptRow(r *generation.Row, a *generation.Attempt) []any {
	u, cost, revision := a.Usage, number(a.CostNano), any(nil)
	if c := a.Correction; c != nil {
		u, cost, revision = &c.Usage, c.CostNano, c.Revision
	}
	if u == nil {
		u = &events.Usage{}
	}
	end := a.Released
	if end == nil {
		end = &generation.Released{}
	}
	failed := end.Error
	if failed == nil {
		failed = &generation.Error{}
	}
	return []any{made(r.ID), generation.Key(r.ID), a.Attempt, clean(string(r.Org)), some(r.Key), some(r.Model), some(a.Deployment), some(a.Gateway),
		int64(a.Seq), instant(a.ReservedAt), a.Verdict, some(a.Mode), a.ParkedMS, a.WaitMS, a.Final, some(a.UsageQuality), u.InputTokens, u.CachedTokens,
		u.CacheWriteTokens, u.OutputTokens, u.ReasoningTokens, cost, some(a.PriceVersion), revision, at(end.At), some(end.Outcome), some(end.Dispatched),
		end.Status, end.LatencyMS, end.TTFTMS, some(failed.Code), some(failed.Origin)}
}

// eventRow gives the values of a row of admission events.
func eventRow(r *generation.Row, n int) []any {
	e := &r.Events[n]
	return []any{made(r.ID), generation.Key(r.ID), int64(n), clean(string(r.Org)), some(r.Key), some(r.Model), e.Event, instant(e.Time), int64(e.Seq), e.Attempt,
		some(e.Gate), some(e.Origin), some(e.Scope), some(e.Kind), some(e.LimitID), some(e.Meter), some(e.Reason), number(e.Limit), number(e.Used),
		number(e.Requested), number(e.RetryAfterMS), at(e.RetryAt), e.ParkedMS, e.WaitMS, int64(e.Status), some(e.Code), some(e.Message), max(e.Count, 1)}
}
