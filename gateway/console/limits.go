package console

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
)

// limitSet is a scope's limits as the API has them. nil is none.
type limitSet struct {
	RPM         *int64  `json:"rpm"`
	RPS         *int64  `json:"rps"`
	TPM         *int64  `json:"tpm"`
	Concurrency *int64  `json:"concurrency"`
	SpendDay    *string `json:"spend_day"`
	SpendMonth  *string `json:"spend_month"`
	OutageMode  string  `json:"outage_mode"`
}

// scopeLimits is one scope with what its org set and what holds.
type scopeLimits struct {
	Scope     string   `json:"scope"`
	Subject   string   `json:"subject"`
	Name      string   `json:"name"`
	Disabled  bool     `json:"disabled"`
	Set       limitSet `json:"set"`
	Effective limitSet `json:"effective"`
	Daily     *int64   `json:"tokens_per_day"`
}

// Title names the scope for reading.
func (s *scopeLimits) Title() string {
	if s.Name != "" {
		return s.Name
	}
	return s.Subject
}

// Cells are the limits that can be set.
func (s *scopeLimits) Cells() []cell {
	return []cell{newCell("rpm", s.Set.RPM, s.Effective.RPM), newCell("tpm", s.Set.TPM, s.Effective.TPM), newCell("concurrency", s.Set.Concurrency, s.Effective.Concurrency)}
}

// Extra are the limits that only the operator sets.
func (s *scopeLimits) Extra() (all []string) {
	if s.Effective.RPS != nil {
		all = append(all, count(*s.Effective.RPS)+" requests a second")
	}
	if s.Effective.SpendDay != nil {
		all = append(all, "$"+*s.Effective.SpendDay+" a day")
	}
	if s.Effective.SpendMonth != nil {
		all = append(all, "$"+*s.Effective.SpendMonth+" a month")
	}
	if s.Daily != nil {
		all = append(all, count(*s.Daily)+" tokens a day")
	}
	return all
}

// Bare says that a scope has no limit of its own.
func (s *scopeLimits) Bare() bool {
	e := &s.Effective
	return e.RPM == nil && e.TPM == nil && e.Concurrency == nil && e.RPS == nil && e.OutageMode != closed && s.Set.OutageMode != closed
}

const closed = "closed"

// cell is one limit: what holds, and where it comes from.
type cell struct {
	Kind   string
	Holds  *int64
	Origin string // set, inherited, lowered; empty: there is none
	Set    *int64
}

func newCell(kind string, set, holds *int64) cell {
	c := cell{Kind: kind, Holds: holds, Set: set}
	switch {
	case set != nil && holds != nil && *holds < *set:
		c.Origin = "lowered"
	case set != nil:
		c.Origin = "set"
	case holds != nil:
		c.Origin = "inherited"
	}
	return c
}

// effective is the answer of /api/effective-limits.
type effective struct {
	Org struct {
		ID      string `json:"id"`
		Name    string `json:"name"`
		Billing string `json:"billing"`
		HeldRPM *int64 `json:"held_rpm"`
	} `json:"org"`
	Scopes  []scopeLimits `json:"scopes"`
	LeftOff int           `json:"left_off"`
}

// maxScopes is how many scopes a page of limits lists; more are found by searching.
const maxScopes = 200

// limits registers the pages of limits.
func (h *Handler) limits() {
	h.page("GET /limits", h.showLimits)
	h.page("GET /limits/edit", h.editLimit)
	h.page("POST /limits/edit", h.saveLimit)
}

// limitsPage is what the page of limits shows.
type limitsPage struct {
	*effective
	Scope, Q    string
	Options     []option
	Models      []string // without a limit
	Pools       []pool
	Connections []connection
}

func (h *Handler) showLimits(w http.ResponseWriter, r *http.Request, who *me) error {
	q := r.URL.Query()
	p := limitsPage{effective: &effective{}, Scope: q.Get("scope"), Q: q.Get("q")}
	ask := url.Values{"scope": {p.Scope}, "q": {p.Q}, "limit": {strconv.Itoa(maxScopes)}}
	if err := h.get(r, "/api/effective-limits?"+ask.Encode(), p.effective); err != nil {
		return err
	}
	p.Options = choose([]option{{Value: "", Label: "All"}, {Value: "org", Label: "Org"}, {Value: "workspace", Label: "Workspaces"},
		{Value: "principal", Label: "Principals"}, {Value: "key", Label: "Keys"}, {Value: "model", Label: "Models"}}, p.Scope)
	listed := p.Scopes[:0]
	for _, s := range p.Scopes {
		if s.Scope == "model" && s.Bare() {
			p.Models = append(p.Models, s.Subject)
			continue
		}
		listed = append(listed, s)
	}
	p.Scopes = listed
	var err error
	if p.Pools, p.Connections, err = h.capacity(r); err != nil {
		return err
	}
	return h.show(w, http.StatusOK, "limits", &page{Title: "Rate limits", Section: "limits", Me: who, Notice: done(q.Get("done")), Data: &p})
}

// notices say what has just been done, by the word in the address.
var notices = map[string]string{"limit": "The limits are saved. They hold from the next request on.", "pool": "The pool is saved.", "made": "The pool is made. Assign connections to it below.",
	"bound": "The connection is assigned."}

func done(word string) string { return notices[word] }

// limitPage is the form of one scope's limits.
type limitPage struct {
	Of    *scopeLimits
	Form  *form
	Write bool
}

// oneScope finds a scope by what an address says of it.
func (h *Handler) oneScope(r *http.Request, scope, subject string) (*scopeLimits, error) {
	text := subject
	if scope == "org" {
		text = ""
	}
	var e effective
	if err := h.get(r, "/api/effective-limits?"+url.Values{"scope": {scope}, "q": {text}, "limit": {"1000"}}.Encode(), &e); err != nil {
		return nil, err
	}
	for i := range e.Scopes {
		if e.Scopes[i].Scope == scope && e.Scopes[i].Subject == subject {
			return &e.Scopes[i], nil
		}
	}
	return nil, &failure{Status: http.StatusNotFound, Message: fmt.Sprintf("There is no such %s of this org.", scope)}
}

// Ranges of limits, for hints; the API judges.
var ranges = map[string]int64{"rpm": 1_000_000, "tpm": 1_000_000_000, "concurrency": 10_000}

func limitForm(s *scopeLimits) *form {
	f := &form{Action: root + "/limits/edit", Submit: "Save", Back: root + "/limits", Hidden: map[string]string{"scope": s.Scope, "subject": s.Subject}}
	for _, c := range s.Cells() {
		each := field{Name: c.Kind, Label: kindName(c.Kind), Type: "number", Hint: "1 to " + count(ranges[c.Kind]) + ". Empty inherits."}
		switch c.Origin {
		case "inherited":
			each.Hint = "1 to " + count(ranges[c.Kind]) + ". Empty inherits: " + count(c.Holds) + " now."
		case "lowered":
			each.Hint += " Your operator's limit of " + count(c.Holds) + " is lower and holds."
		}
		if c.Set != nil {
			each.Value = strconv.FormatInt(*c.Set, 10)
			f.Clear = "Inherit everything"
		}
		f.Fields = append(f.Fields, each)
	}
	if s.Set.OutageMode == closed {
		f.Clear = "Inherit everything"
	}
	f.Fields = append(f.Fields, field{Name: "outage_mode", Label: "When the log is out of reach", Options: choose([]option{
		{Value: "bounded_open", Label: "Serve a small allowance (bounded_open)"}, {Value: closed, Label: "Refuse new work (closed)"}}, s.Set.OutageMode),
		Hint: "Closed at any scope that applies wins."})
	return f
}

func (h *Handler) editLimit(w http.ResponseWriter, r *http.Request, who *me) error {
	q := r.URL.Query()
	s, err := h.oneScope(r, q.Get("scope"), q.Get("subject"))
	if err != nil {
		return err
	}
	return h.showLimitForm(w, http.StatusOK, who, &limitPage{Of: s, Form: limitForm(s), Write: who.Writes()})
}

func (h *Handler) showLimitForm(w http.ResponseWriter, status int, who *me, p *limitPage) error {
	return h.show(w, status, "limit", &page{Title: "Limits of " + p.Of.Title(), Section: "limits", Me: who, Data: p})
}

// saveLimit replaces one scope's limits, as POST /api/admission-limits does.
func (h *Handler) saveLimit(w http.ResponseWriter, r *http.Request, who *me) error {
	if err := r.ParseForm(); err != nil {
		return err
	}
	v := r.PostForm
	scope, subject := v.Get("scope"), v.Get("subject")
	body := map[string]any{"scope": scope, "subject": subject}
	if v.Get("clear") == "" {
		for _, kind := range []string{"rpm", "tpm", "concurrency"} {
			body[kind] = number(v.Get(kind))
		}
		body["outage_mode"] = optional(v.Get("outage_mode"))
	}
	_, err := h.call(r, http.MethodPost, "/api/admission-limits", body)
	if err == nil {
		return h.to(w, r, root+"/limits?done=limit#"+anchor(scope, subject))
	}
	s, missing := h.oneScope(r, scope, subject)
	if missing != nil {
		return err
	}
	f := limitForm(s)
	for i := range f.Fields {
		f.Fields[i].Value = v.Get(f.Fields[i].Name)
		choose(f.Fields[i].Options, f.Fields[i].Value)
	}
	if err := f.refuse(err); err != nil {
		return err
	}
	return h.showLimitForm(w, http.StatusBadRequest, who, &limitPage{Of: s, Form: f, Write: who.Writes()})
}

// anchor names a scope's row on the page.
func anchor(scope, subject string) string { return scope + "-" + url.PathEscape(subject) }

// Anchor names the scope's row on the page.
func (s *scopeLimits) Anchor() string { return s.Scope + "-" + s.Subject }

// Edit is where the scope's limits are changed.
func (s *scopeLimits) Edit() string {
	return root + "/limits/edit?" + url.Values{"scope": {s.Scope}, "subject": {s.Subject}}.Encode()
}
