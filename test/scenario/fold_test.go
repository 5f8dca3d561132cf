package scenario

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/test/twin"
)

var keep = flag.String("keep", "", "a directory for minimal logs on which twin and fold differ")

// TestScenariosOnFold runs every scenario through the product's fold and compares it with the twin after every line.
func TestScenariosOnFold(t *testing.T) {
	for _, name := range scenarios(t) {
		t.Run(name, func(t *testing.T) {
			if d := differ(readScenario(t, name)); d != "" {
				t.Fatal(d)
			}
		})
	}
}

// TestFoldIsTwin folds random logs with both.
func TestFoldIsTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := Log(t)
		if differ(records) == "" {
			return
		}
		records = shrink(records, func(r []events.Record) bool { return differ(r) != "" })
		var text bytes.Buffer
		if err := WriteLog(&text, records); err != nil {
			t.Fatal(err)
		}
		d := differ(records)
		if *keep != "" {
			name := filepath.Join(*keep, fmt.Sprintf("%03d-%x", len(records), hash(text.String())))
			if err := os.WriteFile(name, []byte(text.String()+"---\n"+d+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		t.Fatalf("%s\n%s", text.String(), d)
	})
}

func hash(s string) uint32 {
	h := uint32(2166136261)
	for i := 0; i < len(s); i++ {
		h = (h ^ uint32(s[i])) * 16777619
	}
	return h
}

// differ says where the fold and the twin part, or nothing if they do not.
func differ(records []events.Record) string {
	f, w := admission.New(), twin.New()
	for i := range records {
		r := &records[i]
		if d := parted(f.Apply(r), w.Apply(*r)); d != "" {
			return fmt.Sprintf("line %d (seq %d): %s", i+1, r.Seq, d)
		}
		if d := partedMeters(f.Meters(), w.Meters()); d != "" {
			return fmt.Sprintf("line %d (seq %d): %s", i+1, r.Seq, d)
		}
	}
	return ""
}

func parted(fold, plain []events.Verdict) string {
	for i := 0; i < max(len(fold), len(plain)); i++ {
		f, w := "none", "none"
		if i < len(fold) {
			f = string(events.AppendVerdict(nil, &fold[i]))
		}
		if i < len(plain) {
			w = string(events.AppendVerdict(nil, &plain[i]))
		}
		if f != w {
			return fmt.Sprintf("verdict %d\nfold %s\ntwin %s", i+1, f, w)
		}
	}
	return ""
}

func partedMeters(fold []admission.Reading, plain []twin.Meter) string {
	for i := 0; i < max(len(fold), len(plain)); i++ {
		f, w := "none", "none"
		if i < len(fold) {
			f = fmt.Sprintf("%s %s used %d available %d", fold[i].Meter, fold[i].Kind, fold[i].Used, fold[i].Available)
		}
		if i < len(plain) {
			w = fmt.Sprintf("%s %s used %d available %d", plain[i].Name, plain[i].Kind, plain[i].Used, plain[i].Available)
		}
		if f != w {
			return fmt.Sprintf("meter %d\nfold %s\ntwin %s", i+1, f, w)
		}
	}
	return ""
}
