package console

import (
	"net/http"
	"net/url"
	"strconv"
)

// pool is a provider pool as the API has it.
type pool struct {
	ID          string  `json:"id"`
	Provider    string  `json:"provider"`
	RPM         int64   `json:"rpm"`
	TPM         int64   `json:"tpm"`
	Concurrency int64   `json:"concurrency"`
	Headroom    int64   `json:"headroom_percent"`
	Parent      *string `json:"parent_pool_id"`
	Usable      struct {
		RPM         int64 `json:"rpm"`
		TPM         int64 `json:"tpm"`
		Concurrency int64 `json:"concurrency"`
	} `json:"usable"`
	Connections []string `json:"connection_ids"`
	CreatedAt   string   `json:"created_at"`
}

// connection is a provider account as the API has it.
type connection struct {
	ID       string  `json:"id"`
	Provider string  `json:"provider"`
	Name     string  `json:"name"`
	Pool     *string `json:"pool"`
	Declared bool    `json:"declared"`
}

// Title names the connection for reading.
func (c *connection) Title() string {
	if c.Name != "" {
		return c.Name
	}
	return c.ID
}

// PoolID is the pool that it is assigned to; empty: none.
func (c *connection) PoolID() string {
	if c.Pool == nil {
		return ""
	}
	return *c.Pool
}

// pools registers the pages of pools.
func (h *Handler) pools() {
	h.page("GET /pools/new", h.newPool)
	h.page("POST /pools/new", h.createPool)
	h.page("GET /pools/{id}", h.showPool)
	h.page("POST /pools/{id}", h.replacePool)
	h.page("POST /pools/{id}/bind", h.bind)
}

// capacity reads the org's pools and connections.
func (h *Handler) capacity(r *http.Request) ([]pool, []connection, error) {
	var p struct {
		Pools []pool `json:"pools"`
	}
	if err := h.get(r, "/api/quota-pools", &p); err != nil {
		return nil, nil, err
	}
	var c struct {
		Connections []connection `json:"connections"`
	}
	err := h.get(r, "/api/connections", &c)
	return p.Pools, c.Connections, err
}

// poolPage is the form of a pool, with the connections that may be assigned to it.
type poolPage struct {
	Of          *pool // nil: it is to be made
	Form        *form
	Write       bool
	Connections []connection // of its provider
	Others      bool         // there are connections of other providers
}

// providers are whose accounts a pool of an org may be of.
var providers = []option{{Value: "openai", Label: "OpenAI"}, {Value: "anthropic", Label: "Anthropic"}, {Value: "azure", Label: "Azure"}, {Value: "bedrock", Label: "Bedrock"}}

// poolForm is the form of a pool among others.
func poolForm(of *pool, all []pool) *form {
	f := &form{Action: root + "/pools/new", Submit: "Create the pool", Back: root + "/limits"}
	value := map[string]string{"headroom_percent": "90"}
	var parents = []option{{Value: "", Label: "None"}}
	if of != nil {
		f.Action, f.Submit = root+"/pools/"+url.PathEscape(of.ID), "Save"
		for name, n := range map[string]int64{"rpm": of.RPM, "tpm": of.TPM, "concurrency": of.Concurrency, "headroom_percent": of.Headroom} {
			value[name] = strconv.FormatInt(n, 10)
		}
		if of.Parent != nil {
			value["parent_pool_id"] = *of.Parent
		}
		f.Hidden = map[string]string{"provider": of.Provider}
	} else {
		f.Fields = append(f.Fields, field{Name: "provider", Label: "Provider", Options: append([]option(nil), providers...), Hint: "Whose account it is. It cannot be changed later."})
	}
	for _, p := range all {
		if of == nil || p.ID != of.ID && p.Provider == of.Provider {
			parents = append(parents, option{Value: p.ID, Label: p.Provider + " " + short(p.ID) + " (" + count(p.RPM) + " requests a minute)"})
		}
	}
	f.Fields = append(f.Fields,
		field{Name: "rpm", Label: "Requests a minute", Type: "number", Value: value["rpm"], Required: true, Hint: "As the provider grants them to the account."},
		field{Name: "tpm", Label: "Tokens a minute", Type: "number", Value: value["tpm"], Required: true},
		field{Name: "concurrency", Label: "Requests at once", Type: "number", Value: value["concurrency"], Required: true},
		field{Name: "headroom_percent", Label: "Usable part", Type: "number", Value: value["headroom_percent"], Unit: "%", Hint: "1 to 100. The rest is left for use outside the gateway; what is usable rounds down."},
		field{Name: "parent_pool_id", Label: "Parent pool", Options: choose(parents, value["parent_pool_id"]), Hint: "Of the same provider. At most four levels; a request is counted in each."})
	return f
}

// assignable offers the connections that the new pool may be of.
func assignable(f *form, all []connection) {
	options := []option{{Value: "", Label: "None"}}
	for _, c := range all {
		if !c.Declared {
			options = append(options, option{Value: c.ID, Label: c.Provider + " " + c.Title()})
		}
	}
	if len(options) > 1 {
		f.Fields = append(f.Fields, field{Name: "connection_id", Label: "Connection", Options: options,
			Hint: "Of the same provider: it is assigned to the pool at once. Requests through a connection without a pool are refused."})
	}
}

// poolBody makes the API's body of a pool's form.
func poolBody(v url.Values) map[string]any {
	return map[string]any{"provider": optional(v.Get("provider")), "rpm": number(v.Get("rpm")), "tpm": number(v.Get("tpm")), "concurrency": number(v.Get("concurrency")),
		"headroom_percent": number(v.Get("headroom_percent")), "parent_pool_id": optional(v.Get("parent_pool_id"))}
}

func (h *Handler) newPool(w http.ResponseWriter, r *http.Request, who *me) error {
	all, connections, err := h.capacity(r)
	if err != nil {
		return err
	}
	f := poolForm(nil, all)
	assignable(f, connections)
	return h.showPoolForm(w, http.StatusOK, who, &poolPage{Form: f, Write: who.Writes()}, "")
}

func (h *Handler) showPoolForm(w http.ResponseWriter, status int, who *me, p *poolPage, notice string) error {
	title := "New provider pool"
	if p.Of != nil {
		title = "Provider pool " + short(p.Of.ID)
	}
	return h.show(w, status, "pool", &page{Title: title, Section: "limits", Me: who, Notice: notice, Data: p})
}

// createPool makes a pool, as POST /api/quota-pools does.
func (h *Handler) createPool(w http.ResponseWriter, r *http.Request, who *me) error {
	if err := r.ParseForm(); err != nil {
		return err
	}
	body := poolBody(r.PostForm)
	body["connection_id"] = optional(r.PostForm.Get("connection_id"))
	out, err := h.call(r, http.MethodPost, "/api/quota-pools", body)
	if err != nil {
		return h.again(w, r, who, nil, err)
	}
	var made pool
	if err := read(out, &made); err != nil {
		return err
	}
	return h.to(w, r, root+"/pools/"+url.PathEscape(made.ID)+"?done=made")
}

// again shows a form with what was typed and what is wrong with it.
func (h *Handler) again(w http.ResponseWriter, r *http.Request, who *me, of *pool, err error) error {
	all, connections, missing := h.capacity(r)
	if missing != nil {
		return err
	}
	f := poolForm(of, all)
	if of == nil {
		assignable(f, connections)
	}
	for i := range f.Fields {
		f.Fields[i].Value = r.PostForm.Get(f.Fields[i].Name)
		choose(f.Fields[i].Options, f.Fields[i].Value)
	}
	if err := f.refuse(err); err != nil {
		return err
	}
	p := &poolPage{Of: of, Form: f, Write: who.Writes()}
	p.connections(connections)
	return h.showPoolForm(w, http.StatusBadRequest, who, p, "")
}

// Here says whether a connection is assigned to the pool.
func (p *poolPage) Here(c connection) bool { return p.Of != nil && c.PoolID() == p.Of.ID }

// connections takes those that may be assigned to the pool.
func (p *poolPage) connections(all []connection) {
	if p.Of == nil {
		return
	}
	for _, c := range all {
		if c.Provider == p.Of.Provider {
			p.Connections = append(p.Connections, c)
		} else {
			p.Others = true
		}
	}
}

// onePool reads a pool.
func (h *Handler) onePool(r *http.Request) (*pool, error) {
	var p pool
	err := h.get(r, "/api/quota-pools/"+url.PathEscape(r.PathValue("id")), &p)
	return &p, err
}

func (h *Handler) showPool(w http.ResponseWriter, r *http.Request, who *me) error {
	of, err := h.onePool(r)
	if err != nil {
		return err
	}
	all, connections, err := h.capacity(r)
	if err != nil {
		return err
	}
	p := &poolPage{Of: of, Form: poolForm(of, all), Write: who.Writes()}
	p.connections(connections)
	return h.showPoolForm(w, http.StatusOK, who, p, done(r.URL.Query().Get("done")))
}

// replacePool replaces a pool's limits and parent, as POST /api/quota-pools/{id} does.
func (h *Handler) replacePool(w http.ResponseWriter, r *http.Request, who *me) error {
	if err := r.ParseForm(); err != nil {
		return err
	}
	id := url.PathEscape(r.PathValue("id"))
	if _, err := h.call(r, http.MethodPost, "/api/quota-pools/"+id, poolBody(r.PostForm)); err != nil {
		of, missing := h.onePool(r)
		if missing != nil {
			return err
		}
		return h.again(w, r, who, of, err)
	}
	return h.to(w, r, root+"/pools/"+id+"?done=pool")
}

// bind assigns a connection to a pool, as POST /api/quota-pools/{id}/bind does.
func (h *Handler) bind(w http.ResponseWriter, r *http.Request, _ *me) error {
	if err := r.ParseForm(); err != nil {
		return err
	}
	id := url.PathEscape(r.PathValue("id"))
	if _, err := h.call(r, http.MethodPost, "/api/quota-pools/"+id+"/bind", map[string]any{"connection_id": optional(r.PostForm.Get("connection_id"))}); err != nil {
		return err
	}
	return h.to(w, r, root+"/pools/"+id+"?done=bound")
}
