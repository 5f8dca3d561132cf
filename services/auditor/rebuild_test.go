package auditor

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/projections/postgres/audit"
)

// Records are rebuilt while others serve and are written. What the log tells comes out right whatever the old rows say, what it does not
// tell is carried over, nothing that is written meanwhile is lost, and the auditor goes on in what was built.
func TestRebuild(t *testing.T) {
	n := newPostgres(t)
	a := n.run(nil)
	last := uint64(0)
	request := func(k int) {
		n.admit(reserve(k))
		last = n.state(eventstest.Final(id(k), 250, 40, 91_000), eventstest.Release(id(k)))
	}
	for k := range 20 {
		request(k)
	}
	n.stored(a, last)
	ctx := context.Background()
	schema := n.serving()
	for _, change := range []string{
		"UPDATE " + schema + ".generations SET cost_nano = 5 WHERE id = '" + string(id(1)) + "'",            // wrong
		"UPDATE " + schema + ".generations SET cost_nano = 777, log = 5 WHERE id = '" + string(id(2)) + "'", // of another log
		"DELETE FROM " + schema + ".attempts WHERE request = '" + string(id(3)) + "'",
	} {
		if tag, err := n.pool.Exec(ctx, change); err != nil || tag.RowsAffected() != 1 {
			t.Fatal(change, tag, err)
		}
	}

	writing, stop := context.WithCancel(ctx)
	var group errgroup.Group
	wrote := 100
	group.Go(func() error {
		for writing.Err() == nil {
			request(wrote)
			wrote++
		}
		return nil
	})
	beside, err := audit.NewRebuild(ctx, audit.Config{URL: n.url, Pool: n.pool, Writer: "rebuild", Retention: 1000 * 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := audit.NewRebuild(ctx, audit.Config{URL: n.url, Pool: n.pool, Writer: "another"}); err == nil {
		t.Error("there are two rebuilds at once")
	}
	var seen Progress
	err = Rebuild(ctx, Config{Conn: n.nc, Log: n.log, Name: "rebuild"}, beside, func(p Progress) { seen = p })
	beside.Done()
	if err != nil {
		t.Fatal(err)
	}
	if !seen.Done || seen.Carried != 1 || seen.Position == 0 || seen.Last < seen.Position {
		t.Errorf("the progress was %+v", seen)
	}
	stop()
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	request(50) // by the auditor that has gone on
	n.stored(a, last)
	if now := n.serving(); now == schema || now != beside.To.Name {
		t.Errorf("the schema %s serves, %s was built beside %s", now, beside.To.Name, schema)
	}
	if dropped, err := audit.Drop(ctx, n.pool, audit.Replaced); err != nil || len(dropped) != 1 || dropped[0] != schema {
		t.Errorf("dropped %v (%v)", dropped, err)
	}
	found, err := n.reader().List(ctx, &generation.Filter{Org: eventstest.Org, Limit: 1_000_000})
	if err != nil || len(found) != 21+wrote-100 {
		t.Fatalf("%d requests are listed, %d were made (%v)", len(found), 21+wrote-100, err)
	}
	for _, s := range found {
		want := int64(91_000)
		if s.ID == id(2) {
			want = 777
		}
		if s.CostNano != want || s.Outcome != events.Completed {
			t.Errorf("%+v", s)
		}
	}
	var tries int
	if err := n.pool.QueryRow(ctx, "SELECT count(*) FROM attempts").Scan(&tries); err != nil || tries != len(found) {
		t.Errorf("%d attempts of %d requests (%v)", tries, len(found), err)
	}
}

// serving is the name of the schema that serves.
func (n *node) serving() (name string) {
	n.t.Helper()
	if err := n.pool.QueryRow(context.Background(), "SELECT name FROM audit_schemas WHERE state = 'serving'").Scan(&name); err != nil {
		n.t.Fatal(err)
	}
	return name
}
