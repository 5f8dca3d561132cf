package manage

import (
	"fmt"
	"net/url"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/strictyaml"
)

// reader reads one body and notes every fault.
type reader struct{ faults authority.Faults }

// object is a JSON object whose fields are taken one by one; end notes those that nobody took.
type object struct {
	r      *reader
	path   string
	fields map[string]gjson.Result
	taken  map[string]bool
}

// maxDepth bounds objects within objects; no body has more than a few.
const maxDepth = 16

// parse reads the body's object; nil, with a fault noted, if it is none.
func (r *reader) parse(text string) *object {
	if !utf8.ValidString(text) || deep(text) || !gjson.Valid(text) {
		r.faults.Add(authority.Fault{Rule: "the body must be one JSON object"})
		return nil
	}
	return r.object(gjson.Parse(text), "")
}

// deep says whether brackets nest further than any body, strings aside.
func deep(text string) bool {
	level, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if level++; level > maxDepth {
				return true
			}
		case c == '}' || c == ']':
			level--
		}
	}
	return false
}

func (r *reader) object(v gjson.Result, path string) *object {
	if !v.IsObject() {
		r.wrong(path, v, "must be a JSON object")
		return nil
	}
	o := &object{r: r, path: path, fields: map[string]gjson.Result{}, taken: map[string]bool{}}
	v.ForEach(func(name, value gjson.Result) bool {
		if _, twice := o.fields[name.Str]; twice {
			r.faults.Add(authority.Fault{Field: o.at(name.Str), Rule: "stands twice: a field may stand once"})
		}
		o.fields[name.Str] = value
		return true
	})
	return o
}

func (r *reader) wrong(path string, v gjson.Result, rule string, args ...any) {
	if len(args) > 0 {
		rule = fmt.Sprintf(rule, args...)
	}
	value := v.Raw
	if v.Type == gjson.String {
		value = v.Str
		if value == "" {
			value = `""`
		}
	}
	if len(value) > 80 {
		value = strings.ToValidUTF8(value[:80], "") + "…"
	}
	r.faults.Add(authority.Fault{Field: path, Value: value, Rule: rule})
}

func (o *object) at(name string) string {
	if o.path == "" {
		return name
	}
	return o.path + "." + name
}

// take gives a field; there is false if it is absent or null.
func (o *object) take(name string) (v gjson.Result, there bool) {
	v, there = o.fields[name]
	o.taken[name] = true
	return v, there && v.Type != gjson.Null
}

func (o *object) wrong(name, rule string, args ...any) {
	o.r.wrong(o.at(name), o.fields[name], rule, args...)
}

// required notes a field that is absent or null.
func (o *object) required(name, what string) bool {
	_, there := o.take(name)
	if !there {
		o.r.faults.Add(authority.Fault{Field: o.at(name), Rule: "must be given: " + what})
	}
	return there
}

// end notes the fields that there are not.
func (o *object) end() {
	var unknown []string
	for name := range o.fields {
		if !o.taken[name] {
			unknown = append(unknown, name)
		}
	}
	sort.Strings(unknown)
	for _, name := range unknown {
		o.r.faults.Add(authority.Fault{Field: o.at(name), Rule: "there is no such field"})
	}
}

// integer reads a whole number within bounds; otherwise if it is absent or null.
func (o *object) integer(name string, otherwise, least, most int64) int64 {
	v, there := o.take(name)
	if !there {
		return otherwise
	}
	n, err := strconv.ParseInt(v.Raw, 10, 64)
	if v.Type != gjson.Number || err != nil || n < least || n > most {
		o.wrong(name, "must be a whole number from %d to %d"+unquoted(v), least, most)
		return otherwise
	}
	return n
}

// unquoted is what the rule of a number says in addition of one that is a text.
func unquoted(v gjson.Result) string {
	if v.Type == gjson.String {
		return ", without quotes"
	}
	return ""
}

// positive reads a finite number above 0 and rounds it down to a whole one, at least one.
func (o *object) positive(name string, most int64) int64 {
	if !o.required(name, "a finite number above 0") {
		return 0
	}
	v := o.fields[name]
	whole, fraction, _ := strings.Cut(v.Raw, ".")
	n, err := strconv.ParseInt(whole, 10, 64)
	if v.Type != gjson.Number || err != nil || strings.Trim(fraction, "0123456789") != "" || whole[0] == '-' || n > most || n == 0 && strings.Trim(fraction, "0") == "" {
		o.wrong(name, "must be a finite number above 0 and at most %d"+unquoted(v), most)
		return 0
	}
	return max(n, 1)
}

// text reads a text of bounded length without control characters; empty if it is absent or null.
func (o *object) text(name string, most int) string {
	v, there := o.take(name)
	if !there {
		return ""
	}
	switch {
	case v.Type != gjson.String:
		o.wrong(name, "must be a text")
	case len(v.Str) > most:
		o.wrong(name, "must be at most %d bytes long", most)
	case strings.ContainsFunc(v.Str, func(c rune) bool { return c < ' ' || c == 0x7f }):
		o.wrong(name, "must not have control characters")
	default:
		return v.Str
	}
	return ""
}

// one reads one of several words; otherwise if it is absent or null.
func (o *object) one(name, otherwise string, words ...string) string {
	v, there := o.take(name)
	if !there {
		return otherwise
	}
	for _, w := range words {
		if v.Type == gjson.String && v.Str == w {
			return w
		}
	}
	o.wrong(name, "must be one of %s", strings.Join(words, ", "))
	return otherwise
}

// boolean reads true or false; otherwise if it is absent or null.
func (o *object) boolean(name string, otherwise bool) bool {
	v, there := o.take(name)
	if there && v.Type != gjson.True && v.Type != gjson.False {
		o.wrong(name, "must be true or false")
		return otherwise
	}
	if !there {
		return otherwise
	}
	return v.Bool()
}

// money reads US dollars in nano-dollars, as text or number: 0 if absent or null. With signed it may be negative.
func (o *object) money(name string, signed bool) int64 {
	v, there := o.take(name)
	if !there {
		return 0
	}
	text, negative := v.Str, false
	if v.Type == gjson.Number {
		text = v.Raw
	} else if v.Type != gjson.String {
		o.wrong(name, "%s", strictyaml.ErrDecimal)
		return 0
	}
	if signed {
		text, negative = strings.CutPrefix(text, "-")
	}
	n, err := strictyaml.ParseDecimal(text, authority.MoneyDigits)
	switch {
	case err != nil:
		o.wrong(name, "%s", err)
		return 0
	case n > events.MaxAmount:
		o.wrong(name, "must be at most %s", strictyaml.FormatDecimal(events.MaxAmount, authority.MoneyDigits))
		return 0
	case negative:
		return -n
	}
	return n
}

// share reads a fraction in millionths: 0 for none.
func (o *object) share(name, rule string, zero bool) int64 {
	v, there := o.take(name)
	if !there {
		return 0
	}
	n, err := authority.ParseFraction(v.Raw)
	if v.Type != gjson.Number || err != nil || n == 0 && !zero {
		o.wrong(name, "%s", rule)
		return 0
	}
	return n
}

// list reads a list of bounded length.
func (o *object) list(name string, most int) []gjson.Result {
	v, there := o.take(name)
	if !there {
		return nil
	}
	if !v.IsArray() {
		o.wrong(name, "must be a list")
		return nil
	}
	all := v.Array()
	if len(all) > most {
		o.wrong(name, "must have at most %d entries", most)
		return nil
	}
	return all
}

// sub reads an object within this one; nil if it is absent or null.
func (o *object) sub(name string) *object {
	v, there := o.take(name)
	if !there {
		return nil
	}
	return o.r.object(v, o.at(name))
}

// url reads an http or https URL; empty if it is absent or null.
func (o *object) url(name string) string {
	text := o.text(name, 2048)
	if text == "" {
		return ""
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Fragment != "" {
		o.wrong(name, "must be a URL with http or https and a host, without a user or a fragment")
		return ""
	}
	return strings.TrimRight(text, "/")
}

// instant reads an RFC 3339 time; the zero time if it is absent, null or empty.
func (o *object) instant(name string) time.Time {
	text := o.text(name, 64)
	if text == "" {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		o.wrong(name, "must be an RFC 3339 time, such as 2026-08-01T00:00:00Z")
		return time.Time{}
	}
	return at.UTC()
}

// The names of a scope's outage mode.
const (
	outageOpen   = "bounded_open"
	outageClosed = "closed"
)

// rates reads rpm, tpm, concurrency and outage_mode.
func (o *object) rates() authority.LimitSet {
	return authority.LimitSet{
		RPM: o.integer("rpm", 0, 1, authority.MaxRPM), TPM: o.integer("tpm", 0, 1, authority.MaxTPM),
		Concurrency: o.integer("concurrency", 0, 1, authority.MaxConcurrency),
		Closed:      o.one("outage_mode", outageOpen, outageOpen, outageClosed) == outageClosed,
	}
}

// given reads the limits that an operator may give a scope. rps and spend caps are not of every scope.
func (o *object) given(rps, spend bool) (l authority.LimitSet) {
	if o == nil {
		return l
	}
	l = o.rates()
	if rps {
		l.RPS = o.integer("rps", 0, 1, authority.MaxRPS)
	}
	if s := o.sub("shadow"); s != nil {
		l.Shadow = authority.Rates{RPM: s.integer("rpm", 0, 1, authority.MaxRPM), TPM: s.integer("tpm", 0, 1, authority.MaxTPM),
			Concurrency: s.integer("concurrency", 0, 1, authority.MaxConcurrency)}
		if rps {
			l.Shadow.RPS = s.integer("rps", 0, 1, authority.MaxRPS)
		}
		s.end()
	}
	if spend {
		l.SpendDay, l.SpendMonth = o.money("spend_day", false), o.money("spend_month", false)
	}
	return l
}

// limitsBody is a set of limits as answers have it: null is none.
type limitsBody struct {
	RPM         *int64  `json:"rpm"`
	RPS         *int64  `json:"rps,omitempty"`
	TPM         *int64  `json:"tpm"`
	Concurrency *int64  `json:"concurrency"`
	SpendDay    *string `json:"spend_day,omitempty"`
	SpendMonth  *string `json:"spend_month,omitempty"`
	OutageMode  string  `json:"outage_mode"`

	Shadow authority.Rates `json:"shadow,omitzero"` // limits that are tried out: they refuse nothing
}

func some(v int64) *int64 {
	if v == 0 {
		return nil
	}
	return &v
}

func dollars(v int64) *string {
	if v == 0 {
		return nil
	}
	text := strictyaml.FormatDecimal(v, authority.MoneyDigits)
	return &text
}

func showLimits(l authority.LimitSet) limitsBody {
	return limitsBody{some(l.RPM), some(l.RPS), some(l.TPM), some(l.Concurrency), dollars(l.SpendDay), dollars(l.SpendMonth), outageMode(l.Closed), l.Shadow}
}

func outageMode(closed bool) string {
	if closed {
		return outageClosed
	}
	return outageOpen
}
