package main

import (
	"cmp"
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
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/services/biller"
	"github.com/weirhq/weir/services/config"
)

// exportsCommand looks after what exports could not hand on.
type exportsCommand struct {
	List  exportsListCommand  `cmd:"" default:"1" help:"List the exports, their dead letters, and since when and why one is failing."`
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

// maxWhy bounds what is shown of a reason, in characters: it may have a receiver's whole answer.
const maxWhy = 300

// exportStatus is where an export of a process stands.
type exportStatus struct {
	Name    string     `json:"name"`
	Active  bool       `json:"active"` // this process hands on; else another, or none
	Sent    uint64     `json:"sent"`
	Retried uint64     `json:"retried"`
	Dead    uint64     `json:"dead_letters"`
	Behind  uint64     `json:"behind"`  // lines
	Failing *time.Time `json:"failing"` // since when every try has failed; null: the last one did not
	Failed  *time.Time `json:"failed"`  // when a try last failed; null: none has
	Why     string     `json:"why,omitempty"`
}

// exportsStatus gives them in the order of the configuration.
func exportsStatus(b biller.Status, exports []config.Export) (all []exportStatus) {
	instant := func(t time.Time) *time.Time {
		if t.IsZero() {
			return nil
		}
		t = t.UTC()
		return &t
	}
	for i := range exports {
		x := b.Exports[exports[i].Name]
		all = append(all, exportStatus{exports[i].Name, b.Writing, x.Exported, x.Failures, x.Dead, x.Behind, instant(x.Failing), instant(x.FailedAt), x.Failed})
	}
	return all
}

// String says how it does, in words.
func (x *exportStatus) String() string {
	switch {
	case !x.Active:
		return "not handed on by this process"
	case x.Failing != nil:
		why := []rune(strings.Join(strings.Fields(x.Why), " "))
		return fmt.Sprintf("failing since %s, %d behind: %s", x.Failing.Format(time.RFC3339), x.Behind, string(why[:min(len(why), maxWhy)]))
	case x.Behind > 0:
		return fmt.Sprintf("handing on, %d behind", x.Behind)
	}
	return "all handed on"
}

// exportsListCommand lists exports.
type exportsListCommand struct {
	URL string `help:"The process that bills; by default what serves at the address in the configuration." placeholder:"URL"`
	Key string `env:"WEIR_ADMIN_KEY" help:"Admin key."`
}

// Run prints a line an export, and how each does by the process that bills.
func (c *exportsListCommand) Run(cli *cli, out io.Writer) error {
	cfg, _, err := config.Load(cli.Config, os.Getenv)
	if err != nil {
		return err
	}
	return c.run(cfg, out)
}

func (c *exportsListCommand) run(cfg *config.Config, out io.Writer) error {
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
	if err := t.Flush(); err != nil || len(cfg.Exports) == 0 {
		return err
	}
	s, err := askStatus(cmp.Or(c.URL, "http://"+cfg.OperatorsAddress()), c.Key)
	if err != nil {
		_, err = fmt.Fprintf(out, "\nhow they do is not known: %v\n", err)
		return err
	}
	fmt.Fprintln(out)
	for i := range s.Exports {
		fmt.Fprintf(out, "%s: %s\n", s.Exports[i].Name, &s.Exports[i])
	}
	if len(s.Exports) == 0 {
		fmt.Fprintf(out, "how they do is not known: %s does not bill; name the process that does with --url\n", s.Name)
	}
	return nil
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
