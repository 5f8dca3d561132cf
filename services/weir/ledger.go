package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/gateway/authority/store"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/projector"
	"github.com/weirhq/weir/services/ledger"
)

// noteEvery is how often what was read becomes known to the ledger.
const noteEvery = 250 * time.Millisecond

// errRecovered ends a process whose projections belong to the log before: it starts anew with the one that was recovered.
var errRecovered = errors.New("the log was recovered: this process must be started again, to read it from its beginning")

// ledgerDir is where the mark is kept, outside the broker's directory.
func (n *node) ledgerDir() string { return filepath.Join(n.config.DataDir, "ledger") }

// openLedger compares the log with every mark that can be found.
func (n *node) openLedger(ctx context.Context) (err error) {
	reads := n.has(roleProjector) || n.has(roleAuditor)
	var shared ledger.Shared
	var writes bool
	err = n.await(ctx, "the log's buckets", logAway, func(ctx context.Context) (err error) {
		shared, writes, err = n.sharedMark(ctx, n.broker != nil || n.has(roleManager) || n.has(roleProjector))
		return err
	})
	if err != nil {
		return err
	}
	c := ledger.Config{Dir: n.ledgerDir(), Log: n.log, Conn: n.conn, Shared: shared, Reads: reads, Writes: writes, Behind: 2 * n.config.Log.Sync, Gateways: n.gateways, Now: time.Now, Logger: n.logger}
	if n.config.Log.SyncAlways {
		c.Behind = 0
	}
	opening, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	if n.ledger, err = ledger.Open(opening, c); err != nil {
		return err
	}
	n.recovered = make(chan struct{}, 1)
	n.ledger.OnRecovered(func() {
		select {
		case n.recovered <- struct{}{}:
		default:
		}
	})
	n.halted = make(chan struct{}, 1)
	n.ledger.OnHalted(func() {
		select {
		case n.halted <- struct{}{}:
		default:
		}
	})
	return nil
}

// sharedMark is where the mark is kept beside the authority, and whether this process keeps it: in a database who reads the log, in a
// bucket who may make it.
func (n *node) sharedMark(ctx context.Context, makes bool) (shared ledger.Shared, writes bool, err error) {
	if n.pool != nil {
		return ledger.Postgres{Pool: n.pool}, n.has(roleProjector), nil
	}
	if makes {
		if _, err := store.OpenKV(ctx, n.conn, store.KVConfig{Create: true, Replicas: n.config.Log.Replicas}); err != nil {
			return nil, false, err
		}
	}
	kv, err := ledger.NewKV(n.conn)
	if err != nil {
		return nil, false, err
	}
	return kv, makes, nil
}

// gateways counts the gateways whose lease runs, as the fold of this process knows it; 0: it does not know.
func (n *node) gateways() (live int64) {
	if n.projector == nil {
		return 0
	}
	if ok, _ := n.projector.Answering(); !ok {
		return 0 // the fold may be far from the log's end
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	all, err := projector.Query(ctx, n.projector, func(f *admission.Fold) []admission.GatewayState { return f.Gateways() })
	if err != nil {
		return 0
	}
	for _, g := range all {
		if !g.Lapsed {
			live++
		}
	}
	return live
}

// guarded runs a role that reads the log. One that is not the right log is not read, and stops admission instead of the process: an operator
// must see why.
func (n *node) guarded(ctx context.Context, run func(context.Context) error) error {
	if n.ledger.Why() == "" {
		err := run(ctx)
		replaced, isReplaced := errors.AsType[*journal.Replaced](err)
		lost, isLost := errors.AsType[*journal.Lost](err)
		switch {
		case isReplaced:
			err = n.ledger.Halt(replaced.Error())
		case isLost:
			err = n.ledger.Halt(lost.Error())
		default:
			return err
		}
		if err != nil {
			return err
		}
	}
	select {
	case <-ctx.Done():
		return nil
	case <-n.recovered:
		return errRecovered
	}
}

// keepLast writes the fold down when admission stops because the log is not the right one: nothing may tell later what was held.
func (n *node) keepLast(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.halted:
		}
		switch err := n.projector.Keep(ctx); {
		case errors.Is(err, projector.ErrStopped), ctx.Err() != nil: // it writes one when it stops
		case err != nil:
			n.logger.Error("what was held could not be written down", "error", err)
		default:
			n.logger.Warn("what was held is written down in a snapshot", "directory", filepath.Join(n.config.DataDir, "snapshots"))
		}
	}
}

// noting is a reading of the log that the ledger knows of.
type noting struct {
	*journal.Leader
	ledger *ledger.Ledger
	last   time.Time
	now    func() time.Time
}

// Next is the leader's.
func (r *noting) Next(ctx context.Context) (records []events.Record, err error) {
	records, err = r.Leader.Next(ctx)
	if now := r.now(); err == nil && len(records) > 0 && now.Sub(r.last) >= noteEvery {
		r.last = now
		r.ledger.Note(records[len(records)-1].Seq, r.Chain().String(), ledger.Tail(&records[len(records)-1]))
	}
	return records, err
}

// dialAs joins the log as a gateway process that is gone, to publish what it spooled; nil where this process may speak for all.
func (n *node) dialAs() func(name string) (*nats.Conn, error) {
	if n.config.Log.URL == "" {
		return nil
	}
	return func(name string) (*nats.Conn, error) {
		secret, err := access.ReadSecret(n.config.Log.Credentials)
		if err != nil {
			return nil, err
		}
		nc, err := nats.Connect(n.config.Log.URL, append(journal.Options(name), secret.Options(access.Identity{Name: name, Roles: n.identity()})...)...)
		if err != nil {
			return nil, fmt.Errorf("join the log at %s as %s: %w", n.config.Log.URL, name, err)
		}
		return nc, nil
	}
}
