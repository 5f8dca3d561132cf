package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/services/config"
	"github.com/weirhq/weir/services/provider"
)

// answerWithin is how long a gateway of the tests waits for a verdict, on a machine that may have much else to do.
const answerWithin = 20 * time.Second

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// upstreamOf runs a model that answers in both wire formats until the test ends, and gives its base URL.
func upstreamOf(t *testing.T) string {
	t.Helper()
	return scriptedUpstream(t, "tokens=4")
}

func scriptedUpstream(t *testing.T, script string) string {
	t.Helper()
	p, err := provider.New(provider.Config{Script: script})
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx, l) }()
	t.Cleanup(func() { stop(); <-done })
	return "http://" + l.Addr().String()
}

// startNode runs a process with some roles on the text of a weir.yaml in a directory, until the test ends. env may be nil.
func startNode(t *testing.T, dir, yaml, roles string, env map[string]string) *node {
	t.Helper()
	file := filepath.Join(dir, "weir.yaml")
	must(t, os.WriteFile(file, []byte(yaml), 0o600))
	cfg, _, err := config.Load(file, func(name string) string { return env[name] })
	must(t, err)
	all, err := parseRoles(roles)
	must(t, err)
	n := &node{config: cfg, roles: all, answer: answerWithin, logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	ctx, stop := context.WithCancel(context.Background())
	if err := n.start(ctx); err != nil {
		stop()
		n.close()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- n.run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the process ended: %v", err)
		}
		n.close()
	})
	return n
}

// everything is a configuration in which every part of the product runs, with keys made through the API.
const everything = `listen: 127.0.0.1:0
operators: {listen: 127.0.0.1:0}
log: {listen: 127.0.0.1:0, credentials: joining.yaml}
models:
  - id: qwen
    price: {input: "1", output: "2"}
    local: {engine: vllm, replicas: ["UPSTREAM"]}
    providers: [{connection: house}]
connections: [{id: house, provider: openai, base_url: "UPSTREAM", api_key_env: HOUSE_KEY, pool: house}]
pools: [{id: house, provider: openai, rpm: 1000, tpm: 10000000, concurrency: 100}]
`

// adminKey is the operators' in these processes.
const adminKey = "sk-admin-of-the-test"

// startEverything runs one process with all roles, and a gateway that has joined it.
func startEverything(t *testing.T) (all, joined *node) {
	t.Helper()
	dir := t.TempDir()
	credential, secret, err := access.NewCredentials("gw", access.Gateway)
	must(t, err)
	joining, err := yaml.Marshal(access.Credentials{Identities: []access.Credential{credential}})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "joining.yaml"), joining, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "auth.yaml"), []byte("api: {mode: dynamic}\n"), 0o600))
	env := map[string]string{"HOUSE_KEY": "sk-house", "WEIR_ADMIN_KEYS": adminKey}
	text := strings.ReplaceAll(everything, "UPSTREAM", upstreamOf(t))
	all = startNode(t, dir, text, "", env)
	dir = t.TempDir()
	must(t, access.WriteSecret(filepath.Join(dir, "secret"), secret))
	joined = startNode(t, dir, "listen: 127.0.0.1:0\nlog: {url: \""+all.broker.URL()+"\", credentials: secret}\n", roleGateway, nil)
	return all, joined
}
