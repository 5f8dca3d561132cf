// Package stack runs the whole product for tests: a broker, a projector, an auditor, gateways and a scripted upstream, in one process. The first
// gateway shares the projector's process as in a single-process deployment; further ones join over TCP with a secret of their own.
package stack

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/access/accesstest"
	"github.com/weirhq/weir/events/journal/embedded"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/store"
	"github.com/weirhq/weir/projections/kv"
	"github.com/weirhq/weir/projections/projector"
	"github.com/weirhq/weir/services/auditor"
	"github.com/weirhq/weir/services/config"
	"github.com/weirhq/weir/services/follow"
	"github.com/weirhq/weir/services/gateway"
	"github.com/weirhq/weir/services/provider"
)

// readyWithin bounds how long a stack may take to start or to stop, on a machine that has much else to do.
const readyWithin = 2 * time.Minute

// AnswerWithin is how long a stack's gateways wait for a verdict: longer than the product's do, so that a machine that stands still for a while
// does not decide what a test sees.
const AnswerWithin = 20 * time.Second

// Config says what a stack is made of.
type Config struct {
	Settings
	Script   string            // of the upstream, for requests that bring none. Defaults to an answer at once
	Gateways int               // Defaults to 1
	Env      map[string]string // environment variables, for the configuration alone
	DrainFor time.Duration     // how long a stopping gateway lets streams go on. Defaults to the product's
	Answer   time.Duration     // how long a reserve waits for its verdict. Defaults to AnswerWithin
	Now      func() time.Time  // the projector's own clock. Defaults to time.Now

	// Dynamic is what a gateway, from 0 on, has of the authority made through the API, in mode dynamic. The first one manages it. Defaults
	// to the bucket itself.
	Dynamic func(gateway int, bucket *store.KV) gateway.Dynamic
}

// Stack is the product, running.
type Stack struct {
	Provider  *provider.Server // {{upstream}}, and under another name {{alias}}
	Other     *provider.Server // a second one; {{other}}
	Gateways  []*Gateway
	Log       *journal.Log
	Projector *projector.Projector
	Broker    *embedded.Broker

	auditor *auditor.Auditor
	config  Config
	dir     string
	urls    map[string]string // of the upstreams
	secret  access.Secret
	conn    *nats.Conn
	near    *kv.View        // of the gateway that shares the projector's process
	keep    context.Context // what gateways need lives until they have ended
	running sync.WaitGroup
}

// Gateway is one gateway of a stack.
type Gateway struct {
	*gateway.Gateway
	Name events.Gateway
	URL  string // http://host:port
	Dir  string // of its files

	stop context.CancelFunc
	done chan struct{}
	err  error
}

// Stop tells the gateway to stop, and returns at once.
func (g *Gateway) Stop() { g.stop() }

// Wait waits until it has stopped.
func (g *Gateway) Wait() error {
	<-g.done
	return g.err
}

// New starts a stack and waits until it admits requests. It stops with the test.
func New(tb testing.TB, c Config) *Stack {
	tb.Helper()
	s := &Stack{config: c, dir: tb.TempDir(), urls: map[string]string{}}
	keep, stop := context.WithCancel(context.Background())
	s.keep = keep
	tb.Cleanup(func() {
		s.StopGateways()
		stop()
		s.running.Wait()
		if s.conn != nil {
			s.conn.Close()
		}
		if s.Broker != nil {
			s.Broker.Shutdown()
		}
	})
	var err error
	s.Provider, err = s.upstream("upstream", c.Script)
	check(tb, err)
	s.urls["alias"] = strings.Replace(s.urls["upstream"], "127.0.0.1", "localhost", 1)
	s.Other, err = s.upstream("other", c.Script)
	check(tb, err)
	check(tb, s.log())
	for range max(c.Gateways, 1) {
		s.gateway(tb)
	}
	Eventually(tb, "projector and auditor have made their buckets and work", func() bool {
		ok, _ := s.Projector.Answering()
		return ok && s.Projector.Stats().Writer && s.auditor.Status().Active
	})
	for _, g := range s.Gateways {
		Healthy(tb, g.URL)
	}
	return s
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Quiet takes what a stack logs.
func Quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// The access key that upstreams know where Bedrock's paths are called.
const (
	AccessKeyID     = "AKIAIOSFODNN7EXAMPLE"
	SecretAccessKey = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
)

// upstream runs one scripted upstream under a name.
func (s *Stack) upstream(name, script string) (*provider.Server, error) {
	p, err := provider.New(provider.Config{Script: script, KeepBodies: true, AccessKeys: map[string]string{AccessKeyID: SecretAccessKey}})
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.urls[name] = "http://" + l.Addr().String()
	s.running.Go(func() { _ = p.Run(s.keep, l) })
	return p, nil
}

// log starts the broker and the projector.
func (s *Stack) log() error {
	var gate access.Credential
	var err error
	if gate, s.secret, err = access.NewCredentials("gw", access.Gateway); err != nil {
		return err
	}
	cfg := embedded.Config{DataDir: filepath.Join(s.dir, "log"), Log: Quiet()}
	if s.config.Gateways > 1 {
		cfg.Listen, cfg.Credentials = "127.0.0.1:0", access.Credentials{Identities: []access.Credential{gate}}
	}
	ctx, cancel := context.WithTimeout(s.keep, readyWithin)
	defer cancel()
	if s.Broker, err = embedded.Start(ctx, cfg); err != nil {
		return err
	}
	name, err := access.NewName("weir")
	if err != nil {
		return err
	}
	s.conn, err = s.Broker.Connect(access.Identity{Name: name, Roles: []access.Role{access.System}}, journal.Options(name)...)
	if err != nil {
		return err
	}
	if s.Log, err = journal.Open(ctx, s.conn, journal.Config{Create: true}); err != nil {
		return err
	}
	view := kv.NewView(time.Now)
	feed := journal.NewFeed(s.Log)
	s.near = view
	s.Projector, err = projector.New(projector.Config{Log: s.Log, Conn: s.conn, Name: name, DataDir: cfg.DataDir, View: view, Now: s.config.Now, Logger: Quiet(),
		Source: func(ctx context.Context, from journal.TapConfig) (projector.Source, error) {
			return feed.Lead(ctx, from), nil
		}})
	if err != nil {
		return err
	}
	s.auditor, err = auditor.New(auditor.Config{Conn: s.conn, Log: s.Log, Name: name, Alone: true, Logger: Quiet(),
		Source: func(ctx context.Context, from journal.TapConfig) (follow.Source, error) {
			return feed.Follow(ctx, from), nil
		}})
	if err != nil {
		return err
	}
	s.running.Go(func() { _ = s.Projector.Run(s.keep) })
	s.running.Go(func() { _ = s.Log.Answer(s.keep, access.SubjectFind) })
	s.running.Go(func() { _ = s.auditor.Run(s.keep) })
	return nil
}

// gateway starts one more gateway.
func (s *Stack) gateway(tb testing.TB) {
	tb.Helper()
	dir := tb.TempDir()
	cfg, _, err := config.Load(s.config.Write(tb, dir, "listen: 127.0.0.1:0\n", s.urls),
		func(name string) string { return s.config.Env[name] })
	check(tb, err)
	name, err := access.NewName("gw")
	check(tb, err)
	registry := prometheus.NewRegistry()
	c := gateway.Config{Config: cfg, Name: events.Gateway(name), Log: s.Log, Conn: s.conn, Projector: s.Projector, View: s.near,
		Ratio: s.auditor.Ratio, Registry: registry, Logger: Quiet(),
		DrainFor: s.config.DrainFor, Answer: cmp.Or(s.config.Answer, AnswerWithin), Forward: []string{provider.ScriptHeader}}
	closeConn := func() {}
	if len(s.Gateways) > 0 {
		c.Conn, err = accesstest.Connect(s.Broker.URL(), append(journal.Options(name), s.secret.Options(access.Identity{Name: name, Roles: []access.Role{access.Gateway}})...)...)
		check(tb, err)
		closeConn = c.Conn.Close
		c.Log, err = journal.Open(s.keep, c.Conn, journal.Config{})
		check(tb, err)
		c.Projector, c.View = nil, kv.NewView(time.Now)
	}
	if s.config.Mode == string(authority.ModeDynamic) {
		c.Dynamic, c.Manages = s.dynamic(tb, c.Conn), len(s.Gateways) == 0
	}
	c.Generations = auditor.NewReader(c.Conn)
	if len(s.Gateways) > 0 {
		ratios := auditor.NewRatios(c.Conn)
		c.Ratio = ratios.Ratio
		s.running.Go(func() { _ = ratios.Run(s.keep) })
	}
	g := &Gateway{Name: events.Gateway(name), Dir: dir, done: make(chan struct{})}
	g.Gateway, err = gateway.New(s.keep, c)
	check(tb, err)
	g.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	g.URL = "http://" + g.Addr().String()
	ctx, stop := context.WithCancel(s.keep)
	g.stop = stop
	go func() {
		defer close(g.done)
		g.err = g.Run(ctx)
		closeConn()
	}()
	s.Gateways = append(s.Gateways, g)
}

// dynamic opens what the next gateway has of the authority made through the API.
func (s *Stack) dynamic(tb testing.TB, conn *nats.Conn) gateway.Dynamic {
	tb.Helper()
	first := len(s.Gateways) == 0
	bucket, err := store.OpenKV(s.keep, conn, store.KVConfig{Create: first, Users: first})
	check(tb, err)
	if s.config.Dynamic != nil {
		return s.config.Dynamic(len(s.Gateways), bucket)
	}
	return bucket
}

// StopGateways stops every gateway and waits until what they owe is in the log.
func (s *Stack) StopGateways() {
	for _, g := range s.Gateways {
		g.Stop()
	}
	for _, g := range s.Gateways {
		_ = g.Wait()
	}
}

// Upstream is the base URL of a scripted upstream: upstream, alias or other.
func (s *Stack) Upstream(name string) string { return s.urls[name] }

// Listen calls f for each message that is sent on a subject, until stop is called.
func (s *Stack) Listen(subject string, f func()) (stop func(), err error) {
	sub, err := s.conn.Subscribe(subject, func(*nats.Msg) { f() })
	if err != nil {
		return nil, err
	}
	return func() { _ = sub.Unsubscribe() }, s.conn.Flush()
}

// URL is the first gateway's.
func (s *Stack) URL() string { return s.Gateways[0].URL }
