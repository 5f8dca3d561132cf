package upstream

import (
	"net/http"
	"slices"
	"time"

	"github.com/weirhq/weir/gateway/relay"
	"github.com/weirhq/weir/gateway/wire"
)

// Route is one place in the order in which a request tries upstreams: the local pool, or one account. It belongs to one
// request.
type Route struct {
	Local      bool
	Deployment string // names the route before a replica is chosen: local/model or connection/model
	Provider   string // the label; for the local pool the engine
	Connection string // "" for the local pool
	Pool       string // quota pool to claim; "" for the local pool or when none is known
	Model      string // the upstream's name

	set     *Set
	entry   *entry
	account *Connection
	op      wire.Operation
	tried   []*replica
	used    bool
}

// Routes are where a request of op for the model can go, in order: the local pool, then the providers. After the first
// provider that serves op, only those of the same label and those of the model's FallbackProvider follow. known says whether
// there is such a model; none of a known model's routes may serve op.
func (s *Set) Routes(model string, op wire.Operation) (routes []*Route, known bool) {
	t := s.table.Load()
	e := t.models[model]
	if e == nil {
		return nil, false
	}
	if e.Local != nil && e.Local.serves(op) {
		routes = append(routes, &Route{Local: true, Deployment: "local/" + e.Local.Model, Provider: e.Local.Engine, Model: e.Local.Model,
			set: s, entry: e, op: op})
	}
	label := ""
	var fallback []*Route
	for _, offer := range e.Providers {
		n := t.connections[offer.Connection]
		if !n.Serves(op) {
			continue
		}
		if label == "" {
			label = n.Provider
		}
		r := &Route{Provider: n.Provider, Connection: n.ID, Pool: n.Pool, Model: offer.Model, set: s, account: n, op: op}
		if r.Model == "" {
			r.Model = e.ID
		}
		r.Deployment = n.ID + "/" + r.Model
		switch n.Provider {
		case label:
			routes = append(routes, r)
		case e.FallbackProvider:
			fallback = append(fallback, r)
		}
	}
	return append(routes, fallback...), true
}

// Done takes how a call to a target went. It must be called once for each target, whatever happened; more often changes
// nothing.
type Done func(relay.Kind)

// Pick chooses a target: of the local pool the healthy replica with the least load that this request has not tried and that
// is not under excluded pressure, of an account the account, once. The replica counts the call as its own until done is
// called. ok is false when nothing is left to try; the next route is then due.
func (r *Route) Pick() (t Target, done Done, ok bool) {
	if r.account != nil {
		if r.used {
			return Target{}, nil, false
		}
		r.used = true
		t, ok = r.account.Target(r.op, r.Model)
		return t, func(relay.Kind) {}, ok
	}
	if len(r.tried) >= r.entry.Local.MaxTries {
		return Target{}, nil, false
	}
	chosen := r.entry.take(r.tried, r.set.now())
	if chosen == nil {
		return Target{}, nil, false
	}
	r.tried = append(r.tried, chosen)
	local := r.entry.Local
	t = Target{Deployment: chosen.name, URL: chosen.url + r.op.Path(), Model: local.Model, Local: true, Provider: local.Engine,
		Format: r.op.Format(), OldField: engines[local.Engine].oldField, Apart: local.Apart}
	if local.Key != nil {
		t.Header = http.Header{"Authorization": {"Bearer " + local.Key()}}
	}
	called := false
	return t, func(kind relay.Kind) {
		if called {
			return
		}
		called = true
		chosen.inflight.Add(-1)
		chosen.called(kind)
	}, true
}

// take counts a call at the replica with the least load. Choosing and counting are one step, or a burst would all choose
// the same.
func (e *entry) take(tried []*replica, now time.Time) *replica {
	e.taking.Lock()
	defer e.taking.Unlock()
	r := e.least(tried, now)
	if r != nil {
		r.inflight.Add(1)
	}
	return r
}

// least finds the healthy replica with the least load; nil when there is none. Equal ones take turns.
func (e *entry) least(tried []*replica, now time.Time) *replica {
	type candidate struct {
		r         *replica
		own, full float64
	}
	var room [16]candidate
	found := room[:0]
	n := len(e.replicas)
	start := int(e.turn % uint64(n))
	e.turn++
	reported := true
	for i := range n {
		r := e.replicas[(start+i)%n]
		if slices.Contains(tried, r) {
			continue
		}
		healthy, s := r.state(now)
		if !healthy || e.Local.Exclude.holds(&s) {
			continue
		}
		own := r.inflight.Load()
		load, known := s.load(own)
		reported = reported && known
		found = append(found, candidate{r, float64(own), (load + 1) * (1 + s.kv.value)})
	}
	var best *candidate
	for i := range found {
		c := &found[i]
		if !reported { // numbers that only some report cannot be compared
			c.full = c.own
		}
		if best == nil || c.full < best.full || c.full == best.full && c.own < best.own {
			best = c
		}
	}
	if best == nil {
		return nil
	}
	return best.r
}

// holds says whether the signals exclude a replica.
func (x *Exclude) holds(s *signals) bool {
	return x.KV != nil && s.kv.set && x.KV.Holds(s.kv.value) || x.Waiting != nil && s.waiting.set && x.Waiting.Holds(s.waiting.value)
}
