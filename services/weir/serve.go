package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/weirhq/weir/events/journal/access"
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
	if err == nil {
		warnings = append(warnings, cfg.UnknownVariables(os.Environ(), ownVariables()...)...)
	}
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
		if ctx.Err() != nil { // it was told to stop while it waited
			return nil
		}
		return err
	}
	var hangups sync.WaitGroup
	hangups.Go(func() { onHangup(ctx, n.reload) })
	err = n.run(ctx)
	stop()
	hangups.Wait()
	return err
}

// reload reads again what may change while the process runs.
func (n *node) reload() {
	if n.gateway != nil {
		_ = n.gateway.Reload() // reported by the gateway
	}
	if n.broker == nil || n.config.Log.Credentials == "" {
		return
	}
	credentials, err := access.ReadCredentials(n.config.Log.Credentials)
	if err == nil {
		err = n.broker.ReplaceCredentials(credentials)
	}
	if err != nil {
		n.logger.Error("the credentials of the log are not valid: the last valid ones stay in use", "error", err)
	}
}

// checkSecrets reads what a process would read when it starts: the keys that credentials are sealed with, and who may join the log.
func checkSecrets(cfg *config.Config) error {
	_, faults := cfg.Seal.Keys(os.Getenv)
	switch {
	case cfg.Log.Credentials == "":
	case cfg.Log.URL != "":
		_, err := access.ReadSecret(cfg.Log.Credentials)
		faults = errors.Join(faults, err)
	default:
		_, err := access.ReadCredentials(cfg.Log.Credentials)
		faults = errors.Join(faults, err)
	}
	return faults
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
	if err := errors.Join(gateway.CheckUpstreams(snapshot), checkSecrets(cfg)); err != nil {
		return err
	}
	warnings = append(warnings, cfg.UnknownVariables(os.Environ(), ownVariables()...)...)
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
