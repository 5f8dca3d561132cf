package eventstest

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"path"
	"strings"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"pgregory.net/rapid"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/schemas"
)

const schemaBase = "https://github.com/weirhq/weir/schemas/events/"

// contract is the schemas, read strictly: what a schema does not declare, no event may have.
type contract struct {
	byName map[string]*jsonschema.Schema
}

func newContract(t *testing.T) *contract {
	t.Helper()
	names, err := fs.Glob(schemas.Events(), "*.schema.json")
	if err != nil || len(names) == 0 {
		t.Fatalf("no schemas: %v", err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	for _, name := range names {
		doc := readJSON(t, name)
		if id := doc.(map[string]any)["$id"]; id != schemaBase+name {
			t.Errorf("%s: $id is %v, want %s", name, id, schemaBase+name)
		}
		closeObjects(doc)
		if err := compiler.AddResource(schemaBase+name, doc); err != nil {
			t.Fatal(err)
		}
	}
	c := &contract{map[string]*jsonschema.Schema{}}
	for _, name := range names {
		schema, err := compiler.Compile(schemaBase + name)
		if err != nil {
			t.Fatal(err)
		}
		c.byName[strings.TrimSuffix(name, ".schema.json")] = schema
	}
	return c
}

// closeObjects makes every object of a schema refuse properties that it does not declare.
func closeObjects(node any) {
	switch node := node.(type) {
	case map[string]any:
		if _, has := node["properties"]; has && node["type"] == "object" {
			if _, open := node["additionalProperties"]; !open {
				node["additionalProperties"] = false
			}
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
	text, err := fs.ReadFile(schemas.Events(), name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func readJSON(t *testing.T, name string) any {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(readFile(t, name)))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return doc
}

// holds says what of a text breaks a schema.
func (c *contract) holds(name string, text []byte) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	return c.byName[name].Validate(doc)
}

// again decodes what a schema of a name describes and encodes it.
func again(name string, text []byte) ([]byte, error) {
	switch name {
	case "pack":
		evs, err := events.DecodePack(text)
		return events.AppendPack(nil, evs), err
	case "verdict":
		verdicts, err := events.DecodeVerdicts([]byte("[" + string(text) + "]"))
		if err != nil {
			return nil, err
		}
		return events.AppendVerdict(nil, &verdicts[0]), nil
	case "event":
		evs, err := events.DecodePack([]byte("[" + string(text) + "]"))
		if err != nil {
			return nil, err
		}
		pack := events.AppendPack(nil, evs)
		return pack[1 : len(pack)-1], nil
	}
	d, err := events.DecodeData(events.ParseKind(name).Type(), text)
	if err != nil {
		return nil, err
	}
	return events.AppendData(nil, d), nil
}

// described names the schema that an example belongs to: the longest name that it begins with.
func (c *contract) described(example string) string {
	base := strings.TrimSuffix(path.Base(example), ".json")
	for {
		if _, ok := c.byName[base]; ok {
			return base
		}
		i := strings.LastIndexByte(base, '-')
		if i < 0 {
			return ""
		}
		base = base[:i]
	}
}

func TestGoldenExamples(t *testing.T) {
	c := newContract(t)
	names, err := fs.Glob(schemas.Events(), "examples/*.json")
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, name := range names {
		t.Run(path.Base(name), func(t *testing.T) {
			schema := c.described(name)
			if schema == "" {
				t.Fatal("belongs to no schema")
			}
			count[schema]++
			text := readFile(t, name)
			if err := c.holds(schema, text); err != nil {
				t.Errorf("breaks its schema: %v", err)
			}
			got, err := again(schema, text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(decoded(t, text), decoded(t, got)); diff != "" {
				t.Errorf("decoded and encoded again (- golden, + again):\n%s", diff)
			}
		})
	}
	for name := range c.byName {
		if name != "defs" && name != "event" && count[name] < 2 {
			t.Errorf("schema %s has %d examples, want at least 2", name, count[name])
		}
	}
	for _, kind := range Kinds() {
		if c.byName[kind.String()] == nil {
			t.Errorf("kind %s has no schema", kind)
		}
	}
}

func decoded(t *testing.T, text []byte) any {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("no JSON: %v\n%s", err, text)
	}
	return v
}

// A test of the tests: what a schema must refuse.
func TestSchemasRefuse(t *testing.T) {
	c := newContract(t)
	for _, bad := range []struct{ schema, text, why string }{
		{"reserve", `{"request":"r","org":"acme","gateway":"g","epoch":1}`, "no claims"},
		{"reserve", `{"request":"r","org":"a/b","gateway":"g","epoch":1,"claims":[]}`, "an org that is no token"},
		{"reserve", `{"request":"r","org":"acme","gateway":"g","epoch":1,"claims":[{"meter":"org/acme/rpm","kind":"window","amount":1.5}]}`, "an amount that is no integer"},
		{"reserve", `{"request":"r","org":"acme","gateway":"g","epoch":1,"claims":[],"unheard":1}`, "a field that is not declared"},
		{"true-up", `{"request":"r","gateway":"g","quality":"exact","charges":{"total":-1}}`, "a negative charge"},
		{"release", `{"request":"r","gateway":"g","of":"everything","dispatched":"yes"}`, "another word for what is released"},
		{"verdict", `{"request":"r","attempt":0,"seq":1,"time":"yesterday","outcome":"admitted","parked_ms":0,"wait_ms":0,"used":[],"shadow":[],"refusal":null}`, "no instant"},
		{"event", `{"specversion":"1.0","id":"a","source":"g","type":"weir.fence.v1","data":{"org":"acme"}}`, "data that breaks its kind's schema"},
	} {
		if err := c.holds(bad.schema, []byte(bad.text)); err == nil {
			t.Errorf("%s admits %s: %s", bad.schema, bad.why, bad.text)
		}
	}
}

func TestRandomDataHoldsItsSchema(t *testing.T) {
	c := newContract(t)
	for _, kind := range Kinds() {
		t.Run(kind.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				want := Data(kind).Draw(t, "data")
				text := events.AppendData(nil, want)
				if err := c.holds(kind.String(), text); err != nil {
					t.Fatalf("%v\n%s", err, text)
				}
				got, err := events.DecodeData(kind.Type(), text)
				if err != nil {
					t.Fatalf("%v\n%s", err, text)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("decoded (- encoded, + decoded):\n%s\n%s", diff, text)
				}
			})
		})
	}
}

func TestRandomPackIsABatchOfCloudEvents(t *testing.T) {
	c := newContract(t)
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(Events(), 1, 4).Draw(t, "events")
		text := events.AppendPack(nil, want)
		if err := c.holds("pack", text); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		var batch []cloudevents.Event
		if err := json.Unmarshal(text, &batch); err != nil {
			t.Fatalf("no CloudEvents batch: %v\n%s", err, text)
		}
		for i := range batch {
			if err := batch[i].Validate(); err != nil {
				t.Fatalf("element %d is no valid event: %v\n%s", i, err, text)
			}
			if batch[i].ID() != want[i].ID || batch[i].Type() != events.TypeOf(want[i].Data) || batch[i].Extensions()["org"] != string(want[i].Org) {
				t.Fatalf("element %d is read as %s, want %+v", i, batch[i], want[i])
			}
		}
		got, err := events.DecodePack(text)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("decoded (- encoded, + decoded):\n%s\n%s", diff, text)
		}
	})
}

func TestRandomVerdicts(t *testing.T) {
	c := newContract(t)
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(Verdict(), 1, 4).Draw(t, "verdicts")
		for i := range want {
			if text := events.AppendVerdict(nil, &want[i]); c.holds("verdict", text) != nil {
				t.Fatalf("%v\n%s", c.holds("verdict", text), text)
			}
		}
		got, err := events.DecodeVerdicts(events.AppendVerdicts(nil, want))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("decoded (- encoded, + decoded):\n%s", diff)
		}
	})
}
