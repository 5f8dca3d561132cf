package manage

import (
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

// poolBody is a pool as answers have it.
type poolBody struct {
	ID          string     `json:"id"`
	Org         events.Org `json:"org,omitempty"` // for operators; empty: the house's
	Provider    string     `json:"provider"`
	RPM         int64      `json:"rpm"`
	TPM         int64      `json:"tpm"`
	Concurrency int64      `json:"concurrency"`
	Headroom    int64      `json:"headroom_percent"`
	Parent      *string    `json:"parent_pool_id"`
	FairShare   string     `json:"fair_share,omitempty"`
	Usable      usableBody `json:"usable"`
	Connections []string   `json:"connection_ids"`
	CreatedAt   time.Time  `json:"created_at,omitzero"`
}

// usableBody is what is left of a pool's limits with the headroom taken off.
type usableBody struct {
	RPM         int64 `json:"rpm"`
	TPM         int64 `json:"tpm"`
	Concurrency int64 `json:"concurrency"`
}

func showPool(p *authority.PoolRecord, st *authority.OrgState) poolBody {
	usable := p.Pool()
	b := poolBody{ID: p.ID, Provider: p.Provider, RPM: p.RPM, TPM: p.TPM, Concurrency: p.Concurrency, Headroom: p.Headroom,
		Usable: usableBody{usable.RPM, usable.TPM, usable.Concurrency}, Connections: []string{}, CreatedAt: p.CreatedAt}
	if p.Parent != "" {
		b.Parent = &p.Parent
	}
	if p.Org == events.Platform {
		b.FairShare = strictyaml.FormatDecimal(usable.FairShare, 6)
	}
	for id, c := range st.Connections {
		if c.Pool == p.ID {
			b.Connections = append(b.Connections, id)
		}
	}
	sort.Strings(b.Connections)
	return b
}

// readPool reads a pool's fields. Customers' pools have one of a few providers.
func readPool(o *object, p *authority.PoolRecord, providers []string, parent string) {
	if o.required("provider", "whose account it is") {
		if providers != nil {
			p.Provider = o.one("provider", "", providers...)
		} else if p.Provider = o.text("provider", authority.MaxName); p.Provider == "" {
			o.wrong("provider", "must not be empty")
		}
	}
	p.RPM, p.TPM, p.Concurrency = o.positive("rpm", authority.MaxQuota), o.positive("tpm", authority.MaxQuota), o.positive("concurrency", authority.MaxQuota)
	p.Headroom = o.integer("headroom_percent", authority.DefaultHeadroom, 1, 100)
	p.Parent = o.text(parent, authority.MaxName)
	if v, there := o.take(parent); there && v.Str == "" {
		o.wrong(parent, "must be the id of a pool, or null")
	}
}

// listPools lists the newest pools of the org.
func (h *Handler) listPools(w http.ResponseWriter, _ *http.Request, u *authority.UserRecord) error {
	return h.show(w, http.StatusOK, func(s *authority.State, _ *authority.Snapshot) (any, error) {
		st := s.Org(u.Org)
		list := newest(slices.Collect(maps.Values(st.Pools)), func(p *authority.PoolRecord) (time.Time, string) { return p.CreatedAt, p.ID }, NewestPools)
		return map[string]any{"pools": each(list, func(p *authority.PoolRecord) poolBody { return showPool(p, st) })}, nil
	})
}

func (h *Handler) getPool(w http.ResponseWriter, r *http.Request, u *authority.UserRecord) error {
	return h.answerPool(w, http.StatusOK, u.Org, r.PathValue("id"), false)
}

func (h *Handler) answerPool(w http.ResponseWriter, status int, org events.Org, id string, asOperator bool) error {
	return h.show(w, status, func(s *authority.State, _ *authority.Snapshot) (any, error) {
		st := s.Org(org)
		p := st.Pools[id]
		if p == nil {
			return nil, noPool()
		}
		b := showPool(p, st)
		if asOperator && org != events.Platform {
			b.Org = org
		}
		return b, nil
	})
}

func noPool() *problem {
	return problemf(http.StatusNotFound, "not_found", "there is no such pool of this org")
}

// createPool makes a pool, and in the same change assigns a connection to it if one is named: a connection without a pool is refused requests.
func (h *Handler) createPool(w http.ResponseWriter, r *http.Request, u *authority.UserRecord) error {
	p := authority.PoolRecord{Org: u.Org, CreatedAt: h.config.Now().UTC()}
	connection := ""
	err := read(w, r, func(o *object) {
		readPool(o, &p, authority.CustomerProviders(), "parent_pool_id")
		connection = o.text("connection_id", authority.MaxName)
	})
	if err == nil {
		p.ID, err = h.newID()
	}
	if err != nil {
		return err
	}
	err = h.change(r, "user "+u.ID, func(tx *store.Tx) error {
		if err := savePool(tx, &p, "parent_pool_id"); err != nil || connection == "" {
			return err
		}
		return bind(tx, &p, connection)
	})
	if err != nil {
		return err
	}
	return h.answerPool(w, http.StatusCreated, u.Org, p.ID, false)
}

// replacePool replaces a pool's limits and parent: what is not sent is not kept.
func (h *Handler) replacePool(w http.ResponseWriter, r *http.Request, u *authority.UserRecord) error {
	p := authority.PoolRecord{Org: u.Org, ID: r.PathValue("id")}
	if err := read(w, r, func(o *object) { readPool(o, &p, authority.CustomerProviders(), "parent_pool_id") }); err != nil {
		return err
	}
	err := h.change(r, "user "+u.ID, func(tx *store.Tx) error {
		if tx.State.Org(u.Org).Pools[p.ID] == nil {
			return noPool()
		}
		return savePool(tx, &p, "parent_pool_id")
	})
	if err != nil {
		return err
	}
	return h.answerPool(w, http.StatusOK, u.Org, p.ID, false)
}

// savePool checks a pool with those around it and puts it. parent names the field of its parent.
func savePool(tx *store.Tx, p *authority.PoolRecord, parent string) error {
	st := tx.State.Org(p.Org)
	if owner, taken := tx.State.Owner(authority.KindPool, p.ID); tx.Static.Pools[p.ID] != nil || taken && owner != p.Org {
		return problemf(http.StatusConflict, "conflict", "there is a pool %s already: an id may stand once", shorten(p.ID))
	}
	saved := *p
	if old := st.Pools[p.ID]; old != nil {
		saved.CreatedAt = old.CreatedAt
		if old.Provider != p.Provider {
			return invalid("provider", p.Provider, "is %s: an update replaces the limits and the parent alone", old.Provider)
		}
	} else if len(st.Pools) >= MaxPools {
		return problemf(http.StatusConflict, "conflict", "the org has %d pools: at most %d", len(st.Pools), MaxPools)
	}
	pools := poolsOf(tx, p.Org)
	pools[p.ID] = saved.Pool()
	if rule := authority.CheckParents(pools, pools[p.ID]); rule != "" {
		return invalid(parent, p.Parent, "%s", rule)
	}
	for _, id := range slices.Sorted(maps.Keys(pools)) { // those below it
		if rule := authority.CheckParents(pools, pools[id]); rule != "" && st.Pools[id] != nil {
			return invalid(parent, p.Parent, "the pool %s is below this one: %s", id, rule)
		}
	}
	tx.Put(&saved)
	return nil
}

// poolsOf are the pools that those of an org may stand under or above: its own, of the API and of the files.
func poolsOf(tx *store.Tx, org events.Org) map[string]*authority.Pool {
	own := org
	if org == events.Platform {
		own = ""
	}
	pools := map[string]*authority.Pool{}
	for id, p := range tx.Static.Pools {
		if p.Org == own {
			pools[id] = p
		}
	}
	for id, r := range tx.State.Org(org).Pools {
		if pools[id] == nil {
			pools[id] = r.Pool()
		}
	}
	return pools
}

// bindPool assigns a connection of the org to a pool.
func (h *Handler) bindPool(w http.ResponseWriter, r *http.Request, u *authority.UserRecord) error {
	var connection string
	if err := read(w, r, func(o *object) {
		if o.required("connection_id", "which connection") {
			connection = o.text("connection_id", authority.MaxName)
		}
	}); err != nil {
		return err
	}
	pool := r.PathValue("id")
	err := h.change(r, "user "+u.ID, func(tx *store.Tx) error {
		p := tx.State.Org(u.Org).Pools[pool]
		if p == nil {
			return noPool()
		}
		return bind(tx, p, connection)
	})
	if err == nil {
		answer(w, http.StatusOK, map[string]string{"pool_id": pool, "connection_id": connection})
	}
	return err
}

// bind assigns a connection of a pool's org to it.
func bind(tx *store.Tx, p *authority.PoolRecord, connection string) error {
	c := tx.State.Org(p.Org).Connections[connection]
	if c == nil {
		if file := tx.Static.Connections[connection]; file != nil && file.Org == p.Org {
			return problemf(http.StatusConflict, "conflict", "the connection is declared in the files: it is bound there")
		}
		return invalid("connection_id", shorten(connection), "there is no such connection of this org")
	}
	if c.Provider != p.Provider {
		return invalid("connection_id", connection, "is a connection of %s: the pool is of %s", c.Provider, p.Provider)
	}
	bound := *c
	bound.Pool = p.ID
	tx.Put(&bound)
	return nil
}

// ownerOf reads the org that a pool or connection is of: the house's without one.
func ownerOf(o *object) events.Org {
	org := strings.TrimSpace(o.text("org", events.MaxToken))
	if org == "" {
		return events.Platform
	}
	if !events.Org(org).Valid() || org == string(events.Platform) {
		o.wrong("org", "must match [A-Za-z0-9][A-Za-z0-9_-]{0,63}")
	}
	return events.Org(org)
}
