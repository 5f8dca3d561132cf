package gateway

import (
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/policy"
	"github.com/weirhq/weir/gateway/refusal"
)

// Standing says how well dynamic authority is known.
type Standing uint8

// How well dynamic authority is known.
const (
	Verified Standing = iota // it was what its store holds moments ago
	Bounded                  // it could not be verified since, and is not too old to decide on
	Expired                  // nothing is decided on it
)

// authorizationHeader marks what was decided on authority that could not be verified.
const (
	authorizationHeader = "X-Tm-Authorization-Mode"
	boundedSnapshot     = "bounded_snapshot"
)

// standing is how well dynamic authority is known now.
func (s *Server) standing() Standing {
	if s.config.Standing == nil {
		return Verified
	}
	return s.config.Standing()
}

// authorize finds the client's key, and refuses one that is not known well enough. Keys of the files need no store.
func (s *Server) authorize(c *client) *refusal.Answer {
	delete(c.w.Header(), authorizationHeader)
	key, denial := authority.Authenticate(c.snap, rawKey(c.r), s.config.Now())
	standing := Verified
	if denial == authority.DeniedUnknown || denial == "" && key.Dynamic {
		standing = s.standing()
	}
	switch {
	case denial != "" && standing == Verified:
		s.config.Meters.denied.WithLabelValues(string(denial)).Inc()
		a := refusal.OfKey(denial)
		return &a
	case denial != "":
		return s.unverified("the API key is not known here, and may be new: the store of the authority cannot be asked, please retry")
	case standing == Expired:
		return s.unverified("what this key may do was not verified for too long: the store of the authority cannot be asked, please retry")
	case standing == Bounded:
		c.w.Header()[authorizationHeader] = []string{boundedSnapshot}
	}
	c.key = key
	return nil
}

func (s *Server) unverified(why string) *refusal.Answer {
	s.config.Meters.unusable.WithLabelValues("authorization").Inc()
	a := refusal.For(refusal.AuthorizationUnavailable, why)
	return &a
}

// unheard refuses a key of the API while neither the log nor the store of the authority can be asked: what revokes it would not be heard.
func (x *exchange) unheard() *refusal.Answer {
	if !x.key.Dynamic || !x.s.config.Apart || x.s.standing() == Verified {
		return nil
	}
	delete(x.w.Header(), authorizationHeader) // nothing is decided on what is known of it
	return x.s.unverified("neither the log nor the store of the authority can be reached, please retry")
}

// renewed takes the authority of now into use, where it changed while the body came: where a request can go is read at that moment too,
// and what is claimed there must be known.
func (x *exchange) renewed() *refusal.Answer {
	now := x.s.config.Authority()
	if now == x.snap {
		return nil
	}
	x.snap = now
	return x.s.authorize(x.client)
}

// planned finds where the request can go and plans it. Of a route to a pool that the snapshot does not know, one of the two is newer: the
// request is planned anew, once, when both are.
func (x *exchange) planned() *refusal.Answer {
	if a := x.route(); a != nil {
		return a
	}
	if r := x.plan.Refusal; r == nil || r.Cause != policy.CapacityUnknown || r.Pool == "" {
		return nil
	}
	a, _ := x.on(x.s.config.Fresh(x.r.Context(), x.key.Org, x.snap.Fence(x.key.Org)+1))
	return a
}

// refreshed plans again on newer authority. It gives what refuses the request there, or that nothing newer is known.
func (x *exchange) refreshed() (answer *refusal.Answer, newer bool) {
	used := x.snap.Fence(x.key.Org)
	snap := x.s.config.Fresh(x.r.Context(), x.key.Org, used+1)
	if snap.Fence(x.key.Org) == used {
		x.stale(used)
		return nil, false
	}
	a, same := x.on(snap)
	if a == nil && same && x.plan.Refusal != nil {
		refused := refusal.OfLocal(x.plan.Refusal)
		a = &refused
	}
	return a, same
}

// on plans the request on another snapshot. It gives what refuses it before there is a plan; same is false for a key that is another org's
// now, which is to be judged as that: nothing was planned then.
func (x *exchange) on(snap *authority.Snapshot) (answer *refusal.Answer, same bool) {
	key, denial := authority.Authenticate(snap, rawKey(x.r), x.s.config.Now())
	if denial != "" {
		x.s.config.Meters.denied.WithLabelValues(string(denial)).Inc()
		a := refusal.OfKey(denial)
		return &a, true
	}
	if key.Org != x.key.Org {
		return nil, false
	}
	model, local := policy.Lookup(snap, key, x.request.Model)
	if local != nil {
		a := refusal.OfLocal(local)
		return &a, true
	}
	x.snap, x.key, x.model = snap, key, model
	return x.route(), true
}

// stale tells that an org's fence in the log is above what is known of it here.
func (x *exchange) stale(version int64) {
	if x.s.config.Stale != nil {
		x.s.config.Stale(x.key.Org, version)
	}
}
