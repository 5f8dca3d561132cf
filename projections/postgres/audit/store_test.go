package audit_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/projections/postgres/audit"
	"github.com/weirhq/weir/test/audittest"
	"github.com/weirhq/weir/test/postgrestest"
)

func TestMain(m *testing.M) { postgrestest.Main(m) }

const hour = time.Hour

// now is some time after the first of eventstest's requests.
var now = time.Date(2025, 6, 13, 12, 0, 0, 0, time.UTC)

type database struct {
	*testing.T
	ctx  context.Context
	url  string
	pool *pgxpool.Pool
}

func open(t *testing.T) *database {
	url, pool := audittest.Database(t)
	return &database{t, context.Background(), url, pool}
}

// store opens a store, as the process of a name at an instant.
func (d *database) store(name string, at time.Time) *audit.Store {
	d.Helper()
	s := audit.New(audit.Config{URL: d.url, Pool: d.pool, Writer: name, Retention: 48 * hour, Now: func() time.Time { return at },
		Warn: func(doing string, err error) { d.Errorf("%s: %v", doing, err) }})
	if _, err := s.Open(d.ctx); err != nil {
		d.Fatal(err)
	}
	d.Cleanup(s.Close)
	return s
}

// row makes the row of a request that is refused in its last of some attempts.
func row(id events.RequestID, seq uint64) generation.Row {
	g, log := generation.New(), eventstest.NewLog(now.UnixNano())
	r := log.Add(eventstest.Reserve(id))
	g.Apply(&r)
	r = log.Add(&events.Refused{Request: id, Org: eventstest.Org, Gateway: eventstest.Gateway, Key: "k\x00\xff", Model: strings.Repeat("m", 5000), Gate: "b1"})
	g.Apply(&r)
	rec := g.Drain(true)[0]
	rec.KeyID, rec.Model = "k\x00\xff", strings.Repeat("m", 5000)
	rec.AsOf.Seq = seq
	return rec.Row()
}

func (d *database) count(query string, args ...any) (n int) {
	d.Helper()
	if err := d.pool.QueryRow(d.ctx, query, args...).Scan(&n); err != nil {
		d.Fatal(err)
	}
	return n
}

func (d *database) write(s *audit.Store, rows []generation.Row, seq uint64) {
	d.Helper()
	if err := s.Write(d.ctx, rows, nil, generation.Place{Log: 7, Seq: seq}); err != nil {
		d.Fatal(err)
	}
}

func moved(err error) bool {
	m, ok := errors.AsType[interface {
		error
		Moved() bool
	}](err)
	return ok && m.Moved()
}

// Whatever is in a record is kept, also what PostgreSQL does not take in text; what is written again is there once.
func TestEverythingIsKept(t *testing.T) {
	d := open(t)
	s := d.store("a", now)
	ids := []events.RequestID{eventstest.RequestID(1), "no UUID \x00\xff", events.RequestID(strings.Repeat("x", 4000)), eventstest.RequestID(2)}
	var rows []generation.Row
	for i, id := range ids {
		rows = append(rows, row(id, uint64(i)))
	}
	d.write(s, rows, 4)
	d.write(s, rows[:2], 5)
	for i := range rows {
		rows[i].New = i%2 == 0 // which is not so: they are there
	}
	d.write(s, append(rows, row(eventstest.RequestID(5), 5)), 5)
	d.write(s, nil, 6)
	for table, want := range map[string]int{"generations": 5, "attempts": 5, "admission_events": 5} {
		if n := d.count("SELECT count(*) FROM " + table); n != want {
			t.Errorf("%s has %d rows, want %d", table, n, want)
		}
	}
	records, err := s.Read(d.ctx, append(ids[:3:3], eventstest.RequestID(9)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if string(records[i]) != string(rows[i].JSON) {
			t.Errorf("record %d is\n%s\nwant\n%s", i, records[i], rows[i].JSON)
		}
	}
	if records[3] != nil {
		t.Errorf("a request that there is not has the record %s", records[3])
	}
	at, err := s.Open(d.ctx)
	if err != nil || at != (generation.Place{Log: 7, Seq: 6}) {
		t.Errorf("the position is %+v (%v)", at, err)
	}
	text, found, err := audit.NewReader(d.pool).Generation(d.ctx, eventstest.Org, ids[2])
	if err != nil || !found || !json.Valid(text) {
		t.Errorf("the reader gives %s, %t, %v", text, found, err)
	}
}

// Of two writers only one goes on: a write counts only on the one that its writer knows to be the last.
func TestTwoWritersNeverInterleave(t *testing.T) {
	d := open(t)
	a, b := d.store("a", now), d.store("b", now)
	d.write(a, []generation.Row{row(eventstest.RequestID(1), 1)}, 1)
	if err := b.Write(d.ctx, []generation.Row{row(eventstest.RequestID(2), 2)}, nil, generation.Place{Log: 7, Seq: 2}); !moved(err) {
		t.Fatalf("the second writer got %v", err)
	}
	if n := d.count("SELECT count(*) FROM generations"); n != 1 {
		t.Errorf("%d rows, want what the first has written", n)
	}
	if at, err := b.Open(d.ctx); err != nil || at.Seq != 1 {
		t.Fatalf("opened anew the position is %+v (%v)", at, err)
	}
	d.write(b, []generation.Row{row(eventstest.RequestID(2), 2)}, 2)
	if err := a.Write(d.ctx, nil, nil, generation.Place{Log: 7, Seq: 9}); !moved(err) {
		t.Errorf("the first writer got %v", err)
	}
}

// A commit whose acknowledgement was lost is not made twice, and does not look like another writer's.
func TestACommitThatWasNotAcknowledged(t *testing.T) {
	d := open(t)
	s, twin := d.store("a", now), d.store("a", now)
	rows := []generation.Row{row(eventstest.RequestID(1), 1)}
	d.write(twin, rows, 1) // what the server did of the write that s makes now
	d.write(s, rows, 1)
	if n := d.count("SELECT count(*) FROM attempts"); n != 1 {
		t.Errorf("%d attempts, want 1", n)
	}
	d.write(s, nil, 2)
}

// A connection that breaks in the middle leaves nothing behind, and the same write then succeeds.
func TestAConnectionThatBreaks(t *testing.T) {
	d := open(t)
	s := d.store("a", now)
	d.write(s, []generation.Row{row(eventstest.RequestID(1), 1)}, 1)
	if n := d.count("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND application_name = $1", t.Name()); n == 0 {
		t.Fatal("there was no connection to break")
	}
	rows := []generation.Row{row(eventstest.RequestID(2), 2)}
	if err := s.Write(d.ctx, rows, nil, generation.Place{Log: 7, Seq: 2}); err == nil {
		t.Fatal("a broken connection was not noticed")
	}
	var err error
	for range 10 { // the pool may hold others that are broken
		if err = s.Write(d.ctx, rows, nil, generation.Place{Log: 7, Seq: 2}); err == nil {
			break
		}
	}
	if n := d.count("SELECT count(*) FROM generations"); n != 2 || err != nil {
		t.Errorf("%d rows, want 2 (%v)", n, err)
	}
}

// Days have partitions of their own, made ahead; what was written before its day had one moves there; old days go.
func TestDays(t *testing.T) {
	d := open(t)
	id := eventstest.RequestID(1) // of 13 June 2025
	early := now.Add(-10 * 24 * hour)
	s := d.store("a", early)
	d.write(s, []generation.Row{row(id, 1), row("no time", 1)}, 1)
	parts := func() string {
		var names string
		err := d.pool.QueryRow(d.ctx, `SELECT string_agg(right(c.relname, 8), ' ' ORDER BY c.relname) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
			JOIN pg_class p ON p.oid = i.inhparent JOIN pg_namespace n ON n.oid = p.relnamespace
			WHERE n.nspname = (SELECT name FROM audit_schemas WHERE state = 'serving') AND p.relname = 'generations' AND c.relname NOT LIKE '%other'`).Scan(&names)
		if err != nil {
			d.Fatal(err)
		}
		return names
	}
	if got := parts(); got != "20250603 20250604 20250605" {
		t.Errorf("the partitions are %s", got)
	}
	s = d.store("a", now)
	d.write(s, nil, 2)
	if got := parts(); got != "20250613 20250614 20250615" {
		t.Errorf("ten days later the partitions are %s", got)
	}
	schema := ""
	if err := d.pool.QueryRow(d.ctx, "SELECT name FROM audit_schemas").Scan(&schema); err != nil {
		t.Fatal(err)
	}
	if n := d.count("SELECT count(*) FROM " + schema + ".attempts_20250613 WHERE request = '" + string(id) + "'"); n != 1 {
		t.Errorf("%d rows have moved to their day, want 1", n)
	}
	d.write(d.store("a", now.Add(3*24*hour)), nil, 3)
	if got := parts(); got != "20250614 20250615 20250616 20250617 20250618" {
		t.Errorf("after the time for which records are kept the partitions are %s", got)
	}
	if n := d.count("SELECT count(*) FROM generations"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// Before an auditor has written, a reader says what is missing.
func TestNothingIsThereYet(t *testing.T) {
	d := open(t)
	_, _, err := audit.NewReader(d.pool).Generation(d.ctx, eventstest.Org, eventstest.RequestID(1))
	if err == nil || !strings.Contains(err.Error(), "no auditor has written") {
		t.Error(err)
	}
	if _, err := audit.NewReader(d.pool).List(d.ctx, &generation.Filter{Org: eventstest.Org, Limit: 1}); err == nil {
		t.Error("a list is empty where there is none")
	}
}

// What came after a sequence can be told without the log: records that tell of something beyond it, or that have not ended, and facts.
func TestWhatCameAfterASequence(t *testing.T) {
	d := open(t)
	s := d.store("a", now)
	var rows []generation.Row
	for i, seq := range []uint64{3, 9, 12} {
		r := row(eventstest.RequestID(i+1), seq)
		if r.AsOf.Log = 7; i > 0 {
			r.State = generation.Ended
		}
		rows = append(rows, r)
	}
	other := row(eventstest.RequestID(9), 12)
	other.AsOf.Log, other.State = 6, generation.Ended
	place := func(seq uint64) generation.Place {
		return generation.Place{Log: 7, Seq: seq, Time: generation.Instant(now.UnixNano())}
	}
	all := []generation.Fact{
		{At: place(2), Kind: generation.FactCredit, Org: "acme", AmountNano: 5, Reference: "early"},
		{At: place(10), Kind: generation.FactCredit, Org: "acme", AmountNano: -7, Reference: "late"},
		{At: place(11), Kind: generation.FactFence, Org: "acme", Version: 4},
		{At: generation.Place{Log: 6, Seq: 11, Time: place(1).Time}, Kind: generation.FactRecover, From: 1, To: 2},
	}
	for _, seq := range []uint64{11, 12} { // again, as after a crash
		if err := s.Write(d.ctx, append(rows, other), all, generation.Place{Log: 7, Seq: seq}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		log     generation.Instant
		seq     uint64
		records int
		facts   []generation.Fact
		to      uint64
	}{{7, 9, 2, all[1:3], 12}, {7, 0, 3, all[:3], 12}, {6, 0, 1, all[3:], 12}, {5, 0, 0, nil, 0}} {
		n := 0
		kept, err := audit.NewReader(d.pool).After(d.ctx, c.log, c.seq, generation.Instant(now.UnixNano()), func([]byte) error { n++; return nil })
		if err != nil || n != c.records || kept.To != c.to {
			t.Errorf("log %d beyond %d: %d records up to %d, %v; want %d up to %d", c.log, c.seq, n, kept.To, err, c.records, c.to)
		}
		if diff := cmp.Diff(c.facts, kept.Facts, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("log %d beyond %d (- want, + got):\n%s", c.log, c.seq, diff)
		}
	}
}
