package config

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"sort"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// schemaFile describes weir.yaml to editors.
const schemaFile = "../../schemas/config/weir.schema.json"

// node is what is read of a schema.
type node struct {
	Ref                  string           `json:"$ref"`
	Defs                 map[string]*node `json:"$defs"`
	Type                 any
	Description          string
	Properties           map[string]*node
	AdditionalProperties json.RawMessage
	Items                *node
	OneOf                []*node
	Enum                 []any
	Examples             []any
	Default              any
	Minimum              *int64
}

func schema(t *testing.T) (*node, *jsonschema.Schema) {
	t.Helper()
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	var n node
	if err := json.Unmarshal(text, &n); err != nil {
		t.Fatalf("%s: %v", schemaFile, err)
	}
	s, err := jsonschema.NewCompiler().Compile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	return &n, s
}

// sample makes a document that has every field of a schema, and notes their paths; a name of a map is "*", an item of a list "[]".
func (n *node) sample(root *node, path string, paths map[string]bool) any {
	if path != "" {
		paths[path] = true
	}
	if n.Ref != "" {
		return root.Defs[strings.TrimPrefix(n.Ref, "#/$defs/")].sample(root, path, paths)
	}
	for _, one := range n.OneOf { // the form with the most fields
		if len(one.Properties) > 0 || one.Ref != "" {
			return one.sample(root, path, paths)
		}
	}
	var names *node
	if len(n.AdditionalProperties) > 0 && n.AdditionalProperties[0] == '{' {
		names = &node{}
		_ = json.Unmarshal(n.AdditionalProperties, names) // it is part of a document that was read
	}
	join := func(field string) string { return strings.TrimPrefix(path+"."+field, ".") }
	switch {
	case len(n.Properties) > 0:
		m := map[string]any{}
		for name, p := range n.Properties {
			m[name] = p.sample(root, join(name), paths)
		}
		return m
	case names != nil:
		return map[string]any{"acme": names.sample(root, join("*"), paths)}
	case n.Items != nil:
		return []any{n.Items.sample(root, path+"[]", paths)}
	case len(n.Enum) > 0:
		return n.Enum[0]
	case len(n.Examples) > 0:
		return n.Examples[0]
	case n.Default != nil:
		return n.Default
	case n.Type == "integer":
		return 1
	case n.Type == "boolean":
		return true
	default:
		return "name"
	}
}

var index = regexp.MustCompile(`\[\d+\]`)

// TestSchemaHasEveryField: what the loader asks for, the schema has, and the other way round.
func TestSchemaHasEveryField(t *testing.T) {
	n, s := schema(t)
	described := map[string]bool{}
	doc := n.sample(n, "", described)
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	var again any
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(again); err != nil {
		t.Errorf("the schema's own examples do not fit it: %v", err)
	}
	asked := map[string]bool{}
	_, _, _ = parse("weir.yaml", text, vars{}.get, func(path string) { // some fields exclude others; which are asked for is the question
		path = strings.ReplaceAll(index.ReplaceAllString(path, "[]"), ".acme", ".*")
		for i := range path { // lists and maps of names are asked for as a whole
			if path[i] == '[' || path[i] == '.' {
				asked[path[:i]] = true
			}
		}
		asked[path] = true
	})
	var missing, stale []string
	for path := range asked {
		if !described[path] {
			missing = append(missing, path)
		}
	}
	for path := range described {
		if !asked[path] && !strings.HasSuffix(path, "[]") && !strings.HasSuffix(path, ".*") {
			stale = append(stale, path)
		}
	}
	sort.Strings(missing)
	sort.Strings(stale)
	for _, path := range missing {
		t.Errorf("the loader reads %s and %s does not have it: add it under \"properties\" there, with type and description; of a text that must have a form, with an example", path, schemaFile)
	}
	for _, path := range stale {
		t.Errorf("%s has %s and the loader never asks for it: take it out there", schemaFile, path)
	}
	if len(asked) < 90 {
		t.Errorf("only %d fields were asked for", len(asked))
	}
}

// TestSchemaTakesWhatIsValid: the configurations that the documents show fit the schema, and a misspelt field does not.
func TestSchemaTakesWhatIsValid(t *testing.T) {
	_, s := schema(t)
	var every func(n *node, path string)
	every = func(n *node, path string) {
		if n.Description == "" && path != "" && len(n.OneOf) == 0 && n.Ref == "" && !strings.HasSuffix(path, "[]") {
			t.Errorf("%s: %s has no description", schemaFile, path)
		}
		for name, p := range n.Properties {
			every(p, strings.TrimPrefix(path+"."+name, "."))
		}
		if n.Items != nil {
			every(n.Items, path+"[]")
		}
	}
	n, _ := schema(t)
	every(n, "")
	for name, def := range n.Defs {
		every(def, "$defs."+name)
	}
	for text, fits := range map[string]bool{
		`{}`: true,
		`{"listen": "0.0.0.0:8080", "orgs": {"acme": {"limits": {"rpm": 600, "outage_mode": "closed"}}}, "pools": [{"id": "house", "provider": "openai", "rpm": 1, "tpm": 1, "concurrency": 1}]}`: true,
		`{"lisen": "0.0.0.0:8080"}`:                  false,
		`{"log": {"sync": "always", "replicas": 2}}`: false,
		`{"models": [{}]}`:                           false,
	} {
		var doc any
		if err := json.Unmarshal([]byte(text), &doc); err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(doc); (err == nil) != fits {
			t.Errorf("%s: %v", text, fmt.Sprint(err))
		}
	}
}
