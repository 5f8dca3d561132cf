package manage

import (
	"net/http"
	"sort"
	"strings"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
)

// subject is one scope of an org, with what holds for it.
type subject struct {
	scope  events.Scope
	id     string // empty for the org
	name   string
	off    bool // a key that is not enabled
	limits authority.Limits
	daily  int64 // tokens a UTC day; 0: no limit
}

// meter names a meter of the scope.
func (s *subject) meter(org events.Org, dimension string) events.Meter {
	switch s.scope {
	case events.ScopeOrg:
		return events.NewMeter(s.scope, dimension, string(org))
	case events.ScopeModel:
		return events.NewMeter(s.scope, dimension, string(org), s.id)
	}
	return events.NewMeter(s.scope, dimension, s.id)
}

// subjects lists an org's scopes, outermost first, each with the limits that hold now.
func subjects(org events.Org, st *authority.OrgState, static, now *authority.Snapshot) []subject {
	var all []subject
	whole := subject{scope: events.ScopeOrg, name: string(org)}
	models := map[string]authority.Limits{}
	if o := now.Orgs[org]; o != nil {
		whole.limits, whole.daily, models = o.Limits, o.Daily, o.Models
		if o.Name != "" {
			whole.name = o.Name
		}
	}
	all = append(all, whole)
	workspaces, principals := map[string]string{}, map[string]string{}
	for id, w := range st.Workspaces {
		workspaces[id] = w.Name
	}
	for id, p := range st.Principals {
		principals[id] = p.Name
	}
	for hash, k := range static.Keys {
		if k.Org != org {
			continue
		}
		if k.Workspace != "" && workspaces[k.Workspace] == "" {
			workspaces[k.Workspace] = ""
		}
		if k.Principal != "" && principals[k.Principal] == "" {
			principals[k.Principal] = ""
		}
		all = append(all, keySubject(k.ID, k.Name, now.Keys[hash]))
	}
	for _, k := range st.Keys {
		all = append(all, keySubject(k.ID, k.Name, now.Keys[k.Hash]))
	}
	within := func(scope events.Scope, names map[string]string, limits map[string]*authority.Limits) {
		for id, name := range names {
			s := subject{scope: scope, id: id, name: name}
			if l := limits[id]; l != nil {
				s.limits = *l
			}
			all = append(all, s)
		}
	}
	within(events.ScopeWorkspace, workspaces, now.Workspaces)
	within(events.ScopePrincipal, principals, now.Principals)
	for id := range now.Models {
		all = append(all, subject{scope: events.ScopeModel, id: id, limits: models[id]})
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := scopeOrder[all[i].scope], scopeOrder[all[j].scope]
		return a < b || a == b && all[i].id < all[j].id
	})
	return all
}

func keySubject(id, name string, k *authority.Key) subject {
	s := subject{scope: events.ScopeKey, id: id, name: name, off: k == nil}
	if k != nil {
		s.limits, s.daily = k.Limits, k.Daily
	}
	return s
}

// wanted reads which scopes are asked for: all, those of one kind, or those whose id or name has a text.
func wanted(r *http.Request) func(*subject) bool {
	q := r.URL.Query()
	scope, text := events.Scope(q.Get("scope")), strings.ToLower(q.Get("q"))
	return func(s *subject) bool {
		return (scope == "" || s.scope == scope) && (text == "" || strings.Contains(strings.ToLower(s.id), text) || strings.Contains(strings.ToLower(s.name), text))
	}
}

// effectiveBody is one scope with what its org set and what holds. null is no limit of the scope itself: what is around it limits it.
type effectiveBody struct {
	Scope     events.Scope `json:"scope"`
	Subject   string       `json:"subject"`
	Name      string       `json:"name,omitempty"`
	Disabled  bool         `json:"disabled,omitempty"`
	Set       limitsBody   `json:"set"`
	Effective limitsBody   `json:"effective"`
	Daily     *int64       `json:"tokens_per_day"`
}

// effectiveOrg is what holds for all of an org's scopes.
type effectiveOrg struct {
	ID      events.Org        `json:"id"`
	Name    string            `json:"name,omitempty"`
	Billing authority.Billing `json:"billing"`
	HeldRPM *int64            `json:"held_rpm"` // that the org and each key are held to until its first credit; null: not
}

func (s *subject) named() string {
	if s.scope == events.ScopeOrg {
		return orgSubject
	}
	return s.id
}

// listEffective lists the org's scopes with the limits that hold for each, inherited ones included.
func (h *Handler) listEffective(w http.ResponseWriter, r *http.Request, u *authority.UserRecord) error {
	_, limit, err := page(r)
	if err != nil {
		return err
	}
	want := wanted(r)
	return h.show(w, http.StatusOK, func(state *authority.State, static *authority.Snapshot) (any, error) {
		st, now := state.Org(u.Org), h.mirror.Current()
		org := effectiveOrg{ID: u.Org}
		if o := now.Orgs[u.Org]; o != nil {
			org.Name, org.Billing = o.Name, o.Billing
		}
		if authority.Held(static, u.Org, st) {
			org.HeldRPM = some(authority.HoldRPM)
		}
		list, left := []effectiveBody{}, 0
		for _, s := range subjects(u.Org, st, static, now) {
			switch {
			case !want(&s):
				continue
			case len(list) == limit:
				left++
				continue
			}
			own := authority.LimitSet{}
			if l := st.Limits[(&authority.LimitRecord{Org: u.Org, Scope: s.scope, Subject: s.id}).Ref()]; l != nil {
				own = authority.LimitSet{RPM: l.RPM, TPM: l.TPM, Concurrency: l.Concurrency, Closed: l.Closed}
			}
			list = append(list, effectiveBody{s.scope, s.named(), s.name, s.off, showLimits(own), showLimits(authority.LimitSet(s.limits)), some(s.daily)})
		}
		return map[string]any{"org": org, "scopes": list, "left_off": left}, nil
	})
}

// listOwnConnections lists the connections of the org, those of the files included, which are bound there.
func (h *Handler) listOwnConnections(w http.ResponseWriter, _ *http.Request, u *authority.UserRecord) error {
	type body struct {
		ID       string  `json:"id"`
		Provider string  `json:"provider"`
		Name     string  `json:"name,omitempty"`
		Pool     *string `json:"pool"`
		Declared bool    `json:"declared,omitempty"`
	}
	return h.show(w, http.StatusOK, func(s *authority.State, static *authority.Snapshot) (any, error) {
		list := []body{}
		for _, c := range s.Org(u.Org).Connections {
			shown := showConnection(c)
			list = append(list, body{c.ID, c.Provider, c.Name, shown.Pool, false})
		}
		for _, c := range static.Connections {
			if c.Org == u.Org {
				b := body{ID: c.ID, Provider: c.Provider, Declared: true}
				if c.Pool != "" {
					b.Pool = &c.Pool
				}
				list = append(list, b)
			}
		}
		sort.Slice(list, func(i, j int) bool { return list[i].ID < list[j].ID })
		return map[string]any{"connections": list}, nil
	})
}
