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

// shrink takes away what is not needed for a log to stay bad: lines, then claims, then fields of claims and reserves.
func shrink(records []events.Record, bad func([]events.Record) bool) []events.Record {
	for size := len(records) / 2; size > 0; {
		shorter := false
		for i := 0; i+size <= len(records); {
			try := append(append([]events.Record(nil), records[:i]...), records[i+size:]...)
			if bad(try) {
				records, shorter = try, true
			} else {
				i += size
			}
		}
		if !shorter {
			size /= 2
		}
	}
	for i := range records {
		records = simplify(records, i, bad)
	}
	return records
}

func simplify(records []events.Record, i int, bad func([]events.Record) bool) []events.Record {
	attempt := func(change func(*events.Record) bool) bool {
		try := append([]events.Record(nil), records...)
		switch d := try[i].Data.(type) {
		case *events.Reserve:
			c := *d
			c.Claims = append([]events.Claim(nil), d.Claims...)
			if d.Claims != nil && c.Claims == nil {
				c.Claims = []events.Claim{}
			}
			try[i].Data = &c
		case *events.TrueUp:
			c := *d
			c.Charges = append([]events.Charge(nil), d.Charges...)
			try[i].Data = &c
		}
		if !change(&try[i]) || !bad(try) {
			return false
		}
		records = try
		return true
	}
	switch d := records[i].Data.(type) {
	case *events.Reserve:
		for k := len(d.Claims) - 1; k >= 0; k-- {
			attempt(func(r *events.Record) bool {
				c := r.Data.(*events.Reserve)
				c.Claims = append(c.Claims[:k], c.Claims[k+1:]...)
				return true
			})
		}
		for k := range records[i].Data.(*events.Reserve).Claims {
			for _, change := range []func(*events.Claim){
				func(c *events.Claim) { c.Shadow = false }, func(c *events.Claim) { c.HasCheck, c.Check = false, 0 },
				func(c *events.Claim) { c.Park = false }, func(c *events.Claim) { c.Life = events.LifeRequest }, func(c *events.Claim) { c.Amount = 1 },
			} {
				attempt(func(r *events.Record) bool { change(&r.Data.(*events.Reserve).Claims[k]); return true })
			}
		}
		for _, change := range []func(*events.Reserve){
			func(d *events.Reserve) { d.MaxMS = events.DefaultMaxMS }, func(d *events.Reserve) { d.ParkMS = 0 }, func(d *events.Reserve) { d.Fence = 0 },
			func(d *events.Reserve) { d.Mode = events.ModeNormal }, func(d *events.Reserve) { d.At = 0 }, func(d *events.Reserve) { d.Attempt = 0 },
		} {
			attempt(func(r *events.Record) bool { change(r.Data.(*events.Reserve)); return true })
		}
	case *events.TrueUp:
		for k := len(d.Charges) - 1; k >= 0; k-- {
			attempt(func(r *events.Record) bool {
				c := r.Data.(*events.TrueUp)
				c.Charges = append(c.Charges[:k], c.Charges[k+1:]...)
				return true
			})
		}
		attempt(func(r *events.Record) bool { r.Data.(*events.TrueUp).CostNano = 0; return true })
	}
	// Closer in time to the line before.
	for _, part := range []int64{1, 2, 4} {
		if i > 0 {
			attempt(func(r *events.Record) bool {
				gap := r.At - records[i-1].At
				for k := i; k < len(records); k++ {
					_ = k
				}
				r.At = records[i-1].At + gap - gap/part
				return gap != 0
			})
		}
	}
	return records
}
