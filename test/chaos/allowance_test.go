package chaos

import (
	"strings"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/outage"
	"github.com/weirhq/weir/services/provider"
	"github.com/weirhq/weir/test/e2e/stack"
)

// intentWithin is how much later than it was granted a request may be noted down, on a machine that has much else to do.
const intentWithin = 5 * time.Second

// grant is what one gateway granted of one scope without the log.
type grant struct {
	id     events.RequestID
	at     time.Time
	tokens int64
	rpm    int64 // the scope's own limit; 0: none
}

// scope is one that a gateway counts for itself.
type scope struct {
	gateway events.Gateway
	name    string
}

// allowance checks that no gateway ever granted more of any scope than the allowance: in any minute, at once as the upstreams saw it, and for
// how long.
func (w *world) allowance(s *stack.Story) {
	granted, calls := map[scope][]grant{}, map[string][]provider.Call{}
	for _, c := range w.called() {
		calls[c.RequestID] = append(calls[c.RequestID], c)
	}
	for _, id := range s.Order {
		for _, d := range s.Requests[id].Reserves {
			if d.Mode != events.ModeBoundedLocal || d.Operation == "recover" || again(s, d) {
				continue
			}
			for name, g := range scopesOf(d) {
				k := scope{d.Gateway, name}
				granted[k] = append(granted[k], g)
			}
		}
		w.inOrder(s, id)
	}
	for k, grants := range granted {
		w.bounded(k, grants, calls)
	}
}

// scopesOf are the scopes of an attempt and what it takes of each; the request itself is one of the first attempt alone.
func scopesOf(d *events.Reserve) map[string]grant {
	all := map[string]grant{}
	tokens := int64(0)
	for i := range d.Claims {
		c := &d.Claims[i]
		cut := strings.LastIndexByte(string(c.Meter), '/')
		name, dimension := string(c.Meter[:cut]), string(c.Meter[cut+1:])
		if c.Shadow || dimension != "rpm" && dimension != "tpm" && dimension != "concurrency" {
			continue
		}
		g := all[name]
		if dimension == "rpm" {
			g.rpm = c.Limit
		}
		if dimension == "tpm" {
			tokens = max(tokens, c.Amount)
		}
		all[name] = g
	}
	if d.Attempt == 0 {
		for _, m := range []events.Meter{events.NewMeter(events.ScopeOrg, "rpm", string(d.Org)), events.NewMeter(events.ScopeKey, "rpm", d.Key)} {
			name := strings.TrimSuffix(string(m), "/rpm")
			all[name] = all[name]
		}
	}
	for name, g := range all {
		g.id, g.at, g.tokens = d.Request, time.Unix(0, d.At), tokens
		all[name] = g
	}
	return all
}

// bounded checks what one gateway granted of one scope.
func (w *world) bounded(k scope, grants []grant, calls map[string][]provider.Call) {
	for i := range grants {
		g := &grants[i]
		most, n, tokens, atOnce := int64(outage.Requests), int64(0), int64(0), 0
		if g.rpm > 0 {
			most = min(most, g.rpm)
		}
		first := g.at
		for j := range grants {
			other := &grants[j]
			if d := other.at.Sub(g.at); d >= 0 && d < time.Minute {
				n, tokens = n+1, tokens+other.tokens
			}
			if d := first.Sub(other.at); d > 0 && d < outage.RearmAfter {
				first = other.at
			}
			if runs(calls[string(other.id)], calls[string(g.id)]) {
				atOnce++
			}
		}
		switch {
		case n > most:
			w.tb.Errorf("%s granted %s %d requests within a minute, at most %d may be", k.gateway, k.name, n, most)
		case tokens > outage.Tokens:
			w.tb.Errorf("%s granted %s %d tokens within a minute", k.gateway, k.name, tokens)
		case atOnce > outage.AtOnce:
			w.tb.Errorf("%s had %d calls of %s at once without the log", k.gateway, atOnce, k.name)
		case g.at.Sub(first) > outage.For+intentWithin:
			w.tb.Errorf("%s granted %s something %s after the first", k.gateway, k.name, g.at.Sub(first))
		default:
			continue
		}
		return
	}
}

// runs says whether a request had a call while the first of another's began.
func runs(calls, others []provider.Call) bool {
	if len(others) == 0 {
		return false
	}
	at := others[0].Started
	for i := range calls {
		if !calls[i].Started.After(at) && calls[i].Ended.After(at) {
			return true
		}
	}
	return false
}

// inOrder checks that what is told of a request that was admitted without the log is there in the order in which it came about.
func (w *world) inOrder(s *stack.Story, id events.RequestID) {
	t := s.Requests[id]
	if len(t.Reserves) == 0 || t.Reserves[0].Mode != events.ModeBoundedLocal || t.Reserves[0].Operation == "recover" || again(s, t.Reserves[0]) {
		return
	}
	reserved, ended := false, false
	for i := range s.Records {
		r := &s.Records[i]
		if r.Subject != string(id) {
			continue
		}
		switch d := r.Data.(type) {
		case *events.Reserve:
			reserved = true
		case *events.TrueUp:
			if !reserved || ended {
				w.tb.Errorf("request %s: what it used is not between its reserve and its end:%s", id, saysOf(s, string(id)))
			}
		case *events.Release:
			if !reserved || ended {
				w.tb.Errorf("request %s: its end comes before its reserve, or twice:%s", id, saysOf(s, string(id)))
			}
			ended = d.Of == events.OfRequest
		}
	}
}
