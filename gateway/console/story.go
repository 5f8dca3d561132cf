package console

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/policy"
	"github.com/weirhq/weir/projections/insight"
)

// storyPage is what the page of one request shows.
type storyPage struct {
	ID      string
	Story   *insight.Story // nil: it cannot be told
	Missing string         // why
	Running bool
}

func (h *Handler) showRequest(w http.ResponseWriter, r *http.Request, who *me) error {
	p := storyPage{ID: r.PathValue("id")}
	var told struct {
		Story *insight.Story `json:"story"`
	}
	status := http.StatusOK
	err := h.get(r, "/api/explain?"+url.Values{"id": {p.ID}}.Encode(), &told)
	if no, ok := errors.AsType[*failure](err); ok && (no.Status == http.StatusNotFound || no.Status == http.StatusBadRequest) {
		p.Missing, status, err = sentence(no.Message), no.Status, nil
	}
	if err != nil {
		return err
	}
	if p.Story = told.Story; p.Story != nil {
		p.Running = p.Story.Outcome == "running"
	}
	return h.show(w, status, "request", &page{Title: "Request " + short(p.ID), Section: "activity", Me: who, Data: &p})
}

// meterWords says in words whose limit of what a meter is.
func meterWords(m string) string {
	words := policy.Which(events.Meter(m))
	name := strings.ToLower(kindName(words.Kind))
	if words.Gate == policy.GateUnknown {
		return m
	}
	if _, _, dimension := events.Meter(m).Split(); dimension == "balance" {
		name = "balance"
	}
	if words.LimitID == "" || words.Scope == "org" {
		return scopeName(words.Scope) + ": " + name
	}
	return scopeName(words.Scope) + " " + short(words.LimitID) + ": " + name
}

// meterAmount writes an amount of a meter: money, a time or a count.
func meterAmount(m string, v any) string {
	var n int64
	switch v := v.(type) {
	case int64:
		n = v
	case *int64:
		if v == nil {
			return "none"
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
