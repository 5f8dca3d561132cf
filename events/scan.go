package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxDepth bounds how deep unknown values may nest, so that bad data cannot exhaust the stack.
const maxDepth = 64

// scanner reads JSON from one string. Strings that it returns without escapes are parts of that string: nothing is copied.
type scanner struct {
	s   string
	i   int
	err error
}

var errShort = errors.New("ends too early")

func (p *scanner) fail(err error) {
	if p.err == nil {
		p.err = fmt.Errorf("at byte %d: %w", p.i, err)
		p.i = len(p.s)
	}
}

func (p *scanner) failf(format string, args ...any) { p.fail(fmt.Errorf(format, args...)) }

func (p *scanner) ws() {
	for p.i < len(p.s) {
		switch p.s[p.i] {
		case ' ', '\n', '\t', '\r':
			p.i++
		default:
			return
		}
	}
}

// peek gives the next byte after white space, 0 at the end.
func (p *scanner) peek() byte {
	if p.i < len(p.s) && p.s[p.i] > ' ' {
		return p.s[p.i]
	}
	p.ws()
	if p.i < len(p.s) {
		return p.s[p.i]
	}
	return 0
}

// open reads the opening bracket c, and says whether it was there; a null or another value is left to the caller.
func (p *scanner) open(c byte) bool {
	if p.peek() != c {
		return false
	}
	p.i++
	return true
}

// more steps to the next element of an array or object that ends with the byte end; first is true before the first element.
func (p *scanner) more(end byte, first bool) bool {
	c := p.peek()
	if c == end {
		p.i++
		return false
	}
	if first {
		if c == 0 {
			p.fail(errShort)
			return false
		}
		return true
	}
	if c != ',' {
		if c == 0 {
			p.fail(errShort)
		} else {
			p.failf("%q where a comma or %q should be", c, end)
		}
		return false
	}
	p.i++
	if c = p.peek(); c == end || c == 0 {
		p.failf("nothing after a comma")
		return false
	}
	return true
}

// key reads an object's next key and its colon.
func (p *scanner) key() string {
	if p.peek() != '"' {
		p.failf("no key")
		return ""
	}
	k := p.str()
	if p.i < len(p.s) && p.s[p.i] == ':' {
		p.i++
		return k
	}
	if p.peek() != ':' {
		p.failf("no colon after %q", k)
		return ""
	}
	p.i++
	return k
}

// short is how far a string is looked through byte by byte: most end sooner, and a call for them would cost more.
const short = 24

// str reads a string; the next byte must be its opening quote.
func (p *scanner) str() string {
	s, start := p.s, p.i+1
	for j := start; j < len(s) && j < start+short; j++ {
		switch s[j] {
		case '"':
			p.i = j + 1
			return s[start:j]
		case '\\':
			return p.escaped(start)
		}
	}
	return p.long(start)
}

func (p *scanner) long(start int) string {
	j := strings.IndexByte(p.s[start:], '"')
	if j < 0 {
		p.fail(errShort)
		return ""
	}
	text := p.s[start : start+j]
	if strings.IndexByte(text, '\\') < 0 {
		p.i = start + j + 1
		return text
	}
	return p.escaped(start)
}

func (p *scanner) escaped(start int) string {
	for j := start; j < len(p.s); j++ {
		switch p.s[j] {
		case '\\':
			j++
		case '"':
			var text string
			if err := json.Unmarshal([]byte(p.s[start-1:j+1]), &text); err != nil {
				p.fail(err)
				return ""
			}
			p.i = j + 1
			return text
		}
	}
	p.fail(errShort)
	return ""
}

// text reads a string value; null is "". Anything else is an error that names the field.
func (p *scanner) text(field string) string {
	switch p.peek() {
	case '"':
		return p.str()
	case 'n':
		p.skip()
		return ""
	}
	p.failf("%s is no string", field)
	return ""
}

// flag reads a boolean value; null is false.
func (p *scanner) flag(field string) bool {
	switch p.peek() {
	case 't':
		p.word("true")
		return true
	case 'f':
		p.word("false")
		return false
	case 'n':
		p.word("null")
		return false
	}
	p.failf("%s is neither true nor false", field)
	return false
}

func (p *scanner) word(w string) {
	if !strings.HasPrefix(p.s[p.i:], w) {
		p.failf("unknown word")
		return
	}
	p.i += len(w)
}

// integer reads a value as an integer of 64 bits. When it is none, raw is the JSON as it stood ("null" counts as absent: raw "").
func (p *scanner) integer() (n int64, present bool, raw string) {
	c := p.peek()
	if c == 'n' {
		p.word("null")
		return 0, false, ""
	}
	if c != '-' && (c < '0' || c > '9') {
		return 0, true, p.skip()
	}
	start := p.i
	neg := c == '-'
	if neg {
		p.i++
	}
	digits := p.i
	for p.i < len(p.s) {
		d := p.s[p.i] - '0'
		if d > 9 {
			break
		}
		n = n*10 + int64(d)
		p.i++
	}
	width := p.i - digits
	if p.i < len(p.s) {
		if c := p.s[p.i]; c == '.' || c == 'e' || c == 'E' {
			p.i = start
			return 0, true, p.skip()
		}
	}
	if width == 0 {
		p.failf("a minus without digits")
		return 0, true, ""
	}
	if width > 18 {
		v, err := strconv.ParseInt(p.s[start:p.i], 10, 64)
		if err != nil {
			return 0, true, p.s[start:p.i]
		}
		return v, true, ""
	}
	if neg {
		n = -n
	}
	return n, true, ""
}

// number reads an integer that must be one; null is 0.
func (p *scanner) number(field string) int64 {
	n, _, raw := p.integer()
	if raw != "" {
		p.failf("%s is %s, not an integer", field, clip(raw))
	}
	return n
}

// sequence reads a sequence of the log.
func (p *scanner) sequence(field string) uint64 {
	n := p.number(field)
	if n < 0 {
		p.failf("%s is %d, not a sequence", field, n)
	}
	return uint64(n)
}

func clip(s string) string {
	const most = 32
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// skip steps over any value and gives it as it stood.
func (p *scanner) skip() string {
	p.ws()
	start := p.i
	p.skipValue(0)
	if p.err != nil {
		return ""
	}
	return p.s[start:p.i]
}

func (p *scanner) skipValue(depth int) {
	if depth > maxDepth {
		p.failf("nested deeper than %d", maxDepth)
		return
	}
	switch c := p.peek(); {
	case c == '"':
		p.skipString()
	case c == '{':
		p.i++
		for first := true; p.more('}', first); first = false {
			p.key()
			p.skipValue(depth + 1)
		}
	case c == '[':
		p.i++
		for first := true; p.more(']', first); first = false {
			p.skipValue(depth + 1)
		}
	case c == 't':
		p.word("true")
	case c == 'f':
		p.word("false")
	case c == 'n':
		p.word("null")
	case c == '-' || c >= '0' && c <= '9':
		p.skipNumber()
	case c == 0:
		p.fail(errShort)
	default:
		p.failf("%q begins no value", c)
	}
}

func (p *scanner) skipString() {
	for j := p.i + 1; j < len(p.s); j++ {
		switch p.s[j] {
		case '\\':
			j++
		case '"':
			p.i = j + 1
			return
		}
	}
	p.fail(errShort)
}

func (p *scanner) skipNumber() {
	start := p.i
	for p.i < len(p.s) {
		switch c := p.s[p.i]; {
		case c >= '0' && c <= '9', c == '-', c == '+', c == '.', c == 'e', c == 'E':
			p.i++
			continue
		}
		break
	}
	if !json.Valid([]byte(p.s[start:p.i])) {
		p.failf("%s is no number", clip(p.s[start:p.i]))
	}
}

// end makes sure that nothing but white space is left.
func (p *scanner) end() {
	if p.err == nil && p.peek() != 0 {
		p.failf("something after the value")
	}
}
