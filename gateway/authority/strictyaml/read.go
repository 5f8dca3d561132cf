package strictyaml

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// Map is a mapping whose keys are taken one by one; End reports those that nobody took.
type Map struct {
	node   Node
	keys   []string
	values map[string]Node
	taken  map[string]bool
}

// Map reads a mapping. An absent one has no keys; anything else is a fault, and has none either.
func (n Node) Map() *Map {
	m := &Map{node: n, values: map[string]Node{}, taken: map[string]bool{}}
	body := n.body()
	if body == nil {
		return m
	}
	m.fill(body, false, 0)
	return m
}

// body is the parsed value, also of a text from another source.
func (n Node) body() ast.Node {
	if n.text == nil {
		return n.n
	}
	parsed := n.r.parse([]byte(*n.text), n.pos)
	if parsed == nil {
		return nil
	}
	return n.r.plain(parsed, n.pos)
}

func (m *Map) fill(body ast.Node, merged bool, depth int) {
	var pairs []*ast.MappingValueNode
	switch v := body.(type) {
	case *ast.MappingNode:
		pairs = v.Values
	case *ast.MappingValueNode:
		pairs = []*ast.MappingValueNode{v}
	default:
		m.node.Wrong("must be a map")
		return
	}
	r := m.node.r
	var merges []*ast.MappingValueNode // after the map's own keys, which win
	defer func() {
		for _, pair := range merges {
			m.merge(pair.Value, Pos{File: m.node.pos.File, Line: lineOf(pair.Key, m.node.pos.Line)}, depth)
		}
	}()
	for _, pair := range pairs {
		at := Pos{File: m.node.pos.File, Line: lineOf(pair.Key, m.node.pos.Line)}
		if pair.Key != nil && pair.Key.IsMergeKey() {
			merges = append(merges, pair)
			continue
		}
		key, ok := keyOf(pair.Key)
		if !ok {
			r.Faults.Add(Fault{Pos: at, Field: m.node.path, Rule: "has a key that is no plain text"})
			continue
		}
		if _, twice := m.values[key]; twice {
			if !merged {
				r.Faults.Add(Fault{Pos: at, Field: join(m.node.path, key), Rule: "stands twice: a key may stand once"})
			}
			continue
		}
		m.keys = append(m.keys, key)
		m.values[key] = Node{r: r, n: r.plain(pair.Value, at), path: join(m.node.path, key), pos: at, fixed: m.node.fixed || m.node.text != nil}
	}
}

// merge adds the keys of "<<" that the map does not have itself.
func (m *Map) merge(value ast.Node, at Pos, depth int) {
	target := m.node.r.plain(value, at)
	if depth >= maxNesting {
		m.node.r.Faults.Add(Fault{Pos: at, Field: m.node.path, Rule: "merges too many maps"})
		return
	}
	own := &Map{node: m.node, values: map[string]Node{}, taken: map[string]bool{}}
	if list, ok := target.(*ast.SequenceNode); ok {
		for _, item := range list.Values {
			own.fill(m.node.r.plain(item, at), true, depth+1)
		}
	} else if target != nil {
		own.fill(target, true, depth+1)
	}
	for _, key := range own.keys {
		if _, has := m.values[key]; !has {
			m.keys = append(m.keys, key)
			m.values[key] = own.values[key]
		}
	}
}

func keyOf(k ast.MapKeyNode) (string, bool) {
	switch v := k.(type) {
	case nil:
		return "", false
	case *ast.MappingKeyNode:
		return scalar(v.Value)
	default:
		return scalar(v)
	}
}

// Get takes a field. One that the file does not have is absent; another source may have it.
func (m *Map) Get(key string) Node {
	m.taken[key] = true
	if m.node.r.Asked != nil {
		m.node.r.Asked(join(m.node.path, key))
	}
	n, ok := m.values[key]
	if !ok {
		n = Node{r: m.node.r, path: join(m.node.path, key), pos: m.node.pos, fixed: m.node.fixed || m.node.text != nil}
	}
	if !n.fixed && m.node.r.Override != nil {
		if text := m.node.r.Override(n.path); text != "" {
			return Node{r: m.node.r, text: &text, path: n.path, pos: Pos{File: "environment"}, fixed: true}
		}
	}
	return n
}

// Has says whether the file has the field.
func (m *Map) Has(key string) bool {
	_, ok := m.values[key]
	return ok
}

// Names lists the keys in the file's order, for a map whose keys are names. Use Entry to read them.
func (m *Map) Names() []string { return m.keys }

// Entry takes the value of a name.
func (m *Map) Entry(name string) Node {
	m.taken[name] = true
	n := m.values[name]
	n.fixed = true
	return n
}

// End notes a fault for each key that was not taken.
func (m *Map) End() {
	for _, key := range m.keys {
		if m.taken[key] {
			continue
		}
		n := m.values[key]
		m.node.r.Faults.Add(Fault{Pos: n.pos, Field: n.path, Rule: "there is no such field" + Meant(key, m.taken)})
	}
}

// Meant asks whether the known name was meant that a word is nearest to; empty if it is near to none.
func Meant(word string, names map[string]bool) string {
	best, least := "", 3
	for known := range names {
		if d := distance(word, known); d < least || d == least && best != "" && known < best {
			best, least = known, d
		}
	}
	if best == "" {
		return ""
	}
	return ": did you mean " + best + "?"
}

// distance counts the edits between two short words; long ones are far apart.
func distance(a, b string) int {
	if len(a) > 40 || len(b) > 40 {
		return math.MaxInt
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := before
			if a[i-1] != b[j-1] {
				cost++
			}
			before = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}

// List reads a list. An absent one is empty.
func (n Node) List() []Node {
	body := n.body()
	if body == nil {
		return nil
	}
	seq, ok := body.(*ast.SequenceNode)
	if !ok {
		n.Wrong("must be a list")
		return nil
	}
	out := make([]Node, len(seq.Values))
	for i, v := range seq.Values {
		at := Pos{File: n.pos.File, Line: lineOf(v, n.pos.Line)}
		out[i] = Node{r: n.r, n: n.r.plain(glue(v), at), path: fmt.Sprintf("%s[%d]", n.path, i), pos: at, fixed: true}
	}
	return out
}

// glue undoes what the library does to a plain "http://host:8000" in a list inside braces: a colon without a space behind it
// makes no map of it.
func glue(n ast.Node) ast.Node {
	if m, ok := n.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) == 1 {
		n = m.Values[0]
	}
	pair, ok := n.(*ast.MappingValueNode)
	if !ok || pair.Start == nil || pair.Key == nil || pair.Value == nil {
		return n
	}
	key, value := tokenOf(pair.Key), tokenOf(pair.Value)
	_, single := scalar(pair.Value)
	if key == nil || value == nil || !single || key.Type != token.StringType || value.Indicator == token.QuotedScalarIndicator ||
		value.Position.Offset != pair.Start.Position.Offset+1 {
		return n
	}
	whole := *key
	whole.Value += ":" + value.Value
	return ast.String(&whole)
}

// Text reads any scalar as it is written. ok is false for an absent value, and for a fault.
func (n Node) Text() (text string, ok bool) {
	if n.Absent() {
		return "", false
	}
	if n.text != nil {
		return *n.text, true
	}
	if text, ok = scalar(n.n); !ok {
		n.Wrong("must be a single value, not " + n.shown())
	}
	return text, ok
}

// IsMap says whether the value is a map.
func (n Node) IsMap() bool {
	switch n.n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return true
	}
	return false
}

func scalar(n ast.Node) (string, bool) {
	switch v := n.(type) {
	case *ast.StringNode:
		return v.Value, true
	case *ast.LiteralNode:
		if v.Value == nil {
			return "", true
		}
		return v.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode, *ast.NullNode:
		if t := tokenOf(v); t != nil {
			return strings.TrimSpace(t.Value), true
		}
	}
	return "", false
}

// Str reads a text, otherwise when absent.
func (n Node) Str(otherwise string) string {
	if text, ok := n.Text(); ok {
		return text
	}
	return otherwise
}

// OneOf reads one of some words. A first word of "" allows an empty text.
func (n Node) OneOf(otherwise string, words ...string) string {
	text, ok := n.Text()
	if !ok {
		return otherwise
	}
	for _, w := range words {
		if text == w {
			return text
		}
	}
	n.Wrong("must be one of " + strings.TrimPrefix(strings.Join(words, ", "), ", "))
	return otherwise
}

// wholeNumber is one that stands in quotes by mistake.
var wholeNumber = regexp.MustCompile(`^[0-9]+$`)

// octal is a number that the versions of YAML differ on.
var octal = regexp.MustCompile(`^[-+]?0[0-9_]+$`)

// quoted says whether the value stands in quotes.
func (n Node) quoted() bool {
	s, is := n.n.(*ast.StringNode)
	if !is {
		return false
	}
	t := tokenOf(s)
	return t != nil && t.Indicator == token.QuotedScalarIndicator
}

// Int reads a whole number between least and most.
func (n Node) Int(otherwise, least, most int64) int64 {
	if n.Absent() {
		return otherwise
	}
	text, ok := "", false
	switch v := n.n.(type) {
	case nil:
		text, ok = *n.text, true
	case *ast.IntegerNode, *ast.FloatNode:
		text, ok = scalar(v)
	}
	if plain, is := n.n.(*ast.StringNode); is && wholeNumber.MatchString(plain.Value) {
		if n.quoted() {
			n.Wrong("must be a whole number without quotes")
			return otherwise
		}
		text = plain.Value // so many digits that the library takes them for a text
	}
	if n.text == nil && octal.MatchString(text) {
		n.Wrong("must not begin with 0: some readers of YAML take it for an octal number")
		return otherwise
	}
	v, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		n.Wrong("must be a whole number from %d to %d", least, most)
		return otherwise
	}
	if !ok || err != nil {
		n.Wrong("must be a whole number")
		return otherwise
	}
	if v < least || v > most {
		switch {
		case v < 0 && least == 0:
			n.Wrong("must not be negative")
		default:
			n.Wrong("must be from %d to %d", least, most)
		}
		return otherwise
	}
	return v
}

// Bool reads true or false.
func (n Node) Bool(otherwise bool) bool {
	if n.Absent() {
		return otherwise
	}
	if n.n != nil {
		if _, ok := n.n.(*ast.BoolNode); !ok {
			n.Wrong("must be true or false")
			return otherwise
		}
	}
	text, _ := n.Text()
	switch strings.ToLower(text) {
	case "true":
		return true
	case "false":
		return false
	}
	n.Wrong("must be true or false")
	return otherwise
}

// Float reads a finite number.
func (n Node) Float(otherwise float64) float64 {
	text, ok := n.Text()
	if !ok {
		return otherwise
	}
	v, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil || math.IsNaN(v) || math.IsInf(v, 0):
		n.Wrong("must be a number")
		return otherwise
	case n.quoted():
		n.Wrong("must be a number without quotes")
		return otherwise
	}
	return v
}

// Duration reads a duration such as 250ms, 5s or 720h, between least and most.
func (n Node) Duration(otherwise, least, most time.Duration) time.Duration {
	text, ok := n.Text()
	if !ok {
		return otherwise
	}
	v, err := time.ParseDuration(text)
	if err != nil {
		n.Wrong("must be a duration such as 250ms, 5s or 720h")
		return otherwise
	}
	if v < least || v > most {
		n.Wrong("must be from %s to %s", least, most)
		return otherwise
	}
	return v
}

// Decimal reads a decimal number that is not negative, exactly: scaled by 10^digits. More digits than that, an exponent, a sign
// and what is above most (scaled) are faults. Nothing is rounded.
func (n Node) Decimal(otherwise int64, digits int, most int64) int64 {
	text, ok := n.Text()
	if !ok {
		return otherwise
	}
	v, err := ParseDecimal(text, digits)
	if err != nil {
		n.Wrong("%s", err.Error())
		return otherwise
	}
	if v > most {
		n.Wrong("must be at most %s", FormatDecimal(most, digits))
		return otherwise
	}
	return v
}

// ErrDecimal is the rule of a decimal number.
var ErrDecimal = errors.New("must be a decimal number such as 0.15, not negative")

// ParseDecimal reads "1.25" as 1.25 × 10^digits. The error says the rule.
func ParseDecimal(text string, digits int) (int64, error) {
	whole, fraction, point := strings.Cut(text, ".")
	if whole == "" && fraction == "" || point && fraction == "" || !allDigits(whole) || !allDigits(fraction) {
		return 0, ErrDecimal
	}
	fraction = strings.TrimRight(fraction, "0")
	if len(fraction) > digits {
		return 0, fmt.Errorf("must have at most %d digits after the point", digits)
	}
	v, err := strconv.ParseInt("0"+whole+fraction+strings.Repeat("0", digits-len(fraction)), 10, 64)
	if err != nil {
		return 0, errors.New("is too large")
	}
	return v, nil
}

// FormatDecimal writes what ParseDecimal reads, without trailing zeros.
func FormatDecimal(v int64, digits int) string {
	s := strconv.FormatInt(v, 10)
	for len(s) <= digits {
		s = "0" + s
	}
	whole, fraction := s[:len(s)-digits], strings.TrimRight(s[len(s)-digits:], "0")
	if fraction == "" {
		return whole
	}
	return whole + "." + fraction
}

func allDigits(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// URL reads an absolute URL of one of the schemes, without a trailing slash.
func (n Node) URL(otherwise string, schemes ...string) string {
	text, ok := n.Text()
	if !ok || text == "" {
		return otherwise
	}
	u, err := url.Parse(text)
	if err == nil && u.Host != "" {
		for _, s := range schemes {
			if u.Scheme == s {
				return strings.TrimRight(text, "/")
			}
		}
	}
	n.Wrong("must be an absolute URL that begins with %s://", strings.Join(schemes, ":// or "))
	return otherwise
}
