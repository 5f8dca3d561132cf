package inquiry

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/manage"
	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/projections/usage"
)

// Bounds of lists of requests.
const (
	// MaxListed is how many requests a list has at most, and usualListed how many where nothing else is asked for.
	MaxListed   = 1_000
	usualListed = 100

	// MaxRows is how many rows a CSV has at most, and where nothing else is asked for.
	MaxRows = 100_000

	maxTerm = 256 // bytes of a filter's value
)

// cursorTrailer says, after a CSV that ended at its limit, where the next begins.
const cursorTrailer = "Weir-Next-Cursor"

// Generations are the audit records of requests.
type Generations interface {
	// Generation gives a request's record as JSON; found is false if there is none, or it is another org's.
	Generation(ctx context.Context, org events.Org, id events.RequestID) (record json.RawMessage, found bool, err error)

	// List gives the requests that a filter lets through, newest first. An error with a method TooMuch() that says true means that they
	// cannot be found in time.
	List(ctx context.Context, f *generation.Filter) ([]generation.Summary, error)
}

// requests is the answer to GET /api/generations.
type requests struct {
	Generations []generation.Summary `json:"generations"`
	NextCursor  *string              `json:"next_cursor"`      // null: there are no more
	Newest      int                  `json:"newest,omitempty"` // the list has only what is among so many of the newest writes of all orgs
}

// outcomes are what a list can be filtered by.
var outcomes = []events.Outcome{generation.Running, generation.Refused, events.Completed, events.Failed, events.Cancelled, events.TimedOut,
	events.NotDispatched, events.Abandoned}

// list answers GET /api/generations?key=&model=&outcome=&from=&to=&cursor=&limit=: the requests of the caller's org, newest first, refused
// ones included. from and to are instants of RFC 3339; requests are those that came in [from, to). outcome is in_progress, refused or a
// release's. limit is from 1 to 1,000, 100 by default; next_cursor of an answer is the cursor of the next. An operator names the org. With
// Accept: text/csv or format=csv the answer is CSV of at most 100,000 rows; where there may be more the trailer Weir-Next-Cursor says where
// they begin.
func (h *Handler) list(w http.ResponseWriter, r *http.Request, who manage.Caller) error {
	q := r.URL.Query()
	if format := q.Get("format"); format != "" && format != "csv" && format != "json" {
		return manage.Invalid("format", format, "must be json or csv")
	}
	asCSV := q.Get("format") == "csv" || q.Get("format") == "" && strings.HasPrefix(r.Header.Get("Accept"), "text/csv")
	most, usual := MaxListed, usualListed
	if asCSV {
		most, usual = MaxRows, MaxRows
	}
	f, err := filter(r, who, most, usual)
	if err != nil {
		return err
	}
	if asCSV {
		return h.listCSV(w, r, f)
	}
	limit := f.Limit
	f.Limit++ // to see whether there are more
	found, err := h.config.Generations.List(r.Context(), f)
	if err != nil {
		return unlisted(err)
	}
	out := requests{Generations: found[:min(limit, len(found))], Newest: h.config.Newest}
	if len(found) > limit {
		cursor := string(found[limit-1].ID)
		out.NextCursor = &cursor
	}
	if out.Generations == nil {
		out.Generations = []generation.Summary{}
	}
	manage.Answer(w, http.StatusOK, out)
	return nil
}

// unlisted says why there is no list.
func unlisted(err error) error {
	if much, ok := errors.AsType[interface {
		error
		TooMuch() bool
	}](err); ok && much.TooMuch() {
		return manage.Refused(http.StatusServiceUnavailable, "too_long", much.Error(), 0)
	}
	return manage.Refused(http.StatusServiceUnavailable, "gateway_infrastructure", "the audit records cannot be read now", time.Second)
}

// filter reads what is asked for.
func filter(r *http.Request, who manage.Caller, most, usual int) (*generation.Filter, error) {
	q := r.URL.Query()
	f := &generation.Filter{Org: who.Org, Limit: usual}
	var err error
	if f.Org, err = orgOf(r, who); err != nil {
		return nil, err
	}
	for field, into := range map[string]*string{"key": &f.Key, "model": &f.Model, "outcome": (*string)(&f.Outcome), "cursor": (*string)(&f.After)} {
		*into = q.Get(field)
		if err := term(field, *into); err != nil {
			return nil, err
		}
	}
	if f.Outcome != "" && !slices.Contains(outcomes, f.Outcome) {
		return nil, manage.Invalid("outcome", string(f.Outcome), "must be one of "+join(outcomes))
	}
	if _, ok := f.After.MadeAt(); f.After != "" && !ok {
		return nil, manage.Invalid("cursor", string(f.After), "must be the next_cursor of another answer")
	}
	for field, into := range map[string]*generation.Instant{"from": &f.From, "to": &f.To} {
		if text := q.Get(field); text != "" {
			at, err := instant(field, text)
			if err != nil {
				return nil, err
			}
			*into = generation.Instant(events.Nanos(at))
		}
	}
	if f.From != 0 && f.To != 0 && f.From >= f.To {
		return nil, manage.Invalid("from", q.Get("from"), "must be before to")
	}
	if text := q.Get("limit"); text != "" {
		if f.Limit, err = strconv.Atoi(text); err != nil || f.Limit < 1 || f.Limit > most {
			return nil, manage.Invalid("limit", text, "must be a whole number from 1 to "+strconv.Itoa(most))
		}
	}
	return f, nil
}

// orgOf gives the caller's org, or the one that an operator names.
func orgOf(r *http.Request, who manage.Caller) (events.Org, error) {
	if !who.Operator {
		return who.Org, nil
	}
	org := r.URL.Query().Get("org")
	if org == "" {
		return "", manage.Invalid("org", org, "must be given by an operator: whose requests")
	}
	return events.Org(org), term("org", org)
}

// term refuses what cannot be the value of a filter: no database takes it.
func term(field, value string) error {
	if len(value) > maxTerm || !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
		return manage.Invalid(field, strings.ToValidUTF8(value, "\uFFFD"), "must be text of at most "+strconv.Itoa(maxTerm)+" bytes")
	}
	return nil
}

func join(all []events.Outcome) string {
	words := make([]string, len(all))
	for i, o := range all {
		words[i] = string(o)
	}
	return strings.Join(words, ", ")
}

var generationColumns = []string{"id", "created_at", "ended_at", "workspace", "principal", "key", "model", "operation", "provider", "state", "outcome", "status",
	"error_code", "limit_scope", "limit_kind", "limit_id", "parked_ms", "latency_ms", "usage_quality", "input_tokens", "cached_tokens",
	"cache_write_tokens", "output_tokens", "reasoning_tokens", "cost_nano", "price_version", "settled", "attempts"}

// listCSV writes requests page by page, as they are found. An error after the first page breaks the answer off, so that nobody takes it for
// the whole.
func (h *Handler) listCSV(w http.ResponseWriter, r *http.Request, f *generation.Filter) error {
	out := csv.NewWriter(w)
	begun := false
	for left := f.Limit; ; {
		f.Limit = min(left, MaxListed)
		found, err := h.config.Generations.List(r.Context(), f)
		if err != nil && begun {
			panic(http.ErrAbortHandler)
		}
		if err != nil {
			return unlisted(err)
		}
		if !begun {
			begun = true
			w.Header().Set("Content-Type", "text/csv; charset=utf-8")
			w.Header().Set("Content-Disposition", `attachment; filename="requests.csv"`)
			w.Header().Set("Trailer", cursorTrailer)
			_ = out.Write(generationColumns) // the error is Flush's: a client that is gone needs no answer
		}
		for i := range found {
			_ = out.Write(generationRow(&found[i]))
		}
		out.Flush()
		left -= len(found)
		if len(found) < f.Limit || out.Error() != nil {
			return nil
		}
		f.After = found[len(found)-1].ID
		if left == 0 {
			w.Header().Set(cursorTrailer, string(f.After))
			return nil
		}
	}
}

func generationRow(s *generation.Summary) []string {
	n := func(n int64) string { return strconv.FormatInt(n, 10) }
	at := func(i generation.Instant) string {
		if i == 0 {
			return ""
		}
		return string(events.AppendTime(nil, int64(i)))
	}
	return []string{usage.Plain(string(s.ID)), at(s.CreatedAt), at(s.EndedAt), usage.Plain(s.Workspace), usage.Plain(s.Principal), usage.Plain(s.Key), usage.Plain(s.Model), usage.Plain(s.Operation),
		usage.Plain(s.Provider), s.State, usage.Plain(string(s.Outcome)), n(s.Status), usage.Plain(s.ErrorCode), usage.Plain(s.LimitScope), usage.Plain(s.LimitKind), usage.Plain(s.LimitID),
		n(s.ParkedMS), n(s.Latency), usage.Plain(s.UsageQuality), n(s.Tokens.InputTokens), n(s.Tokens.CachedTokens), n(s.Tokens.CacheWriteTokens),
		n(s.Tokens.OutputTokens), n(s.Tokens.ReasoningTokens), n(s.CostNano), usage.Plain(s.PriceVersion), strconv.FormatBool(s.Settled), n(s.Attempts)}
}

// generation answers GET /api/generations/{id}: a request's record, as GET /v1/generation does, to the people of its org. An operator names
// the org.
func (h *Handler) generation(w http.ResponseWriter, r *http.Request, who manage.Caller) error {
	org, err := orgOf(r, who)
	if err != nil {
		return err
	}
	id := events.RequestID(r.PathValue("id"))
	if err := term("id", string(id)); err != nil {
		return err
	}
	record, found, err := h.config.Generations.Generation(r.Context(), org, id)
	switch {
	case err != nil:
		return unlisted(err)
	case !found:
		return manage.Refused(http.StatusNotFound, "not_found", "there is no such request of this org", 0)
	}
	manage.Answer(w, http.StatusOK, map[string]any{"data": record})
	return nil
}
