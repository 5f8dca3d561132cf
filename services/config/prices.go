package config

import (
	"sort"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/strictyaml"
)

// maxPrices bounds the prices of one model.
const maxPrices = 1000

// prices reads a model's price, or a list of its prices by when they begin. One without from holds until the first of the others.
func prices(n strictyaml.Node) (always *authority.Price, dated []authority.DatedPrice) {
	if n.Absent() {
		return nil, nil
	}
	if n.IsMap() {
		p, from, _ := price(n)
		if from.IsZero() {
			return p, nil
		}
		return nil, []authority.DatedPrice{{Price: *p, From: from}}
	}
	list := n.List()
	if len(list) > maxPrices {
		n.Wrong("must have at most %d entries", maxPrices)
		return nil, nil
	}
	seen := map[time.Time]bool{}
	versions := map[string]bool{}
	for _, item := range list {
		p, from, ok := price(item)
		if !ok {
			continue
		}
		if seen[from] {
			item.Wrong("begins when another does: of each model one price may begin at a time, and one have no from")
		}
		if versions[p.Version] {
			item.Wrong("has the version of another, %s", p.Version)
		}
		seen[from], versions[p.Version] = true, true
		if from.IsZero() {
			always = p
			continue
		}
		dated = append(dated, authority.DatedPrice{Price: *p, From: from})
	}
	sort.Slice(dated, func(i, j int) bool { return dated[i].From.Before(dated[j].From) })
	return always, dated
}

// price reads US dollars per million tokens, exactly. Cached input and cache writes cost what input does unless they are given, and
// reasoning what other output does. Not ok: when it begins cannot be read.
func price(n strictyaml.Node) (p *authority.Price, from time.Time, ok bool) {
	m := n.Map()
	dollars := func(field string, otherwise int64) int64 {
		return m.Get(field).Decimal(otherwise, authority.MoneyDigits, events.MaxAmount)
	}
	for _, field := range []string{"input", "output"} {
		if f := m.Get(field); f.Absent() {
			f.Wrong("must be given, in US dollars per million tokens: 0 for nothing")
		}
	}
	p = &authority.Price{Version: optional(m.Get("version")), Input: dollars("input", 0), Output: dollars("output", 0), Request: dollars("request", 0)}
	p.CachedInput, p.CacheWrite = dollars("cached_input", p.Input), dollars("cache_write", p.Input)
	if r := m.Get("reasoning"); !r.Absent() {
		if p.Reasoning = dollars("reasoning", 0); p.Reasoning == 0 {
			r.Wrong("must be greater than 0: without it reasoning costs what other output does")
		}
	}
	from, ok = begins(m.Get("from"))
	if m.End(); p.Version == "" {
		p.Version = p.Name()
	}
	return p, from, ok
}

// begins reads when a price begins: a day, from its first instant in UTC, or an instant. Zero and ok: it is not given.
func begins(n strictyaml.Node) (at time.Time, ok bool) {
	text := n.Str("")
	if text == "" {
		return time.Time{}, true
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UTC(), true
		}
	}
	n.Wrong("must be a day, such as 2026-01-01, or an RFC 3339 time")
	return time.Time{}, false
}
