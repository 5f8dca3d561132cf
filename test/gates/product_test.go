package gates

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/kv"
	"github.com/weirhq/weir/services/auditor"
	"github.com/weirhq/weir/services/config"
	"github.com/weirhq/weir/services/gateway"
	"github.com/weirhq/weir/services/provider"
	"github.com/weirhq/weir/test/e2e/stack"
)

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// serve runs a provider until the test ends, and gives its base URL.
func serve(t *testing.T, p *provider.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx, l) }()
	t.Cleanup(func() { stop(); <-done })
	return "http://" + l.Addr().String()
}

// measured is one more gateway of a stack: it joins as one of another process does, and has /metrics.
type measured struct {
	*stack.Stack
	url string
}

func newMeasured(t *testing.T, c stack.Config) *measured {
	t.Helper()
	m := &measured{Stack: stack.New(t, c)}
	name, err := access.NewName("gw")
	check(t, err)
	conn, err := m.Broker.Connect(access.Identity{Name: name, Roles: []access.Role{access.System}}, journal.Options(name)...)
	check(t, err)
	ctx, stop := context.WithCancel(context.Background())
	log, err := journal.Open(ctx, conn, journal.Config{})
	check(t, err)
	ratios := auditor.NewRatios(conn)
	file := c.Settings.Write(t, t.TempDir(), "listen: 127.0.0.1:0\n", nil)
	cfg, _, err := config.Load(file, func(name string) string { return c.Env[name] })
	check(t, err)
	registry := prometheus.NewRegistry()
	g, err := gateway.New(ctx, gateway.Config{Config: cfg, Name: events.Gateway(name), Log: log, Conn: conn, View: kv.NewView(time.Now),
		Generations: auditor.NewReader(conn), Ratio: ratios.Ratio, Registry: registry,
		Logger: stack.Quiet(), Answer: stack.AnswerWithin, Forward: []string{provider.ScriptHeader}})
	check(t, err)
	g.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	m.url = "http://" + g.Addr().String()
	var running sync.WaitGroup
	running.Go(func() { _ = ratios.Run(ctx) })
	running.Go(func() { _ = g.Run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
		conn.Close()
	})
	stack.Healthy(t, m.url)
	return m
}

// chat sends a chat and gives its status.
func (m *measured) chat(t *testing.T, key, script, body string) *stack.Answer {
	t.Helper()
	return stack.Do(t, stack.Request{URL: m.url + "/v1/chat/completions", Key: key, Script: script, Body: body})
}

// series are the lines of /metrics: "name{label="value",…}" to value.
type series map[string]float64

func (m *measured) scrape(t *testing.T) series {
	t.Helper()
	a := stack.Do(t, stack.Request{URL: m.url + "/metrics"})
	if a.Status != http.StatusOK {
		t.Fatalf("/metrics: %d", a.Status)
	}
	all := series{}
	lines := bufio.NewScanner(bytes.NewReader(a.Body))
	for lines.Scan() {
		name, value, found := strings.Cut(lines.Text(), "} ")
		if name += "}"; !found {
			name, value, found = strings.Cut(lines.Text(), " ")
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil && found && !strings.HasPrefix(name, "#") {
			all[name] = v
		}
	}
	return all
}

// of gives the series of one name.
func (s series) of(name string) (out series) {
	out = series{}
	for k, v := range s {
		if strings.HasPrefix(k, name+"{") || k == name {
			out[strings.TrimPrefix(k, name)] = v
		}
	}
	return out
}
