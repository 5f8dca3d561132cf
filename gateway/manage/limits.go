package manage

import (
	"net/http"
	"sort"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/store"
)

// limitBody is one scope's limits as answers have them. null inherits.
type limitBody struct {
	Scope       events.Scope `json:"scope"`
	Subject     string       `json:"subject"`
	RPM         *int64       `json:"rpm"`
	TPM         *int64       `json:"tpm"`
	Concurrency *int64       `json:"concurrency"`
	OutageMode  string       `json:"outage_mode"`
	UpdatedAt   time.Time    `json:"updated_at,omitzero"`
}

// orgSubject is the subject of the org scope.
const orgSubject = "org"

func showLimit(l *authority.LimitRecord) limitBody {
	b := limitBody{l.Scope, l.Subject, some(l.RPM), some(l.TPM), some(l.Concurrency), outageMode(l.Closed), l.UpdatedAt}
	if l.Scope == events.ScopeOrg {
		b.Subject = orgSubject
	}
	return b
}

// scopeOrder is the order of scopes in lists: outermost first.
var scopeOrder = map[events.Scope]int{events.ScopeOrg: 0, events.ScopeWorkspace: 1, events.ScopePrincipal: 2, events.ScopeKey: 3, events.ScopeModel: 4}

// listLimits lists the org's configured limits, of every scope.
func (h *Handler) listLimits(w http.ResponseWriter, _ *http.Request, u *authority.UserRecord) error {
	return h.show(w, http.StatusOK, func(s *authority.State, _ *authority.Snapshot) (any, error) {
		list := []limitBody{}
		for _, l := range s.Org(u.Org).Limits {
			list = append(list, showLimit(l))
		}
		sort.Slice(list, func(i, j int) bool {
			a, b := scopeOrder[list[i].Scope], scopeOrder[list[j].Scope]
			return a < b || a == b && list[i].Subject < list[j].Subject
		})
		return map[string]any{"limits": list}, nil
	})
}

// putLimit replaces one scope's limits. What inherits everything is no limit, and is not kept.
func (h *Handler) putLimit(w http.ResponseWriter, r *http.Request, u *authority.UserRecord) error {
	l := authority.LimitRecord{Org: u.Org, UpdatedAt: h.config.Now().UTC()}
	err := read(w, r, func(o *object) {
		if o.required("scope", "org, workspace, principal, key or model") {
			l.Scope = events.Scope(o.one("scope", "", "org", "workspace", "principal", "key", "model"))
		}
		if o.required("subject", "org for the org, an id for the other scopes") {
			l.Subject = o.text("subject", authority.MaxName)
			if l.Scope == events.ScopeOrg && l.Subject != orgSubject {
				o.wrong("subject", "must be org for the org scope")
			} else if l.Subject == "" {
				o.wrong("subject", "must not be empty")
			}
		}
		rates := o.rates()
		l.RPM, l.TPM, l.Concurrency, l.Closed = rates.RPM, rates.TPM, rates.Concurrency, rates.Closed
	})
	if err != nil {
		return err
	}
	if l.Scope == events.ScopeOrg {
		l.Subject = ""
	}
	err = h.change(r, "user "+u.ID, func(tx *store.Tx) error {
		st := tx.State.Org(u.Org)
		if rule := subjectRule(tx, &l); rule != "" {
			return invalid("subject", shorten(l.Subject), "%s", rule)
		}
		if l.RPM == 0 && l.TPM == 0 && l.Concurrency == 0 && !l.Closed {
			tx.Delete(l.Ref())
			return nil
		}
		if st.Limits[l.Ref()] == nil && len(st.Limits) >= MaxLimits {
			return problemf(http.StatusConflict, "conflict", "the org has limits for %d scopes: at most %d", len(st.Limits), MaxLimits)
		}
		tx.Put(&l)
		return nil
	})
	if err == nil {
		answer(w, http.StatusOK, showLimit(&l))
	}
	return err
}

// subjectRule says which rule a limit's subject breaks: it must be there, and the org's own.
func subjectRule(tx *store.Tx, l *authority.LimitRecord) string {
	st := tx.State.Org(l.Org)
	there := true
	switch l.Scope {
	case events.ScopeWorkspace:
		there = st.Workspaces[l.Subject] != nil || usedBy(tx.Static, l.Org, func(k *authority.Key) string { return k.Workspace }, l.Subject)
	case events.ScopePrincipal:
		there = st.Principals[l.Subject] != nil || usedBy(tx.Static, l.Org, func(k *authority.Key) string { return k.Principal }, l.Subject)
	case events.ScopeKey:
		there = st.Keys[l.Subject] != nil || usedBy(tx.Static, l.Org, func(k *authority.Key) string { return k.ID }, l.Subject)
	case events.ScopeModel:
		if tx.Static.Models[l.Subject] == nil {
			return "there is no such model: it must be the exact id of one"
		}
	}
	if !there {
		return "there is no such " + string(l.Scope) + " of this org"
	}
	return ""
}

// usedBy says whether a key of the files and of the org has a name.
func usedBy(static *authority.Snapshot, org events.Org, of func(*authority.Key) string, name string) bool {
	for _, k := range static.Keys {
		if k.Org == org && of(k) == name {
			return true
		}
	}
	return false
}
