package auditor

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/embedded"
	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/projections/postgres/audit"
	"github.com/weirhq/weir/test/audittest"
	"github.com/weirhq/weir/test/postgrestest"
)

// patience is how long a test waits for what must happen.
const patience = time.Minute

// node is a broker with an empty log.
type node struct {
	t      testing.TB
	broker *embedded.Broker
	nc     *nats.Conn
	js     jetstream.JetStream
	log    *journal.Log
	ids    atomic.Int64

	url  string        // of the database, if that keeps the records
	pool *pgxpool.Pool // nil: the bucket keeps them
}

// onEach runs a test with each store of records.
func onEach(t *testing.T, test func(*testing.T, *node)) {
	t.Run("kv", func(t *testing.T) { test(t, newNode(t)) })
	t.Run("postgres", func(t *testing.T) { test(t, newPostgres(t)) })
}

// newPostgres is a node whose records are kept in a database.
func newPostgres(t testing.TB) *node {
	t.Helper()
	n := newNode(t)
	n.url, n.pool = audittest.Database(t)
	return n
}

// store gives what an auditor writes to; nil: its own.
func (n *node) store(name string) Store {
	if n.pool == nil {
		return nil
	}
	s := audit.New(audit.Config{URL: n.url, Pool: n.pool, Writer: name, Retention: 1000 * 24 * time.Hour, Warn: func(doing string, err error) { n.t.Log(doing, err) }})
	return s
}

// reader is what answers records.
type reader interface {
	Generation(ctx context.Context, org events.Org, id events.RequestID) (json.RawMessage, bool, error)
	List(ctx context.Context, f *generation.Filter) ([]generation.Summary, error)
}

func (n *node) reader() reader {
	if n.pool == nil {
		return NewReader(n.nc)
	}
	return audit.NewReader(n.pool)
}

func newNode(t testing.TB) *node {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	broker, err := embedded.Start(ctx, embedded.Config{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Shutdown)
	n := &node{t: t, broker: broker}
	n.nc = n.connect(access.System)
	if n.js, err = jetstream.New(n.nc); err != nil {
		t.Fatal(err)
	}
	n.open()
	return n
}

func (n *node) open() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	if n.log, err = journal.Open(ctx, n.nc, journal.Config{Create: true}); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) connect(roles ...access.Role) *nats.Conn {
	n.t.Helper()
	name, err := access.NewName("test")
	if err != nil {
		n.t.Fatal(err)
	}
	nc, err := n.broker.Connect(access.Identity{Name: name, Roles: roles}, journal.Options(name)...)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(nc.Close)
	return nc
}

// state appends facts to the log, each under an id of its own, and gives the sequence of the last.
func (n *node) state(facts ...events.Data) (seq uint64) {
	n.t.Helper()
	return n.stateOf("", facts...)
}

// stateOf appends facts of an org; "": of their own.
func (n *node) stateOf(org events.Org, facts ...events.Data) (seq uint64) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, d := range facts {
		gateway := events.Gateway("")
		if d.Kind().FromGateway() {
			gateway = eventstest.Gateway
		}
		ev := eventstest.Event(fmt.Sprint("e", n.ids.Add(1)), d)
		if org != "" {
			ev.Org = org
		}
		m, err := journal.Encode(ev, gateway)
		if err != nil {
			n.t.Fatal(err)
		}
		ack, err := n.js.PublishMsg(ctx, m)
		if err != nil {
			n.t.Fatal(err)
		}
		seq = ack.Sequence
	}
	return seq
}

// admit appends a reserve and the verdict that admits it.
func (n *node) admit(d *events.Reserve) {
	n.t.Helper()
	seq := n.state(d)
	n.state(&events.Verdicts{FromSeq: seq, ToSeq: seq, Rules: 1, Verdicts: []events.Verdict{eventstest.Admitted(d, seq, time.Now().UnixNano())}})
}

// running is an auditor that runs.
type running struct {
	*Auditor
	stop func()
}

// run runs an auditor until stop, or the test's end. One that is alone writes when it returns.
func (n *node) run(change func(*Config)) *running {
	n.t.Helper()
	r := n.begin(change)
	if r.cfg.Alone {
		n.active(r)
	}
	return r
}

// begin runs an auditor until stop, or the test's end.
func (n *node) begin(change func(*Config)) *running {
	n.t.Helper()
	cfg := Config{Conn: n.nc, Log: n.log, Name: "auditor-test", Alone: true, MaxBytes: 64 << 20, Logger: slog.New(slog.NewTextHandler(testLog{n.t}, nil))}
	if change != nil {
		change(&cfg)
	}
	if cfg.Store == nil {
		if s := n.store(cfg.Name); s != nil {
			cfg.Store = s
		}
	}
	a, err := New(cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stopped := false
	r := &running{a, func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			n.t.Errorf("the auditor ended with %v", err)
		}
	}}
	n.t.Cleanup(r.stop)
	return r
}

func (n *node) active(r *running) {
	n.t.Helper()
	n.until(func() bool { return r.Status().Active }, func() string { return "the auditor never began to write" })
}

type testLog struct{ t testing.TB }

func (l testLog) Write(text []byte) (int, error) { l.t.Logf("%s", text); return len(text), nil }

// record reads a request's record as its own org's gateway would; nil if there is none.
func (n *node) record(org events.Org, id events.RequestID) *generation.Record {
	n.t.Helper()
	text, found, err := n.reader().Generation(context.Background(), org, id)
	if err != nil {
		n.t.Fatal(err)
	}
	if !found {
		return nil
	}
	rec := &generation.Record{}
	if err := json.Unmarshal(text, rec); err != nil {
		n.t.Fatal(err)
	}
	return rec
}

// await waits until a request's record is as it should be.
func (n *node) await(id events.RequestID, what string, is func(*generation.Record) bool) *generation.Record {
	n.t.Helper()
	var rec *generation.Record
	n.until(func() bool {
		rec = n.record(eventstest.Org, id)
		return rec != nil && is(rec)
	}, func() string {
		text, _ := json.MarshalIndent(rec, "", " ") // a record
		return fmt.Sprintf("request %s never was %s:\n%s", id, what, text)
	})
	return rec
}

func (n *node) until(is func() bool, otherwise func() string) {
	n.t.Helper()
	for end := time.Now().Add(patience); !is(); {
		if time.Now().After(end) {
			n.t.Fatal(otherwise())
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// stored waits until the auditor's position is at least seq.
func (n *node) stored(a *running, seq uint64) {
	n.t.Helper()
	n.until(func() bool { return a.Status().Position >= seq }, func() string { return fmt.Sprintf("position %d was never reached: %+v", seq, a.Status()) })
}

// moveTo sets the position that the records have.
func (n *node) moveTo(to generation.Place) {
	n.t.Helper()
	s := n.store("test")
	if s == nil {
		kept, err := newKV(Config{Conn: n.nc, Name: "test"}.withDefaults(), func(doing string, err error) { n.t.Error(doing, err) })
		if err != nil {
			n.t.Fatal(err)
		}
		s = kept
	} else if _, err := s.Open(context.Background()); err != nil {
		n.t.Fatal(err)
	}
	if err := s.Write(context.Background(), nil, nil, to); err != nil {
		n.t.Fatal(err)
	}
	if c, ok := s.(interface{ Close() }); ok {
		c.Close()
	}
}

// forget drops what is kept of requests.
func (n *node) forget() {
	n.t.Helper()
	ctx := context.Background()
	_ = n.js.DeleteStream(ctx, generations) // there is none at first
	if n.pool == nil {
		return
	}
	if _, err := n.pool.Exec(ctx, "UPDATE audit_schemas SET state = 'replaced'"); err != nil {
		n.t.Fatal(err)
	}
	if _, err := audit.Drop(ctx, n.pool, audit.Replaced); err != nil {
		n.t.Fatal(err)
	}
}

func ended(rec *generation.Record) bool {
	return rec.State == generation.Ended && len(rec.Attempts) > 0 && rec.Attempts[0].Verdict != ""
}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(postgrestest.Exit))
}
