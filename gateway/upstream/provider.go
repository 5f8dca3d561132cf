package upstream

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

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
}

var (
	openAIOperations    = []wire.Operation{wire.Chat, wire.Completions, wire.Embeddings, wire.Responses}
	anthropicOperations = []wire.Operation{wire.Messages, wire.CountTokens}
	chatOnly            = []wire.Operation{wire.Chat}
	chatAndResponses    = []wire.Operation{wire.Chat, wire.Responses}
)

// provider is what the gateway knows of a label.
type provider struct {
	base    string
	serves  func(base *url.URL) []wire.Operation
	path    func(n *Connection, base *url.URL, op wire.Operation, model string) string
	secrets func(op wire.Operation, key string) (name, value string)
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
		secrets: func(_ wire.Operation, key string) (string, string) { return "X-Api-Key", key },
	},
	"azure":   {serves: azureOperations, path: azurePath, secrets: azureSecret},
	"bedrock": {serves: bedrockOperations, path: bedrockPath, secrets: bedrockSecret},
}

// providerOf gives what is known of a label. Any other label is a provider that speaks OpenAI's format at a base URL of its own.
func providerOf(label string) (p provider, known bool) {
	if p, known = providers[label]; known || label == "" {
		return p, known
	}
	p = providers["openai"]
	p.base, p.serves = "", func(*url.URL) []wire.Operation { return withRerank }
	return p, true
}

func bearer(_ wire.Operation, key string) (name, value string) {
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

func azureSecret(op wire.Operation, key string) (name, value string) {
	if op.Format() == wire.Anthropic {
		return "X-Api-Key", key
	}
	return "Api-Key", key
}

// mantle says whether a bedrock base URL is the host that speaks the SDKs' formats natively. The older runtime host speaks
// OpenAI's chat alone.
func mantle(base *url.URL) bool { return strings.HasPrefix(base.Hostname(), "bedrock-mantle.") }

func bedrockOperations(base *url.URL) []wire.Operation {
	if mantle(base) {
		return slices.Concat(chatAndResponses, anthropicOperations)
	}
	return chatOnly
}

func bedrockPath(_ *Connection, base *url.URL, op wire.Operation, _ string) string {
	switch {
	case op.Format() == wire.Anthropic:
		return "/anthropic" + op.Path()
	case mantle(base) || strings.HasSuffix(base.Path, "/openai"):
		return op.Path()
	}
	return "/openai" + op.Path()
}

func bedrockSecret(op wire.Operation, key string) (name, value string) {
	if op.Format() == wire.Anthropic {
		return "X-Api-Key", key
	}
	return bearer(op, key)
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
	name, value := p.secrets(op, n.Key())
	return Target{
		Deployment: n.ID + "/" + model,
		URL:        base.String() + p.path(n, base, op, model),
		Header:     http.Header{name: {value}},
		Model:      model,
		Provider:   n.Provider,
		Connection: n.ID,
		Pool:       n.Pool,
		Format:     op.Format(),
		Apart:      n.Apart,
		Own:        n.Owner != "",
	}, true
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
