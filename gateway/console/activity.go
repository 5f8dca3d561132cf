package console

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// request is one line of activity, as /api/generations has it.
type request struct {
	ID         string `json:"id"`
	CreatedAt  string `json:"created_at"`
	Workspace  string `json:"workspace_id"`
	Key        string `json:"key_id"`
	Model      string `json:"model"`
	State      string `json:"state"`
	Outcome    string `json:"outcome"`
	Status     int64  `json:"status"`
	ErrorCode  string `json:"error_code"`
	LimitScope string `json:"limit_scope"`
	LimitKind  string `json:"limit_kind"`
	ParkedMS   int64  `json:"parked_ms"`
	Latency    int64  `json:"latency"`
	Tokens     struct {
		Input  int64 `json:"input_tokens"`
		Output int64 `json:"output_tokens"`
	} `json:"tokens"`
	CostNano int64 `json:"cost_nano"`
	Settled  bool  `json:"settled"`
}

// Ended is the outcome, or that there is none yet.
func (r *request) Ended() string {
	if r.Outcome == "" {
		return inProgress
	}
	return r.Outcome
}

// Why is what refused or failed it.
func (r *request) Why() string {
	if r.LimitKind != "" && r.Outcome == "refused" {
		return strings.ToLower(kindName(r.LimitKind)) + " of the " + r.LimitScope
	}
	return r.ErrorCode
}

const inProgress = "in_progress"

// outcomes are how requests end.
var outcomes = []option{{Value: "", Label: "Any"}, {Value: "refused", Label: "Refused"}, {Value: "completed", Label: "Completed"}, {Value: "failed", Label: "Failed"},
	{Value: "cancelled", Label: "Cancelled"}, {Value: "timeout", Label: "Timed out"}, {Value: "not_dispatched", Label: "Not dispatched"}, {Value: "abandoned", Label: "Abandoned"},
	{Value: inProgress, Label: "In progress"}}

// activity registers the pages of requests.
func (h *Handler) activity() {
	h.page("GET /activity", h.showActivity)
	h.page("GET /activity/{id}", h.showRequest)
}

// activityPage is what the list of requests shows.
type activityPage struct {
	named
	Filter   form
	Requests []request
	Among    int64  // of how many newest writes these are; 0: of all that are kept
	Older    string // where the list goes on; empty: it ends here
	Newest   string // where it begins, if this is not there
	CSV      string
	Problem  string
	Away     string // why there is no list
	Filtered bool
}

// named gives names by key, as a filter's choices have them.
type named []option

// Named is a key's name; its id if it has none any more.
func (n named) Named(key string) string {
	for _, o := range n {
		if o.Value == key && key != "" {
			return o.Label
		}
	}
	return short(key)
}

// perPage is how many requests a page lists.
const perPage = 50

// utcField reads a time as a browser's field has it, without a zone: UTC. What is none is passed on, for the API to say so.
func utcField(text string) string {
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05", "2006-01-02"} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UTC().Format(time.RFC3339)
		}
	}
	return text
}

func (h *Handler) showActivity(w http.ResponseWriter, r *http.Request, who *me) error {
	q := r.URL.Query()
	if id := strings.TrimSpace(q.Get("id")); id != "" {
		return h.to(w, r, root+"/activity/"+url.PathEscape(id))
	}
	models, keys := h.names(r)
	p := activityPage{named: keys, Filter: form{Fields: []field{
		{Name: "key", Label: "Key", Options: choose(slices.Clone(keys), q.Get("key"))}, {Name: "model", Label: "Model", Options: choose(models, q.Get("model"))},
		{Name: "outcome", Label: "Outcome", Options: choose(append([]option(nil), outcomes...), q.Get("outcome"))},
		{Name: "from", Label: "From (UTC)", Type: "datetime-local", Value: q.Get("from")}, {Name: "to", Label: "To (UTC)", Type: "datetime-local", Value: q.Get("to")}}}}
	ask, same := url.Values{}, url.Values{}
	for _, name := range []string{"key", "model", "outcome", "from", "to"} {
		if v := q.Get(name); v != "" {
			same.Set(name, v)
			if name == "from" || name == "to" {
				v = utcField(v)
			}
			ask.Set(name, v)
		}
	}
	p.Filtered = len(same) > 0
	p.CSV = "/api/generations?" + with(ask, "format", "csv")
	ask.Set("limit", strconv.Itoa(perPage))
	if cursor := q.Get("cursor"); cursor != "" {
		ask.Set("cursor", cursor)
		p.Newest = root + "/activity?" + same.Encode()
	}
	var list struct {
		Generations []request `json:"generations"`
		Next        string    `json:"next_cursor"`
		Newest      int64     `json:"newest"`
	}
	err := h.get(r, "/api/generations?"+ask.Encode(), &list)
	if no, ok := errors.AsType[*failure](err); ok {
		switch no.Status {
		case http.StatusBadRequest:
			p.Problem, err = sentence(no.Message), nil
		case http.StatusNotFound, http.StatusNotImplemented:
			p.Away, err = "This process keeps no list of requests.", nil
		}
	}
	if err != nil {
		return err
	}
	p.Requests, p.Among = list.Generations, list.Newest
	if list.Next != "" {
		p.Older = root + "/activity?" + with(same, "cursor", list.Next)
	}
	return h.show(w, http.StatusOK, "activity", &page{Title: "Activity", Section: "activity", Me: who, Data: &p})
}

// with is a query with one more value.
func with(q url.Values, name, value string) string {
	more := url.Values{name: {value}}
	for k, v := range q {
		more[k] = v
	}
	return more.Encode()
}

// names gives the org's models and keys to choose from; those that cannot be read are none.
func (h *Handler) names(r *http.Request) (models, keys []option) {
	models, keys = []option{{Label: "Any"}}, []option{{Label: "Any"}}
	var e effective
	if err := h.get(r, "/api/effective-limits?limit=1000", &e); err != nil {
		h.config.Logger.Warn("the names to choose from cannot be read", "error", err)
	}
	for _, s := range e.Scopes {
		switch s.Scope {
		case "model":
			models = append(models, option{Value: s.Subject, Label: s.Subject})
		case "key":
			keys = append(keys, option{Value: s.Subject, Label: s.Title()})
		}
	}
	return models, keys
}
