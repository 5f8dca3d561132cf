package postgres

import (
	"context"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Fits says why a binary with these migrations must not use a database's schema; empty: it may. Nothing is changed. The error says that
// the database could not be asked.
func Fits(ctx context.Context, pool *pgxpool.Pool, migrations fs.FS) (why string, err error) {
	known, err := versions(migrations)
	if err != nil {
		return "", err
	}
	applied, err := applied(ctx, pool)
	if err != nil {
		return "", fmt.Errorf("read the database's version: %w", err)
	}
	var missing, newest int64
	for v := range known {
		newest = max(newest, v)
		if !applied[v] && (missing == 0 || v < missing) {
			missing = v
		}
	}
	for v := range applied {
		if !known[v] {
			return fmt.Sprintf("the database's schema has version %d, and this binary knows up to %d: use a newer binary, or take it back with weir migrate down of the newer one", v, newest), nil
		}
	}
	if missing != 0 {
		return fmt.Sprintf("the database's schema lacks version %d, and this binary needs %d: run weir migrate", missing, newest), nil
	}
	return "", nil
}

// versions are those of migrations, by their files' names.
func versions(migrations fs.FS) (map[int64]bool, error) {
	paths, err := fs.Glob(migrations, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("read the migrations: %w", err)
	}
	known := make(map[int64]bool, len(paths))
	for _, path := range paths {
		number, _, _ := strings.Cut(path, "_")
		v, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read the migrations: %s: its name does not begin with a number", path)
		}
		known[v] = true
	}
	return known, nil
}

// applied are the versions that a schema has; none where none was ever applied.
func applied(ctx context.Context, pool *pgxpool.Pool) (map[int64]bool, error) {
	var there bool
	if err := pool.QueryRow(ctx, "SELECT to_regclass('goose_db_version') IS NOT NULL").Scan(&there); err != nil || !there {
		return nil, err
	}
	rows, err := pool.Query(ctx, "SELECT version_id FROM goose_db_version WHERE is_applied AND version_id > 0")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := map[int64]bool{}
	for rows.Next() {
		var v int64
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		all[v] = true
	}
	return all, rows.Err()
}
