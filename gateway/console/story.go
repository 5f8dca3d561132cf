package console

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/gate"
	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/projections/insight"
)

// storyPage is what the page of one request shows.
type storyPage struct {
	ID      string
	Story   *insight.Story     // nil: it cannot be told
	Missing string             // why
	Running bool               // it will be told otherwise soon: the page asks again by itself
	Record  *generation.Record // what the audit kept, where the story cannot be told
}

// busy is the code of an answer that says that others are asking.
const busy = "busy"

func (h *Handler) showRequest(w http.ResponseWriter, r *http.Request, who *me) error {
	p := storyPage{ID: r.PathValue("id")}
	var told struct {
		Story *insight.Story `json:"story"`
	}
	status := http.StatusOK
	err := h.get(r, "/api/explain?"+url.Values{"id": {p.ID}}.Encode(), &told)
	if no, ok := errors.AsType[*failure](err); ok && no.Status != http.StatusUnauthorized {
		if p.Record = h.record(r, p.ID); p.Record == nil {
			status = no.Status
		}
		p.Missing, p.Running, err = sentence(no.Message), no.Code == busy, nil
	}
	if err != nil {
		return err
	}
	if p.Story = told.Story; p.Story != nil {
		p.Running = p.Story.Outcome == "running"
	}
	return h.show(w, status, "request", &page{Title: "Request " + short(p.ID), Section: "activity", Me: who, Data: &p})
}

// record reads what the audit kept of a request; nil if there is nothing.
func (h *Handler) record(r *http.Request, id string) *generation.Record {
	var kept struct {
		Data *generation.Record `json:"data"`
	}
	if err := h.get(r, "/api/generations/"+url.PathEscape(id), &kept); err != nil {
		return nil // the page says what the log said
	}
	return kept.Data
}

// meterWords says in words whose limit of what a meter is.
func meterWords(of any) string {
	m := fmt.Sprint(of)
	words := gate.Which(events.Meter(m))
	name := strings.ToLower(kindName(words.Kind))
	if words.Gate == gate.Unknown {
		return m
	}
	switch _, _, dimension := events.Meter(m).Split(); dimension {
	case "balance", "spend-day", "spend-month":
		name = map[string]string{"balance": "balance", "spend-day": "spend a day", "spend-month": "spend a month"}[dimension]
	}
	if words.LimitID == "" || words.Scope == "org" {
		return scopeName(words.Scope) + ": " + name
	}
	return scopeName(words.Scope) + " " + short(words.LimitID) + ": " + name
}

// meterAmount writes an amount of a meter: money, a time or a count.
func meterAmount(of, v any) string {
	m := fmt.Sprint(of)
	var n int64
	switch v := v.(type) {
	case int64:
		n = v
	case *int64:
		if v == nil {
			return "–"
		}
		n = *v
	}
	switch _, _, dimension := events.Meter(m).Split(); {
	case dimension == "balance", strings.HasPrefix(dimension, "spend"):
		return insight.Money(n)
	case dimension == "pause", dimension == "pace":
		return insight.Span(n)
	}
	return count(n)
}
