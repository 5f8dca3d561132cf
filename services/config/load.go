package config

import (
	"encoding/hex"
	"net/url"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/strictyaml"
)

// loader fills in a configuration.
type loader struct {
	c        *Config
	r        *strictyaml.Reader
	env      func(string) string
	warnings []Warning
}

func (l *loader) warn(at authority.Pos, field, value, rule string) {
	l.warnings = append(l.warnings, Warning{Pos: at, Field: field, Value: value, Rule: rule})
}

func (l *loader) top(m *strictyaml.Map) {
	c := l.c
	c.Name = m.Get("name").Str(c.Name)
	c.Listen = l.address(m.Get("listen"), c.Listen)
	c.DataDir = l.path(m.Get("data_dir"), c.DataDir)
	l.proxies(m.Get("trusted_proxies"))
	l.operators(m.Get("operators").Map())
	l.tracing(m.Get("tracing").Map())
	l.audit(m.Get("audit").Map())
	l.log(m.Get("log").Map())
	c.MaxRequestBytes = m.Get("max_request_bytes").Int(c.MaxRequestBytes, minRequestBytes, maxRequestBytes)
	l.upstream(m.Get("upstream").Map())
	c.Database = m.Get("database").URL("", "postgres", "postgresql")
	l.authority(m.Get("authority").Map())
	l.seal(m.Get("seal").Map())
	auth := m.Get("auth")
	_, given := auth.Text()
	c.Auth, c.AuthOptional = l.path(auth, c.Auth), !given
	c.Policies = l.path(m.Get("policies"), c.Policies)
	l.adminKeys(m.Get("admin_keys"))
	l.limits(m.Get("limits").Map())
	l.byok(m.Get("byok").Map())
	c.FreeEstimates = !m.Get("bill_estimates").Bool(true)
	l.orgs(m.Get("orgs").Map())
	l.connections(m.Get("connections").List())
	l.pools(m.Get("pools").List())
	l.models(m.Get("models").List())
	l.exports(m.Get("exports"))
	m.End()
}

// address reads a host and port.
func (l *loader) address(n strictyaml.Node, otherwise string) string {
	text, ok := n.Text()
	if !ok || text == "" {
		return otherwise
	}
	if rule := address(text); rule != "" {
		n.Wrong("%s", rule)
		return otherwise
	}
	return text
}

// path reads a path, which in a file is relative to the file. So are the defaults.
func (l *loader) path(n strictyaml.Node, otherwise string) string {
	text, ok := n.Text()
	if !ok || text == "" {
		return l.c.relative(otherwise)
	}
	if n.Pos().Line == 0 { // a variable's
		return text
	}
	return l.c.relative(text)
}

func (l *loader) log(m *strictyaml.Map) {
	log := &l.c.Log
	log.URL = natsURLs(m.Get("url"))
	log.Listen = l.address(m.Get("listen"), "")
	if n := m.Get("credentials"); n.Str("") != "" {
		log.Credentials = l.path(n, "")
	}
	if n := m.Get("replicas"); !n.Absent() {
		if log.Replicas = int(n.Int(1, 1, 5)); log.Replicas%2 == 0 {
			n.Wrong("must be 1, 3 or 5")
		}
	}
	sync := m.Get("sync")
	if log.SyncAlways = sync.Str("") == "always"; !log.SyncAlways {
		if _, err := time.ParseDuration(sync.Str("1s")); err != nil {
			sync.Wrong("must be an interval such as 1s, or always")
		} else {
			log.Sync = sync.Duration(log.Sync, minSync, maxSync)
		}
	}
	log.MaxAge = m.Get("max_age").Duration(log.MaxAge, minAge, maxAge)
	log.Compress = m.Get("compression").OneOf("none", "none", "s2") == "s2"
	m.End()
}

// natsURLs reads one or several server URLs, separated by commas.
func natsURLs(n strictyaml.Node) string {
	text, ok := n.Text()
	if !ok || text == "" {
		return ""
	}
	for _, one := range strings.Split(text, ",") {
		u, err := url.Parse(strings.TrimSpace(one))
		if err != nil || u.Host == "" || u.Scheme != "nats" && u.Scheme != "tls" && u.Scheme != "ws" && u.Scheme != "wss" {
			n.Wrong("must be nats:// or tls:// URLs, separated by commas")
			return ""
		}
	}
	return text
}

func (l *loader) upstream(m *strictyaml.Map) {
	u := &l.c.Upstream
	u.Connect = m.Get("connect").Duration(u.Connect, minWait, maxWait)
	u.FirstByte = m.Get("first_byte").Duration(u.FirstByte, minWait, maxWait)
	u.Idle = m.Get("idle").Duration(u.Idle, minWait, maxWait)
	m.End()
}

// adminKeys reads hashes from the file. Raw keys come from the environment alone, as do more hashes, as sha256:<hex>.
func (l *loader) adminKeys(n strictyaml.Node) {
	for _, item := range n.List() {
		text, _ := item.Text()
		if hash, ok := parseHash(text); ok {
			l.admin(hash)
		} else {
			item.WrongSecret("must be the SHA-256 of a key in 64 hexadecimal digits (a key itself goes into WEIR_ADMIN_KEYS)")
		}
	}
	for _, key := range strings.Split(l.env(Variable("admin_keys")), ",") {
		key = strings.TrimSpace(key)
		if digits, hashed := strings.CutPrefix(key, "sha256:"); hashed {
			hash, ok := parseHash(digits)
			if !ok {
				l.r.Faults.Add(authority.Fault{Pos: authority.Pos{File: "environment"}, Field: Variable("admin_keys"), Rule: "has a sha256: that is not 64 hexadecimal digits"})
				continue
			}
			l.admin(hash)
		} else if key != "" {
			l.admin(authority.HashKey(key))
		}
	}
}

func parseHash(text string) (hash [32]byte, ok bool) {
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != len(hash) {
		return hash, false
	}
	return [32]byte(raw), true
}

// admin adds a key once.
func (l *loader) admin(hash [32]byte) (added bool) {
	for _, have := range l.c.AdminKeys {
		if have == hash {
			return false
		}
	}
	l.c.AdminKeys = append(l.c.AdminKeys, hash)
	return true
}

// The variables of the router whose formats are read here. An invalid value is warned about and leaves the default.
const (
	varFraction = "HIVENET_ROUTER_ADMIT_FRACTION"
	varPark     = "HIVENET_ROUTER_ADMIT_PARK_TIMEOUT"
	varAdmin    = "HIVENET_ROUTER_ADMIN_API_KEYS"
)

func (l *loader) router() {
	at := authority.Pos{File: "environment"}
	if text := l.env(varFraction); text != "" {
		if v, err := authority.ParseFraction(text); err == nil && v > 0 {
			l.c.Admission.FractionPPM = v
		} else {
			l.warn(at, varFraction, text, "must be greater than 0 and at most 1, 0.90 for 90 %: the default, 0.90, is kept")
		}
	}
	if text := l.env(varPark); text != "" {
		v, err := time.ParseDuration(text)
		if err == nil && v >= 0 && v <= events.MaxParkMS*time.Millisecond {
			l.c.Admission.ParkMS = v.Milliseconds()
		} else {
			l.warn(at, varPark, text, "must be a duration from 0 to 5s: the default, 250ms, is kept")
		}
	}
	if text := l.env(varAdmin); text != "" {
		for _, key := range strings.Split(text, ",") {
			switch key = strings.TrimSpace(key); {
			case key == "":
				l.warn(at, varAdmin, "", "has an empty key, which is left out")
			case !l.admin(authority.HashKey(key)):
				l.warn(at, varAdmin, "", "has a key twice")
			}
		}
	}
}

func (l *loader) limits(m *strictyaml.Map) {
	l.c.Platform = authority.ReadPlatform(m.Get("platform"))
	d := m.Get("defaults").Map()
	for _, scope := range []struct {
		name string
		into *authority.Limits
		read func(strictyaml.Node) authority.Limits
	}{
		{"org", &l.c.Defaults.Org, withMoney}, {"workspace", &l.c.Defaults.Workspace, withMoney},
		{"principal", &l.c.Defaults.Principal, authority.ReadRates}, {"key", &l.c.Defaults.Key, withMoney},
	} {
		own := scope.read(d.Get(scope.name))
		inherit(&own.RPM, scope.into.RPM)
		inherit(&own.TPM, scope.into.TPM)
		inherit(&own.Concurrency, scope.into.Concurrency)
		*scope.into = own
	}
	d.End()
	m.End()
}

func withMoney(n strictyaml.Node) authority.Limits {
	limits, daily := authority.ReadLimits(n)
	if daily > 0 {
		n.Wrong("must not have tokens_per_day: there is no default for it")
	}
	return limits
}

// inherit takes the default for what is not given.
func inherit(own *int64, otherwise int64) {
	if *own == 0 {
		*own = otherwise
	}
}

func (l *loader) orgs(m *strictyaml.Map) {
	for _, name := range m.Names() {
		n := m.Entry(name)
		o := n.Map()
		org := authority.DeclaredOrg{At: n.Pos(), Name: name,
			Billing: authority.Billing(o.Get("billing").OneOf(string(authority.Postpaid), string(authority.Postpaid), string(authority.Prepaid)))}
		if strings.TrimSpace(name) == "" || len(name) > authority.MaxName {
			n.Wrong("must be under the name of an org, at most %d bytes", authority.MaxName)
		}
		org.Limits, org.Daily = authority.ReadLimits(o.Get("limits"))
		org.Models = named(o.Get("models"), authority.ReadRates)
		money := func(n strictyaml.Node) authority.Limits {
			limits, daily := authority.ReadLimits(n)
			if daily > 0 {
				n.Wrong("must not have tokens_per_day: that is for orgs and keys")
			}
			return limits
		}
		org.Workspaces = named(o.Get("workspaces"), money)
		org.Principals = named(o.Get("principals"), authority.ReadRates)
		o.End()
		l.c.Orgs = append(l.c.Orgs, org)
	}
}

// named reads limits under names.
func named(n strictyaml.Node, read func(strictyaml.Node) authority.Limits) map[string]authority.Limits {
	m := n.Map()
	if len(m.Names()) == 0 {
		return nil
	}
	limits := make(map[string]authority.Limits, len(m.Names()))
	for _, name := range m.Names() {
		limits[name] = read(m.Entry(name))
	}
	return limits
}
