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
		c.Connections = append(c.Connections, upstream.Connection{ID: n.ID, Provider: n.Provider, BaseURL: n.BaseURL, Key: n.APIKey,
			Pool: n.Pool, APIVersion: n.Version, Operations: n.Operations})
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
		out.Local = &upstream.Local{Engine: l.Engine, Replicas: l.Replicas, Model: l.Model, Key: l.APIKey, Operations: l.Operations,
			Exclude: exclude(m.Policy.ExcludeIf), MaxTries: m.Policy.MaxTries}
	}
	for _, r := range m.Providers {
		out.Providers = append(out.Providers, upstream.Offer{Connection: r.Connection, Model: r.Model})
	}
	if f := m.Policy.FallbackProvider; f != nil {
		out.FallbackProvider = f.Engine
		if f.Connection != "" {
			out.Providers = append(out.Providers, upstream.Offer{Connection: f.Connection, Model: f.Model})
		}
	}
	return out
}

func exclude(thresholds []authority.Threshold) (x upstream.Exclude) {
	for _, t := range thresholds {
		b := &upstream.Bound{Op: t.Op, Value: t.Value}
		switch t.Metric {
		case "kv_cache_utilization":
			x.KV = b
		case "waiting_requests":
			x.Waiting = b
		}
	}
	return x
}
