package audit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/projections/postgres"
	"github.com/weirhq/weir/schemas/sql"
)

// The states of a schema.
const (
	Building = "building" // beside the one that serves
	Serving  = "serving"
	Replaced = "replaced"
)

// Schema is a schema that holds audit records.
type Schema struct {
	N       int       `json:"n"`
	Name    string    `json:"name"`
	State   string    `json:"state"`
	Changed time.Time `json:"changed"` // when it came into its state
}

// maxBase bounds the base schema's name, so that those of audit schemas, and of partitions in them, are not cut.
const maxBase = 40

// lockFor bounds the wait for locks that keep readers out: a switch or a drop is rather tried again than holding them up.
const lockFor = "SET LOCAL lock_timeout = '2s'"

// querier is a pool, a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// List gives the schemas, in the order in which they were made.
func List(ctx context.Context, q querier) ([]Schema, error) {
	ctx, cancel := context.WithTimeout(ctx, readFor)
	defer cancel()
	rows, err := q.Query(ctx, "SELECT n, name, state, changed_at FROM audit_schemas ORDER BY n")
	if err != nil {
		return nil, fmt.Errorf("list the audit schemas: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Schema])
	if err != nil {
		return nil, fmt.Errorf("list the audit schemas: %w", err)
	}
	return all, nil
}

// serving gives the schema that serves; found is false before the first is made.
func serving(ctx context.Context, q querier) (s Schema, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, readFor)
	defer cancel()
	err = q.QueryRow(ctx, "SELECT n, name, state, changed_at FROM audit_schemas WHERE state = 'serving'").Scan(&s.N, &s.Name, &s.State, &s.Changed)
	if errors.Is(err, pgx.ErrNoRows) {
		return s, false, nil
	}
	if err != nil {
		return s, false, fmt.Errorf("look which audit schema serves: %w", err)
	}
	return s, true, nil
}

// lockKey is of who makes, switches or drops audit schemas of this base schema.
const lockKey = "hashtextextended('weir audit ' || current_schema(), 0)"

// locked runs f while no other process makes, switches or drops audit schemas of this base schema.
func locked(ctx context.Context, pool *pgxpool.Pool, f func(*pgxpool.Conn) error) error {
	conn, err := lock(ctx, pool, lockWithin)
	if err != nil {
		return fmt.Errorf("lock the audit schemas: %w", err)
	}
	defer conn.Release()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readFor)
		defer cancel()
		if _, err := conn.Exec(ctx, "SELECT pg_advisory_unlock("+lockKey+")"); err != nil {
			_ = conn.Conn().Close(ctx) // which gives the lock back, too
		}
	}()
	return f(conn)
}

// lock gives a connection that has the lock, or after a while the error that another process has it or that the server does not answer.
func lock(ctx context.Context, pool *pgxpool.Pool, within time.Duration) (*pgxpool.Conn, error) {
	waiting, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	conn, err := pool.Acquire(waiting)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	if _, err := conn.Exec(waiting, "SELECT pg_advisory_lock("+lockKey+")"); err != nil {
		conn.Release() // closed, if it still waits
		if ctx.Err() == nil && waiting.Err() != nil {
			return nil, fmt.Errorf("another process has had the lock, or the database has not answered, for %s: %w", within, err)
		}
		return nil, err
	}
	return conn, nil
}

// first makes the first schema, if there is none that serves.
func first(ctx context.Context, pool *pgxpool.Pool, url string) (s Schema, err error) {
	err = locked(ctx, pool, func(conn *pgxpool.Conn) error {
		var found bool
		if s, found, err = serving(ctx, conn); found || err != nil {
			return err
		}
		if s, err = build(ctx, conn, url); err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return serve(ctx, tx, s.Name) })
	})
	return s, err
}

// build makes a schema with empty tables.
func build(ctx context.Context, conn *pgxpool.Conn, url string) (Schema, error) {
	s := Schema{State: Building}
	var base string
	if err := conn.QueryRow(ctx, "SELECT current_schema(), coalesce(max(n), 0) + 1 FROM audit_schemas").Scan(&base, &s.N); err != nil {
		return s, fmt.Errorf("name an audit schema: %w", err)
	}
	if len(base) > maxBase {
		return s, fmt.Errorf("name an audit schema: the schema %q that the database's search path names is longer than %d bytes", base, maxBase)
	}
	s.Name = fmt.Sprintf("%s_audit_%d", base, s.N)
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "CREATE SCHEMA "+pgx.Identifier{s.Name}.Sanitize())
		if err == nil {
			_, err = tx.Exec(ctx, "INSERT INTO audit_schemas (n, name, state) VALUES ($1, $2, 'building')", s.N, s.Name)
		}
		return err
	})
	if err != nil {
		return s, fmt.Errorf("make the schema %s: %w", s.Name, err)
	}
	return s, migrate(ctx, url, s.Name)
}

// migrate brings a schema's tables to what this binary knows.
func migrate(ctx context.Context, url, schema string) error {
	m, err := postgres.MigrateIn(url, schema, sql.Audit())
	if err != nil {
		return err
	}
	defer m.Close()
	ctx, cancel := context.WithTimeout(ctx, migrateWithin)
	defer cancel()
	if _, err := m.Up(ctx); err != nil {
		return fmt.Errorf("schema %s: %w", schema, err)
	}
	return nil
}

// serve makes a schema the one that serves: the one before it is replaced, and the views show the new one.
func serve(ctx context.Context, tx pgx.Tx, schema string) error {
	statements := []string{
		lockFor,
		"DROP VIEW IF EXISTS generations, attempts, admission_events",
		"UPDATE audit_schemas SET state = 'replaced', changed_at = now() WHERE state = 'serving'",
	}
	for _, t := range tables {
		statements = append(statements, fmt.Sprintf("CREATE VIEW %s AS SELECT %s FROM %s", t.name, strings.Join(t.columns, ", "), t.in(schema)))
	}
	for _, s := range statements {
		if _, err := tx.Exec(ctx, s); err != nil {
			return fmt.Errorf("let the schema %s serve: %w", schema, err)
		}
	}
	if _, err := tx.Exec(ctx, "UPDATE audit_schemas SET state = 'serving', changed_at = now() WHERE name = $1", schema); err != nil {
		return fmt.Errorf("let the schema %s serve: %w", schema, err)
	}
	return nil
}

// Drop drops the schemas in a state other than serving, and gives their names.
func Drop(ctx context.Context, pool *pgxpool.Pool, state string) (dropped []string, err error) {
	if state == Serving {
		return nil, errors.New("drop audit schemas: the one that serves stays")
	}
	err = locked(ctx, pool, func(conn *pgxpool.Conn) error {
		all, err := List(ctx, conn)
		if err != nil {
			return err
		}
		for _, s := range all {
			if s.State != state {
				continue
			}
			err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{s.Name}.Sanitize()+" CASCADE"); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, "DELETE FROM audit_schemas WHERE n = $1", s.N)
				return err
			})
			if err != nil {
				return fmt.Errorf("drop the schema %s: %w", s.Name, err)
			}
			dropped = append(dropped, s.Name)
		}
		return nil
	})
	return dropped, err
}
