package nats

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/access/accesstest"
	"github.com/weirhq/weir/test/freeport"
)

var rewrite = flag.Bool("rewrite", false, "write accounts.conf anew")

func TestAccountsAreThoseOfAccess(t *testing.T) {
	want := access.AccountsConfig()
	if *rewrite {
		if err := os.WriteFile("accounts.conf", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("accounts.conf")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("accounts.conf is not what events/journal/access makes; run this test with -rewrite and read the difference")
	}
}

// node is where one server of the cluster is reached.
type node struct{ name, client, route string }

// start runs a server from weir.conf, with addresses and directory of its own.
func start(t *testing.T, n node) *server.Server {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile("weir.conf")
	if err != nil {
		t.Fatal(err)
	}
	conf := string(text)
	for was, is := range map[string]string{
		"listen: 0.0.0.0:4222":          fmt.Sprintf("listen: %q", n.client),
		"listen: 0.0.0.0:6222":          fmt.Sprintf("listen: %q", n.route),
		"http: 127.0.0.1:8222":          `http: "127.0.0.1:-1"`,
		"store_dir: /var/lib/weir/nats": fmt.Sprintf("store_dir: %q", filepath.Join(dir, "nats")),
		"max_file_store: 100GB":         "max_file_store: 1GB",
		"max_memory_store: 1GB":         "max_memory_store: 64MB",
	} {
		if strings.Count(conf, was) != 1 {
			t.Fatalf("weir.conf: %q is there %d times, want once", was, strings.Count(conf, was))
		}
		conf = strings.Replace(conf, was, is, 1)
	}
	accounts, err := os.ReadFile("accounts.conf")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"weir.conf": conf, "accounts.conf": string(accounts)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("WEIR_NATS_NAME", n.name)
	opts, err := server.ProcessConfigFile(filepath.Join(dir, "weir.conf"))
	if err != nil {
		t.Fatal(err)
	}
	opts.NoSigs, opts.NoLog = true, true
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return s
}

func TestClusterThroughTheCallout(t *testing.T) {
	keys, err := access.NewCalloutKeys()
	if err != nil {
		t.Fatal(err)
	}
	user, issuer, xkey, err := keys.Public()
	if err != nil {
		t.Fatal(err)
	}
	var nodes [3]node
	for k := range nodes {
		nodes[k] = node{name: fmt.Sprintf("nats-%d", k+1), client: freeport.Address(t), route: freeport.Address(t)}
		peer := url.URL{Scheme: "nats", User: url.UserPassword("weir", "p4ssword"), Host: nodes[k].route}
		t.Setenv(fmt.Sprintf("WEIR_NATS_PEER_%d", k+1), peer.String())
	}
	t.Setenv("WEIR_NATS_PASSWORD", "p4ssword")
	t.Setenv("WEIR_NATS_USER", user)
	t.Setenv("WEIR_NATS_ISSUER", issuer)
	t.Setenv("WEIR_NATS_XKEY", xkey)
	for _, n := range nodes {
		start(t, n)
	}

	credentials, secrets := accesstest.Credentials(t)
	// The callouts are at the first and third server, everybody else at the second.
	first := run(t, keys, credentials, "nats://"+nodes[0].client)
	run(t, keys, credentials, "nats://"+nodes[2].client)

	at := "nats://" + nodes[1].client
	admin, err := accesstest.Connect(at, first.Authenticator().Own(access.Identity{Name: "admin-abcdefgh", Roles: []access.Role{access.System}})...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	awaitLeader(t, admin)
	accesstest.Run(t, accesstest.Cluster{URL: at, Admin: admin, Secrets: secrets})
}

// run runs a callout until the test ends.
func run(t *testing.T, keys access.CalloutKeys, credentials access.Credentials, at string) *access.Callout {
	t.Helper()
	deadline := time.Now().Add(accesstest.Patience)
	c, err := access.NewCallout(access.CalloutConfig{URL: at, Keys: keys, Credentials: credentials})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("callout: %v", err)
		}
	})
	select {
	case <-c.Ready():
	case err := <-done:
		done <- nil
		t.Fatalf("callout at %s: %v", at, err)
	case <-time.After(time.Until(deadline)):
		t.Fatalf("callout at %s is not ready", at)
	}
	return c
}

// awaitLeader waits until the cluster takes streams.
func awaitLeader(t *testing.T, nc *nats.Conn) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*accesstest.Patience)
	defer cancel()
	for ctx.Err() == nil {
		once, done := context.WithTimeout(ctx, time.Second)
		_, err = js.AccountInfo(once)
		done()
		if err == nil {
			return
		}
	}
	t.Fatalf("the cluster has no leader: %v", errors.Join(ctx.Err(), err))
}

func TestNobodyJoinsWithoutACallout(t *testing.T) {
	keys, err := access.NewCalloutKeys()
	if err != nil {
		t.Fatal(err)
	}
	user, issuer, xkey, err := keys.Public()
	if err != nil {
		t.Fatal(err)
	}
	for k := range 3 {
		t.Setenv(fmt.Sprintf("WEIR_NATS_PEER_%d", k+1), "nats://weir:p4ssword@"+freeport.Address(t))
	}
	t.Setenv("WEIR_NATS_PASSWORD", "p4ssword")
	t.Setenv("WEIR_NATS_USER", user)
	t.Setenv("WEIR_NATS_ISSUER", issuer)
	t.Setenv("WEIR_NATS_XKEY", xkey)
	n := node{name: "nats-1", client: freeport.Address(t), route: freeport.Address(t)}
	start(t, n)
	if nc, err := nats.Connect("nats://"+n.client, nats.UserInfo("gw-one-abcdefgh", "x"), nats.Timeout(accesstest.Patience)); err == nil {
		nc.Close()
		t.Error("somebody joined")
	}

	// Whoever has the servers' addresses but not the issuer's seed cannot answer for them.
	other, err := access.NewCalloutKeys()
	if err != nil {
		t.Fatal(err)
	}
	other.User = keys.User
	c, err := access.NewCallout(access.CalloutConfig{URL: "nats://" + n.client, Keys: other})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), accesstest.Patience)
	defer stop()
	if err := c.Run(ctx); err == nil {
		t.Error("a callout with another issuer's seed opened the door")
	}
}
