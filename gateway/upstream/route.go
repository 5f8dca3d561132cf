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
	Own        bool   // the account is the org's own

	Step string // of the local pool: the step's name

	set     *Set
	entry   *entry
	account *Connection
	op      wire.Operation
	step    *step
	tried   *[]*replica // in all steps of the request
	tries   int         // in this one
	used    bool
}

// Routes are where an org's request of op for the model can go, in order: the local pool, one route for each step of its policy, then the
// providers. After the first provider that serves op, only those of the same label and those of the fallback's follow, and last the
// fallback. known says whether there is such a model; none of a known model's routes may serve op.
func (s *Set) Routes(model string, op wire.Operation, org string) (routes []*Route, known bool) {
	t := s.table.Load()
	e := t.models[model]
	if e == nil {
		return nil, false
	}
	if e.Local != nil && e.Local.serves(op) {
		tried := new([]*replica)
		for i := range e.steps {
			routes = append(routes, &Route{Local: true, Deployment: "local/" + e.Local.Model, Provider: e.Local.Engine, Pool: e.Local.Pool,
				Model: e.Local.Model, Step: e.steps[i].name, set: s, entry: e, op: op, step: &e.steps[i], tried: tried})
		}
	}
	return append(routes, s.accounts(t, e, op, org)...), true
}

// Done takes how a call to a target went, with the status of the upstream's answer, 0 if there was none. It must be called once for
// each target, whatever happened; more often changes nothing.
type Done func(kind relay.Kind, status int)

// Pick chooses a target: of the local pool the healthy replica of the step with the least load that this request has not tried and
// that is not under excluded pressure, of an account the account, once. The replica counts the call as its own until done is
// called. ok is false when nothing is left to try; the next route is then due.
func (r *Route) Pick() (t Target, done Done, ok bool) {
	if r.account != nil {
		if r.used {
			return Target{}, nil, false
		}
		r.used = true
		t, ok = r.account.Target(r.op, r.Model)
		t.Pool = r.Pool
		return t, func(relay.Kind, int) {}, ok
	}
	if r.tries >= r.step.tries {
		return Target{}, nil, false
	}
	chosen := r.entry.take(r.step, *r.tried, r.set.now())
	if chosen == nil {
		return Target{}, nil, false
	}
	r.tries++
	*r.tried = append(*r.tried, chosen)
	local := r.entry.Local
	t = Target{Deployment: chosen.name, URL: chosen.url + r.op.Path(), Model: local.Model, Local: true, Provider: local.Engine, Pool: r.Pool,
		Format: r.op.Format(), OldField: engines[local.Engine].oldField, Apart: local.Apart}
	if local.Key != nil {
		t.Header = http.Header{"Authorization": {"Bearer " + local.Key()}}
	}
	called := false
	return t, func(kind relay.Kind, status int) {
		if called {
			return
		}
		called = true
		chosen.inflight.Add(-1)
		chosen.called(kind, status, r.set.now())
	}, true
}

// take counts a call at the replica with the least load. Choosing and counting are one step, or a burst would all choose
// the same.
func (e *entry) take(p *step, tried []*replica, now time.Time) *replica {
	e.taking.Lock()
	defer e.taking.Unlock()
	r := e.least(p, tried, now)
	if r != nil {
		r.inflight.Add(1)
	}
	return r
}

// candidate is a replica that may be chosen.
type candidate struct {
	r         *replica
	own, full float64
}

// least finds the healthy replica of a step with the least load; nil when there is none. Equal ones take turns. Load is weighed by what
// the replicas are made for, where that is declared of all.
func (e *entry) least(p *step, tried []*replica, now time.Time) *replica {
	var room [16]candidate
	found := room[:0]
	n := len(p.replicas)
	if n == 0 {
		return nil
	}
	start := int(p.turn % uint64(n))
	p.turn++
	reported := true
	for i := range n {
		m := &p.replicas[(start+i)%n]
		if slices.Contains(tried, m.replica) {
			continue
		}
		healthy, s := m.state(now)
		if !healthy || m.excluded(p.exclude, &s, m.capacity, now) {
			continue
		}
		own := m.inflight.Load()
		load, known := s.load(own)
		reported = reported && known
		c := candidate{m.replica, float64(own), (load + 1) * (1 + s.kv.value)}
		if p.weighed {
			c.own, c.full = c.own/float64(m.capacity), c.full/float64(m.capacity)
		}
		found = append(found, c)
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
