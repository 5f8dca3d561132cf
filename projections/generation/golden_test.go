package generation

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/test/scenario"
)

var rewrite = flag.Bool("rewrite", false, "write what records come to as what is expected")

// verdictsAfter is how many records of the log come between a reserve and its verdict's record, at the most.
const verdictsAfter = 2

// decided folds a log and writes the verdicts into it, each a little after its reserve, as a projector does. An attempt of which something
// came before its reserve has its verdict before the request's next reserve: what was kept for it counts for the attempts before alone.
func decided(records []events.Record) []events.Record {
	fold := admission.New()
	var out []events.Record
	var pending []events.Verdict
	write := func(seq uint64, at int64) {
		if len(pending) == 0 {
			return
		}
		var own []events.Verdict
		for _, v := range pending {
			v.Used, v.Shadow = append([]int64(nil), v.Used...), append([]int(nil), v.Shadow...)
			own = append(own, v)
		}
		out = append(out, events.Record{Seq: seq, At: at, Event: events.Event{ID: "v", Org: events.Platform, Data: &events.Verdicts{Rules: 1, Verdicts: own}}})
		pending = nil
	}
	early := map[events.RequestID]bool{}
	for i := range records {
		r := records[i]
		switch d := r.Data.(type) {
		case *events.Reserve:
			if early[d.Request] {
				write(r.Seq*2-1, r.At)
			}
		case *events.TrueUp:
			early[d.Request] = early[d.Request] || !reserved(records[:i], d.Request, d.Attempt)
		case *events.Release:
			early[d.Request] = early[d.Request] || !reserved(records[:i], d.Request, d.Attempt)
		}
		for _, v := range fold.Apply(&r) {
			v.Seq *= 2
			pending = append(pending, v)
		}
		r.Seq *= 2
		out = append(out, r)
		if i%verdictsAfter == 1 || i == len(records)-1 {
			write(r.Seq+1, r.At)
		}
	}
	return out
}

func reserved(records []events.Record, id events.RequestID, attempt int64) bool {
	for i := range records {
		if d, ok := records[i].Data.(*events.Reserve); ok && d.Request == id && d.Attempt == attempt {
			return true
		}
	}
	return false
}

func readLog(t testing.TB, file string) []events.Record {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	records, err := scenario.ReadLog(f)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// texts gives the records as they are stored, by request.
func texts(t testing.TB, records []*Record) map[events.RequestID]string {
	t.Helper()
	out := map[events.RequestID]string{}
	for _, rec := range records {
		text, err := json.MarshalIndent(rec, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		out[rec.ID] = string(text)
	}
	return out
}

func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(files) < 7 {
		t.Fatalf("%d logs, want at least 7: %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".jsonl")
		t.Run(name, func(t *testing.T) {
			g := New()
			for _, r := range decided(readLog(t, file)) {
				g.Apply(&r)
			}
			var got bytes.Buffer
			for _, rec := range g.Drain(true) {
				got.WriteString(texts(t, []*Record{rec})[rec.ID] + "\n")
			}
			golden := filepath.Join("testdata", name+".golden")
			if *rewrite {
				if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("- want, + got:\n%s", diff)
			}
		})
	}
}
