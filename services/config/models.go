package config

import (
	"strings"

	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/strictyaml"
	"github.com/weirhq/weir/gateway/wire"
)

// Bounds of models.
const (
	maxTokens    = 1_000_000_000 // of a context window
	maxReplicas  = 256           // of a model: each is asked for its health every second
	maxQueueMS   = 60_000        // of a paced endpoint
	maxTries     = 1_000_000
	weightDigits = 3
	maxWeight    = 1_000_000 // 1000 tokens for one
)

// engines are those that run a model.
var engines = []string{"vllm", "sglang", "llamacpp", "tgi", "ollama", "openai"}

// id reads a name that is required. It may be anything that has no control characters.
func id(n strictyaml.Node, what string) string {
	text, ok := n.Text()
	switch {
	case !ok && !n.Absent():
		return ""
	case text == "":
		n.Wrong("must be %s", what)
	case len(text) > authority.MaxName:
		n.Wrong("must be at most %d bytes long", authority.MaxName)
	case strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }):
		n.Wrong("must not have control characters")
	}
	return text
}

// optional reads a name that may be absent.
func optional(n strictyaml.Node) string {
	if n.Str("") == "" {
		return ""
	}
	return id(n, "a name")
}

func (l *loader) models(list []strictyaml.Node) {
	for _, n := range list {
		m := n.Map()
		model := &authority.Model{
			ID:              id(m.Get("id"), "the name that clients ask for"),
			ContextWindow:   m.Get("context_window").Int(0, 1, maxTokens),
			MaxOutputTokens: m.Get("max_output_tokens").Int(0, 1, maxTokens),
			Created:         m.Get("created").Int(0, 0, 1<<40),
			Local:           l.local(m.Get("local")),
			Providers:       providers(m.Get("providers")),
			Weights:         weights(m.Get("weights")),
			At:              n.Pos(),
		}
		model.Price, model.Prices = prices(m.Get("price"))
		model.Dedicated = dedicated(m.Get("dedicated"), model)
		if model.ContextWindow > 0 && model.MaxOutputTokens > model.ContextWindow {
			m.Get("max_output_tokens").Wrong("must be at most the context_window, %d", model.ContextWindow)
		}
		m.End()
		l.c.Models = append(l.c.Models, model)
	}
}

func (l *loader) local(n strictyaml.Node) *authority.Local {
	if n.Absent() {
		return nil
	}
	m := n.Map()
	local := &authority.Local{
		Engine:     m.Get("engine").OneOf("openai", engines...),
		Model:      optional(m.Get("model")),
		Pool:       optional(m.Get("pool")),
		APIKey:     l.secret(m.Get("api_key_env")),
		Operations: operations(m.Get("operations")),
		Apart:      m.Get("reasoning_apart").Bool(false),
	}
	replicas := m.Get("replicas")
	list := replicas.List()
	if len(list) == 0 || len(list) > maxReplicas {
		replicas.Wrong("must be from 1 to %d base URLs", maxReplicas)
	}
	seen := map[string]bool{}
	for _, item := range list {
		base, labels := replica(item)
		if base == "" {
			continue
		}
		if seen[base] {
			item.Wrong("stands twice: a replica may stand once")
		}
		seen[base] = true
		local.Replicas, local.Labels = append(local.Replicas, base), append(local.Labels, labels)
	}
	m.End()
	return local
}

// replica reads a base URL, or a map with one and the labels that policies match.
func replica(n strictyaml.Node) (base string, labels authority.Labels) {
	if !n.IsMap() {
		if base = n.URL("", "http", "https"); base == "" && n.Str("") == "" {
			n.Wrong("must be a base URL")
		}
		return base, labels
	}
	m := n.Map()
	base = m.Get("url").URL("", "http", "https")
	if u := m.Get("url"); u.Absent() {
		u.Wrong("must be a base URL")
	}
	labels = authority.Labels{Region: optional(m.Get("region")), Organization: optional(m.Get("organization")),
		Machine: optional(m.Get("machine")), GPUModel: optional(m.Get("gpu_model")), Capacity: m.Get("capacity").Int(0, 1, maxTries)}
	for _, tag := range m.Get("tags").List() {
		labels.Tags = append(labels.Tags, id(tag, "a tag"))
	}
	m.End()
	return base, labels
}

func operations(n strictyaml.Node) []wire.Operation {
	var ops []wire.Operation
	for _, item := range n.List() {
		op, found := wire.Named(item.Str(""))
		if !found {
			item.Wrong("must be one of chat, completions, embeddings, rerank, responses, messages, count_tokens")
			continue
		}
		ops = append(ops, op)
	}
	return ops
}

func providers(n strictyaml.Node) []authority.Route {
	var routes []authority.Route
	for _, item := range n.List() {
		m := item.Map()
		routes = append(routes, authority.Route{Connection: id(m.Get("connection"), "the id of a connection"), Model: optional(m.Get("model")), Pool: optional(m.Get("pool"))})
		m.End()
	}
	return routes
}

// weights reads how many tokens a token counts for. What is not given counts once.
func weights(n strictyaml.Node) authority.Weights {
	if n.Absent() {
		return authority.Weights{}
	}
	m := n.Map()
	read := func(field string) int64 { return m.Get(field).Decimal(1000, weightDigits, maxWeight) }
	w := authority.Weights{Input: read("input"), Cached: read("cached"), Output: read("output")}
	m.End()
	if w == (authority.Weights{Input: 1000, Cached: 1000, Output: 1000}) {
		return authority.Weights{}
	}
	return w
}

// dedicated reads an endpoint's own limits. Its default output is capped at the model's maximum.
func dedicated(n strictyaml.Node, model *authority.Model) *authority.Dedicated {
	if n.Absent() {
		return nil
	}
	m := n.Map()
	d := &authority.Dedicated{
		Limits: authority.Limits{
			RPM: m.Get("rpm").Int(0, 1, authority.MaxRPM), TPM: m.Get("tpm").Int(0, 1, authority.MaxTPM),
			Concurrency: m.Get("concurrency").Int(0, 1, authority.MaxConcurrency), RPS: m.Get("rps").Int(0, 1, authority.MaxRPS),
			Closed: m.Get("outage_mode").OneOf("bounded_open", "bounded_open", "closed") == "closed",
		},
		QueueMS:                m.Get("queue_ms").Int(0, 0, maxQueueMS),
		DefaultMaxOutputTokens: m.Get("default_max_output_tokens").Int(0, 1, maxTokens),
	}
	if d.QueueMS > 0 && d.Limits.RPS == 0 {
		m.Get("queue_ms").Wrong("must stand beside rps: it is how long a paced request may wait")
	}
	if most := model.MaxOutputTokens; most > 0 && d.DefaultMaxOutputTokens > most {
		d.DefaultMaxOutputTokens = most
	}
	m.End()
	return d
}

// secret reads the name of a variable and gives a way to ask for it at each call; nil without one.
func (l *loader) secret(n strictyaml.Node) func() string {
	name := n.Str("")
	if name == "" {
		return nil
	}
	if strings.ContainsFunc(name, func(c rune) bool {
		return c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	}) {
		n.Wrong("must be the name of an environment variable")
		return nil
	}
	if l.env(name) == "" {
		l.warn(n.Pos(), n.Path(), name, "names a variable that is not set")
	}
	env := l.env
	return func() string { return env(name) }
}

func (l *loader) connections(list []strictyaml.Node) {
	for _, n := range list {
		m := n.Map()
		c := &authority.Connection{
			ID:         id(m.Get("id"), "a name"),
			Provider:   id(m.Get("provider"), "a provider's label, such as openai or anthropic"),
			BaseURL:    m.Get("base_url").URL("", "http", "https"),
			Pool:       optional(m.Get("pool")),
			Version:    optional(m.Get("version")),
			Region:     optional(m.Get("region")),
			APIKey:     l.secret(m.Get("api_key_env")),
			Operations: operations(m.Get("operations")),
			Apart:      m.Get("reasoning_apart").Bool(false),
			At:         n.Pos(),

			HouseFallback: m.Get("house_fallback").Bool(false),
		}
		if org := optional(m.Get("org")); org != "" {
			c.Org = authority.OrgOf(org)
		} else if c.HouseFallback {
			m.Get("house_fallback").Wrong("must stand beside org: it is for accounts of an org's own")
		}
		if c.APIKey == nil {
			c.APIKey = func() string { return "" }
		}
		if c.BaseURL == "" && c.Provider != "openai" && c.Provider != "anthropic" && m.Get("base_url").Absent() {
			m.Get("base_url").Wrong("must be given for the provider %s", c.Provider)
		}
		m.End()
		l.c.Connections = append(l.c.Connections, c)
	}
}

func (l *loader) pools(list []strictyaml.Node) {
	for _, n := range list {
		m := n.Map()
		required := func(field string, most int64) int64 {
			f := m.Get(field)
			if f.Absent() {
				f.Wrong("must be given: a finite number above 0")
			}
			return f.Int(1, 1, most)
		}
		p := authority.DeclaredPool{
			At: n.Pos(), ID: id(m.Get("id"), "a name"), Provider: id(m.Get("provider"), "a provider's label, such as openai or anthropic"),
			RPM: required("rpm", authority.MaxQuota), TPM: required("tpm", authority.MaxQuota), Concurrency: required("concurrency", authority.MaxQuota),
			HeadroomPercent: m.Get("headroom_percent").Int(authority.DefaultHeadroom, 1, 100),
			Parent:          optional(m.Get("parent")),
			FairShare:       l.share(m.Get("fair_share")),
		}
		if org := optional(m.Get("org")); org != "" {
			p.Org = authority.OrgOf(org)
		}
		m.End()
		l.c.Pools = append(l.c.Pools, p)
	}
}

// share reads an org's share of a house pool in millionths; 0 when it is not given.
func (l *loader) share(n strictyaml.Node) int64 {
	text, ok := n.Text()
	if !ok {
		return 0
	}
	v, err := authority.ParseFraction(text)
	if err != nil || v == 0 {
		n.Wrong("must be greater than 0 and at most 1: 0.5 is half")
		return 0
	}
	return v
}
