package scenario

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/test/twin"
)

var rewrite = flag.Bool("rewrite", false, "write what the twin says as the expectation of scenarios that have none")

// TestScenarios runs every scenario through the twin.
func TestScenarios(t *testing.T) {
	for _, name := range scenarios(t) {
		t.Run(name, func(t *testing.T) {
			records := readScenario(t, name)
			compare(t, name, replayTwin(records))
		})
	}
}

func scenarios(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(files) < 26 {
		t.Fatalf("%d scenarios in testdata, %v; at least 26 are known", len(files), err)
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(filepath.Base(f), ".jsonl")
	}
	return files
}

func readScenario(t *testing.T, name string) []events.Record {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	records, err := ReadLog(f)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// replayTwin gives the lines that replaying with meters prints.
func replayTwin(records []events.Record) []string {
	var lines []string
	w := twin.New()
	for _, r := range records {
		for _, v := range w.Apply(r) {
			lines = append(lines, string(events.AppendVerdict(nil, &v)))
		}
	}
	for _, m := range w.Meters() {
		lines = append(lines, meterLine(m))
	}
	return lines
}

func meterLine(m twin.Meter) string {
	shown := map[string]any{"meter": m.Name, "kind": m.Kind.String(), "used": m.Used}
	if m.Kind == events.Balance {
		shown["available"] = m.Available
	}
	line, err := json.Marshal(shown)
	if err != nil {
		panic(err) // strings and integers
	}
	return string(line)
}

// compare holds lines against a scenario's expectation, as JSON values.
func compare(t *testing.T, name string, got []string) {
	t.Helper()
	path := filepath.Join("testdata", name+".expected")
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) && *rewrite {
		text = []byte(strings.Join(got, "\n") + "\n")
		err = os.WriteFile(path, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i := 0; i < max(len(got), len(want)); i++ {
		g, w := line(got, i), line(want, i)
		if !reflect.DeepEqual(value(t, g), value(t, w)) {
			t.Fatalf("%s, line %d:\n got %s\nwant %s", name, i+1, g, w)
		}
	}
}

func line(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "null"
}

// value reads JSON with its numbers as they stand, so that large ones are not rounded.
func value(t *testing.T, text string) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}
