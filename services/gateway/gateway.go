// Package gateway is the gateway as a process: the HTTP server, its way into the log, its view, and its end.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	core "github.com/weirhq/weir/gateway"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/seal"
	"github.com/weirhq/weir/gateway/authority/store"
	"github.com/weirhq/weir/gateway/console"
	"github.com/weirhq/weir/gateway/estimate"
	"github.com/weirhq/weir/gateway/manage"
	"github.com/weirhq/weir/gateway/outage/spool"
	"github.com/weirhq/weir/gateway/relay"
	"github.com/weirhq/weir/gateway/reservation"
	"github.com/weirhq/weir/gateway/trace"
	"github.com/weirhq/weir/gateway/upstream"
	"github.com/weirhq/weir/projections/kv"
	"github.com/weirhq/weir/projections/projector"
	"github.com/weirhq/weir/services/config"
	"github.com/weirhq/weir/services/follow"
	"github.com/weirhq/weir/services/ledger"
)

// Bounds of the HTTP server.
const (
	headerWithin = 10 * time.Second
	idleFor      = 2 * time.Minute
	maxHeader    = 64 << 10

	// DrainFor is how long streams may go on when the gateway stops.
	DrainFor = 30 * time.Second

	// probedWithin is how long a starting gateway waits for the first word from its upstreams.
	probedWithin = 3 * time.Second

	// firstEpoch is a process's only one; see reservation.Book.Epoch.
	firstEpoch = 1

	// drainEvery is how often a stopping gateway looks whether the last request has ended.
	drainEvery = 10 * time.Millisecond

	// flushFor is how long the last releases may take to reach the log.
	flushFor = 10 * time.Second
)

// Config is what a gateway process runs on.
type Config struct {
	Config      *config.Config
	Name        events.Gateway // of the process
	Log         *journal.Log
	Conn        *nats.Conn
	Projector   *projector.Projector // of the same process; nil: verdicts and views come over Conn
	View        *kv.View             // filled by Projector, or here by watching
	Generations core.Generations
	Ratio       func(model string) estimate.Ratio
	Registry    prometheus.Registerer
	Tracer      *trace.Tracer // nil: nothing is traced
	Logger      *slog.Logger
	DrainFor    time.Duration                         // Defaults to DrainFor
	Answer      time.Duration                         // how long a reserve waits for its verdict. Defaults to reservation.AnswerWithin
	Ledger      *ledger.Ledger                        // knows whether the log is the right one; nil: any is
	Dial        func(name string) (*nats.Conn, error) // joins the log as a gateway process that is gone; nil: Conn may speak for all
	Forward     []string                              // client headers that go upstream beside the usual ones. Defaults to none.
	Dynamic     Dynamic                               // authority made through the API; nil: that of the files alone
	Apart       bool                                  // Dynamic is not in the log's broker
	Manages     bool                                  // this process may change it: it serves /admin/, /api/ and /console/
}

// Gateway is a gateway process.
type Gateway struct {
	c         Config
	listener  net.Listener
	http      *http.Server
	server    *core.Server
	publisher *journal.Publisher
	book      *reservation.Book
	reporter  *reservation.Reporter
	set       *upstream.Set
	relay     *relay.Relay
	authority *authority.Watcher
	mirror    *store.Mirror             // of dynamic authority; nil: there is none
	keys      atomic.Pointer[seal.Keys] // that credentials are sealed with; nil: none are configured
	unopened  *follow.Warnings          // credentials that those do not open
	behind    *behind
	manage    *manage.Handler // nil: this process does not manage
	console   *console.Handler
	spool     *spool.Spool
	reach     *reach
	draining  atomic.Bool
	cut       context.CancelCauseFunc
}

// New makes a gateway and takes its address. The error names what is wrong: the address in use, the file, the field.
func New(ctx context.Context, c Config) (*Gateway, error) {
	if c.DrainFor == 0 {
		c.DrainFor = DrainFor
	}
	g := &Gateway{c: c, unopened: follow.NewWarnings("authority", c.Logger, time.Now)}
	var err error
	if g.authority, err = authority.Watch(c.Config.Source(), time.Now, g.reloaded); err != nil {
		return nil, err
	}
	for _, w := range g.authority.Last().Warnings {
		c.Logger.Warn(w.String())
	}
	if g.set, err = upstream.New(upstreams(g.authority.Current()), upstream.Options{Now: time.Now}); err != nil {
		return nil, err
	}
	if err := g.openDynamic(); err != nil {
		return nil, err
	}
	took := publishTimes()
	publisher := journal.PublisherConfig{Gateway: c.Name, Now: time.Now, Acked: func(d time.Duration) { took.Observe(d.Seconds()) }}
	if c.Projector == nil { // then the log is another's, and may not be read from here
		publisher.Find = journal.Ask(c.Conn, access.SubjectFind)
	}
	if g.publisher, err = c.Log.Publisher(ctx, publisher); err != nil {
		return nil, err
	}
	var damage []string
	if g.spool, damage, err = spool.Open(g.spools(), spool.Head{Gateway: c.Name, Epoch: firstEpoch}); err != nil {
		return nil, err
	}
	for _, d := range damage {
		c.Logger.Warn("the spool was damaged", "damage", d)
	}
	g.reach = newReach(g, g.spool)
	g.book = reservation.NewBook(reservation.Config{Gateway: c.Name, Epoch: firstEpoch, Publisher: g.publisher, Projector: g.questions(), Now: time.Now,
		MaybeAppended: journal.MaybeAppended, Spool: g.reach, AnswerWithin: c.Answer, Trusted: g.trusted})
	if c.Ledger != nil {
		c.Ledger.OnRecovered(g.reach.recovered)
	}
	g.reporter = reservation.NewReporter(c.Name, g.publisher, time.Now)
	g.relay = relay.New(relay.Options{Connect: c.Config.Upstream.Connect, FirstByte: c.Config.Upstream.FirstByte, Idle: c.Config.Upstream.Idle, Now: time.Now})
	meters := core.NewMetrics()
	serving := core.Config{
		Gateway: c.Name, Authority: g.current, Fresh: g.fresh, Book: g.book, Reporter: g.reporter, View: c.View, Upstream: g.set, Relay: g.relay,
		Generations: c.Generations, Ratio: c.Ratio, Ready: g.why, Reach: g.reach, Allowance: g.reach.allowance, Settings: c.Config.Admission, FreeEstimates: c.Config.FreeEstimates, MaxRequestBytes: c.Config.MaxRequestBytes,
		Now: time.Now, NewID: newID, Forward: c.Forward, Logger: c.Logger, Meters: meters, Tracer: c.Tracer,
	}
	if g.mirror != nil {
		serving.Standing, serving.Apart, serving.Stale, serving.Degraded = g.standing, c.Apart, g.behind.stale, g.degraded
	}
	g.server = core.New(serving)
	if c.Registry != nil {
		if err := errors.Join(c.Registry.Register(meters), c.Registry.Register(took)); err != nil {
			return nil, fmt.Errorf("register the gateway's metrics: %w", err)
		}
		g.registerGauges(c.Registry)
	}
	g.mount()
	if g.listener, err = net.Listen("tcp", c.Config.Listen); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", c.Config.Listen, err), g.spool.Close())
	}
	return g, nil
}

// newID makes a UUIDv7.
func newID() events.RequestID { return events.RequestID(uuid.Must(uuid.NewV7()).String()) }

// Addr is the address that the gateway serves.
func (g *Gateway) Addr() net.Addr { return g.listener.Addr() }

// Handle adds an endpoint under a pattern. It must be called before Run.
func (g *Gateway) Handle(pattern string, h http.Handler) { g.server.Handle(pattern, h) }

// Reload reads the files of authority again, and the keys that credentials are sealed with.
func (g *Gateway) Reload() error {
	if g.mirror != nil {
		if err := g.readKeys(); err != nil {
			g.c.Logger.Error("the keys that credentials are sealed with are not valid: the last valid ones stay in use", "error", err)
		}
	}
	return g.authority.Reload()
}

// Handler is what Run serves at Addr.
func (g *Gateway) Handler() http.Handler { return g.server }

// Outage says whether the log is out of reach, and how much of what was done without it the log does not have yet.
func (g *Gateway) Outage() (out bool, spooled int) { return g.reach.Out(), g.spool.Waiting() }

// Book is the gateway's reservations.
func (g *Gateway) Book() *reservation.Book { return g.book }

// reloaded takes a new authority into use.
func (g *Gateway) reloaded(r authority.Reloaded) {
	if g.mirror != nil {
		g.mirror.SetStatic(r.Snapshot) // the last valid one, too: the keys of credentials may be others
	}
	g.moved(g.current())
	if r.Err != nil {
		g.c.Logger.Error("the files of authority are not valid: the last valid ones stay in use", "error", r.Err)
		return
	}
	for _, w := range r.Warnings {
		g.c.Logger.Warn(w.String())
	}
	g.c.Logger.Info("the files of authority were read again", "keys", len(r.Snapshot.Keys), "models", len(r.Snapshot.Models))
}

// Why says why nothing can be admitted; empty: it can.
func (g *Gateway) Why() string { return g.why() }

// why says why nothing can be admitted; empty: it can.
func (g *Gateway) why() string {
	if g.c.Ledger != nil {
		if why := g.c.Ledger.Why(); why != "" {
			return why
		}
	}
	if why := g.unread(); why != "" {
		return why
	}
	if why := g.reach.allowance.Stopped(); why != "" {
		return why
	}
	if g.c.Projector != nil {
		_, why := g.c.Projector.Answering()
		return why
	}
	return "" // a log that is out of reach is for the allowance
}

// trusted says whether the log is known to be the right one.
func (g *Gateway) trusted() bool { return g.c.Ledger == nil || g.c.Ledger.Trusted() }

// spools is where gateway processes keep what they do without the log.
func (g *Gateway) spools() string { return filepath.Join(g.c.Config.DataDir, "spool") }

// Run serves until ctx ends, then drains: new requests are refused, streams may go on for a while, and what is owed to the log is sent.
func (g *Gateway) Run(ctx context.Context) error {
	// What serves requests outlives ctx, so that those under way can end in order.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	base, cut := context.WithCancelCause(work)
	g.cut = cut
	g.http = &http.Server{Handler: g.server, ReadHeaderTimeout: headerWithin, IdleTimeout: idleFor, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return base }, ErrorLog: slog.NewLogLogger(g.c.Logger.Handler(), slog.LevelDebug)}
	if g.console != nil {
		g.http.RegisterOnShutdown(g.console.Close)
	}
	running, work := errgroup.WithContext(work)
	running.Go(func() error { return g.publisher.Run(work) })
	if err := g.takeOver(ctx); err != nil { // before the first lease
		g.c.Logger.Error("what a gateway before this one spooled is not in the log yet", "error", err)
	}
	running.Go(func() error { return g.book.Run(work) })
	running.Go(func() error { return g.reach.run(work) })
	running.Go(func() error { return g.keepTakingOver(work) })
	running.Go(func() error { return g.reporter.Run(work) })
	running.Go(func() error { return g.set.Run(work) })
	running.Go(func() error { return g.authority.Run(work) })
	g.runDynamic(work, running)
	detach, err := g.attach(work, running)
	if err != nil {
		stop()
		return errors.Join(err, running.Wait())
	}
	defer detach()
	g.probed(ctx)
	running.Go(func() error {
		if err := g.http.Serve(g.listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve %s: %w", g.listener.Addr(), err)
		}
		return nil
	})
	g.c.Logger.Info("the gateway serves", "address", g.listener.Addr().String(), "gateway", g.c.Name)
	select {
	case <-ctx.Done():
		g.drain()
	case <-work.Done(): // something failed
		g.draining.Store(true)
		_ = g.http.Close()
	}
	stop()
	g.relay.Close()
	return errors.Join(running.Wait(), g.spool.Close())
}

// probed waits until every replica was asked once, so that the first requests are not refused for want of a healthy one.
func (g *Gateway) probed(ctx context.Context) {
	wait := time.NewTimer(probedWithin)
	defer wait.Stop()
	select {
	case <-g.set.Ready():
	case <-wait.C:
	case <-ctx.Done():
	}
}

// drained waits until no request is under way, and says whether it came to that in time. Meanwhile new ones are still answered: with a
// refusal, and /ready tells those who balance load.
func (g *Gateway) drained() bool {
	end := time.NewTimer(g.c.DrainFor)
	defer end.Stop()
	look := time.NewTicker(drainEvery)
	defer look.Stop()
	for g.server.InHand() > 0 {
		select {
		case <-look.C:
		case <-end.C:
			return false
		}
	}
	return true
}

// drain ends the requests under way, by themselves if they can.
func (g *Gateway) drain() {
	g.server.Drain()
	ended := g.drained()
	if ended {
		within, cancel := context.WithTimeout(context.Background(), flushFor)
		ended = g.http.Shutdown(within) == nil
		cancel()
	}
	if !ended {
		g.c.Logger.Warn("streams were cut off after draining", "after", g.c.DrainFor, "requests", g.server.InHand())
		core.Stop(g.cut)
		within, cancel := context.WithTimeout(context.Background(), flushFor)
		if err := g.http.Shutdown(within); err != nil {
			_ = g.http.Close()
		}
		cancel()
	}
	flushed, cancel := context.WithTimeout(context.Background(), flushFor)
	defer cancel()
	g.spoolFlushed(flushed)
	if err := g.publisher.Flush(flushed); err != nil {
		g.c.Logger.Error("not everything reached the log; leases will free what is held", "error", err)
	}
}

// spoolFlushed waits until the log has what was spooled; what it does not get, the next process publishes.
func (g *Gateway) spoolFlushed(ctx context.Context) {
	for g.spool.Waiting() > 0 && g.c.Conn.Status() == nats.CONNECTED {
		select {
		case <-ctx.Done():
			return
		case <-time.After(drainEvery):
		}
	}
}

// attach connects the gateway to where verdicts and views come from.
func (g *Gateway) attach(ctx context.Context, running *errgroup.Group) (detach func(), err error) {
	if g.c.Projector != nil {
		return g.c.Projector.AnswerLocal(g.c.Name, g.book.Verdicts), nil
	}
	sub, err := g.c.Conn.Subscribe(access.VerdictPrefix+string(g.c.Name), func(m *nats.Msg) {
		if verdicts, err := events.DecodeVerdicts(m.Data); err == nil { // others may aim the broker's own answers here
			g.book.Verdicts(verdicts)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("listen for verdicts: %w", err)
	}
	if g.c.View != nil {
		running.Go(func() error { return g.c.View.Watch(ctx, g.c.Conn) })
	}
	return func() { _ = sub.Unsubscribe() }, nil
}
