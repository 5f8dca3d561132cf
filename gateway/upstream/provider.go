package upstream

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/weirhq/weir/gateway/bedrock"
	"github.com/weirhq/weir/gateway/relay"
	"github.com/weirhq/weir/gateway/wire"
)

// Target is one place that one call can go to, with the credentials that the call ends on.
type Target struct {
	Deployment string      // names it in events and logs: the replica's host and port, or connection/model
	URL        string      // absolute, for the operation
	Header     http.Header // credentials; must not be logged
	Model      string      // the upstream's name for the model
	Local      bool
	Provider   string // the label; for a local target the engine
	Connection string // "" for a local target
	Pool       string // quota pool to claim; "" for a local target or when none is known
	Format     wire.Format
	OldField   bool // the server knows max_tokens but not max_completion_tokens: wire.Edit.OldField
	Apart      bool // the upstream counts reasoning beside the output
	Own        bool // the account is the org's own

	Dialect relay.Dialect // how a call differs that is made there; usually nil
}

var (
	openAIOperations    = []wire.Operation{wire.Chat, wire.Completions, wire.Embeddings, wire.Responses}
	anthropicOperations = []wire.Operation{wire.Messages, wire.CountTokens}
	chatOnly            = []wire.Operation{wire.Chat}
	chatAndResponses    = []wire.Operation{wire.Chat, wire.Responses}
)

// provider is what the gateway knows of a label.
type provider struct {
	oldField bool // it may not know max_completion_tokens, as most that copied OpenAI's format early
	base     string
	serves   func(base *url.URL) []wire.Operation
	path     func(n *Connection, base *url.URL, op wire.Operation, model string) string
	secrets  func(base *url.URL, op wire.Operation, key string) (name, value string) // no name: none is sent
}

var providers = map[string]provider{
	"openai": {
		base:    "https://api.openai.com",
		serves:  func(*url.URL) []wire.Operation { return openAIOperations },
		path:    func(_ *Connection, _ *url.URL, op wire.Operation, _ string) string { return op.Path() },
		secrets: bearer,
	},
	"anthropic": {
		base:    "https://api.anthropic.com",
		serves:  func(*url.URL) []wire.Operation { return anthropicOperations },
		path:    func(_ *Connection, _ *url.URL, op wire.Operation, _ string) string { return op.Path() },
		secrets: func(_ *url.URL, _ wire.Operation, key string) (string, string) { return "X-Api-Key", key },
	},
	"azure":   {serves: azureOperations, path: azurePath, secrets: azureSecret},
	"bedrock": {serves: bedrockOperations, path: bedrockPath, secrets: bedrockSecret},
}

// providerOf gives what is known of a label. Any other label is a provider that speaks OpenAI's format at a base URL of its own.
func providerOf(label string) (p provider, known bool) {
	if p, known = providers[label]; known || label == "" {
		return p, known
	}
	return provider{serves: func(*url.URL) []wire.Operation { return withRerank }, path: providers["openai"].path, secrets: native, oldField: true}, true
}

// native sends a key as the format's own provider wants it.
func native(base *url.URL, op wire.Operation, key string) (name, value string) {
	if op.Format() == wire.Anthropic {
		return "X-Api-Key", key
	}
	return bearer(base, op, key)
}

func bearer(_ *url.URL, _ wire.Operation, key string) (name, value string) {
	return "Authorization", "Bearer " + key
}

// azureOperations: the resource's services.ai.azure.com host has Anthropic's models too.
func azureOperations(base *url.URL) []wire.Operation {
	if strings.HasSuffix(base.Hostname(), ".services.ai.azure.com") {
		return slices.Concat(openAIOperations, anthropicOperations)
	}
	return openAIOperations
}

func azurePath(n *Connection, base *url.URL, op wire.Operation, model string) string {
	if op.Format() == wire.Anthropic {
		return "/anthropic" + op.Path()
	}
	prefix := "/openai"
	if strings.HasSuffix(base.Path, "/openai") {
		prefix = ""
	}
	switch {
	case n.APIVersion == "":
		return prefix + op.Path()
	case op == wire.Responses: // without a deployment in any version
		return prefix + "/responses?api-version=" + url.QueryEscape(n.APIVersion)
	}
	return prefix + "/deployments/" + url.PathEscape(model) + strings.TrimPrefix(op.Path(), "/v1") + "?api-version=" + url.QueryEscape(n.APIVersion)
}

func azureSecret(_ *url.URL, op wire.Operation, key string) (name, value string) {
	if op.Format() == wire.Anthropic {
		return "X-Api-Key", key
	}
	return "Api-Key", key
}

func bedrockOperations(base *url.URL) []wire.Operation {
	if bedrock.Mantle(base) {
		return slices.Concat(chatAndResponses, anthropicOperations)
	}
	return slices.Concat(chatOnly, anthropicOperations)
}

// bedrockPath: Anthropic's requests at the runtime host have paths that their dialect makes.
func bedrockPath(_ *Connection, base *url.URL, op wire.Operation, _ string) string {
	switch {
	case op.Format() == wire.Anthropic && bedrock.Mantle(base):
		return "/anthropic" + op.Path()
	case op.Format() == wire.Anthropic:
		return "/model"
	case bedrock.Mantle(base) || strings.HasSuffix(base.Path, "/openai"):
		return op.Path()
	}
	return "/openai" + op.Path()
}

// bedrockSecret: an access key is not sent, but signed with.
func bedrockSecret(base *url.URL, op wire.Operation, key string) (name, value string) {
	if _, signs := bedrock.ParseKey(key); signs {
		return "", ""
	}
	if !bedrock.Mantle(base) {
		return bearer(base, op, key)
	}
	return native(base, op, key)
}

// Serves says whether the account takes requests of op.
func (n *Connection) Serves(op wire.Operation) bool {
	if n.Operations != nil {
		return slices.Contains(n.Operations, op)
	}
	base, p, ok := n.base()
	return ok && slices.Contains(p.serves(base), op)
}

func (n *Connection) base() (*url.URL, provider, bool) {
	p, known := providerOf(n.Provider)
	text := n.BaseURL
	if text == "" {
		text = p.base
	}
	base, err := parseBase(text)
	return base, p, known && err == nil
}

// Target returns where a call of op for the provider's model goes, with the key of this moment. ok is false when the
// connection is invalid or shut, or does not serve op.
func (n *Connection) Target(op wire.Operation, model string) (t Target, ok bool) {
	base, p, ok := n.base()
	if !ok || !n.Serves(op) || n.Key == nil || n.Shut {
		return Target{}, false
	}
	key := n.Key()
	t = Target{
		Deployment: n.ID + "/" + model,
		URL:        base.String() + p.path(n, base, op, model),
		Header:     http.Header{},
		Model:      model,
		Provider:   n.Provider,
		Connection: n.ID,
		Pool:       n.Pool,
		Format:     op.Format(),
		OldField:   p.oldField,
		Apart:      n.Apart,
		Own:        n.Owner != "",
	}
	if name, value := p.secrets(base, op, key); name != "" {
		t.Header[name] = []string{value}
	}
	if n.Provider == "bedrock" {
		account := bedrock.Target{Base: base, Region: n.Region, Model: model, Key: key}
		t.Dialect = account.Dialect(op)
	}
	return t, true
}

// engine is what the gateway knows of a model server.
type engine struct {
	serves   []wire.Operation
	metrics  bool // it has a /metrics worth asking for
	oldField bool
}

var engines = map[string]engine{
	"":         {serves: withRerank, metrics: true},
	"openai":   {serves: withRerank, metrics: true},
	"vllm":     {serves: wire.All(), metrics: true},
	"sglang":   {serves: wire.All(), metrics: true},
	"llamacpp": {serves: wire.All(), metrics: true},
	"ollama":   {serves: slices.Concat(openAIOperations, anthropicOperations[:1]), oldField: true},
	"tgi":      {serves: []wire.Operation{wire.Chat, wire.Completions}, metrics: true, oldField: true},
}

var withRerank = slices.Concat(openAIOperations, []wire.Operation{wire.Rerank})

func (l *Local) serves(op wire.Operation) bool {
	if l.Operations != nil {
		return slices.Contains(l.Operations, op)
	}
	return slices.Contains(engines[l.Engine].serves, op)
}
