package manage_test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/seal"
)

// kept is everything that the broker keeps of the authority, byte for byte.
func (s *server) kept() string {
	s.t.Helper()
	name, err := access.NewName("reader")
	check(s.t, err)
	nc, err := s.broker.Connect(access.Identity{Name: name, Roles: []access.Role{access.System}}, journal.Options(name)...)
	check(s.t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	check(s.t, err)
	kv, err := js.KeyValue(within(s.t), access.BucketAuthority)
	check(s.t, err)
	watch, err := kv.WatchAll(within(s.t), jetstream.IncludeHistory())
	check(s.t, err)
	var all strings.Builder
	for entry := range watch.Updates() {
		if entry == nil {
			break
		}
		all.WriteString(entry.Key() + "=" + string(entry.Value()) + "\n")
	}
	check(s.t, watch.Stop())
	return all.String()
}

// connection is one as it is kept.
func (s *server) connection(org events.Org, id string) (c authority.ConnectionRecord) {
	s.mirror.Read(func(st *authority.State, _ *authority.Snapshot) { c = *st.Org(org).Connections[id] })
	return c
}

// TestACredentialIsNowhereToBeRead gives credentials, good and bad ones, seals them anew, and looks for them in all that was answered,
// logged and kept.
func TestACredentialIsNowhereToBeRead(t *testing.T) {
	s := newServer(t)
	const secret = "sk-provider-0123456789abcdef"
	var answers strings.Builder
	do := func(method, path string, body any, status int) {
		t.Helper()
		r := s.admin(method, path, body)
		r.is(status)
		answers.WriteString(r.text)
	}
	do("POST", "/admin/orgs", obj("id", "acme"), 201)
	do("PUT", "/admin/connections/c", obj("org", "acme", "provider", "openai", "api_key", secret), 201)
	do("PUT", "/admin/connections/house", obj("provider", "openai", "api_key", secret), 201)
	do("PUT", "/admin/connections/c", obj("org", "acme", "provider", "openai", "api_key", secret, "pool", "none"), 400)
	do("PUT", "/admin/connections/c", obj("org", "acme", "provider", "openai", "api_key", strings.Repeat(secret, 400)), 400)
	do("PUT", "/admin/connections/c", obj("org", "acme", "provider", "openai", "api_key", obj("x", secret)), 400)
	do("GET", "/admin/connections?org=acme", nil, 200)

	a, b := sealKey(t, "a"), sealKey(t, "b")
	do("POST", "/admin/connections/renew", nil, 200)
	before := s.connection("acme", "c").Credential
	s.sealWith(a)
	do("POST", "/admin/connections/renew", nil, 409) // the first key has gone
	if !strings.Contains(answers.String(), "there is no key first") {
		t.Error("it is not said which key is missing: ", answers.String())
	}
	do("PUT", "/admin/connections/c", obj("org", "acme", "provider", "openai", "api_key", secret), 200)
	do("PUT", "/admin/connections/house", obj("provider", "openai", "api_key", secret), 200)
	version := s.mirror.Current().Fence("acme")
	s.sealWith(b, a)
	do("POST", "/admin/connections/renew", nil, 200)
	if !strings.HasSuffix(strings.TrimSpace(answers.String()), `{"renewed":2}`) {
		t.Errorf("renewed: %s", answers.String())
	}
	for org, id := range map[events.Org]string{"acme": "c", events.Platform: "house"} {
		c := s.connection(org, id)
		if key, _ := seal.KeyOf(c.Credential); key != "b" {
			t.Errorf("%s is sealed with %q", id, key)
		}
		s.sealWith(b)
		if got, err := s.keys.Load().Open(org, id, c.Credential); err != nil || got != secret {
			t.Errorf("%s: %q, %v", id, got, err)
		}
	}
	if now := s.mirror.Current().Fence("acme"); now != version+1 {
		t.Errorf("version %d after %d", now, version)
	}
	for what, text := range map[string]string{"answered": answers.String(), "logged": s.said.String(), "kept": s.kept(), "sealed": string(before)} {
		if text == "" {
			t.Errorf("nothing was %s", what)
		}
		if strings.Contains(text, secret) || strings.Contains(text, "0123456789abcdef") {
			t.Errorf("it was %s: %s", what, text)
		}
	}
}
