package projector_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/access/accesstest"
	"github.com/weirhq/weir/events/journal/embedded"
	"github.com/weirhq/weir/projections/projector"
)

// patience is how long what must happen is waited for.
const patience = time.Minute

const gateway = events.Gateway("gw-abcdefgh")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a broker with its log.
type world struct {
	t      testing.TB
	broker *embedded.Broker
	conn   *nats.Conn // may do everything
	log    *journal.Log
	sender *journal.Publisher
	secret access.Secret // of a gateway that joins over TCP
}

func newWorld(t testing.TB) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, secret, err := access.NewCredentials("far", access.Gateway)
	if err != nil {
		t.Fatal(err)
	}
	b, err := embedded.Start(ctx, embedded.Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0", Credentials: access.Credentials{Identities: []access.Credential{c}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	w := &world{t: t, broker: b, secret: secret}
	w.conn = w.connect("admin-abcdefgh", access.System)
	w.log = openLog(t, w.conn, true)
	w.sender = w.publisher(gateway)
	return w
}

func (w *world) connect(name string, roles ...access.Role) *nats.Conn {
	w.t.Helper()
	nc, err := w.broker.Connect(access.Identity{Name: name, Roles: roles}, journal.Options(name)...)
	if err != nil {
		w.t.Fatal(err)
	}
	return nc
}

// join connects over TCP, as a gateway in another account than the log's.
func (w *world) join(name string) *nats.Conn {
	w.t.Helper()
	id := access.Identity{Name: name, Roles: []access.Role{access.Gateway}}
	nc, err := accesstest.Connect(w.broker.URL(), append(w.secret.Options(id), journal.Options(name)...)...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(nc.Close)
	return nc
}

func openLog(t testing.TB, nc *nats.Conn, create bool) *journal.Log {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l, err := journal.Open(ctx, nc, journal.Config{Create: create})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// publisher runs the publisher of a gateway until the test ends.
func (w *world) publisher(g events.Gateway) *journal.Publisher {
	w.t.Helper()
	p, err := w.log.Publisher(context.Background(), journal.PublisherConfig{Gateway: g})
	if err != nil {
		w.t.Fatal(err)
	}
	run(w.t, p.Run)
	return p
}

// run runs something until the test ends, or stop is called, which waits for it.
func run(t testing.TB, f func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var err error
	go func() { defer close(done); err = f(ctx) }()
	stop = func() error { cancel(); <-done; return err }
	t.Cleanup(func() { _ = stop() })
	return stop
}

// running is a projector that runs.
type running struct {
	*projector.Projector
	stop func() error
	conn *nats.Conn
}

func (w *world) project(name string, change func(*projector.Config)) *running {
	w.t.Helper()
	nc := w.connect(name, access.Projector)
	cfg := projector.Config{Log: openLog(w.t, nc, false), Conn: nc, Name: name}
	if change != nil {
		change(&cfg)
	}
	p, err := projector.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return &running{p, run(w.t, p.Run), nc}
}

func newID() events.RequestID { return events.RequestID(uuid.Must(uuid.NewV7()).String()) }

// claim is a claim of one against a limit.
func claim(meter events.Meter, kind events.MeterKind, limit int64) events.Claim {
	return events.Claim{Meter: meter, Kind: kind, WindowMS: 60_000, Amount: 1, HasLimit: true, Limit: limit, Basis: events.BasisRequest}
}

func reserve(g events.Gateway, claims ...events.Claim) events.Event {
	id := newID()
	return events.Event{ID: "r/" + string(id), Org: "acme", Subject: string(id), Data: &events.Reserve{
		Request: id, Org: "acme", Key: "k1", Model: "m", Operation: "chat", Gateway: g, Epoch: 1, MaxMS: events.DefaultMaxMS, Claims: claims,
	}}
}

func release(g events.Gateway, id events.RequestID) events.Event {
	return events.Event{ID: "l/" + string(id), Org: "acme", Subject: string(id), Data: &events.Release{
		Request: id, Gateway: g, Outcome: events.Completed, Dispatched: events.DispatchedYes, Status: 200,
	}}
}

func id(ev events.Event) events.RequestID { return events.RequestID(ev.Subject) }

// submit hands an event over.
func submit(t testing.TB, p *journal.Publisher, ev events.Event) {
	t.Helper()
	if err := p.Submit(ev, nil); err != nil {
		t.Fatal(err)
	}
}

func flush(t testing.TB, p *journal.Publisher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}

// eventually waits until something holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in %s: not %s", patience, what)
		}
	}
}

// inbox collects verdicts by request.
type inbox struct {
	mu  sync.Mutex
	all []events.Verdict
}

func (b *inbox) take(vs []events.Verdict) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, vs...)
}

func (b *inbox) list() []events.Verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]events.Verdict(nil), b.all...)
}

func (b *inbox) of(t testing.TB, request events.RequestID) (v events.Verdict) {
	t.Helper()
	eventually(t, fmt.Sprintf("a verdict on %s", request), func() bool {
		for _, got := range b.list() {
			if got.Request == request {
				v = got
				return true
			}
		}
		return false
	})
	return v
}

// listen collects what a gateway is answered over the broker.
func listen(t testing.TB, nc *nats.Conn, g events.Gateway) *inbox {
	t.Helper()
	b := &inbox{}
	sub, err := nc.Subscribe(access.VerdictPrefix+string(g), func(m *nats.Msg) {
		vs, err := events.DecodeVerdicts(m.Data)
		if err != nil {
			t.Errorf("verdicts: %v", err)
		}
		b.take(vs)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	if err := nc.FlushTimeout(patience); err != nil {
		t.Fatal(err)
	}
	return b
}

func ready(t testing.TB, p *running) {
	t.Helper()
	eventually(t, "ready", func() bool { ok, _ := p.Ready(); return ok })
}

func files(t testing.TB, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "snapshots", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func corrupt(t testing.TB, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
