package manage

import (
	"crypto/subtle"
	"maps"
	"net/http"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/store"
	"github.com/weirhq/weir/gateway/authority/strictyaml"
)

// operator is who changes things through /admin, in the process's own log.
const operator = "operator"

// admin registers what operators may do.
func (h *Handler) admin() {
	handle := func(pattern string, f func(http.ResponseWriter, *http.Request) error) {
		h.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if !h.isOperator(r) {
				h.fail(w, r, problemf(http.StatusUnauthorized, "unauthorized", "unauthorized: the admin key is missing or not right"))
				return
			}
			if err := f(w, r); err != nil {
				h.fail(w, r, err)
			}
		})
	}
	handle("/admin/", h.nothing)
	handle("GET /admin/orgs", h.listOrgs)
	handle("POST /admin/orgs", h.createOrg)
	handle("GET /admin/orgs/{org}", h.getOrg)
	handle("PUT /admin/orgs/{org}", h.putOrg)
	handle("DELETE /admin/orgs/{org}", h.deleteOrg)
	handle("PUT /admin/orgs/{org}/override", h.putOverride)
	handle("DELETE /admin/orgs/{org}/override", h.putOverride)
	handle("GET /admin/orgs/{org}/credits", h.listCredits)
	handle("POST /admin/orgs/{org}/credits", h.addCredit)
	handle("POST /admin/orgs/{org}/repair", h.repair)
	handle("GET /admin/fences", h.fences)
	type act func(http.ResponseWriter, *http.Request, authority.Kind) error
	of := func(kind authority.Kind, f act) func(http.ResponseWriter, *http.Request) error {
		return func(w http.ResponseWriter, r *http.Request) error { return f(w, r, kind) }
	}
	handle("GET /admin/orgs/{org}/workspaces", of(authority.KindWorkspace, h.listScopes))
	handle("POST /admin/orgs/{org}/workspaces", of(authority.KindWorkspace, h.putScope))
	handle("PUT /admin/orgs/{org}/workspaces/{id}", of(authority.KindWorkspace, h.putScope))
	handle("DELETE /admin/orgs/{org}/workspaces/{id}", of(authority.KindWorkspace, h.deleteScope))
	handle("GET /admin/orgs/{org}/principals", of(authority.KindPrincipal, h.listScopes))
	handle("POST /admin/orgs/{org}/principals", of(authority.KindPrincipal, h.putScope))
	handle("PUT /admin/orgs/{org}/principals/{id}", of(authority.KindPrincipal, h.putScope))
	handle("DELETE /admin/orgs/{org}/principals/{id}", of(authority.KindPrincipal, h.deleteScope))
	h.adminUsers(handle)
	h.adminKeys(handle)
	h.adminHouse(handle)
}

func (h *Handler) isOperator(r *http.Request) bool { return Operator(r, h.config.AdminKeys) }

// Operator says whether a request carries an operator's key, of which keys has the SHA-256. Every key is compared, each in constant time.
func Operator(r *http.Request, keys [][32]byte) bool {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !ok || !strings.EqualFold(scheme, "bearer") || token == "" || len(token) > authority.MaxRawKey {
		return false
	}
	hash := authority.HashKey(token)
	found := 0
	for i := range keys {
		found |= subtle.ConstantTimeCompare(hash[:], keys[i][:])
	}
	return found == 1
}

// orgBody is an org as answers have it.
type orgBody struct {
	ID        events.Org        `json:"id"`
	Name      string            `json:"name,omitempty"`
	Billing   authority.Billing `json:"billing"`
	Declared  bool              `json:"declared"` // in the files
	Credited  bool              `json:"credited"`
	Version   int64             `json:"version"`
	Keys      int               `json:"keys"` // made through the API
	Limits    limitsBody        `json:"limits"`
	Override  *overrideBody     `json:"override"`
	CreatedAt time.Time         `json:"created_at,omitzero"`
}

// overrideBody is an override as answers have it.
type overrideBody struct {
	Org       limitsBody `json:"org"`
	Workspace limitsBody `json:"workspace"`
	Principal limitsBody `json:"principal"`
	Key       limitsBody `json:"key"`
}

// known gives an org that the files or the API know; a 404 otherwise.
func known(s *authority.State, static *authority.Snapshot, org events.Org) (*authority.OrgState, error) {
	st := s.Org(org)
	if org == events.Platform || static.Orgs[org] == nil && (st.Record == nil || st.Record.Deleted) {
		return nil, problemf(http.StatusNotFound, "not_found", "there is no org %s", shorten(string(org)))
	}
	return st, nil
}

// shorten keeps what a client sent short in messages.
func shorten(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:80], "") + "…"
	}
	return s
}

// orgOf is the org of a path.
func orgOf(r *http.Request) events.Org { return events.Org(r.PathValue("org")) }

func (h *Handler) showOrg(s *authority.State, static *authority.Snapshot, org events.Org) (orgBody, error) {
	st, err := known(s, static, org)
	if err != nil {
		return orgBody{}, err
	}
	b := orgBody{ID: org, Declared: static.Orgs[org] != nil, Keys: len(st.Keys)}
	if rec := st.Record; rec != nil {
		b.Name, b.Credited, b.Version, b.CreatedAt = rec.Name, rec.Credited, rec.Version, rec.CreatedAt
		if o := rec.Override; o != nil {
			b.Override = &overrideBody{showLimits(o.Org), showLimits(o.Workspace), showLimits(o.Principal), showLimits(o.Key)}
		}
	}
	if o := h.mirror.Current().Orgs[org]; o != nil {
		b.Billing, b.Limits = o.Billing, showLimits(authority.LimitSet(o.Limits))
		if o.Name != "" {
			b.Name = o.Name
		}
	}
	return b, nil
}

func (h *Handler) listOrgs(w http.ResponseWriter, r *http.Request) error {
	after, limit, err := page(r)
	if err != nil {
		return err
	}
	return h.show(w, http.StatusOK, func(s *authority.State, static *authority.Snapshot) (any, error) {
		ids := map[events.Org]bool{}
		for org := range static.Orgs {
			ids[org] = true
		}
		for org := range s.Orgs() {
			ids[org] = true
		}
		list := []orgBody{}
		for _, org := range slices.Sorted(maps.Keys(ids)) {
			if string(org) <= after || len(list) == limit {
				continue
			}
			if b, err := h.showOrg(s, static, org); err == nil {
				list = append(list, b)
			}
		}
		return map[string]any{"orgs": list}, nil
	})
}

func (h *Handler) getOrg(w http.ResponseWriter, r *http.Request) error {
	return h.answerOrg(w, http.StatusOK, orgOf(r))
}

func (h *Handler) answerOrg(w http.ResponseWriter, status int, org events.Org) error {
	return h.show(w, status, func(s *authority.State, static *authority.Snapshot) (any, error) {
		return h.showOrg(s, static, org)
	})
}

func (h *Handler) createOrg(w http.ResponseWriter, r *http.Request) error {
	var id, name, billing string
	if err := read(w, r, func(o *object) {
		id, name, billing = o.text("id", events.MaxToken), o.text("name", authority.MaxName), readBilling(o)
	}); err != nil {
		return err
	}
	if id == "" {
		var err error
		if id, err = h.newID(); err != nil {
			return err
		}
	}
	return h.saveOrg(w, r, events.Org(id), name, billing, true)
}

func (h *Handler) putOrg(w http.ResponseWriter, r *http.Request) error {
	var name, billing string
	if err := read(w, r, func(o *object) { name, billing = o.text("name", authority.MaxName), readBilling(o) }); err != nil {
		return err
	}
	return h.saveOrg(w, r, orgOf(r), name, billing, false)
}

// readBilling reads how an org pays: in advance unless it says otherwise.
func readBilling(o *object) string {
	return o.one("billing", string(authority.Prepaid), string(authority.Prepaid), string(authority.Postpaid))
}

func (h *Handler) saveOrg(w http.ResponseWriter, r *http.Request, org events.Org, name, billing string, create bool) error {
	if !org.Valid() || org == events.Platform {
		return invalid("id", shorten(string(org)), "must match [A-Za-z0-9][A-Za-z0-9_-]{0,63}")
	}
	status := http.StatusOK
	err := h.change(r, operator, func(tx *store.Tx) error {
		if tx.Static.Orgs[org] != nil {
			return problemf(http.StatusConflict, "conflict", "the org %s is declared in the files: it is changed there", org)
		}
		rec := authority.OrgRecord{Org: org, CreatedAt: h.config.Now().UTC()}
		if old := tx.State.Org(org).Record; old != nil && !old.Deleted {
			if create {
				return problemf(http.StatusConflict, "conflict", "there is an org %s already", org)
			}
			rec = *old
		} else {
			rec.Credited, status = old != nil && old.Credited, http.StatusCreated
		}
		rec.Name, rec.Billing, rec.Made = name, authority.Billing(billing), true
		tx.Put(&rec)
		return nil
	})
	if err != nil {
		return err
	}
	return h.answerOrg(w, status, org)
}

// deleteOrg takes an org away with all that belongs to it. Its version stays, so that no older reserve ever counts again.
func (h *Handler) deleteOrg(w http.ResponseWriter, r *http.Request) error {
	org := orgOf(r)
	err := h.change(r, operator, func(tx *store.Tx) error {
		st, err := known(tx.State, tx.Static, org)
		if err != nil {
			return err
		}
		if tx.Static.Orgs[org] != nil {
			return problemf(http.StatusConflict, "conflict", "the org %s is declared in the files: it is taken away there", org)
		}
		for _, ref := range st.Refs() {
			if ref.Kind != authority.KindOrg && ref.Kind != authority.KindCredit {
				tx.Delete(ref)
			}
		}
		tx.Put(&authority.OrgRecord{Org: org, Deleted: true, Credited: st.Record.Credited})
		return nil
	})
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

func (h *Handler) putOverride(w http.ResponseWriter, r *http.Request) error {
	var o *authority.Override
	if r.Method == http.MethodPut {
		o = &authority.Override{}
		err := read(w, r, func(b *object) {
			part := func(name string, rps, spend bool) authority.LimitSet {
				s := b.sub(name)
				l := s.given(rps, spend)
				if s != nil {
					s.end()
				}
				return l
			}
			o.Org, o.Workspace = part("org", true, true), part("workspace", false, true)
			o.Principal, o.Key = part("principal", false, false), part("key", false, true)
		})
		if err != nil {
			return err
		}
	}
	org := orgOf(r)
	err := h.change(r, operator, func(tx *store.Tx) error {
		st, err := known(tx.State, tx.Static, org)
		if err != nil {
			return err
		}
		rec := authority.OrgRecord{Org: org}
		if st.Record != nil {
			rec = *st.Record
		}
		rec.Override = o
		tx.Put(&rec)
		return nil
	})
	if err != nil {
		return err
	}
	return h.answerOrg(w, http.StatusOK, org)
}

// creditBody is a credit as answers have it.
type creditBody struct {
	Reference string    `json:"reference"`
	Amount    string    `json:"amount"` // US dollars
	At        time.Time `json:"at,omitzero"`
}

func showCredit(c *authority.CreditRecord) creditBody {
	amount := strictyaml.FormatDecimal(max(c.AmountNano, -c.AmountNano), authority.MoneyDigits)
	if c.AmountNano < 0 {
		amount = "-" + amount
	}
	return creditBody{c.Reference, amount, c.At}
}

func (h *Handler) listCredits(w http.ResponseWriter, r *http.Request) error {
	return h.show(w, http.StatusOK, func(s *authority.State, static *authority.Snapshot) (any, error) {
		st, err := known(s, static, orgOf(r))
		if err != nil {
			return nil, err
		}
		list := newest(slices.Collect(maps.Values(st.Credits)), func(c *authority.CreditRecord) (time.Time, string) { return c.At, c.Reference }, defaultPage)
		return map[string]any{"credits": each(list, showCredit)}, nil
	})
}

// newest gives the newest records of a list, at most so many.
func newest[R any](all []R, by func(R) (time.Time, string), most int) []R {
	sort.Slice(all, func(i, j int) bool {
		a, x := by(all[i])
		b, y := by(all[j])
		if !a.Equal(b) {
			return a.After(b)
		}
		return x < y
	})
	return all[:min(len(all), most)]
}

func each[A, B any](all []A, f func(A) B) []B {
	out := make([]B, len(all))
	for i, a := range all {
		out[i] = f(a)
	}
	return out
}

// reserved begin the references of the platform's own credits.
var reserved = []string{"recover/", "correction/"}

// addCredit gives an org money, once a reference. The reference is kept first, so that it has one amount; the log counts each reference
// once, so that a credit that failed in between is simply given again.
func (h *Handler) addCredit(w http.ResponseWriter, r *http.Request) error {
	c := authority.CreditRecord{Org: orgOf(r), At: h.config.Now().UTC()}
	err := read(w, r, func(o *object) {
		if o.required("amount", "US dollars") {
			if c.AmountNano = o.money("amount", true); c.AmountNano == 0 && len(o.r.faults) == 0 {
				o.wrong("amount", "must not be 0")
			}
		}
		if o.required("reference", "what the credit is for, once") {
			c.Reference = o.text("reference", authority.MaxName)
			if c.Reference == "" || slices.ContainsFunc(reserved, func(p string) bool { return strings.HasPrefix(c.Reference, p) }) {
				o.wrong("reference", "must not be empty, nor begin with %s", strings.Join(reserved, " or "))
			}
		}
	})
	if err != nil {
		return err
	}
	kept := &c
	err = h.change(r, operator, func(tx *store.Tx) error {
		st, err := known(tx.State, tx.Static, c.Org)
		if err != nil {
			return err
		}
		kept = &c
		if old := st.Credits[c.Reference]; old != nil {
			if kept = old; old.AmountNano != c.AmountNano {
				return problemf(http.StatusConflict, "conflict", "the reference was given with the amount %s: another credit needs another", showCredit(old).Amount)
			}
			return nil
		}
		tx.Put(&c)
		rec := authority.OrgRecord{Org: c.Org}
		if st.Record != nil {
			rec = *st.Record
		}
		if c.AmountNano > 0 && !rec.Credited {
			rec.Credited = true
			tx.Put(&rec)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if _, err := h.config.Log.Publish(r.Context(), events.Event{ID: "credit/" + string(c.Org) + "/" + c.Reference, Source: h.config.Source, Org: c.Org,
		Data: &events.Credit{Org: c.Org, AmountNano: kept.AmountNano, Reference: kept.Reference}}); err != nil {
		h.config.Logger.Error("a credit is kept and not in the log", "org", c.Org, "reference", c.Reference, "error", err)
		return &problem{status: http.StatusServiceUnavailable, code: "gateway_infrastructure", retry: time.Second,
			message: "the credit is noted and not in the log yet: give it again with the same reference"}
	}
	answer(w, http.StatusOK, showCredit(kept))
	return nil
}

// fences lists the orgs whose fence was published for a change that was not committed.
func (h *Handler) fences(w http.ResponseWriter, r *http.Request) error {
	behind, err := h.config.Authority.Behind(r.Context())
	if err != nil {
		return err
	}
	type body struct {
		Org    events.Org `json:"org"`
		Store  int64      `json:"version"`
		Fenced int64      `json:"fence"`
	}
	answer(w, http.StatusOK, map[string]any{"behind": each(behind, func(b store.Behind) body { return body(b) })})
	return nil
}

func (h *Handler) repair(w http.ResponseWriter, r *http.Request) error {
	org := orgOf(r)
	if !org.Valid() {
		return problemf(http.StatusNotFound, "not_found", "there is no org %s", shorten(string(org)))
	}
	err := h.change(r, operator, func(tx *store.Tx) error {
		if org != events.Platform {
			if _, err := known(tx.State, tx.Static, org); err != nil {
				return err
			}
		}
		tx.Touch(org)
		return nil
	})
	if err == nil {
		answer(w, http.StatusOK, map[string]bool{"ok": true})
	}
	return err
}
