package console

import (
	"net/http"
	"strings"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/insight"
)

// simulatePage is the form of a simulation, and what it came to.
type simulatePage struct {
	Form   *form
	Report *insight.Report
	Write  bool
	Org    string
}

// Same says that no request's fate differs.
func (p *simulatePage) Same() bool {
	return p.Report.Changed.NowRefused == 0 && p.Report.Changed.NowAdmitted == 0
}

func (h *Handler) simulation() {
	h.page("GET /simulate", func(w http.ResponseWriter, r *http.Request, who *me) error {
		p := simulatePage{Write: who.Writes(), Org: who.Org}
		if p.Write {
			var err error
			if p.Form, err = h.simulateForm(r, who); err != nil {
				return err
			}
		}
		return h.showSimulation(w, http.StatusOK, who, &p)
	})
	h.page("POST /simulate", h.simulate)
}

func (h *Handler) showSimulation(w http.ResponseWriter, status int, who *me, p *simulatePage) error {
	return h.show(w, status, "simulate", &page{Title: "Simulate", Section: "simulate", Me: who, Data: p})
}

// simulateForm asks for a scope with other limits, other load, or both.
func (h *Handler) simulateForm(r *http.Request, who *me) (*form, error) {
	var e effective
	if err := h.get(r, "/api/effective-limits?limit=1000", &e); err != nil {
		return nil, err
	}
	scopes := make([]option, 0, len(e.Scopes))
	for i := range e.Scopes {
		s := &e.Scopes[i]
		scopes = append(scopes, option{Value: s.Scope + "|" + s.Subject, Label: scopeName(s.Scope) + " " + s.Title()})
	}
	v := r.PostForm
	value := func(name, otherwise string) string {
		if v == nil {
			return otherwise
		}
		return v.Get(name)
	}
	return &form{Action: root + "/simulate", Submit: "Simulate", Fields: []field{
		{Name: "scope", Label: "Change the limits of", Options: choose(scopes, value("scope", ""))},
		{Name: "rpm", Label: "Requests a minute", Type: "number", Value: value("rpm", ""), Hint: "Empty: as it was."},
		{Name: "tpm", Label: "Tokens a minute", Type: "number", Value: value("tpm", "")},
		{Name: "concurrency", Label: "At once", Type: "number", Value: value("concurrency", "")},
		{Name: "scale", Label: "Load", Options: choose([]option{{Value: "1x", Label: "As it was"}, {Value: "1.5x", Label: "1.5 times"}, {Value: "2x", Label: "2 times"},
			{Value: "3x", Label: "3 times"}, {Value: "5x", Label: "5 times"}, {Value: "10x", Label: "10 times"}, {Value: "0.5x", Label: "Half"}}, value("scale", "1x"))},
		{Name: "since", Label: "Traffic of", Options: choose([]option{{Value: "1h", Label: "the last hour"}, {Value: "6h", Label: "the last 6 hours"},
			{Value: "24h", Label: "the last day"}, {Value: "168h", Label: "the last week"}}, value("since", "24h"))},
	}}, nil
}

// simulate shows what other limits would have done, as POST /api/simulate says.
func (h *Handler) simulate(w http.ResponseWriter, r *http.Request, who *me) error {
	if err := r.ParseForm(); err != nil {
		return err
	}
	v := r.PostForm
	scope, subject, _ := strings.Cut(v.Get("scope"), "|")
	limits := map[string]any{}
	for _, dimension := range []string{"rpm", "tpm", "concurrency"} {
		if n := number(v.Get(dimension)); n != nil {
			limits[string(meterOf(who.Org, scope, subject, dimension))] = n
		}
	}
	p := simulatePage{Write: who.Writes(), Org: who.Org}
	out, err := h.call(r, http.MethodPost, "/api/simulate", map[string]any{"limits": limits, "scale": v.Get("scale"), "since": v.Get("since")})
	status := http.StatusOK
	if err == nil {
		var answer struct {
			Report *insight.Report `json:"report"`
		}
		if err := read(out, &answer); err != nil {
			return err
		}
		p.Report = answer.Report
	}
	f, missing := h.simulateForm(r, who)
	if missing != nil {
		return missing
	}
	if err != nil {
		if err := f.refuse(err); err != nil {
			return err
		}
		status = http.StatusBadRequest
		if f.Problem == marked {
			f.Problem = sentence(err.Error())
		}
	}
	p.Form = f
	return h.showSimulation(w, status, who, &p)
}

// meterOf names a meter of a scope as the API names scopes.
func meterOf(org, scope, subject, dimension string) events.Meter {
	switch scope {
	case "org":
		return events.NewMeter(events.ScopeOrg, dimension, org)
	case "model":
		return events.NewMeter(events.ScopeModel, dimension, org, subject)
	}
	return events.NewMeter(events.Scope(scope), dimension, subject)
}
