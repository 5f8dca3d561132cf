// Package scan reads JSON by walking its bytes: strict, in one pass, without building values. It is what the gateway
// uses to look into bodies that it otherwise passes on unchanged, so every position it reports is an offset into them.
package scan

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxDepth bounds nesting: deeper documents are refused rather than allowed to grow the stack.
const MaxDepth = 256

// Kind says what stands next.
type Kind byte

// The kinds of JSON values. Invalid is also what follows the end and any fault.
const (
	Invalid Kind = iota
	String
	Number
	Bool
	Null
	Object
	Array
)

var kindNames = [...]string{"nothing valid", "a string", "a number", "a boolean", "null", "an object", "an array"}

// String names the kind with its article, for messages such as "got a number".
func (k Kind) String() string { return kindNames[k] }

// Cursor walks one document. The first fault is kept and stops everything: loops end, values are empty. Check Fault once
// at the end.
type Cursor struct {
	b     []byte
	i     int
	depth int
	fault string
	at    int
}

// New returns a cursor at the start of b. It neither copies nor changes b.
func New(b []byte) Cursor { return Cursor{b: b} }

// Fault returns the first fault and its byte offset; what is "" when there was none.
func (c *Cursor) Fault() (what string, at int) { return c.fault, c.at }

// OK says that nothing was wrong so far.
func (c *Cursor) OK() bool { return c.fault == "" }

// Pos is the offset of the next byte to be read, whitespace not skipped.
func (c *Cursor) Pos() int { return c.i }

// Start skips whitespace and returns the offset at which the next token begins.
func (c *Cursor) Start() int {
	c.space()
	return c.i
}

func (c *Cursor) fail(what string, at int) {
	if c.fault == "" {
		c.fault, c.at = what, at
	}
	c.i = len(c.b)
}

func (c *Cursor) space() {
	for c.i < len(c.b) {
		switch c.b[c.i] {
		case ' ', '\n', '\t', '\r':
			c.i++
		default:
			return
		}
	}
}

var kinds = func() (t [256]Kind) {
	t['"'], t['{'], t['['], t['t'], t['f'], t['n'], t['-'] = String, Object, Array, Bool, Bool, Null, Number
	for d := '0'; d <= '9'; d++ {
		t[d] = Number
	}
	return t
}()

// Kind skips whitespace and says what the next value is, by its first byte.
func (c *Cursor) Kind() Kind {
	c.space()
	if c.i >= len(c.b) {
		return Invalid
	}
	return kinds[c.b[c.i]]
}

// Open enters an object ('{') or array ('['). It reports whether there is a first element; an empty one is already left.
//
//	for more := c.Open('{'); more; more = c.More('}') { key := c.Key(); … }
func (c *Cursor) Open(bracket byte) bool {
	c.space()
	if c.i >= len(c.b) || c.b[c.i] != bracket {
		c.fail("expected "+string(rune(bracket)), c.i)
		return false
	}
	if c.depth++; c.depth > MaxDepth {
		c.fail("nested too deeply", c.i)
		return false
	}
	c.i++
	c.space()
	if c.i < len(c.b) && c.b[c.i] == bracket+2 { // '{'+2 is '}', '['+2 is ']'
		c.i++
		c.depth--
		return false
	}
	return c.i < len(c.b) || c.unexpectedEnd()
}

func (c *Cursor) unexpectedEnd() bool {
	c.fail("unexpected end", len(c.b))
	return false
}

// More steps to the next element, or leaves the object or array that ends with bracket and reports false.
func (c *Cursor) More(bracket byte) bool {
	if c.fault != "" {
		return false
	}
	c.space()
	if c.i >= len(c.b) {
		return c.unexpectedEnd()
	}
	switch c.b[c.i] {
	case ',':
		c.i++
		return true
	case bracket:
		c.i++
		c.depth--
		return false
	}
	c.fail("expected , or "+string(rune(bracket)), c.i)
	return false
}

// OpenIf opens the next value if it begins with bracket, and skips it otherwise.
func (c *Cursor) OpenIf(bracket byte) bool {
	c.space()
	if c.i < len(c.b) && c.b[c.i] == bracket {
		return c.Open(bracket)
	}
	c.Skip()
	return false
}

// Key reads an object's key and its colon. Escapes are resolved (which allocates); without them it is a slice of the
// document.
func (c *Cursor) Key() []byte {
	c.space()
	raw, escaped := c.Str()
	c.space()
	if c.i >= len(c.b) {
		c.unexpectedEnd()
		return nil
	}
	if c.b[c.i] != ':' {
		c.fail("expected :", c.i)
		return nil
	}
	c.i++
	if escaped {
		return Unescape(raw)
	}
	return raw
}

const (
	low   = 0x0101010101010101
	high  = 0x8080808080808080
	quote = 0x2222222222222222
	slash = 0x5c5c5c5c5c5c5c5c
	ctrl  = 0x2020202020202020
)

// Str reads a string and returns what stands between its quotes, as it stands there, and whether it holds escapes.
func (c *Cursor) Str() (raw []byte, escaped bool) {
	c.space()
	b, i := c.b, c.i
	if i >= len(b) || b[i] != '"' {
		c.fail("expected a string", i)
		return nil, false
	}
	i++
	start := i
	for {
		for i+8 <= len(b) { // eight bytes at a time up to a quote, a backslash or a control byte
			x := binary.LittleEndian.Uint64(b[i:])
			q, s := x^quote, x^slash
			m := ((q-low)&^q | (s-low)&^s | (x-ctrl)&^x) & high
			if m != 0 {
				i += bits.TrailingZeros64(m) >> 3
				break
			}
			i += 8
		}
		if i >= len(b) {
			c.fail("unterminated string", start-1)
			return nil, false
		}
		switch ch := b[i]; {
		case ch == '"':
			c.i = i + 1
			return b[start:i], escaped
		case ch == '\\':
			n := escape(b[i:])
			if n == 0 {
				c.fail("invalid escape", i)
				return nil, false
			}
			escaped = true
			i += n
		case ch < 0x20:
			c.fail("control character in a string", i)
			return nil, false
		default:
			i++
		}
	}
}

// escape returns the length of the escape that b begins with, 0 when it is none.
func escape(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) >= 6 && hex4(b[2:6]) >= 0 {
			return 6
		}
	}
	return 0
}

func hex4(b []byte) rune {
	var r rune
	for _, ch := range b {
		switch {
		case ch >= '0' && ch <= '9':
			r = r<<4 | rune(ch-'0')
		case ch >= 'a' && ch <= 'f':
			r = r<<4 | rune(ch-'a'+10)
		case ch >= 'A' && ch <= 'F':
			r = r<<4 | rune(ch-'A'+10)
		default:
			return -1
		}
	}
	return r
}

// Unescape returns the text of a raw string that Str returned. Lone surrogates become U+FFFD.
func Unescape(raw []byte) []byte {
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			out = append(out, raw[i])
			i++
			continue
		}
		r, n := unit(raw[i:])
		out = utf8.AppendRune(out, r)
		i += n
	}
	return out
}

var simple = [256]rune{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// unit decodes the valid escape that b begins with, a pair of surrogates as one.
func unit(b []byte) (r rune, n int) {
	if b[1] != 'u' {
		return simple[b[1]], 2
	}
	r = hex4(b[2:6])
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if len(b) >= 12 && b[6] == '\\' && b[7] == 'u' {
		if pair := utf16.DecodeRune(r, hex4(b[8:12])); pair != utf8.RuneError {
			return pair, 12
		}
	}
	return utf8.RuneError, 6
}

// Text returns the string that raw stands for.
func Text(raw []byte, escaped bool) string {
	if escaped {
		return string(Unescape(raw))
	}
	return string(raw)
}

// TextLen returns the length in UTF-8 bytes of the text that raw stands for.
func TextLen(raw []byte, escaped bool) int64 {
	if !escaped {
		return int64(len(raw))
	}
	size := 0
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			size++
			i++
			continue
		}
		r, n := unit(raw[i:])
		size += utf8.RuneLen(r)
		i += n
	}
	return int64(size)
}

// StrLen reads a string and returns the length of its text in UTF-8 bytes; any other value is skipped and counts 0.
func (c *Cursor) StrLen() int64 {
	if c.Kind() != String {
		c.Skip()
		return 0
	}
	return TextLen(c.Str())
}

// Num reads a number and returns its bytes.
func (c *Cursor) Num() []byte {
	c.space()
	b, start := c.b, c.i
	i := start
	if i < len(b) && b[i] == '-' {
		i++
	}
	first := i
	i = digits(b, i)
	if i == first || b[first] == '0' && i > first+1 {
		c.fail("invalid number", start)
		return nil
	}
	if i < len(b) && b[i] == '.' {
		from := i + 1
		if i = digits(b, from); i == from {
			c.fail("invalid number", start)
			return nil
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		from := i
		if i = digits(b, from); i == from {
			c.fail("invalid number", start)
			return nil
		}
	}
	c.i = i
	return b[start:i]
}

func digits(b []byte, i int) int {
	for i < len(b) && b[i]-'0' < 10 {
		i++
	}
	return i
}

// Int reads a number that is a whole one and fits an int64. Anything else is skipped and ok is false.
func (c *Cursor) Int() (v int64, ok bool) {
	if c.Kind() != Number {
		c.Skip()
		return 0, false
	}
	v, whole, fits := ParseInt(c.Num())
	return v, whole && fits
}

// ParseInt reads the bytes of a JSON number. whole is false for one with a fraction or an exponent, fits is false beyond
// an int64.
func ParseInt(num []byte) (v int64, whole, fits bool) {
	neg := len(num) > 0 && num[0] == '-'
	if neg {
		num = num[1:]
	}
	fits = len(num) > 0
	for _, ch := range num {
		d := int64(ch) - '0'
		if d < 0 || d > 9 {
			return 0, false, fits
		}
		if v > (1<<63-1-d)/10 {
			fits = false
			v = 0
			continue
		}
		v = v*10 + d
	}
	if !fits {
		return 0, true, false
	}
	if neg {
		v = -v
	}
	return v, true, true
}

// Bool reads true or false.
func (c *Cursor) Bool() bool {
	c.space()
	if c.literal("true") {
		return true
	}
	if !c.literal("false") {
		c.fail("expected true or false", c.i)
	}
	return false
}

func (c *Cursor) literal(word string) bool {
	if len(c.b)-c.i >= len(word) && string(c.b[c.i:c.i+len(word)]) == word {
		c.i += len(word)
		return true
	}
	return false
}

// Skip reads one value of any kind, as strictly as all others.
func (c *Cursor) Skip() {
	switch c.Kind() {
	case String:
		c.Str()
	case Number:
		c.Num()
	case Bool:
		c.Bool()
	case Null:
		if !c.literal("null") {
			c.fail("expected null", c.i)
		}
	case Object:
		for more := c.Open('{'); more; more = c.More('}') {
			c.space()
			c.Str()
			c.space()
			if c.i >= len(c.b) || c.b[c.i] != ':' {
				c.fail("expected :", c.i)
				return
			}
			c.i++
			c.Skip()
		}
	case Array:
		for more := c.Open('['); more; more = c.More(']') {
			c.Skip()
		}
	default:
		if c.i >= len(c.b) {
			c.unexpectedEnd()
			return
		}
		c.fail("expected a value", c.i)
	}
}

// Raw skips one value and returns its bytes.
func (c *Cursor) Raw() []byte {
	start := c.Start()
	c.Skip()
	if c.fault != "" {
		return nil
	}
	return c.b[start:c.i]
}

// End checks that nothing but whitespace follows.
func (c *Cursor) End() {
	c.space()
	if c.fault == "" && c.i < len(c.b) {
		c.fail("something follows the end of the document", c.i)
	}
}

// AppendString appends s as a JSON string. Invalid UTF-8 becomes U+FFFD.
func AppendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		ch := s[i]
		switch {
		case ch == '"' || ch == '\\':
			dst = append(dst, '\\', ch)
		case ch == '\n':
			dst = append(dst, '\\', 'n')
		case ch < 0x20 || ch == 0x7f:
			dst = append(dst, '\\', 'u', '0', '0', hex[ch>>4], hex[ch&15])
		case ch < utf8.RuneSelf:
			dst = append(dst, ch)
		default:
			r, n := utf8.DecodeRuneInString(s[i:])
			dst = utf8.AppendRune(dst, r)
			i += n
			continue
		}
		i++
	}
	return append(dst, '"')
}
