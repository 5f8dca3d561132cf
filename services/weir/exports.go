package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/services/biller"
	"github.com/weirhq/weir/services/config"
)

// exportsCommand looks after what exports could not hand on.
type exportsCommand struct {
	List  exportsListCommand  `cmd:"" default:"1" help:"List the exports and their dead letters."`
	Retry exportsRetryCommand `cmd:"" help:"Send dead letters again, under the ids that they had."`
}

// exportsOf are the exports of a configuration, as the biller runs them.
func exportsOf(cfg *config.Config) []biller.Export {
	exports := make([]biller.Export, 0, len(cfg.Exports))
	for i := range cfg.Exports {
		x := &cfg.Exports[i]
		exports = append(exports, biller.Export{Name: x.Name, To: exporter(x), Batch: x.Batch, From: x.From, Orgs: x.Orgs,
			FirstWait: x.RetryFirst, MaxWait: x.RetryMost, DeadLetters: letters(cfg, x)})
	}
	return exports
}

// letters is the file of an export's dead letters.
func letters(cfg *config.Config, x *config.Export) string {
	dir := x.DeadLetters
	if dir == "" {
		dir = filepath.Join(cfg.DataDir, biller.Folder)
	}
	return biller.LetterFile(dir, x.Name)
}

// exporter is what hands lines on.
func exporter(x *config.Export) biller.Exporter {
	to := biller.Endpoint{URL: x.URL, Secret: x.Secret, Timeout: x.Timeout}
	switch x.Type {
	case config.ExportCloudEvents:
		return &biller.CloudEvents{Endpoint: to}
	case config.ExportStripe:
		to.Header = http.Header{"Stripe-Version": {x.Version}}
		m := &biller.MeterEvents{Endpoint: to, Event: x.Event, Amount: biller.Amount(x.Amount)}
		if customers := x.Customers; customers != nil {
			m.Customer = func(org events.Org) (string, bool) { c, known := customers[org]; return c, known }
		}
		return m
	}
	return &biller.CSV{Dir: x.Path}
}

// exportsListCommand lists exports.
type exportsListCommand struct{}

// Run prints a line an export.
func (c *exportsListCommand) Run(cli *cli, out io.Writer) error {
	cfg, _, err := config.Load(cli.Config, os.Getenv)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "name\ttype\tto\tdead letters\tin")
	for i := range cfg.Exports {
		x := &cfg.Exports[i]
		path := letters(cfg, x)
		n, err := biller.Letters(path)
		if err != nil {
			return fmt.Errorf("exports: %s: %w", x.Name, err)
		}
		to := x.URL
		if x.Type == config.ExportCSV {
			to = x.Path
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\n", x.Name, x.Type, to, n, path)
	}
	return t.Flush()
}

// exportsRetryCommand sends dead letters again.
type exportsRetryCommand struct {
	Name []string `arg:"" optional:"" help:"Exports, by name. By default all."`
}

// Run says what was taken. What was not is an error.
func (c *exportsRetryCommand) Run(cli *cli, out io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg, _, err := config.Load(cli.Config, os.Getenv)
	if err != nil {
		return err
	}
	return c.run(ctx, cfg, out)
}

func (c *exportsRetryCommand) run(ctx context.Context, cfg *config.Config, out io.Writer) error {
	asked := map[string]bool{}
	for _, name := range c.Name {
		asked[name] = true
	}
	left := 0
	for i := range cfg.Exports {
		x := &cfg.Exports[i]
		if len(c.Name) > 0 && !asked[x.Name] {
			continue
		}
		delete(asked, x.Name)
		if x.Type == config.ExportCSV {
			fmt.Fprintf(out, "%s: files take every line\n", x.Name)
			continue
		}
		sent, dead, err := biller.Retry(ctx, letters(cfg, x), exporter(x))
		fmt.Fprintf(out, "%s: %d sent, %d dead\n", x.Name, sent, dead)
		if err != nil {
			return fmt.Errorf("exports: %s: %w", x.Name, err)
		}
		left += dead
	}
	if len(asked) > 0 {
		names := []string{}
		for name := range asked {
			names = append(names, name)
		}
		return fmt.Errorf("exports: %s: the configuration has no export of this name", strings.Join(names, ", "))
	}
	if left > 0 {
		return fmt.Errorf("exports: rejected again: %d; their reasons are in the files", left)
	}
	return nil
}
