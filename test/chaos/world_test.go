// Package chaos drives the product in processes of its own through everything that can be down, while clients run, and checks from
// outside: by the upstream's own record, by the log, and by what the clients were told.
package chaos

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/services/provider"
	"github.com/weirhq/weir/test/e2e/stack"
)

// within bounds what is bound to happen, on a machine that has much else to do.
const within = 60 * time.Second

// The limits of the two orgs. That of the open one is far above its load, so that every 429 that it gets is wrong.
const (
	strictAtOnce = 4
	openAtOnce   = 1000
)

const settings = `
orgs:
  strict: {limits: {concurrency: 4, outage_mode: closed}}
  open: {limits: {rpm: 1000000, concurrency: 1000}}
models:
  - id: strict
    price: {input: "1", output: "2"}
    local: {engine: vllm, replicas: ["{{upstream}}"]}
  - id: open
    price: {input: "1", output: "2"}
    local: {engine: vllm, replicas: ["{{upstream}}"]}
`

// process is one weir process.
type process struct {
	tb   testing.TB
	args []string
	cmd  *exec.Cmd
	done chan struct{}

	mu     sync.Mutex
	output bytes.Buffer
}

// Write takes what the process says.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.Write(b)
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// start runs it, in a process group of its own.
func (p *process) start() {
	p.tb.Helper()
	p.cmd, p.done = exec.Command(binary, p.args...), make(chan struct{})
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.TempDir()}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		p.tb.Fatal(err)
	}
	go func(cmd *exec.Cmd, done chan struct{}) { _ = cmd.Wait(); close(done) }(p.cmd, p.done)
}

// signal signals the process.
func (p *process) signal(s syscall.Signal) { _ = syscall.Kill(p.cmd.Process.Pid, s) }

// kill ends the process without a word.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// stop ends it in order.
func (p *process) stop() {
	p.tb.Helper()
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(within):
		p.tb.Fatalf("weir %v did not stop", p.args)
	}
}

// world is the product: a process with the log and its readers, two gateways that have joined it, and an upstream in this process.
type world struct {
	tb       testing.TB
	dir      string
	provider *provider.Server
	core     *process
	gateways [2]*process
	urls     [2]string
	nats     string
	secret   access.Secret
}

func free(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// newWorld starts everything and waits until both gateways admit. data is where the log's process keeps its data; empty: beside the rest.
func newWorld(tb testing.TB, script, data string) *world {
	tb.Helper()
	w := &world{tb: tb, dir: tb.TempDir(), nats: free(tb)}
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	var err error
	w.provider, err = provider.New(provider.Config{Script: script, Calls: 1 << 20})
	must(err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() { defer close(served); _ = w.provider.Run(ctx, l) }()
	tb.Cleanup(func() { cancel(); <-served })

	gate, gateSecret, err := access.NewCredentials("gw", access.Gateway)
	must(err)
	look, lookSecret, err := access.NewCredentials("look", access.Auditor)
	must(err)
	w.secret = lookSecret
	credentials, err := yaml.Marshal(access.Credentials{Identities: []access.Credential{gate, look}})
	must(err)
	stack.WriteFile(tb, filepath.Join(w.dir, "credentials"), string(credentials))
	must(access.WriteSecret(filepath.Join(w.dir, "secret"), gateSecret))
	if data == "" {
		data = filepath.Join(w.dir, "core-data")
	}
	s := stack.Settings{Weir: settings, Keys: []stack.Key{{Name: "strict"}, {Name: "open"}}}
	upstreams := map[string]string{"upstream": "http://" + l.Addr().String()}
	config := func(name, head string) string {
		dir := filepath.Join(w.dir, name)
		must(os.MkdirAll(dir, 0o700))
		return s.Write(tb, dir, head, upstreams)
	}
	core := config("core", fmt.Sprintf("listen: %s\ndata_dir: %s\nlog: {listen: %s, credentials: %s}\n", free(tb), data, w.nats, filepath.Join(w.dir, "credentials")))
	w.core = w.process("serve", "--roles", "broker,projector,auditor", "--config", core)
	for i := range w.gateways {
		addr := free(tb)
		w.urls[i] = "http://" + addr
		path := config(fmt.Sprintf("gw%d", i), fmt.Sprintf("listen: %s\ndata_dir: %s\nlog: {url: nats://%s, credentials: %s}\n",
			addr, filepath.Join(w.dir, fmt.Sprintf("gw%d-data", i)), w.nats, filepath.Join(w.dir, "secret")))
		w.gateways[i] = w.process("serve", "--roles", "gateway", "--config", path)
	}
	w.core.start()
	w.listening()
	for _, g := range w.gateways {
		g.start()
	}
	w.ready()
	return w
}

func (w *world) process(args ...string) *process {
	p := &process{tb: w.tb, args: args}
	w.tb.Cleanup(func() {
		if p.cmd != nil {
			p.signal(syscall.SIGCONT)
			p.kill()
		}
		if w.tb.Failed() {
			w.tb.Logf("weir %s said:\n%s", strings.Join(args, " "), tail(p.said(), 6000))
		}
	})
	return p
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// listening waits until the log's process takes connections.
func (w *world) listening() {
	w.tb.Helper()
	w.until("the log's process takes connections", func() bool {
		c, err := net.Dial("tcp", w.nats)
		if err != nil {
			return false
		}
		_ = c.Close()
		return true
	})
}

func (w *world) until(what string, happened func() bool) {
	w.tb.Helper()
	for end := time.Now().Add(within); !happened(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			w.tb.Fatalf("within %s it did not happen that %s", within, what)
		}
	}
}

// admits says whether a gateway admits a request of an org through the log, and why not.
func (w *world) admits(gateway int, org string) (bool, string) {
	a, err := ask(w.urls[gateway], org)
	switch {
	case err != nil:
		return false, err.Error()
	case a.Status != http.StatusOK:
		return false, string(a.Body)
	}
	return a.Header.Get("X-Tm-Admission-Mode") == "", "bounded_local"
}

// ready waits until both gateways admit through the log.
func (w *world) ready() {
	w.tb.Helper()
	for i := range w.gateways {
		why := ""
		w.until(fmt.Sprintf("gateway %d admits", i), func() (ok bool) {
			if ok, why = w.admits(i, "strict"); !ok && w.tb.Failed() {
				w.tb.Log(why)
			}
			return ok
		})
	}
}

// why is what a gateway's /ready says.
func (w *world) why(gateway int) (status int, text string) {
	a, err := stack.Request{URL: w.urls[gateway] + "/ready"}.Send()
	if err != nil {
		return 0, err.Error()
	}
	return a.Status, string(a.Body)
}

// log opens the log, to be read.
func (w *world) log() (*journal.Log, func()) {
	w.tb.Helper()
	name, err := access.NewName(w.secret.Name)
	if err != nil {
		w.tb.Fatal(err)
	}
	id := access.Identity{Name: name, Roles: []access.Role{access.Auditor}}
	nc, err := nats.Connect("nats://"+w.nats, append(journal.Options(name), w.secret.Options(id)...)...)
	if err != nil {
		w.tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	log, err := journal.Open(ctx, nc, journal.Config{})
	if err != nil {
		w.tb.Fatal(err)
	}
	return log, nc.Close
}
