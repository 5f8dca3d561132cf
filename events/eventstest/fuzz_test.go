package eventstest

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"path"
	"strings"
	"testing"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/schemas"
)

// examples gives each golden example whose name begins so, and some broken forms of it.
func examples(f *testing.F, prefix string, each func(name string, text []byte)) {
	f.Helper()
	names, err := fs.Glob(schemas.Events(), "examples/"+prefix+"*.json")
	if err != nil || len(names) == 0 {
		f.Fatalf("no examples of %q: %v", prefix, err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(schemas.Events(), name)
		if err != nil {
			f.Fatal(err)
		}
		base := strings.TrimSuffix(path.Base(name), ".json")
		each(base, text)
		each(base, text[:len(text)/2])
		each(base, bytes.ReplaceAll(text, []byte("1"), []byte("1.5e300")))
		each(base, bytes.ReplaceAll(text, []byte(`"`), []byte(`"\u00e9\"`)))
		each(base, bytes.ReplaceAll(text, []byte(":"), []byte(": null, \"x\":")))
	}
}

func FuzzDecodeData(f *testing.F) {
	examples(f, "", func(name string, text []byte) {
		kind := name
		for events.ParseKind(kind) == events.KindUnknown && strings.Contains(kind, "-") {
			kind = kind[:strings.LastIndexByte(kind, '-')]
		}
		f.Add("weir."+kind+".v1", text)
	})
	f.Add("weir.reserve.v2", []byte(`{"request":"of a later version"}`))
	f.Fuzz(func(t *testing.T, ceType string, data []byte) {
		d, err := events.DecodeData(ceType, data)
		if err != nil {
			return
		}
		once := events.AppendData(nil, d)
		valid(t, data, once)
		d, err = events.DecodeData(ceType, once)
		if err != nil {
			t.Fatalf("what was encoded cannot be read: %v\n%s", err, once)
		}
		if twice := events.AppendData(nil, d); !bytes.Equal(once, twice) {
			t.Fatalf("encoded\n%s\nthen\n%s", once, twice)
		}
	})
}

func FuzzDecodePack(f *testing.F) {
	examples(f, "pack", func(_ string, text []byte) { f.Add(text) })
	f.Add([]byte(`[{"data":{"gateway":"g","epoch":1},"type":"weir.lease.v1","specversion":"1.0","id":"a","source":"g"},17,null,{"type":"weir.lease.v1","data":[]}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		evs, err := events.DecodePack(data)
		if err != nil {
			return
		}
		readable := evs[:0]
		for _, e := range evs {
			if e.Data != nil {
				readable = append(readable, e)
			}
		}
		once := events.AppendPack(nil, readable)
		valid(t, data, once)
		evs, err = events.DecodePack(once)
		if err != nil {
			t.Fatalf("what was encoded cannot be read: %v\n%s", err, once)
		}
		if len(evs) != len(readable) {
			t.Fatalf("%d events, want %d", len(evs), len(readable))
		}
		for i := range evs {
			if evs[i].Data == nil {
				t.Fatalf("event %d cannot be read\n%s", i, once)
			}
		}
		if twice := events.AppendPack(nil, evs); !bytes.Equal(once, twice) {
			t.Fatalf("encoded\n%s\nthen\n%s", once, twice)
		}
	})
}

func FuzzDecodeVerdicts(f *testing.F) {
	examples(f, "verdict-", func(_ string, text []byte) { f.Add([]byte("[" + string(text) + "]")) })
	f.Fuzz(func(t *testing.T, data []byte) {
		verdicts, err := events.DecodeVerdicts(data)
		if err != nil {
			return
		}
		once := events.AppendVerdicts(nil, verdicts)
		valid(t, data, once)
		verdicts, err = events.DecodeVerdicts(once)
		if err != nil {
			t.Fatalf("what was encoded cannot be read: %v\n%s", err, once)
		}
		if twice := events.AppendVerdicts(nil, verdicts); !bytes.Equal(once, twice) {
			t.Fatalf("encoded\n%s\nthen\n%s", once, twice)
		}
	})
}

// valid makes sure that what is encoded is JSON, if what was read is.
func valid(t *testing.T, read, encoded []byte) {
	t.Helper()
	if json.Valid(read) && !json.Valid(encoded) {
		t.Fatalf("encoded no JSON:\n%s\nfrom\n%s", encoded, read)
	}
}
