package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/weirhq/weir/gateway/inquiry"
	"github.com/weirhq/weir/projections/postgres"
	"github.com/weirhq/weir/projections/postgres/audit"
	"github.com/weirhq/weir/projections/postgres/sums"
	"github.com/weirhq/weir/schemas/sql"
	"github.com/weirhq/weir/services/auditor"
	"github.com/weirhq/weir/services/biller"
	"github.com/weirhq/weir/services/config"
	"github.com/weirhq/weir/services/follow"
)

const (
	migrateWithin = 10 * time.Minute // a large table is rewritten
	databaseFor   = 10 * time.Second // until it is said that a database does not answer
)

// openDatabase opens the database that the configuration names, if it names one, and refuses a schema that this binary does not know.
// A database that does not answer yet is waited for.
func (n *node) openDatabase(ctx context.Context) (err error) {
	if n.config.Database == "" {
		return nil
	}
	if n.pool, err = postgres.Open(n.config.Database, "weir "+n.name); err != nil {
		return err
	}
	why := ""
	err = n.await(ctx, "the database", func(err error) bool { return !postgres.Refuses(err) }, func(ctx context.Context) (err error) {
		why, err = n.fits(ctx)
		return err
	})
	switch {
	case postgres.Refuses(err):
		return fmt.Errorf("database (WEIR_DATABASE): it turns this process away; weir migrate status asks it likewise: %w", err)
	case err != nil:
		return fmt.Errorf("the database does not answer: %w", err)
	case why != "":
		return errors.New(why)
	}
	return nil
}

// fits says why the database's schema is not one to work with, if it is not.
func (n *node) fits(ctx context.Context) (why string, err error) {
	ctx, cancel := context.WithTimeout(ctx, databaseFor)
	defer cancel()
	return postgres.Fits(ctx, n.pool, sql.Migrations)
}

// audited is where the auditor keeps records; nil without a database: then in a bucket.
func (n *node) audited() auditor.Store {
	if n.pool == nil {
		return nil
	}
	return audit.New(audit.Config{URL: n.config.Database, Pool: n.pool, Writer: n.name, Retention: n.config.Audit.Retention,
		Warn: follow.NewWarnings("audit", n.logger, time.Now).Warn})
}

// generations answers records.
func (n *node) generations() inquiry.Generations {
	if n.pool == nil {
		return auditor.NewReader(n.conn)
	}
	return audit.NewReader(n.pool)
}

// tables is where usage by hour and day is kept; nil without a database.
func (n *node) tables() *biller.Tables {
	if n.pool == nil {
		return nil
	}
	return &biller.Tables{Table: sums.New(n.pool)}
}

// migrateCommand brings the database's schema to the version that this binary needs.
type migrateCommand struct {
	Up     migrateUp     `cmd:"" default:"1" help:"Apply what is missing."`
	Down   migrateDown   `cmd:"" help:"Take the newest migration back, and what it holds with it."`
	Status migrateStatus `cmd:"" help:"Say which version the schema has, and which this binary needs."`
}

type (
	migrateUp     struct{}
	migrateDown   struct{}
	migrateStatus struct{}
)

// migrating opens the migrations of the configured database.
func migrating(cli *cli, f func(context.Context, *postgres.Migrations) error) error {
	cfg, _, err := config.Load(cli.Config, os.Getenv)
	if err != nil {
		return err
	}
	if cfg.Database == "" {
		return errors.New("database: must be set to migrate it")
	}
	m, err := postgres.Migrate(cfg.Database, sql.Migrations)
	if err != nil {
		return err
	}
	defer m.Close()
	ctx, cancel := context.WithTimeout(context.Background(), migrateWithin)
	defer cancel()
	return f(ctx, m)
}

// Run applies what is missing.
func (*migrateUp) Run(cli *cli, out io.Writer) error {
	return migrating(cli, func(ctx context.Context, m *postgres.Migrations) error {
		applied, err := m.Up(ctx)
		for _, v := range applied {
			fmt.Fprintf(out, "applied %d\n", v)
		}
		if err != nil {
			return err
		}
		have, newest, err := m.Versions(ctx)
		if err != nil {
			return err
		}
		if have > newest {
			return fmt.Errorf("the schema has version %d, and this binary knows up to %d: nothing was changed", have, newest)
		}
		fmt.Fprintf(out, "the schema has version %d\n", have)
		return nil
	})
}

// Run takes the newest migration back.
func (*migrateDown) Run(cli *cli, out io.Writer) error {
	return migrating(cli, func(ctx context.Context, m *postgres.Migrations) error {
		v, err := m.Down(ctx)
		switch {
		case err != nil:
			return err
		case v == 0:
			fmt.Fprintln(out, "there is nothing to take back")
		default:
			fmt.Fprintf(out, "took %d back\n", v)
		}
		return nil
	})
}

// Run prints the versions.
func (*migrateStatus) Run(cli *cli, out io.Writer) error {
	return migrating(cli, func(ctx context.Context, m *postgres.Migrations) error {
		have, newest, err := m.Versions(ctx)
		if err != nil {
			return err
		}
		state := "up to date"
		switch {
		case have < newest:
			state = "older: run weir migrate"
		case have > newest:
			state = "newer: use a newer binary, or weir migrate down with it"
		}
		t := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
		fmt.Fprintf(t, "schema\t%d\nbinary\t%d\nstate\t%s\n", have, newest, state)
		return t.Flush()
	})
}
