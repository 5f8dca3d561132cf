package manage

import (
	"net/http"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
)

// Caller is who calls an endpoint under /api: a person of an org, or an operator with an admin key, who is of none.
type Caller struct {
	Org      events.Org     // empty: an operator
	User     string         // the person's id
	Role     authority.Role // as it is now
	Operator bool
}

// Serve adds an endpoint under /api that another package answers, with the rules of this one: who calls is signed in or an operator,
// requests from other origins are refused, and what f returns is answered as every failure here is (Invalid, Refused; anything else is an
// internal error). It must be called before the first request.
func (h *Handler) Serve(pattern string, f func(http.ResponseWriter, *http.Request, Caller) error) {
	h.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Cookie, Authorization")
		if err := h.cross.Check(r); err != nil {
			h.fail(w, r, problemf(http.StatusForbidden, "cross_origin", "requests from other origins are refused"))
			return
		}
		who := Caller{Operator: h.isOperator(r)}
		if !who.Operator {
			u, err := h.user(r)
			if err != nil {
				h.fail(w, r, err)
				return
			}
			who = Caller{Org: u.Org, User: u.ID, Role: u.Role}
		}
		if err := f(w, r, who); err != nil {
			h.fail(w, r, err)
		}
	})
}

// Invalid is a 400 that names a field, its value and the rule that it breaks.
func Invalid(field, value, rule string) error { return invalid(field, shorten(value), "%s", rule) }

// Refused is an answer that is no success; with retry above 0 it says after which time to come again.
func Refused(status int, code, message string, retry time.Duration) error {
	return &problem{status: status, code: code, message: message, retry: retry}
}

// NotConfigured is a 501 for what needs a field of the configuration that is not set.
func NotConfigured(field, message string) error {
	return &problem{status: http.StatusNotImplemented, code: "not_configured", message: message,
		faults: authority.Faults{{Field: field, Rule: "must be set: " + message}}}
}

// Body reads a JSON body of bounded size, as text.
func Body(w http.ResponseWriter, r *http.Request) (string, error) { return body(w, r, MaxBody) }

// Answer writes JSON.
func Answer(w http.ResponseWriter, status int, body any) { answer(w, status, body) }
