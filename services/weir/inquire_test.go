package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/projections/postgres"
	"github.com/weirhq/weir/schemas/sql"
	"github.com/weirhq/weir/services/config"
	"github.com/weirhq/weir/services/provider"
	"github.com/weirhq/weir/test/audittest"
	"github.com/weirhq/weir/test/postgrestest"
)

func TestMain(m *testing.M) { postgrestest.Main(m) }

// whole is a process with every role that is asked over HTTP.
type whole struct {
	t    *testing.T
	n    *node
	url  string
	keys map[string]string // by org
}

const (
	testAdmin    = "test-admin-key"
	testPassword = "correct horse battery"
)

// startWhole runs everything in one process, with two orgs that have a key each.
func startWhole(t *testing.T, database string) *whole { t.Helper(); return startWith(t, database, "") }

// startWith is startWhole with more in the configuration.
func startWith(t *testing.T, database, more string) *whole {
	t.Helper()
	if database != "" {
		m, err := postgres.Migrate(database, sql.Migrations)
		if err == nil {
			_, err = m.Up(t.Context())
			err = errors.Join(err, m.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	model, err := provider.New(provider.Config{Script: "tokens=7"})
	if err != nil {
		t.Fatal(err)
	}
	upstream, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &whole{t: t, keys: map[string]string{"acme": "sk-weir-acme", "beta": "sk-weir-beta"}}
	hash := func(key string) string { h := authority.HashKey(key); return hex.EncodeToString(h[:]) }
	auth := "api:\n  mode: dynamic\n  keys:\n"
	for _, org := range []string{"acme", "beta"} {
		auth += fmt.Sprintf("    - key_hash: %q\n      key_preview: sk-…\n      metadata: {name: a key, owner: %s}\n", hash(w.keys[org]), org)
	}
	file := fmt.Sprintf("listen: 127.0.0.1:0\ndata_dir: %s\nauth: %s/auth.yaml\npolicies: %s/policies\nadmin_keys: [%q]\ndatabase: %q\n"+
		"orgs: {acme: {limits: {rpm: 4, tpm: 1000000}}, beta: {limits: {rpm: 100}}}\n"+
		"models: [{id: m, context_window: 1000, max_output_tokens: 100, price: {input: \"1\", output: \"2\"}, local: {engine: vllm, replicas: [%q]}}]\n",
		dir, dir, dir, hash(testAdmin), database, "http://"+upstream.Addr().String())
	file += more
	policy := "models: [m]\nmax_input_tokens: 1000\nadmit_budget_tokens: 100000\nmax_inflight: 16\nrouting_policy: {strategy: least-loaded}\n"
	if err := os.Mkdir(filepath.Join(dir, "policies"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"weir.yaml": file, "auth.yaml": auth, "policies/m.yaml": policy} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, _, err := config.Load(filepath.Join(dir, "weir.yaml"), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	w.n = &node{config: cfg, roles: allRoles, answer: answerWithin, logger: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(context.Background())
	var group errgroup.Group
	t.Cleanup(func() {
		cancel()
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
		w.n.close()
	})
	group.Go(func() error { return model.Run(ctx, upstream) })
	if err := w.n.start(ctx); err != nil {
		t.Fatal(err)
	}
	group.Go(func() error { return w.n.run(ctx) })
	w.url = "http://" + w.n.gateway.Addr().String()
	within, done := context.WithTimeout(ctx, patience)
	defer done()
	if err := w.n.waitReady(within); err != nil {
		t.Fatal(err)
	}
	w.eventually("ready", func() bool { status, _, _ := w.do("GET", "/ready", "", nil); return status == 200 })
	return w
}

func (w *whole) eventually(what string, holds func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("in %s: not %s", patience, what)
		}
	}
}

// do sends a request with some headers, and gives the answer's status, headers and body.
func (w *whole) do(method, path, body string, header map[string]string) (int, http.Header, string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, bytes.NewReader([]byte(body)))
	if err != nil {
		w.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for name, value := range header {
		r.Header.Set(name, value)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer.StatusCode, answer.Header, string(text)
}

// chat sends a request of an org and gives its id.
func (w *whole) chat(org string, want int) string {
	w.t.Helper()
	status, header, text := w.do("POST", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"Hello"}],"max_tokens":16}`,
		map[string]string{"Authorization": "Bearer " + w.keys[org]})
	if status != want {
		w.t.Fatalf("%s: %d, want %d: %s", org, status, want, text)
	}
	return header.Get("X-Request-Id")
}

// person makes somebody of an org, and gives what a signed-in browser sends.
func (w *whole) person(org, role string) map[string]string {
	w.t.Helper()
	email := role + "@" + org + ".example"
	status, _, text := w.do("POST", "/admin/orgs/"+org+"/users", fmt.Sprintf(`{"email":%q,"role":%q,"password":%q}`, email, role, testPassword), operatorHeader())
	if status != 201 {
		w.t.Fatalf("%d %s", status, text)
	}
	status, header, text := w.do("POST", "/api/sign-in", fmt.Sprintf(`{"email":%q,"password":%q}`, email, testPassword), nil)
	if status != 200 {
		w.t.Fatalf("%d %s", status, text)
	}
	cookie, _, _ := strings.Cut(header.Get("Set-Cookie"), ";")
	return map[string]string{"Cookie": cookie}
}

func operatorHeader() map[string]string {
	return map[string]string{"Authorization": "Bearer " + testAdmin}
}

func with(header map[string]string, name, value string) map[string]string {
	more := map[string]string{name: value}
	for n, v := range header {
		more[n] = v
	}
	return more
}

// parsed reads an answer that must be a success.
func parsed[T any](t *testing.T, status int, text string) (v T) {
	t.Helper()
	if status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

type explainedAnswer struct {
	Story struct {
		Request, Org, Outcome string
		Decisions             []struct {
			Outcome  string
			Estimate struct{ Of string }
			Refusal  *struct {
				Meter       string
				Used, Limit int64
			}
			Claims []struct {
				Meter  string
				Amount int64
				By     struct {
					Count    int64
					Requests []struct{ Org string }
					Owners   []struct{ Org string }
				}
			}
		}
		Cost struct{ Nano int64 }
	}
	Text string
}

func TestExplainOverHTTP(t *testing.T) {
	w := startWhole(t, "")
	viewer := w.person("acme", "viewer")
	other := w.person("beta", "owner")
	betas := w.chat("beta", 200)
	for range 3 {
		w.chat("acme", 200)
	}
	served := w.chat("acme", 200)
	refused := w.chat("acme", 429)
	ask := func(id string, header map[string]string) (int, string) {
		status, _, text := w.do("GET", "/api/explain?id="+id, "", header)
		return status, text
	}
	w.eventually("the last release is in the log", func() bool {
		status, text := ask(served, viewer)
		return status == 200 && strings.Contains(text, `"outcome":"completed"`)
	})
	status, text := ask(served, viewer)
	a := parsed[explainedAnswer](t, status, text)
	estimated := false
	if a.Story.Request != served || a.Story.Org != "acme" || a.Story.Cost.Nano == 0 || !strings.Contains(a.Text, "cost $") {
		t.Errorf("%s", text)
	}
	for _, c := range a.Story.Decisions[0].Claims {
		if want := fmt.Sprintf("for tokens a minute it counts %d, the input at most by its bytes", c.Amount); c.Meter == "org/acme/tpm" && !strings.Contains(a.Text, want) {
			t.Errorf("no %q in %q", want, a.Story.Decisions[0].Estimate.Of)
		} else if c.Meter == "org/acme/tpm" {
			estimated = true
		}
	}
	if !estimated {
		t.Error("nothing of the estimates")
	}
	others := false
	for _, c := range a.Story.Decisions[0].Claims {
		if c.Meter == "platform/_/rpm" {
			t.Errorf("a platform limit that nobody set: %+v", c)
		}
		others = others || c.By.Count > 0
		for _, h := range append(c.By.Requests, c.By.Owners...) {
			if h.Org != "acme" {
				t.Errorf("%s is told of %+v", "acme", h)
			}
		}
	}
	if !others {
		t.Errorf("nobody else holds anything: %s", text)
	}
	w.eventually("the refusal is in the log", func() bool { status, _ := ask(refused, viewer); return status == 200 })
	if _, text := ask(refused, viewer); !strings.Contains(text, `"outcome":"refused"`) || !strings.Contains(text, "rpm") {
		t.Errorf("%s", text)
	}
	status, header, plain := w.do("GET", "/api/explain?id="+served, "", with(viewer, "Accept", "text/plain"))
	if status != 200 || !strings.HasPrefix(header.Get("Content-Type"), "text/plain") || plain != a.Text {
		t.Errorf("%d %s", status, plain)
	}
	unknown := served[:24] + "000000000000"
	for id, want := range map[string]int{betas: 404, "nonsense": 400, "": 400, unknown: 404} {
		if status, text := ask(id, viewer); status != want {
			t.Errorf("%q: %d, want %d: %s", id, status, want, text)
		}
	}
	if status, _ := ask(served, other); status != 404 {
		t.Errorf("another org's: %d", status)
	}
	if status, _ := ask(served, nil); status != 401 {
		t.Errorf("nobody's: %d", status)
	}
	if status, text := ask(betas, operatorHeader()); status != 200 {
		t.Errorf("an operator's: %d %s", status, text)
	}
	if status, _, _ := w.do("GET", "/api/explain?id="+served, "", with(viewer, "Sec-Fetch-Site", "cross-site")); status != 200 {
		t.Errorf("a read from another site: %d", status)
	}
}

type simulatedAnswer struct {
	Report struct {
		Recorded, Simulated struct{ Asked, Admitted, Refused int64 }
		Owners              []struct{ Org string }
		Assumptions         []string
	}
	Text string
}

func TestSimulateOverHTTP(t *testing.T) {
	w := startWhole(t, "")
	owner, viewer := w.person("acme", "owner"), w.person("acme", "viewer")
	for range 3 {
		w.chat("acme", 200)
		w.chat("beta", 200)
	}
	ask := func(body string, header map[string]string) (int, string) {
		status, _, text := w.do("POST", "/api/simulate", body, header)
		return status, text
	}
	const one = `{"limits":{"org/*/rpm":1}}`
	status, text := ask(one, owner)
	a := parsed[simulatedAnswer](t, status, text)
	if a.Report.Recorded.Asked != 3 || a.Report.Recorded.Admitted != 3 || a.Report.Simulated.Admitted != 1 || a.Report.Simulated.Refused != 2 {
		t.Errorf("%s", text)
	}
	for _, o := range a.Report.Owners {
		if o.Org != "acme" {
			t.Errorf("acme is told of %+v", o)
		}
	}
	if !strings.Contains(a.Text, "only requests of acme") {
		t.Errorf("%s", a.Text)
	}
	status, text = ask(one, operatorHeader())
	if a := parsed[simulatedAnswer](t, status, text); a.Report.Recorded.Asked != 6 || a.Report.Simulated.Admitted != 2 {
		t.Errorf("%s", text)
	}
	status, text = ask(`{"scale":"3x","since":"1h"}`, owner)
	if a := parsed[simulatedAnswer](t, status, text); a.Report.Simulated.Asked != 9 || a.Report.Recorded.Asked != 3 {
		t.Errorf("%s", text)
	}
	if status, _ := ask(one, viewer); status != 403 {
		t.Errorf("a viewer: %d", status)
	}
	if status, _ := ask(one, with(owner, "Sec-Fetch-Site", "cross-site")); status != 403 {
		t.Errorf("another site: %d", status)
	}
	for body, want := range map[string]string{
		`{}`: "limits", `{"scale":"0x"}`: "scale", `{"scale":"2x","since":"soon"}`: "since", `{"limit":1}`: "body", `{"limits":{"org/beta/rpm":1}}`: "must be of this org",
		`{"limits":{"platform/_/rpm":1}}`: "must be a limit of this org", `{"limits":{"model/m/occupancy":1}}`: "must be a limit", `{"limits":{"org/acme/rpm":-1}}`: "is not from 0",
	} {
		if status, text := ask(body, owner); status != 400 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
	if status, text := ask(`{"limits":{"platform/_/rpm":1}}`, operatorHeader()); status != 200 {
		t.Errorf("an operator: %d %s", status, text)
	}
	_, header, lines := w.do("POST", "/api/simulate", one, with(owner, "Accept", "application/x-ndjson"))
	last := lines[strings.LastIndexByte(strings.TrimSpace(lines), '\n')+1:]
	if a := parsed[simulatedAnswer](t, 200, last); a.Report.Simulated.Refused != 2 || header.Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("%s", lines)
	}
}

type usageAnswer struct {
	By   string
	AsOf time.Time `json:"as_of"`
	Rows []struct {
		Org, Key, Model string
		Requests        int64
		OutputTokens    int64 `json:"output_tokens"`
		CostNano        int64 `json:"cost_nano"`
	}
}

func TestUsageOverHTTP(t *testing.T) {
	url, _ := audittest.Database(t)
	w := startWhole(t, url)
	viewer := w.person("acme", "viewer")
	for range 3 {
		w.chat("acme", 200)
	}
	w.chat("beta", 200)
	ask := func(query string, header map[string]string) (int, string) {
		status, _, text := w.do("GET", "/api/usage?"+query, "", header)
		return status, text
	}
	w.eventually("all counted", func() bool { return w.n.biller.Status().Usage.Counted == 4 })
	for _, by := range []string{"hour", "day"} {
		status, text := ask("by="+by, viewer)
		a := parsed[usageAnswer](t, status, text)
		requests, cost := int64(0), int64(0)
		for _, r := range a.Rows {
			if r.Org != "acme" || r.Model != "m" || r.Key == "" {
				t.Errorf("%+v", r)
			}
			requests, cost = requests+r.Requests, cost+r.CostNano
		}
		if requests != 3 || cost == 0 || a.By != by || a.AsOf.IsZero() {
			t.Errorf("%s", text)
		}
	}
	status, text := ask("by=day", operatorHeader())
	if a := parsed[usageAnswer](t, status, text); len(a.Rows) < 2 {
		t.Errorf("%s", text)
	}
	status, text = ask("by=day&org=beta&model=m", operatorHeader())
	if a := parsed[usageAnswer](t, status, text); len(a.Rows) == 0 || a.Rows[0].Org != "beta" || a.Rows[0].Requests != 1 {
		t.Errorf("%s", text)
	}
	status, text = ask("org=beta", viewer) // a person sees the own org whatever is asked
	for _, r := range parsed[usageAnswer](t, status, text).Rows {
		if r.Org != "acme" {
			t.Errorf("acme is told of %+v", r)
		}
	}
	status, text = ask("model=none", viewer)
	if a := parsed[usageAnswer](t, status, text); len(a.Rows) != 0 || !strings.Contains(text, `"rows":[]`) {
		t.Errorf("%s", text)
	}
	if status, text := ask("format=csv", viewer); status != 200 || !strings.HasPrefix(text, "start,org,workspace,key,model,price_version,requests,") || !strings.Contains(text, "acme") {
		t.Errorf("%d %s", status, text)
	}
	for query, want := range map[string]string{"by=week": "by", "from=x": "from", "to=yesterday": "to", "from=2020-01-01T00:00:00Z": "400 days",
		"from=2026-03-02T10:00:00Z&to=2026-03-02T09:00:00Z": "before to", "format=xml": "format",
		"key=%00": "key", "model=%ff": "model", "key=" + strings.Repeat("k", 257): "key"} {
		if status, text := ask(query, viewer); status != 400 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", query, status, text)
		}
	}
	if status, _ := ask("", nil); status != 401 {
		t.Errorf("nobody: %d", status)
	}
}

func TestUsageWithoutADatabase(t *testing.T) {
	w := startWhole(t, "")
	status, _, text := w.do("GET", "/api/usage", "", w.person("acme", "owner"))
	if status != 501 || !strings.Contains(text, `"field":"database"`) {
		t.Errorf("%d %s", status, text)
	}
}
