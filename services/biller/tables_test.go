package biller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/postgres"
	"github.com/weirhq/weir/projections/postgres/sums"
	"github.com/weirhq/weir/projections/usage"
	"github.com/weirhq/weir/schemas/sql"
	"github.com/weirhq/weir/test/postgrestest"
)

// database is a schema of its own, not migrated yet.
func database(t *testing.T) (*pgxpool.Pool, func(context.Context) error) {
	t.Helper()
	url := postgrestest.URL(t)
	pool, err := postgres.Open(url, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool, func(ctx context.Context) error {
		m, err := postgres.Migrate(url, sql.Migrations)
		if err != nil {
			return err
		}
		defer m.Close()
		_, err = m.Up(ctx)
		return err
	}
}

// rowsOf are all rows of a period.
func rowsOf(t *testing.T, table *sums.Table, by sums.Period) []sums.Row {
	t.Helper()
	rows, err := table.Rows(t.Context(), sums.Query{By: by, From: time.Unix(0, 0), To: time.Now().Add(100 * 24 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// wanted are the rows that lines come to, added up in the plainest way; a correction where the line that it corrects counts.
func wanted(lines []usage.Line, period time.Duration) []sums.Row {
	first := map[string]usage.Instant{}
	byGroup := map[string]*sums.Row{}
	var order []string
	for i := range lines {
		l := &lines[i]
		if l.Revision == 0 {
			first[l.ID] = l.Time
		}
		start := time.Unix(0, int64(first[l.ID])).UTC().Truncate(period)
		key := fmt.Sprint(start, l.Org, l.Workspace, l.Key, l.Model, l.PriceVersion)
		r := byGroup[key]
		if r == nil {
			r = &sums.Row{Start: start, Org: l.Org, Workspace: l.Workspace, Key: l.Key, Model: l.Model, PriceVersion: l.PriceVersion,
				InputTokens: "0", CachedTokens: "0", CacheWriteTokens: "0", OutputTokens: "0", ReasoningTokens: "0", CostNano: "0"}
			byGroup[key] = r
			order = append(order, key)
		}
		switch l.State {
		case usage.Settled:
			r.Requests++
		case usage.Unsettled:
			r.Unsettled++
		default:
			r.Corrections++
		}
		c := &l.Change
		for into, n := range map[*json.Number]int64{&r.InputTokens: c.InputTokens, &r.CachedTokens: c.CachedTokens, &r.CacheWriteTokens: c.CacheWriteTokens,
			&r.OutputTokens: c.OutputTokens, &r.ReasoningTokens: c.ReasoningTokens, &r.CostNano: c.CostNano} {
			have, _ := new(big.Int).SetString(string(*into), 10)
			*into = json.Number(have.Add(have, big.NewInt(n)).String())
		}
	}
	rows := make([]sums.Row, 0, len(order))
	for _, key := range order {
		rows = append(rows, *byGroup[key])
	}
	return rows
}

// counted waits until the tables have all lines of the log, and compares.
func (n *node) counted(table *sums.Table, lines []usage.Line) {
	n.t.Helper()
	last := lines[len(lines)-1]
	n.eventually("all lines counted", func() bool {
		at, err := table.Position(n.t.Context())
		return err == nil && at.AsOf >= int64(last.Time) && at.StreamSeq >= uint64(n.count())
	})
	for by, period := range map[sums.Period]time.Duration{sums.Hour: time.Hour, sums.Day: 24 * time.Hour} {
		want, got := map[string]sums.Row{}, map[string]sums.Row{}
		key := func(r sums.Row) string {
			return fmt.Sprint(r.Start, r.Org, r.Workspace, r.Key, r.Model, r.PriceVersion)
		}
		for _, r := range wanted(lines, period) {
			want[key(r)] = r
		}
		for _, r := range rowsOf(n.t.(*testing.T), table, by) {
			got[key(r)] = r
		}
		if diff := cmp.Diff(want, got); diff != "" {
			n.t.Errorf("by %s (- by the log, + in the table):\n%.3000s", by, diff)
		}
	}
}

// Whatever crashes, and however many count, each line counts once; a correction counts in the hour of what it corrects.
func TestTablesCountOnce(t *testing.T) {
	n := newNode(t)
	pool, prepare := database(t)
	table := sums.New(pool)
	counting := func(c *Config) { c.Usage = &Tables{Table: table, Prepare: prepare} }
	dirs := []string{t.TempDir(), t.TempDir()}
	n.run(dirs[0], counting)
	b := n.run(dirs[1], counting) // two that both believe to be the one
	for k := range 5 {
		n.requests(k*60, k*60+60)
	}
	n.billed()
	b.crash(t, dirs[1], nil)
	b = n.run(dirs[1], counting)
	n.requests(300, 400)
	n.state(&events.Correction{Request: id(1), Revision: 1, Usage: events.Usage{InputTokens: 90, OutputTokens: 1}, CostNano: 900, Reason: "r"},
		&events.Correction{Request: id(398), Revision: 1, CostNano: 7})
	n.billed()
	n.counted(table, n.lines())
	corrected := int64(0)
	for _, r := range rowsOf(t, table, sums.Hour) {
		corrected += r.Corrections
	}
	if corrected != 2 {
		t.Errorf("%d corrections are counted", corrected)
	}
}

// A correction that comes hours later counts in the hour of the line that it corrects, which the stream is asked for.
func TestACorrectionCountsInItsHour(t *testing.T) {
	n := newNode(t)
	pool, prepare := database(t)
	table := sums.New(pool)
	n.run(t.TempDir(), func(c *Config) { c.Usage = &Tables{Table: table, Prepare: prepare} })
	n.requests(1, 4)
	n.billed()
	n.counted(table, n.lines())
	at, err := table.Position(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Three hours later, as the log has it.
	s, err := newStream(n.nc)
	if err != nil {
		t.Fatal(err)
	}
	lines := n.lines()
	late := lines[0]
	late.Revision, late.State, late.Reason, late.Time = 1, usage.Corrected, "late", late.Time+usage.Instant(3*usage.Hour)
	late.CostNano, late.Change = 1, usage.Amounts{CostNano: 1 - lines[0].CostNano}
	place := position{time.Unix(0, at.LogCreated), at.LogSeq + 10, 0}
	if _, _, err := s.append(t.Context(), []line{{place, late}}, at.StreamSeq); err != nil {
		t.Fatal(err)
	}
	n.counted(table, append(lines, late))
	if rows := rowsOf(t, table, sums.Hour); len(rows) != len(wanted(lines, time.Hour)) {
		t.Errorf("the correction made an hour of its own: %+v", rows)
	}
}

// A stream that is written anew is not counted anew.
func TestTablesKnowTheLinesOfAnotherStream(t *testing.T) {
	n := newNode(t)
	pool, prepare := database(t)
	table := sums.New(pool)
	n.run(t.TempDir(), func(c *Config) { c.Usage = &Tables{Table: table, Prepare: prepare} })
	n.requests(1, 120)
	n.billed()
	n.counted(table, n.lines())
	if err := n.js.DeleteStream(t.Context(), Stream); err != nil {
		t.Fatal(err)
	}
	n.requests(120, 150)
	n.billed()
	n.counted(table, n.lines())
}

// Rows and position move together or not at all, and only from where they are.
func TestTablesMoveFromWhereTheyAre(t *testing.T) {
	pool, prepare := database(t)
	if err := prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	table := sums.New(pool)
	l := usage.Line{ID: "a", Org: "acme", State: usage.Settled, Change: usage.Amounts{CostNano: events.MaxAmount, InputTokens: events.MaxAmount}}
	var lines []sums.Counted
	for range sums.MaxBatch {
		lines = append(lines, sums.Counted{Line: l})
	}
	at := sums.Position{}
	for k := range 4 { // four times this is more than an int64 holds
		to := sums.Position{StreamCreated: 1, StreamSeq: uint64(k + 1), LogCreated: 1, LogSeq: uint64(k), LogN: 1, AsOf: 1}
		if err := table.Add(t.Context(), at, to, lines); err != nil {
			t.Fatal(err)
		}
		if err := table.Add(t.Context(), at, to, lines); !errors.Is(err, sums.ErrMoved) {
			t.Errorf("counted again: %v", err)
		}
		at = to
	}
	if err := table.Add(t.Context(), at, sums.Position{StreamSeq: 9}, append(lines, sums.Counted{Line: l})); err == nil {
		t.Error("a batch beyond the bound was counted")
	}
	have, err := table.Position(t.Context())
	if err != nil || have != at {
		t.Errorf("position %+v (%v), want %+v", have, err, at)
	}
	rows := rowsOf(t, table, sums.Day)
	want := fmt.Sprint(4*sums.MaxBatch) + "000000000000000"
	if len(rows) != 1 || rows[0].CostNano.String() != want || rows[0].InputTokens.String() != want || rows[0].Requests != 4*sums.MaxBatch {
		t.Errorf("%+v, want %s", rows, want)
	}
}
