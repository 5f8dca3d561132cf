package manage

import (
	"fmt"
	"net/http"
	"slices"
	"sort"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/store"
	"github.com/weirhq/weir/gateway/authority/strictyaml"
	"github.com/weirhq/weir/gateway/bedrock"
	"github.com/weirhq/weir/gateway/wire"
)

// adminHouse registers pools, connections and prices.
func (h *Handler) adminHouse(handle adminHandle) {
	handle("GET /admin/pools", h.adminPools)
	handle("GET /admin/pools/{id}", h.adminPool)
	handle("PUT /admin/pools/{id}", h.putPool)
	handle("DELETE /admin/pools/{id}", h.deletePool)
	handle("GET /admin/connections", h.listConnections)
	handle("POST /admin/connections", h.saveConnection)
	handle("PUT /admin/connections/{id}", h.saveConnection)
	handle("DELETE /admin/connections/{id}", h.deleteConnection)
	handle("POST /admin/connections/renew", h.renewConnections)
	handle("GET /admin/prices", h.listPrices)
	handle("PUT /admin/prices/{model...}", h.putPrice)
	handle("DELETE /admin/prices/{model...}", h.deletePrice)
}

// asked is the org that a list is asked for: the house's without one.
func asked(r *http.Request) events.Org {
	if org := r.URL.Query().Get("org"); org != "" {
		return events.Org(org)
	}
	return events.Platform
}

func (h *Handler) adminPools(w http.ResponseWriter, r *http.Request) error {
	after, limit, err := page(r)
	if err != nil {
		return err
	}
	return h.show(w, http.StatusOK, func(s *authority.State, _ *authority.Snapshot) (any, error) {
		st := s.Org(asked(r))
		return map[string]any{"pools": each(paged(st.Pools, after, limit), func(p *authority.PoolRecord) poolBody { return showPool(p, st) })}, nil
	})
}

func (h *Handler) adminPool(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	var org events.Org
	if err := h.state(func(s *authority.State, _ *authority.Snapshot) error {
		org, _ = s.Owner(authority.KindPool, id)
		return nil
	}); err != nil {
		return err
	}
	return h.answerPool(w, http.StatusOK, org, id, true)
}

func (h *Handler) putPool(w http.ResponseWriter, r *http.Request) error {
	p := authority.PoolRecord{ID: r.PathValue("id"), CreatedAt: h.config.Now().UTC()}
	if err := named(p.ID); err != nil {
		return err
	}
	err := read(w, r, func(o *object) {
		p.Org = ownerOf(o)
		providers := authority.CustomerProviders()
		if p.Org == events.Platform {
			providers = nil
			p.FairShare = o.share("fair_share", "must be greater than 0 and at most 1", false)
		}
		readPool(o, &p, providers, "parent")
	})
	if err != nil {
		return err
	}
	err = h.change(r, operator, func(tx *store.Tx) error {
		if p.Org != events.Platform {
			if _, err := known(tx.State, tx.Static, p.Org); err != nil {
				return invalid("org", string(p.Org), "there is no such org")
			}
		}
		return savePool(tx, &p, "parent")
	})
	if err != nil {
		return err
	}
	return h.answerPool(w, http.StatusOK, p.Org, p.ID, true)
}

func (h *Handler) deletePool(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	err := h.change(r, operator, func(tx *store.Tx) error {
		org, there := tx.State.Owner(authority.KindPool, id)
		if !there {
			return noPool()
		}
		st := tx.State.Org(org)
		for _, c := range st.Connections {
			if c.Pool == id {
				return problemf(http.StatusConflict, "conflict", "the connection %s is bound to it: it is bound to another first", c.ID)
			}
		}
		for _, p := range st.Pools {
			if p.Parent == id {
				return problemf(http.StatusConflict, "conflict", "the pool %s is below it: it gets another parent first", p.ID)
			}
		}
		tx.Delete(authority.Ref{Org: org, Kind: authority.KindPool, ID: id})
		return nil
	})
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// connectionBody is a connection as answers have it. Its credential is never shown.
type connectionBody struct {
	ID         string     `json:"id"`
	Org        events.Org `json:"org,omitempty"` // empty: the house's
	Provider   string     `json:"provider"`
	Name       string     `json:"name,omitempty"`
	BaseURL    string     `json:"base_url,omitempty"`
	Version    string     `json:"version,omitempty"`
	Region     string     `json:"region,omitempty"`
	Pool       *string    `json:"pool"`
	Operations []string   `json:"operations,omitempty"`
	Apart      bool       `json:"reasoning_apart,omitempty"`
	Fallback   bool       `json:"house_fallback,omitempty"`
	Credential bool       `json:"has_credential"`
	CreatedAt  time.Time  `json:"created_at,omitzero"`
}

func showConnection(c *authority.ConnectionRecord) connectionBody {
	b := connectionBody{ID: c.ID, Org: c.Org, Provider: c.Provider, Name: c.Name, BaseURL: c.BaseURL, Version: c.Version, Region: c.Region,
		Operations: c.Operations, Apart: c.Apart, Fallback: c.HouseFallback, Credential: len(c.Credential) > 0, CreatedAt: c.CreatedAt}
	if c.Org == events.Platform {
		b.Org = ""
	}
	if c.Pool != "" {
		b.Pool = &c.Pool
	}
	return b
}

func (h *Handler) listConnections(w http.ResponseWriter, r *http.Request) error {
	after, limit, err := page(r)
	if err != nil {
		return err
	}
	return h.show(w, http.StatusOK, func(s *authority.State, _ *authority.Snapshot) (any, error) {
		return map[string]any{"connections": each(paged(s.Org(asked(r)).Connections, after, limit), showConnection)}, nil
	})
}

// saveConnection makes a connection or replaces one. An absent api_key stays as it is.
func (h *Handler) saveConnection(w http.ResponseWriter, r *http.Request) error {
	c := authority.ConnectionRecord{ID: r.PathValue("id"), CreatedAt: h.config.Now().UTC()}
	secret := ""
	err := read(w, r, func(o *object) {
		c.Org = ownerOf(o)
		if o.required("provider", "whose account it is") {
			if c.Org != events.Platform {
				c.Provider = o.one("provider", "", authority.CustomerProviders()...)
			} else if c.Provider = o.text("provider", authority.MaxName); c.Provider == "" {
				o.wrong("provider", "must not be empty")
			}
		}
		c.Name, c.BaseURL, c.Version, c.Pool = o.text("name", authority.MaxName), o.url("base_url"), o.text("version", 64), o.text("pool", authority.MaxName)
		if c.Region = o.text("region", 64); c.Region != "" && c.Provider != "bedrock" {
			o.wrong("region", "must be empty: only accounts of bedrock have one")
		}
		for i, v := range o.list("operations", len(wire.All())) {
			if _, known := wire.Named(v.Str); !known {
				o.r.wrong(fmt.Sprintf("%s[%d]", o.at("operations"), i), v, "must be one of chat, completions, embeddings, rerank, responses, messages, count_tokens")
			}
			c.Operations = append(c.Operations, v.Str)
		}
		c.Apart = o.boolean("reasoning_apart", false)
		if c.HouseFallback = o.boolean("house_fallback", false); c.HouseFallback && c.Org == events.Platform {
			o.wrong("house_fallback", "must stand beside org: it is for accounts of an org's own")
		}
		if c.BaseURL == "" && c.Provider != "openai" && c.Provider != "anthropic" && c.Provider != "" {
			o.r.faults.Add(authority.Fault{Field: "base_url", Rule: "must be given for the provider " + c.Provider})
		}
		if v, there := o.take("api_key"); there {
			switch secret = v.Str; {
			case secret == "" || len(secret) > 8<<10:
				o.r.faults.Add(authority.Fault{Field: "api_key", Rule: "must be a text from 1 to 8192 bytes long"}) // its value is not repeated
			case c.Provider == "bedrock" && bedrock.Unsigned(secret, c.Region, c.BaseURL):
				o.r.faults.Add(authority.Fault{Field: "region", Rule: "must be given: the api_key is an access key of AWS, and base_url names no region to sign for"})
			case h.config.Seal == nil:
				o.r.faults.Add(authority.Fault{Field: "api_key", Rule: "cannot be kept: no key to seal credentials with is configured (seal.keys_file, or WEIR_SEAL_KEYS)"})
			}
		}
	})
	if err != nil {
		return err
	}
	status := http.StatusOK
	if c.ID == "" {
		if c.ID, err = h.newID(); err != nil {
			return err
		}
	} else if err := named(c.ID); err != nil {
		return err
	}
	if secret != "" {
		if c.Credential, err = h.config.Seal(c.Org, c.ID, secret); err != nil {
			return fmt.Errorf("seal a credential: %w", err)
		}
	}
	var saved authority.ConnectionRecord
	err = h.change(r, operator, func(tx *store.Tx) error {
		saved = c
		created, err := checkConnection(tx, &saved)
		if err == nil && created {
			status = http.StatusCreated
		}
		if err == nil {
			kept := saved
			tx.Put(&kept)
		}
		return err
	})
	if err == nil {
		answer(w, status, showConnection(&saved))
	}
	return err
}

// checkConnection checks a connection with its pool, and keeps what was not sent.
func checkConnection(tx *store.Tx, c *authority.ConnectionRecord) (created bool, err error) {
	if c.Org != events.Platform {
		if _, err := known(tx.State, tx.Static, c.Org); err != nil {
			return false, invalid("org", string(c.Org), "there is no such org")
		}
	}
	if owner, taken := tx.State.Owner(authority.KindConnection, c.ID); tx.Static.Connections[c.ID] != nil || taken && owner != c.Org {
		return false, problemf(http.StatusConflict, "conflict", "there is a connection %s already: an id may stand once", shorten(c.ID))
	}
	st := tx.State.Org(c.Org)
	if old := st.Connections[c.ID]; old != nil {
		c.CreatedAt = old.CreatedAt
		if c.Credential == nil {
			c.Credential = old.Credential
		}
	} else if created = true; len(st.Connections) >= MaxConnections {
		return false, problemf(http.StatusConflict, "conflict", "the org has %d connections: at most %d", len(st.Connections), MaxConnections)
	}
	if c.Pool == "" {
		return created, nil
	}
	switch p := poolsOf(tx, c.Org)[c.Pool]; {
	case p == nil:
		return false, invalid("pool", shorten(c.Pool), "there is no such pool of the connection's org")
	case p.Provider != c.Provider:
		return false, invalid("pool", c.Pool, "is a pool of %s: the connection is of %s", p.Provider, c.Provider)
	}
	return created, nil
}

func (h *Handler) deleteConnection(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	err := h.change(r, operator, func(tx *store.Tx) error {
		org, there := tx.State.Owner(authority.KindConnection, id)
		if !there {
			return problemf(http.StatusNotFound, "not_found", "there is no such connection")
		}
		tx.Delete(authority.Ref{Org: org, Kind: authority.KindConnection, ID: id})
		return nil
	})
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// priceBody is a price as bodies have it: US dollars per million tokens, and per request.
type priceBody struct {
	Version     string    `json:"version"`
	From        time.Time `json:"from"`
	Input       string    `json:"input"`
	CachedInput string    `json:"cached_input"`
	CacheWrite  string    `json:"cache_write"`
	Output      string    `json:"output"`
	Reasoning   string    `json:"reasoning,omitempty"`
	Request     string    `json:"request"`
}

// modelPrices are the prices of a model.
type modelPrices struct {
	Model    string      `json:"model"`
	Versions []priceBody `json:"versions"`
}

func showPrices(p *authority.PriceRecord) modelPrices {
	usd := func(v int64) string { return strictyaml.FormatDecimal(v, authority.MoneyDigits) }
	return modelPrices{p.Model, each(p.Versions, func(v authority.PriceVersion) priceBody {
		b := priceBody{v.Version, v.From, usd(v.Input), usd(v.CachedInput), usd(v.CacheWrite), usd(v.Output), "", usd(v.Request)}
		if v.Reasoning != 0 {
			b.Reasoning = usd(v.Reasoning)
		}
		return b
	})}
}

func (h *Handler) listPrices(w http.ResponseWriter, r *http.Request) error {
	after, limit, err := page(r)
	if err != nil {
		return err
	}
	return h.show(w, http.StatusOK, func(s *authority.State, _ *authority.Snapshot) (any, error) {
		return map[string]any{"prices": each(paged(s.Org(events.Platform).Prices, after, limit), showPrices)}, nil
	})
}

// readPrice reads one version. Cached input and cache writes cost what input does unless they are given.
func readPrice(o *object) (v authority.PriceVersion) {
	for _, name := range []string{"input", "output"} {
		o.required(name, "in US dollars per million tokens: 0 for nothing")
	}
	v.Version = o.text("version", 64)
	if o.required("from", "when it begins, as an RFC 3339 time") {
		v.From = o.instant("from")
	}
	v.Input, v.Output, v.Request = o.money("input", false), o.money("output", false), o.money("request", false)
	v.CachedInput, v.CacheWrite = v.Input, v.Input
	if _, there := o.take("cached_input"); there {
		v.CachedInput = o.money("cached_input", false)
	}
	if _, there := o.take("cache_write"); there {
		v.CacheWrite = o.money("cache_write", false)
	}
	if _, there := o.take("reasoning"); there {
		if v.Reasoning = o.money("reasoning", false); v.Reasoning == 0 {
			o.wrong("reasoning", "must be greater than 0: without it reasoning costs what other output does")
		}
	}
	if v.Version == "" {
		v.Version = v.Price().Name()
	}
	return v
}

// putPrice replaces all versions of a model's price. A version that money was counted at keeps its name and its numbers.
func (h *Handler) putPrice(w http.ResponseWriter, r *http.Request) error {
	p := authority.PriceRecord{Model: r.PathValue("model")}
	err := read(w, r, func(o *object) {
		if !o.required("versions", "every price of the model, by when it begins") {
			return
		}
		seen := map[string]bool{}
		for i, each := range o.list("versions", MaxPrices) {
			e := o.r.object(each, fmt.Sprintf("versions[%d]", i))
			if e == nil {
				continue
			}
			v := readPrice(e)
			if e.end(); seen[v.Version] || seen[v.From.String()] {
				e.r.wrong(e.path, each, "has the version or the beginning of another")
			}
			seen[v.Version], seen[v.From.String()] = true, true
			p.Versions = append(p.Versions, v)
		}
		if len(p.Versions) == 0 && len(o.r.faults) == 0 {
			o.wrong("versions", "must have at least one")
		}
	})
	if err != nil {
		return err
	}
	sort.Slice(p.Versions, func(i, j int) bool { return p.Versions[i].From.Before(p.Versions[j].From) })
	err = h.change(r, operator, func(tx *store.Tx) error {
		if tx.Static.Models[p.Model] == nil {
			return problemf(http.StatusNotFound, "not_found", "there is no model %s", shorten(p.Model))
		}
		if old := tx.State.Org(events.Platform).Prices[p.Model]; old != nil {
			if begun := changedSince(old.Versions, p.Versions, h.config.Now()); begun != "" {
				return invalid("versions", begun, "has begun: a price that has begun stays as it is")
			}
		}
		tx.Put(&p)
		return nil
	})
	if err == nil {
		answer(w, http.StatusOK, showPrices(&p))
	}
	return err
}

// changedSince names a version that has begun and is not among the new ones as it was.
func changedSince(old, now []authority.PriceVersion, at time.Time) string {
	for _, v := range old {
		if !v.From.After(at) && !slices.ContainsFunc(now, func(n authority.PriceVersion) bool {
			return n.From.Equal(v.From) && *n.Price() == *v.Price()
		}) {
			return v.Version
		}
	}
	return ""
}

func (h *Handler) deletePrice(w http.ResponseWriter, r *http.Request) error {
	err := h.change(r, operator, func(tx *store.Tx) error {
		ref := (&authority.PriceRecord{Model: r.PathValue("model")}).Ref()
		if tx.Get(ref) == nil {
			return problemf(http.StatusNotFound, "not_found", "there is no price of this model made through the API")
		}
		tx.Delete(ref)
		return nil
	})
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}
