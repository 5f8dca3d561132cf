package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/weirhq/weir/services/config"
	"github.com/weirhq/weir/services/gateway"
)

// serveCommand runs the product.
type serveCommand struct {
	Roles string `help:"Roles of this process, separated by commas: broker, projector, auditor, biller, gateway, manager. All but manager by default." env:"WEIR_ROLES"`
	Debug bool   `help:"Log more."`
}

// Run serves until the process is told to stop.
func (c *serveCommand) Run(cli *cli) error {
	level := slog.LevelInfo
	if c.Debug {
		level = slog.LevelDebug
	}
	logger := newLogger(level)
	cfg, warnings, err := config.Load(cli.Config, os.Getenv)
	for _, w := range warnings {
		logger.Warn(w.String())
	}
	if err != nil {
		return err
	}
	roles, err := parseRoles(c.Roles)
	if err != nil {
		return err
	}
	n := &node{config: cfg, roles: roles, logger: logger}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer n.close()
	if err := n.start(ctx); err != nil {
		return err
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	go func() {
		for range hangup {
			if n.gateway != nil {
				_ = n.gateway.Reload() // reported by the gateway
			}
		}
	}()
	defer close(hangup)
	return n.run(ctx)
}

// checkCommand validates configuration, keys and policies without serving.
type checkCommand struct{}

// Run prints what the configuration comes to, or everything that is wrong with it.
func (c *checkCommand) Run(cli *cli, out io.Writer) error {
	cfg, warnings, err := config.Load(cli.Config, os.Getenv)
	if err != nil {
		return err
	}
	source := cfg.Source()
	snapshot, more, err := source.Load()
	if err != nil {
		return err
	}
	if err := gateway.CheckUpstreams(snapshot); err != nil {
		return err
	}
	for _, w := range append(warnings, more...) {
		fmt.Fprintln(out, "warning:", w.String())
	}
	file := cfg.File
	if file == "" {
		file = "no file (defaults)"
	}
	fmt.Fprintf(out, "configuration: %s\napi.mode: %s\nkeys: %d\norgs: %d\nmodels: %d\nconnections: %d\npools: %d\n",
		file, snapshot.Mode, len(snapshot.Keys), len(snapshot.Orgs), len(snapshot.Models), len(snapshot.Connections), len(snapshot.Pools))
	for _, o := range snapshot.Orgs {
		if o.Name != "" && o.Name != string(o.ID) {
			fmt.Fprintf(out, "owner %q is org %s\n", o.Name, o.ID)
		}
	}
	fmt.Fprintln(out, "valid")
	return nil
}
