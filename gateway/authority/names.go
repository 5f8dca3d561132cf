package authority

import (
	"strings"

	"github.com/weirhq/weir/events"
)

// Names are the meters of one subject, made once: naming one costs more than judging it.
type Names struct {
	RPM, RPS, TPM, Concurrency events.Meter
	SpendDay, SpendMonth       events.Meter
	Daily, Balance             events.Meter
}

func newNames(scope events.Scope, subject ...string) Names {
	name := func(dimension string) events.Meter { return events.NewMeter(scope, dimension, subject...) }
	return Names{
		RPM: name("rpm"), RPS: name("rps"), TPM: name("tpm"), Concurrency: name("concurrency"),
		SpendDay: name("spend-day"), SpendMonth: name("spend-month"), Daily: name("daily"), Balance: name("balance"),
	}
}

// Scope is one scope that applies to a key: its limits and its meters. Limits are those that hold for this key: where it has a
// quota of its own on the owner's meter, the lower one.
type Scope struct {
	Scope  events.Scope
	ID     string
	Limits Limits
	Daily  int64 // tokens a UTC day; 0: none
	Names  Names
}

// ModelNames are the meters that belong to a model alone, or to it as an endpoint.
type ModelNames struct {
	Occupancy, Inflight events.Meter
	Endpoint            Names
	Pace                events.Meter
	part                string // the model as one part of a subject, escaped
}

// PoolNames are the meters of a pool.
type PoolNames struct {
	Pool                  *Pool
	Pause                 events.Meter
	RPM, TPM, Concurrency events.Meter
	part                  string
}

// part escapes one part of a subject, as events.NewMeter does.
func part(s string) string {
	m := string(events.NewMeter("", "", s)) // "/<part>/"
	return m[1 : len(m)-1]
}

// pair joins the name of a meter whose subject has two parts, both escaped already.
func pair(scope, a, b, dimension string) events.Meter {
	var s strings.Builder
	s.Grow(len(scope) + len(a) + len(b) + len(dimension) + 3)
	s.WriteString(scope)
	s.WriteByte('/')
	s.WriteString(a)
	s.WriteByte('.')
	s.WriteString(b)
	s.WriteByte('/')
	s.WriteString(dimension)
	return events.Meter(s.String())
}

// KeyModel names a meter of a key and a model: key/K.M/<dimension>.
func KeyModel(k *Key, m *Model, dimension string) events.Meter {
	own := k.part
	if own == "" {
		own = part(k.ID)
	}
	return pair("key", own, m.part(), dimension)
}

func (m *Model) part() string {
	if m.names.part != "" {
		return m.names.part
	}
	return part(m.ID)
}

// OrgModel names a meter of an org and a model: model/O.M/<dimension>.
func OrgModel(org events.Org, m *Model, dimension string) events.Meter {
	return pair("model", string(org), m.part(), dimension) // an org needs no escape
}

// OrgShare names a meter of an org's fair share of a pool: pool/L.O/<dimension>.
func (p *PoolNames) OrgShare(org events.Org, dimension string) events.Meter {
	return pair("pool", p.part, string(org), dimension)
}

// Names gives the meters of a model.
func (m *Model) Names() *ModelNames {
	if m.names.part == "" {
		n := newModelNames(m.ID)
		return &n
	}
	return &m.names
}

func newModelNames(id string) ModelNames {
	return ModelNames{
		Occupancy: events.NewMeter(events.ScopeModel, "occupancy", id),
		Inflight:  events.NewMeter(events.ScopeModel, "inflight", id),
		Endpoint:  newNames(events.ScopeEndpoint, id),
		Pace:      events.NewMeter(events.ScopeEndpoint, "pace", id),
		part:      part(id),
	}
}

func newPoolNames(p *Pool) PoolNames {
	name := func(dimension string) events.Meter { return events.NewMeter(events.ScopePool, dimension, p.ID) }
	return PoolNames{Pool: p, Pause: name("pause"), RPM: name("rpm"), TPM: name("tpm"), Concurrency: name("concurrency"), part: part(p.ID)}
}

// Chain is a pool and each pool above it, with their meters. It is empty for an unknown pool.
func (s *Snapshot) Chain(pool string) []PoolNames {
	p := s.Pools[pool]
	if p == nil {
		return nil
	}
	if p.chain != nil {
		return p.chain
	}
	return s.chain(p)
}

func (s *Snapshot) chain(p *Pool) []PoolNames {
	var chain []PoolNames
	for ; p != nil && len(chain) < MaxPoolDepth; p = s.Pools[p.Parent] {
		chain = append(chain, newPoolNames(p))
	}
	return chain
}

// Scopes lists what applies to a key, outermost first: platform, org, workspace, principal, key. The last is the key itself.
// Scopes without limits are listed too.
func (s *Snapshot) Scopes(k *Key) []Scope {
	if k.scopes != nil {
		return k.scopes
	}
	return s.scopes(k)
}

// Balance names the meter of a key's org's prepaid money.
func (s *Snapshot) Balance(k *Key) events.Meter {
	if k.money != "" {
		return k.money
	}
	return events.NewMeter(events.ScopeOrg, "balance", string(k.Org))
}

func (s *Snapshot) scopes(k *Key) []Scope {
	list := make([]Scope, 0, 5)
	if s.platform != nil {
		list = append(list, *s.platform)
	} else {
		list = append(list, s.newPlatform())
	}
	org := Scope{Scope: events.ScopeOrg, ID: string(k.Org)}
	if o := s.Orgs[k.Org]; o != nil {
		org.Limits, org.Daily, org.Names = o.Limits, o.Daily, o.names
	}
	if org.Names.RPM == "" {
		org.Names = newNames(events.ScopeOrg, string(k.Org))
	}
	org.Limits.RPM = Strictest(org.Limits.RPM, k.Quota.RequestsPerMinute)
	org.Daily = Strictest(org.Daily, k.Quota.TokensPerDay)
	list = append(list, org)
	if l := s.Workspaces[k.Workspace]; l != nil && k.Workspace != "" {
		list = append(list, Scope{Scope: events.ScopeWorkspace, ID: k.Workspace, Limits: *l, Names: newNames(events.ScopeWorkspace, k.Workspace)})
	}
	if l := s.Principals[k.Principal]; l != nil && k.Principal != "" {
		list = append(list, Scope{Scope: events.ScopePrincipal, ID: k.Principal, Limits: *l, Names: newNames(events.ScopePrincipal, k.Principal)})
	}
	return append(list, Scope{Scope: events.ScopeKey, ID: k.ID, Limits: k.Limits, Daily: k.Daily, Names: newNames(events.ScopeKey, k.ID)})
}

func (s *Snapshot) newPlatform() Scope {
	return Scope{Scope: events.ScopePlatform, ID: string(events.Platform), Limits: s.Platform, Names: newNames(events.ScopePlatform, string(events.Platform))}
}

// Strictest is the lower of two limits, where 0 is none.
func Strictest(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// Seal names all meters, once, before the snapshot is used. It is part of making one: nothing may change afterwards. A snapshot
// that was not sealed works and is slower.
func (s *Snapshot) Seal() *Snapshot {
	platform := s.newPlatform()
	s.platform = &platform
	for _, o := range s.Orgs {
		o.names = newNames(events.ScopeOrg, string(o.ID))
	}
	for _, m := range s.Models {
		m.names = newModelNames(m.ID)
	}
	for _, p := range s.Pools {
		p.chain = s.chain(p)
	}
	for _, k := range s.Keys {
		s.seal(k)
	}
	if s.Anonymous != nil {
		s.seal(s.Anonymous)
	}
	return s
}

func (s *Snapshot) seal(k *Key) {
	k.scopes = s.scopes(k)
	k.money, k.part = k.scopes[1].Names.Balance, part(k.ID)
}
