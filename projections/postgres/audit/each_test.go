package audit_test

import (
	"slices"
	"testing"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/projections/postgres/audit"
)

// Every record is given once, however many there are, and rows are held against the record of their own request.
func TestEachGivesEveryRecord(t *testing.T) {
	d := open(t)
	s := d.store("a", now)
	const many = 1203 // three pages
	var rows []generation.Row
	for i := range many {
		rows = append(rows, row(eventstest.RequestID(i), uint64(i+1)))
	}
	rows = append(rows, row("no time in it", many+1))
	d.write(s, rows, many+1)
	each := func() (ids []events.RequestID, differ map[events.RequestID][]string) {
		t.Helper()
		differ = map[events.RequestID][]string{}
		at, found, err := audit.NewReader(d.pool).Each(d.ctx, func(rec *generation.Record, otherwise []string) error {
			if rec.State != "" {
				ids = append(ids, rec.ID)
			}
			if len(otherwise) > 0 {
				differ[rec.ID] = otherwise
			}
			return nil
		})
		if err != nil || !found || at.Seq != many+1 {
			t.Fatal(at, found, err)
		}
		return ids, differ
	}
	ids, differ := each()
	if len(differ) > 0 {
		t.Errorf("rows differ: %v", differ)
	}
	slices.Sort(ids)
	if n := len(slices.Compact(ids)); n != many+1 || len(ids) != many+1 {
		t.Errorf("%d records of %d requests, want %d", len(ids), n, many+1)
	}
	changed := map[events.RequestID]string{
		eventstest.RequestID(499):  "admission_events.gate of row 0 is b2, by the record b1",
		eventstest.RequestID(500):  "attempts lacks row 0",
		eventstest.RequestID(1000): "generations.workspace of row 0 is w, by the record <nil>",
		"no time in it":            "admission_events.reason of row 0 is r, by the record <nil>",
	}
	for id, statement := range map[events.RequestID]string{
		eventstest.RequestID(499):  "UPDATE admission_events SET gate = 'b2' WHERE request = $1",
		eventstest.RequestID(500):  "DELETE FROM attempts WHERE request = $1",
		eventstest.RequestID(1000): "UPDATE generations SET workspace = 'w' WHERE id = $1",
		"no time in it":            "UPDATE admission_events SET reason = 'r' WHERE request = $1",
	} {
		if tag, err := d.pool.Exec(d.ctx, statement, generation.Key(id)); err != nil || tag.RowsAffected() != 1 {
			t.Fatal(id, tag, err)
		}
	}
	_, differ = each()
	for id, want := range changed {
		if got := differ[id]; len(got) != 1 || got[0] != want {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
	}
	if len(differ) != len(changed) {
		t.Errorf("%d requests differ, want %d", len(differ), len(changed))
	}
}
