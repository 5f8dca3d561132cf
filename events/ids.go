package events

import (
	"fmt"
	"strings"
	"time"
)

// RequestID names a request: a UUIDv7 made by the gateway.
type RequestID string

// MadeAt gives when a request id was made, to the ms, if it is a UUIDv7 in lower case.
func (id RequestID) MadeAt() (at time.Time, ok bool) {
	if len(id) != 36 || id[8] != '-' || id[13] != '-' || id[14] != '7' {
		return time.Time{}, false
	}
	ms := int64(0)
	for _, c := range []byte(id[:8] + id[9:13]) {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		default:
			return time.Time{}, false
		}
		ms = ms<<4 | int64(c)
	}
	return time.UnixMilli(ms), true
}

// Org names an org, the tenant that owns keys, limits and money. "_" is the platform itself.
type Org string

// Platform is the org token of events that belong to no org.
const Platform Org = "_"

// MaxToken bounds an org or gateway token, in bytes, so that subjects stay short.
const MaxToken = 64

// Gateway names one gateway process: "<configured>-<8 random characters>".
type Gateway string

// Valid says whether o can stand in a subject: [A-Za-z0-9][A-Za-z0-9_-]{0,63}, or "_".
func (o Org) Valid() bool { return o == Platform || validToken(string(o)) }

// Valid says whether g can stand in a subject: [A-Za-z0-9][A-Za-z0-9_-]{0,63}.
func (g Gateway) Valid() bool { return validToken(string(g)) }

func validToken(s string) bool {
	if len(s) == 0 || len(s) > MaxToken || s[0] == '_' || s[0] == '-' {
		return false
	}
	for i := 0; i < len(s); i++ {
		if !plain(s[i]) {
			return false
		}
	}
	return true
}

func plain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// Meter names a counter of the fold: "<scope>/<subject>/<dimension>". It is also the meter's KV key.
type Meter string

// Scope says whose limit a meter holds.
type Scope string

// The scopes of meters.
const (
	ScopePlatform  Scope = "platform"
	ScopeOrg       Scope = "org"
	ScopeWorkspace Scope = "workspace"
	ScopePrincipal Scope = "principal"
	ScopeKey       Scope = "key"
	ScopeModel     Scope = "model"
	ScopeEndpoint  Scope = "endpoint"
	ScopePool      Scope = "pool"
)

// NewMeter names the meter of a scope, a subject of one or two parts and a dimension. Bytes of the subject outside [A-Za-z0-9_-]
// are written =XX, and two parts are joined by a dot, so that different subjects never share a name.
func NewMeter(scope Scope, dimension string, subject ...string) Meter {
	var b strings.Builder
	b.Grow(len(scope) + len(dimension) + 40)
	b.WriteString(string(scope))
	b.WriteByte('/')
	for i, part := range subject {
		if i > 0 {
			b.WriteByte('.')
		}
		escape(&b, part)
	}
	b.WriteByte('/')
	b.WriteString(dimension)
	return Meter(b.String())
}

func escape(b *strings.Builder, s string) {
	const hex = "0123456789ABCDEF"
	for i := 0; i < len(s); i++ {
		if c := s[i]; plain(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('=')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
}

// Split takes a meter's name apart. Subject is returned as it stands in the name; Parts undoes the escapes.
func (m Meter) Split() (scope Scope, subject, dimension string) {
	s := string(m)
	i := strings.IndexByte(s, '/')
	j := strings.LastIndexByte(s, '/')
	if i < 0 || i == j {
		return "", s, ""
	}
	return Scope(s[:i]), s[i+1 : j], s[j+1:]
}

// Parts gives the subject's parts with the escapes undone. A malformed escape stays as it stands.
func (m Meter) Parts() []string {
	_, subject, _ := m.Split()
	parts := strings.Split(subject, ".")
	for i, p := range parts {
		parts[i] = unescape(p)
	}
	return parts
}

func unescape(s string) string {
	if !strings.Contains(s, "=") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '=' && i+2 < len(s) {
			hi, lo := unhex(s[i+1]), unhex(s[i+2])
			if hi >= 0 && lo >= 0 {
				b.WriteByte(byte(hi<<4 | lo))
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// Subject is what a message's subject says of it.
type Subject struct {
	Org     Org
	Kind    Kind
	Type    string  // the kind as written, also when this binary does not know it
	Gateway Gateway // empty unless a gateway published it
}

// Prefix is the first token of every subject of the log.
const Prefix = "acct"

// String gives the subject's text: acct.<org>.<kind>[.<gateway>].
func (s Subject) String() string {
	kind := s.Type
	if kind == "" {
		kind = s.Kind.String()
	}
	if s.Gateway == "" {
		return Prefix + "." + string(s.Org) + "." + kind
	}
	return Prefix + "." + string(s.Org) + "." + kind + "." + string(s.Gateway)
}

// ParseSubject reads a subject of the log. The error names the subject and the rule it breaks.
func ParseSubject(text string) (Subject, error) {
	rest, ok := strings.CutPrefix(text, Prefix+".")
	if !ok {
		return Subject{}, fmt.Errorf("subject %q: does not begin with %q", text, Prefix+".")
	}
	org, rest, ok := strings.Cut(rest, ".")
	if !ok {
		return Subject{}, fmt.Errorf("subject %q: no kind", text)
	}
	kind, gateway, packed := strings.Cut(rest, ".")
	s := Subject{Org: Org(org), Kind: ParseKind(kind), Type: kind, Gateway: Gateway(gateway)}
	if !s.Org.Valid() {
		return Subject{}, fmt.Errorf("subject %q: org %q does not match [A-Za-z0-9][A-Za-z0-9_-]{0,63}", text, org)
	}
	if packed && !s.Gateway.Valid() {
		return Subject{}, fmt.Errorf("subject %q: gateway %q does not match [A-Za-z0-9][A-Za-z0-9_-]{0,63}", text, gateway)
	}
	return s, nil
}
