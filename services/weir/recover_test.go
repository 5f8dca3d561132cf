package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/services/config"
	"github.com/weirhq/weir/services/ledger"
	"github.com/weirhq/weir/test/audittest"
	"github.com/weirhq/weir/test/utcday"
)

// losing is a process with the log, and its data, which may be lost.
type losing struct {
	t        *testing.T
	dir      string
	database string // empty: none
	now      *node
	stop     func()
	stated   int
	ids      map[int]events.RequestID
}

func newLosing(t *testing.T, database bool) *losing {
	t.Helper()
	utcday.Whole(t) // budgets are held against each other
	l := &losing{t: t, dir: t.TempDir(), ids: map[int]events.RequestID{}}
	if database {
		l.database, _ = audittest.Database(t)
	}
	l.start()
	return l
}

func (l *losing) data(parts ...string) string {
	return filepath.Join(append([]string{l.dir, "data"}, parts...)...)
}

// config reads the process's configuration.
func (l *losing) config() *config.Config {
	l.t.Helper()
	file := filepath.Join(l.dir, "weir.yaml")
	must(l.t, os.WriteFile(file, fmt.Appendf(nil, "listen: 127.0.0.1:0\ndata_dir: data\ndatabase: %q\n", l.database), 0o600))
	cfg, _, err := config.Load(file, func(string) string { return "" })
	must(l.t, err)
	return cfg
}

// start runs the process.
func (l *losing) start() {
	l.t.Helper()
	n := &node{config: l.config(), roles: []string{roleBroker, roleProjector, roleAuditor}, logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	ctx, cancel := context.WithCancel(context.Background())
	if err := n.start(ctx); err != nil {
		cancel()
		n.close()
		l.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- n.run(ctx) }()
	l.now = n
	l.stop = func() {
		l.stop = func() {}
		cancel()
		if err := <-ended; err != nil {
			l.t.Errorf("the process ended: %v", err)
		}
		n.close()
	}
	l.t.Cleanup(func() { l.stop() })
}

// state appends facts of acme, a gateway's under its own subject.
func (l *losing) state(facts ...events.Data) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, d := range facts {
		l.stated++
		gateway := events.Gateway("")
		if d.Kind().FromGateway() {
			gateway = eventstest.Gateway
		}
		m, err := journal.Encode(eventstest.Event(fmt.Sprint("e", l.stated), d), gateway)
		if err == nil {
			_, err = l.now.conn.RequestMsgWithContext(ctx, m)
		}
		must(l.t, err)
	}
}

// audited waits until the audit tells of everything, and the ledger's mark too.
func (l *losing) audited() {
	l.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		last, decided, told := uint64(0), uint64(0), uint64(0) // reserve, reserve of which a pack has the verdict, and fact or pack
		must(l.t, l.now.log.Read(context.Background(), 0, 0, func(r events.Record) error {
			switch d := r.Data.(type) {
			case *events.Verdicts:
				decided = max(decided, d.ToSeq)
			case *events.Reserve:
				last = r.Seq
			case *events.Lease, *events.Tick:
				return nil
			}
			told = r.Seq
			return nil
		}))
		if decided >= last && l.now.auditor.Status().Position >= told {
			return
		}
		if time.Now().After(end) {
			l.t.Fatalf("the audit has not reached sequence %d: %+v", told, l.now.auditor.Status())
		}
	}
}

// fold folds the log as it is, before and after the facts that are to come.
func (l *losing) fold(more ...events.Data) *admission.Fold {
	l.t.Helper()
	f := admission.New()
	must(l.t, l.now.log.Read(context.Background(), 0, 0, func(r events.Record) error { f.Apply(&r); return nil }))
	for _, d := range more {
		f.Apply(&events.Record{Event: eventstest.Event("more", d), Seq: f.Seq() + 1, At: time.Now().UnixNano()})
	}
	return f
}

// recover recovers the log.
func (l *losing) recover(unknown bool) (said string, err error) {
	l.t.Helper()
	n := &node{config: l.config(), roles: []string{roleBroker}, logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	defer n.close()
	n.name, err = access.NewName("weir")
	must(l.t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must(l.t, n.openDatabase(ctx))
	must(l.t, n.connect(ctx))
	var out bytes.Buffer
	err = (&recovery{n: n, order: order{Windows: "empty", Reason: "a test"}, unknown: unknown, out: &out}).run(ctx)
	return out.String(), err
}

// recovered recovers the log and folds what it then holds, with what is to come.
func (l *losing) recovered(unknown bool, more ...events.Data) (*admission.Fold, string) {
	l.t.Helper()
	said, err := l.recover(unknown)
	if err != nil {
		l.t.Fatalf("%v\n%s", err, said)
	}
	l.start()
	defer l.stop()
	return l.fold(more...), said
}

func (l *losing) copy(from, to string) {
	l.t.Helper()
	must(l.t, os.RemoveAll(to))
	must(l.t, os.CopyFS(to, os.DirFS(from)))
}

// heldBy is what balances and running budgets hold.
func heldBy(f *admission.Fold) map[events.Meter]int64 {
	p := ledger.PastOf(f, time.Now().UnixNano())
	all := maps.Clone(p.Balances)
	for m, b := range p.Budgets {
		if b.Used != 0 {
			all[m] = b.Used
		}
	}
	for org, version := range p.Fences {
		all[events.Meter("fence of "+string(org))] = version
	}
	return all
}

// spending is a reserve of a request that may cost so much.
func spending(id events.RequestID, hold int64) *events.Reserve {
	d := eventstest.Reserve(id, eventstest.Slot("org/acme/concurrency", 1000))
	d.Fence = 9
	for _, scope := range []string{"org/acme", "workspace/w1", "key/key1"} {
		d.Claims = append(d.Claims,
			events.Claim{Meter: events.Meter(scope + "/spend-day"), Kind: events.Budget, Amount: hold, Limit: 1_000_000, HasLimit: true, Basis: events.BasisCost},
			events.Claim{Meter: events.Meter(scope + "/spend-month"), Kind: events.Budget, Period: events.Month, Amount: hold, Limit: 9_000_000, HasLimit: true, Basis: events.BasisCost})
	}
	d.Claims = append(d.Claims,
		events.Claim{Meter: "key/key1/daily", Kind: events.Budget, Life: events.LifeLocal, Amount: 500, Limit: 1_000_000, HasLimit: true, Basis: events.BasisTotal},
		eventstest.Hold("org/acme/balance", hold))
	return d
}

func spent(id events.RequestID, cost int64) *events.TrueUp {
	d := eventstest.Final(id, 100, 7, cost)
	d.Charges = []events.Charge{{Basis: events.BasisTotal, Amount: 107}, {Basis: events.BasisCost, Amount: cost}}
	return d
}

// lived is what happens before the loss: to requests 1 to 9 before the snapshot is taken that is to remain, and to 3 to 20 after it.
func (l *losing) lived(between func()) {
	l.state(&events.Credit{Org: "acme", AmountNano: 5_000_000, Reference: "first"}, &events.Fence{Org: "acme", Version: 3})
	for n := 1; n <= 9; n++ {
		l.state(spending(l.id(n), 10_000))
	}
	l.state(spent(l.id(1), 1_111), eventstest.Release(l.id(1)), spent(l.id(2), 12_222), eventstest.Release(l.id(2)))
	between()
	l.state(&events.Credit{Org: "acme", AmountNano: 70_007, Reference: "second"}, &events.Credit{Org: "acme", AmountNano: 5, Reference: "first"},
		&events.Fence{Org: "acme", Version: 7}, &events.Fence{Org: "beta", Version: 2},
		spent(l.id(3), 3_333), eventstest.Release(l.id(3)), eventstest.Release(l.id(4)), spent(l.id(4), 44_444))
	unsent := eventstest.Release(l.id(5))
	unsent.Dispatched, unsent.Outcome = events.DispatchedNo, events.Abandoned
	l.state(unsent)
	for n := 10; n <= 15; n++ {
		l.state(spending(l.id(n), int64(1_000*n)))
	}
	refused := spending(l.id(16), 900_000)
	refused.Claims[1].Amount, refused.Claims[1].HasLimit, refused.Claims[1].Limit = 999_999, true, 1
	l.state(refused, spent(l.id(10), 101), eventstest.Release(l.id(10)), spent(l.id(11), 99_999), eventstest.Release(l.id(11)),
		&events.Correction{Request: l.id(11), Revision: 1, Usage: events.Usage{InputTokens: 1}, CostNano: 9, Reason: "r"},
		&events.Credit{Org: "acme", AmountNano: 99_990, Reference: "correction/11"})
	l.audited()
}

// id is of the n-th request.
func (l *losing) id(n int) events.RequestID {
	if l.ids[n] == "" {
		l.ids[n] = events.RequestID(uuid.Must(uuid.NewV7()).String())
	}
	return l.ids[n]
}

// late is what comes of requests that ran when the log was lost.
func (l *losing) late() []events.Data {
	return []events.Data{spent(l.id(6), 6_006), eventstest.Release(l.id(6)), spent(l.id(12), 120_012), eventstest.Release(l.id(12))}
}

// since is what a gateway tells a log that was cut, or restored from the copy, of requests that ran: one that this log knows, one that it
// does not.
func (l *losing) since() []events.Data {
	lease := &events.Lease{Gateway: eventstest.Gateway, Epoch: 1, TTLMS: 10_000}
	return []events.Data{lease, spent(l.id(7), 70_077), eventstest.Release(l.id(7)), spent(l.id(13), 13_013), lease}
}

// unnoticed writes it to the log as it is now, which nobody else reads.
func (l *losing) unnoticed() {
	l.t.Helper()
	n := &node{config: l.config(), roles: []string{roleBroker}, logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	defer n.close()
	name, err := access.NewName("weir")
	must(l.t, err)
	n.name = name
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must(l.t, n.connect(ctx))
	was := l.now
	l.now = n
	l.state(l.since()...)
	l.now = was
}

// kept keeps copies of the snapshots and the broker's directory, from which the process goes on.
func (l *losing) kept() {
	l.audited()
	l.stop()
	l.copy(l.data("snapshots"), filepath.Join(l.dir, "snapshots"))
	l.copy(l.data("broker"), filepath.Join(l.dir, "broker"))
	l.start()
}

// However a log is lost, balances and running budgets are after its recovery what they were to the nano-dollar where a snapshot and the audit,
// or one of them, tell everything; also when requests ran, that ended later. Recovered again, nothing is doubled.
func TestARecoveryGivesBackWhatWasHeld(t *testing.T) {
	for _, c := range []struct {
		name     string
		database bool
		audit    bool // remains, and with it what is known of requests that ran
		lose     func(l *losing)
	}{
		{"deleted, an old snapshot and the audit remain", true, true, func(l *losing) {
			must(l.t, os.RemoveAll(l.data("broker")))
			l.copy(filepath.Join(l.dir, "snapshots"), l.data("snapshots"))
		}},
		{"deleted, the audit alone remains", true, true, func(l *losing) { must(l.t, os.RemoveAll(l.data())) }},
		{"restored from a copy, an old snapshot and the audit remain", true, true, func(l *losing) {
			l.copy(filepath.Join(l.dir, "broker"), l.data("broker"))
			l.copy(filepath.Join(l.dir, "snapshots"), l.data("snapshots"))
		}},
		{"restored from a copy, and written to before anybody noticed", true, true, func(l *losing) {
			l.copy(filepath.Join(l.dir, "broker"), l.data("broker"))
			l.copy(filepath.Join(l.dir, "snapshots"), l.data("snapshots"))
			l.unnoticed()
		}},
		{"restored from a copy, the newest snapshot remains", false, false, func(l *losing) { l.copy(filepath.Join(l.dir, "broker"), l.data("broker")) }},
		{"deleted, the newest snapshot remains", false, false, func(l *losing) { must(l.t, os.RemoveAll(l.data("broker"))) }},
		{"the log's stream deleted, the audit beside it remains", false, true, func(l *losing) {
			must(l.t, os.RemoveAll(l.stream()))
			l.copy(filepath.Join(l.dir, "snapshots"), l.data("snapshots"))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLosing(t, c.database)
			l.lived(l.kept)
			since := []events.Data(nil)
			if strings.Contains(c.name, "noticed") {
				since = l.since()
			}
			want, wantLate := heldBy(l.fold(since...)), heldBy(l.fold(append(since, l.late()...)...))
			l.stop()
			c.lose(l)
			got, said := l.recovered(false)
			if diff := cmp.Diff(want, heldBy(got)); diff != "" {
				t.Fatalf("(- before, + recovered)\n%s\n%s", diff, said)
			}
			want, late := want, []events.Data(nil)
			if c.audit {
				want, late = wantLate, l.late()
			}
			again, said := l.recovered(false, late...)
			if diff := cmp.Diff(want, heldBy(again)); diff != "" {
				t.Errorf("recovered again, and what ran has ended (- want, + got)\n%s\n%s", diff, said)
			}
		})
	}
}

// stream is the log's directory.
func (l *losing) stream() string {
	l.t.Helper()
	found, err := filepath.Glob(l.data("broker", "jetstream", "*", "streams", "ACCOUNTING"))
	if err != nil || len(found) != 1 {
		l.t.Fatal(found, err)
	}
	return found[0]
}

// Where nothing tells what was held, nobody begins anew without an operator's word; then prepaid orgs have nothing.
func TestNothingTellsWhatWasHeld(t *testing.T) {
	for _, database := range []bool{false, true} {
		l := newLosing(t, database)
		l.lived(l.kept)
		if database {
			_, err := l.now.pool.Exec(t.Context(), "INSERT INTO "+l.serving()+".facts SELECT log, seq, 9, at, 'gap', '', 0, '', 0, 1, seq FROM "+l.serving()+".facts LIMIT 1")
			must(t, err)
		}
		l.stop()
		must(t, os.RemoveAll(l.data()))
		said, err := l.recover(false)
		if !errors.Is(err, errUnknown) || !strings.Contains(err.Error(), "--accept-unknown") || database && !strings.Contains(said, "does not tell all") {
			t.Errorf("%v\n%s", err, said)
		}
		f, said := l.recovered(true)
		want := map[events.Meter]int64{}
		if database {
			want = nil // what the audit has of it
		}
		if got := heldBy(f); want != nil && cmp.Diff(want, got, cmpopts.EquateEmpty()) != "" {
			t.Errorf("out of nothing came %v\n%s", got, said)
		}
	}
}

func (l *losing) serving() (schema string) {
	l.t.Helper()
	must(l.t, l.now.pool.QueryRow(l.t.Context(), "SELECT name FROM audit_schemas WHERE state = 'serving'").Scan(&schema))
	return schema
}

// A log that vanishes while the process runs is the last thing to be heard of it: what was held is written down at once.
func TestWhatWasHeldIsWrittenDownWhenTheLogIsGone(t *testing.T) {
	t.Parallel()
	l := newLosing(t, false)
	l.lived(func() {})
	want := l.fold()
	js, err := jetstream.New(l.now.conn)
	must(t, err)
	must(t, js.DeleteStream(t.Context(), access.StreamAccounting))
	r := &recovery{n: l.now, out: io.Discard}
	for end := time.Now().Add(patience); len(r.snapshots) == 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no snapshot was written")
		}
		must(t, r.readSnapshots())
	}
	if diff := cmp.Diff(heldBy(want), heldBy(r.snapshots[0].fold)); diff != "" {
		t.Errorf("(- the log, + the snapshot)\n%s", diff)
	}
}

// TestRecoverOfAHealthyLog: a running process with whose log nothing is wrong says so and does nothing, unless it is to be done anyway.
func TestRecoverOfAHealthyLog(t *testing.T) {
	w := startWhole(t, "")
	t.Setenv("WEIR_ADMIN_KEY", testAdmin)
	recovered := func(args ...string) (string, int) {
		var said strings.Builder
		code := run(append([]string{"recover", "--url", w.url, "--reason", "a test"}, args...), &said, &said)
		return said.String(), code
	}
	if said, code := recovered(); code == 0 || !strings.Contains(said, "nothing is wrong with the log") || !strings.Contains(said, "--anyway") {
		t.Errorf("exit %d: %s", code, said)
	}
	w.chat("acme", 200) // that has a limit on a minute
	if said, code := recovered("--anyway"); code != 0 || !strings.Contains(said, "windows full") {
		t.Errorf("exit %d: %s", code, said)
	}
	w.chat("acme", 503)
}
