package admission_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
)

const cases = "../../test/scenario/testdata"

// readLog reads a log of one JSON line a record.
func readLog(tb testing.TB, name string) (records []events.Record) {
	tb.Helper()
	file, err := os.Open(name)
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<22)
	for lines.Scan() {
		var line struct {
			Seq     uint64
			Time    time.Time
			Subject string
			Data    json.RawMessage
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			tb.Fatal(err)
		}
		s, err := events.ParseSubject(line.Subject)
		if err != nil {
			tb.Fatal(err)
		}
		r := events.Record{Seq: line.Seq, At: line.Time.UnixNano(), Gateway: s.Gateway}
		r.Org = s.Org
		if r.Data, err = events.DecodeData("weir."+s.Type+".v1", line.Data); err != nil {
			r.Fault = err.Error()
		} else {
			r.Fault = events.Check(s, &r.Event)
		}
		records = append(records, r)
	}
	return records
}

func meterLine(m admission.Reading) string {
	if m.Kind == events.Balance {
		return fmt.Sprintf(`{"meter":%q,"kind":%q,"used":%d,"available":%d}`, m.Meter, m.Kind, m.Used, m.Available)
	}
	return fmt.Sprintf(`{"meter":%q,"kind":%q,"used":%d}`, m.Meter, m.Kind, m.Used)
}

func TestCases(t *testing.T) {
	names, _ := filepath.Glob(cases + "/*.jsonl")
	if len(names) < 26 {
		t.Fatalf("%d cases in %s", len(names), cases)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".jsonl"), func(t *testing.T) {
			want, err := os.ReadFile(strings.TrimSuffix(name, ".jsonl") + ".expected")
			if err != nil {
				t.Fatal(err)
			}
			f := admission.New()
			var got []string
			for i, r := range readLog(t, name) {
				for _, v := range f.Apply(&r) {
					got = append(got, string(events.AppendVerdict(nil, &v)))
				}
				if i%7 == 3 {
					if f, err = admission.Restore(f.Snapshot(nil)); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, m := range f.Meters() {
				got = append(got, meterLine(m))
			}
			compare(t, got, strings.Split(string(bytes.TrimSpace(want)), "\n"))
		})
	}
}

func compare(t *testing.T, got, want []string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		var g, w any
		if i < len(got) {
			if err := json.Unmarshal([]byte(got[i]), &g); err != nil {
				t.Fatalf("line %d: %v: %s", i+1, err, got[i])
			}
		}
		if i < len(want) && want[i] != "" {
			if err := json.Unmarshal([]byte(want[i]), &w); err != nil {
				t.Fatal(err)
			}
		}
		if !reflect.DeepEqual(g, w) {
			t.Fatalf("line %d\n got %v\nwant %v", i+1, g, w)
		}
	}
}
