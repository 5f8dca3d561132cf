package strictyaml

import (
	"strings"
	"testing"
	"time"
)

func read(t *testing.T, text string) (*Reader, *Map) {
	t.Helper()
	r := &Reader{File: "f.yaml"}
	return r, r.Read([]byte(text)).Map()
}

func TestValues(t *testing.T) {
	r, m := read(t, `
# a comment
name: "Qwen/Qwen3"
plain: 0.15
count: 1_000
on: true
wait: 250ms
none: null
list: [a, 'b', 3]
nested: {a: 1, b: {c: x}}
block: |
  two
  lines
`)
	if got := m.Get("name").Str(""); got != "Qwen/Qwen3" {
		t.Errorf("name is %q", got)
	}
	if got := m.Get("plain").Decimal(-1, 9, 1e18); got != 150_000_000 {
		t.Errorf("plain is %d", got)
	}
	if got := m.Get("count").Int(-1, 0, 5000); got != 1000 {
		t.Errorf("count is %d", got)
	}
	if !m.Get("on").Bool(false) {
		t.Error("on is false")
	}
	if got := m.Get("wait").Duration(0, 0, time.Second); got != 250*time.Millisecond {
		t.Errorf("wait is %s", got)
	}
	if n := m.Get("none"); !n.Absent() || n.Int(7, 0, 9) != 7 {
		t.Error("null is not absent")
	}
	var items []string
	for _, n := range m.Get("list").List() {
		items = append(items, n.Str("?"))
	}
	if got := strings.Join(items, ","); got != "a,b,3" {
		t.Errorf("list is %s", got)
	}
	nested := m.Get("nested").Map()
	if nested.Get("a").Int(0, 0, 9) != 1 || nested.Get("b").Map().Get("c").Str("") != "x" {
		t.Error("nested maps are not read")
	}
	if got := m.Get("block").Str(""); got != "two\nlines\n" {
		t.Errorf("block is %q", got)
	}
	m.End()
	if err := r.Faults.Err(); err != nil {
		t.Error(err)
	}
}

func TestAByteOrderMarkIsPassedOver(t *testing.T) {
	r, m := read(t, "\ufeffcount: 3\r\n")
	if got := m.Get("count").Int(0, 0, 9); got != 3 {
		t.Errorf("count is %d", got)
	}
	m.End()
	if err := r.Faults.Err(); err != nil {
		t.Error(err)
	}
}

func TestEveryFaultAtOnce(t *testing.T) {
	r, m := read(t, `count: many
wait: soon
price: -1
small: 12
wrod: x
twice: 1
twice: 2
url: ftp://x
mode: maybe
flag: "yes"
list: 5
deep: {a: [1]}
quoted: "5"
huge: 99999999999999999999
octal: 010
text: "0.9"
`)
	m.Get("count").Int(0, 0, 9)
	m.Get("wait").Duration(0, 0, 1)
	m.Get("price").Decimal(0, 9, 1)
	m.Get("small").Int(0, 1, 9)
	m.Get("word").Str("")
	m.Get("twice").Int(0, 0, 9)
	m.Get("url").URL("", "http", "https")
	m.Get("mode").OneOf("", "none", "api-key")
	m.Get("flag").Bool(false)
	m.Get("list").List()
	m.Get("deep").Str("")
	m.Get("quoted").Int(0, 0, 9)
	m.Get("huge").Int(0, 0, 9)
	m.Get("octal").Int(0, 0, 9)
	m.Get("text").Float(0)
	m.End()
	want := `f.yaml:1: count is many: must be a whole number
f.yaml:2: wait is soon: must be a duration such as 250ms, 5s or 720h
f.yaml:3: price is -1: must be a decimal number such as 0.15, not negative
f.yaml:4: small is 12: must be from 1 to 9
f.yaml:5: wrod: there is no such field: did you mean word?
f.yaml:7: twice: stands twice: a key may stand once
f.yaml:8: url is ftp://x: must be an absolute URL that begins with http:// or https://
f.yaml:9: mode is maybe: must be one of none, api-key
f.yaml:10: flag is yes: must be true or false
f.yaml:11: list is 5: must be a list
f.yaml:12: deep is a map: must be a single value, not a map
f.yaml:13: quoted is 5: must be a whole number without quotes
f.yaml:14: huge is 99999999999999999999: must be a whole number from 0 to 9
f.yaml:15: octal is 010: must not begin with 0: some readers of YAML take it for an octal number
f.yaml:16: text is 0.9: must be a number without quotes`
	if got := r.Faults.Err().Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestAnchorsAndMerges(t *testing.T) {
	r, m := read(t, `
base: &base {rpm: 5, tpm: 7}
one: {<<: *base, rpm: 6}
two: *base
lost: *nowhere
`)
	m.Get("base")
	one, two := m.Get("one").Map(), m.Get("two").Map()
	if one.Get("rpm").Int(0, 0, 9) != 6 || one.Get("tpm").Int(0, 0, 9) != 7 || two.Get("rpm").Int(0, 0, 9) != 5 {
		t.Error("anchors or merges are not followed")
	}
	if got := r.Faults.Error(); got != "f.yaml:5: alias *nowhere: there is no such anchor" {
		t.Error(got)
	}
}

func TestURLsInsideBraces(t *testing.T) {
	r, m := read(t, "a: {list: [http://10.0.0.1:8000, https://h:1/v1, x:y, http://h, {k: v}, {k: 1}]}\n")
	list := m.Get("a").Map().Get("list").List()
	var got []string
	for _, n := range list[:4] {
		got = append(got, n.Str("?"))
	}
	if s := strings.Join(got, " "); s != "http://10.0.0.1:8000 https://h:1/v1 x:y http://h" {
		t.Error(s)
	}
	if list[4].Map().Get("k").Str("") != "v" || list[5].Map().Get("k").Int(0, 0, 9) != 1 {
		t.Error("a map in the list is taken for a text")
	}
	if err := r.Faults.Err(); err != nil {
		t.Error(err)
	}
}

func TestSyntaxNamesTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"a: 1\nb: [1, 2\nc: 3\n": "f.yaml:",
		"a: 1\n  b: 2\n":         "f.yaml:",
		"a: \"open\n":            "f.yaml:",
		"- a\n":                  "f.yaml:1: must be a map",
		"a: 1\n---\nb: 2\n":      "f.yaml:3: a second document",
	} {
		r, _ := read(t, text)
		if len(r.Faults) == 0 || !strings.HasPrefix(r.Faults[0].Error(), want) {
			t.Errorf("%q: faults %v, want %q", text, r.Faults, want)
		}
	}
}

func TestOverride(t *testing.T) {
	r := &Reader{File: "f.yaml", Override: func(field string) string {
		return map[string]string{"a": "7", "nested.b": "x#y: z", "models": "[{id: m}]", "list[0].c": "never", "bad": "x"}[field]
	}}
	m := r.Read([]byte("a: 1\nlist: [{c: d}]\n")).Map()
	if m.Get("a").Int(0, 0, 9) != 7 || m.Get("nested").Map().Get("b").Str("") != "x#y: z" {
		t.Error("the other source does not win")
	}
	if m.Get("list").List()[0].Map().Get("c").Str("") != "d" {
		t.Error("an item of a list was replaced")
	}
	if m.Get("models").List()[0].Map().Get("id").Str("") != "m" {
		t.Error("a list from the other source is not read")
	}
	m.Get("bad").Int(0, 0, 9)
	if got := r.Faults.Error(); got != "environment: bad is x: must be a whole number" {
		t.Error(got)
	}
}

func TestBounds(t *testing.T) {
	r := &Reader{File: "f.yaml"}
	if r.Read(make([]byte, MaxFile+1)); len(r.Faults) != 1 {
		t.Error("a file of any size is read")
	}
	r = &Reader{File: "f.yaml"}
	if r.Read([]byte("a: " + strings.Repeat("[", 100_000))); len(r.Faults) != 1 {
		t.Error("any nesting is read")
	}
	r = &Reader{File: "f.yaml"}
	m := r.Read([]byte("a: &a [*a]\nb: &b {<<: *b, c: 1}\n")).Map()
	for n := m.Get("a"); len(r.Faults) == 0; {
		items := n.List()
		if len(items) == 0 {
			break
		}
		n = items[0]
	}
	m.Get("b").Map()
	if len(r.Faults) == 0 {
		t.Error("an alias to itself is followed without end")
	}
}

func TestDecimals(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "0.15": 150, "1": 1000, "1.250": 1250, ".5": 500, "007": 7000} {
		if got, err := ParseDecimal(text, 3); err != nil || got != want {
			t.Errorf("%s is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", ".", "1.", "-1", "+1", "1e3", "1,5", "0.1234", "99999999999999999999", "x", "1_0"} {
		if got, err := ParseDecimal(text, 3); err == nil {
			t.Errorf("%q is taken as %d", text, got)
		}
	}
	for v, want := range map[int64]string{0: "0", 150: "0.15", 1000: "1", 1234: "1.234"} {
		if got := FormatDecimal(v, 3); got != want {
			t.Errorf("%d is written %s, want %s", v, got, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add("a: 1\nb: [1, {c: d}]\n")
	f.Add("a: &x {b: *x}\n<<: *x\n? [a]\n: b\n")
	f.Add("a: |\n x\nb: >-\n y\n--- \n!!str c: d")
	f.Fuzz(func(t *testing.T, text string) {
		r := &Reader{File: "f"}
		m := r.Read([]byte(text)).Map()
		for _, name := range m.Names() {
			n := m.Entry(name)
			n.Str("")
			n.Int(0, 0, 9)
			n.Bool(false)
			n.Map().End()
			for _, item := range n.List() {
				item.Decimal(0, 3, 9)
				item.Map().End()
			}
		}
		m.End()
		if len(r.Faults) > MaxFaults {
			t.Fatalf("%d faults", len(r.Faults))
		}
	})
}
