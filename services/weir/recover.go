package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/services/config"
)

// recoverWithin bounds a recovery: a long log is read whole.
const recoverWithin = 10 * time.Minute

// recoverCommand goes on after the log was replaced, lost or cut, or after its clock was wrong.
type recoverCommand struct {
	Windows string `enum:"full,empty" default:"full" help:"What limits count as used at first: full, so that nothing that has a limit passes for a minute, or empty."`
	Reason  string `required:"" help:"Why, for the log."`
	Unknown bool   `name:"accept-unknown" help:"Go on where nothing tells what balances, budgets and fences were: prepaid orgs have nothing until they are credited anew, and spend caps and daily budgets begin unused."`
	Anyway  bool   `help:"Go on although the running process finds nothing wrong with the log."`
	URL     string `help:"Where a process serves that is asked first; by default the address in the configuration."`
	Key     string `env:"WEIR_ADMIN_KEY" help:"Admin key, for that process."`
}

// order is what a running process is asked.
type order struct {
	Windows string `json:"windows"`
	Reason  string `json:"reason"`
	Anyway  bool   `json:"anyway,omitempty"` // although nothing is wrong
}

// Run asks the running process, or works on the log itself where none runs.
func (c *recoverCommand) Run(cli *cli, out io.Writer) error {
	cfg, _, err := config.Load(cli.Config, os.Getenv)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), recoverWithin)
	defer cancel()
	if cfg.Log.URL == "" {
		if c.URL == "" {
			c.URL = "http://" + cfg.OperatorsAddress()
		}
		text, err := c.ask(ctx)
		if err == nil {
			fmt.Fprintln(out, text)
			return nil
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
	}
	n := &node{config: cfg, logger: newLogger(0), operator: cfg.Log.URL != ""}
	if !n.operator {
		cfg.Log.Listen = "" // nobody joins meanwhile
		n.roles = []string{roleBroker}
	}
	if n.name, err = access.NewName(cfg.Name); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	defer n.close()
	opening, stop := context.WithTimeout(ctx, openWithin)
	defer stop()
	if err := n.openDatabase(opening); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	if err := n.connect(opening); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	r := recovery{n: n, order: order{Windows: c.Windows, Reason: c.Reason}, unknown: c.Unknown, out: out}
	if err := r.run(ctx); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	return nil
}

// ask asks a running process.
func (c *recoverCommand) ask(ctx context.Context) (string, error) {
	body, err := json.Marshal(order{c.Windows, c.Reason, c.Anyway})
	if err != nil {
		return "", err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(c.URL, "/")+"/recover", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	q.Header.Set("Authorization", "Bearer "+c.Key)
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return "", fmt.Errorf("recover: %w", err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(io.LimitReader(a.Body, 64<<10))
	if err != nil {
		return "", fmt.Errorf("recover: %w", err)
	}
	if a.StatusCode != http.StatusOK {
		return "", fmt.Errorf("recover: %s answered %s: %s", c.URL, a.Status, strings.TrimSpace(string(text)))
	}
	return strings.TrimSpace(string(text)), nil
}

// serveRecover publishes a recovery to a log that is the right one, as after a clock that was wrong.
func (n *node) serveRecover(w http.ResponseWriter, r *http.Request) {
	if !operator(r, n.config.AdminKeys) {
		http.Error(w, "an admin key is needed (WEIR_ADMIN_KEY)", http.StatusUnauthorized)
		return
	}
	var o order
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&o); err != nil || o.Reason == "" || o.Windows != "full" && o.Windows != "empty" {
		http.Error(w, "reason must be given, and windows be full or empty", http.StatusBadRequest)
		return
	}
	if why := n.ledger.Why(); why != "" {
		http.Error(w, why+". Stop the processes that hold the log, run weir recover again where its data directory is, and start them.", http.StatusConflict)
		return
	}
	if n.broker == nil {
		http.Error(w, "the log is another process's: run weir recover there", http.StatusConflict)
		return
	}
	if n.projector != nil && n.why() == "" && !o.Anyway { // another process's projector may know more
		http.Error(w, "nothing is wrong with the log as far as this process knows, and with windows full a recovery refuses for a minute what has a limit on a minute: "+
			"nothing was done. weir recover --anyway does it all the same.", http.StatusConflict)
		return
	}
	seq, err := n.log.Publish(r.Context(), recoverEvent(o, lost{}))
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintf(w, "recovered at sequence %d, windows %s\n", seq, o.Windows)
}

// lost are the sequences of a log that were used before and whose messages are lost; zero: there are none.
type lost struct{ from, to uint64 }

func recoverEvent(o order, l lost) events.Event {
	return events.Event{ID: "recover/" + uuid.NewString(), Org: events.Platform,
		Data: &events.Recover{Reason: o.Reason, Windows: o.Windows, LostFrom: l.from, LostTo: l.to}}
}
