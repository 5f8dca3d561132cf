package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/test/e2e/stack"
	"github.com/weirhq/weir/test/freeport"
	"github.com/weirhq/weir/test/postgrestest"
)

var waitsAt = regexp.MustCompile(`addresses="?\[(\S+?)\]`)

// waits has a process say that it waits for something: in its log, and to who asks whether it is alive and ready.
func (p *process) waits(t *testing.T, what string) {
	t.Helper()
	stack.Eventually(t, "it waits for "+what, func() bool { return strings.Contains(p.said(), "waits for "+what) })
	at := waitsAt.FindStringSubmatch(p.said())
	if at == nil {
		return // it serves nobody
	}
	url := "http://" + at[1]
	if a := stack.Do(t, stack.Request{URL: url + "/health"}); a.Status != http.StatusOK {
		t.Errorf("/health of a process that waits: %d %s", a.Status, a.Body)
	}
	for _, path := range []string{"/ready", "/v1/models"} {
		if a := stack.Do(t, stack.Request{URL: url + path}); a.Status != http.StatusServiceUnavailable || !strings.Contains(string(a.Body), "waits for "+what) {
			t.Errorf("%s of a process that waits for %s: %d %s", path, what, a.Status, a.Body)
		}
	}
}

// TestStartBeforeTheDatabase starts the product while its database is away, and turned away by it.
func TestStartBeforeTheDatabase(t *testing.T) {
	t.Parallel() // it mostly waits
	w := &world{t: t, database: postgrestest.Own(t)}
	_, upstream := serveUpstream(t, "tokens=3")
	config := func(url string) string {
		return stack.Settings.Write(worldSettings, t, t.TempDir(), fmt.Sprintf("database: %q\ndata_dir: %s\nlisten: 127.0.0.1:0\n", url, t.TempDir()), map[string]string{"upstream": upstream})
	}
	path := config(w.database.URL)
	w.migrates(path)

	unknown := start(t, nil, "serve", "-c", config(strings.Replace(w.database.URL, "weir@", "nobody@", 1)))
	if code := unknown.code(t); code != 1 || !strings.Contains(unknown.said(), "weir migrate status") {
		t.Errorf("with a user that the database does not know it ended with %d", code)
	}

	w.database.Stop()
	stopped, p := start(t, nil, "serve", "-c", config(w.database.URL)), start(t, nil, "serve", "-c", path)
	stopped.waits(t, "the database")
	p.waits(t, "the database")
	_ = stopped.cmd.Process.Signal(syscall.SIGTERM)
	if code := stopped.code(t); code != 0 {
		t.Errorf("told to stop while it waits it ended with %d", code)
	}
	if err := w.database.Start(); err != nil {
		t.Fatal(err)
	}
	w.urls = []string{p.address(t)}
	stack.Healthy(t, w.urls[0])
	w.atOnce("demo", http.StatusOK)
	if n := strings.Count(p.said(), "waits for the database"); n > 3 {
		t.Errorf("it said %d times that it waits", n)
	}
}

// TestStartInAnyOrder starts every process that joins the log before the one that keeps it.
func TestStartInAnyOrder(t *testing.T) {
	t.Parallel() // it mostly waits
	dir := t.TempDir()
	_, upstream := serveUpstream(t, "tokens=3")
	port := freeport.Address(t)
	path := func(head string) string {
		return stack.Settings.Write(worldSettings, t, t.TempDir(), head+"data_dir: "+t.TempDir()+"\n", map[string]string{"upstream": upstream})
	}
	joins := func(role access.Role, known *access.Credentials) string {
		c, secret, err := access.NewCredentials(string(role), role)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "secret")
		if err := access.WriteSecret(file, secret); err != nil {
			t.Fatal(err)
		}
		known.Identities = append(known.Identities, c)
		return path(fmt.Sprintf("listen: 127.0.0.1:0\nlog: {url: \"nats://%s\", credentials: %s}\n", port, file))
	}
	var known access.Credentials
	early := map[access.Role]*process{}
	for _, role := range []access.Role{access.Gateway, access.Auditor, access.Biller, access.Projector} {
		early[role] = start(t, nil, "serve", "--roles", string(role), "-c", joins(role, &known))
	}
	for _, p := range early {
		p.waits(t, "the log")
	}
	text, err := yaml.Marshal(known)
	if err != nil {
		t.Fatal(err)
	}
	stack.WriteFile(t, filepath.Join(dir, "credentials.yaml"), string(text))
	start(t, nil, "serve", "--roles", "broker", "-c", path(fmt.Sprintf("log: {listen: %q, credentials: %s}\n", port, filepath.Join(dir, "credentials.yaml"))))
	url := early[access.Gateway].address(t)
	stack.Healthy(t, url)
	var id string
	stack.Eventually(t, "the gateway serves", func() bool {
		a := stack.Do(t, stack.Request{URL: url + "/v1/chat/completions", Key: "demo", Body: chat("m", "")})
		id = a.ID()
		return a.Status == http.StatusOK
	})
	stack.Eventually(t, "the auditor has a record", func() bool {
		return stack.Do(t, stack.Request{URL: url + "/v1/generation?id=" + id, Key: "demo"}).Status == http.StatusOK
	})

	turned := start(t, nil, "serve", "--roles", "gateway", "-c", joins(access.Gateway, &access.Credentials{}))
	if code := turned.code(t); code != 1 || !strings.Contains(turned.said(), "weir credentials add") {
		t.Errorf("with a secret that nobody knows it ended with %d", code)
	}
	for role, p := range early {
		select {
		case <-p.done:
			t.Errorf("the %s ended", role)
		default:
		}
	}
}
