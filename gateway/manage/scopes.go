package manage

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/store"
)

// scopeBody is a workspace or a principal as answers have it.
type scopeBody struct {
	ID        string     `json:"id"`
	Org       events.Org `json:"org"`
	Name      string     `json:"name,omitempty"`
	Limits    limitsBody `json:"limits"`
	CreatedAt time.Time  `json:"created_at,omitzero"`
}

func showScope(s *authority.ScopeRecord) scopeBody {
	return scopeBody{s.ID, s.Org, s.Name, showLimits(s.Limits), s.CreatedAt}
}

func scopesOf(st *authority.OrgState, kind authority.Kind) map[string]*authority.ScopeRecord {
	if kind == authority.KindWorkspace {
		return st.Workspaces
	}
	return st.Principals
}

func (h *Handler) listScopes(w http.ResponseWriter, r *http.Request, kind authority.Kind) error {
	after, limit, err := page(r)
	if err != nil {
		return err
	}
	return h.show(w, http.StatusOK, func(s *authority.State, static *authority.Snapshot) (any, error) {
		st, err := known(s, static, orgOf(r))
		if err != nil {
			return nil, err
		}
		return map[string]any{string(kind) + "s": each(paged(scopesOf(st, kind), after, limit), showScope)}, nil
	})
}

// paged gives records in the order of their ids, after one of them.
func paged[R any](all map[string]R, after string, limit int) []R {
	list := []R{}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		if id > after && len(list) < limit {
			list = append(list, all[id])
		}
	}
	return list
}

// named checks an id that a client chose.
func named(id string) error {
	if id == "" || len(id) > authority.MaxName || strings.ContainsFunc(id, func(c rune) bool { return c <= ' ' || c == 0x7f }) {
		return invalid("id", shorten(id), "must be from 1 to %d bytes long, without spaces and control characters", authority.MaxName)
	}
	return nil
}

func (h *Handler) putScope(w http.ResponseWriter, r *http.Request, kind authority.Kind) error {
	rec := authority.ScopeRecord{Org: orgOf(r), Kind: kind, ID: r.PathValue("id"), CreatedAt: h.config.Now().UTC()}
	err := read(w, r, func(o *object) {
		rec.Name = o.text("name", authority.MaxName)
		if l := o.sub("limits"); l != nil {
			rec.Limits = l.given(false, kind == authority.KindWorkspace)
			l.end()
		}
	})
	if err != nil {
		return err
	}
	if r.Method == http.MethodPost {
		if rec.ID, err = h.newID(); err != nil {
			return err
		}
	} else if err := named(rec.ID); err != nil {
		return err
	}
	status := http.StatusCreated
	err = h.change(r, operator, func(tx *store.Tx) error {
		st, err := known(tx.State, tx.Static, rec.Org)
		if err != nil {
			return err
		}
		if owner, taken := tx.State.Owner(kind, rec.ID); taken && owner != rec.Org {
			return problemf(http.StatusConflict, "conflict", "the %s %s is another org's: an id is of one org", kind, shorten(rec.ID))
		}
		if declared(tx.Static, kind, rec.ID) {
			return problemf(http.StatusConflict, "conflict", "the %s %s is declared in the files: it is changed there", kind, shorten(rec.ID))
		}
		all := scopesOf(st, kind)
		if old := all[rec.ID]; old != nil {
			rec.CreatedAt, status = old.CreatedAt, http.StatusOK
		} else if len(all) >= MaxScopes {
			return problemf(http.StatusConflict, "conflict", "the org has %d %ss: at most %d", len(all), kind, MaxScopes)
		}
		tx.Put(&rec)
		return nil
	})
	if err == nil {
		answer(w, status, showScope(&rec))
	}
	return err
}

// declared says whether the files have a workspace or principal: limits of its own, or a key.
func declared(static *authority.Snapshot, kind authority.Kind, id string) bool {
	of, limits := func(k *authority.Key) string { return k.Workspace }, static.Workspaces
	if kind == authority.KindPrincipal {
		of, limits = func(k *authority.Key) string { return k.Principal }, static.Principals
	}
	if limits[id] != nil {
		return true
	}
	for _, k := range static.Keys {
		if of(k) == id {
			return true
		}
	}
	return false
}

func (h *Handler) deleteScope(w http.ResponseWriter, r *http.Request, kind authority.Kind) error {
	org, id := orgOf(r), r.PathValue("id")
	err := h.change(r, operator, func(tx *store.Tx) error {
		st, err := known(tx.State, tx.Static, org)
		if err != nil {
			return err
		}
		if scopesOf(st, kind)[id] == nil {
			return problemf(http.StatusNotFound, "not_found", "there is no such %s of this org", kind)
		}
		for _, k := range st.Keys {
			if kind == authority.KindWorkspace && k.Workspace == id || kind == authority.KindPrincipal && k.Principal == id {
				return problemf(http.StatusConflict, "conflict", "the key %s is bound to it: it is moved or revoked first", k.ID)
			}
		}
		tx.Delete(authority.Ref{Org: org, Kind: kind, ID: id})
		tx.Delete((&authority.LimitRecord{Org: org, Scope: events.Scope(kind), Subject: id}).Ref())
		return nil
	})
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}
