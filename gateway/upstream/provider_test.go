package upstream

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/gateway/wire"
)

func key() string { return "secret" }

func TestTargetsOfEachProvider(t *testing.T) {
	for _, c := range []struct {
		name       string
		connection Connection
		op         wire.Operation
		url        string // "" when it is not served
		header     http.Header
	}{
		{"openai", Connection{Provider: "openai"}, wire.Chat, "https://api.openai.com/v1/chat/completions", http.Header{"Authorization": {"Bearer secret"}}},
		{"openai, an SDK's base", Connection{Provider: "openai", BaseURL: "http://proxy:8080/openai/v1/"}, wire.Responses, "http://proxy:8080/openai/v1/responses", http.Header{"Authorization": {"Bearer secret"}}},
		{"openai, the other format", Connection{Provider: "openai"}, wire.Messages, "", nil},
		{"another label", Connection{Provider: "together", BaseURL: "https://api.together.xyz/v1"}, wire.Rerank, "https://api.together.xyz/v1/rerank", http.Header{"Authorization": {"Bearer secret"}}},
		{"another label speaks one format", Connection{Provider: "together", BaseURL: "https://api.together.xyz/v1"}, wire.Messages, "", nil},
		{"openai, told so", Connection{Provider: "openai", BaseURL: "http://x", Operations: []wire.Operation{wire.Rerank}}, wire.Rerank, "http://x/v1/rerank", http.Header{"Authorization": {"Bearer secret"}}},
		{"openai, told not to", Connection{Provider: "openai", Operations: []wire.Operation{wire.Rerank}}, wire.Chat, "", nil},
		{"anthropic", Connection{Provider: "anthropic"}, wire.Messages, "https://api.anthropic.com/v1/messages", http.Header{"X-Api-Key": {"secret"}}},
		{"anthropic, count", Connection{Provider: "anthropic"}, wire.CountTokens, "https://api.anthropic.com/v1/messages/count_tokens", http.Header{"X-Api-Key": {"secret"}}},
		{"anthropic, the other format", Connection{Provider: "anthropic"}, wire.Chat, "", nil},
		{"azure", Connection{Provider: "azure", BaseURL: "https://r.openai.azure.com"}, wire.Chat, "https://r.openai.azure.com/openai/v1/chat/completions", http.Header{"Api-Key": {"secret"}}},
		{"azure, an SDK's base", Connection{Provider: "azure", BaseURL: "https://r.openai.azure.com/openai/v1"}, wire.Responses, "https://r.openai.azure.com/openai/v1/responses", http.Header{"Api-Key": {"secret"}}},
		{"azure, older", Connection{Provider: "azure", BaseURL: "https://r.openai.azure.com", APIVersion: "2024-10-21"}, wire.Embeddings, "https://r.openai.azure.com/openai/deployments/my%20model/embeddings?api-version=2024-10-21", http.Header{"Api-Key": {"secret"}}},
		{"azure, older responses", Connection{Provider: "azure", BaseURL: "https://r.openai.azure.com", APIVersion: "2025-04-01-preview"}, wire.Responses, "https://r.openai.azure.com/openai/responses?api-version=2025-04-01-preview", http.Header{"Api-Key": {"secret"}}},
		{"azure, messages", Connection{Provider: "azure", BaseURL: "https://r.services.ai.azure.com"}, wire.Messages, "https://r.services.ai.azure.com/anthropic/v1/messages", http.Header{"X-Api-Key": {"secret"}}},
		{"azure, no messages", Connection{Provider: "azure", BaseURL: "https://r.openai.azure.com"}, wire.Messages, "", nil},
		{"bedrock", Connection{Provider: "bedrock", BaseURL: "https://bedrock-runtime.us-west-2.amazonaws.com"}, wire.Chat, "https://bedrock-runtime.us-west-2.amazonaws.com/openai/v1/chat/completions", http.Header{"Authorization": {"Bearer secret"}}},
		{"bedrock, messages", Connection{Provider: "bedrock", BaseURL: "https://bedrock-runtime.us-west-2.amazonaws.com"}, wire.Messages, "https://bedrock-runtime.us-west-2.amazonaws.com/model", http.Header{"Authorization": {"Bearer secret"}}},
		{"bedrock runtime has no more", Connection{Provider: "bedrock", BaseURL: "https://bedrock-runtime.us-west-2.amazonaws.com"}, wire.Responses, "", nil},
		{"bedrock mantle", Connection{Provider: "bedrock", BaseURL: "https://bedrock-mantle.eu-west-1.api.aws/v1"}, wire.Responses, "https://bedrock-mantle.eu-west-1.api.aws/v1/responses", http.Header{"Authorization": {"Bearer secret"}}},
		{"bedrock mantle, messages", Connection{Provider: "bedrock", BaseURL: "https://bedrock-mantle.eu-west-1.api.aws"}, wire.Messages, "https://bedrock-mantle.eu-west-1.api.aws/anthropic/v1/messages", http.Header{"X-Api-Key": {"secret"}}},
	} {
		c.connection.ID, c.connection.Key, c.connection.Pool = "c1", key, "p1"
		if err := c.connection.Validate(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		target, ok := c.connection.Target(c.op, "my model")
		if ok != (c.url != "") || target.URL != c.url {
			t.Errorf("%s: %v, %q", c.name, ok, target.URL)
			continue
		}
		if !ok {
			continue
		}
		for name, v := range c.header {
			if !slices.Equal(target.Header[name], v) || len(target.Header) != 1 {
				t.Errorf("%s: headers %v", c.name, target.Header)
			}
		}
		if target.Deployment != "c1/my model" || target.Pool != "p1" || target.Format != c.op.Format() || target.Local || target.Provider != c.connection.Provider ||
			target.OldField != strings.HasPrefix(c.name, "another label") {
			t.Errorf("%s: %+v", c.name, target)
		}
	}
}

// TestACallEndsOnTheKeyItBeganWith: a new key is for new calls.
func TestACallEndsOnTheKeyItBeganWith(t *testing.T) {
	current := "old"
	n := Connection{ID: "c", Provider: "openai", Key: func() string { return current }}
	before, _ := n.Target(wire.Chat, "m")
	current = "new"
	after, _ := n.Target(wire.Chat, "m")
	if before.Header.Get("Authorization") != "Bearer old" || after.Header.Get("Authorization") != "Bearer new" {
		t.Errorf("%v, %v", before.Header, after.Header)
	}
}

func TestTheOrderOfRoutes(t *testing.T) {
	connections := []Connection{
		{ID: "oa1", Provider: "openai", Key: key}, {ID: "oa2", Provider: "openai", Key: key, Pool: "house"}, {ID: "an1", Provider: "anthropic", Key: key},
		{ID: "az1", Provider: "azure", BaseURL: "https://r.services.ai.azure.com", Key: key}, {ID: "br1", Provider: "bedrock", BaseURL: "https://bedrock-mantle.x.api.aws", Key: key},
	}
	local := &Local{Engine: "tgi", Replicas: []string{"http://10.0.0.1:8000"}, Model: "tgi-model"}
	offers := []Offer{{Connection: "an1"}, {Connection: "oa1", Model: "gpt"}, {Connection: "az1"}, {Connection: "oa2"}, {Connection: "br1"}}
	for _, c := range []struct {
		name  string
		model Model
		op    wire.Operation
		want  string
	}{
		{"local first, then one label", Model{Local: local, Providers: offers}, wire.Chat, "local/tgi-model oa1/gpt oa2/m"},
		{"the label that serves the format", Model{Local: local, Providers: offers}, wire.Messages, "an1/m"},
		{"and the fallback's label, and last the fallback", Model{Local: local, Providers: offers, Fallback: &Offer{Connection: "az1", Model: "big"}}, wire.Chat, "local/tgi-model oa1/gpt oa2/m az1/m az1/big"},
		{"the fallback's serve the format or not", Model{Providers: offers, Fallback: &Offer{Connection: "oa1"}}, wire.Messages, "an1/m"},
		{"the fallback is of the label", Model{Providers: offers, Fallback: &Offer{Connection: "oa1", Model: "mini"}}, wire.Responses, "oa1/gpt oa2/m oa1/mini"},
		{"the fallback stands among the providers", Model{Providers: offers, Fallback: &Offer{Connection: "oa1", Model: "gpt"}}, wire.Responses, "oa1/gpt oa2/m"},
		{"the fallback alone", Model{Local: local, Fallback: &Offer{Connection: "oa2", Model: "gpt"}}, wire.Chat, "local/tgi-model oa2/gpt"},
		{"an offer's own pool", Model{Providers: []Offer{{Connection: "oa2", Pool: "apart"}, {Connection: "oa1", Pool: "whole"}}}, wire.Chat, "oa2/m:apart oa1/m:whole"},
		{"none serves it", Model{Local: local}, wire.Embeddings, ""},
	} {
		c.model.ID = "m"
		s, err := New(Config{Connections: connections, Models: []Model{c.model}}, Options{Now: time.Now})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		routes, known := s.Routes("m", c.op, "")
		var got []string
		for _, r := range routes {
			name := r.Deployment
			if strings.Contains(c.want, ":") {
				name += ":" + r.Pool
			}
			got = append(got, name)
			if r.Local {
				if _, _, ok := r.Pick(); ok {
					t.Errorf("%s: a replica that was never probed was picked", c.name)
				}
				continue
			}
			target, done, ok := r.Pick()
			if !ok || target.Deployment != r.Deployment || target.Pool != r.Pool {
				t.Errorf("%s: %+v, %v", c.name, target, ok)
				continue
			}
			done(0, 200)
			if _, _, again := r.Pick(); again {
				t.Errorf("%s: %s was picked twice", c.name, r.Deployment)
			}
		}
		if !known || strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", c.name, got, c.want)
		}
		if _, known := s.Routes("other", c.op, ""); known {
			t.Errorf("%s: another model is known", c.name)
		}
	}
}

func TestEveryFaultIsNamed(t *testing.T) {
	c := Config{
		Connections: []Connection{
			{ID: "", Provider: "cohere", Key: key},
			{ID: "f", Key: key},
			{ID: "a", Provider: "azure", Key: key},
			{ID: "a", Provider: "openai", BaseURL: "ftp://x", APIVersion: "1"},
			{ID: "b", Provider: "openai", BaseURL: "https://user:pass@host", Key: key},
			{ID: "d", Provider: "openai", BaseURL: "https://host?x=1", Key: key},
			{ID: "e", Provider: "openai", BaseURL: "https://", Key: key},
		},
		Models: []Model{
			{ID: "m"},
			{ID: "m", Providers: []Offer{{Connection: "zz"}}, Fallback: &Offer{Connection: "nobody"}},
			{ID: "", Local: &Local{Engine: "mlx", Replicas: []string{"http://h:1", "http://h:1/v1/", "nope"}, Capacity: []int64{1},
				Steps: []Step{{Replicas: []int{3}, MaxTries: -1, Exclude: []Bound{{Metric: KVCache, Op: ">"}, {Metric: "luck", Op: "gt"}}}}}},
			{ID: "n", Local: &Local{}},
		},
	}
	_, err := New(c, Options{Now: time.Now})
	if err == nil {
		t.Fatal("it was taken")
	}
	for _, want := range []string{
		`connections[0].id: it must not be empty`, `connections[0].base_url: cohere needs one`, `connections[1].provider: it must not be empty`,
		`connections[2].base_url: azure needs one`, `connections[3].id: "a" is used twice`, `connections[3].base_url: "ftp://x" must begin with http:// or https://`,
		`connections[3]: there is no key`, `connections[3].version: only azure has one`, `connections[4].base_url: a base URL must not carry credentials`,
		`connections[5].base_url: "https://host?x=1" must have neither query nor fragment`, `connections[6].base_url: "https://" has no host`,
		`models[0]: the model has neither local replicas nor providers`, `models[1].id: "m" is used twice`,
		`models[1].providers[0].connection: there is no connection "zz"`, `models[1].fallback_provider: there is no connection "nobody"`,
		`models[2].id: it must not be empty`, `models[2].local.engine: "mlx" is none of`, `models[2].local.replicas[1]: "http://h:1/v1/" is listed twice`,
		`models[2].local.replicas[2]: "nope" must begin with`, `models[2].local.capacity: there are 1, and must be one for each of 3 replicas`, `models[2].local.steps[0].replicas: there is no replica 3`,
		`models[2].local.steps[0].max_tries: -1 is negative`, `models[2].local.steps[0].exclude_if.kv_cache_utilization: ">" is none of`,
		`models[2].local.steps[0].exclude_if: "luck" is no metric`,
		`models[3].local.replicas: there are 0, and must be 1 to 256`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("missing: %s", want)
		}
	}
	if strings.Contains(err.Error(), "pass") {
		t.Error("the error carries a password")
	}
}

func TestBounds(t *testing.T) {
	for _, c := range []struct {
		op   string
		at   float64
		want [3]bool // below, at, above
	}{{"gt", 5, [3]bool{false, false, true}}, {"gte", 5, [3]bool{false, true, true}}, {"lt", 5, [3]bool{true, false, false}}, {"lte", 5, [3]bool{true, true, false}}} {
		b := Bound{Op: c.op, Value: c.at}
		if got := [3]bool{b.Holds(4), b.Holds(5), b.Holds(6)}; got != c.want {
			t.Errorf("%s: %v", c.op, got)
		}
	}
}
