// Package audittest gives tests a database for audit records.
package audittest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/projections/postgres"
	"github.com/weirhq/weir/projections/postgres/audit"
	"github.com/weirhq/weir/schemas/sql"
	"github.com/weirhq/weir/test/postgrestest"
)

// patience bounds what is done before and after a test.
const patience = time.Minute

// Database gives a base schema with its tables, and a pool of connections to it. Its audit schemas are dropped when the test ends.
func Database(tb testing.TB) (url string, pool *pgxpool.Pool) {
	tb.Helper()
	url = postgrestest.URL(tb)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m, err := postgres.Migrate(url, sql.Migrations)
	if err != nil {
		tb.Fatal(err)
	}
	defer m.Close()
	if _, err := m.Up(ctx); err != nil {
		tb.Fatal(err)
	}
	if pool, err = postgres.Open(url, tb.Name()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		defer pool.Close()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		all, err := audit.List(ctx, pool)
		if err != nil {
			tb.Error(err)
		}
		for _, s := range all {
			if _, err := pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+s.Name+" CASCADE"); err != nil {
				tb.Error(err)
			}
		}
	})
	return url, pool
}
