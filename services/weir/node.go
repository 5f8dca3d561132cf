package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/embedded"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/store"
	"github.com/weirhq/weir/gateway/estimate"
	"github.com/weirhq/weir/gateway/trace"
	"github.com/weirhq/weir/projections/kv"
	"github.com/weirhq/weir/projections/projector"
	"github.com/weirhq/weir/services/auditor"
	"github.com/weirhq/weir/services/biller"
	"github.com/weirhq/weir/services/config"
	"github.com/weirhq/weir/services/follow"
	"github.com/weirhq/weir/services/gateway"
	"github.com/weirhq/weir/services/ledger"
)

// The roles of a process.
const (
	roleGateway   = "gateway"
	roleProjector = "projector"
	roleAuditor   = "auditor"
	roleBiller    = "biller"
	roleBroker    = "broker"
	roleManager   = "manager" // serves /admin and /api beside a gateway; where the log is in the process, it does so anyway
)

// allRoles are those of a process that is told none.
var allRoles = []string{roleBroker, roleProjector, roleAuditor, roleBiller, roleGateway}

// diskShare is how much of the disk the log may fill, in percent: beyond it the log takes no more, and nothing is forgotten.
const diskShare = 80

// openWithin bounds how long a process takes to start, once all that it needs is there.
const openWithin = 30 * time.Second

// mayWithin bounds the question whether this process may manage.
const mayWithin = 5 * time.Second

// node is one process with its roles.
type node struct {
	config   *config.Config
	roles    []string
	logger   *slog.Logger
	forward  []string      // client headers that go upstream
	operator bool          // joins another's log as an operator
	answer   time.Duration // how long a reserve waits for its verdict. Defaults to reservation.AnswerWithin

	name      string
	registry  *prometheus.Registry
	pool      *pgxpool.Pool // of the database; nil: none is configured
	broker    *embedded.Broker
	conn      *nats.Conn
	log       *journal.Log
	feed      *journal.Feed
	projector *projector.Projector
	auditor   *auditor.Auditor
	biller    *biller.Biller
	ratios    *auditor.Ratios // as they are kept
	view      *kv.View
	gateway   *gateway.Gateway
	ledger    *ledger.Ledger
	tracer    *trace.Tracer // nil: nothing is traced
	operators *http.Server  // of an address of their own; nil: there is none
	operated  net.Listener  // that address
	recovered chan struct{} // an operator has recovered the log
	halted    chan struct{} // admission has stopped, as the log is not the right one
	lobby     *lobby        // answers while the process waits to begin; nil: nobody asks it
}

func (n *node) has(role string) bool { return slices.Contains(n.roles, role) }

// manages says whether authority can be changed here: where the log is, or where a process is told to and its secret lets it.
func (n *node) manages() bool { return n.has(roleGateway) && (n.broker != nil || n.has(roleManager)) }

// parseRoles reads a list of roles.
func parseRoles(text string) ([]string, error) {
	if text == "" {
		return allRoles, nil
	}
	var roles []string
	for _, r := range strings.Split(text, ",") {
		r = strings.TrimSpace(r)
		if !slices.Contains(allRoles, r) && r != roleManager {
			return nil, fmt.Errorf("roles: %q is none of %s, %s", r, strings.Join(allRoles, ", "), roleManager)
		}
		roles = append(roles, r)
	}
	if slices.Contains(roles, roleManager) && !slices.Contains(roles, roleGateway) {
		return nil, fmt.Errorf("roles: %s must stand beside %s: it is served at the gateway's address", roleManager, roleGateway)
	}
	return roles, nil
}

// start opens the log and makes every role. It waits for a database and a log that are not there yet. Close undoes it.
func (n *node) start(ctx context.Context) (err error) {
	if n.name, err = access.NewName(n.config.Name); err != nil {
		return err
	}
	n.registry = prometheus.NewRegistry()
	n.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := n.trace(ctx); err != nil {
		return err
	}
	n.lobby = &lobby{}
	defer n.lobby.close()
	if err := n.arrive(ctx); err != nil {
		return err
	}
	dynamic, err := n.dynamic(ctx)
	if err != nil {
		return err
	}
	n.lobby.close() // before the gateway takes its address
	opening, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	n.view = kv.NewView(time.Now)
	n.feed = journal.NewFeed(n.log)
	if err := n.project(); err != nil {
		return err
	}
	if n.has(roleGateway) {
		n.ratios = auditor.NewRatios(n.conn)
		if err := n.ratios.Load(opening); err != nil {
			n.logger.Warn("estimates begin with what nothing is known of", "error", err)
		}
		n.gateway, err = gateway.New(opening, gateway.Config{Dynamic: dynamic, Apart: n.pool != nil, Manages: n.manages(),
			Config: n.config, Name: events.Gateway(n.name), Log: n.log, Conn: n.conn, Projector: n.projector,
			Ledger: n.ledger, Dial: n.dialAs(),
			View: n.view, Generations: n.generations(), Ratio: n.ratio(),
			Registry: n.registry, Tracer: n.tracer, Logger: n.logger, Forward: n.forward, Answer: n.answer})
		if err != nil {
			return err
		}
		n.inquire()
	}
	n.registerProcess()
	return n.operate()
}

// arrive opens the database and the log, and what is kept in them.
func (n *node) arrive(ctx context.Context) error {
	if err := n.openDatabase(ctx); err != nil {
		return err
	}
	if err := n.connect(ctx); err != nil {
		return err
	}
	if err := n.openLog(ctx, n.has(roleProjector) || n.has(roleBroker)); err != nil {
		return err
	}
	return n.openLedger(ctx)
}

// openLog opens the log. Who may not make it waits for who does, and everybody for servers that do not answer yet, such as those that elect a leader.
func (n *node) openLog(ctx context.Context, keeper bool) error {
	config := journal.Config{Create: keeper, Replicas: n.config.Log.Replicas, MaxAge: n.config.Log.MaxAge, MaxBytes: n.maxBytes(), Compress: n.config.Log.Compress}
	return n.await(ctx, "the log to be made, by a projector or a broker", logAway, func(ctx context.Context) (err error) {
		n.log, err = journal.Open(ctx, n.conn, config)
		return err
	})
}

// project makes the roles that fold the log. In one process they share one reading of it.
func (n *node) project() (err error) {
	if n.has(roleProjector) {
		n.projector, err = projector.New(projector.Config{Log: n.log, Conn: n.conn, Name: n.name, DataDir: n.config.DataDir, View: n.view,
			Source: func(ctx context.Context, from journal.TapConfig) (projector.Source, error) {
				return &noting{Leader: n.feed.Lead(ctx, from), ledger: n.ledger, now: time.Now}, nil
			},
			Ledger: n.ledger.Mark().ID, Replicas: n.config.Log.Replicas, Traced: n.folded(), Logger: n.logger})
		if err != nil {
			return err
		}
		registerProjector(n.registry, n.projector)
	}
	if n.has(roleAuditor) {
		cfg := auditor.Config{Conn: n.conn, Log: n.log, Source: n.follow(), Name: n.name, Alone: n.alone(), Joins: n.joins(), Replicas: n.config.Log.Replicas, Logger: n.logger,
			Store: n.audited(), TTL: n.config.Audit.Retention}
		if n.auditor, err = auditor.New(cfg); err != nil {
			return err
		}
		registerAuditor(n.registry, n.auditor)
	}
	return n.bill()
}

// follow gives what a projector of this process reads; nil: there is none, and each reads for itself.
func (n *node) follow() follow.Open {
	if n.projector == nil {
		return nil
	}
	return func(ctx context.Context, from journal.TapConfig) (follow.Source, error) {
		return n.feed.Follow(ctx, from), nil
	}
}

// bill makes the biller.
func (n *node) bill() (err error) {
	if !n.has(roleBiller) {
		return nil
	}
	cfg := biller.Config{Conn: n.conn, Log: n.log, Source: n.follow(), Name: n.name, DataDir: n.config.DataDir, Alone: n.alone(), Joins: n.joins(), Replicas: n.config.Log.Replicas, Logger: n.logger,
		Usage: n.tables(), Exports: exportsOf(n.config)}
	if n.biller, err = biller.New(cfg); err != nil {
		return err
	}
	registerBiller(n.registry, n.biller, time.Now)
	return nil
}

// alone says that no other process can have a role of this one's log.
func (n *node) alone() bool { return n.broker != nil && n.config.Log.Listen == "" }

// joins says that what all processes agree in is made by others: where the log is another's, by a projector.
func (n *node) joins() bool { return n.broker == nil && !n.has(roleProjector) }

// dynamic opens the authority that is made through the API, if the process serves and the configuration lets any be made.
func (n *node) dynamic(ctx context.Context) (gateway.Dynamic, error) {
	auth, err := n.config.Mode()
	if err != nil || auth != authority.ModeDynamic || !n.has(roleGateway) {
		return nil, err
	}
	if n.manages() {
		if err := n.mayFence(ctx); err != nil {
			return nil, err
		}
	}
	if n.pool != nil {
		if left := n.leftInBucket(ctx); left > 0 {
			n.logger.Warn("the database holds no authority, and the log's bucket does: keys and orgs made before are not known until weir authority copy", "changes", left)
		}
		return store.OpenPostgres(n.pool, store.PostgresConfig{Users: n.manages()}), nil
	}
	var kv *store.KV
	err = n.await(ctx, "the authority's bucket, which a projector makes", logAway, func(ctx context.Context) (err error) {
		kv, err = store.OpenKV(ctx, n.conn, store.KVConfig{Create: n.manages() || n.broker != nil, Users: n.manages(), Replicas: n.config.Log.Replicas})
		return err
	})
	if err != nil {
		return nil, err // not kv, which would be no nil interface
	}
	return kv, nil
}

// mayFence says whether the process may do what management takes: who may read fences may write them.
func (n *node) mayFence(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, mayWithin)
	defer cancel()
	if _, _, err := n.log.Last(ctx, events.Subject{Org: events.Platform, Kind: events.KindFence}.String()); err != nil {
		return fmt.Errorf("the role %s: the log lets this process read no fences; give its secret the role operator in the broker's credentials: %w", roleManager, err)
	}
	return nil
}

// ratio gives where learned tokens per byte come from.
func (n *node) ratio() func(model string) estimate.Ratio {
	if n.auditor == nil {
		return n.ratios.Ratio
	}
	return func(model string) estimate.Ratio {
		if n.auditor.Status().Active { // it knows them first
			return n.auditor.Ratio(model)
		}
		return n.ratios.Ratio(model)
	}
}

// connect joins the log, which is in this process unless the configuration names another.
func (n *node) connect(ctx context.Context) (err error) {
	roles := n.identity()
	if n.config.Log.URL != "" {
		if n.config.Log.Credentials == "" {
			return errors.New("log.credentials: must name the file with this process's secret, as log.url is set")
		}
		secret, err := access.ReadSecret(n.config.Log.Credentials)
		if err != nil {
			return err
		}
		if n.name, err = access.NewName(secret.Name); err != nil {
			return err
		}
		id := access.Identity{Name: n.name, Roles: roles}
		return n.join(ctx, append(journal.Options(n.name), secret.Options(id)...))
	}
	if !n.has(roleBroker) {
		return errors.New("log.url: must be set where the role broker is not: the log is in another process")
	}
	cfg := embedded.Config{DataDir: n.config.DataDir, MaxStore: math.MaxInt64, // the log's own bound is below the disk's
		Listen: n.config.Log.Listen, SyncInterval: n.config.Log.Sync, SyncAlways: n.config.Log.SyncAlways, Log: n.logger}
	if n.config.Log.Credentials != "" {
		if cfg.Credentials, err = access.ReadCredentials(n.config.Log.Credentials); err != nil {
			return err
		}
	}
	starting, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	if n.broker, err = embedded.Start(starting, cfg); err != nil {
		return err
	}
	n.conn, err = n.broker.Connect(access.Identity{Name: n.name, Roles: []access.Role{access.System}}, journal.Options(n.name)...)
	return err
}

// join connects to another's log, which may be about to start.
func (n *node) join(ctx context.Context, options []nats.Option) error {
	err := n.await(ctx, "the log", serversAway, func(context.Context) (err error) {
		if n.conn, err = nats.Connect(n.config.Log.URL, options...); err != nil {
			return fmt.Errorf("join the log at %s: %w", n.config.Log.URL, err)
		}
		return nil
	})
	if errors.Is(err, nats.ErrAuthorization) {
		return fmt.Errorf("%w: it does not know this process's secret with the roles %v; add it there with weir credentials add", err, n.roles)
	}
	return err
}

// identity is what the process may do at another's log.
func (n *node) identity() (roles []access.Role) {
	if n.operator {
		return []access.Role{access.Operator}
	}
	for role, may := range map[string]access.Role{roleGateway: access.Gateway, roleProjector: access.Projector, roleAuditor: access.Auditor, roleBiller: access.Biller, roleManager: access.Operator} {
		if n.has(role) {
			roles = append(roles, may)
		}
	}
	slices.Sort(roles)
	return roles
}

// maxBytes is how much the embedded log may hold: a share of what the disk has for it, what it holds already included.
func (n *node) maxBytes() int64 {
	if n.broker == nil {
		return 0
	}
	var disk syscall.Statfs_t
	if err := syscall.Statfs(n.config.DataDir, &disk); err != nil {
		return 0
	}
	held := int64(0)
	_ = filepath.WalkDir(n.config.DataDir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				held += info.Size()
			}
		}
		return nil // a file that has just gone holds nothing
	})
	return (int64(disk.Bavail)*disk.Bsize + held) / 100 * diskShare
}

// run runs every role until ctx ends or one fails. Gateways end first: what they owe goes to the log that the others keep up.
func (n *node) run(ctx context.Context) error {
	keep, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	front, cancel := context.WithCancel(ctx)
	defer cancel()
	var back errgroup.Group
	role := func(run func(context.Context) error) {
		back.Go(func() error {
			defer cancel() // without it the gateways have nothing to serve
			return run(keep)
		})
	}
	if n.projector != nil {
		role(func(ctx context.Context) error { return n.guarded(ctx, n.projector.Run) })
		role(func(ctx context.Context) error { return n.log.Answer(ctx, access.SubjectFind) })
		role(n.keepLast)
	}
	if n.auditor != nil {
		role(func(ctx context.Context) error { return n.guarded(ctx, n.auditor.Run) })
	}
	if n.biller != nil {
		back.Go(func() error {
			if err := n.guarded(keep, n.biller.Run); err != nil && !errors.Is(err, errRecovered) {
				n.logger.Error("the biller has stopped; requests are served and the log keeps what is to be billed", "error", err)
			}
			return nil
		})
	}
	if n.ratios != nil {
		role(n.ratios.Run)
	}
	role(n.ledger.Run)
	if n.operators != nil {
		role(n.serveOperators)
	}
	var err error
	if n.gateway != nil {
		err = n.gateway.Run(front)
	} else {
		<-front.Done()
	}
	stop()
	return errors.Join(err, back.Wait())
}

// close gives everything back.
func (n *node) close() {
	n.endTrace()
	if n.operated != nil {
		_ = n.operated.Close() // closed already where the process ran
	}
	if n.conn != nil {
		n.conn.Close()
	}
	if n.broker != nil {
		n.broker.Shutdown()
	}
	if n.pool != nil {
		n.pool.Close()
	}
}

// newLogger writes what an operator should see.
func newLogger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// waitReady waits until the node admits requests.
func (n *node) waitReady(ctx context.Context) error {
	for {
		if n.projector == nil {
			return nil
		}
		ok, why := n.projector.Answering()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready: %s", why)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
