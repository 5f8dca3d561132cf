package config

import (
	"regexp"
	"slices"
	"strings"

	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/strictyaml"
)

// others are variables that begin as ours do and are made by others: what ops/nats reads, and what Kubernetes gives every process for a
// service named weir or weir-something.
var others = regexp.MustCompile(`^WEIR_(NATS_.*|(.*_)?(SERVICE_(HOST|PORT.*)|PORT(_\d+_(TCP|UDP|SCTP).*)?))$`)

// UnknownVariables warns of each variable of an environment, as NAME=value, that begins as ours do and is none that the configuration reads
// or that also names. Values are not shown: they may be secrets.
func (c *Config) UnknownVariables(environment []string, also ...string) (warnings []Warning) {
	known := map[string]bool{}
	for name := range c.variables {
		known[name] = true
	}
	for _, name := range also {
		known[name] = true
	}
	slices.Sort(environment)
	for _, entry := range environment {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, prefix) && !known[name] && !others.MatchString(name) {
			warnings = append(warnings, Warning{Pos: authority.Pos{File: "environment"}, Field: name, Rule: "there is no such variable" + strictyaml.Meant(name, known)})
		}
	}
	return warnings
}
