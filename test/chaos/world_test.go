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

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/services/provider"
	"github.com/weirhq/weir/test/e2e/stack"
	"github.com/weirhq/weir/test/freeport"
	"github.com/weirhq/weir/test/postgrestest"
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
	tb     testing.TB
	args   []string
	cmd    *exec.Cmd
	binary string
	env    []string
	done   chan struct{}

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
	p.cmd, p.done = exec.Command(p.binary, p.args...), make(chan struct{})
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.TempDir()}, p.env...)
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
	tb        testing.TB
	dir       string
	setup     setup
	provider  *provider.Server
	witness   *witness                    // of every call to any upstream
	others    map[string]*provider.Server // further upstreams, by name
	upstreams map[string]string           // of every upstream, by name
	core      *process
	readers   []*process // projector and auditor, where they are apart
	peers     []*process // further NATS servers
	callout   *process   // who answers for NATS servers; nil where the log's process is our own
	gateways  [2]*process
	pipes     [2]*pipe // the gateways' ways to the log
	urls      [2]string
	nats      string
	doors     []string // where each server that holds the log takes clients
	secrets   map[access.Role]access.Secret
	database  *postgrestest.Server           // nil: there is none
	ways      map[string]*postgrestest.Proxy // to the database, by process
}

// setup says what a world is made of. All of it has a default.
type setup struct {
	script  string            // of the upstream. Defaults to script
	data    string            // where the log's process keeps its data. Defaults to a directory beside the rest
	weir    string            // of weir.yaml, what every process reads alike. Defaults to settings
	keys    []stack.Key       // Defaults to those of the two orgs
	apart   bool              // projector and auditor are processes of their own
	env     []string          // of the log's process
	others  map[string]string // scripts of further upstreams; {{name}} in weir stands for the base URL of one
	probe   string            // the org whose requests say that a gateway admits. Defaults to strict
	change  func(w *world)    // of the processes, before they start. Defaults to none
	servers int               // NATS servers of their own hold the log, so many, and core is the first of them. Defaults to none: a process with the role broker does

	// database has authority and audit in PostgreSQL, keys that are made through the API, and the first gateway manage.
	database bool
}

// manager is the identity of a gateway that manages.
const manager access.Role = "manager"

// joining are the identities that join the log from other processes, each by a secret of its own, and what they may do.
var joining = map[access.Role][]access.Role{access.Gateway: {access.Gateway}, access.Projector: {access.Projector}, access.Auditor: {access.Auditor},
	access.Operator: {access.Operator}, manager: {access.Gateway, access.Operator}}

// newWorld starts everything and waits until both gateways admit.
func newWorld(tb testing.TB, s setup) *world {
	tb.Helper()
	w := &world{tb: tb, dir: tb.TempDir(), setup: s, nats: freeport.Address(tb), secrets: map[access.Role]access.Secret{}, ways: map[string]*postgrestest.Proxy{}, others: map[string]*provider.Server{}}
	w.doors, w.witness = []string{w.nats}, newWitness(w.dir)
	if w.setup.script == "" {
		w.setup.script = script
	}
	if w.setup.weir == "" {
		w.setup.weir = settings
	}
	if w.setup.keys == nil {
		w.setup.keys = []stack.Key{{Name: "strict"}, {Name: "open"}}
	}
	if w.setup.probe == "" {
		w.setup.probe = "strict"
	}
	if w.setup.data == "" {
		w.setup.data = filepath.Join(w.dir, "core-data")
	}
	w.provide()
	var all access.Credentials
	for role, may := range joining {
		c, secret, err := access.NewCredentials(string(role), may...)
		w.must(err)
		all.Identities, w.secrets[role] = append(all.Identities, c), secret
		w.must(access.WriteSecret(w.secretOf(role), secret))
	}
	credentials, err := yaml.Marshal(all)
	w.must(err)
	stack.WriteFile(tb, filepath.Join(w.dir, "credentials"), string(credentials))
	if s.database {
		w.database = postgrestest.Own(tb)
	}
	w.processes()
	if s.change != nil {
		s.change(w)
	}
	w.core.start()
	for _, p := range w.peers {
		p.start()
	}
	w.listening()
	if w.callout != nil {
		w.callout.start()
		w.until("somebody answers for the servers", func() bool { return strings.Contains(w.callout.said(), "can join") })
	}
	for _, p := range w.readers {
		p.start()
	}
	for _, g := range w.gateways {
		g.start()
	}
	w.ready()
	if s.apart {
		w.until("the auditor has begun", w.audits)
	}
	return w
}

// audits says whether the auditor has a request that was just made.
func (w *world) audits() bool {
	a, err := ask(w.urls[0], w.setup.probe)
	if err != nil || a.Status != http.StatusOK {
		return false
	}
	nc, _, _ := w.join(access.Auditor)
	defer nc.Close()
	records, done := w.records(nc)
	defer done()
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if r, _ := w.record(records, events.Org(w.setup.probe), events.RequestID(a.ID())); r != nil {
			return true
		}
	}
	return false
}

func (w *world) must(err error) {
	w.tb.Helper()
	if err != nil {
		w.tb.Fatal(err)
	}
}

// provide runs the upstreams.
func (w *world) provide() {
	url := ""
	w.provider, url = w.serve(w.setup.script)
	w.upstreams = map[string]string{"upstream": url}
	for name, script := range w.setup.others {
		w.others[name], w.upstreams[name] = w.serve(script)
	}
}

func (w *world) serve(script string) (p *provider.Server, url string) {
	w.tb.Helper()
	p, err := provider.New(provider.Config{Script: script, Calls: 1 << 20})
	w.must(err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	server := &http.Server{Handler: w.witness.before(p), ReadHeaderTimeout: within}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	w.tb.Cleanup(func() { _ = server.Close(); <-served })
	return p, "http://" + l.Addr().String()
}

// config writes the files of one process.
func (w *world) config(name, head string) string {
	dir := filepath.Join(w.dir, name)
	w.must(os.MkdirAll(dir, 0o700))
	settings := stack.Settings{Weir: w.setup.weir, Keys: w.setup.keys}
	if w.database != nil {
		head += w.at(name)
		settings.Mode = "dynamic"
	}
	return settings.Write(w.tb, dir, head, w.upstreams)
}

// secretOf is the file with a role's secret.
func (w *world) secretOf(role access.Role) string {
	return filepath.Join(w.dir, "secret-"+string(role))
}

// joins is the head of a configuration that joins the log at an address.
func (w *world) joins(name, address, log string, role access.Role) string {
	return fmt.Sprintf("listen: %s\ndata_dir: %s\nlog: {url: %q, credentials: %s, replicas: %d}\n", address, filepath.Join(w.dir, name+"-data"), log, w.secretOf(role), max(w.setup.servers, 1))
}

// processes writes every process's files.
func (w *world) processes() {
	if w.setup.servers > 0 {
		w.servers()
	} else {
		w.broker()
	}
	if w.setup.apart {
		for _, role := range []access.Role{access.Projector, access.Auditor} {
			path := w.config(string(role), w.joins(string(role), freeport.Address(w.tb), w.everywhere(), role)+fmt.Sprintf("operators: {listen: %s}\n", freeport.Address(w.tb)))
			w.readers = append(w.readers, w.process("serve", "--roles", string(role), "--config", path))
		}
	}
	for i := range w.gateways {
		w.pipes[i] = newPipe(w.tb, w.nats)
		addr, name := freeport.Address(w.tb), fmt.Sprintf("gw%d", i)
		way := "nats://" + w.pipes[i].addr()
		if len(w.doors) > 1 { // of which it takes whatever answers
			way = w.everywhere()
		}
		w.urls[i] = "http://" + addr
		roles, identity := "gateway", access.Gateway
		if w.database != nil && i == 0 {
			roles, identity = "gateway,manager", manager
		}
		w.gateways[i] = w.process("serve", "--roles", roles, "--config", w.config(name, w.joins(name, addr, way, identity)))
	}
}

// at is the line of a process's configuration with its own way to the database.
func (w *world) at(process string) string {
	way, url := postgrestest.Through(w.tb, w.database.URL)
	w.ways[process] = way
	return fmt.Sprintf("database: %q\n", url)
}

// migrate makes the database's schema.
func (w *world) migrate(config string) {
	w.tb.Helper()
	if text, err := exec.Command(binary, "migrate", "--config", config).CombinedOutput(); err != nil {
		w.tb.Fatalf("weir migrate: %v\n%s", err, text)
	}
}

// broker makes the log's own process.
func (w *world) broker() {
	core := w.config("core", fmt.Sprintf("operators: {listen: %s}\ndata_dir: %s\nlog: {listen: %s, credentials: %s}\n", freeport.Address(w.tb), w.setup.data, w.nats, filepath.Join(w.dir, "credentials")))
	roles := "broker,projector,auditor"
	if w.setup.apart {
		roles = "broker"
	}
	if w.database != nil {
		w.migrate(core)
	}
	w.core = w.process("serve", "--roles", roles, "--config", core)
	w.core.env = w.setup.env
}

func (w *world) process(args ...string) *process {
	p := &process{tb: w.tb, args: args, binary: binary}
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

// until waits for what is bound to happen. When it does not, the texts say why.
func (w *world) until(what string, happened func() bool, why ...*string) {
	w.tb.Helper()
	for end := time.Now().Add(within); !happened(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			for _, text := range why {
				what += ": " + *text
			}
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
		w.until(fmt.Sprintf("gateway %d admits", i), func() bool {
			ok, _ := w.admits(i, w.setup.probe)
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

// join connects to the log in a role.
func (w *world) join(role access.Role) (*nats.Conn, *journal.Log, string) {
	w.tb.Helper()
	secret := w.secrets[role]
	name, err := access.NewName(secret.Name)
	w.must(err)
	nc, err := nats.Connect(w.everywhere(), append(journal.Options(name), secret.Options(access.Identity{Name: name, Roles: []access.Role{role}})...)...)
	w.must(err)
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	log, err := journal.Open(ctx, nc, journal.Config{})
	w.must(err)
	return nc, log, name
}

// state publishes an operator's event.
func (w *world) state(ev events.Event) {
	w.tb.Helper()
	nc, log, _ := w.join(access.Operator)
	defer nc.Close()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	_, err := log.Publish(ctx, ev)
	w.must(err)
}
