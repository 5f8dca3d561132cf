package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sort"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weirhq/weir/gateway/manage"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/projector"
	"github.com/weirhq/weir/services/config"
	"github.com/weirhq/weir/services/gateway"
)

// statusWithin bounds the question for a process's status.
const statusWithin = 5 * time.Second

// processStatus is what a process says of itself.
type processStatus struct {
	Name      string           `json:"name"`
	Version   string           `json:"version"`
	Roles     []string         `json:"roles"`
	Gateway   *gatewayStatus   `json:"gateway,omitempty"`
	Projector *projectorStatus `json:"projector,omitempty"`
	Log       *logStatus       `json:"log,omitempty"`
	Ledger    *ledgerStatus    `json:"ledger,omitempty"`
	Authority *authorityState  `json:"authority,omitempty"`
	Exports   []exportStatus   `json:"exports,omitempty"`
}

// authorityState is how the authority made through the API is known here.
type authorityState struct {
	Store      string           `json:"store"` // postgres or kv
	Manages    bool             `json:"manages"`
	VerifiedMS int64            `json:"verified_ms"` // ago; -1: never
	Behind     []gateway.Behind `json:"behind"`
	Left       uint64           `json:"left_in_kv,omitempty"` // changes in the bucket, where the database has none
}

type gatewayStatus struct {
	Address      string `json:"address"`
	Epoch        int64  `json:"epoch"`
	Reservations int    `json:"reservations"`
	Unanswered   int    `json:"unanswered"`
	Outage       bool   `json:"outage"`
	Spooled      int    `json:"spooled"`
	Why          string `json:"why,omitempty"` // it admits nothing
}

// ledgerStatus is the mark of the right log: its high-water sequence, and why admission is stopped.
type ledgerStatus struct {
	ID  string `json:"id"`
	Seq uint64 `json:"seq"`
	Why string `json:"why,omitempty"`
}

type projectorStatus struct {
	Ready    bool          `json:"ready"`
	Why      string        `json:"why,omitempty"`
	Seq      uint64        `json:"seq"`
	Behind   uint64        `json:"behind"`
	LagMS    int64         `json:"lag_ms"`
	ClockMS  int64         `json:"clock_ms"` // the stream's clock less this process's own, the most of the last 10 to 20 s
	Rules    int64         `json:"rules"`
	Writer   bool          `json:"writer"`
	Digest   string        `json:"digest"`
	Meters   int           `json:"meters"`
	Requests int           `json:"requests"`
	Waiting  int           `json:"waiting"`
	Leases   []leaseStatus `json:"leases"`
}

type leaseStatus struct {
	Gateway string    `json:"gateway"`
	Epoch   int64     `json:"epoch"`
	Until   time.Time `json:"until"`
	Lapsed  bool      `json:"lapsed"`
	Running int       `json:"running"`
}

type logStatus struct {
	Created  time.Time `json:"created"`
	First    uint64    `json:"first"`
	Last     uint64    `json:"last"`
	Bytes    uint64    `json:"bytes"`
	MaxBytes int64     `json:"max_bytes"`
}

// status asks every role of the process.
func (n *node) status(ctx context.Context) processStatus {
	s := processStatus{Name: n.name, Version: version, Roles: n.roles}
	if n.gateway != nil {
		book := n.gateway.Book()
		s.Gateway = &gatewayStatus{Address: n.gateway.Addr().String(), Epoch: book.Epoch(), Reservations: book.Live(), Unanswered: book.Unanswered()}
		s.Gateway.Outage, s.Gateway.Spooled = n.gateway.Outage()
		s.Gateway.Why = n.gateway.Why()
	}
	if n.gateway != nil {
		s.Authority = n.authorityState(ctx)
	}
	if n.ledger != nil {
		m := n.ledger.Mark()
		s.Ledger = &ledgerStatus{m.ID, m.Seq, n.ledger.Why()}
	}
	if n.projector != nil {
		s.Projector = projectorState(ctx, n.projector)
	}
	if n.biller != nil {
		s.Exports = exportsStatus(n.biller.Status(), n.config.Exports)
	}
	if info, err := n.log.Info(ctx); err == nil {
		s.Log = &logStatus{info.Created, info.First, info.Last, info.Bytes, info.MaxBytes}
	}
	return s
}

// authorityState is nil where none can be made through the API.
func (n *node) authorityState(ctx context.Context) *authorityState {
	at, ok := n.gateway.Verified()
	if !ok {
		return nil
	}
	s := &authorityState{Store: "kv", Manages: n.manages(), VerifiedMS: -1, Behind: n.gateway.Behind()}
	if n.pool != nil {
		s.Store, s.Left = "postgres", n.leftInBucket(ctx)
	}
	if !at.IsZero() {
		s.VerifiedMS = time.Since(at).Milliseconds()
	}
	return s
}

func projectorState(ctx context.Context, p *projector.Projector) *projectorStatus {
	stats := p.Stats()
	out := &projectorStatus{Seq: stats.Seq, Behind: stats.Behind, LagMS: stats.Lag.Milliseconds(), ClockMS: stats.Offset.Milliseconds(), Rules: stats.Rules, Writer: stats.Writer,
		Meters: stats.Meters, Requests: stats.Requests, Waiting: stats.Waiting, Leases: []leaseStatus{}}
	out.Ready, out.Why = p.Ready()
	type seen struct {
		digest   uint64
		gateways []admission.GatewayState
	}
	if got, err := projector.Query(ctx, p, func(f *admission.Fold) seen { return seen{f.Digest(), f.Gateways()} }); err == nil {
		out.Digest = fmt.Sprintf("%016x", got.digest)
		for _, g := range got.gateways {
			out.Leases = append(out.Leases, leaseStatus{string(g.Gateway), g.Epoch, time.Unix(0, g.Until).UTC(), g.Lapsed, g.Running})
		}
		sort.Slice(out.Leases, func(i, j int) bool { return out.Leases[i].Gateway < out.Leases[j].Gateway })
	}
	return out
}

// serveStatus answers operators: with an admin key, or from this machine where none is configured.
func (n *node) serveStatus(w http.ResponseWriter, r *http.Request) {
	if !operator(r, n.config.AdminKeys) {
		noKey(w)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), statusWithin)
	defer cancel()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(n.status(ctx)) // who asked is gone, then
}

// noKey refuses who is not an operator.
func noKey(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusUnauthorized)
	_, _ = w.Write([]byte(`{"error":"an admin key is needed"}` + "\n")) // who asked is gone, then
}

// operator says whether a request carries an admin key; without any configured, whether it comes from this machine.
func operator(r *http.Request, keys [][32]byte) bool {
	if len(keys) == 0 {
		if r.Header.Get("X-Forwarded-For") != "" || r.Header.Get("Forwarded") != "" || r.Header.Get("Via") != "" {
			return false // a proxy on this machine speaks for somebody else
		}
		if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
			return false // and a browser for a page, which may be anybody's
		}
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		return err == nil && net.ParseIP(host).IsLoopback()
	}
	return manage.Operator(r, keys)
}

// statusCommand asks a running process how it is.
type statusCommand struct {
	URL  string `help:"Where a gateway process serves; by default the address in the configuration."`
	Key  string `env:"WEIR_ADMIN_KEY" help:"Admin key."`
	JSON bool   `help:"Print JSON."`
}

// Run prints roles, lag, the log's end and every gateway's lease.
func (c *statusCommand) Run(cli *cli, out io.Writer) error {
	if c.URL == "" {
		cfg, _, err := config.Load(cli.Config, os.Getenv)
		if err != nil {
			return err
		}
		c.URL = "http://" + cfg.OperatorsAddress()
	}
	s, err := askStatus(c.URL, c.Key)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if c.JSON {
		return json.NewEncoder(out).Encode(s)
	}
	return s.print(out)
}

// askStatus asks a process how it is.
func askStatus(url, key string) (s processStatus, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), statusWithin)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+"/status", nil)
	if err != nil {
		return s, err
	}
	request.Header.Set("Authorization", "Bearer "+key)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return s, err
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusServiceUnavailable {
		var s struct{ Why string }
		_ = json.NewDecoder(answer.Body).Decode(&s) // of a process that waits to begin
		return processStatus{}, fmt.Errorf("%s is not ready: %s", url, s.Why)
	}
	if answer.StatusCode != http.StatusOK {
		return s, fmt.Errorf("%s answered %s: an admin key is needed (WEIR_ADMIN_KEY)", url, answer.Status)
	}
	if err := json.NewDecoder(answer.Body).Decode(&s); err != nil {
		return s, fmt.Errorf("read the answer: %w", err)
	}
	return s, nil
}

func (s *processStatus) print(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintf(t, "process\t%s (%s)\nroles\t%s\n", s.Name, s.Version, strings.Join(s.Roles, ", "))
	if l := s.Log; l != nil {
		fmt.Fprintf(t, "log\tsequences %d to %d, %d MiB, made %s\n", l.First, l.Last, l.Bytes>>20, l.Created.UTC().Format(time.RFC3339))
	} else {
		fmt.Fprintf(t, "log\tout of reach\n")
	}
	if l := s.Ledger; l != nil {
		state := "agrees"
		if l.Why != "" {
			state = l.Why
		}
		fmt.Fprintf(t, "ledger\t%s, sequence %d, %s\n", l.ID, l.Seq, state)
	}
	if g := s.Gateway; g != nil {
		fmt.Fprintf(t, "gateway\t%s, epoch %d, %d reservations, %d unanswered\n", g.Address, g.Epoch, g.Reservations, g.Unanswered)
		if g.Why != "" {
			fmt.Fprintf(t, "admits\tnothing: %s\n", g.Why)
		}
		if g.Outage || g.Spooled > 0 {
			fmt.Fprintf(t, "outage\tlog out of reach %t, %d events spooled\n", g.Outage, g.Spooled)
		}
	}
	if a := s.Authority; a != nil {
		fmt.Fprintf(t, "authority\t%s, verified %d ms ago, manages %t\n", a.Store, a.VerifiedMS, a.Manages)
		if a.Left > 0 {
			fmt.Fprintf(t, "left\t%d changes of authority in the log's bucket, none in the database: not known until weir authority copy\n", a.Left)
		}
		for _, o := range a.Behind {
			fmt.Fprintf(t, "behind\torg %s, version %d: refused until weir authority repair --org %s\n", o.Org, o.Version, o.Org)
		}
	}
	if p := s.Projector; p != nil {
		state := "ready"
		if !p.Ready {
			state = "not ready: " + p.Why
		}
		fmt.Fprintf(t, "projector\t%s, at %d, %d behind, lag %d ms, rules %d, writer %t\n", state, p.Seq, p.Behind, p.LagMS, p.Rules, p.Writer)
		fmt.Fprintf(t, "clock\tthe stream's less this process's own: %+d ms\n", p.ClockMS)
		fmt.Fprintf(t, "state\t%d meters, %d requests, %d waiting, digest %s\n", p.Meters, p.Requests, p.Waiting, p.Digest)
		for _, l := range p.Leases {
			how := "until " + l.Until.Format(time.RFC3339)
			if l.Lapsed {
				how = "lapsed"
			}
			fmt.Fprintf(t, "lease\t%s, epoch %d, %s, %d running\n", l.Gateway, l.Epoch, how, l.Running)
		}
	}
	for i := range s.Exports {
		x := &s.Exports[i]
		fmt.Fprintf(t, "export\t%s, %s\n", x.Name, x)
	}
	return t.Flush()
}
