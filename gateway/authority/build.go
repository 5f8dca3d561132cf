package authority

import (
	"cmp"
	"fmt"
	"sort"
	"strings"

	"github.com/weirhq/weir/events"
)

// builder makes a snapshot of its parts and notes what does not fit together.
type builder struct {
	s        *Snapshot
	faults   Faults
	warnings []Warning
	used     map[string]events.Org // by workspace or principal: whose it is
	declared map[events.Org]bool   // orgs of weir.yaml
}

// Build makes a snapshot of what the files declare. The error is Faults: every rule between the files that is broken. The
// snapshot is sealed; its Fences are empty and its LoadedAt is zero.
func Build(d *Declared, auth *Auth, policies *Policies) (*Snapshot, []Warning, error) {
	b := &builder{used: map[string]events.Org{}, declared: map[events.Org]bool{}, s: &Snapshot{
		Mode: auth.Mode, Platform: d.Platform, Defaults: d.Defaults, BYOKFee: d.BYOKFee,
		Keys: map[[32]byte]*Key{}, Orgs: map[events.Org]*Org{}, Workspaces: map[string]*Limits{}, Principals: map[string]*Limits{},
		Models: map[string]*Model{}, Connections: map[string]*Connection{}, Pools: map[string]*Pool{}, Fences: map[events.Org]int64{},
	}}
	b.warnings = append(append(b.warnings, auth.Warnings...), policies.Warnings...)
	b.orgs(d)
	b.pools(d)
	b.connections(d)
	b.models(d, policies)
	b.keys(auth)
	b.serverless(auth)
	b.prices()
	if auth.Mode == ModeDynamic && d.AdminKeys == 0 {
		b.warn(Pos{File: auth.File}, "api.mode", "dynamic: without an admin key nobody can make keys")
	}
	if auth.Mode == ModeNone && d.Reachable {
		b.warn(Pos{File: cmp.Or(auth.File, "auth.yaml")}, "api.mode", "none: whoever can reach this address may use every model, without a key")
	}
	if err := b.faults.Err(); err != nil {
		return nil, b.warnings, err
	}
	return b.s.Seal(), b.warnings, nil
}

func (b *builder) wrong(at Pos, field, value, rule string, args ...any) {
	b.faults.Add(Fault{Pos: at, Field: field, Value: value, Rule: fmt.Sprintf(rule, args...)})
}

func (b *builder) warn(at Pos, field, rule string, args ...any) {
	b.warnings = append(b.warnings, Warning{Pos: at, Field: field, Rule: fmt.Sprintf(rule, args...)})
}

// orgs takes the orgs of weir.yaml.
func (b *builder) orgs(d *Declared) {
	for i := range d.Orgs {
		o := &d.Orgs[i]
		id := OrgOf(o.Name)
		if other := b.s.Orgs[id]; other != nil {
			b.wrong(o.At, "orgs", o.Name, "is the same org as another one")
			continue
		}
		b.declared[id] = true
		b.s.Orgs[id] = &Org{ID: id, Name: ownerName(o.Name, id), Billing: o.Billing, Limits: o.Limits, Daily: o.Daily, Models: o.Models}
		b.scopes(b.s.Workspaces, "workspaces", id, o.At, o.Workspaces)
		b.scopes(b.s.Principals, "principals", id, o.At, o.Principals)
	}
}

func (b *builder) scopes(into map[string]*Limits, kind string, org events.Org, at Pos, limits map[string]Limits) {
	for id, l := range limits {
		if b.belongs(kind, id, org, at) {
			l := l
			into[id] = &l
		}
	}
}

// belongs notes whose a workspace or principal is: two orgs sharing one would share its meters.
func (b *builder) belongs(kind, id string, org events.Org, at Pos) bool {
	owner, known := b.used[kind+"/"+id]
	if known && owner != org {
		b.wrong(at, kind, id, "belongs to org %s already: it must be of one org", owner)
		return false
	}
	b.used[kind+"/"+id] = org
	return true
}

// keys takes the keys of auth.yaml; an owner that weir.yaml does not know is a postpaid org without limits of its own.
func (b *builder) keys(a *Auth) {
	if a.Mode == ModeNone {
		k := anonymous()
		b.s.Anonymous = k
		b.owner(k, "")
		return
	}
	ids := map[string]Pos{}
	first := map[events.Org]*Key{}
	for i := range a.Keys {
		k := *a.Keys[i].Key
		if at, twice := ids[k.ID]; twice {
			b.wrong(k.At, "key_hash", "", "begins like the one at %s: the keys' ids would be the same", at)
			continue
		}
		ids[k.ID] = k.At
		b.owner(&k, a.Keys[i].Owner)
		if k.Workspace != "" {
			b.belongs("workspaces", k.Workspace, k.Org, k.At)
		}
		if k.Principal != "" {
			b.belongs("principals", k.Principal, k.Org, k.At)
		}
		for id := range k.Quota.PerModel {
			b.mustKnow(&k, id, "quota.per_model")
		}
		for id := range k.Models {
			b.mustKnow(&k, id, "models")
		}
		if other := first[k.Org]; other == nil {
			first[k.Org] = &k
		} else if other.Quota.RequestsPerMinute != k.Quota.RequestsPerMinute || other.Quota.TokensPerDay != k.Quota.TokensPerDay {
			b.warn(k.At, "quota", "differs from that of the key at %s, which has the same owner and so the same meters", other.At)
		}
		b.s.Keys[a.Keys[i].Hash] = &k
	}
}

// owner makes the org of a key's owner, or finds it. weir.yaml may name it by its owner or by its id.
func (b *builder) owner(k *Key, owner string) {
	org := b.s.Orgs[k.Org]
	switch {
	case org == nil:
		b.s.Orgs[k.Org] = &Org{ID: k.Org, Name: ownerName(owner, k.Org), Billing: Postpaid}
	case owner == "" || org.Name == ownerName(owner, k.Org):
	case org.Name == "" && b.declared[k.Org]:
		org.Name = owner
	default:
		b.wrong(k.At, "metadata.owner", owner, "has the same org id, %s, as another owner: choose another name", k.Org)
	}
}

func (b *builder) mustKnow(k *Key, model, field string) {
	if b.s.Models[model] == nil {
		b.warn(k.At, field, "names the model %s, which is not configured", model)
	}
}

// pools takes the pools, with their headroom taken off.
func (b *builder) pools(d *Declared) {
	for i := range d.Pools {
		p := &d.Pools[i]
		if b.s.Pools[p.ID] != nil {
			b.wrong(p.At, "pools", p.ID, "stands twice: an id may stand once")
			continue
		}
		if p.Org != "" && !contains(customerProviders, p.Provider) {
			b.wrong(p.At, fmt.Sprintf("pools[%d].provider", i), p.Provider, "must be one of %s for a pool of an org", strings.Join(customerProviders, ", "))
		}
		share := p.FairShare
		switch {
		case p.Org != "":
			share = 0
		case share == 0:
			share = shareOf(p.Provider)
		}
		b.s.Pools[p.ID] = &Pool{
			ID: p.ID, Org: p.Org, Provider: p.Provider, Parent: p.Parent, FairShare: share, At: p.At,
			RPM: Usable(p.RPM, p.HeadroomPercent), TPM: Usable(p.TPM, p.HeadroomPercent), Concurrency: Usable(p.Concurrency, p.HeadroomPercent),
		}
	}
	for i := range d.Pools {
		if p := &d.Pools[i]; p.Parent != "" && b.s.Pools[p.ID].At == p.At {
			b.parents(p, i)
		}
	}
}

// CheckParents says which rule the pools above p break: "" if none.
func CheckParents(pools map[string]*Pool, p *Pool) string {
	depth := 1
	for at := p; at.Parent != ""; depth++ {
		above := pools[at.Parent]
		switch {
		case above == nil:
			return fmt.Sprintf("there is no pool %s", at.Parent)
		case above.Org != p.Org:
			return fmt.Sprintf("the pool %s is of another org", above.ID)
		case above.Provider != p.Provider:
			return fmt.Sprintf("the pool %s is of provider %s: a parent must have the same", above.ID, above.Provider)
		case above == p || depth > len(pools):
			return fmt.Sprintf("the pool %s is above itself", above.ID)
		}
		at = above
	}
	if depth > MaxPoolDepth {
		return fmt.Sprintf("pools nest at most %d levels, the leaf included: this one would be on level %d", MaxPoolDepth, depth)
	}
	return ""
}

func (b *builder) parents(p *DeclaredPool, i int) {
	if rule := CheckParents(b.s.Pools, b.s.Pools[p.ID]); rule != "" {
		b.wrong(p.At, fmt.Sprintf("pools[%d].parent", i), p.Parent, "%s", rule)
	}
}

func (b *builder) connections(d *Declared) {
	for i, c := range d.Connections {
		if b.s.Connections[c.ID] != nil {
			b.wrong(c.At, "connections", c.ID, "stands twice: an id may stand once")
			continue
		}
		b.s.Connections[c.ID] = c
		switch {
		case c.Pool != "":
			b.binding(c, c.Pool, c.At, fmt.Sprintf("connections[%d].pool", i))
		case c.Org != "" && !c.HouseFallback:
			b.warn(c.At, "connections", "%s has no pool: the requests of %s to %s are refused, 503 capacity_unknown", c.ID, c.Org, c.Provider)
		}
	}
}

// binding checks that a pool fits a connection.
func (b *builder) binding(c *Connection, pool string, at Pos, field string) {
	p := b.s.Pools[pool]
	switch {
	case p == nil:
		b.wrong(at, field, pool, "there is no such pool")
	case p.Provider != c.Provider:
		b.wrong(at, field, pool, "is a pool of provider %s: the connection %s is of %s", p.Provider, c.ID, c.Provider)
	case p.Org != c.Org:
		b.wrong(at, field, pool, "belongs to another org than the connection %s", c.ID)
	}
}

// models takes the models and gives each its policy.
func (b *builder) models(d *Declared, policies *Policies) {
	for i, declared := range d.Models {
		m := *declared
		if b.s.Models[m.ID] != nil {
			b.wrong(m.At, "models", m.ID, "stands twice: an id may stand once")
			continue
		}
		m.Policy = policies.For(m.ID)
		b.s.Models[m.ID] = &m
		if m.Local == nil && len(m.Providers) == 0 {
			b.wrong(m.At, "models", m.ID, "must have local replicas or providers")
		}
		if m.Local != nil && m.Local.Pool != "" && b.s.Pools[m.Local.Pool] == nil {
			b.wrong(m.At, fmt.Sprintf("models[%d].local.pool", i), m.Local.Pool, "there is no such pool")
		}
		for j, r := range m.Providers {
			b.route(&m, r, fmt.Sprintf("models[%d].providers[%d]", i, j))
		}
		b.fallback(&m)
	}
	for _, id := range sorted(policies.Lines) {
		if b.s.Models[id] == nil {
			b.warn(policies.Lines[id], "models", "names the model %s, which is not configured", id)
		}
	}
}

func sorted[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// route checks a model's route; at is its path.
func (b *builder) route(m *Model, r Route, at string) {
	c := b.s.Connections[r.Connection]
	if c == nil {
		b.wrong(m.At, at+".connection", r.Connection, "there is no such connection")
		return
	}
	switch {
	case r.Pool != "":
		b.binding(c, r.Pool, m.At, at+".pool")
	case c.Pool == "":
		b.warn(m.At, "providers", "the route of %s to %s has no pool: it is refused, 503 capacity_unknown", m.ID, c.ID)
	}
}

// fallback finds the connection for a policy's provider: the model's own route to it, or the house's first.
func (b *builder) fallback(m *Model) {
	f := m.Policy.FallbackProvider
	if f == nil {
		return
	}
	found := *f
	m.Policy.FallbackProvider = &found
	for _, r := range m.Providers {
		if c := b.s.Connections[r.Connection]; c != nil && c.Provider == f.Engine && c.Org == "" {
			found.Connection = c.ID
			return // the route was warned of if it has no pool
		}
	}
	for _, id := range sorted(b.s.Connections) {
		if c := b.s.Connections[id]; c.Provider == f.Engine && c.Org == "" {
			if found.Connection = id; c.Pool == "" {
				b.warn(Pos{File: m.Policy.File}, "fallback_provider", "the route of %s to %s has no pool: it is refused, 503 capacity_unknown", m.ID, id)
			}
			return
		}
	}
	b.warn(Pos{File: m.Policy.File}, "fallback_provider.engine", "there is no connection of provider %s: %s does not fall back to it", f.Engine, m.ID)
}

// serverless checks that each key can send the largest input of each serverless model that it reaches within a minute.
func (b *builder) serverless(a *Auth) {
	var serverless []*Model
	for _, id := range sorted(b.s.Models) {
		if m := b.s.Models[id]; m.Policy.Serverless && m.Policy.MaxInputTokens > 0 {
			serverless = append(serverless, m)
		}
	}
	for i := range a.Keys {
		k := a.Keys[i].Key
		if rule := CheckServerless(k, serverless); rule != "" {
			b.wrong(k.At, "quota.input_tokens_per_minute", fmt.Sprint(k.Quota.InputTokensPerMinute), "%s", rule)
		}
	}
}

// CheckServerless says which rule a key's quota breaks with the models that it may ask for: "" if none. A minute's input tokens
// must hold the largest input of every serverless model.
func CheckServerless(k *Key, models []*Model) string {
	itpm := k.Quota.InputTokensPerMinute
	if itpm == 0 {
		return ""
	}
	for _, m := range models {
		if m.Policy.Serverless && k.May(m.ID) && itpm < m.Policy.MaxInputTokens {
			return fmt.Sprintf("must be at least %d, the max_input_tokens of the serverless model %s", m.Policy.MaxInputTokens, m.ID)
		}
	}
	return ""
}

// CheckKeys says which of keys made through the API break a rule with a snapshot's serverless models. The error is Faults.
func CheckKeys(s *Snapshot, keys []*Key) error {
	var models []*Model
	for _, id := range sorted(s.Models) {
		if m := s.Models[id]; m.Policy.Serverless {
			models = append(models, m)
		}
	}
	var faults Faults
	for _, k := range keys {
		if rule := CheckServerless(k, models); rule != "" {
			faults.Add(Fault{Field: "input_tokens_per_minute of the key " + k.ID, Value: fmt.Sprint(k.Quota.InputTokensPerMinute), Rule: rule})
		}
	}
	return faults.Err()
}

// prices warns of models that orgs which pay in advance cannot use.
func (b *builder) prices() {
	for _, id := range sorted(b.s.Models) {
		if m := b.s.Models[id]; m.Price == nil && len(m.Prices) == 0 {
			b.warn(m.At, "models", "%s has no price: it costs nothing, and prepaid orgs are refused it", id)
		}
	}
}
