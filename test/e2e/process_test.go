package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	"github.com/weirhq/weir/test/freeport"
)

// startWithin bounds how long a process may take to start or to end.
const startWithin = 2 * time.Minute

// process is one running weir.
type process struct {
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

// said gives what the process has said.
func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// start runs weir in a process group of its own, with nothing of this process's environment but where programs are.
func start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	return startAs(t, 0, env, args...)
}

// nobody is a user without rights, for tests that run as root.
const nobody = 65534

// startAs runs weir as another user; 0: as this one.
func startAs(t *testing.T, user uint32, env []string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(binary(t), args...), done: make(chan struct{})}
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if user != 0 {
		p.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: user, Gid: user}
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // its code is in the state
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("weir %s said:\n%s", strings.Join(args, " "), p.said())
		}
	})
	return p
}

// kill ends the process and all that it has started, without a word, and waits for it.
func (p *process) kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // it may have ended
	<-p.done
}

// code waits for the process to end by itself, and gives its exit code.
func (p *process) code(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(startWithin):
		t.Fatalf("it did not end within %s; it said:\n%s", startWithin, p.said())
	}
	return p.cmd.ProcessState.ExitCode()
}

var serves = regexp.MustCompile(`the gateway serves" address=(\S+)`)

// address waits until a gateway says where it serves.
func (p *process) address(t *testing.T) string {
	t.Helper()
	for deadline := time.Now().Add(startWithin); ; time.Sleep(5 * time.Millisecond) {
		if m := serves.FindStringSubmatch(p.said()); m != nil {
			return "http://" + m[1]
		}
		select {
		case <-p.done:
			t.Fatalf("it ended with code %d", p.cmd.ProcessState.ExitCode())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("it does not serve")
		}
	}
}

// cluster is the product in processes: one with the log, the projector and the auditor, and gateways that have joined it over TCP.
type cluster struct {
	provider *provider.Server // of the models at {{upstream}}, by the test's script
	slow     *provider.Server // of those at {{slow}}: a word each 20 ms
	keeper   *process
	gateways []*process
	urls     []string
	log      *journal.Log
}

// newCluster starts a cluster and waits until every gateway admits.
func newCluster(t *testing.T, gateways int, script string, settings stack.Settings) *cluster {
	t.Helper()
	c := &cluster{}
	upstreams := map[string]string{}
	c.provider, upstreams["upstream"] = serveUpstream(t, script)
	c.slow, upstreams["slow"] = serveUpstream(t, "tokens=100000;gap=20ms")
	dir := t.TempDir()
	gate, secret, err := access.NewCredentials("gw", access.Gateway)
	if err != nil {
		t.Fatal(err)
	}
	look, key, err := access.NewCredentials("test", access.Monitor)
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(access.Credentials{Identities: []access.Credential{gate, look}})
	if err != nil {
		t.Fatal(err)
	}
	stack.WriteFile(t, filepath.Join(dir, "credentials.yaml"), string(text))
	if err := access.WriteSecret(filepath.Join(dir, "secret.yaml"), secret); err != nil {
		t.Fatal(err)
	}
	port := freeport.Address(t)
	head := fmt.Sprintf("data_dir: %s\nlog: {listen: %q, credentials: %s}\n", filepath.Join(dir, "data"), port, filepath.Join(dir, "credentials.yaml"))
	c.keeper = start(t, nil, "serve", "-c", settings.Write(t, t.TempDir(), head, upstreams), "--roles", "broker,projector,auditor")
	c.join(t, "nats://"+port, key)
	head = fmt.Sprintf("listen: 127.0.0.1:0\nlog: {url: \"nats://%s\", credentials: %s}\n", port, filepath.Join(dir, "secret.yaml"))
	for range gateways {
		data := t.TempDir()
		c.gateways = append(c.gateways, start(t, nil, "serve", "-c", settings.Write(t, data, head+"data_dir: "+data+"\n", upstreams), "--roles", "gateway"))
	}
	for _, g := range c.gateways {
		url := g.address(t)
		c.urls = append(c.urls, url)
		stack.Healthy(t, url)
	}
	return c
}

// serveUpstream runs a scripted upstream, and gives its base URL.
func serveUpstream(t *testing.T, script string) (p *provider.Server, url string) {
	t.Helper()
	p, err := provider.New(provider.Config{Script: script, Calls: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.Run(ctx, l)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return p, "http://" + l.Addr().String()
}

// join opens the log as one who may only read it.
func (c *cluster) join(t *testing.T, url string, key access.Secret) {
	t.Helper()
	name, err := access.NewName(key.Name)
	if err != nil {
		t.Fatal(err)
	}
	options := append(journal.Options(name), key.Options(access.Identity{Name: name, Roles: []access.Role{access.Monitor}})...)
	stack.Eventually(t, "the log can be joined", func() bool {
		nc, err := nats.Connect(url, options...)
		if err != nil {
			return false
		}
		if c.log, err = journal.Open(t.Context(), nc, journal.Config{}); err != nil {
			nc.Close()
			return false
		}
		t.Cleanup(nc.Close)
		return true
	})
}

// story reads the log.
func (c *cluster) story(t *testing.T) *stack.Story {
	t.Helper()
	return stack.Read(t, c.log)
}
