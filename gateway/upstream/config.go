package upstream

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/weirhq/weir/gateway/bedrock"
	"github.com/weirhq/weir/gateway/wire"
)

// MaxReplicas bounds the replicas of one model: each is asked every second.
const MaxReplicas = 256

// DefaultMaxTries is how many replicas one request may try in a step that does not say.
const DefaultMaxTries = 3

// Config is everything that requests can be sent to.
type Config struct {
	Connections []Connection
	Models      []Model
}

// Connection is one account at a provider.
type Connection struct {
	// ID names the connection in configuration, logs and events. Required.
	ID string
	// Provider is the label: openai, anthropic, azure or bedrock, or any other for a provider that speaks OpenAI's format. It says how
	// paths and credentials look. Required.
	Provider string
	// BaseURL is the provider's origin, with or without the /v1 that SDKs have in theirs. Defaults to the public one of
	// openai and anthropic; required for the others.
	BaseURL string
	// Key returns the secret. It is asked once for each call, which ends on the key that it began with. Required.
	Key func() string
	// Shut says that the secret cannot be had here: no call is made. Defaults to false.
	Shut bool
	// Pool is the id of the quota pool that calls claim. Empty: the account's capacity is not known.
	Pool string
	// APIVersion is azure's api-version; with one, paths have the older form with the deployment in them. Defaults to none:
	// azure's v1 paths.
	APIVersion string
	// Region is the AWS region of a bedrock account. Defaults to the one that the base URL's host names.
	Region string
	// Operations is what the account serves. Defaults to what the provider is known for.
	Operations []wire.Operation
	// Apart says that usage counts reasoning beside the output instead of in it. Defaults to false.
	Apart bool
	// Owner is the org whose account it is: it serves that org alone, in place of the house's accounts of the label. Empty: the house's.
	Owner string
	// HouseFallback lets the owner's requests go on to the house's accounts of the label when this one fails. Defaults to false.
	HouseFallback bool
}

// Model is where the requests for one model can go: first its own replicas, then the providers in order.
type Model struct {
	// ID is the name that clients use. Required.
	ID string
	// Local are the operator's own servers. Defaults to none.
	Local *Local
	// Providers are tried in order. Only those of the first one's label are, and those of Fallback's.
	Providers []Offer
	// Fallback is tried last of all. Its provider's label may be another than the first's. Defaults to none.
	Fallback *Offer
}

// Local is a pool of equal servers.
type Local struct {
	// Engine is vllm, sglang, llamacpp, tgi, ollama or openai (any server that speaks that format). Defaults to openai.
	Engine string
	// Replicas are the servers' base URLs, with or without /v1. At least one.
	Replicas []string
	// Model is the name at the servers. Defaults to the model's id.
	Model string
	// Key returns the secret that the servers ask for. Defaults to none.
	Key func() string
	// Operations is what the servers serve. Defaults to what the engine is known for.
	Operations []wire.Operation
	// Apart says that usage counts reasoning beside the output instead of in it. Defaults to false.
	Apart bool
	// Pool is the id of a quota pool that calls claim, where the servers stand for an account. Defaults to none.
	Pool string
	// Capacity is how many requests at once each replica is made for, in the order of Replicas; 0: not declared. Defaults to none.
	Capacity []int64
	// Steps are walked in order over the same replicas. Defaults to one over all of them.
	Steps []Step
}

// Step is one step of routing over a model's replicas: those that it is about, less those under excluded pressure, the least
// loaded first. A replica that a request has tried in one step it does not try again in the next.
type Step struct {
	// Name names the step in logs. Defaults to none.
	Name string
	// Replicas are those that the step is about, by their place in Local.Replicas. Defaults to all; an empty list is none.
	Replicas []int
	// Exclude passes a replica over while any of it holds. Defaults to nothing.
	Exclude []Bound
	// MaxTries is how many replicas one request may try before the next step. Defaults to 3.
	MaxTries int
}

// Offer is one provider for a model.
type Offer struct {
	// Connection is the id of a Connection. Required.
	Connection string
	// Model is the name at the provider. Defaults to the model's id.
	Model string
	// Pool is the id of the quota pool that calls claim. Defaults to the connection's.
	Pool string
}

// Bound is a threshold of a metric. One that is not known of a replica passes.
type Bound struct {
	Metric Metric
	Op     string // gt, gte, lt or lte
	Value  float64
}

// Holds says whether v is on the bound's side of the value.
func (b *Bound) Holds(v float64) bool {
	switch b.Op {
	case "gt":
		return v > b.Value
	case "gte":
		return v >= b.Value
	case "lt":
		return v < b.Value
	case "lte":
		return v <= b.Value
	}
	return false
}

// faults collects everything that is wrong with a configuration.
type faults []error

func (f *faults) add(format string, args ...any) { *f = append(*f, fmt.Errorf(format, args...)) }

// Validate returns every fault at once; each names the field, the value and the rule.
func (c *Config) Validate() error {
	var f faults
	connections := map[string]bool{}
	for i := range c.Connections {
		n := &c.Connections[i]
		if connections[n.ID] {
			f.add("connections[%d].id: %q is used twice", i, n.ID)
		}
		connections[n.ID] = true
		n.validate(&f, fmt.Sprintf("connections[%d]", i))
	}
	models := map[string]bool{}
	for i := range c.Models {
		m := &c.Models[i]
		if models[m.ID] {
			f.add("models[%d].id: %q is used twice", i, m.ID)
		}
		models[m.ID] = true
		m.validate(&f, fmt.Sprintf("models[%d]", i), connections)
	}
	return errors.Join(f...)
}

// Validate returns every fault of one connection.
func (n *Connection) Validate() error {
	var f faults
	n.validate(&f, "connection")
	return errors.Join(f...)
}

func (n *Connection) validate(f *faults, at string) {
	if n.ID == "" {
		f.add("%s.id: it must not be empty", at)
	}
	p, known := providerOf(n.Provider)
	if !known {
		f.add("%s.provider: it must not be empty", at)
	}
	switch {
	case n.BaseURL != "":
		if _, err := parseBase(n.BaseURL); err != nil {
			f.add("%s.base_url: %w", at, err)
		}
	case known && p.base == "":
		f.add("%s.base_url: %s needs one", at, n.Provider)
	}
	if n.Key == nil {
		f.add("%s: there is no key", at)
	}
	if n.APIVersion != "" && n.Provider != "azure" {
		f.add("%s.version: only azure has one", at)
	}
	if n.Region != "" && n.Provider != "bedrock" {
		f.add("%s.region: only bedrock has one", at)
	}
	if n.Provider == "bedrock" && n.Key != nil && !n.Shut && bedrock.Unsigned(n.Key(), n.Region, n.BaseURL) {
		f.add("%s.region: it must be given: the key is an access key, and base_url names no region to sign for", at)
	}
}

func (m *Model) validate(f *faults, at string, connections map[string]bool) {
	if m.ID == "" {
		f.add("%s.id: it must not be empty", at)
	}
	if m.Local == nil && len(m.Providers) == 0 && m.Fallback == nil {
		f.add("%s: the model has neither local replicas nor providers", at)
	}
	for i, r := range m.Providers {
		if !connections[r.Connection] {
			f.add("%s.providers[%d].connection: there is no connection %q", at, i, r.Connection)
		}
	}
	if m.Fallback != nil && !connections[m.Fallback.Connection] {
		f.add("%s.fallback_provider: there is no connection %q", at, m.Fallback.Connection)
	}
	if m.Local != nil {
		m.Local.validate(f, at+".local")
	}
}

func (l *Local) validate(f *faults, at string) {
	if _, known := engines[l.Engine]; !known {
		f.add("%s.engine: %q is none of vllm, sglang, llamacpp, tgi, ollama, openai", at, l.Engine)
	}
	if n := len(l.Replicas); n == 0 || n > MaxReplicas {
		f.add("%s.replicas: there are %d, and must be 1 to %d", at, n, MaxReplicas)
	}
	seen := map[string]bool{}
	for i, r := range l.Replicas {
		u, err := parseBase(r)
		if err != nil {
			f.add("%s.replicas[%d]: %w", at, i, err)
			continue
		}
		if seen[u.String()] {
			f.add("%s.replicas[%d]: %q is listed twice", at, i, r)
		}
		seen[u.String()] = true
	}
	if n := len(l.Capacity); n != 0 && n != len(l.Replicas) {
		f.add("%s.capacity: there are %d, and must be one for each of %d replicas", at, n, len(l.Replicas))
	}
	for i := range l.Steps {
		l.Steps[i].validate(f, fmt.Sprintf("%s.steps[%d]", at, i), len(l.Replicas))
	}
}

func (p *Step) validate(f *faults, at string, replicas int) {
	for _, i := range p.Replicas {
		if i < 0 || i >= replicas {
			f.add("%s.replicas: there is no replica %d", at, i)
		}
	}
	if p.MaxTries < 0 {
		f.add("%s.max_tries: %d is negative", at, p.MaxTries)
	}
	for _, b := range p.Exclude {
		if !allMetrics[b.Metric] {
			f.add("%s.exclude_if: %q is no metric", at, b.Metric)
		}
		if b.Op != "gt" && b.Op != "gte" && b.Op != "lt" && b.Op != "lte" {
			f.add("%s.exclude_if.%s: %q is none of gt, gte, lt, lte", at, b.Metric, b.Op)
		}
	}
}

// parseBase reads a base URL: http or https, a host, and at most a path, whose last /v1 is cut off.
func parseBase(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%q is no URL", text)
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("%q must begin with http:// or https://", text)
	case u.Host == "" || u.Hostname() == "":
		return nil, fmt.Errorf("%q has no host", text)
	case u.User != nil:
		return nil, errors.New("a base URL must not carry credentials") // not repeated here: it would end in a log
	case u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("%q must have neither query nor fragment", text)
	}
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1")
	u.RawPath = ""
	return u, nil
}
