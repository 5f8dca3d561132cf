package insight

import (
	"slices"
	"strings"
)

// Filter says which lines are wanted. An empty field wants all; several values of one field want any of them.
type Filter struct {
	Orgs     []string
	Keys     []string
	Models   []string
	Kinds    []string // of events, and "verdict"; empty: all but ticks and leases
	Outcomes []string // as Line.Outcome, or the reason of a refusal
	Gateways []string // a full name, or what comes before its last dash
	Requests []string // ids, or how they begin or end
}

// Match says whether a line is wanted.
func (f *Filter) Match(l *Line) bool {
	if len(f.Kinds) == 0 && (l.Kind == "tick" || l.Kind == "lease") {
		return false
	}
	return wants(f.Kinds, l.Kind) && wants(f.Orgs, l.Org) && wants(f.Keys, l.Key) && wants(f.Models, l.Model) &&
		(wants(f.Outcomes, l.Outcome) || wants(f.Outcomes, l.Reason)) &&
		f.matchGateway(l) && f.matchRequest(l)
}

func wants(list []string, value string) bool { return len(list) == 0 || slices.Contains(list, value) }

func (f *Filter) matchGateway(l *Line) bool {
	if wants(f.Gateways, l.Gateway) {
		return true
	}
	i := strings.LastIndexByte(l.Gateway, '-')
	return i > 0 && slices.Contains(f.Gateways, l.Gateway[:i])
}

func (f *Filter) matchRequest(l *Line) bool {
	if len(f.Requests) == 0 {
		return true
	}
	return slices.ContainsFunc(f.Requests, func(id string) bool {
		return id != "" && (strings.HasPrefix(l.Request, id) || strings.HasSuffix(l.Request, id))
	})
}
