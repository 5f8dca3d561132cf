package gateway

import (
	"sort"

	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/upstream"
)

// upstreams is where the models of a snapshot can be had.
func upstreams(s *authority.Snapshot) upstream.Config {
	var c upstream.Config
	for _, n := range s.Connections {
		c.Connections = append(c.Connections, upstream.Connection{ID: n.ID, Provider: n.Provider, BaseURL: n.BaseURL, Key: n.APIKey, Shut: n.Shut,
			Pool: n.Pool, APIVersion: n.Version, Region: n.Region, Operations: n.Operations, Apart: n.Apart,
			Owner: string(n.Org), HouseFallback: n.HouseFallback})
	}
	sort.Slice(c.Connections, func(i, j int) bool { return c.Connections[i].ID < c.Connections[j].ID })
	for _, m := range s.Models {
		c.Models = append(c.Models, modelOf(m))
	}
	sort.Slice(c.Models, func(i, j int) bool { return c.Models[i].ID < c.Models[j].ID })
	return c
}

func modelOf(m *authority.Model) upstream.Model {
	out := upstream.Model{ID: m.ID}
	if l := m.Local; l != nil {
		out.Local = &upstream.Local{Engine: l.Engine, Replicas: l.Replicas, Model: l.Model, Key: l.APIKey, Operations: l.Operations, Apart: l.Apart, Pool: l.Pool}
		for i := range l.Labels {
			out.Local.Capacity = append(out.Local.Capacity, l.Labels[i].Capacity)
		}
		out.Local.Steps = append(out.Local.Steps, stepOf(&m.Policy.Step, l))
		for i := range m.Policy.FallbackChain {
			out.Local.Steps = append(out.Local.Steps, stepOf(&m.Policy.FallbackChain[i], l))
		}
	}
	for _, r := range m.Providers {
		out.Providers = append(out.Providers, upstream.Offer{Connection: r.Connection, Model: r.Model, Pool: r.Pool})
	}
	if f := m.Policy.FallbackProvider; f != nil && f.Connection != "" {
		out.Fallback = &upstream.Offer{Connection: f.Connection, Model: f.Model}
		for _, r := range m.Providers { // the model's own route to it may say which pool
			if r.Connection == f.Connection {
				out.Fallback.Pool = r.Pool
				break
			}
		}
	}
	return out
}

// stepOf finds the replicas that a step is about.
func stepOf(p *authority.Step, l *authority.Local) upstream.Step {
	out := upstream.Step{Name: p.Name, MaxTries: p.MaxTries, Replicas: []int{}}
	for i := range l.Replicas {
		labels := authority.Labels{}
		if i < len(l.Labels) {
			labels = l.Labels[i]
		}
		if p.Matches(l.Engine, &labels) {
			out.Replicas = append(out.Replicas, i)
		}
	}
	for _, t := range p.ExcludeIf {
		out.Exclude = append(out.Exclude, upstream.Bound{Metric: upstream.Metric(t.Metric), Op: t.Op, Value: t.Value})
	}
	return out
}

// CheckUpstreams names what is wrong with where a snapshot's models can be had, as New would.
func CheckUpstreams(s *authority.Snapshot) error {
	c := upstreams(s)
	return c.Validate()
}
