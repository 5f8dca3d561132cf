package manage_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
)

func TestAdminNeedsAnAdminKey(t *testing.T) {
	s := newServer(t)
	for name, header := range map[string][]string{
		"none": nil, "wrong": {"Authorization", "Bearer wrong"}, "empty": {"Authorization", "Bearer "}, "basic": {"Authorization", "Basic " + adminKey},
		"an inference key": {"Authorization", "Bearer file-key"}, "without a scheme": {"Authorization", adminKey}, "too long": {"Authorization", "Bearer " + strings.Repeat("x", 600)},
	} {
		r := s.do("GET", "/admin/orgs", nil, header...)
		if r.refuses(401, "unauthorized"); r.header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: no challenge", name)
		}
	}
	s.do("GET", "/admin/nothing", nil).refuses(401, "unauthorized")
	s.admin("GET", "/admin/nothing", nil).refuses(404, "there is nothing at")
	s.do("GET", "/admin/orgs", nil, "Authorization", "bearer another").is(200)
}

func TestPutAndGetAKey(t *testing.T) {
	s := newServer(t)
	s.acme()
	s.admin("PUT", "/admin/orgs/acme/workspaces/w", obj("name", "W")).is(201)
	s.admin("PUT", "/admin/orgs/acme/principals/p", obj()).is(201)
	before := s.fence("acme")
	body := with(s.keyOf("raw", "acme"), "key_preview", "sk-…", "expires_at", "31-12-2099", "allowed_models", []string{"m", "m"}, "max_occupancy_share", 0.25,
		"quota", obj("requests_per_minute", 10, "tokens_per_day", 20, "input_tokens_per_minute", 30, "output_tokens_per_minute", 40), "workspace", "w", "principal", "p",
		"rpm_ceiling", 60, "tokens_per_day", 70, "limits", obj("rpm", 50, "spend_day", "1.5", "outage_mode", "closed"))
	if got := s.admin("PUT", "/admin/api-keys/k1", body).is(200); got["ok"] != true {
		t.Errorf("%v", got)
	}
	if s.fence("acme") != before+1 {
		t.Errorf("the fence went from %d to %d", before, s.fence("acme"))
	}
	k, limits := s.key("raw")
	if k == nil || k.ID != "k1" || k.Org != "acme" || !k.May("m") || k.May("n") || k.Quota.OccupancyShare != 250_000 || k.Quota.OutputTokensPerMinute != 40 || k.Daily != 70 ||
		!k.Expires.Equal(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)) {
		t.Fatalf("%+v", k)
	}
	if got, want := limits[events.ScopeKey], (authority.Limits{RPM: 20, TPM: 1_000_000, Concurrency: 8, SpendDay: 1_500_000_000, Closed: true}); got != want {
		t.Errorf("%+v", got)
	}
	if limits[events.ScopeWorkspace].RPM != 300 || limits[events.ScopePrincipal].RPM != 300 {
		t.Errorf("%+v", limits)
	}
	got := s.admin("GET", "/admin/api-keys/k1", nil).is(200)["key"].(map[string]any)
	for field, want := range map[string]any{"id": "k1", "key_hash": "", "owner": "acme", "enabled": true, "expires_at": "2100-01-01T00:00:00Z", "max_occupancy_share": 0.25, "rpm_ceiling": 60.0} {
		if got[field] != want {
			t.Errorf("%s is %v, want %v", field, got[field], want)
		}
	}
	for _, r := range []*reply{s.admin("GET", "/admin/api-keys/k1", nil), s.admin("GET", "/admin/api-keys", nil)} {
		if strings.Contains(r.text, hashOf("raw")) {
			t.Errorf("%s shows the hash", r.what)
		}
	}
	s.admin("GET", "/admin/api-keys/none", nil).refuses(404, "key not found: none")
	if list := s.admin("GET", "/admin/api-keys", nil).is(200); list["count"] != 1.0 || len(list["keys"].([]any)) != 1 {
		t.Errorf("%v", list)
	}
}

func TestVersionsOfTheRegistry(t *testing.T) {
	s := newServer(t)
	put := func(version string) *reply {
		return s.admin("PUT", "/admin/api-keys/k", with(s.keyOf("raw", "o"), "version", version))
	}
	if got := s.admin("GET", "/admin/api-keys/version", nil).is(200); got["version"] != "" || got["count"] != 0.0 {
		t.Errorf("%v", got)
	}
	put("rev_2").is(200)
	put("rev_2").is(200) // again
	r := put("rev_10")   // as text it is before rev_2
	if r.is(409); r.text != `{"error":"stale version","current_version":"rev_2"}` {
		t.Errorf("%s", r.text)
	}
	if r := s.admin("DELETE", "/admin/api-keys/k?version=rev_1", nil); r.status != 409 || r.text != `{"error":"stale version","current_version":"rev_2"}` {
		t.Errorf("%d %s", r.status, r.text)
	}
	if r := s.admin("POST", "/admin/api-keys/replace", obj("version", "rev_1", "keys", []any{})); r.status != 409 || r.text != `{"error":"stale version","current_version":"rev_2"}` {
		t.Errorf("%d %s", r.status, r.text)
	}
	if k, _ := s.key("raw"); k == nil {
		t.Error("a stale change was made")
	}
	s.admin("DELETE", "/admin/api-keys/k", nil).refuses(400, "version: must be given")
	s.admin("DELETE", "/admin/api-keys/k?version=rev_3", nil).is(200)
	s.admin("DELETE", "/admin/api-keys/k?version=rev_3", nil).is(200) // again
	if k, _ := s.key("raw"); k != nil {
		t.Error("the key is there")
	}
	if got := s.admin("GET", "/admin/api-keys/version", nil).is(200); got["version"] != "rev_3" || got["count"] != 0.0 {
		t.Errorf("%v", got)
	}
	s.admin("POST", "/admin/api-keys/replace?force=true", obj("version", "rev_1", "keys", []any{})).is(200)
	if got := s.admin("GET", "/admin/api-keys/version", nil).is(200); got["version"] != "rev_1" {
		t.Errorf("%v", got)
	}
}

func TestWhatAKeyMustBe(t *testing.T) {
	s := newServer(t)
	s.acme()
	s.admin("PUT", "/admin/api-keys/taken", s.keyOf("taken", "acme")).is(200)
	good := func(pairs ...any) map[string]any { return with(s.keyOf("raw", "acme"), pairs...) }
	without := func(field string) map[string]any { b := good(); delete(b, field); return b }
	for name, c := range map[string]struct {
		body        any
		field, rule string
	}{
		"no version":             {without("version"), "version", "must be given"},
		"no hash":                {without("key_hash"), "key_hash", "must be given"},
		"no owner":               {without("owner"), "owner", "must be given"},
		"no name":                {without("name"), "name", "must be given"},
		"no enabled":             {without("enabled"), "enabled", "must be given"},
		"enabled as text":        {good("enabled", "yes"), "enabled", "must be true or false"},
		"a short hash":           {good("key_hash", "abc"), "key_hash", "64 hexadecimal digits"},
		"a raw key as hash":      {good("key_hash", strings.Repeat("z", 64)), "key_hash", "64 hexadecimal digits"},
		"an unknown field":       {good("nonsense", 1), "nonsense", "there is no such field"},
		"a day that is none":     {good("expires_at", "2099-13-01"), "expires_at", "must be a day"},
		"share above 1":          {good("max_occupancy_share", 1.01), "max_occupancy_share", "must be 0 (unset) or greater than 0 and at most 1"},
		"negative share":         {good("max_occupancy_share", -0.5), "max_occupancy_share", "must be 0 (unset) or greater than 0 and at most 1"},
		"negative itpm":          {good("quota", obj("input_tokens_per_minute", -1)), "quota.input_tokens_per_minute", "must be a whole number from 0"},
		"negative otpm":          {good("quota", obj("output_tokens_per_minute", -1)), "quota.output_tokens_per_minute", "must be a whole number from 0"},
		"itpm below the input":   {good("quota", obj("input_tokens_per_minute", 999)), "quota.input_tokens_per_minute", "must be at least 1000, the max_input_tokens of the serverless model serverless"},
		"a fraction of a number": {good("quota", obj("requests_per_minute", 1.5)), "quota.requests_per_minute", "must be a whole number"},
		"flat beside by model":   {good("quota", obj("tokens_per_day", 1, "per_model", obj("m", obj("requests_per_minute_per_replica", 1, "tokens_per_day", 1)))), "quota.tokens_per_day", "must not stand beside per_model"},
		"half a quota by model":  {good("quota", obj("per_model", obj("m", obj("tokens_per_day", 1)))), "quota.per_model.m.requests_per_minute_per_replica", "must be given"},
		"no models by model":     {good("quota", obj("per_model", obj())), "quota.per_model", "must have from 1"},
		"a model that is none":   {good("allowed_models", []any{"m", 5}), "allowed_models[1]", "must be the id of a model"},
		"another's workspace":    {good("workspace", "nowhere"), "workspace", "there is no such workspace of the org acme"},
		"another's principal":    {good("principal", "nobody"), "principal", "there is no such principal of the org acme"},
		"a ceiling of 0":         {good("rpm_ceiling", 0), "rpm_ceiling", "must be a whole number from 1 to 1000000"},
		"the file's key":         {good("key_hash", hashOf("file-key")), "key_hash", "is the hash of a key of auth.yaml"},
		"another key's hash":     {good("key_hash", hashOf("taken")), "key_hash", "is the hash of the key taken"},
		"spend below 0":          {good("limits", obj("spend_day", "-1")), "limits.spend_day", "must be a decimal number"},
		"a list":                 {"[]", "", "must be a JSON object"},
		"no JSON":                {"{", "", "must be one JSON object"},
		"two objects":            {"{} {}", "", "must be one JSON object"},
		"a field twice":          {`{"version":"rev_9","version":"rev_9"}`, "version", "stands twice"},
		"not UTF-8":              {"{\"name\":\"\xff\"}", "", "must be one JSON object"},
		"nested too deep":        {strings.Repeat(`{"a":`, 30) + "1" + strings.Repeat("}", 30), "", "must be one JSON object"},
	} {
		r := s.admin("PUT", "/admin/api-keys/k", c.body)
		body := r.refuses(400, c.rule)
		fields := []any{body["field"]}
		if more, ok := body["faults"].([]any); ok {
			for _, f := range more {
				fields = append(fields, f.(map[string]any)["field"])
			}
		}
		found := c.field == ""
		for _, f := range fields {
			found = found || f == c.field
		}
		if !found {
			t.Errorf("%s: %v, want %s", name, fields, c.field)
		}
	}
	s.admin("PUT", "/admin/api-keys/fk", good()).refuses(400, "id is fk: is a key of auth.yaml")
	s.admin("PUT", "/admin/api-keys/a%20b", good()).refuses(400, "without spaces")
	s.admin("PUT", "/admin/api-keys/k", good("quota", obj("input_tokens_per_minute", 1000))).is(200)
	s.admin("PUT", "/admin/api-keys/k", good("quota", obj("input_tokens_per_minute", 999), "allowed_models", []string{"m"})).is(200)
	body := s.admin("PUT", "/admin/api-keys/k", obj("owner", "", "enabled", 1)).is(400)
	if faults := body["faults"].([]any); len(faults) < 5 {
		t.Errorf("not every fault is said at once: %v", faults)
	}
}

func TestBodiesAreBounded(t *testing.T) {
	s := newServer(t)
	s.admin("PUT", "/admin/api-keys/k", with(s.keyOf("raw", "o"), "name", strings.Repeat("x", 70_000))).refuses(413, "larger than 65536 bytes")
	s.admin("POST", "/admin/api-keys/replace", `{"version":"`+strings.Repeat("x", 16<<20)+`"}`).refuses(413, "larger than 16777216 bytes")
	s.do("POST", "/admin/orgs", `{}`, "Authorization", "Bearer "+adminKey, "Content-Type", "text/plain").refuses(415, "application/json")
	s.admin("GET", "/admin/api-keys?limit=1001", nil).refuses(400, "limit is 1001: must be a whole number from 1 to 1000")
}

func TestReplaceTheRegistry(t *testing.T) {
	s := newServer(t)
	s.acme()
	entry := func(id, raw, owner string, pairs ...any) map[string]any {
		return with(obj("id", id, "key_hash", hashOf(raw), "owner", owner, "name", id, "enabled", true), pairs...)
	}
	replace := func(keys ...any) *reply {
		return s.admin("POST", "/admin/api-keys/replace", obj("version", s.next(), "keys", append([]any{}, keys...)))
	}
	if got := replace(entry("a", "ra", "acme"), entry("b", "rb", "new owner"), entry("c", "rc", "acme")).is(200); got["count"] != 3.0 || got["ok"] != true {
		t.Errorf("%v", got)
	}
	// An owner that nobody made is an org as one of auth.yaml.
	k, limits := s.key("rb")
	if k == nil || k.Org != authority.OrgOf("new owner") || limits[events.ScopeOrg] != (authority.Limits{}) || s.mirror.Current().Orgs[k.Org].Billing != authority.Postpaid {
		t.Fatalf("%+v %+v", k, limits)
	}
	unchanged := s.fence(string(k.Org))
	// b stays as it is, a is another key, c goes, d comes.
	replace(entry("a", "ra2", "acme"), entry("b", "rb", "new owner"), entry("d", "rd", "acme", "enabled", false)).is(200)
	for raw, want := range map[string]bool{"ra": false, "ra2": true, "rb": true, "rc": false, "rd": false} {
		if k, _ := s.key(raw); (k != nil) != want {
			t.Errorf("%s: %+v", raw, k)
		}
	}
	if s.fence(string(k.Org)) != unchanged {
		t.Error("an org whose keys stay as they are was fenced")
	}
	// a and b exchange their hashes.
	replace(entry("a", "rb", "acme"), entry("b", "ra2", "new owner")).is(200)
	if k, _ := s.key("rb"); k == nil || k.ID != "a" {
		t.Errorf("%+v", k)
	}
	if k, _ := s.key("ra2"); k == nil || k.ID != "b" {
		t.Errorf("%+v", k)
	}
	// a moves to another org.
	replace(entry("a", "rb", "other")).is(200)
	if k, _ := s.key("rb"); k == nil || k.Org != "other" {
		t.Errorf("%+v", k)
	}
	// One bad key refuses all.
	for part, keys := range map[string][]any{
		"keys[1].quota.input_tokens_per_minute is 5: must be at least 1000": {entry("x", "rx", "acme"), entry("y", "ry", "acme", "quota", obj("input_tokens_per_minute", 5))},
		"keys[1].id is x: is that of keys[0] too":                           {entry("x", "rx", "acme"), entry("x", "ry", "acme")},
		"keys[1].key_hash is " + hashOf("rx") + ": is that of keys[0] too":  {entry("x", "rx", "acme"), entry("y", "rx", "acme")},
		"keys[0].id: must be given":                                         {with(entry("x", "rx", "acme"), "id", nil)},
		"keys[0] is 5: must be a JSON object":                               {5},
	} {
		replace(keys...).refuses(400, part)
	}
	s.admin("POST", "/admin/api-keys/replace", obj("version", s.next())).refuses(400, "keys: must be given")
	if got := s.admin("GET", "/admin/api-keys/version", nil).is(200); got["count"] != 1.0 {
		t.Errorf("%v", got)
	}
	replace().is(200)
	if got := s.admin("GET", "/admin/api-keys/version", nil).is(200); got["count"] != 0.0 {
		t.Errorf("%v", got)
	}
}

func TestReplaceALargeRegistry(t *testing.T) {
	s := newServer(t)
	const n = 10_000
	var keys []any
	for i := range n {
		keys = append(keys, obj("id", fmt.Sprint("key-", i), "key_hash", hashOf(fmt.Sprint(i)), "owner", fmt.Sprint("o", i%50), "name", "x", "enabled", true))
	}
	begin := time.Now()
	s.admin("POST", "/admin/api-keys/replace", obj("version", "1", "keys", keys)).is(200)
	t.Logf("%d keys of 50 orgs were replaced in %s", n, time.Since(begin).Round(time.Millisecond))
	if got := len(s.mirror.Current().Keys); got != n+1 {
		t.Errorf("%d keys", got)
	}
	begin = time.Now()
	s.admin("PUT", "/admin/api-keys/key-5", with(s.keyOf("5x", "o5"), "version", "2")).is(200)
	t.Logf("then one key was put in %s", time.Since(begin).Round(time.Millisecond))
	if k, _ := s.key("5x"); k == nil {
		t.Error("the key is not there")
	}
	if list := s.admin("GET", "/admin/api-keys?limit=2&after=key-1", nil).is(200)["keys"].([]any); len(list) != 2 || list[0].(map[string]any)["id"] != "key-10" {
		t.Errorf("%v", list)
	}
}

func TestKeysOfAnotherMode(t *testing.T) {
	s := newServerIn(t, authority.ModeAPIKey)
	s.admin("PUT", "/admin/api-keys/k", s.keyOf("raw", "acme")).refuses(501, "api.mode dynamic: it is api-key")
	s.admin("GET", "/admin/api-keys", nil).refuses(501, "dynamic")
}
