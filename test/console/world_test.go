// Package console clicks through the console in a real browser, against the product as its demo runs it.
package console

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/test/browsertest"
)

func TestMain(m *testing.M) {
	code := browsertest.Main(m)
	world.end()
	os.Exit(code)
}

const (
	startWithin = time.Minute
	password    = "correct horse battery"
	evil        = `<img src=x onerror=alert(1)>"'><script>alert(2)</script>` // wherever a name may stand
)

// demo is the product, started once for all tests.
type demo struct {
	once sync.Once
	err  error
	cmd  *exec.Cmd
	dir  string
	done chan struct{}

	mu  sync.Mutex
	out bytes.Buffer

	url, key, tight, admin, email, password string
	served, refused                         string // requests

	signing sync.Mutex
	cookies map[string]string // by email
}

var world demo

// Write takes what the process says.
func (d *demo) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.out.Write(b)
}

func (d *demo) said() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.out.String()
}

// running gives the product with people, keys, pools and some traffic.
func running(t *testing.T) *demo {
	t.Helper()
	world.once.Do(func() {
		if world.err = world.start(); world.err == nil {
			world.err = world.fill()
		}
	})
	if world.err != nil {
		t.Fatalf("%v\n%s", world.err, world.said())
	}
	return &world
}

func (d *demo) start() (err error) {
	if d.dir, err = os.MkdirTemp("", "weir-console-"); err != nil {
		return err
	}
	binary := filepath.Join(d.dir, "weir")
	if text, err := exec.Command("go", "build", "-o", binary, "github.com/weirhq/weir/services/weir").CombinedOutput(); err != nil {
		return fmt.Errorf("build weir: %w\n%s", err, text)
	}
	d.cmd, d.done = exec.Command(binary, "demo", "--listen", "127.0.0.1:0", "--data-dir", filepath.Join(d.dir, "data")), make(chan struct{})
	d.cmd.Stdout, d.cmd.Stderr = d, d
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.cmd.Start(); err != nil {
		return err
	}
	go func() {
		defer close(d.done)
		_ = d.cmd.Wait() // its end is no matter
	}()
	for deadline := time.Now().Add(startWithin); !strings.Contains(d.said(), "Stop with Ctrl-C."); time.Sleep(10 * time.Millisecond) {
		select {
		case <-d.done:
			return fmt.Errorf("weir demo has ended")
		default:
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("weir demo does not serve")
		}
	}
	text := d.said()
	find := func(pattern string) string {
		m := regexp.MustCompile(`(?m)` + pattern).FindStringSubmatch(text)
		if m == nil {
			err = fmt.Errorf("weir demo does not say %s", pattern)
			return ""
		}
		return m[1]
	}
	d.url, d.key, d.tight, d.admin = find(`^Weir is running at (\S+)`), find(`^WEIR_API_KEY=(\S+)`), find(`^WEIR_TIGHT_KEY=(\S+)`), find(`^WEIR_ADMIN_KEY=(\S+)`)
	d.email, d.password = find(`email (\S+), password`), find(`password (\S+)`)
	return err
}

func (d *demo) end() {
	if d.cmd != nil && d.cmd.Process != nil {
		_ = d.cmd.Process.Signal(os.Interrupt)
		select {
		case <-d.done:
		case <-time.After(10 * time.Second):
			_ = syscall.Kill(-d.cmd.Process.Pid, syscall.SIGKILL)
			<-d.done
		}
	}
	_ = os.RemoveAll(d.dir)
}

// answer is what a plain request got.
type answer struct {
	status int
	header http.Header
	text   string
}

// send sends one request.
func (d *demo) send(method, path, body string, header ...string) (answer, error) {
	req, err := http.NewRequest(method, d.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{Timeout: startWithin, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(text)}, err
}

func quoted(s string) string {
	b, _ := json.Marshal(s) // a text always can be
	return string(b)
}

// fill makes what the pages show: an org with everything in it, and requests of it.
func (d *demo) fill() error {
	hash := func(key string) string { sum := sha256.Sum256([]byte(key)); return hex.EncodeToString(sum[:]) }
	for _, step := range []struct{ method, path, body string }{
		{"PUT", "/admin/orgs/acme", `{"name":` + quoted("Acme "+evil) + `,"billing":"postpaid"}`},
		{"PUT", "/admin/orgs/acme/override", `{"org":{"rpm":600,"spend_day":"50"}}`},
		{"POST", "/admin/orgs/acme/users", `{"email":"owner@acme.example","role":"owner","password":"` + password + `"}`},
		{"POST", "/admin/orgs/acme/users", `{"email":"viewer@acme.example","role":"viewer","password":"` + password + `"}`},
		{"POST", "/admin/orgs/acme/users", `{"email":"admin@acme.example","role":"admin","password":"` + password + `"}`},
		{"POST", "/admin/orgs/acme/users", `{"email":"leaver@acme.example","role":"admin","password":"` + password + `"}`},
		{"PUT", "/admin/orgs/new", `{"name":"New"}`},
		{"POST", "/admin/orgs/new/users", `{"email":"owner@new.example","role":"owner","password":"` + password + `"}`},
		{"PUT", "/admin/orgs/acme/workspaces/research", `{"name":"Research"}`},
		{"PUT", "/admin/orgs/acme/workspaces/evil", `{"name":` + quoted(evil) + `}`},
		{"PUT", "/admin/orgs/acme/principals/ci", `{"name":"Nightly builds"}`},
		{"PUT", "/admin/api-keys/app", `{"version":"rev_00000001","key_hash":"` + hash("sk-app") + `","owner":"acme","name":"The application","enabled":true,"workspace":"research","rpm_ceiling":300}`},
		{"PUT", "/admin/api-keys/build", `{"version":"rev_00000002","key_hash":"` + hash("sk-build") + `","owner":"acme","name":` + quoted(evil) + `,"enabled":true,"principal":"ci","rpm_ceiling":3}`},
		{"PUT", "/admin/api-keys/old", `{"version":"rev_00000003","key_hash":"` + hash("sk-old") + `","owner":"acme","name":"Old key","enabled":false}`},
		{"POST", "/admin/connections", `{"org":"acme","provider":"openai","name":` + quoted("Main "+evil) + `}`},
		{"POST", "/admin/connections", `{"org":"acme","provider":"anthropic","name":"Claude"}`},
	} {
		a, err := d.send(step.method, step.path, step.body, "Authorization", "Bearer "+d.admin, "Content-Type", "application/json")
		if err != nil || a.status >= 300 {
			return fmt.Errorf("%s %s: %v %d %s", step.method, step.path, err, a.status, a.text)
		}
	}
	for i, key := range []string{"sk-app", "sk-build", "sk-build", "sk-app", "sk-build", "sk-build", "sk-app"} {
		a, err := d.ask(key, 8+i)
		if err != nil {
			return err
		}
		switch a.status {
		case http.StatusOK:
			d.served = a.header.Get("X-Request-Id")
		case http.StatusTooManyRequests:
			d.refused = a.header.Get("X-Request-Id")
		default:
			return fmt.Errorf("a request got %d %s", a.status, a.text)
		}
	}
	if d.served == "" || d.refused == "" {
		return fmt.Errorf("of seven requests none was served, or none refused")
	}
	return nil
}

// ask makes a request for the model, and gives its id.
func (d *demo) ask(key string, tokens int) (answer, error) {
	return d.send("POST", "/v1/chat/completions", fmt.Sprintf(`{"model":"weir-demo","max_tokens":%d,"messages":[{"role":"user","content":"Hello"}]}`, tokens),
		"Authorization", "Bearer "+key, "Content-Type", "application/json")
}

// cookie signs somebody in, once for all tests: an address has only so many tries.
func (d *demo) cookie(t *testing.T, email, password string) string {
	t.Helper()
	d.signing.Lock()
	defer d.signing.Unlock()
	if c := d.cookies[email]; c != "" {
		return c
	}
	a, err := d.send("POST", "/api/sign-in", `{"email":`+quoted(email)+`,"password":`+quoted(password)+`}`, "Content-Type", "application/json")
	if err != nil || a.status != http.StatusOK {
		t.Fatalf("sign in: %v %d %s", err, a.status, a.text)
	}
	value, _, _ := strings.Cut(strings.TrimPrefix(a.header.Get("Set-Cookie"), "weir_session="), ";")
	if d.cookies == nil {
		d.cookies = map[string]string{}
	}
	d.cookies[email] = value
	return value
}

// signedIn opens a tab in which somebody is signed in.
func (d *demo) signedIn(t *testing.T, look browsertest.Look, email string) *browsertest.Tab {
	t.Helper()
	tab := browsertest.New(t, look)
	tab.Cookie(d.url, "weir_session", d.cookie(t, email, password))
	return tab
}

// enter signs somebody in by the form.
func enter(tab *browsertest.Tab, email, password string) {
	tab.Fill("[name=email]", email)
	tab.Fill("[name=password]", password)
	tab.Leave("form button.main")
}

// calm asserts that the browser had nothing to complain of, and that the page is no wider than the window.
func calm(t *testing.T, tab *browsertest.Tab, where string) {
	t.Helper()
	if raw := browsertest.Eval[string](tab, `(document.querySelector("main").innerText.match(/0x[0-9a-f]{6,}|<nil>|%!|\{\{|\bNaN\b|undefined/) || [""])[0]`); raw != "" {
		t.Errorf("%s: the page says %q", where, raw)
	}
	if n := browsertest.Eval[int](tab, `document.querySelectorAll("main img, main script, main [onerror]").length`); n > 0 {
		t.Errorf("%s: %d elements came out of a name", where, n)
	}
	for _, c := range tab.Complaints() {
		t.Errorf("%s: the browser complains: %s", where, c)
	}
	if wide := browsertest.Eval[string](tab, `document.documentElement.scrollWidth > innerWidth ? [...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll")).map(e => e.tagName + "." + e.className).slice(0, 5).join(" ") + " " + document.documentElement.scrollWidth : ""`); wide != "" {
		t.Errorf("%s: the page scrolls sideways: %s", where, wide)
	}
}
