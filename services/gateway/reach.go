package gateway

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	core "github.com/weirhq/weir/gateway"
	"github.com/weirhq/weir/gateway/outage/spool"
	"github.com/weirhq/weir/gateway/reservation"
)

// How the log's absence is noticed, and its return.
const (
	lookEvery = 250 * time.Millisecond

	// awayFor is how long a connection may be away before requests no longer wait for it: a broker that restarts quickly is waited for.
	awayFor = time.Second

	// answerFor is how long a projector may take to say anything at all.
	answerFor = 500 * time.Millisecond

	// whyFor is how long it may take to say why it may not answer: longer, as what follows from silence is an allowance. With answerFor it is less
	// than stoodFor.
	whyFor = time.Second

	// silentFor is how old the last lease that the log took may be: three of them.
	silentFor = 3 * reservation.LeaseEvery

	// quietFor is how old the last word of a projector may be: what stops them is to be known before a request waits for a verdict.
	quietFor = 2 * time.Second

	// onceFor is for how long one look counts for all who ask.
	onceFor = 100 * time.Millisecond

	// stoodFor is how long this process must have stood still itself to blame nobody else for its silence.
	stoodFor = 2 * time.Second

	drainFor = 30 * time.Second // one try to publish the spool
)

// reach is the breaker between the gateway and the log. It opens when the log cannot be reached: the connection is away, no projector
// says a word, or the log has taken no lease for a while. A log that is merely slow, or full, does not open it, nor do projectors that say that they may not
// answer: requests are refused then, and none is admitted by the gateway itself. It closes when the log answers, is the right one, and has
// everything that was spooled.
type reach struct {
	g         *Gateway
	allowance *core.Allowance
	spool     *spool.Spool
	sender    *sender // of what is spooled; run's own
	out       atomic.Bool
	wake      chan struct{}
	search    bool // an earlier try to publish the spool did not end

	floor  atomic.Uint64 // a sequence of the log before it was recovered: until it is passed, what the publisher has seen says nothing
	ticked atomic.Int64  // when run last looked, unix ns
	awake  atomic.Int64  // since when the process runs without having stood still

	mu     sync.Mutex // of one look
	looked time.Time
	near   bool
}

func newReach(g *Gateway, s *spool.Spool) *reach {
	r := &reach{g: g, allowance: core.NewAllowance(time.Now), spool: s, sender: newSender(g.publisher), wake: make(chan struct{}, 1)}
	now := time.Now().UnixNano()
	r.ticked.Store(now)
	r.awake.Store(now)
	return r
}

// recovered goes on with a log that was recovered, and may be shorter.
func (r *reach) recovered() {
	r.floor.Store(r.g.publisher.Stats().LastSeq)
	r.g.book.Again()
}

// silent says whether the log has taken no lease for a while, though this process could send them.
func (r *reach) silent() bool {
	now := time.Now()
	if now.UnixNano()-r.ticked.Load() > int64(stoodFor) {
		return false
	}
	since := max(r.g.publisher.LastAcked().UnixNano(), r.awake.Load())
	return now.UnixNano()-since > int64(silentFor)
}

// tick notes that the process runs.
func (r *reach) tick() {
	now := time.Now().UnixNano()
	if now-r.ticked.Swap(now) > int64(stoodFor) {
		r.awake.Store(now)
	}
}

// Out says whether nobody should wait for the log.
func (r *reach) Out() bool { return r.out.Load() }

// Gateways is how many serve.
func (r *reach) Gateways() int64 {
	if r.g.c.Ledger == nil {
		return 1
	}
	return r.g.c.Ledger.Gateways()
}

// Missed says whether a reserve had no verdict because the log is out of reach.
func (r *reach) Missed(ctx context.Context, err error) bool {
	if r.Out() {
		return true
	}
	if journal.Full(err) || r.g.publisher.Stats().Full || r.answers(ctx) || r.allowance.Stopped() != "" {
		return false
	}
	r.open("a reserve was not answered")
	return true
}

func (r *reach) open(why string) {
	r.allowance.Failed()
	if !r.out.Swap(true) {
		r.g.c.Logger.Warn("the log is out of reach: what the allowance grants is admitted by the gateway itself", "why", why)
	}
}

// Append spools an event of a request that was admitted without the log.
func (r *reach) Append(ev events.Event) error {
	if err := r.spool.Append(ev, r.g.publisher.Stats().LastSeq); err != nil {
		r.g.c.Logger.Error("an event could not be spooled", "event", ev.ID, "error", err)
		return err
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return nil
}

// answers says whether the log is in reach. One look at a time counts for all who ask.
func (r *reach) answers(ctx context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.looked) < onceFor {
		return r.near
	}
	r.near = r.look(ctx)
	r.looked = time.Now()
	return r.near
}

// quiet says whether nobody has looked for a while.
func (r *reach) quiet() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.looked) >= quietFor
}

func (r *reach) look(ctx context.Context) bool {
	if r.g.c.Conn.Status() != nats.CONNECTED || r.g.c.Ledger != nil && !r.g.c.Ledger.Trusted() {
		return false
	}
	if r.silent() {
		return false
	}
	if r.g.c.Projector != nil {
		return true // whether it may answer is for Ready to say
	}
	return r.hears(context.WithoutCancel(ctx))
}

// hears says whether any projector answers. When none does, those that are there are asked why: only then, as one that may not answer must not be
// heard before another that does.
func (r *reach) hears(ctx context.Context) bool {
	projectors := far{r.g.c.Conn, r.g.c.Name}
	asking, cancel := context.WithTimeout(ctx, answerFor)
	_, _, err := projectors.Ask(asking, "", 0)
	cancel()
	if err == nil {
		if r.allowance.Stop("") {
			r.g.c.Logger.Warn("projectors answer again")
		}
		return true
	}
	asking, cancel = context.WithTimeout(ctx, whyFor)
	defer cancel()
	why, err := projectors.why(asking)
	if err == nil && why != "" && r.allowance.Stop(why) {
		r.g.c.Logger.Error("projectors may not answer: nothing is admitted", "why", why)
	}
	return err == nil && why == ""
}

// run notices that the log is away or back, and publishes what was spooled, until ctx ends.
func (r *reach) run(ctx context.Context) error {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	var away time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-t.C:
		}
		r.tick()
		if r.g.c.Ledger != nil && r.g.c.Projector == nil {
			if last := r.g.publisher.Stats().LastSeq; last > r.floor.Load() {
				r.g.c.Ledger.Note(last, "", "")
			}
		}
		switch connected := r.g.c.Conn.Status() == nats.CONNECTED; {
		case r.Out():
			r.tryToClose(ctx)
		case connected:
			away = time.Time{}
			if r.allowance.Stopped() != "" || r.quiet() {
				r.answers(ctx)
			}
			if r.spool.Waiting() > 0 {
				r.drain(ctx)
			}
		case away.IsZero():
			away = time.Now()
		case time.Since(away) >= awayFor:
			r.open("the connection is away")
			away = time.Time{}
		}
	}
}

// tryToClose closes the breaker if the log answers and takes everything that was spooled.
func (r *reach) tryToClose(ctx context.Context) {
	if !r.answers(ctx) {
		r.allowance.Failed() // while it is away it goes on failing: nothing arms the allowance again
		return
	}
	if !r.drain(ctx) {
		return
	}
	r.out.Store(false)
	r.g.c.Logger.Warn("the log is back, and has everything that was done without it")
}

// drain publishes what was spooled, and says whether nothing is left.
func (r *reach) drain(ctx context.Context) bool {
	if r.g.c.Ledger != nil && !r.g.c.Ledger.Trusted() {
		return false
	}
	within, cancel := context.WithTimeout(ctx, drainFor)
	defer cancel()
	n, err := publish(within, r.spool, r.sender, r.g.find(r.g.c.Conn, r.g.c.Log), r.search)
	if n > 0 {
		r.g.c.Logger.Info("what was spooled is in the log", "events", n)
	}
	if r.search = err != nil; err != nil && ctx.Err() == nil {
		r.g.c.Logger.Warn("what was spooled is not all in the log yet", "waiting", r.spool.Waiting(), "error", err)
	}
	return err == nil
}
