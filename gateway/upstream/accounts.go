package upstream

import (
	"cmp"
	"slices"

	"github.com/weirhq/weir/gateway/wire"
)

// accounts are the providers that an org's request may be tried at, in order. None stands twice.
func (s *Set) accounts(t *table, e *entry, op wire.Operation, org string) []*Route {
	offers := t.offers(e.Providers, e.ID, org)
	label, second, last := "", "", len(offers)
	if e.Fallback != nil {
		second = t.connections[e.Fallback.Connection].Provider
		offers = append(slices.Clip(offers), t.offers([]Offer{*e.Fallback}, e.ID, org)...)
	}
	var first, others []*Route
	seen := map[string]bool{}
	for i := range offers {
		o := &offers[i]
		n := t.connections[o.Connection]
		if !n.Serves(op) {
			continue
		}
		r := &Route{Provider: n.Provider, Connection: n.ID, Pool: cmp.Or(o.Pool, n.Pool), Model: cmp.Or(o.Model, e.ID), Own: n.Owner != "",
			set: s, account: n, op: op}
		if r.Deployment = n.ID + "/" + r.Model; seen[r.Deployment] {
			continue
		}
		if label == "" {
			label = r.Provider
		}
		switch {
		case i >= last: // the fallback, last of all
			others = append(others, r)
		case r.Provider == label:
			first = append(first, r)
		case r.Provider == second:
			others = append(others, r)
		default:
			continue
		}
		seen[r.Deployment] = true
	}
	return append(first, others...)
}

// offers are a model's offers as they are for an org: without those of other orgs' accounts, and with the org's own accounts in place of
// the house's of their label. The house's come after them where one of the org's own says so.
func (t *table) offers(all []Offer, model, org string) []Offer {
	own := t.own[org]
	if own == nil && !t.owned(all) {
		return all
	}
	var out, house []Offer
	for i := range all {
		o := &all[i]
		n := t.connections[o.Connection]
		mine := own[n.Provider]
		switch {
		case n.Owner == org && org != "":
			out = append(out, *o)
		case n.Owner != "":
		case len(mine) == 0:
			out = append(out, *o)
		default:
			for _, c := range mine {
				if !named(all, c.ID) {
					out = append(out, Offer{Connection: c.ID, Model: cmp.Or(o.Model, model)})
				}
			}
			if slices.ContainsFunc(mine, func(c *Connection) bool { return c.HouseFallback }) {
				house = append(house, *o)
			}
		}
	}
	return append(out, house...)
}

// owned says whether any of the offers is of an org's own account.
func (t *table) owned(offers []Offer) bool {
	return slices.ContainsFunc(offers, func(o Offer) bool { return t.connections[o.Connection].Owner != "" })
}

func named(offers []Offer, connection string) bool {
	return slices.ContainsFunc(offers, func(o Offer) bool { return o.Connection == connection })
}

// addOwn finds the accounts that stand in for the house's: of an org and a label those with a pool, by name. Where none has one, nothing
// is known of their capacity: they stand in all the same, and are refused, unless they let the house's take their place.
func (t *table) addOwn() {
	for _, n := range t.connections {
		if n.Owner == "" {
			continue
		}
		if t.own == nil {
			t.own = map[string]map[string][]*Connection{}
		}
		if t.own[n.Owner] == nil {
			t.own[n.Owner] = map[string][]*Connection{}
		}
		t.own[n.Owner][n.Provider] = append(t.own[n.Owner][n.Provider], n)
	}
	unbound := func(n *Connection) bool { return n.Pool == "" }
	for _, byLabel := range t.own {
		for label, all := range byLabel {
			if slices.ContainsFunc(all, func(n *Connection) bool { return !unbound(n) }) {
				all = slices.DeleteFunc(all, unbound)
			} else if slices.ContainsFunc(all, func(n *Connection) bool { return n.HouseFallback }) {
				all = nil
			}
			slices.SortFunc(all, func(a, b *Connection) int { return cmp.Compare(a.ID, b.ID) })
			byLabel[label] = all
		}
	}
}
