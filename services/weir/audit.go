package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/postgres"
	"github.com/weirhq/weir/projections/postgres/audit"
	"github.com/weirhq/weir/services/auditor"
	"github.com/weirhq/weir/services/config"
)

// auditCommand looks after the audit records in the database.
type auditCommand struct {
	Status  auditStatus  `cmd:"" default:"1" help:"List the schemas that hold audit records, and say which one serves."`
	Rebuild auditRebuild `cmd:"" help:"Fold the log from its beginning into new records while those that serve are written on, and let the new ones serve."`
	Drop    auditDrop    `cmd:"" help:"Drop the records that a rebuild has replaced."`
}

type (
	auditStatus  struct{}
	auditDrop    struct{}
	auditRebuild struct {
		sourceFlags `embed:""`

		Drop bool `help:"Drop what was replaced at once."`
	}
)

// auditing opens the configured database.
func auditing(cli *cli, f func(context.Context, *config.Config, *pgxpool.Pool) error) error {
	cfg, _, err := config.Load(cli.Config, os.Getenv)
	if err != nil {
		return err
	}
	if cfg.Database == "" {
		return errors.New("database: must be set: without one audit records are in a bucket, which is not rebuilt")
	}
	pool, err := postgres.Open(cfg.Database, "weir audit")
	if err != nil {
		return err
	}
	defer pool.Close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return f(ctx, cfg, pool)
}

// Run lists the schemas.
func (*auditStatus) Run(cli *cli, out io.Writer) error {
	return auditing(cli, func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
		all, err := audit.List(ctx, pool)
		if err != nil {
			return err
		}
		t := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
		fmt.Fprintln(t, "schema\tstate\tsince")
		for _, s := range all {
			fmt.Fprintf(t, "%s\t%s\t%s\n", s.Name, s.State, s.Changed.UTC().Format(time.RFC3339))
		}
		return t.Flush()
	})
}

// Run drops what was replaced.
func (*auditDrop) Run(cli *cli, out io.Writer) error {
	return auditing(cli, func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
		return dropReplaced(ctx, pool, out)
	})
}

func dropReplaced(ctx context.Context, pool *pgxpool.Pool, out io.Writer) error {
	dropped, err := audit.Drop(ctx, pool, audit.Replaced)
	for _, name := range dropped {
		fmt.Fprintf(out, "dropped %s\n", name)
	}
	if err == nil && len(dropped) == 0 {
		fmt.Fprintln(out, "there is nothing to drop")
	}
	return err
}

// Run rebuilds: with the log itself where this process can read it, else in the process that keeps it.
func (c *auditRebuild) Run(cli *cli, out io.Writer) error {
	return auditing(cli, func(ctx context.Context, cfg *config.Config, pool *pgxpool.Pool) error {
		s, err := c.open(ctx, cli.Config)
		if err != nil {
			return err
		}
		defer s.close()
		told := showProgress(out)
		switch s := s.(type) {
		case *liveLog:
			err = rebuildAudit(ctx, cfg, pool, s.log, s.conn, told)
		case *httpLog:
			err = s.rebuild(ctx, told)
		default:
			err = errors.New("rebuild the audit records: a recorded log does not have all that they need; read a live one")
		}
		if err == nil && c.Drop {
			err = dropReplaced(ctx, pool, out)
		}
		return err
	})
}

// showEvery is how often a rebuild says how far it has come.
const showEvery = time.Second

func showProgress(out io.Writer) func(auditor.Progress) {
	var shown time.Time
	return func(p auditor.Progress) {
		switch {
		case p.Done:
			fmt.Fprintf(out, "the new records serve: up to sequence %d, %d carried over\n", p.Position, p.Carried)
		case time.Since(shown) >= showEvery:
			shown = time.Now()
			fmt.Fprintf(out, "at sequence %d of %d, %d records carried over\n", p.Position, p.Last, p.Carried)
		}
	}
}

// rebuildAudit rebuilds with a log that this process reads.
func rebuildAudit(ctx context.Context, cfg *config.Config, pool *pgxpool.Pool, log *journal.Log, conn *nats.Conn, told func(auditor.Progress)) error {
	name, err := access.NewName("rebuild")
	if err != nil {
		return err
	}
	logger := newLogger(slog.LevelWarn)
	beside, err := audit.NewRebuild(ctx, audit.Config{URL: cfg.Database, Pool: pool, Writer: name, Retention: cfg.Audit.Retention,
		Warn: func(doing string, err error) { logger.Warn("audit: "+doing, "error", err) }})
	if err != nil {
		return err
	}
	defer beside.Done()
	return auditor.Rebuild(ctx, auditor.Config{Conn: conn, Log: log, Name: name, Logger: logger}, beside, told)
}

// rebuildLine is a line of the answer to POST /audit/rebuild.
type rebuildLine struct {
	auditor.Progress
	Error string `json:"error,omitempty"`
}

// serveRebuild rebuilds the audit records while the caller reads how far it has come, a line of JSON each second. A caller who leaves ends
// it; what serves is then as it was.
func (n *node) serveRebuild(w http.ResponseWriter, r *http.Request) {
	if !operator(r, n.config.AdminKeys) {
		noKey(w)
		return
	}
	if n.pool == nil {
		http.Error(w, `{"error":"database: is not set for the process that keeps the log"}`, http.StatusNotImplemented)
		return
	}
	control := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	write := func(l rebuildLine) {
		_ = control.SetWriteDeadline(time.Now().Add(logWriteWithin)) // where it cannot be set, the connection's own bound holds
		_ = json.NewEncoder(w).Encode(l)                             // who asked is gone, then
		_ = control.Flush()
	}
	var told time.Time
	err := rebuildAudit(r.Context(), n.config, n.pool, n.log, n.conn, func(p auditor.Progress) {
		if p.Done || time.Since(told) >= showEvery {
			told = time.Now()
			write(rebuildLine{Progress: p})
		}
	})
	if err != nil {
		write(rebuildLine{Error: err.Error()})
	}
}

// rebuild asks the process that keeps the log to rebuild.
func (h *httpLog) rebuild(ctx context.Context, told func(auditor.Progress)) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url+"/audit/rebuild", nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+h.key)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("ask the running process to rebuild: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("ask the running process to rebuild: %s answered %s (is WEIR_ADMIN_KEY set?)", h.url, answer.Status)
	}
	var line rebuildLine
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		line = rebuildLine{}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return fmt.Errorf("read how far the rebuild is: %w", err)
		}
		if line.Error != "" {
			return errors.New(line.Error)
		}
		told(line.Progress)
	}
	if !line.Done {
		return errors.New("rebuild the audit records: the running process ended it")
	}
	return nil
}
