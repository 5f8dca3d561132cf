package audit

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Partitions are of days in UTC.
const (
	dayName   = "20060102"
	day       = 24 * time.Hour
	daysAhead = 2         // partitions that are there before their day comes
	tendEvery = time.Hour // partitions are looked after
)

func dayOf(t time.Time) time.Time { return t.UTC().Truncate(day) }

// days is what a writer knows of the partitions of its schema.
type days struct {
	schema    string
	retention time.Duration
	there     map[time.Time]bool
	tended    time.Time
}

// kept says whether a day has, or shall have, partitions of its own at an instant.
func (d *days) kept(of, now time.Time) bool {
	return !of.Before(dayOf(now.Add(-d.retention))) && !of.After(dayOf(now).Add(daysAhead*day))
}

// make makes the partitions of a day, if it is to have some. What was written of it where days without partitions go moves there.
func (d *days) make(ctx context.Context, conn *pgxpool.Conn, of, now time.Time) error {
	if d.there[of] || !d.kept(of, now) {
		return nil
	}
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockFor); err != nil {
			return err
		}
		for _, t := range tables {
			if err := d.makeOne(ctx, tx, t, of); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("make the partitions of %s: %w", of.Format(time.DateOnly), err)
	}
	d.there[of] = true
	return nil
}

func (d *days) makeOne(ctx context.Context, tx pgx.Tx, t *table, of time.Time) error {
	part := t.part(d.schema, of)
	var there bool
	if err := tx.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", part).Scan(&there); err != nil || there {
		return err
	}
	from, to := of.Format(time.RFC3339), of.Add(day).Format(time.RFC3339)
	columns := strings.Join(t.columns, ", ")
	for _, s := range []string{
		fmt.Sprintf("CREATE TABLE %s (LIKE %s INCLUDING DEFAULTS INCLUDING STORAGE)", part, t.in(d.schema)),
		fmt.Sprintf("WITH moved AS (DELETE FROM %s WHERE made >= '%s' AND made < '%s' RETURNING %s) INSERT INTO %s (%s) SELECT %s FROM moved",
			t.other(d.schema), from, to, columns, part, columns, columns),
		fmt.Sprintf("ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM ('%s') TO ('%s')", t.in(d.schema), part, from, to),
	} {
		if _, err := tx.Exec(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// tend makes partitions ahead, and drops those that are no longer kept.
func (d *days) tend(ctx context.Context, conn *pgxpool.Conn, now time.Time) error {
	for n := range daysAhead + 1 {
		if err := d.make(ctx, conn, dayOf(now).Add(time.Duration(n)*day), now); err != nil {
			return err
		}
	}
	return d.drop(ctx, conn, now)
}

// drop drops the days that are no longer kept, and what is as old among what has no day.
func (d *days) drop(ctx context.Context, conn *pgxpool.Conn, now time.Time) error {
	before := now.Add(-d.retention)
	rows, err := conn.Query(ctx, "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = $1::regclass", generations.in(d.schema))
	if err != nil {
		return fmt.Errorf("list partitions: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("list partitions: %w", err)
	}
	for _, name := range names {
		of, err := time.Parse(generations.name+"_"+dayName, name)
		if err != nil || !of.Add(day).Before(before) {
			continue
		}
		if err := d.dropDay(ctx, conn, of); err != nil {
			return fmt.Errorf("drop the partitions of %s: %w", of.Format(time.DateOnly), err)
		}
		delete(d.there, of)
	}
	for t, column := range map[*table]string{&generations: "created", &attempts: "reserved", &admissionEvents: "at"} {
		if _, err := conn.Exec(ctx, "DELETE FROM "+t.other(d.schema)+" WHERE "+column+" < $1", before); err != nil {
			return fmt.Errorf("delete old rows of no day: %w", err)
		}
	}
	return nil
}

func (d *days) dropDay(ctx context.Context, conn *pgxpool.Conn, of time.Time) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockFor); err != nil {
			return err
		}
		for _, t := range tables {
			if _, err := tx.Exec(ctx, "DROP TABLE IF EXISTS "+t.part(d.schema, of)); err != nil {
				return err
			}
		}
		return nil
	})
}
