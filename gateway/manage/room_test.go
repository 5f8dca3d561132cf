package manage_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/projections/admission"
)

// scopes gives what a list says of each scope.
func scopesOf(t *testing.T, body map[string]any) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for _, s := range body["scopes"].([]any) {
		m := s.(map[string]any)
		all[m["scope"].(string)+":"+m["subject"].(string)] = m
	}
	return all
}

func TestEffectiveLimits(t *testing.T) {
	s, owner, _, viewer, other := people(t)
	s.admin("PUT", "/admin/orgs/acme/workspaces/w", obj("name", "Research")).is(201)
	s.admin("PUT", "/admin/api-keys/k", with(s.keyOf("raw", "acme"), "rpm_ceiling", 60, "workspace", "w")).is(200)
	owner.do("POST", "/api/admission-limits", obj("scope", "key", "subject", "k", "rpm", 100, "tpm", 5)).is(200)
	owner.do("POST", "/api/admission-limits", obj("scope", "model", "subject", "vendor/model", "rpm", 7, "outage_mode", "closed")).is(200)
	got := scopesOf(t, viewer.do("GET", "/api/effective-limits", nil).is(200))
	for scope, want := range map[string][2]map[string]any{ // what is set, and what holds
		"org:org":            {obj("rpm", nil), obj("rpm", 300.0, "tpm", 1_000_000.0, "concurrency", 8.0, "outage_mode", "bounded_open")},
		"workspace:w":        {obj("rpm", nil), obj("rpm", 300.0)},
		"key:k":              {obj("rpm", 100.0, "tpm", 5.0, "concurrency", nil), obj("rpm", 60.0, "tpm", 5.0, "concurrency", 8.0)},
		"model:vendor/model": {obj("rpm", 7.0, "outage_mode", "closed"), obj("rpm", 7.0, "tpm", nil, "outage_mode", "closed")},
		"model:m":            {obj("rpm", nil), obj("rpm", nil)},
	} {
		for i, part := range []string{"set", "effective"} {
			for field, v := range want[i] {
				if have := got[scope][part].(map[string]any)[field]; have != v {
					t.Errorf("%s %s: %s is %v, want %v", scope, part, field, have, v)
				}
			}
		}
	}
	if len(got) != 6 {
		t.Errorf("%d scopes: %v", len(got), got)
	}
	if found := scopesOf(t, owner.do("GET", "/api/effective-limits?q=resear", nil).is(200)); len(found) != 1 || found["workspace:w"] == nil {
		t.Errorf("%v", found)
	}
	if body := owner.do("GET", "/api/effective-limits?scope=model&limit=2", nil).is(200); len(body["scopes"].([]any)) != 2 || body["left_off"] != 1.0 {
		t.Errorf("%v", body)
	}
	held := other.do("GET", "/api/effective-limits", nil).is(200)
	if held["org"].(map[string]any)["held_rpm"] != 20.0 || scopesOf(t, held)["org:org"]["effective"].(map[string]any)["rpm"] != 20.0 || scopesOf(t, held)["key:k"] != nil {
		t.Errorf("%v", held)
	}
	s.do("GET", "/api/effective-limits", nil).refuses(401, "sign in first")
}

func TestHeadroom(t *testing.T) {
	s, owner, _, _, other := people(t)
	s.admin("PUT", "/admin/api-keys/k", with(s.keyOf("raw", "acme"), "rpm_ceiling", 60)).is(200)
	pool := owner.do("POST", "/api/quota-pools", obj("provider", "openai", "rpm", 100, "tpm", 1000, "concurrency", 5)).is(201)["id"].(string)
	now := time.Now().UnixNano()
	soon := now + int64(20*time.Second)
	s.view.Put(admission.Reading{Meter: "key/k/rpm", Kind: events.Window, Used: 45, Falls: []admission.Fall{{At: soon, Amount: 45}}}, 1, now)
	s.view.Put(admission.Reading{Meter: "org/acme/concurrency", Kind: events.Gauge, Used: 8, Waiting: 3}, 1, now)
	s.view.Put(admission.Reading{Meter: events.NewMeter(events.ScopePool, "pause", pool), Kind: events.Pause, Falls: []admission.Fall{{At: soon}}}, 1, now)
	s.view.Put(admission.Reading{Meter: "org/acme/balance", Kind: events.Balance, Available: 123_000_000_000}, 1, now)
	body := owner.do("GET", "/api/headroom", nil).is(200)
	got := scopesOf(t, body)
	meter := func(scope, kind string) map[string]any {
		for _, m := range got[scope]["meters"].([]any) {
			if m := m.(map[string]any); m["kind"] == kind {
				return m
			}
		}
		t.Fatalf("%s has no %s: %v", scope, kind, got[scope])
		return nil
	}
	if m := meter("key:k", "rpm"); m["limit"] != 60.0 || m["used"] != 45.0 || m["remaining"] != 15.0 || m["reset_ms"].(float64) < 1 || m["reset_ms"].(float64) > 20_000 {
		t.Errorf("%v", m)
	}
	if m := meter("org:org", "concurrency"); m["used"] != 8.0 || m["remaining"] != 0.0 || m["waiting"] != 3.0 {
		t.Errorf("%v", m)
	}
	if m := meter("pool:"+pool, "rpm"); m["limit"] != 90.0 || m["used"] != 0.0 {
		t.Errorf("%v", m)
	}
	if got["pool:"+pool]["paused_ms"].(float64) < 1 || body["available_nano"] != 123_000_000_000.0 || body["known"] != true {
		t.Errorf("%v", body)
	}
	if seen := scopesOf(t, other.do("GET", "/api/headroom", nil).is(200)); seen["key:k"] != nil || seen["pool:"+pool] != nil {
		t.Errorf("another org's are seen: %v", seen)
	}
}

func TestOwnConnections(t *testing.T) {
	s, owner, _, _, _ := people(t)
	id := s.admin("POST", "/admin/connections", obj("org", "acme", "provider", "openai", "name", "Main", "api_key", "secret")).is(201)["id"].(string)
	list := owner.do("GET", "/api/connections", nil)
	got := list.is(200)["connections"].([]any)
	if len(got) != 1 || got[0].(map[string]any)["id"] != id || got[0].(map[string]any)["pool"] != nil || list.text != `{"connections":[{"id":"`+id+`","provider":"openai","name":"Main","pool":null}]}` {
		t.Errorf("%s", list.text)
	}
	filed := s.person("filed", "ann@filed.example", "viewer").do("GET", "/api/connections", nil).is(200)["connections"].([]any)
	if len(filed) != 1 || filed[0].(map[string]any)["declared"] != true {
		t.Errorf("%v", filed)
	}
}

// slowly is a client that reads slowly: something happens before it has taken anything in.
type slowly struct {
	*httptest.ResponseRecorder
	meanwhile func()
}

func (s slowly) Write(p []byte) (int, error) {
	s.meanwhile()
	return s.ResponseRecorder.Write(p)
}

// Nobody is held up by a client that does not take in what it asked for: neither those who change the authority nor those who read it.
func TestASlowClientHoldsNobodyUp(t *testing.T) {
	s, _, _, _, _ := people(t)
	for _, path := range []string{"/admin/orgs", "/admin/orgs/acme", "/admin/orgs/acme/users", "/admin/api-keys", "/admin/pools", "/admin/connections", "/admin/prices"} {
		r := httptest.NewRequest("GET", path, nil)
		r.Header.Set("Authorization", "Bearer "+adminKey)
		w := slowly{httptest.NewRecorder(), func() { s.mirror.SetStatic(files(t, authority.ModeDynamic)) }}
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			s.http.Config.Handler.ServeHTTP(w, r)
		}()
		select {
		case <-answered:
		case <-time.After(patience):
			t.Fatalf("%s: the authority could not be changed while the answer was on its way", path)
		}
		if w.Code != http.StatusOK {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}
