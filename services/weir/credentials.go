package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/goccy/go-yaml"
	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events/journal/access"
)

// credentialsCommand says who may join the log.
type credentialsCommand struct {
	Add  addCredentialCommand `cmd:"" help:"Let another process join the log, and write the secret for it."`
	Keys calloutKeysCommand   `cmd:"" help:"Make the keys by which the servers of a NATS cluster know who answers for it."`
}

// addCredentialCommand adds an identity to a credentials file.
type addCredentialCommand struct {
	Name   string   `arg:"" help:"What the process is called."`
	Roles  []string `required:"" help:"What it does: gateway, projector, auditor, biller, operator, monitor; consumer, of billing lines."`
	File   string   `default:"credentials.yaml" type:"path" help:"The credentials file of who keeps the log; made if there is none."`
	Secret string   `type:"path" help:"Where to write the secret; NAME.secret if not given." placeholder:"FILE"`
	Keep   bool     `help:"Leave the secrets that it has valid, to change one without a pause."`
}

// Run adds or replaces the identity.
func (c *addCredentialCommand) Run(out io.Writer) error {
	var roles []access.Role
	for _, r := range c.Roles {
		roles = append(roles, access.Role(r))
	}
	credential, secret, err := access.NewCredentials(c.Name, roles...)
	if err != nil {
		return fmt.Errorf("credentials: %w", err)
	}
	all, err := access.ReadCredentials(c.File)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	at := slices.IndexFunc(all.Identities, func(id access.Credential) bool { return id.Name == c.Name })
	switch {
	case at < 0:
		all.Identities = append(all.Identities, credential)
	case c.Keep:
		credential.SHA256 = append(credential.SHA256, all.Identities[at].SHA256...)
		all.Identities[at] = credential
	default:
		all.Identities[at] = credential
	}
	if err := all.Validate(); err != nil {
		return fmt.Errorf("credentials: %w", err)
	}
	if c.Secret == "" {
		c.Secret = c.Name + ".secret"
	}
	err = access.WriteSecret(c.Secret, secret)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("credentials: %s is there already: name another file with --secret, or remove it if no process uses it", c.Secret)
	}
	if err != nil {
		return err
	}
	if err := replaceFile(c.File, all); err != nil {
		return errors.Join(err, os.Remove(c.Secret))
	}
	fmt.Fprintf(out, "%s: %s may join as %s\n%s: its secret, for log.credentials there; keep it to that process\n", c.File, c.Name, strings.Join(c.Roles, ", "), c.Secret)
	return nil
}

// replaceFile writes a value as YAML in place of a file, whole or not at all.
func replaceFile(path string, value any) error {
	text, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
	}
	return nil
}

// calloutKeysCommand makes the keys of a cluster.
type calloutKeysCommand struct {
	Out string `default:"nats.keys" type:"path" help:"Where to write the seeds."`
}

// Run writes the seeds, and prints what the servers' environment needs.
func (c *calloutKeysCommand) Run(out io.Writer) error {
	keys, err := access.NewCalloutKeys()
	if err != nil {
		return err
	}
	user, issuer, xkey, err := keys.Public()
	if err != nil {
		return err
	}
	if err := access.WriteCalloutKeys(c.Out, keys); err != nil {
		return err
	}
	fmt.Fprintf(out, "# for every server; the seeds are in %s, for those who run weir callout\nWEIR_NATS_USER=%s\nWEIR_NATS_ISSUER=%s\nWEIR_NATS_XKEY=%s\n", c.Out, user, issuer, xkey)
	return nil
}

// calloutCommand answers for a NATS cluster who may join it as what.
type calloutCommand struct {
	URL         string `required:"" help:"The cluster's servers." placeholder:"nats://HOST:4222,…"`
	Keys        string `default:"nats.keys" type:"path" help:"The cluster's seeds, as weir credentials keys makes them."`
	Credentials string `default:"credentials.yaml" type:"path" help:"Who may join, as weir credentials add makes it. Read again on SIGHUP."`
}

// calloutRetry is between two tries to reach the cluster.
const calloutRetry = 2 * time.Second

// Run answers until the process is told to stop.
func (c *calloutCommand) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logger := newLogger(slog.LevelInfo)
	keys, err := access.ReadCalloutKeys(c.Keys)
	if err != nil {
		return err
	}
	credentials, err := access.ReadCredentials(c.Credentials)
	if err != nil {
		return err
	}
	callout, err := access.NewCallout(access.CalloutConfig{URL: c.URL, Keys: keys, Credentials: credentials, Log: logger})
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.Go(func() error {
		onHangup(ctx, func() { c.reload(callout, logger) })
		return nil
	})
	group.Go(func() error {
		select {
		case <-callout.Ready():
			logger.Info("processes can join the cluster", "url", c.URL)
		case <-ctx.Done():
		}
		return nil
	})
	for ctx.Err() == nil {
		if err := callout.Run(ctx); err != nil && ctx.Err() == nil {
			logger.Warn("nobody can join the cluster through this process; it tries again", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(calloutRetry):
		}
	}
	return group.Wait()
}

// reload reads who may join again. Who has joined stays.
func (c *calloutCommand) reload(callout *access.Callout, logger *slog.Logger) {
	credentials, err := access.ReadCredentials(c.Credentials)
	if err == nil {
		err = callout.Authenticator().Replace(credentials)
	}
	if err != nil {
		logger.Error("the credentials are not valid: the last valid ones stay in use", "error", err)
		return
	}
	logger.Info("the credentials were read again", "identities", len(credentials.Identities))
}

// onHangup calls f at each SIGHUP until ctx ends.
func onHangup(ctx context.Context, f func()) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			f()
		}
	}
}
