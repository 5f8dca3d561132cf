package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/embedded"
	"github.com/weirhq/weir/gateway/authority/store"
	"github.com/weirhq/weir/services/config"
)

// copyWithin bounds a copy: reading both, and writing what may be large.
const copyWithin = 10 * time.Minute

// The names of the stores of authority.
const (
	storeKV       = "kv"
	storeDatabase = "database"
)

// authorityCopy takes what was made through the API over into the other store.
type authorityCopy struct {
	From string `enum:"kv,database" default:"kv" help:"Where it is: kv, the bucket of the log's broker, or database."`
	To   string `enum:"kv,database" default:"database" help:"Where it is to be."`
}

// Run copies, whole or not at all.
func (c *authorityCopy) Run(cli *cli, out io.Writer) error {
	cfg, _, err := config.Load(cli.Config, os.Getenv)
	if err != nil {
		return err
	}
	if err := c.copy(cfg, out); err != nil {
		return fmt.Errorf("authority copy: %w", err)
	}
	return nil
}

func (c *authorityCopy) copy(cfg *config.Config, out io.Writer) error {
	if c.From == c.To {
		return fmt.Errorf("from and to are both %s: one must be %s, the other %s", c.From, storeKV, storeDatabase)
	}
	if cfg.Database == "" {
		return errors.New("database: must be set to the one that is meant")
	}
	ctx, cancel := context.WithTimeout(context.Background(), copyWithin)
	defer cancel()
	n := &node{config: cfg, logger: newLogger(0), operator: cfg.Log.URL != ""}
	defer n.close()
	stores, err := n.bothStores(ctx, c.To == storeKV)
	if err != nil {
		return err
	}
	done, err := store.Copy(ctx, stores[c.From], stores[c.To], uuid.NewString())
	if err != nil {
		return err
	}
	switch {
	case done.Records == 0:
		fmt.Fprintf(out, "nothing was made through the API in %s: there is nothing to copy\n", c.From)
	case !done.Made:
		fmt.Fprintf(out, "%s holds the same %d records of %d orgs already\n", c.To, done.Records, done.Orgs)
	default:
		fmt.Fprintf(out, "copied %d records of %d orgs from %s to %s, with their ids, versions and sealed credentials\n", done.Records, done.Orgs, c.From, c.To)
		fmt.Fprintln(out, "whoever is signed in at the console signs in again; what was copied from is still there, and is read by nobody once every process has been started with the other")
	}
	return nil
}

// bothStores opens the bucket and the database of a configuration: where the log is another's, as an operator; where it is here, in place
// of the process that holds it.
func (n *node) bothStores(ctx context.Context, create bool) (stores map[string]store.Backend, err error) {
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	if !n.operator {
		n.config.Log.Listen = "" // nobody joins meanwhile
		n.roles = []string{roleBroker}
	}
	if n.name, err = access.NewName(n.config.Name); err != nil {
		return nil, err
	}
	if err := n.openDatabase(ctx); err != nil {
		return nil, err
	}
	if err := n.connect(ctx); err != nil {
		if errors.Is(err, embedded.ErrInUse) {
			return nil, fmt.Errorf("%w: stop it first, so that nothing is changed meanwhile", err)
		}
		return nil, err
	}
	kv, err := store.OpenKV(ctx, n.conn, store.KVConfig{Create: create, Users: true, Replicas: n.config.Log.Replicas})
	if err != nil {
		return nil, err
	}
	return map[string]store.Backend{storeKV: kv, storeDatabase: store.OpenPostgres(n.pool, store.PostgresConfig{Users: true})}, nil
}

// leftInBucket counts the changes of authority in the broker's bucket, where a database is configured that has none: somebody set it later,
// and what was made before is not there. 0 if it is not so, or not known.
func (n *node) leftInBucket(ctx context.Context) uint64 {
	if n.pool == nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, mayWithin)
	defer cancel()
	if head, err := store.OpenPostgres(n.pool, store.PostgresConfig{}).Head(ctx); err != nil || head.N > 0 {
		return 0
	}
	kv, err := store.OpenKV(ctx, n.conn, store.KVConfig{})
	if err != nil {
		return 0
	}
	head, err := kv.Head(ctx)
	if err != nil {
		return 0
	}
	return head.N
}
