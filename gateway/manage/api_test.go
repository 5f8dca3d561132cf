package manage_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
)

// people are an owner, an admin and a viewer of acme, which is not held, and an owner of another org.
func people(t *testing.T) (s *server, owner, admin, viewer, other *person) {
	s = newServer(t)
	s.acme()
	s.admin("POST", "/admin/orgs/acme/credits", obj("amount", 1, "reference", "first")).is(200)
	s.admin("PUT", "/admin/orgs/other", obj()).is(201)
	return s, s.person("acme", "owner@acme.example", "owner"), s.person("acme", "admin@acme.example", "admin"), s.person("acme", "viewer@acme.example", "viewer"),
		s.person("other", "owner@other.example", "owner")
}

func TestLimits(t *testing.T) {
	s, owner, admin, viewer, other := people(t)
	s.admin("PUT", "/admin/orgs/acme/workspaces/w", obj()).is(201)
	s.admin("PUT", "/admin/orgs/acme/principals/p", obj()).is(201)
	s.admin("PUT", "/admin/api-keys/k", with(s.keyOf("raw", "acme"), "rpm_ceiling", 60, "workspace", "w", "principal", "p")).is(200)
	set := func(p *person, scope, subject string, pairs ...any) *reply {
		return p.do("POST", "/api/admission-limits", with(obj("scope", scope, "subject", subject), pairs...))
	}
	list := func(p *person) []any { return p.do("GET", "/api/admission-limits", nil).is(200)["limits"].([]any) }
	if got := list(viewer); len(got) != 0 {
		t.Errorf("%v", got)
	}
	version := s.fence("acme")
	got := set(owner, "key", "k", "rpm", 100, "tpm", 200000, "concurrency", 4, "outage_mode", "bounded_open").is(200)
	if got["scope"] != "key" || got["subject"] != "k" || got["rpm"] != 100.0 || got["outage_mode"] != "bounded_open" {
		t.Errorf("%v", got)
	}
	if s.fence("acme") != version+1 {
		t.Error("the change has no fence")
	}
	if _, limits := s.key("raw"); limits[events.ScopeKey] != (authority.Limits{RPM: 60, TPM: 200_000, Concurrency: 4}) {
		t.Errorf("a larger limit raised the ceiling: %v", limits[events.ScopeKey])
	}
	set(admin, "key", "k", "rpm", 10, "outage_mode", "closed").is(200) // replaces whole
	if _, limits := s.key("raw"); limits[events.ScopeKey] != (authority.Limits{RPM: 10, TPM: 1_000_000, Concurrency: 8, Closed: true}) {
		t.Errorf("%v", limits[events.ScopeKey])
	}
	set(owner, "org", "org", "rpm", 200).is(200)
	set(owner, "workspace", "w", "tpm", 5).is(200)
	set(owner, "principal", "p", "concurrency", 2).is(200)
	set(owner, "model", "vendor/model", "rpm", 7).is(200)
	_, limits := s.key("raw")
	if limits[events.ScopeOrg].RPM != 200 || limits[events.ScopeWorkspace].TPM != 5 || limits[events.ScopeWorkspace].RPM != 300 || limits[events.ScopePrincipal].Concurrency != 2 ||
		s.mirror.Current().Orgs["acme"].Models["vendor/model"].RPM != 7 {
		t.Errorf("%v", limits)
	}
	scopes := []string{}
	for _, l := range list(viewer) {
		scopes = append(scopes, l.(map[string]any)["scope"].(string)+":"+l.(map[string]any)["subject"].(string))
	}
	if fmt.Sprint(scopes) != "[org:org workspace:w principal:p key:k model:vendor/model]" {
		t.Errorf("%v", scopes)
	}
	if len(list(other)) != 0 {
		t.Error("another org's limits are seen")
	}
	set(owner, "key", "k", "rpm", nil, "tpm", nil).is(200) // all inherited
	if _, limits := s.key("raw"); limits[events.ScopeKey] != (authority.Limits{RPM: 60, TPM: 1_000_000, Concurrency: 8}) || len(list(owner)) != 4 {
		t.Errorf("%v", limits[events.ScopeKey])
	}
	set(viewer, "key", "k", "rpm", 10).refuses(403, "the role viewer reads")
	set(other, "key", "k", "rpm", 10).refuses(400, "subject is k: there is no such key of this org")
}

func TestWhatALimitMustBe(t *testing.T) {
	s, owner, _, _, _ := people(t)
	base := obj("scope", "org", "subject", "org")
	for part, body := range map[string]map[string]any{
		"scope: must be given":             obj("subject", "org"),
		"scope is platform: must be one":   with(base, "scope", "platform"),
		"subject: must be given":           obj("scope", "org"),
		"subject is acme: must be org for": with(base, "subject", "acme"),
		"there is no such workspace":       obj("scope", "workspace", "subject", "nope"),
		"there is no such principal":       obj("scope", "principal", "subject", "nope"),
		"there is no such key":             obj("scope", "key", "subject", "fk"), // another org's, of the files
		"there is no such model":           obj("scope", "model", "subject", "M"),
		"rps: there is no such field":      with(base, "rps", 5),
		"spend_day: there is no such":      with(base, "spend_day", "5"),
		"outage_mode is open: must be one": with(base, "outage_mode", "open"),
	} {
		owner.do("POST", "/api/admission-limits", body).refuses(400, part)
	}
	for field, most := range map[string]int64{"rpm": 1_000_000, "tpm": 1_000_000_000, "concurrency": 10_000} {
		for _, v := range []any{0, -1, most + 1, 1.5, "1", true, []int{1}, json.RawMessage("1e2")} {
			body := owner.do("POST", "/api/admission-limits", with(base, field, v)).refuses(400, fmt.Sprintf("must be a whole number from 1 to %d", most))
			if body["field"] != field || body["rule"] == "" {
				t.Errorf("%v", body)
			}
		}
		for _, v := range []any{int64(1), most} {
			owner.do("POST", "/api/admission-limits", with(base, field, v)).is(200)
		}
	}
	filed := s.person("filed", "ann@filed.example", "admin")
	for _, c := range [][2]string{{"key", "fk"}, {"workspace", "fw"}, {"principal", "fp"}} { // of the files
		filed.do("POST", "/api/admission-limits", obj("scope", c[0], "subject", c[1], "rpm", 5)).is(200)
		if _, limits := s.key("file-key"); limits[events.Scope(c[0])].RPM != 5 {
			t.Errorf("%s: %v", c[0], limits)
		}
	}
}

func TestPools(t *testing.T) {
	s, owner, _, viewer, other := people(t)
	pool := func(pairs ...any) map[string]any {
		return with(obj("provider", "openai", "rpm", 500, "tpm", 1000000, "concurrency", 20), pairs...)
	}
	create := func(pairs ...any) string {
		t.Helper()
		return owner.do("POST", "/api/quota-pools", pool(pairs...)).is(201)["id"].(string)
	}
	got := owner.do("POST", "/api/quota-pools", pool("headroom_percent", nil, "parent_pool_id", nil)).is(201)
	if u := got["usable"].(map[string]any); got["headroom_percent"] != 90.0 || got["parent_pool_id"] != nil || u["rpm"] != 450.0 || u["tpm"] != 9e5 || u["concurrency"] != 18.0 {
		t.Errorf("%v", got)
	}
	tiny := owner.do("POST", "/api/quota-pools", pool("rpm", 1, "tpm", 0.5, "concurrency", 3.9, "headroom_percent", 1)).is(201)
	if u := tiny["usable"].(map[string]any); u["rpm"] != 1.0 || u["tpm"] != 1.0 || u["concurrency"] != 1.0 || tiny["concurrency"] != 3.0 {
		t.Errorf("fractions round down, at least to one: %v", tiny)
	}
	for part, body := range map[string]map[string]any{
		"provider is own: must be one of openai, anthropic, azure, bedrock": pool("provider", "own"),
		"provider: must be given":                   pool("provider", nil),
		"rpm: must be given":                        pool("rpm", nil),
		"tpm is 0: must be a finite number above 0": pool("tpm", 0),
		"concurrency is -1: must be a finite":       pool("concurrency", -1),
		"rpm is 5: must be a finite number above 0 and at most 1000000000000, without quotes": pool("rpm", "5"),
		"headroom_percent is 0: must be a whole number from 1 to 100":                         pool("headroom_percent", 0),
		"headroom_percent is 101":                       pool("headroom_percent", 101),
		"parent_pool_id is nope: there is no pool nope": pool("parent_pool_id", "nope"),
		"there is no pool file-pool":                    pool("parent_pool_id", "file-pool"), // the house's
		"parent: there is no such field":                pool("parent", "x"),
	} {
		owner.do("POST", "/api/quota-pools", body).refuses(400, part)
	}
	owner.do("POST", "/api/quota-pools", json.RawMessage(`{"provider":"openai","rpm":1e999,"tpm":1,"concurrency":1}`)).refuses(400, "rpm is 1e999: must be a finite number")
	viewer.do("POST", "/api/quota-pools", pool()).refuses(403, "the role viewer reads")

	top := create()
	second := create("parent_pool_id", top)
	third := create("parent_pool_id", second)
	fourth := create("parent_pool_id", third)
	owner.do("POST", "/api/quota-pools", pool("parent_pool_id", fourth)).refuses(400, "pools nest at most 4 levels")
	owner.do("POST", "/api/quota-pools", pool("parent_pool_id", top, "provider", "azure")).refuses(400, "is of provider openai: a parent must have the same")
	owner.do("POST", "/api/quota-pools/"+top, pool("parent_pool_id", fourth)).refuses(400, "is above itself")
	owner.do("POST", "/api/quota-pools/"+top, pool("parent_pool_id", top)).refuses(400, "is above itself")
	alone := create()
	owner.do("POST", "/api/quota-pools/"+top, pool("parent_pool_id", alone)).refuses(400, "is below this one: pools nest at most 4 levels")
	owner.do("POST", "/api/quota-pools/"+top, pool("provider", "azure")).refuses(400, "provider is azure: is openai: an update replaces the limits and the parent alone")
	owner.do("POST", "/api/quota-pools/"+third, pool("rpm", 10, "headroom_percent", 50)).is(200) // and no parent any more
	if got := viewer.do("GET", "/api/quota-pools/"+third, nil).is(200); got["parent_pool_id"] != nil || got["rpm"] != 10.0 || got["headroom_percent"] != 50.0 {
		t.Errorf("%v", got)
	}
	if chain := s.mirror.Current().Chain(fourth); len(chain) != 2 || chain[1].Pool.RPM != 5 {
		t.Errorf("%+v", chain)
	}
	for _, r := range []*reply{other.do("GET", "/api/quota-pools/"+top, nil), other.do("POST", "/api/quota-pools/"+top, pool()), owner.do("GET", "/api/quota-pools/file-pool", nil),
		other.do("POST", "/api/quota-pools/"+top+"/bind", obj("connection_id", "c"))} {
		r.refuses(404, "there is no such pool of this org")
	}
	other.do("POST", "/api/quota-pools", pool("parent_pool_id", top)).refuses(400, "there is no pool "+top)
}

func TestTheNewest100Pools(t *testing.T) {
	s, owner, _, _, other := people(t)
	for i := range 103 {
		s.ahead.Add(int64(time.Second))
		owner.do("POST", "/api/quota-pools", obj("provider", "azure", "rpm", i+1, "tpm", 1, "concurrency", 1)).is(201)
	}
	list := owner.do("GET", "/api/quota-pools", nil).is(200)["pools"].([]any)
	if len(list) != 100 || list[0].(map[string]any)["rpm"] != 103.0 || list[99].(map[string]any)["rpm"] != 4.0 {
		t.Errorf("%d pools from %v", len(list), list[0])
	}
	if got := other.do("GET", "/api/quota-pools", nil).is(200)["pools"].([]any); len(got) != 0 {
		t.Error("another org's pools are seen")
	}
}

func TestBindAConnection(t *testing.T) {
	s, owner, _, viewer, _ := people(t)
	connect := func(org, provider string) string {
		return s.admin("POST", "/admin/connections", obj("org", org, "provider", provider, "base_url", "https://x.example")).is(201)["id"].(string)
	}
	mine, azure, theirs := connect("acme", "openai"), connect("acme", "azure"), connect("other", "openai")
	pool := owner.do("POST", "/api/quota-pools", obj("provider", "openai", "rpm", 5, "tpm", 5, "concurrency", 5)).is(201)["id"].(string)
	bind := func(p *person, connection any) *reply {
		return p.do("POST", "/api/quota-pools/"+pool+"/bind", obj("connection_id", connection))
	}
	bind(viewer, mine).refuses(403, "reads")
	bind(owner, theirs).refuses(400, "there is no such connection of this org")
	bind(owner, azure).refuses(400, "is a connection of azure: the pool is of openai")
	bind(owner, nil).refuses(400, "connection_id: must be given")
	bind(owner, mine).is(200)
	if c := s.mirror.Current().Connections[mine]; c.Pool != pool {
		t.Errorf("%+v", c)
	}
	if got := owner.do("GET", "/api/quota-pools/"+pool, nil).is(200)["connection_ids"].([]any); len(got) != 1 || got[0] != mine {
		t.Errorf("%v", got)
	}
	// In one step: the pool takes the connection in, or the connection names the pool.
	made := func(connection string) *reply {
		return owner.do("POST", "/api/quota-pools", obj("provider", "azure", "rpm", 5, "tpm", 5, "concurrency", 5, "connection_id", connection))
	}
	made(mine).refuses(400, "is a connection of openai: the pool is of azure")
	made(theirs).refuses(400, "there is no such connection of this org")
	if n := len(owner.do("GET", "/api/quota-pools", nil).is(200)["pools"].([]any)); n != 1 {
		t.Errorf("%d pools: one was made although its connection was refused", n)
	}
	got := made(azure).is(201)
	if c := s.mirror.Current().Connections[azure]; c.Pool != got["id"] || got["connection_ids"].([]any)[0] != azure {
		t.Errorf("%+v of %v", c, got)
	}
	whole := s.admin("POST", "/admin/connections", obj("org", "acme", "provider", "openai", "pool", pool)).is(201)["id"].(string)
	if c := s.mirror.Current().Connections[whole]; c.Pool != pool {
		t.Errorf("%+v", c)
	}
	filed := s.person("filed", "ann@filed.example", "owner")
	own := filed.do("POST", "/api/quota-pools", obj("provider", "openai", "rpm", 5, "tpm", 5, "concurrency", 5, "parent_pool_id", "filed-pool")).is(201)["id"].(string)
	filed.do("POST", "/api/quota-pools/"+own+"/bind", obj("connection_id", "filed-connection")).refuses(409, "is declared in the files")
}

func TestSessions(t *testing.T) {
	s, owner, _, _, _ := people(t)
	r := s.enter("OWNER@acme.example", password)
	r.is(200)
	cookie := r.header.Get("Set-Cookie")
	for _, part := range []string{"weir_session=", "HttpOnly", "SameSite=Lax", "Path=/", "Max-Age=43200"} {
		if !strings.Contains(cookie, part) {
			t.Errorf("%s is not in %s", part, cookie)
		}
	}
	for name, r := range map[string]*reply{
		"no cookie": s.do("GET", "/api/me", nil), "a made-up cookie": s.do("GET", "/api/me", nil, "Cookie", "weir_session=abc"),
		"a long cookie": s.do("GET", "/api/me", nil, "Cookie", "weir_session="+strings.Repeat("a", 4000)),
	} {
		if r.refuses(401, "sign in first"); r.header.Get("WWW-Authenticate") != "" {
			t.Errorf("%s: a browser would ask for a password", name)
		}
	}
	for _, path := range []string{"/api/me", "/api/admission-limits", "/api/quota-pools"} {
		s.do("GET", path, nil, "Authorization", "Bearer file-key").refuses(401, "keys cannot call this API")
		s.do("GET", path, nil, "Authorization", "Bearer "+adminKey).refuses(401, "keys cannot call this API")
		s.do("GET", path, nil, "X-Api-Key", "file-key").refuses(401, "keys cannot call this API")
	}
	first, _, _ := strings.Cut(cookie, ";")
	p := &person{s, first}
	p.do("GET", "/api/me", nil).is(200)
	out := p.do("POST", "/api/sign-out", nil)
	if out.is(204); !strings.Contains(out.header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("%v", out.header)
	}
	p.do("GET", "/api/me", nil).is(401)
	s.do("POST", "/api/sign-out", nil).is(204)
	owner.do("GET", "/api/me", nil).is(200) // another session of the same user
	s.ahead.Add(int64(12 * time.Hour))
	owner.do("GET", "/api/me", nil).refuses(401, "sign in first")
}

func TestSessionsAreSharedByGateways(t *testing.T) {
	s, owner, _, _, _ := people(t)
	token := strings.TrimPrefix(owner.cookie, "weir_session=")
	data, found, err := s.kv.Session(within(t), authority.HashKey(token))
	if err != nil || !found || strings.Contains(string(data), token) {
		t.Errorf("%s, %v, %v", data, found, err)
	}
}

func TestOtherOrigins(t *testing.T) {
	s, owner, _, _, _ := people(t)
	body := obj("scope", "org", "subject", "org", "rpm", 5)
	for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}} {
		owner.do("POST", "/api/admission-limits", body, header...).refuses(403, "other origins")
		s.do("POST", "/api/sign-in", obj("email", "owner@acme.example", "password", password), header...).refuses(403, "other origins")
	}
	owner.do("POST", "/api/admission-limits", body, "Sec-Fetch-Site", "same-origin").is(200)
	owner.do("POST", "/api/admission-limits", body, "Origin", s.http.URL).is(200)
	owner.do("GET", "/api/admission-limits", nil, "Sec-Fetch-Site", "cross-site").is(200)
	for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""} {
		owner.do("POST", "/api/admission-limits", body, "Content-Type", kind).refuses(415, "application/json")
	}
	owner.do("POST", "/api/admission-limits", body, "Content-Type", "application/json; charset=utf-8").is(200)
}

func TestSigningInIsSlowedDown(t *testing.T) {
	s, _, _, _, _ := people(t)
	for _, c := range [][2]string{{"owner@acme.example", "wrong password"}, {"nobody@acme.example", password}, {"owner@acme.example", ""}, {"owner@acme.example", strings.Repeat("x", 1000)}} {
		s.enter(c[0], c[1]).refuses(401, "the email or the password is not right")
	}
	refused := 0
	for range 12 {
		if r := s.enter("viewer@acme.example", "wrong password"); r.status == http.StatusTooManyRequests {
			refused++
			if r.refuses(429, "too many tries"); r.header.Get("Retry-After") == "" {
				t.Error("it does not say how long")
			}
		}
	}
	if refused != 3 { // one try was right, when the viewer signed in
		t.Errorf("%d of 12 tries were refused", refused)
	}
	s.enter("viewer@acme.example", password).is(429) // also with the right password
	s.ahead.Add(int64(6 * time.Minute))
	s.enter("viewer@acme.example", password).is(200)
	for i := range 40 { // of ever other accounts, from one address
		if r := s.enter(fmt.Sprintf("x%d@acme.example", i), "wrong password"); r.status == 429 {
			if i < 20 {
				t.Errorf("refused after %d tries", i)
			}
			s.do("POST", "/api/sign-in", obj("email", "y@acme.example", "password", password), "X-Forwarded-For", "198.51.100.7").is(401) // from another
			return
		}
	}
	t.Error("an address may try without end")
}

func TestWrongMethods(t *testing.T) {
	s := newServer(t)
	for path, allowed := range map[string]string{
		"/api/quota-pools/x": "GET, HEAD, POST", "/api/admission-limits": "GET, HEAD, POST", "/api/quota-pools/x/bind": "POST",
		"/admin/api-keys/x": "GET, HEAD, PUT, DELETE", "/admin/api-keys/replace": "GET, HEAD, POST, PUT, DELETE", "/admin/connections": "GET, HEAD, POST",
	} {
		r := s.admin("PATCH", path, obj())
		if r.refuses(405, "takes "+allowed+", not PATCH"); r.header.Get("Allow") != allowed {
			t.Errorf("%s allows %q, want %q", path, r.header.Get("Allow"), allowed)
		}
	}
	s.admin("DELETE", "/api/quota-pools/x", nil).refuses(405, "not DELETE")
	for _, path := range []string{"/api/nothing", "/admin/nothing", "/admin/", "/admin/api-keys/x/y"} {
		if r := s.admin("GET", path, nil); r.header.Get("Allow") != "" {
			r.t.Errorf("%s allows %s", path, r.header.Get("Allow"))
		} else {
			r.refuses(404, "there is nothing at GET "+path)
		}
	}
}
