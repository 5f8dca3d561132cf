package manage_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
)

func TestOrgs(t *testing.T) {
	s := newServer(t)
	got := s.admin("PUT", "/admin/orgs/acme", obj("name", "Acme")).is(201)
	limits := got["limits"].(map[string]any)
	if got["billing"] != "prepaid" || got["declared"] != false || got["version"] != 1.0 || limits["rpm"] != 20.0 || limits["tpm"] != 1e6 || limits["concurrency"] != 8.0 {
		t.Errorf("%v", got)
	}
	if got := s.admin("PUT", "/admin/orgs/acme", obj("name", "Acme 2", "billing", "postpaid")).is(200); got["name"] != "Acme 2" || got["billing"] != "postpaid" || got["limits"].(map[string]any)["rpm"] != 300.0 {
		t.Errorf("%v", got)
	}
	made := s.admin("POST", "/admin/orgs", obj("name", "Made")).is(201)
	if id := made["id"].(string); len(id) != 36 {
		t.Errorf("%s", id)
	}
	s.admin("POST", "/admin/orgs", obj("id", "acme")).refuses(409, "there is an org acme already")
	s.admin("PUT", "/admin/orgs/filed", obj()).refuses(409, "declared in the files")
	s.admin("PUT", "/admin/orgs/a.b", obj()).refuses(400, "id is a.b: must match")
	s.admin("PUT", "/admin/orgs/_", obj()).refuses(400, "must match")
	s.admin("PUT", "/admin/orgs/x", obj("billing", "never")).refuses(400, "billing is never: must be one of prepaid, postpaid")
	s.admin("GET", "/admin/orgs/none", nil).refuses(404, "there is no org none")
	list := s.admin("GET", "/admin/orgs?limit=2", nil).is(200)["orgs"].([]any)
	if len(list) != 2 {
		t.Errorf("%v", list)
	}
	if got := s.admin("GET", "/admin/orgs/filed", nil).is(200); got["declared"] != true || got["limits"].(map[string]any)["rpm"] != 600.0 {
		t.Errorf("%v", got)
	}
}

func TestDeleteAnOrg(t *testing.T) {
	s := newServer(t)
	s.acme()
	s.admin("PUT", "/admin/orgs/acme/workspaces/w", obj()).is(201)
	s.admin("PUT", "/admin/api-keys/k", s.keyOf("raw", "acme")).is(200)
	p := s.person("acme", "ann@acme.example", "owner")
	version := s.fence("acme")
	s.admin("DELETE", "/admin/orgs/filed", nil).refuses(409, "declared in the files")
	s.admin("DELETE", "/admin/orgs/acme", nil).is(204)
	if k, _ := s.key("raw"); k != nil || s.fence("acme") != version+1 || s.mirror.Current().Fence("acme") != version+1 {
		t.Errorf("%+v, fence %d", k, s.fence("acme"))
	}
	p.do("GET", "/api/me", nil).is(401)
	s.enter("ann@acme.example", password).is(401)
	s.admin("GET", "/admin/orgs/acme", nil).is(404)
	s.admin("DELETE", "/admin/orgs/acme", nil).is(404)
	s.admin("PUT", "/admin/api-keys/k", s.keyOf("raw", "acme")).refuses(400, "owner is acme: is an org that was deleted")
	if got := s.admin("PUT", "/admin/orgs/acme", obj()).is(201); got["version"] != float64(version+2) || got["keys"] != 0.0 {
		t.Errorf("an org that comes again goes on from its version: %v", got)
	}
}

func TestWorkspacesAndPrincipals(t *testing.T) {
	s := newServer(t)
	s.acme()
	s.admin("PUT", "/admin/orgs/other", obj()).is(201)
	for _, kind := range []string{"workspace", "principal"} {
		at := "/admin/orgs/acme/" + kind + "s"
		if got := s.admin("POST", at, obj("name", "made")).is(201); len(got["id"].(string)) != 36 || got["org"] != "acme" {
			t.Errorf("%v", got)
		}
		s.admin("PUT", at+"/one", obj("name", "One", "limits", obj("rpm", 5))).is(201)
		s.admin("PUT", at+"/one", obj("name", "Two", "limits", obj("rpm", 6))).is(200)
		s.admin("PUT", "/admin/orgs/other/"+kind+"s/one", obj()).refuses(409, "is another org's")
		s.admin("PUT", "/admin/orgs/none/"+kind+"s/x", obj()).refuses(404, "there is no org none")
		s.admin("PUT", at+"/f"+kind[:1], obj()).refuses(409, "is declared in the files")
		s.admin("PUT", at+"/x", obj("limits", obj("rpm", 0))).refuses(400, "limits.rpm is 0: must be a whole number from 1 to 1000000")
		if list := s.admin("GET", at, nil).is(200)[kind+"s"].([]any); len(list) != 2 {
			t.Errorf("%v", list)
		}
		s.admin("PUT", "/admin/api-keys/k", with(s.keyOf("raw", "acme"), kind, "one")).is(200)
		s.admin("DELETE", at+"/one", nil).refuses(409, "the key k is bound to it")
		if _, limits := s.key("raw"); limits[events.Scope(kind)].RPM != 6 {
			t.Errorf("%v", limits)
		}
		s.admin("PUT", "/admin/api-keys/k", s.keyOf("raw", "acme")).is(200)
		s.admin("DELETE", at+"/one", nil).is(204)
		s.admin("DELETE", at+"/one", nil).is(404)
	}
	s.admin("PUT", "/admin/orgs/acme/workspaces/x", obj("limits", obj("spend_day", "1.25"))).is(201)
	s.admin("PUT", "/admin/orgs/acme/principals/x", obj("limits", obj("spend_day", "1.25"))).refuses(400, "limits.spend_day: there is no such field")
}

func TestOverrides(t *testing.T) {
	s := newServer(t)
	s.acme()
	s.admin("PUT", "/admin/api-keys/k", with(s.keyOf("raw", "acme"), "rpm_ceiling", 60)).is(200)
	if _, limits := s.key("raw"); limits[events.ScopeOrg].RPM != 20 || limits[events.ScopeKey].RPM != 20 {
		t.Errorf("held: %v", limits)
	}
	got := s.admin("PUT", "/admin/orgs/acme/override", obj("org", obj("rpm", 5000, "rps", 50, "spend_month", "100"), "key", obj("rpm", 900))).is(200)
	if o := got["override"].(map[string]any)["org"].(map[string]any); o["rpm"] != 5000.0 || o["rps"] != 50.0 || o["spend_month"] != "100" {
		t.Errorf("%v", o)
	}
	if _, limits := s.key("raw"); limits[events.ScopeOrg] != (authority.Limits{RPM: 5000, RPS: 50, TPM: 1_000_000, Concurrency: 8, SpendMonth: 100_000_000_000}) || limits[events.ScopeKey].RPM != 900 {
		t.Errorf("%v", limits)
	}
	s.admin("PUT", "/admin/orgs/acme/override", obj("key", obj("rps", 5))).refuses(400, "key.rps: there is no such field")
	s.admin("PUT", "/admin/orgs/acme/override", obj("org", obj("rpm", 1_000_001))).refuses(400, "org.rpm is 1000001")
	s.admin("PUT", "/admin/orgs/none/override", obj()).refuses(404, "no org")
	s.admin("PUT", "/admin/orgs/acme/override", obj("key", obj("shadow", obj("rps", 5)))).refuses(400, "key.shadow.rps: there is no such field")
	s.admin("DELETE", "/admin/orgs/acme/override", nil).is(200)
	if _, limits := s.key("raw"); limits[events.ScopeOrg].RPM != 20 || limits[events.ScopeKey].RPM != 20 {
		t.Errorf("held again: %v", limits)
	}
	s.admin("PUT", "/admin/orgs/acme/override", obj("org", obj("shadow", obj("rpm", 7)))).is(200) // a limit that is tried out is no contract
	if _, limits := s.key("raw"); limits[events.ScopeOrg].RPM != 20 || limits[events.ScopeOrg].Shadow.RPM != 7 {
		t.Errorf("in its shadow: %v", limits)
	}
	s.admin("PUT", "/admin/orgs/filed/override", obj("org", obj("rpm", 700))).is(200)
	if _, limits := s.key("file-key"); limits[events.ScopeOrg].RPM != 700 {
		t.Errorf("an org of the files: %v", limits)
	}
}

func TestCredits(t *testing.T) {
	s := newServer(t)
	s.acme()
	s.admin("PUT", "/admin/api-keys/k", with(s.keyOf("raw", "acme"), "rpm_ceiling", 60)).is(200)
	give := func(amount any, reference string) *reply {
		return s.admin("POST", "/admin/orgs/acme/credits", obj("amount", amount, "reference", reference))
	}
	give("-1", "correction").is(200)
	if _, limits := s.key("raw"); limits[events.ScopeOrg].RPM != 20 {
		t.Errorf("a debit is no first credit: %v", limits)
	}
	if got := give("12.5", "invoice-1").is(200); got["amount"] != "12.5" || got["reference"] != "invoice-1" {
		t.Errorf("%v", got)
	}
	if _, limits := s.key("raw"); limits[events.ScopeOrg].RPM != 300 || limits[events.ScopeKey].RPM != 60 {
		t.Errorf("the hold stays after the first credit: %v", limits)
	}
	give("12.5", "invoice-1").is(200) // again
	give("13", "invoice-1").refuses(409, "was given with the amount 12.5")
	for part, body := range map[string]map[string]any{
		"amount: must be given":      obj("reference", "x"),
		"amount is 0: must not be 0": obj("amount", 0, "reference", "x"),
		"amount is 1e3":              obj("amount", "1e3", "reference", "x"),
		"at most 9 digits":           obj("amount", "0.0000000001", "reference", "x"),
		"reference: must be given":   obj("amount", 1),
		"nor begin with recover/":    obj("amount", 1, "reference", "recover/1"),
	} {
		s.admin("POST", "/admin/orgs/acme/credits", body).refuses(400, part)
	}
	s.admin("POST", "/admin/orgs/none/credits", obj("amount", 1, "reference", "x")).is(404)
	if list := s.admin("GET", "/admin/orgs/acme/credits", nil).is(200)["credits"].([]any); len(list) != 2 {
		t.Errorf("%v", list)
	}
	var logged []events.Credit
	info, err := s.log.Info(within(t))
	check(t, err)
	check(t, s.log.Read(within(t), info.First, info.Last, func(r events.Record) error {
		if c, ok := r.Data.(*events.Credit); ok {
			logged = append(logged, *c)
		}
		return nil
	}))
	want := []events.Credit{{Org: "acme", AmountNano: -1e9, Reference: "correction"}, {Org: "acme", AmountNano: 12_500_000_000, Reference: "invoice-1"}}
	if len(logged) != 2 || logged[0] != want[0] || logged[1] != want[1] {
		t.Errorf("%+v", logged)
	}
}

func TestUsers(t *testing.T) {
	s := newServer(t)
	s.acme()
	users := "/admin/orgs/acme/users"
	id := s.user("acme", "Ann@Acme.example", "viewer")
	for part, body := range map[string]map[string]any{
		"email: must be given": obj("role", "owner", "password", password), "must be an email address": obj("email", "x", "role", "owner", "password", password),
		"role is king: must be one of owner, admin, viewer": obj("email", "a@b", "role", "king", "password", password),
		"password: must be from 10 to 256":                  obj("email", "a@b", "role", "owner", "password", "short"),
	} {
		r := s.admin("POST", users, body)
		if r.refuses(400, part); strings.Contains(r.text, password) {
			t.Errorf("a password is repeated: %s", r.text)
		}
	}
	s.admin("POST", users, obj("email", "a@b", "role", "owner")).refuses(400, "password")
	s.admin("POST", users, obj("email", "ann@acme.example", "role", "owner", "password", password)).refuses(409, "an email is of one user")
	list := s.admin("GET", users, nil)
	if got := list.is(200)["users"].([]any); len(got) != 1 || got[0].(map[string]any)["email"] != "ann@acme.example" || strings.Contains(list.text, "argon2") {
		t.Errorf("%s", list.text)
	}
	p := s.signedIn("ann@acme.example")
	if got := p.do("GET", "/api/me", nil).is(200); got["role"] != "viewer" || got["org"] != "acme" || got["id"] != id {
		t.Errorf("%v", got)
	}
	s.admin("PUT", users+"/"+id, obj("email", "ann@acme.example", "role", "admin")).is(200)
	if got := p.do("GET", "/api/me", nil).is(200); got["role"] != "admin" {
		t.Errorf("a role holds at once: %v", got)
	}
	s.admin("PUT", users+"/"+id, obj("email", "ann@acme.example", "role", "admin", "password", "another password")).is(200)
	p.do("GET", "/api/me", nil).is(401) // a new password ends sessions
	s.enter("ann@acme.example", password).is(401)
	s.enter("ann@acme.example", "another password").is(200)
	s.admin("PUT", users+"/none", obj("email", "x@y", "role", "admin")).refuses(404, "no such user")
	s.admin("DELETE", users+"/"+id, nil).is(204)
	s.enter("ann@acme.example", "another password").is(401)
	s.mirror.Read(func(st *authority.State, _ *authority.Snapshot) {
		if st.UserByEmail("ann@acme.example") != nil {
			t.Error("the user is there")
		}
	})
}

func TestHousePoolsAndConnections(t *testing.T) {
	s := newServer(t)
	s.acme()
	pool := func(pairs ...any) map[string]any {
		return with(obj("provider", "typesafe", "rpm", 100, "tpm", 1000, "concurrency", 10), pairs...)
	}
	if got := s.admin("PUT", "/admin/pools/house", pool()).is(200); got["headroom_percent"] != 90.0 || got["fair_share"] != "0.75" || got["org"] != nil {
		t.Errorf("%v", got)
	}
	s.admin("PUT", "/admin/pools/house", pool("fair_share", 0.25)).is(200)
	if p := s.mirror.Current().Pools["house"]; p.FairShare != 250_000 || p.RPM != 90 || p.Org != "" {
		t.Errorf("%+v", p)
	}
	s.admin("PUT", "/admin/pools/file-pool", pool()).refuses(409, "there is a pool file-pool already")
	s.admin("PUT", "/admin/pools/x", pool("org", "acme")).refuses(400, "provider is typesafe: must be one of openai, anthropic, azure, bedrock")
	s.admin("PUT", "/admin/pools/x", pool("org", "none", "provider", "openai")).refuses(400, "org is none: there is no such org")
	s.admin("PUT", "/admin/pools/x", pool("org", "acme", "provider", "openai", "fair_share", 0.5)).refuses(400, "fair_share: there is no such field")
	s.admin("PUT", "/admin/pools/leaf", pool("parent", "house")).is(200)
	s.admin("PUT", "/admin/pools/under-file", pool("provider", "openai", "parent", "file-pool")).is(200)
	if len(s.mirror.Current().Chain("under-file")) != 2 {
		t.Error("a pool of the files is no parent")
	}
	s.admin("DELETE", "/admin/pools/house", nil).refuses(409, "the pool leaf is below it")

	stated := obj("provider", "gemini", "base_url", "https://g.example", "api_key", "sk-other", "operations", []string{"messages", "chat"}, "reasoning_apart", true)
	if got := s.admin("PUT", "/admin/connections/stated", stated).is(201); fmt.Sprint(got["operations"], got["reasoning_apart"]) != "[messages chat] true" {
		t.Errorf("%v", got)
	}
	if c := s.mirror.Current().Connections["stated"]; !c.Apart || fmt.Sprint(c.Operations) != "[messages chat]" {
		t.Errorf("%+v", c)
	}
	s.admin("PUT", "/admin/connections/stated", with(stated, "operations", []string{"embed"})).refuses(400, "operations[0] is embed: must be one of chat, completions")
	s.admin("PUT", "/admin/connections/aws", obj("provider", "bedrock", "base_url", "https://proxy.example", "api_key", "AKIAIOSFODNN7EXAMPLE:secret")).refuses(400, "region: must be given")
	s.admin("PUT", "/admin/connections/aws", with(stated, "region", "us-east-1")).refuses(400, "region is us-east-1: must be empty")
	s.admin("DELETE", "/admin/connections/stated", nil).is(204)

	c := s.admin("PUT", "/admin/connections/c", obj("provider", "typesafe", "base_url", "https://x.example/v1/", "api_key", "sk-secret", "pool", "leaf"))
	if got := c.is(201); got["has_credential"] != true || got["base_url"] != "https://x.example/v1" || strings.Contains(c.text, "sk-secret") {
		t.Errorf("%s", c.text)
	}
	s.admin("PUT", "/admin/connections/c", obj("provider", "typesafe", "base_url", "https://y.example", "pool", "leaf")).is(200) // the credential stays
	s.mirror.Read(func(st *authority.State, _ *authority.Snapshot) {
		if got, err := s.keys.Load().Open(events.Platform, "c", st.Org(events.Platform).Connections["c"].Credential); err != nil || got != "sk-secret" {
			t.Errorf("%s", got)
		}
	})
	if list := s.admin("GET", "/admin/connections", nil); len(list.is(200)["connections"].([]any)) != 1 || strings.Contains(list.text, "sealed") {
		t.Errorf("%s", list.text)
	}
	s.admin("DELETE", "/admin/pools/leaf", nil).refuses(409, "the connection c is bound to it")
	for part, body := range map[string]map[string]any{
		"base_url: must be given for the provider own":         obj("provider", "own"),
		"base_url is ftp://x: must be a URL":                   obj("provider", "own", "base_url", "ftp://x"),
		"pool is leaf: is a pool of typesafe":                  obj("provider", "openai", "pool", "leaf"),
		"pool is none: there is no such pool":                  obj("provider", "openai", "pool", "none"),
		"api_key: must be a text from 1 to 8192":               obj("provider", "openai", "api_key", ""),
		"org is none: there is no such org":                    obj("provider", "openai", "org", "none"),
		"provider is own: must be one of openai":               obj("provider", "own", "org", "acme"),
		"pool is house: there is no such pool of the connecti": obj("provider", "openai", "org", "acme", "pool", "house"),
	} {
		s.admin("PUT", "/admin/connections/d", body).refuses(400, part)
	}
	s.admin("PUT", "/admin/connections/filed-connection", obj("provider", "openai")).refuses(409, "an id may stand once")
	s.admin("DELETE", "/admin/connections/c", nil).is(204)
	s.admin("DELETE", "/admin/connections/c", nil).is(404)
	s.admin("DELETE", "/admin/pools/leaf", nil).is(204)
	s.admin("GET", "/admin/pools/leaf", nil).is(404)
	if s.mirror.Current().Connections["c"] != nil || s.mirror.Current().Pools["leaf"] != nil {
		t.Error("they are in the snapshot")
	}
}

func TestPrices(t *testing.T) {
	s := newServer(t)
	past, future := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339), time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	price := func(pairs ...any) map[string]any {
		return with(obj("from", past, "input", "0.15", "output", "0.6"), pairs...)
	}
	put := func(model string, versions ...any) *reply {
		return s.admin("PUT", "/admin/prices/"+model, obj("versions", append([]any{}, versions...)))
	}
	got := put("vendor/model", price("version", "a"), price("from", future, "version", "b", "cached_input", "0.01")).is(200)
	if v := got["versions"].([]any)[0].(map[string]any); v["cached_input"] != "0.15" || v["cache_write"] != "0.15" || v["input"] != "0.15" {
		t.Errorf("%v", v)
	}
	if p := s.mirror.Current().Models["vendor/model"].Price; p.Version != "a" || p.Input != 150_000_000 || p.Output != 600_000_000 {
		t.Errorf("%+v", p)
	}
	put("vendor/model", price("version", "a", "input", "0.2")).refuses(400, "versions is a: has begun")
	put("vendor/model", price("version", "a"), price("from", future, "version", "c")).is(200)
	put("none", price()).refuses(404, "there is no model none")
	put("m").refuses(400, "must have at least one")
	put("m", price("input", nil)).refuses(400, "versions[0].input: must be given")
	put("m", price("reasoning", "0")).refuses(400, "versions[0].reasoning is 0: must be greater than 0")
	put("m", price("from", "today")).refuses(400, "versions[0].from is today: must be an RFC 3339 time")
	put("m", price("input", "-1")).refuses(400, "versions[0].input is -1: must be a decimal number")
	put("m", price(), price()).refuses(400, "has the version or the beginning of another")
	s.admin("DELETE", "/admin/prices/vendor/model", nil).is(204)
	s.admin("DELETE", "/admin/prices/vendor/model", nil).is(404)
	if p := s.mirror.Current().Models["vendor/model"].Price; p.Version != "" {
		t.Errorf("%+v", p)
	}
	if list := s.admin("GET", "/admin/prices", nil).is(200)["prices"].([]any); len(list) != 0 {
		t.Errorf("%v", list)
	}
}

func TestManagementIsRefusedWhileTheLogIsAway(t *testing.T) {
	s := newServer(t)
	s.acme()
	p := s.person("acme", "ann@acme.example", "owner")
	before := fmt.Sprint(s.mirror.Current().Orgs["acme"].Limits)
	s.broker.Shutdown()
	for _, r := range []*reply{
		s.admin("PUT", "/admin/orgs/acme", obj("billing", "postpaid")),
		p.do("POST", "/api/admission-limits", obj("scope", "org", "subject", "org", "rpm", 5)),
		s.enter("ann@acme.example", password),
	} {
		if r.refuses(503, "nothing can be changed or read now"); r.header.Get("Retry-After") != "1" {
			t.Errorf("%s: %v", r.what, r.header)
		}
	}
	if fmt.Sprint(s.mirror.Current().Orgs["acme"].Limits) != before {
		t.Error("it changed")
	}
}

func TestFencesThatAreLeft(t *testing.T) {
	s := newServer(t)
	s.acme()
	if got := s.admin("GET", "/admin/fences", nil).is(200)["behind"].([]any); len(got) != 0 {
		t.Errorf("%v", got)
	}
	_, err := s.log.Publish(within(t), events.Event{ID: "left", Source: "test", Org: "acme", Data: &events.Fence{Org: "acme", Version: 7}})
	check(t, err)
	got := s.admin("GET", "/admin/fences", nil).is(200)["behind"].([]any)
	if len(got) != 1 || fmt.Sprint(got[0]) != "map[fence:7 org:acme version:1]" {
		t.Errorf("%v", got)
	}
	s.admin("POST", "/admin/orgs/acme/repair", nil).is(200)
	if got := s.admin("GET", "/admin/fences", nil).is(200)["behind"].([]any); len(got) != 0 || s.mirror.Current().Fence("acme") != 8 {
		t.Errorf("%v, fence %d", got, s.mirror.Current().Fence("acme"))
	}
	s.admin("POST", "/admin/orgs/none/repair", nil).is(404)
}
