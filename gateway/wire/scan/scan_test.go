package scan

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"
)

// FuzzSkip holds the walk against encoding/json, which is as strict.
func FuzzSkip(f *testing.F) {
	for _, seed := range []string{`{"a":[1,-0.5e+7,"x\u00e9\n",true,false,null,{}],"b":{"c":[]}}`, `"\ud83d\ude00"`, `01`, `[1,]`, `{"a"}`, "\"\x01\"", ` 1 `, `-`, `1.`, `nul`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := New(b)
		c.Skip()
		c.End()
		what, at := c.Fault()
		if what == "nested too deeply" {
			return
		}
		if (what == "") != json.Valid(b) {
			t.Fatalf("%q: fault %q at %d, json.Valid says %v", b, what, at, json.Valid(b))
		}
		if at < 0 || at > len(b) {
			t.Fatalf("fault at %d of %d", at, len(b))
		}
	})
}

// FuzzString holds reading and writing strings against encoding/json.
func FuzzString(f *testing.F) {
	for _, seed := range []string{"", "plain", "\"\\/\b\f\n\r\t\x00\x1f\x7f", "é😀 \xff\xfe", "0123456789abcdef\"0123456789"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		quoted := AppendString(nil, s)
		var back string
		if err := json.Unmarshal(quoted, &back); err != nil {
			t.Fatalf("%q: %v", quoted, err)
		}
		if utf8.ValidString(s) && back != s {
			t.Fatalf("wrote %q for %q", quoted, s)
		}
		std, _ := json.Marshal(s)
		for _, q := range [][]byte{quoted, std} {
			c := New(q)
			raw, escaped := c.Str()
			if got := Text(raw, escaped); !c.OK() || got != back {
				t.Fatalf("read %q as %q", q, got)
			}
			if n := TextLen(raw, escaped); n != int64(len(back)) {
				t.Fatalf("%q: length %d, want %d", q, n, len(back))
			}
		}
	})
}

func TestParseInt(t *testing.T) {
	for _, c := range []struct {
		in          string
		v           int64
		whole, fits bool
	}{
		{"0", 0, true, true}, {"-7", -7, true, true}, {"9223372036854775807", 1<<63 - 1, true, true},
		{"9223372036854775808", 0, true, false}, {"1e3", 0, false, true}, {"1.0", 0, false, true},
		{"99999999999999999999999", 0, true, false},
	} {
		if v, whole, fits := ParseInt([]byte(c.in)); v != c.v || whole != c.whole || fits != c.fits {
			t.Errorf("%s: got %d, %v, %v", c.in, v, whole, fits)
		}
	}
}

func TestKeeper(t *testing.T) {
	doc := `{"object":"list","data":[{"embedding":[0.1,"]}\"",{"data":1}]}],"x":"a\"},b","usage":{"prompt_tokens":5},"data2":[1]}`
	want := `{"object":"list","data":null,"x":"a\"},b","usage":{"prompt_tokens":5},"data2":[1]}`
	for size := 1; size <= len(doc); size++ {
		k := Keeper{Max: 1000, Drop: func(key []byte) bool { return string(key) == "data" }}
		for rest := []byte(doc); len(rest) > 0; {
			n := min(size, len(rest))
			k.Write(rest[:n])
			rest = rest[n:]
		}
		if got := string(k.Kept()); got != want {
			t.Fatalf("in pieces of %d: %s", size, got)
		}
		if k.Dropped() != int64(len(doc)-len(want)+len("null")) {
			t.Fatalf("dropped %d", k.Dropped())
		}
	}
}

func TestKeeperBound(t *testing.T) {
	k := Keeper{Max: 10}
	k.Write([]byte(`{"a":"` + string(bytes.Repeat([]byte("x"), 100)) + `","b":[` + string(bytes.Repeat([]byte("1,"), 50)) + `1],"c":"short"}`))
	if got := string(k.Kept()); got != `{"a":null,"b":null,"c":"short"}` {
		t.Errorf("kept %s", got)
	}
}

// FuzzKeeper: whatever the pieces, what is kept of a valid object is a valid object with the same keys.
func FuzzKeeper(f *testing.F) {
	f.Add([]byte(`{"data":[{"a":"\"]"}],"usage":{"n":1},"s":"\\"}`), byte(3))
	f.Add([]byte(`{ "data" : 1 , "x":[[]],"":{}}`), byte(1))
	f.Fuzz(func(t *testing.T, doc []byte, size byte) {
		var want map[string]json.RawMessage
		if json.Unmarshal(doc, &want) != nil || want == nil {
			return
		}
		k := Keeper{Max: 20, Drop: func(key []byte) bool { return string(key) == "data" }}
		for rest := doc; len(rest) > 0; {
			n := min(int(size)+1, len(rest))
			k.Write(rest[:n])
			rest = rest[n:]
		}
		var got map[string]json.RawMessage
		if err := json.Unmarshal(k.Kept(), &got); err != nil {
			t.Fatalf("kept %s: %v", k.Kept(), err)
		}
		for key, v := range want {
			if g, ok := got[key]; !ok || string(g) != "null" && !bytes.Equal(g, v) {
				t.Fatalf("%q: kept %s of %s", key, g, v)
			}
		}
	})
}
