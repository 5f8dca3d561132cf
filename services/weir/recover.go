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
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/services/config"
	"github.com/weirhq/weir/services/ledger"
)

const (
	recoverWithin = 10 * time.Minute // a long log is read whole
	claimsEach    = 32               // budgets of one reserve
)

// recoverCommand goes on after the log was replaced, lost or cut, or after its clock was wrong.
type recoverCommand struct {
	Windows string `enum:"full,empty" default:"full" help:"What limits count as used at first: full, so that nothing that has a limit passes for a minute, or empty."`
	Reason  string `required:"" help:"Why, for the log."`
	URL     string `help:"Where a process serves that is asked first; by default the address in the configuration."`
	Key     string `env:"WEIR_ADMIN_KEY" help:"Admin key, for that process."`
}

// order is what a running process is asked.
type order struct {
	Windows string `json:"windows"`
	Reason  string `json:"reason"`
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
	r := recovery{n: n, order: order{c.Windows, c.Reason}, out: out}
	if err := r.run(ctx); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	return nil
}

// ask asks a running process.
func (c *recoverCommand) ask(ctx context.Context) (string, error) {
	body, err := json.Marshal(order{c.Windows, c.Reason})
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
	seq, err := n.log.Publish(r.Context(), recoverEvent(o))
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintf(w, "recovered at sequence %d, windows %s\n", seq, o.Windows)
}

func recoverEvent(o order) events.Event {
	return events.Event{ID: "recover/" + uuid.NewString(), Org: events.Platform, Data: &events.Recover{Reason: o.Reason, Windows: o.Windows}}
}

// recovery is one run of the command on a log that nobody else writes.
type recovery struct {
	n     *node
	order order
	out   io.Writer
	log   *journal.Log
	id    string // of the ledger that begins
}

func (r *recovery) say(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }

// run writes to the log what the one before is known to have held, then that it was recovered, and then the new mark.
func (r *recovery) run(ctx context.Context) (err error) {
	n := r.n
	if r.log, err = journal.Open(ctx, n.conn, journal.Config{Create: true, Replicas: n.config.Log.Replicas, MaxAge: n.config.Log.MaxAge, MaxBytes: n.maxBytes()}); err != nil {
		return err
	}
	info, err := r.log.Info(ctx)
	if err != nil {
		return err
	}
	old, found, err := ledger.Read(n.ledgerDir())
	if err != nil {
		r.say("the mark of the log before cannot be read, and is replaced: %v", err)
	}
	r.id = uuid.NewString()
	if found {
		r.say("the mark says: ledger %s, made %s, sequence %d", old.ID, old.Created.UTC().Format(time.RFC3339Nano), old.Seq)
	}
	r.say("the log is: made %s, sequences %d to %d", info.Created.UTC().Format(time.RFC3339Nano), info.First, info.Last)
	present, err := r.fold(ctx)
	if err != nil {
		return err
	}
	if found {
		if err := r.skip(ctx, old, info); err != nil {
			return err
		}
	}
	past, from, err := r.past()
	if err != nil {
		return err
	}
	if past != nil && (!past.created.Equal(info.Created) || past.fold.Seq() > info.Last) {
		r.say("what was held before is taken from %s, as of sequence %d", from, past.fold.Seq())
		if err := r.restore(ctx, past.fold, present); err != nil {
			return err
		}
		aside := filepath.Join(n.config.DataDir, "snapshots.before-"+r.id[:8])
		if err := os.Rename(filepath.Join(n.config.DataDir, "snapshots"), aside); err != nil {
			return err
		}
		r.say("its snapshots are set aside in %s", aside)
	}
	seq, err := r.log.Publish(ctx, recoverEvent(r.order))
	if err != nil {
		return err
	}
	return r.mark(ctx, info.Created, seq)
}

// mark begins the new ledger.
func (r *recovery) mark(ctx context.Context, created time.Time, seq uint64) error {
	n := r.n
	m := ledger.Mark{ID: r.id, Created: created, Seq: seq, At: time.Now(), Recovered: time.Now(), Reason: r.order.Reason}
	if err := r.log.Read(ctx, seq, seq, func(rec events.Record) error { m.Tail = ledger.Tail(&rec); return nil }); err != nil {
		return err
	}
	shared, _, err := n.sharedMark(ctx, true)
	if err != nil {
		return err
	}
	if err := shared.Keep(ctx, m); err != nil {
		return err
	}
	if err := ledger.Replace(n.ledgerDir(), m); err != nil {
		return err
	}
	r.say("recovered at sequence %d with windows %s: ledger %s. Start the processes that hold the log; gateways go on by themselves.", seq, r.order.Windows, m.ID)
	return nil
}

// fold folds the log as it is.
func (r *recovery) fold(ctx context.Context) (*admission.Fold, error) {
	f := admission.New()
	err := r.log.Read(ctx, 0, 0, func(rec events.Record) error { f.Apply(&rec); return nil })
	return f, err
}

// snapshot is the fold as a projector kept it.
type snapshot struct {
	created time.Time
	fold    *admission.Fold
}

// past reads the newest snapshot that can be read.
func (r *recovery) past() (*snapshot, string, error) {
	paths, err := filepath.Glob(filepath.Join(r.n.config.DataDir, "snapshots", "admission-*.snapshot"))
	if err != nil {
		return nil, "", err
	}
	sort.Strings(paths)
	for i := len(paths) - 1; i >= 0; i-- {
		b, err := os.ReadFile(paths[i])
		if err != nil {
			return nil, "", err
		}
		created, f, err := ledger.ReadSnapshot(b)
		if err == nil {
			return &snapshot{created, f}, paths[i], nil
		}
		r.say("%s cannot be used: %v", paths[i], err)
	}
	r.say("no snapshot of a projector is there: balances, budgets and fences of before are not known here")
	return nil, "", nil
}

// restore publishes what the log lacks of what was held before: fences, balances and the sums of running budgets.
func (r *recovery) restore(ctx context.Context, past, present *admission.Fold) error {
	now := map[events.Meter]admission.Reading{}
	for _, m := range present.Meters() {
		now[m.Meter] = m
	}
	orgs := map[events.Org]bool{}
	var budgets []events.Claim
	for _, m := range past.Meters() {
		scope, _, _ := m.Meter.Split()
		if scope == events.ScopeOrg {
			orgs[events.Org(m.Meter.Parts()[0])] = true
		}
		switch m.Kind {
		case events.Balance:
			if err := r.credit(ctx, m.Meter, m.Total-now[m.Meter].Total); err != nil {
				return err
			}
		case events.Budget:
			if diff := m.Used - now[m.Meter].Used; diff > 0 && running(m.Meter, past.Now(), time.Now()) {
				budgets = append(budgets, events.Claim{Meter: m.Meter, Kind: events.Budget, Period: periodOf(m.Meter), Amount: diff, Limit: m.Limit, HasLimit: m.HasLimit, Basis: "fixed"})
			}
		}
	}
	for org := range r.n.declared() {
		orgs[org] = true
	}
	for org := range orgs {
		version := past.Fence(org)
		if version <= present.Fence(org) {
			continue
		}
		ev := events.Event{ID: fmt.Sprintf("recover/%s/%s/fence", r.id, org), Org: org, Data: &events.Fence{Org: org, Version: version}}
		if _, err := r.log.Publish(ctx, ev); err != nil {
			return err
		}
		r.say("%s: fence %d", org, version)
	}
	return r.budgets(ctx, budgets)
}

// declared are the orgs of the configuration.
func (n *node) declared() map[events.Org]bool {
	all := map[events.Org]bool{}
	source := n.config.Source()
	if s, _, err := source.Load(); err == nil { // what is invalid is for weir check to say
		for org := range s.Orgs {
			all[org] = true
		}
	}
	return all
}

func (r *recovery) credit(ctx context.Context, m events.Meter, amount int64) error {
	if amount == 0 {
		return nil
	}
	org := events.Org(m.Parts()[0])
	reference := fmt.Sprintf("recover/%s/%s", r.id, org)
	ev := events.Event{ID: reference + "/credit", Org: org, Data: &events.Credit{Org: org, AmountNano: amount, Reference: reference}}
	if _, err := r.log.Publish(ctx, ev); err != nil {
		return err
	}
	r.say("%s: credit of %d nano-dollars", org, amount)
	return nil
}

func periodOf(m events.Meter) events.Period {
	if _, _, dimension := m.Split(); dimension == "spend-month" {
		return events.Month
	}
	return events.Day
}

// running says whether the period in which a budget was last charged still runs.
func running(m events.Meter, then int64, now time.Time) bool {
	layout := time.DateOnly
	if periodOf(m) == events.Month {
		layout = "2006-01"
	}
	return time.Unix(0, then).UTC().Format(layout) == now.UTC().Format(layout)
}

// budgets charges what budgets had been charged: a request for some of them each, admitted, settled and ended.
func (r *recovery) budgets(ctx context.Context, all []events.Claim) error {
	if len(all) == 0 {
		return nil
	}
	gateway := events.Gateway(r.n.name)
	p, err := r.log.Publisher(ctx, journal.PublisherConfig{Gateway: gateway, Now: time.Now})
	if err != nil {
		return err
	}
	working, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(working) }()
	defer func() { stop(); <-ended }()
	for i := 0; i < len(all); i += claimsEach {
		id := events.RequestID(uuid.Must(uuid.NewV7()).String())
		for what, d := range map[string]events.Data{
			"0": &events.Reserve{Request: id, Org: events.Platform, Gateway: gateway, Epoch: 1, Mode: events.ModeBoundedLocal, MaxMS: events.DefaultMaxMS,
				Operation: "recover", Claims: all[i:min(i+claimsEach, len(all))]},
			"0/true-up/1": &events.TrueUp{Request: id, Gateway: gateway, N: 1, Final: true},
			"0/release":   &events.Release{Request: id, Gateway: gateway, Outcome: events.Completed, Dispatched: events.DispatchedYes},
		} {
			if err := p.Submit(events.Event{ID: string(id) + "/" + what, Source: string(gateway), Subject: string(id), Org: events.Platform, Data: d}, nil); err != nil {
				return err
			}
		}
	}
	if err := p.Flush(ctx); err != nil {
		return err
	}
	r.say("%d running budgets", len(all))
	return nil
}
