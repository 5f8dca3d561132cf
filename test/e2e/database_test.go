package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/services/provider"
	"github.com/weirhq/weir/test/e2e/stack"
	"github.com/weirhq/weir/test/freeport"
	"github.com/weirhq/weir/test/postgrestest"
)

const adminKey = "sk-weir-test-admin"

// world is the product on a database: a process with the log, a gateway that manages, and one that does not.
type world struct {
	t        *testing.T
	database *postgrestest.Server
	config   string
	provider *provider.Server
	keeper   *process
	manager  string   // where the API is
	urls     []string // of the gateways, that of the manager first
	version  int
	log      string // where it can be joined
	operator access.Secret
}

// worldSettings let keys of the API in.
var worldSettings = stack.Settings{Mode: "dynamic", Weir: `
admin_keys: ["` + hashed(adminKey) + `"]
authority: {snapshot_max_age: 8s}
limits: {defaults: {org: {rpm: 100000}, key: {rpm: 100000}}}
models:
  - {id: m, context_window: 1000, max_output_tokens: 100, local: {engine: openai, replicas: ["{{upstream}}"]}}
`}

func hashed(key string) string {
	h := authority.HashKey(key)
	text, _ := authority.Hash(h).MarshalText()
	return string(text)
}

// newWorld starts one. With database the authority is kept there, else in a bucket.
func newWorld(t *testing.T, database bool) *world {
	t.Helper()
	w := &world{t: t}
	dir := t.TempDir()
	upstreams := map[string]string{}
	w.provider, upstreams["upstream"] = serveUpstream(t, "tokens=3")
	head := ""
	if database {
		w.database = postgrestest.Own(t)
		head = fmt.Sprintf("database: %q\n", w.database.URL)
		w.migrates(stack.Settings.Write(worldSettings, t, t.TempDir(), head+"data_dir: "+t.TempDir()+"\nlisten: 127.0.0.1:0\n", upstreams))
	}
	var all access.Credentials
	for name, roles := range map[string][]access.Role{"gw": {access.Gateway}, "op": {access.Gateway, access.Operator}} {
		c, secret, err := access.NewCredentials(name, roles...)
		if err != nil {
			t.Fatal(err)
		}
		all.Identities = append(all.Identities, c)
		if name == "op" {
			w.operator = secret
		}
		if err := access.WriteSecret(filepath.Join(dir, name+".yaml"), secret); err != nil {
			t.Fatal(err)
		}
	}
	text, err := yaml.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	stack.WriteFile(t, filepath.Join(dir, "credentials.yaml"), string(text))
	port := freeport.Address(t)
	w.log = "nats://" + port
	keeper := fmt.Sprintf("data_dir: %s\nlog: {listen: %q, credentials: %s}\n", filepath.Join(dir, "data"), port, filepath.Join(dir, "credentials.yaml"))
	w.keeper = start(t, nil, "serve", "-c", worldSettings.Write(t, t.TempDir(), head+keeper, upstreams), "--roles", "broker,projector,auditor")
	stack.Eventually(t, "the log can be joined", func() bool {
		nc, err := net.Dial("tcp", port)
		if err == nil {
			_ = nc.Close()
		}
		return err == nil
	})
	var gateways []*process
	for name, roles := range map[string]string{"op": "gateway,manager", "gw": "gateway"} {
		data := t.TempDir()
		joined := fmt.Sprintf("listen: 127.0.0.1:0\nlog: {url: \"nats://%s\", credentials: %s}\ndata_dir: %s\n", port, filepath.Join(dir, name+".yaml"), data)
		p := start(t, nil, "serve", "-c", worldSettings.Write(t, data, head+joined, upstreams), "--roles", roles)
		if gateways = append(gateways, p); name == "op" {
			w.manager = p.address(t)
		}
	}
	for _, p := range gateways {
		url := p.address(t)
		stack.Healthy(t, url)
		w.urls = append(w.urls, url)
	}
	return w
}

// migrates has the product refuse a database without its schema, say which command helps, and apply it.
func (w *world) migrates(config string) {
	w.t.Helper()
	refused := start(w.t, nil, "serve", "-c", config)
	if code := refused.code(w.t); code != 1 || !strings.Contains(refused.said(), "run weir migrate") {
		w.t.Fatalf("on an empty schema it ended with %d: %s", code, refused.said())
	}
	for _, c := range []struct{ args, want string }{
		{"status", "older: run weir migrate"}, {"up", "the schema has version"}, {"down", "took "}, {"", "applied "}, {"status", "up to date"},
	} {
		args := append([]string{"migrate"}, strings.Fields(c.args)...)
		out, err := exec.Command(binary(w.t), append(args, "-c", config)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), c.want) {
			w.t.Fatalf("weir migrate %s: %v: %s", c.args, err, out)
		}
	}
}

// admin sends an operator's request, and gives the answer's body.
func (w *world) admin(method, path, body string, want int) string {
	w.t.Helper()
	a := stack.Do(w.t, stack.Request{Method: method, URL: w.manager + path, Body: body, Header: map[string]string{"Authorization": "Bearer " + adminKey}})
	if a.Status != want {
		w.t.Fatalf("%s %s: %d, want %d: %s", method, path, a.Status, want, a.Body)
	}
	return string(a.Body)
}

// key makes a key of an org, or with revoked takes its rights away.
func (w *world) key(name, org string, enabled bool) {
	w.t.Helper()
	w.version++
	w.admin("PUT", "/admin/api-keys/"+name, fmt.Sprintf(`{"version":"v%06d","key_hash":%q,"owner":%q,"name":%q,"enabled":%t}`,
		w.version, hashed(stack.KeyText(name)), org, name, enabled), 200)
}

// call asks for the model.
func (w *world) call(url, key string) *stack.Answer {
	w.t.Helper()
	return stack.Do(w.t, stack.Request{URL: url + "/v1/chat/completions", Key: key, Body: `{"model":"m","max_tokens":3,"messages":[{"role":"user","content":"hi"}]}`})
}

// answers waits until every gateway answers a key so: with a status, a mode of the authorization and an error's code.
func (w *world) answers(key string, status int, mode, code string) {
	w.t.Helper()
	for _, url := range w.urls {
		var last *stack.Answer
		stack.Eventually(w.t, fmt.Sprintf("%s answers %s with %d %s %s", url, key, status, mode, code), func() bool {
			last = w.call(url, key)
			return last.Status == status && last.Header.Get("X-Tm-Authorization-Mode") == mode && code == codeOf(last)
		})
		if status == http.StatusServiceUnavailable && last.Error().Metadata.Origin != "authorization" {
			w.t.Errorf("%s: its origin is %q: %s", key, last.Error().Metadata.Origin, last.Body)
		}
	}
}

func codeOf(a *stack.Answer) string {
	var body struct{ Error struct{ Code string } }
	_ = json.Unmarshal(a.Body, &body) // an answer of the model has none
	return body.Error.Code
}

// at once: each gateway answers so the first time.
func (w *world) atOnce(key string, status int) {
	w.t.Helper()
	for _, url := range w.urls {
		if a := w.call(url, key); a.Status != status {
			w.t.Errorf("%s answers %s with %d, want %d: %s", url, key, a.Status, status, a.Body)
		}
	}
}

// fence publishes one as for a change that is then not made.
func (w *world) fence(org events.Org, version int64) {
	w.t.Helper()
	name, err := access.NewName(w.operator.Name)
	if err != nil {
		w.t.Fatal(err)
	}
	id := access.Identity{Name: name, Roles: []access.Role{access.Gateway, access.Operator}}
	nc, err := nats.Connect(w.log, append(journal.Options(name), w.operator.Options(id)...)...)
	if err != nil {
		w.t.Fatal(err)
	}
	defer nc.Close()
	log, err := journal.Open(w.t.Context(), nc, journal.Config{})
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := log.Publish(w.t.Context(), events.Event{ID: "left", Source: "test", Org: org, Data: &events.Fence{Org: org, Version: version}}); err != nil {
		w.t.Fatal(err)
	}
}

// weir runs a command against the process that manages.
func (w *world) weir(args ...string) string {
	w.t.Helper()
	cmd := exec.Command(binary(w.t), append(args, "--url", w.manager)...)
	cmd.Env = append(cmd.Environ(), "WEIR_ADMIN_KEY="+adminKey)
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("weir %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestAFenceThatIsLeft has a fence in the log for a change that was not made: that org's requests are refused, everybody says so, those of
// others go on, and a repair ends it.
func TestAFenceThatIsLeft(t *testing.T) {
	w := newWorld(t, false)
	w.key("made", "acme", true)
	w.key("bad", "acme", true)
	w.key("other", "other", true)
	for _, key := range []string{"made", "bad", "other"} {
		w.answers(key, 200, "", "")
	}
	w.key("bad", "acme", false)
	w.atOnce("bad", 401)
	if out := w.weir("authority", "status"); !strings.Contains(out, "no org is behind its fence") {
		t.Error(out)
	}
	w.fence("acme", 99)
	w.answers("made", 503, "", "authorization_unavailable")
	w.atOnce("other", 200)
	for _, url := range w.urls {
		stack.Eventually(t, url+" says that the org is behind", func() bool {
			w.call(url, "made")
			a := stack.Do(t, stack.Request{URL: url + "/ready"})
			return a.Status == 200 && strings.Contains(string(a.Body), "org acme is behind its fence")
		})
	}
	if out := w.weir("status"); !strings.Contains(out, "org acme, version") {
		t.Error(out)
	}
	if out := w.weir("authority", "status"); !strings.Contains(out, "acme") || !strings.Contains(out, "99") {
		t.Error(out)
	}
	if out := w.weir("authority", "repair"); !strings.Contains(out, "repaired acme") || strings.Contains(out, "other") {
		t.Error(out)
	}
	w.answers("made", 200, "", "")
	w.atOnce("bad", 401)
	for _, url := range w.urls {
		stack.Eventually(t, url+" says so no longer", func() bool {
			return !strings.Contains(string(stack.Do(t, stack.Request{URL: url + "/ready"}).Body), "degraded")
		})
	}
}

// TestTheDatabaseIsAway has two gateways serve while their database is paused, killed and started again, with and without the log.
func TestTheDatabaseIsAway(t *testing.T) {
	w := newWorld(t, true)
	w.admin("POST", "/admin/orgs", `{"id":"acme","billing":"postpaid"}`, 201)
	w.key("made", "acme", true)
	w.key("bad", "acme", true)
	w.answers("made", 200, "", "")
	w.answers("bad", 200, "", "")
	w.key("bad", "acme", false)
	w.atOnce("bad", 401)
	w.atOnce("made", 200)
	w.atOnce("demo", 200)

	for what, away := range map[string]struct{ go_, back func() }{
		"paused": {w.database.Pause, w.database.Resume},
		"killed": {w.database.Kill, func() {
			if err := w.database.Start(); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		away.go_()
		w.answers("made", 200, "bounded_snapshot", "")
		w.answers("unknown", 503, "", "authorization_unavailable")
		w.atOnce("demo", 200)
		for _, url := range w.urls {
			ready := stack.Do(t, stack.Request{URL: url + "/ready"})
			if ready.Status != 200 || !strings.Contains(string(ready.Body), "keys made through the API are served as they were known") {
				t.Errorf("%s: /ready says %d %s", what, ready.Status, ready.Body)
			}
		}
		begin := time.Now()
		if a := stack.Do(t, stack.Request{Method: "PUT", URL: w.manager + "/admin/orgs/acme", Body: `{"name":"x","billing":"postpaid"}`,
			Header: map[string]string{"Authorization": "Bearer " + adminKey}}); a.Status != 503 || !strings.Contains(string(a.Body), "nothing can be changed") {
			t.Errorf("%s: management: %d %s", what, a.Status, a.Body)
		}
		t.Logf("%s: management was refused after %s", what, time.Since(begin).Round(time.Millisecond))
		w.answers("made", 503, "", "authorization_unavailable") // after snapshot_max_age
		w.atOnce("demo", 200)
		away.back()
		w.answers("made", 200, "", "")
		w.answers("unknown", 401, "", "unauthorized")
	}

	w.database.Kill()
	w.answers("made", 200, "bounded_snapshot", "")
	w.keeper.kill()
	for _, url := range w.urls {
		stack.Eventually(t, url+" is without the log", func() bool {
			a := w.call(url, "demo")
			return a.Status == 200 && a.Header.Get("X-Tm-Admission-Mode") == "bounded_local"
		})
		if a := w.call(url, "made"); a.Status != 503 || codeOf(a) != "authorization_unavailable" {
			t.Errorf("%s without both: %d %s", url, a.Status, a.Body)
		}
	}
}
