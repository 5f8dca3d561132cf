package inquiry

import (
	"encoding/csv"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/manage"
	"github.com/weirhq/weir/projections/postgres/sums"
	"github.com/weirhq/weir/projections/usage"
)

// What is given where a question says no more, and at most.
const (
	hoursBack = 24 * time.Hour
	daysBack  = 30 * 24 * time.Hour
	mostBack  = 400 * 24 * time.Hour
)

// used is the answer to GET /api/usage.
type used struct {
	By   sums.Period `json:"by"`
	From time.Time   `json:"from"`
	To   time.Time   `json:"to"`
	AsOf time.Time   `json:"as_of,omitzero"` // the newest line that is counted; absent: none is
	Rows []sums.Row  `json:"rows"`
}

// usage answers GET /api/usage?from=&to=&by=hour|day&key=&model=: what the caller's org used, by hour or day (UTC), workspace, key, model and
// price version. from and to are instants of RFC 3339; rows are those whose period begins in [from, to). to is now where it is absent, and
// from a day (by=hour, the default) or 30 days (by=day) before it. Operators get all orgs, or org=. With Accept: text/csv or format=csv the
// answer is CSV with the rows' fields as columns. Without a database the answer is 501 and names the field database.
func (h *Handler) usage(w http.ResponseWriter, r *http.Request, who manage.Caller) error {
	if h.config.Usage == nil {
		return manage.NotConfigured("database", "usage by hour and day is kept in PostgreSQL, whose URL is the field database of weir.yaml (WEIR_DATABASE)")
	}
	q, err := h.query(r, who)
	if err != nil {
		return err
	}
	at, err := h.config.Usage.Position(r.Context())
	var rows []sums.Row
	if err == nil {
		rows, err = h.config.Usage.Rows(r.Context(), q)
	}
	if errors.Is(err, sums.ErrTooMany) {
		return manage.Invalid("from", q.From.Format(time.RFC3339), "must be nearer to to: there are "+err.Error()+"; or ask by day, or for one key or model")
	}
	if err != nil {
		return manage.Refused(http.StatusServiceUnavailable, "gateway_infrastructure", "usage cannot be read now: the database does not answer", time.Second)
	}
	if r.URL.Query().Get("format") == "csv" || strings.HasPrefix(r.Header.Get("Accept"), "text/csv") {
		return writeCSV(w, rows)
	}
	out := used{By: q.By, From: q.From, To: q.To, Rows: rows}
	if at.AsOf != 0 {
		out.AsOf = time.Unix(0, at.AsOf).UTC()
	}
	if rows == nil {
		out.Rows = []sums.Row{}
	}
	manage.Answer(w, http.StatusOK, out)
	return nil
}

// query reads what is asked for.
func (h *Handler) query(r *http.Request, who manage.Caller) (q sums.Query, err error) {
	in := r.URL.Query()
	q = sums.Query{By: sums.Hour, Org: who.Org, Key: in.Get("key"), Model: in.Get("model"), To: h.config.Now().UTC()}
	if who.Operator {
		q.Org = events.Org(in.Get("org"))
	}
	for field, value := range map[string]string{"org": string(q.Org), "key": q.Key, "model": q.Model} {
		if err := term(field, value); err != nil {
			return q, err
		}
	}
	back := hoursBack
	switch by := sums.Period(in.Get("by")); by {
	case "", sums.Hour:
	case sums.Day:
		q.By, back = by, daysBack
	default:
		return q, manage.Invalid("by", string(by), "must be hour or day")
	}
	if text := in.Get("format"); text != "" && text != "csv" && text != "json" {
		return q, manage.Invalid("format", text, "must be json or csv")
	}
	if text := in.Get("to"); text != "" {
		if q.To, err = instant("to", text); err != nil {
			return q, err
		}
	}
	q.From = q.To.Add(-back)
	if text := in.Get("from"); text != "" {
		if q.From, err = instant("from", text); err != nil {
			return q, err
		}
	}
	if !q.From.Before(q.To) || q.To.Sub(q.From) > mostBack {
		return q, manage.Invalid("from", q.From.Format(time.RFC3339), "must be before to, and at most 400 days")
	}
	return q, nil
}

func instant(field, text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.Year() < 1970 || at.Year() > 2261 {
		return at, manage.Invalid(field, text, "must be an instant of RFC 3339 such as 2026-03-02T10:00:00Z")
	}
	return at.UTC(), nil
}

var columns = []string{"start", "org", "workspace", "key", "model", "price_version", "requests", "unsettled", "corrections",
	"input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens", "cost_nano"}

func writeCSV(w http.ResponseWriter, rows []sums.Row) error {
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	w.Header().Set("Content-Disposition", `attachment; filename="usage.csv"`)
	out := csv.NewWriter(w)
	_ = out.Write(columns) // the error is Flush's: a client that is gone needs no answer
	for i := range rows {
		r := &rows[i]
		n := func(n int64) string { return strconv.FormatInt(n, 10) }
		_ = out.Write([]string{r.Start.Format(time.RFC3339), string(r.Org), usage.Plain(r.Workspace), usage.Plain(r.Key), usage.Plain(r.Model), usage.Plain(r.PriceVersion),
			n(r.Requests), n(r.Unsettled), n(r.Corrections), r.InputTokens.String(), r.CachedTokens.String(), r.CacheWriteTokens.String(),
			r.OutputTokens.String(), r.ReasoningTokens.String(), r.CostNano.String()})
	}
	out.Flush()
	return nil
}
