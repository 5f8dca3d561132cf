// Package sums keeps usage by hour and by day in PostgreSQL: the tables usage_hourly and usage_daily, and how far the stream of billing lines
// has been counted. Rows and position are changed in one transaction, and only from the position that is there: each line counts once,
// whoever counts, and however often.
//
// A correction counts in the hour and the day of the line that it corrects, so that a period says what was used in it; in the stream itself,
// and in what is exported, it counts when it was made.
package sums

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/usage"
)

// MaxRows bounds one answer.
const MaxRows = 50_000

// maxReads bounds the answers that are read at once, so that they leave connections for what cannot wait, and readFor one of them.
const (
	maxReads = 2
	readFor  = 10 * time.Second
)

// ErrMoved says that another has counted meanwhile: read the position again.
var ErrMoved = errors.New("the usage tables have moved on")

// ErrTooMany says that more than MaxRows rows were asked for.
var ErrTooMany = fmt.Errorf("more than %d rows", MaxRows)

// Position is how far the stream USAGE has been counted.
type Position struct {
	StreamCreated int64  // ns since 1970: which stream it is; 0: nothing has been counted
	StreamSeq     uint64 // the last sequence counted
	LogCreated    int64  // ns since 1970: which log the last line is of
	LogSeq        uint64 // where in the log it fell
	LogN          int64  // and which of that message's lines it was
	AsOf          int64  // ns since 1970: its time
}

// Before says whether a line's place in the logs comes after everything that was counted.
func (p Position) Before(logCreated int64, logSeq uint64, logN int64) bool {
	return cmp.Or(cmp.Compare(p.LogCreated, logCreated), cmp.Compare(p.LogSeq, logSeq), cmp.Compare(p.LogN, logN)) < 0 || p.StreamCreated == 0
}

// Counted is a line with the instant whose hour and day it counts in: its own, or that of the line which it corrects.
type Counted struct {
	Line usage.Line
	At   usage.Instant
}

// Table is the tables. Its methods may be called at the same time.
type Table struct {
	pool  *pgxpool.Pool
	reads chan struct{}
}

// New gives the tables of a database with the schema's migrations applied.
func New(pool *pgxpool.Pool) *Table { return &Table{pool, make(chan struct{}, maxReads)} }

// Position reads how far has been counted.
func (t *Table) Position(ctx context.Context) (Position, error) {
	ctx, cancel := context.WithTimeout(ctx, readFor)
	defer cancel()
	return position(ctx, t.pool, "")
}

// asker is a pool or a transaction.
type asker interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func position(ctx context.Context, from asker, lock string) (p Position, err error) {
	err = from.QueryRow(ctx, "SELECT stream_created, stream_seq, log_created, log_seq, log_n, as_of FROM usage_position"+lock).
		Scan(&p.StreamCreated, &p.StreamSeq, &p.LogCreated, &p.LogSeq, &p.LogN, &p.AsOf)
	if err != nil {
		return Position{}, fmt.Errorf("read how far usage is counted: %w", err)
	}
	return p, nil
}

// Add counts lines and moves the position, or does neither. The error is ErrMoved if the position is no longer from.
func (t *Table) Add(ctx context.Context, from, to Position, lines []Counted) error {
	err := pgx.BeginFunc(ctx, t.pool, func(tx pgx.Tx) error {
		have, err := position(ctx, tx, " FOR UPDATE")
		if err != nil {
			return err
		}
		if have != from {
			return ErrMoved
		}
		for _, table := range tables {
			if err := add(ctx, tx, table, lines); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, "UPDATE usage_position SET stream_created = $1, stream_seq = $2, log_created = $3, log_seq = $4, log_n = $5, as_of = $6",
			to.StreamCreated, to.StreamSeq, to.LogCreated, to.LogSeq, to.LogN, to.AsOf)
		return err
	})
	if err != nil {
		return fmt.Errorf("count usage: %w", err)
	}
	return nil
}

// Period is what rows are of.
type Period string

// The periods.
const (
	Hour Period = "hour"
	Day  Period = "day"
)

// table is one of the tables.
type table struct {
	period Period
	name   string
	length int64 // ns
}

var tables = []table{{Hour, "usage_hourly", usage.Hour}, {Day, "usage_daily", usage.Day}}

// group is what a row is of.
type group struct {
	org                           events.Org
	start                         int64
	workspace, key, model, prices string
}

// row is what lines add to a group. Its sums cannot overflow: a batch has fewer lines than usage.Amounts has room for (MaxBatch).
type row struct {
	group
	requests, unsettled, corrections int64
	amounts                          usage.Amounts
}

// MaxBatch bounds the lines of one Add: so many of the largest fit an int64, before they become numeric.
const MaxBatch = 4096

// add counts lines in one table, in the order of its key, so that two writers cannot wait for each other.
func add(ctx context.Context, tx pgx.Tx, into table, lines []Counted) error {
	if len(lines) > MaxBatch {
		return fmt.Errorf("%d lines at once, at most %d", len(lines), MaxBatch)
	}
	rows := gather(lines, into.length)
	if len(rows) == 0 {
		return nil
	}
	var orgs, workspaces, keys, models, prices []string
	var starts []time.Time
	numbers := make([][]int64, 9)
	for _, r := range rows {
		orgs, workspaces, keys = append(orgs, string(r.org)), append(workspaces, r.workspace), append(keys, r.key)
		models, prices, starts = append(models, r.model), append(prices, r.prices), append(starts, time.Unix(0, r.start).UTC())
		a := &r.amounts
		for i, n := range []int64{r.requests, r.unsettled, r.corrections, a.InputTokens, a.CachedTokens, a.CacheWriteTokens, a.OutputTokens, a.ReasoningTokens, a.CostNano} {
			numbers[i] = append(numbers[i], n)
		}
	}
	_, err := tx.Exec(ctx, `INSERT INTO `+into.name+` AS u (org, start, workspace, key, model, price_version, requests, unsettled, corrections,
			input_tokens, cached_tokens, cache_write_tokens, output_tokens, reasoning_tokens, cost_nano)
		SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[],
			$10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[])
		ON CONFLICT (org, start, workspace, key, model, price_version) DO UPDATE SET
			requests = u.requests + excluded.requests, unsettled = u.unsettled + excluded.unsettled, corrections = u.corrections + excluded.corrections,
			input_tokens = u.input_tokens + excluded.input_tokens, cached_tokens = u.cached_tokens + excluded.cached_tokens,
			cache_write_tokens = u.cache_write_tokens + excluded.cache_write_tokens, output_tokens = u.output_tokens + excluded.output_tokens,
			reasoning_tokens = u.reasoning_tokens + excluded.reasoning_tokens, cost_nano = u.cost_nano + excluded.cost_nano`,
		orgs, starts, workspaces, keys, models, prices, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], numbers[6], numbers[7], numbers[8])
	return err
}

// gather adds lines up by group, in the order of the tables' key.
func gather(lines []Counted, length int64) []*row {
	byGroup := map[group]*row{}
	for i := range lines {
		l := &lines[i].Line
		g := group{l.Org, floor(int64(lines[i].At), length), l.Workspace, l.Key, l.Model, l.PriceVersion}
		r := byGroup[g]
		if r == nil {
			r = &row{group: g}
			byGroup[g] = r
		}
		switch l.State {
		case usage.Settled:
			r.requests++
		case usage.Unsettled:
			r.unsettled++
		case usage.Corrected:
			r.corrections++
		}
		r.amounts = r.amounts.Plus(l.Change)
	}
	rows := make([]*row, 0, len(byGroup))
	for _, r := range byGroup {
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b *row) int {
		return cmp.Or(cmp.Compare(a.org, b.org), cmp.Compare(a.start, b.start), cmp.Compare(a.workspace, b.workspace), cmp.Compare(a.key, b.key),
			cmp.Compare(a.model, b.model), cmp.Compare(a.prices, b.prices))
	})
	return rows
}

// floor gives the multiple of a period at or before an instant.
func floor(at, period int64) int64 {
	n := at / period
	if at%period < 0 {
		n--
	}
	return n * period
}

// Query says which rows are wanted.
type Query struct {
	By       Period
	From, To time.Time  // rows whose period begins in [From, To)
	Org      events.Org // empty: all
	Key      string     // empty: all
	Model    string     // empty: all
}

// Row is what one group came to in one hour or day, UTC. Amounts are integers of any size, in JSON numbers.
type Row struct {
	Start            time.Time   `json:"start"`
	Org              events.Org  `json:"org"`
	Workspace        string      `json:"workspace,omitempty"`
	Key              string      `json:"key,omitempty"`
	Model            string      `json:"model,omitempty"`
	PriceVersion     string      `json:"price_version,omitempty"`
	Requests         int64       `json:"requests"`    // attempts that were sent and settled: a request that fell back counts for each
	Unsettled        int64       `json:"unsettled"`   // attempts whose usage never came: they count as nothing
	Corrections      int64       `json:"corrections"` // of lines of this period
	InputTokens      json.Number `json:"input_tokens"`
	CachedTokens     json.Number `json:"cached_tokens"`
	CacheWriteTokens json.Number `json:"cache_write_tokens"`
	OutputTokens     json.Number `json:"output_tokens"`
	ReasoningTokens  json.Number `json:"reasoning_tokens"`
	CostNano         json.Number `json:"cost_nano"`
}

// Rows gives rows in the order of time, then of org, workspace, key, model and price version. The error is ErrTooMany beyond MaxRows.
func (t *Table) Rows(ctx context.Context, q Query) ([]Row, error) {
	name := ""
	for _, table := range tables {
		if table.period == q.By {
			name = table.name
		}
	}
	if name == "" {
		return nil, fmt.Errorf("read usage: by %q: is neither hour nor day", q.By)
	}
	ctx, cancel := context.WithTimeout(ctx, readFor)
	defer cancel()
	select {
	case t.reads <- struct{}{}:
		defer func() { <-t.reads }()
	case <-ctx.Done():
		return nil, fmt.Errorf("read usage: wait for others: %w", ctx.Err())
	}
	rows, err := t.pool.Query(ctx, `SELECT `+columns+` FROM `+name+` WHERE start >= $1 AND start < $2 AND ($3 = '' OR org = $3) AND ($4 = '' OR key = $4) AND ($5 = '' OR model = $5)
		ORDER BY start, org, workspace, key, model, price_version LIMIT $6`, q.From, q.To, string(q.Org), q.Key, q.Model, MaxRows+1)
	if err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	all, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	if len(all) > MaxRows {
		return nil, ErrTooMany
	}
	return all, nil
}

// Each gives every row of a period that begins at or after an instant, in the order of the tables' key.
func (t *Table) Each(ctx context.Context, by Period, from time.Time, each func(*Row)) error {
	for _, table := range tables {
		if table.period != by {
			continue
		}
		rows, err := t.pool.Query(ctx, "SELECT "+columns+" FROM "+table.name+" WHERE start >= $1 ORDER BY org, start, workspace, key, model, price_version", from)
		if err != nil {
			return fmt.Errorf("read %s: %w", table.name, err)
		}
		defer rows.Close()
		for rows.Next() {
			r, err := scan(rows)
			if err != nil {
				return fmt.Errorf("read %s: %w", table.name, err)
			}
			each(&r)
		}
		if err := rows.Err(); err != nil {
			return fmt.Errorf("read %s: %w", table.name, err)
		}
		return nil
	}
	return fmt.Errorf("read usage by %q: is neither hour nor day", by)
}

// columns are those of a row, as scan takes them.
const columns = `start, org, workspace, key, model, price_version, requests, unsettled, corrections,
	input_tokens, cached_tokens, cache_write_tokens, output_tokens, reasoning_tokens, cost_nano`

func scan(from pgx.CollectableRow) (r Row, err error) {
	var org string
	var n [6]pgtype.Numeric
	err = from.Scan(&r.Start, &org, &r.Workspace, &r.Key, &r.Model, &r.PriceVersion, &r.Requests, &r.Unsettled, &r.Corrections, &n[0], &n[1], &n[2], &n[3], &n[4], &n[5])
	r.Org, r.Start = events.Org(org), r.Start.UTC()
	for i, into := range []*json.Number{&r.InputTokens, &r.CachedTokens, &r.CacheWriteTokens, &r.OutputTokens, &r.ReasoningTokens, &r.CostNano} {
		if err == nil {
			*into, err = integer(n[i])
		}
	}
	return r, err
}

// integer writes a numeric of scale 0 in digits.
func integer(n pgtype.Numeric) (json.Number, error) {
	if !n.Valid || n.NaN || n.Int == nil {
		return "", errors.New("an amount is no number")
	}
	digits := n.Int.String()
	for range n.Exp { // 1200 may come as 12 and 2
		digits += "0"
	}
	return json.Number(digits), nil
}
