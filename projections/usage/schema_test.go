package usage

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"pgregory.net/rapid"

	schemas "github.com/weirhq/weir/schemas/usage"
)

// contract reads the schemas strictly: what they do not declare, no line may have.
func contract(t *testing.T) map[string]*jsonschema.Schema {
	t.Helper()
	const base = "https://github.com/weirhq/weir/schemas/usage/"
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	for _, name := range []string{"usage", "event"} {
		doc := readJSON(t, readFile(t, name+".schema.json"))
		closeObjects(doc)
		if err := compiler.AddResource(base+name+".schema.json", doc); err != nil {
			t.Fatal(err)
		}
	}
	all := map[string]*jsonschema.Schema{}
	for _, name := range []string{"usage", "event"} {
		var err error
		if all[name], err = compiler.Compile(base + name + ".schema.json"); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func closeObjects(node any) {
	switch node := node.(type) {
	case map[string]any:
		if _, has := node["properties"]; has {
			node["additionalProperties"] = false
		}
		for _, child := range node {
			closeObjects(child)
		}
	case []any:
		for _, child := range node {
			closeObjects(child)
		}
	}
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := schemas.Files().ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func readJSON(t interface{ Fatal(...any) }, text []byte) any {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// Each example holds its schema, and what is read of it and written again is the same.
func TestGoldenExamples(t *testing.T) {
	all := contract(t)
	names, err := fs.Glob(schemas.Files(), "examples/*.json")
	if err != nil || len(names) < 5 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		text := readFile(t, name)
		kind, _, _ := strings.Cut(strings.TrimSuffix(path.Base(name), ".json"), "-")
		if err := all[kind].Validate(readJSON(t, text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		data := text
		var event struct {
			ID   string
			Data json.RawMessage
		}
		if kind == "event" {
			if err := json.Unmarshal(text, &event); err != nil {
				t.Fatal(err)
			}
			data = event.Data
		}
		l, err := Decode(data)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(readJSON(t, data), readJSON(t, l.Encode())); diff != "" {
			t.Errorf("%s (- example, + written again):\n%s", name, diff)
		}
		if kind == "event" && event.ID != l.EventID() {
			t.Errorf("%s has id %s, its line gives %s", name, event.ID, l.EventID())
		}
	}
}

func TestLinesHoldTheirSchema(t *testing.T) {
	schema := contract(t)["usage"]
	rapid.Check(t, func(rt *rapid.T) {
		for _, l := range linesOf(history(rt, false)) {
			if err := schema.Validate(readJSON(rt, l.Encode())); err != nil {
				rt.Fatalf("%s\n%v", l.Encode(), err)
			}
		}
	})
}
