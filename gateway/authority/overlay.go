package authority

import (
	"maps"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/wire"
)

// Change is one record that is put, or with a nil Record taken away.
type Change struct {
	Ref    Ref
	Record Record
}

// Overlay lays dynamic authority over that of the files and makes snapshots of both. What did not change since the last snapshot is
// shared with it: a changed key costs the key, a changed limit the keys of its org. One goroutine at a time may use it.
type Overlay struct {
	static   *Snapshot
	state    *State
	open     func(*ConnectionRecord) func() string
	current  *Snapshot
	built    map[events.Org]*builtOrg
	files    map[events.Org][]Hash // keys of the files, by org
	dirty    map[events.Org]*dirt
	all      bool
	platform bool
	next     time.Time // when a price begins
}

// builtOrg is what the current snapshot has of an org's records.
type builtOrg struct {
	above       aboveKeys
	limits      Limits // of the org
	daily       int64
	workspaces  map[string]Limits
	principals  map[string]Limits
	keys        map[string]Hash
	pools       []string
	connections []string
}

// aboveKeys is what the limits of an org's keys depend on, beside the keys and the scopes above them.
type aboveKeys struct {
	contract           LimitSet
	made, hold, exists bool
}

// dirt is what changed of an org since the current snapshot.
type dirt struct {
	keys        map[string]bool
	pools       bool
	connections bool
}

// NewOverlay makes an overlay over a sealed snapshot of the files. open gives what tells the credential of a connection at the moment
// of a call, or nil if it cannot be opened; nil: connections have none.
func NewOverlay(static *Snapshot, open func(*ConnectionRecord) func() string) *Overlay {
	if open == nil {
		open = func(*ConnectionRecord) func() string { return func() string { return "" } }
	}
	o := &Overlay{state: NewState(), open: open}
	o.SetStatic(static)
	return o
}

// State are the records as they are. It must not be changed but by Apply.
func (o *Overlay) State() *State { return o.state }

// Static is the authority of the files.
func (o *Overlay) Static() *Snapshot { return o.static }

// SetStatic takes another snapshot of the files into use.
func (o *Overlay) SetStatic(s *Snapshot) {
	o.static, o.all = s, true
	o.files = map[events.Org][]Hash{}
	for hash, k := range s.Keys {
		o.files[k.Org] = append(o.files[k.Org], hash)
	}
}

// Reset forgets all records.
func (o *Overlay) Reset() { o.state, o.all = NewState(), true }

// Apply takes changes in, in their order. Build then gives a snapshot that has them.
func (o *Overlay) Apply(changes []Change) {
	for i := range changes {
		c := &changes[i]
		if o.dirty == nil {
			o.dirty = map[events.Org]*dirt{}
		}
		d := o.dirty[c.Ref.Org]
		if d == nil {
			d = &dirt{keys: map[string]bool{}}
			o.dirty[c.Ref.Org] = d
		}
		switch c.Ref.Kind {
		case KindKey:
			d.keys[c.Ref.ID] = true
		case KindLimit:
			if l, ok := c.Record.(*LimitRecord); ok && l.Scope == events.ScopeKey {
				d.keys[l.Subject] = true
			} else if l, ok := o.state.Get(c.Ref).(*LimitRecord); ok && l.Scope == events.ScopeKey {
				d.keys[l.Subject] = true
			}
		case KindPool:
			d.pools = true
		case KindConnection:
			d.connections = true
		case KindPrice:
			o.platform = true
		}
		if c.Record == nil {
			o.state.Remove(c.Ref)
		} else {
			o.state.Put(c.Record)
		}
	}
}

// NextPrice says when a price begins after the last Build: another is due then. Zero: none is known.
func (o *Overlay) NextPrice() time.Time { return o.next }

// Build makes the snapshot of now. It is sealed, and shares with the last one what did not change.
func (o *Overlay) Build(now time.Time) *Snapshot {
	b := overlayBuild{o: o, now: now}
	if o.all || o.current == nil {
		b.whole()
	} else {
		b.part()
	}
	s := b.s
	s.LoadedAt = now
	o.current, o.all, o.dirty, o.platform = s, false, nil, false
	return s
}

// overlayBuild is the making of one snapshot. Maps are copied when they are first written.
type overlayBuild struct {
	o   *Overlay
	s   *Snapshot
	now time.Time

	copied struct{ keys, orgs, workspaces, principals, pools, connections, fences bool }
}

func (b *overlayBuild) whole() {
	s := *b.o.static
	b.s = &s
	b.o.built = map[events.Org]*builtOrg{}
	b.prices()
	for org := range b.o.state.orgs {
		b.org(org, nil)
	}
}

func (b *overlayBuild) part() {
	s := *b.o.current
	b.s = &s
	if b.o.platform || !b.o.next.IsZero() && !b.now.Before(b.o.next) {
		b.prices()
	}
	for org, d := range b.o.dirty {
		b.org(org, d)
	}
}

// own gives the map to write in: the snapshot's, copied once.
func own[K comparable, V any](m *map[K]V, copied *bool) map[K]V {
	if !*copied {
		*m, *copied = maps.Clone(*m), true
		if *m == nil {
			*m = map[K]V{}
		}
	}
	return *m
}

// set writes one entry, or takes it away; want says whether it stays.
func set[K comparable, V any](m *map[K]V, copied *bool, k K, v V, want bool) {
	if want {
		own(m, copied)[k] = v
	} else if _, there := (*m)[k]; there {
		delete(own(m, copied), k)
	}
}

// org brings one org up to date. d says what changed; nil: build all of it.
func (b *overlayBuild) org(id events.Org, d *dirt) {
	st := b.o.state.Org(id)
	was := b.o.built[id]
	if was == nil {
		was = &builtOrg{keys: map[string]Hash{}}
	}
	if d == nil || d.pools {
		was.pools = b.pools(st, was.pools)
	}
	if d == nil || d.connections {
		was.connections = b.connections(st, was.connections)
	}
	b.o.built[id] = was
	if st.Record != nil {
		own(&b.s.Fences, &b.copied.fences)[id] = st.Record.Version
	}
	if id == events.Platform {
		return
	}
	e := newEffective(b.o.static, id, st)
	o := e.org(id)
	exists := e.static != nil || st.Record != nil && !st.Record.Deleted
	if old := b.s.Orgs[id]; old != nil && old.names.RPM != "" {
		o.names = old.names
	} else {
		o.names = newNames(events.ScopeOrg, string(id))
	}
	set(&b.s.Orgs, &b.copied.orgs, id, o, exists)
	workspaces := b.scopes(&e, id, events.ScopeWorkspace, st.Workspaces)
	principals := b.scopes(&e, id, events.ScopePrincipal, st.Principals)
	above := aboveKeys{e.override.Key, e.made, e.hold, exists}
	changed := d == nil || o.Limits != was.limits || o.Daily != was.daily || above != was.above
	changed = b.differ(&b.s.Workspaces, &b.copied.workspaces, b.o.static.Workspaces, was.workspaces, workspaces) || changed
	changed = b.differ(&b.s.Principals, &b.copied.principals, b.o.static.Principals, was.principals, principals) || changed
	was.above, was.limits, was.daily, was.workspaces, was.principals = above, o.Limits, o.Daily, workspaces, principals
	b.keys(id, &e, exists, was, d, changed)
}

// scopes gives the limits of an org's workspaces or principals: of those with a record, and of the files' that it limits itself.
func (b *overlayBuild) scopes(e *effective, org events.Org, scope events.Scope, records map[string]*ScopeRecord) map[string]Limits {
	files := b.o.static.Workspaces
	if scope == events.ScopePrincipal {
		files = b.o.static.Principals
	}
	all := make(map[string]Limits, len(records))
	for id, r := range records {
		all[id] = e.scope(org, scope, id, r.Limits.Limits())
	}
	for _, l := range e.st.Limits {
		if l.Scope != scope {
			continue
		}
		if _, there := all[l.Subject]; there {
			continue
		}
		var given Limits
		if file := files[l.Subject]; file != nil {
			given = *file
		}
		all[l.Subject] = e.scope(org, scope, l.Subject, given)
	}
	return all
}

// differ writes the limits of scopes where they are others than before, and says whether any are.
func (b *overlayBuild) differ(m *map[string]*Limits, copied *bool, files map[string]*Limits, was, is map[string]Limits) (changed bool) {
	for id := range was {
		if _, stays := is[id]; !stays {
			set(m, copied, id, files[id], files[id] != nil)
			changed = true
		}
	}
	for id, l := range is {
		if before, there := was[id]; there && before == l {
			continue
		}
		set(m, copied, id, &l, true)
		changed = true
	}
	return changed
}

// keys brings an org's keys up to date: those that changed, or all of them if what is above them did.
func (b *overlayBuild) keys(id events.Org, e *effective, exists bool, was *builtOrg, d *dirt, all bool) {
	st := e.st
	interned := map[string]Names{}
	if all {
		for _, hash := range b.o.files[id] {
			b.fileKey(hash, id, e, interned)
		}
		for key, hash := range was.keys {
			if st.Keys[key] == nil {
				b.drop(hash, was, id, key)
			}
		}
		for _, r := range st.Keys {
			b.key(r, e, exists, was, interned)
		}
		return
	}
	for key := range d.keys {
		if r := st.Keys[key]; r != nil {
			b.key(r, e, exists, was, interned)
			continue
		}
		if hash, there := was.keys[key]; there {
			b.drop(hash, was, id, key)
		}
		for _, hash := range b.o.files[id] {
			if b.o.static.Keys[hash].ID == key { // a limit of a key of the files
				b.fileKey(hash, id, e, interned)
			}
		}
	}
}

// key takes a key of a record in, or out.
func (b *overlayBuild) key(r *KeyRecord, e *effective, exists bool, was *builtOrg, interned map[string]Names) {
	if old, there := was.keys[r.ID]; there && old != r.Hash {
		b.drop(old, was, r.Org, r.ID)
	}
	if b.o.static.Mode != ModeDynamic || b.o.static.Keys[r.Hash] != nil || !r.Enabled || !exists {
		b.drop(r.Hash, was, r.Org, r.ID)
		return
	}
	k := r.build()
	k.Limits = e.key(r.Org, r.ID, r.RPMCeiling, r.Limits.Limits())
	b.seal(k, interned)
	own(&b.s.Keys, &b.copied.keys)[r.Hash] = k
	was.keys[r.ID] = r.Hash
}

// drop takes a key of a record out, unless its hash has become another's.
func (b *overlayBuild) drop(hash Hash, was *builtOrg, org events.Org, key string) {
	if k := b.s.Keys[hash]; k != nil && k.ID == key && k.Org == org && b.o.static.Keys[hash] == nil {
		delete(own(&b.s.Keys, &b.copied.keys), hash)
	}
	delete(was.keys, key)
}

// fileKey makes a key of the files anew, with what now stands above it.
func (b *overlayBuild) fileKey(hash Hash, org events.Org, e *effective, interned map[string]Names) {
	k := *b.o.static.Keys[hash]
	k.Limits = e.key(org, k.ID, 0, k.Limits)
	b.seal(&k, interned)
	own(&b.s.Keys, &b.copied.keys)[hash] = &k
}

// seal names a key's meters. Keys of one workspace or principal share its names.
func (b *overlayBuild) seal(k *Key, interned map[string]Names) {
	b.s.seal(k)
	for i := range k.scopes {
		sc := &k.scopes[i]
		if sc.Scope != events.ScopeWorkspace && sc.Scope != events.ScopePrincipal {
			continue
		}
		at := string(sc.Scope) + "/" + sc.ID
		if names, there := interned[at]; there {
			sc.Names = names
		} else {
			interned[at] = sc.Names
		}
	}
}

// pools takes an org's pools in, and gives their ids. A pool of the files with the same id stays.
func (b *overlayBuild) pools(st *OrgState, was []string) (now []string) {
	for _, id := range was {
		set(&b.s.Pools, &b.copied.pools, id, nil, false)
	}
	for id, r := range st.Pools {
		if b.o.static.Pools[id] == nil {
			set(&b.s.Pools, &b.copied.pools, id, r.Pool(), true)
			now = append(now, id)
		}
	}
	for _, id := range now {
		p := b.s.Pools[id]
		p.chain = b.s.chain(p)
	}
	return now
}

// connections takes an org's connections in, and gives their ids.
func (b *overlayBuild) connections(st *OrgState, was []string) (now []string) {
	for _, id := range was {
		set(&b.s.Connections, &b.copied.connections, id, nil, false)
	}
	for id, r := range st.Connections {
		if b.o.static.Connections[id] != nil {
			continue
		}
		c := &Connection{ID: id, Org: r.Org, Provider: r.Provider, BaseURL: r.BaseURL, Pool: r.Pool, Version: r.Version, Region: r.Region, APIKey: b.o.open(r),
			Apart: r.Apart, HouseFallback: r.HouseFallback}
		for _, name := range r.Operations {
			if op, known := wire.Named(name); known {
				c.Operations = append(c.Operations, op)
			}
		}
		if c.APIKey == nil {
			c.APIKey, c.Shut = func() string { return "" }, true
		}
		if r.Org == events.Platform {
			c.Org = ""
		}
		set(&b.s.Connections, &b.copied.connections, id, c, true)
		now = append(now, id)
	}
	return now
}

// prices gives each model the price that has begun: the files' where there is no other.
func (b *overlayBuild) prices() {
	records := b.o.state.Org(events.Platform).Prices
	b.o.next = time.Time{}
	b.s.Models = b.o.static.Models
	copied := false
	for id, r := range records {
		m := b.o.static.Models[id]
		if m == nil {
			continue
		}
		price, dated := m.Price, m.Prices
		for i := range r.Versions {
			v := &r.Versions[i]
			if v.From.After(b.now) {
				if b.o.next.IsZero() || v.From.Before(b.o.next) {
					b.o.next = v.From
				}
				break
			}
			price, dated = v.Price(), nil
		}
		priced := *m
		priced.Price, priced.Prices = price, dated
		set(&b.s.Models, &copied, id, &priced, true)
	}
}

// OtherUpstreams says whether two snapshots differ in where models can be had: in connections, pools or models.
func OtherUpstreams(a, b *Snapshot) bool {
	return !maps.Equal(a.Connections, b.Connections) || !maps.Equal(a.Models, b.Models) || !maps.Equal(a.Pools, b.Pools)
}
