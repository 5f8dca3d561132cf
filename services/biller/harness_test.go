package biller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/embedded"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/usage"
	"github.com/weirhq/weir/test/postgrestest"
)

// patience is how long a test waits for what must happen.
const patience = 60 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.Cleanup(postgrestest.Exit)) }

// node is a broker with a log.
type node struct {
	t      testing.TB
	broker *embedded.Broker
	nc     *nats.Conn
	js     jetstream.JetStream
	log    *journal.Log
	ids    int
	secret string // of who may join by TCP, if anybody
}

func newNode(t testing.TB) *node { t.Helper(); return newNodeWith(t, embedded.Config{}) }

func newNodeWith(t testing.TB, cfg embedded.Config) *node {
	t.Helper()
	cfg.DataDir = t.TempDir()
	broker, err := embedded.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Shutdown)
	n := &node{t: t, broker: broker}
	n.nc = n.connect(access.System)
	if n.js, err = jetstream.New(n.nc, jetstream.WithPublishAsyncMaxPending(1024)); err != nil {
		t.Fatal(err)
	}
	n.open()
	if _, err := n.js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: access.BucketLeases}); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) open() {
	n.t.Helper()
	var err error
	if n.log, err = journal.Open(n.t.Context(), n.nc, journal.Config{Create: true}); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) connect(role access.Role) *nats.Conn {
	n.t.Helper()
	name, err := access.NewName("test")
	if err != nil {
		n.t.Fatal(err)
	}
	nc, err := n.broker.Connect(access.Identity{Name: name, Roles: []access.Role{role}}, journal.Options(name)...)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(nc.Close)
	return nc
}

// state appends facts to the log.
func (n *node) state(facts ...events.Data) {
	n.t.Helper()
	futures := make([]jetstream.PubAckFuture, 0, len(facts))
	for _, d := range facts {
		gateway := events.Gateway("")
		if d.Kind().FromGateway() {
			gateway = eventstest.Gateway
		}
		n.ids++
		m, err := journal.Encode(eventstest.Event(fmt.Sprint("e", n.ids), d), gateway)
		if err != nil {
			n.t.Fatal(err)
		}
		future, err := n.js.PublishMsgAsync(m, jetstream.WithStallWait(patience))
		if err != nil {
			n.t.Fatal(err)
		}
		futures = append(futures, future)
	}
	deadline := time.After(patience)
	for _, future := range futures {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			n.t.Fatal(err)
		case <-deadline:
			n.t.Fatal("facts were not acknowledged")
		}
	}
}

var id = eventstest.RequestID

// requests appends requests from one number to before another: admitted, and settled, each a different amount. Every seventh is of another
// org, every fifth is refused.
func (n *node) requests(from, to int) {
	n.t.Helper()
	var facts []events.Data
	for k := from; k < to; k++ {
		d := eventstest.Reserve(id(k))
		if k%5 == 0 {
			d = eventstest.Reserve(id(k), eventstest.Tokens("org/acme/tpm", 10, 1))
		}
		if k%7 == 0 {
			d.Org = "beta"
		}
		facts = append(facts, d, eventstest.Final(id(k), int64(100+k), int64(k), int64(1000*k)), eventstest.Release(id(k)))
	}
	n.state(facts...)
}

// lines are those that the log comes to.
func (n *node) lines() (lines []usage.Line) {
	n.t.Helper()
	u := usage.New(admission.New())
	err := n.log.Read(n.t.Context(), 0, 0, func(r events.Record) error {
		if request, attempt, missing := u.Missing(&r); missing {
			for i := len(lines) - 1; i >= 0; i-- {
				if lines[i].Request == request && lines[i].Attempt == attempt {
					u.Restore(lines[i])
					break
				}
			}
		}
		lines = append(lines, u.Apply(&r)...)
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return lines
}

// messages are what the stream holds.
func (n *node) messages() (all []*jetstream.RawStreamMsg) {
	n.t.Helper()
	s, err := n.js.Stream(n.t.Context(), Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		n.t.Fatal(err)
	}
	state := s.CachedInfo().State
	for seq := state.FirstSeq; seq <= state.LastSeq && state.Msgs > 0; seq++ {
		m, err := s.GetMsg(n.t.Context(), seq)
		if err != nil {
			n.t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// count is how many lines the stream holds.
func (n *node) count() int {
	s, err := n.js.Stream(n.t.Context(), Stream)
	if err != nil {
		return 0
	}
	return int(s.CachedInfo().State.Msgs)
}

// billed waits until the stream holds as many lines as the log comes to, and compares them.
func (n *node) billed() {
	n.t.Helper()
	want := n.lines()
	n.eventually(fmt.Sprintf("%d lines", len(want)), func() bool { return n.count() >= len(want) })
	var got []usage.Line
	ids := map[string]bool{}
	for _, m := range n.messages() {
		l, err := usage.Decode(m.Data)
		if err != nil {
			n.t.Fatal(err)
		}
		if got = append(got, l); ids[m.Header.Get("ce-id")] {
			n.t.Errorf("line %s stands twice", m.Header.Get("ce-id"))
		}
		ids[m.Header.Get("ce-id")] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.t.Errorf("lines (- by the log, + in the stream):\n%.4000s", diff)
	}
}

func (n *node) eventually(what string, holds func() bool) {
	n.t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("in %s: not %s", patience, what)
		}
	}
}

// running is a biller that runs.
type running struct {
	*Biller
	nc   *nats.Conn
	done <-chan struct{}
	stop func() error
}

// run runs a biller with a biller's permissions until stop, or the test's end.
func (n *node) run(dir string, change func(*Config)) *running {
	n.t.Helper()
	nc := n.connect(access.Biller)
	log, err := journal.Open(n.t.Context(), nc, journal.Config{})
	if err != nil {
		n.t.Fatal(err)
	}
	cfg := Config{Conn: nc, Log: log, Name: "biller-test", DataDir: dir, Alone: true, Logger: slog.New(slog.NewTextHandler(testLog{n.t}, nil))}
	if change != nil {
		change(&cfg)
	}
	b, err := New(cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); err = b.Run(ctx) }()
	stop := func() error { cancel(); <-done; return err }
	n.t.Cleanup(func() { _ = stop() })
	return &running{b, nc, done, stop}
}

// crash ends a biller as a crash does: nothing more is written, and of its state only what is given.
func (r *running) crash(t testing.TB, dir string, state []byte) {
	t.Helper()
	r.nc.Close()
	_ = r.stop() // the connection is closed
	path := filepath.Join(dir, folder, snapshotName)
	if state == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return
	}
	if err := os.WriteFile(path, state, 0o600); err != nil {
		t.Fatal(err)
	}
}

type testLog struct{ t testing.TB }

func (l testLog) Write(text []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(text)))
	return len(text), nil
}
