package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/generation"
)

// eachMost is how many records are read at once.
const eachMost = 500

// Each gives every record that is kept, as all is at one instant, with what rows of the tables say otherwise than it, and then the place in
// the log up to which the records tell; found is false if no auditor has written yet. Rows of a request without a record come with one that
// has nothing but the id.
func (r *Reader) Each(ctx context.Context, each func(rec *generation.Record, otherwise []string) error) (at generation.Place, found bool, err error) {
	err = pgx.BeginTxFunc(ctx, r.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		var s Schema
		if s, found, err = serving(ctx, tx); err != nil || !found {
			return err
		}
		if err := tx.QueryRow(ctx, "SELECT log, seq FROM "+pgx.Identifier{s.Name, "position"}.Sanitize()).Scan(&at.Log, &at.Seq); err != nil {
			return fmt.Errorf("read how far the audit records go: %w", err)
		}
		for from := (bound{time.Unix(-1, 0), ""}); ; {
			next, last, err := r.some(ctx, tx, s.Name, from, each)
			if err != nil || last {
				return err
			}
			from = next
		}
	})
	return at, found, err
}

// bound is a request's place in the order of the tables.
type bound struct {
	made time.Time
	id   string // as the tables have it
}

// rowsOf are a request's rows of attempts and of admission_events, by their numbers.
type rowsOf [2]map[int64][]any

// some gives the next records behind a bound, and where they end.
func (r *Reader) some(ctx context.Context, tx pgx.Tx, schema string, from bound, each func(*generation.Record, []string) error) (to bound, last bool, err error) {
	kept, err := read(ctx, tx, fmt.Sprintf("SELECT %s FROM %s WHERE made >= $1 AND (made, id) > ($1, $2) ORDER BY made, id LIMIT %d",
		strings.Join(generations.columns, ", "), generations.in(schema), eachMost), from.made, from.id)
	if err != nil {
		return to, false, fmt.Errorf("read the audit records: %w", err)
	}
	if last = len(kept) < eachMost; !last {
		row := kept[len(kept)-1]
		to = bound{row[0].(time.Time), row[1].(string)}
	}
	beside := map[bound]*rowsOf{}
	for i, t := range []*table{&attempts, &admissionEvents} {
		rows, err := read(ctx, tx, fmt.Sprintf("SELECT %s FROM %s WHERE made >= $1 AND (made, request) > ($1, $2) AND ($3 OR made <= $4 AND (made, request) <= ($4, $5))",
			strings.Join(t.columns, ", "), t.in(schema)), from.made, from.id, last, to.made, to.id)
		if err != nil {
			return to, false, fmt.Errorf("read %s: %w", t.name, err)
		}
		for _, row := range rows {
			of := bound{row[0].(time.Time).UTC(), row[1].(string)}
			if beside[of] == nil {
				beside[of] = &rowsOf{{}, {}}
			}
			beside[of][i][row[2].(int64)] = row
		}
	}
	for _, row := range kept {
		of := bound{row[0].(time.Time).UTC(), row[1].(string)}
		rec, otherwise, err := r.compare(row, beside[of])
		if err == nil {
			err = each(rec, otherwise)
		}
		if err != nil {
			return to, false, err
		}
		delete(beside, of)
	}
	for of, rows := range beside {
		rec := &generation.Record{ID: events.RequestID(of.id)}
		if err := each(rec, append(attempts.otherwise(rows[0], nil), admissionEvents.otherwise(rows[1], nil)...)); err != nil {
			return to, false, err
		}
	}
	return to, last, nil
}

func read(ctx context.Context, tx pgx.Tx, query string, args ...any) ([][]any, error) {
	rows, err := tx.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]any, error) { return row.Values() })
}

// compare reads the record in a row of generations, and holds the rows against it.
func (r *Reader) compare(row []any, beside *rowsOf) (*generation.Record, []string, error) {
	text, err := r.packer.unpack(row[len(row)-1].([]byte))
	rec := new(generation.Record)
	if err == nil {
		err = json.Unmarshal(text, rec)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the audit record of %s: %w", row[1], err)
	}
	if beside == nil {
		beside = &rowsOf{}
	}
	said := rec.Row()
	tried, met := map[int64][]any{}, map[int64][]any{}
	for i := range said.Attempts {
		tried[said.Attempts[i].Attempt] = attemptRow(&said, &said.Attempts[i])
	}
	for n := range said.Events {
		met[int64(n)] = eventRow(&said, n)
	}
	row[len(row)-1] = []byte(nil) // it is what the others are compared with
	otherwise := generations.otherwise(map[int64][]any{0: row}, map[int64][]any{0: generationRow(&said, nil)})
	otherwise = append(otherwise, attempts.otherwise(beside[0], tried)...)
	return rec, append(otherwise, admissionEvents.otherwise(beside[1], met)...), nil
}

// otherwise says what rows have otherwise than by the record. Rows are by their number among the request's.
func (t *table) otherwise(kept, said map[int64][]any) (all []string) {
	for _, n := range slices.Sorted(maps.Keys(said)) {
		row := kept[n]
		if row == nil {
			all = append(all, fmt.Sprintf("%s lacks row %d", t.name, n))
			continue
		}
		for i, column := range t.columns {
			if have, want := plain(row[i]), plain(said[n][i]); have != want {
				all = append(all, fmt.Sprintf("%s.%s of row %d is %v, by the record %v", t.name, column, n, have, want))
			}
		}
	}
	for _, n := range slices.Sorted(maps.Keys(kept)) {
		if said[n] == nil {
			all = append(all, fmt.Sprintf("%s has a row %d that the record has not", t.name, n))
		}
	}
	return all
}

// plain gives a column's value as PostgreSQL keeps it, of whatever type it was written.
func plain(v any) any {
	switch v := v.(type) {
	case nil:
		return nil
	case time.Time:
		return v.UTC().Format("2006-01-02T15:04:05.000000Z")
	case []byte:
		return string(v)
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.String:
		return r.String()
	case reflect.Int, reflect.Int64:
		return r.Int()
	}
	return v
}
