package ledger

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/embedded"
	"github.com/weirhq/weir/gateway/authority/store"
	"github.com/weirhq/weir/projections/postgres"
	"github.com/weirhq/weir/schemas/sql"
	"github.com/weirhq/weir/test/postgrestest"
)

// house is a broker with a log, whose directory tests take away, and a ledger's directory beside it.
type house struct {
	t      *testing.T
	dir    string
	broker *embedded.Broker
	conn   *nats.Conn
	log    *journal.Log
	pool   *pgxpool.Pool // where the shared mark is kept; nil: in the bucket
}

func TestMain(m *testing.M) { postgrestest.Main(m) }

// both runs a test with the shared mark in the bucket, and in a database.
func both(t *testing.T, test func(t *testing.T, newHouse func(*testing.T) *house)) {
	t.Run("kv", func(t *testing.T) { test(t, newHouse) })
	t.Run("postgres", func(t *testing.T) { test(t, newDatabaseHouse) })
}

func newDatabaseHouse(t *testing.T) *house {
	h := newHouse(t)
	url := postgrestest.URL(t)
	m, err := postgres.Migrate(url, sql.Migrations)
	h.must(err)
	_, err = m.Up(h.ctx())
	h.must(err)
	h.must(m.Close())
	h.pool, err = postgres.Open(url, "test")
	h.must(err)
	t.Cleanup(h.pool.Close)
	return h
}

// shared is where the mark is kept.
func (h *house) shared() Shared {
	if h.pool != nil {
		return Postgres{h.pool}
	}
	s, err := NewKV(h.conn)
	h.must(err)
	return s
}

// look does at once what Run does side by side.
func (l *Ledger) look(ctx context.Context) error {
	return errors.Join(l.reread(ctx), l.compare(ctx), l.tell(ctx))
}

func newHouse(t *testing.T) *house {
	h := &house{t: t, dir: t.TempDir()}
	h.open()
	t.Cleanup(h.close)
	return h
}

func (h *house) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	h.t.Cleanup(cancel)
	return ctx
}

func (h *house) open() {
	h.t.Helper()
	var err error
	h.broker, err = embedded.Start(h.ctx(), embedded.Config{DataDir: h.dir, SyncAlways: true})
	h.must(err)
	h.conn, err = h.broker.Connect(access.Identity{Name: "weir-12345678", Roles: []access.Role{access.System}}, journal.Options("test")...)
	h.must(err)
	h.log, err = journal.Open(h.ctx(), h.conn, journal.Config{Create: true})
	h.must(err)
	_, err = store.OpenKV(h.ctx(), h.conn, store.KVConfig{Create: true})
	h.must(err)
}

func (h *house) close() {
	if h.broker != nil {
		h.conn.Close()
		h.broker.Shutdown()
		h.broker = nil
	}
}

func (h *house) publish(n int, org string) {
	h.t.Helper()
	for i := range n {
		ev := events.Event{ID: org + "/" + time.Now().Format(time.RFC3339Nano), Org: events.Org(org), Data: &events.Fence{Org: events.Org(org), Version: int64(i + 1)}}
		_, err := h.log.Publish(h.ctx(), ev)
		h.must(err)
	}
}

func (h *house) ledger() *Ledger {
	h.t.Helper()
	l, err := Open(h.ctx(), Config{Dir: filepath.Join(h.dir, "ledger"), Log: h.log, Conn: h.conn, Shared: h.shared(), Reads: true, Writes: true, Now: time.Now, Logger: slog.New(slog.DiscardHandler)})
	h.must(err)
	return l
}

// read makes the log's end the ledger's mark, as reading it would.
func (h *house) read(l *Ledger) {
	h.t.Helper()
	var last events.Record
	h.must(h.log.Read(h.ctx(), 0, 0, func(r events.Record) error { last = r; return nil }))
	l.Note(last.Seq, "", Tail(&last))
	h.must(l.look(h.ctx()))
}

func (h *house) wants(l *Ledger, why string) {
	h.t.Helper()
	got := l.Why()
	if why == "" && (got != "" || !l.Trusted()) || why != "" && (!strings.Contains(got, why) || l.Trusted()) {
		h.t.Fatalf("why: %q, trusted: %t; want %q", got, l.Trusted(), why)
	}
}

func TestTheSameLogIsTheRightOne(t *testing.T) { both(t, theSameLogIsTheRightOne) }

func theSameLogIsTheRightOne(t *testing.T, newHouse func(*testing.T) *house) {
	h := newHouse(t)
	h.publish(3, "acme")
	l := h.ledger()
	h.wants(l, "")
	h.read(l)
	first := l.Mark()
	if first.Seq != 3 || first.ID == "" || first.Tail == "" {
		t.Fatalf("%+v", first)
	}
	h.close()
	h.open()
	h.publish(1, "acme")
	again := h.ledger()
	h.wants(again, "")
	if m := again.Mark(); m.ID != first.ID || m.Seq != 3 {
		t.Fatalf("%+v, want the mark of before: %+v", m, first)
	}
}

// The database outlives the machine: where all of the disk is lost, or an old copy of all of it is put back, its mark alone stops admission.
func TestTheDatabaseOutlivesTheDisk(t *testing.T) {
	h := newDatabaseHouse(t)
	h.publish(2, "acme")
	h.read(h.ledger())
	h.close()
	backup := t.TempDir()
	h.must(os.CopyFS(backup, os.DirFS(h.dir)))
	h.open()
	h.publish(5, "acme")
	h.read(h.ledger())
	h.close()
	h.must(os.RemoveAll(h.dir))
	h.must(os.CopyFS(h.dir, os.DirFS(backup)))
	h.open()
	h.wants(h.ledger(), "behind")
	h.close()
	h.must(os.RemoveAll(h.dir))
	h.open()
	h.wants(h.ledger(), "replaced")
}

// A mark that is older than what is kept does not take its place.
func TestTheNewestMarkStays(t *testing.T) { both(t, theNewestMarkStays) }

func theNewestMarkStays(t *testing.T, newHouse func(*testing.T) *house) {
	h := newHouse(t)
	word := time.Now()
	for _, c := range []struct {
		m    Mark
		kept uint64
	}{
		{Mark{Seq: 7}, 7}, {Mark{Seq: 6}, 7}, {Mark{Seq: 7, Gateways: 2}, 7}, {Mark{Seq: 3, Recovered: word}, 3}, {Mark{Seq: 8}, 3}, {Mark{Seq: 4, Recovered: word}, 4},
	} {
		h.must(h.shared().Keep(h.ctx(), c.m))
		m, known, err := h.shared().Mark(h.ctx())
		if err != nil || !known || m.Seq != c.kept {
			t.Fatalf("after %+v: %+v, %t, %v", c.m, m, known, err)
		}
	}
}

// A process that does not know how many gateways serve, as one that has just started, leaves what is known.
func TestACountThatIsNotKnownChangesNothing(t *testing.T) { both(t, aCountThatIsNotKnown) }

func aCountThatIsNotKnown(t *testing.T, newHouse func(*testing.T) *house) {
	h := newHouse(t)
	h.publish(1, "acme")
	for _, step := range []struct{ counted, want int64 }{{0, 1}, {2, 2}, {0, 2}, {3, 3}} {
		l := h.ledger()
		l.c.Gateways = func() int64 { return step.counted }
		h.must(l.look(h.ctx()))
		other := h.ledger()
		h.must(other.reread(h.ctx()))
		if got := other.Gateways(); got != step.want {
			t.Errorf("after one counted %d, another process knows of %d gateways, want %d", step.counted, got, step.want)
		}
	}
}

// Whatever happens to the log while it is not looked at, it is noticed, and stays so over restarts.
func TestAnotherLogIsNot(t *testing.T) { both(t, anotherLog) }

func anotherLog(t *testing.T, newHouse func(*testing.T) *house) {
	for name, c := range map[string]struct {
		do  func(h *house)
		why string
	}{
		"emptied": {func(h *house) { h.must(os.RemoveAll(filepath.Join(h.dir, "broker"))) }, "replaced"},
		"emptied, and the mark of the disk lost": {func(h *house) {
			// The shared mark is then all there is: it must have survived.
			h.must(os.RemoveAll(filepath.Join(h.dir, "ledger")))
			h.must(os.RemoveAll(filepath.Join(h.dir, "broker/jetstream/WEIR/streams/ACCOUNTING")))
		}, "replaced"},
		"restored": {func(h *house) {
			h.must(os.RemoveAll(filepath.Join(h.dir, "broker")))
			h.must(os.CopyFS(filepath.Join(h.dir, "broker"), os.DirFS(filepath.Join(h.dir, "backup"))))
		}, "behind"},
		"restored, and written to until it is as long": {func(h *house) {
			h.must(os.RemoveAll(filepath.Join(h.dir, "broker")))
			h.must(os.CopyFS(filepath.Join(h.dir, "broker"), os.DirFS(filepath.Join(h.dir, "backup"))))
			h.open()
			h.publish(20, "other")
			h.close()
		}, "swapped"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			h.publish(2, "acme")
			h.close()
			h.must(os.CopyFS(filepath.Join(h.dir, "backup"), os.DirFS(filepath.Join(h.dir, "broker"))))
			h.open()
			h.publish(5, "acme")
			l := h.ledger()
			h.read(l)
			h.close()
			c.do(h)
			h.open()
			l = h.ledger()
			h.wants(l, c.why)
			h.must(l.look(h.ctx()))
			h.wants(l, c.why)
			h.close()
			h.open()
			h.publish(50, "acme")
			h.wants(h.ledger(), c.why)
		})
	}
}

func TestALogThatIsReplacedWhileItIsUsed(t *testing.T) { both(t, aLogThatIsReplacedWhileItIsUsed) }

func aLogThatIsReplacedWhileItIsUsed(t *testing.T, newHouse func(*testing.T) *house) {
	h := newHouse(t)
	h.publish(2, "acme")
	l := h.ledger()
	h.read(l)
	js, err := jetstream.New(h.conn)
	h.must(err)
	h.must(js.DeleteStream(h.ctx(), h.log.Stream()))
	h.must(l.look(h.ctx()))
	if l.Why() != "" {
		t.Fatal("a stream that is not there for a moment is not gone yet")
	}
	_, err = journal.Open(h.ctx(), h.conn, journal.Config{Create: true})
	h.must(err)
	h.must(l.look(h.ctx()))
	h.wants(l, "replaced")
}

func TestOnlyAnOperatorsWordLetsItGoOn(t *testing.T) { both(t, onlyAnOperatorsWordLetsItGoOn) }

func onlyAnOperatorsWordLetsItGoOn(t *testing.T, newHouse func(*testing.T) *house) {
	h := newHouse(t)
	h.publish(2, "acme")
	l := h.ledger()
	h.read(l)
	old := l.Mark()
	h.close()
	h.must(os.RemoveAll(filepath.Join(h.dir, "broker")))
	h.open()
	h.publish(9, "other")
	l = h.ledger()
	h.wants(l, "replaced")
	info, err := h.log.Info(h.ctx())
	h.must(err)
	called := 0
	l.OnRecovered(func() { called++ })
	for _, m := range []Mark{
		{ID: "x", Created: info.Created, Seq: 3, At: time.Now()},                                                    // no word
		{ID: "x", Created: info.Created.Add(time.Second), Seq: 3, Recovered: time.Now()},                            // of another log
		{ID: "x", Created: info.Created, Seq: 3, Recovered: old.At.Add(-time.Second)},                               // older than this mark
		{ID: "x", Created: info.Created, Seq: 3, Recovered: time.Now().Add(time.Minute), Reason: "it was replaced"}, // this
	} {
		h.must(h.shared().Keep(h.ctx(), m))
		l.readAt = time.Time{}
		h.must(l.look(h.ctx()))
		if good := m.Reason != ""; good != (l.Why() == "") || good != (called == 1) {
			t.Fatalf("after %+v: %q, %d calls", m, l.Why(), called)
		}
	}
	h.close()
	h.open()
	h.wants(h.ledger(), "")
}

func TestAMarkThatCannotBeReadIsNotTakenForNone(t *testing.T) {
	h := newHouse(t)
	h.publish(2, "acme")
	h.read(h.ledger())
	path := filepath.Join(h.dir, "ledger", markFile)
	b, err := os.ReadFile(path)
	h.must(err)
	b[len(b)/2] ^= 1
	h.must(os.WriteFile(path, b, 0o600))
	_, err = Open(h.ctx(), Config{Dir: filepath.Join(h.dir, "ledger"), Log: h.log, Conn: h.conn, Shared: h.shared(), Reads: true, Now: time.Now, Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "mark") {
		t.Fatalf("%v", err)
	}
}

func TestAMarkStaysBehindWhatMayNotBeOnTheDiskYet(t *testing.T) {
	h := newHouse(t)
	h.publish(2, "acme")
	l := h.ledger()
	now := time.Now()
	l.c.Behind, l.c.Now = 2*time.Second, func() time.Time { return now }
	l.Note(1, "", "a")
	now = now.Add(1500 * time.Millisecond)
	l.Note(2, "", "b")
	for _, want := range []uint64{0, 1, 1, 2} {
		h.must(l.save())
		if m, _, err := Read(l.c.Dir); err != nil || m.Seq != want {
			t.Fatalf("%+v, %v, want sequence %d", m, err, want)
		}
		now = now.Add(700 * time.Millisecond)
	}
}
