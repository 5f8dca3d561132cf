package main

import (
	"context"
	"fmt"
	"time"

	"github.com/weirhq/weir/projections/postgres"
	"github.com/weirhq/weir/projections/postgres/sums"
	"github.com/weirhq/weir/schemas/sql"
	"github.com/weirhq/weir/services/biller"
)

// migrateWithin bounds the bringing up to date of the database's schema.
const migrateWithin = time.Minute

// openDatabase makes the pool of connections to the database, if there is to be one. Nothing is connected yet.
func (n *node) openDatabase() (err error) {
	if n.config.Database == "" {
		return nil
	}
	n.pool, err = postgres.Open(n.config.Database, "weir "+n.name)
	return err
}

// migrate brings the database's schema up to date. It may be called at any time, by several processes.
func (n *node) migrate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, migrateWithin)
	defer cancel()
	m, err := postgres.Migrate(n.config.Database, sql.Migrations)
	if err != nil {
		return err
	}
	defer m.Close()
	applied, err := m.Up(ctx)
	if err != nil {
		return fmt.Errorf("database: %w", err)
	}
	if len(applied) > 0 {
		n.logger.Info("the database's schema was brought up to date", "versions", applied)
	}
	return nil
}

// tables is where usage by hour and day is kept; nil without a database.
func (n *node) tables() *biller.Tables {
	if n.pool == nil {
		return nil
	}
	return &biller.Tables{Table: sums.New(n.pool), Prepare: n.migrate}
}
