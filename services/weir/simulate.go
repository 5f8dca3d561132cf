package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/goccy/go-yaml"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority/strictyaml"
	"github.com/weirhq/weir/gateway/inquiry"
	"github.com/weirhq/weir/projections/insight"
)

// simulateGC lets the heap grow to five times what is used before it is looked through: most of what is read is soon forgotten, and what
// stays is small.
const simulateGC = 400

// simulateCommand folds recorded traffic under other limits or more load.
type simulateCommand struct {
	sourceFlags `embed:""`

	Limits string `type:"existingfile" help:"File of other limits: meters: {\"org/acme/rpm\": 600, \"key/*/tpm\": 200000}, and orgs: as in weir.yaml." placeholder:"FILE"`
	Since  string `help:"Begin so long ago, or at a time: 24h, 2026-03-02T10:00:00Z. What came before is folded as it was. By default all." placeholder:"AGO|TIME"`
	Scale  string `default:"1x" help:"Times the load: 2x, 1.5x, 0.5x."`
	JSON   bool   `help:"JSON."`
}

// Run prints what would have been decided.
func (c *simulateCommand) Run(cli *cli, out io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return c.run(ctx, cli.Config, out)
}

func (c *simulateCommand) run(ctx context.Context, configFile string, out io.Writer) error {
	var simulation insight.SimulationConfig
	var err error
	if simulation.Scale, err = inquiry.ParseScale(c.Scale); err != nil {
		return err
	}
	if c.Limits != "" {
		if simulation.Limits, err = readLimits(c.Limits); err != nil {
			return err
		}
	}
	if c.Limits == "" && simulation.Scale == insight.ScaleOnce {
		return errors.New("simulate: give --limits, --scale or both: with neither it would say what happened")
	}
	s, err := c.open(ctx, configFile)
	if err != nil {
		return err
	}
	defer s.close()
	if c.Since != "" {
		if simulation.From, err = since(c.Since, s.now); err != nil {
			return err
		}
	}
	defer debug.SetGCPercent(debug.SetGCPercent(simulateGC))
	report, err := simulateLog(ctx, s, simulation)
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(out).Encode(report)
	}
	_, err = io.WriteString(out, report.Text())
	return err
}

func simulateLog(ctx context.Context, s source, config insight.SimulationConfig) (*insight.Report, error) {
	p := newProgress("simulating")
	defer p.done()
	return inquiry.Simulate(ctx, s, config, func(r *events.Record) error { p.step(r); return nil })
}

// limitsFile is a file of other limits. A weir.yaml is one too: what else it holds is passed over.
type limitsFile struct {
	Meters map[string]*int64     `yaml:"meters"`
	Orgs   map[string]orgsLimits `yaml:"orgs"`

	Name        any `yaml:"name"`
	Listen      any `yaml:"listen"`
	Proxies     any `yaml:"trusted_proxies"`
	DataDir     any `yaml:"data_dir"`
	Operators   any `yaml:"operators"`
	Tracing     any `yaml:"tracing"`
	Audit       any `yaml:"audit"`
	Log         any `yaml:"log"`
	MaxBytes    any `yaml:"max_request_bytes"`
	Upstream    any `yaml:"upstream"`
	Database    any `yaml:"database"`
	Authority   any `yaml:"authority"`
	Seal        any `yaml:"seal"`
	Auth        any `yaml:"auth"`
	Policies    any `yaml:"policies"`
	AdminKeys   any `yaml:"admin_keys"`
	Admission   any `yaml:"admission"`
	Limits      any `yaml:"limits"`
	Models      any `yaml:"models"`
	Connections any `yaml:"connections"`
	BYOK        any `yaml:"byok"`
	Pools       any `yaml:"pools"`
	Exports     any `yaml:"exports"`
}

// orgsLimits are an org's limits, given directly or under limits as in weir.yaml.
type orgsLimits struct {
	RPM         *int64                `yaml:"rpm"`
	TPM         *int64                `yaml:"tpm"`
	Concurrency *int64                `yaml:"concurrency"`
	RPS         *int64                `yaml:"rps"`
	Limits      someLimits            `yaml:"limits"`
	Models      map[string]someLimits `yaml:"models"`
	Billing     string                `yaml:"billing"`
}

type someLimits struct {
	RPM         *int64 `yaml:"rpm"`
	TPM         *int64 `yaml:"tpm"`
	Concurrency *int64 `yaml:"concurrency"`
	RPS         *int64 `yaml:"rps"`
	OutageMode  string `yaml:"outage_mode"`
	Shadow      any    `yaml:"shadow"`
}

// readLimits reads a file of other limits. A limit that the file does not give stays as it was recorded; one that is null under meters
// is taken away.
func readLimits(path string) (*insight.Limits, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(text) > strictyaml.MaxFile {
		return nil, fmt.Errorf("%s: is %d bytes, at most %d are read", path, len(text), strictyaml.MaxFile)
	}
	var file limitsFile
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	meters := map[string]*int64{}
	for org, l := range file.Orgs {
		direct := someLimits{RPM: l.RPM, TPM: l.TPM, Concurrency: l.Concurrency, RPS: l.RPS}
		direct.meters(meters, events.ScopeOrg, org)
		l.Limits.meters(meters, events.ScopeOrg, org)
		for model, m := range l.Models {
			m.meters(meters, events.ScopeModel, org, model)
		}
	}
	for m, limit := range file.Meters {
		meters[m] = limit
	}
	if len(meters) == 0 {
		return nil, fmt.Errorf("%s: gives no limit, under meters: or orgs:", path)
	}
	l, err := insight.NewLimits(meters)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

func (l *someLimits) meters(into map[string]*int64, scope events.Scope, subject ...string) {
	for dimension, limit := range map[string]*int64{"rpm": l.RPM, "tpm": l.TPM, "concurrency": l.Concurrency, "rps": l.RPS} {
		if limit != nil {
			into[string(events.NewMeter(scope, dimension, subject...))] = limit
		}
	}
}
