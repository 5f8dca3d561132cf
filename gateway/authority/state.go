package authority

import (
	"github.com/weirhq/weir/events"
)

// State is all dynamic authority at one moment, as records, with what must be unique found at once. One goroutine at a time may
// change it; the records in it are never changed.
type State struct {
	orgs     map[events.Org]*OrgState
	owners   map[Ref]events.Org // of ids that must be unique among orgs: Ref.Org is empty
	hashes   map[Hash]*KeyRecord
	emails   map[string]*UserRecord
	registry *RegistryRecord
	keys     int
}

// OrgState are the records of one org. The maps are read only.
type OrgState struct {
	Record      *OrgRecord // nil: the API knows nothing of the org itself
	Workspaces  map[string]*ScopeRecord
	Principals  map[string]*ScopeRecord
	Keys        map[string]*KeyRecord
	Limits      map[Ref]*LimitRecord
	Pools       map[string]*PoolRecord
	Connections map[string]*ConnectionRecord
	Prices      map[string]*PriceRecord // of the platform, by model
	Users       map[string]*UserRecord
	Credits     map[string]*CreditRecord // by reference
}

// NewState makes an empty state.
func NewState() *State {
	return &State{orgs: map[events.Org]*OrgState{}, owners: map[Ref]events.Org{}, hashes: map[Hash]*KeyRecord{}, emails: map[string]*UserRecord{}}
}

var noOrg = &OrgState{}

// Org gives an org's records: none for an org that there is not.
func (s *State) Org(org events.Org) *OrgState {
	if o := s.orgs[org]; o != nil {
		return o
	}
	return noOrg
}

// Orgs lists the orgs that have records, in no order.
func (s *State) Orgs() map[events.Org]*OrgState { return s.orgs }

// Keys counts the keys of all orgs.
func (s *State) Keys() int { return s.keys }

// Version is the version of an org's dynamic authority: 0 if it was never changed.
func (s *State) Version(org events.Org) int64 {
	if r := s.Org(org).Record; r != nil {
		return r.Version
	}
	return 0
}

// Owner says whose the workspace, principal, key, pool or connection of an id is: these ids are of one org.
func (s *State) Owner(kind Kind, id string) (org events.Org, known bool) {
	org, known = s.owners[Ref{"", kind, id}]
	return org, known
}

// KeyOf finds a key by its id; nil if there is none.
func (s *State) KeyOf(id string) *KeyRecord {
	org, known := s.Owner(KindKey, id)
	if !known {
		return nil
	}
	return s.Org(org).Keys[id]
}

// KeyByHash finds a key by its hash; nil if there is none.
func (s *State) KeyByHash(h Hash) *KeyRecord { return s.hashes[h] }

// UserByEmail finds a user; nil if there is none.
func (s *State) UserByEmail(email string) *UserRecord { return s.emails[email] }

// Registry is the version of the registry of keys; empty before the first.
func (s *State) Registry() string {
	if s.registry == nil {
		return ""
	}
	return s.registry.Version
}

// Get finds a record; nil if there is none.
func (s *State) Get(ref Ref) Record {
	o := s.Org(ref.Org)
	switch ref.Kind {
	case KindOrg:
		return found(o.Record)
	case KindWorkspace:
		return found(o.Workspaces[ref.ID])
	case KindPrincipal:
		return found(o.Principals[ref.ID])
	case KindKey:
		return found(o.Keys[ref.ID])
	case KindLimit:
		return found(o.Limits[ref])
	case KindPool:
		return found(o.Pools[ref.ID])
	case KindConnection:
		return found(o.Connections[ref.ID])
	case KindPrice:
		return found(o.Prices[ref.ID])
	case KindUser:
		return found(o.Users[ref.ID])
	case KindCredit:
		return found(o.Credits[ref.ID])
	case KindRegistry:
		return found(s.registry)
	}
	return nil
}

// found makes an absent record a nil interface.
func found[T any, P interface {
	*T
	Record
}](r P) Record {
	if r == nil {
		return nil
	}
	return r
}

// unique are the kinds whose ids are of one org.
var unique = map[Kind]bool{KindWorkspace: true, KindPrincipal: true, KindKey: true, KindPool: true, KindConnection: true}

// Put takes a record in, in place of the one with its name.
func (s *State) Put(r Record) {
	ref := r.Ref()
	s.Remove(ref)
	o := s.orgs[ref.Org]
	if o == nil {
		o = &OrgState{}
		s.orgs[ref.Org] = o
	}
	if unique[ref.Kind] {
		s.owners[Ref{"", ref.Kind, ref.ID}] = ref.Org
	}
	switch r := r.(type) {
	case *OrgRecord:
		o.Record = r
	case *ScopeRecord:
		if ref.Kind == KindWorkspace {
			put(&o.Workspaces, ref.ID, r)
		} else {
			put(&o.Principals, ref.ID, r)
		}
	case *KeyRecord:
		put(&o.Keys, ref.ID, r)
		s.hashes[r.Hash] = r
		s.keys++
	case *LimitRecord:
		put(&o.Limits, ref, r)
	case *PoolRecord:
		put(&o.Pools, ref.ID, r)
	case *ConnectionRecord:
		put(&o.Connections, ref.ID, r)
	case *PriceRecord:
		put(&o.Prices, ref.ID, r)
	case *UserRecord:
		put(&o.Users, ref.ID, r)
		s.emails[r.Email] = r
	case *CreditRecord:
		put(&o.Credits, ref.ID, r)
	case *RegistryRecord:
		s.registry = r
	}
}

func put[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[k] = v
}

// Remove takes a record out. It gives the record; nil if there was none.
func (s *State) Remove(ref Ref) Record {
	old := s.Get(ref)
	if old == nil {
		return nil
	}
	o := s.orgs[ref.Org]
	if owner := (Ref{"", ref.Kind, ref.ID}); s.owners[owner] == ref.Org {
		delete(s.owners, owner)
	}
	switch r := old.(type) {
	case *OrgRecord:
		o.Record = nil
	case *ScopeRecord:
		if ref.Kind == KindWorkspace {
			delete(o.Workspaces, ref.ID)
		} else {
			delete(o.Principals, ref.ID)
		}
	case *KeyRecord:
		delete(o.Keys, ref.ID)
		s.keys--
		if s.hashes[r.Hash] == r {
			delete(s.hashes, r.Hash)
		}
	case *LimitRecord:
		delete(o.Limits, ref)
	case *PoolRecord:
		delete(o.Pools, ref.ID)
	case *ConnectionRecord:
		delete(o.Connections, ref.ID)
	case *PriceRecord:
		delete(o.Prices, ref.ID)
	case *UserRecord:
		delete(o.Users, ref.ID)
		if s.emails[r.Email] == r {
			delete(s.emails, r.Email)
		}
	case *CreditRecord:
		delete(o.Credits, ref.ID)
	case *RegistryRecord:
		s.registry = nil
	}
	return old
}

// Refs names all records of the org, in no order.
func (o *OrgState) Refs() (all []Ref) {
	if o.Record != nil {
		all = append(all, o.Record.Ref())
	}
	all = refs(all, o.Workspaces)
	all = refs(all, o.Principals)
	all = refs(all, o.Keys)
	all = refs(all, o.Limits)
	all = refs(all, o.Pools)
	all = refs(all, o.Connections)
	all = refs(all, o.Prices)
	all = refs(all, o.Users)
	return refs(all, o.Credits)
}

func refs[K comparable, R Record](all []Ref, records map[K]R) []Ref {
	for _, r := range records {
		all = append(all, r.Ref())
	}
	return all
}
