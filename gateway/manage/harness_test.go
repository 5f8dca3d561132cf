package manage_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/embedded"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/seal"
	"github.com/weirhq/weir/gateway/authority/store"
	"github.com/weirhq/weir/gateway/manage"
	"github.com/weirhq/weir/projections/kv"
)

const (
	patience = 60 * time.Second
	adminKey = "admin-secret"
	password = "correct horse battery"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is the API on a broker of its own.
type server struct {
	t      testing.TB
	broker *embedded.Broker
	kv     *store.KV
	log    *journal.Log
	mirror *store.Mirror
	auth   *store.Authority
	http   *httptest.Server
	view   *kv.View
	ahead  atomic.Int64 // how far the clock is ahead
	after  string       // the version of the registry
	keys   atomic.Pointer[seal.Keys]
	said   said // what the API logs
}

// said is a log that can be read.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *said) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *said) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// sealKey makes a key to seal with.
func sealKey(t testing.TB, id string) string {
	t.Helper()
	text, err := seal.NewKey(id, rand.Reader)
	check(t, err)
	return text
}

// sealWith takes keys into use, the newest first.
func (s *server) sealWith(lines ...string) {
	s.t.Helper()
	keys, err := seal.Parse(strings.Join(lines, "\n"))
	check(s.t, err)
	s.keys.Store(keys)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// files are the files' authority: an org with a key, a serverless model, a pool and a connection.
func files(t testing.TB, mode authority.Mode) *authority.Snapshot {
	t.Helper()
	limits := authority.Limits{RPM: 300, TPM: 1_000_000, Concurrency: 8}
	policies := &authority.Policies{Models: map[string]authority.Policy{}, Lines: map[string]authority.Pos{}}
	check(t, policies.Add("p.yaml", "p", []byte("models: [serverless]\nmode: serverless\nmax_input_tokens: 1000\n")))
	model := func(id string) *authority.Model {
		return &authority.Model{ID: id, Local: &authority.Local{Replicas: []string{"http://x"}}, Price: &authority.Price{}}
	}
	s, _, err := authority.Build(&authority.Declared{AdminKeys: 1,
		Defaults: authority.Defaults{Org: limits, Workspace: limits, Principal: limits, Key: authority.Limits{TPM: limits.TPM, Concurrency: 8}},
		Orgs:     []authority.DeclaredOrg{{Name: "filed", Billing: authority.Postpaid, Limits: authority.Limits{RPM: 600}}},
		Models:   []*authority.Model{model("m"), model("serverless"), model("vendor/model")},
		Pools: []authority.DeclaredPool{{ID: "file-pool", Provider: "openai", RPM: 10, TPM: 10, Concurrency: 10, HeadroomPercent: 90},
			{ID: "filed-pool", Org: "filed", Provider: "openai", RPM: 10, TPM: 10, Concurrency: 10, HeadroomPercent: 90}},
		Connections: []*authority.Connection{{ID: "filed-connection", Org: "filed", Provider: "openai"}},
	}, &authority.Auth{Mode: mode, Keys: []authority.StaticKey{{Hash: authority.HashKey("file-key"), Owner: "filed",
		Key: &authority.Key{ID: "fk", Org: "filed", Workspace: "fw", Principal: "fp"}}}}, policies)
	check(t, err)
	return s
}

func newServer(t testing.TB) *server { return newServerIn(t, authority.ModeDynamic) }

func newServerIn(t testing.TB, mode authority.Mode) *server {
	t.Helper()
	b, err := embedded.Start(within(t), embedded.Config{DataDir: t.TempDir()})
	check(t, err)
	t.Cleanup(b.Shutdown)
	name, err := access.NewName("op")
	check(t, err)
	nc, err := b.Connect(access.Identity{Name: name, Roles: []access.Role{access.System}}, journal.Options(name)...)
	check(t, err)
	s := &server{t: t, broker: b, after: "rev_0"}
	s.sealWith(sealKey(t, "first"))
	s.log, err = journal.Open(within(t), nc, journal.Config{Create: true})
	check(t, err)
	s.kv, err = store.OpenKV(within(t), nc, store.KVConfig{Create: true, Users: true})
	check(t, err)
	now := func() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }
	s.mirror = store.NewMirror(store.MirrorConfig{Backend: s.kv, Static: files(t, mode), Now: now})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.mirror.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	s.auth = store.New(store.Config{Backend: s.kv, Mirror: s.mirror, Log: s.log, Source: "test", NewID: uuid.NewString})
	s.view = kv.NewView(now)
	handler := manage.New(manage.Config{Authority: s.auth, Sessions: s.kv, Log: s.log, Source: "test", AdminKeys: [][32]byte{authority.HashKey("another"), authority.HashKey(adminKey)},
		Seal: func(org events.Org, connection, secret string) ([]byte, error) {
			return s.keys.Load().Seal(org, connection, secret, rand.Reader)
		},
		Renew: func(c *authority.ConnectionRecord) ([]byte, error) {
			return s.keys.Load().Renew(c.Org, c.ID, c.Credential, rand.Reader)
		},
		Proxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Meters: s.view, Now: now, Random: rand.Reader, Logger: slog.New(slog.NewTextHandler(&s.said, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	s.http = httptest.NewServer(handler)
	t.Cleanup(s.http.Close)
	check(t, s.mirror.Reached(within(t), store.Mark{}))
	return s
}

// reply is an answer of the API.
type reply struct {
	t      testing.TB
	what   string
	status int
	header http.Header
	text   string
}

// is asserts the status, and gives the body.
func (r *reply) is(status int) map[string]any {
	r.t.Helper()
	if r.status != status {
		r.t.Fatalf("%s: %d, want %d: %s", r.what, r.status, status, r.text)
	}
	if r.text == "" {
		return nil
	}
	var body map[string]any
	if err := json.Unmarshal([]byte(r.text), &body); err != nil {
		r.t.Fatalf("%s: %s: %v", r.what, r.text, err)
	}
	return body
}

// refuses asserts a status and a part of the message.
func (r *reply) refuses(status int, part string) map[string]any {
	r.t.Helper()
	body := r.is(status)
	if text, _ := body["error"].(string); !strings.Contains(text, part) {
		r.t.Errorf("%s: %q does not say %q", r.what, text, part)
	}
	return body
}

// do sends a request; body is JSON text or a value to encode.
func (s *server) do(method, path string, body any, header ...string) *reply {
	s.t.Helper()
	var in io.Reader
	text, isText := body.(string)
	if body != nil && !isText {
		b, err := json.Marshal(body)
		check(s.t, err)
		text = string(b)
	}
	if body != nil {
		in = bytes.NewReader([]byte(text))
	}
	req, err := http.NewRequestWithContext(within(s.t), method, s.http.URL+path, in)
	check(s.t, err)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.http.Client().Do(req)
	check(s.t, err)
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	check(s.t, err)
	if len(text) > 200 {
		text = text[:200] + "…"
	}
	return &reply{s.t, fmt.Sprintf("%s %s %s", method, path, text), resp.StatusCode, resp.Header, strings.TrimSpace(string(out))}
}

// admin sends an operator's request.
func (s *server) admin(method, path string, body any) *reply {
	s.t.Helper()
	return s.do(method, path, body, "Authorization", "Bearer "+adminKey)
}

// obj makes an object of names and values.
func obj(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	return m
}

// with gives an object with other fields.
func with(base map[string]any, pairs ...any) map[string]any {
	m := obj(pairs...)
	for k, v := range base {
		if _, there := m[k]; !there {
			m[k] = v
		}
	}
	return m
}

// next gives a newer version of the registry.
func (s *server) next() string {
	n := 0
	_, _ = fmt.Sscanf(s.after, "rev_%d", &n)
	s.after = fmt.Sprintf("rev_%08d", n+1)
	return s.after
}

func hashOf(raw string) string {
	h := authority.HashKey(raw)
	return hex.EncodeToString(h[:])
}

// keyOf is the body of a key.
func (s *server) keyOf(raw, owner string) map[string]any {
	return obj("version", s.next(), "key_hash", hashOf(raw), "owner", owner, "name", "a key", "enabled", true)
}

// person signs somebody in.
type person struct {
	s      *server
	cookie string
}

func (s *server) user(org, email, role string) string {
	s.t.Helper()
	return s.admin("POST", "/admin/orgs/"+org+"/users", obj("email", email, "role", role, "password", password)).is(201)["id"].(string)
}

func (s *server) enter(email, password string) *reply {
	s.t.Helper()
	return s.do("POST", "/api/sign-in", obj("email", email, "password", password))
}

func (s *server) person(org, email, role string) *person {
	s.t.Helper()
	s.user(org, email, role)
	return s.signedIn(email)
}

func (s *server) signedIn(email string) *person {
	s.t.Helper()
	r := s.enter(email, password)
	r.is(200)
	cookie, _, _ := strings.Cut(r.header.Get("Set-Cookie"), ";")
	return &person{s, cookie}
}

func (p *person) do(method, path string, body any, header ...string) *reply {
	p.s.t.Helper()
	return p.s.do(method, path, body, append(header, "Cookie", p.cookie)...)
}

// acme makes an org with its defaults lifted from the hold.
func (s *server) acme() {
	s.t.Helper()
	s.admin("PUT", "/admin/orgs/acme", obj("name", "Acme")).is(201)
}

// key finds what a raw key is in the current snapshot.
func (s *server) key(raw string) (*authority.Key, map[events.Scope]authority.Limits) {
	snap := s.mirror.Current()
	k := snap.Keys[authority.HashKey(raw)]
	if k == nil {
		return nil, nil
	}
	limits := map[events.Scope]authority.Limits{}
	for _, sc := range snap.Scopes(k) {
		limits[sc.Scope] = sc.Limits
	}
	return k, limits
}

// fence is the version of an org's newest fence in the log.
func (s *server) fence(org string) int64 {
	records, _, err := s.log.Last(within(s.t), "acct."+org+".fence")
	check(s.t, err)
	if len(records) == 0 {
		return 0
	}
	return records[0].Data.(*events.Fence).Version
}
