// Package postgres is the way to PostgreSQL: a bounded pool of connections, and the schema's version. What is kept there has packages of
// its own.
package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

// Bounds of a pool.
const (
	// MaxConns is how many connections one process keeps; a server of 100 serves some ten processes.
	MaxConns = 8

	// ConnectWithin bounds the opening of one connection.
	ConnectWithin = 5 * time.Second

	// idleFor is how long an unused connection is kept.
	idleFor = 5 * time.Minute
)

// Open makes a pool. Nothing is connected yet: a server that is away now may come back. The error is of the URL, which may hold a
// password and is not shown.
func Open(url, name string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, errors.New("database: must be a URL like postgres://user:password@host:5432/name")
	}
	cfg.MaxConns = MaxConns
	cfg.MaxConnIdleTime = idleFor
	cfg.ConnConfig.ConnectTimeout = ConnectWithin
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = name
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	return pool, nil
}

// Refuses says whether err is a server's word that asking again will not change, as on a wrong password or a table that is not there. Any
// other error is its absence, or a word that it is not there for now.
func Refuses(err error) bool {
	word, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return false
	}
	switch word.Code[:min(2, len(word.Code))] {
	case "08", "25", "40", "53", "55", "57", "58": // connection, read-only, serialisation, resources, lock, operator, system
		return false
	}
	return true
}

// Migrations brings a schema from version to version.
type Migrations struct {
	db       *sql.DB
	provider *goose.Provider
}

// Migrate gives the migrations of a schema that a connection string's search path names. Close gives it back.
func Migrate(url string, migrations fs.FS) (*Migrations, error) {
	return MigrateIn(url, "", migrations)
}

// MigrateIn gives the migrations of a schema, whatever the connection string's search path. Close gives it back.
func MigrateIn(url, schema string, migrations fs.FS) (*Migrations, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, errors.New("database: must be a URL like postgres://user:password@host:5432/name")
	}
	cfg.ConnectTimeout = ConnectWithin
	if schema != "" {
		cfg.RuntimeParams["search_path"] = schema
	}
	db := stdlib.OpenDB(*cfg)
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the migrations: %w", err), db.Close())
	}
	return &Migrations{db, provider}, nil
}

// Close ends the connection.
func (m *Migrations) Close() error { return m.db.Close() }

// Up applies what is missing, and gives the versions that were applied, in order.
func (m *Migrations) Up(ctx context.Context) (applied []int64, err error) {
	results, err := m.provider.Up(ctx)
	for _, r := range results {
		if r.Error == nil {
			applied = append(applied, r.Source.Version)
		}
	}
	if err != nil {
		return applied, fmt.Errorf("migrate the database up: %w", err)
	}
	return applied, nil
}

// Down takes the newest migration back, and gives its version; 0 if there is none.
func (m *Migrations) Down(ctx context.Context) (int64, error) {
	result, err := m.provider.Down(ctx)
	if errors.Is(err, goose.ErrNoNextVersion) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("migrate the database down: %w", err)
	}
	return result.Source.Version, nil
}

// Versions are the schema's version and the newest that this binary knows.
func (m *Migrations) Versions(ctx context.Context) (have, newest int64, err error) {
	if have, err = m.provider.GetDBVersion(ctx); err != nil {
		return 0, 0, fmt.Errorf("read the database's version: %w", err)
	}
	for _, s := range m.provider.ListSources() {
		newest = max(newest, s.Version)
	}
	return have, newest, nil
}
