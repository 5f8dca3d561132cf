package projector

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/admission"
)

const (
	beginPause   = 200 * time.Millisecond // between two tries to reach the log at the start
	maxCommands  = 64                     // questions that wait for the fold's goroutine
	batchBuffers = 2                      // one is read while another is folded
)

// Projector runs the fold of one log. Its methods may be called at the same time.
type Projector struct {
	cfg     Config
	answers *answers
	status  status

	locals   atomic.Pointer[map[events.Gateway]func([]events.Verdict)]
	localsMu sync.Mutex

	commands chan func(*loop)
	ran      atomic.Bool
	done     chan struct{} // closed when Run has ended

	statsMu       sync.Mutex
	stats         Stats
	asks, unknown atomic.Uint64
}

// New makes a projector; Run runs it.
func New(config Config) (*Projector, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("projector: %w", err)
	}
	p := &Projector{cfg: config.withDefaults(), answers: newAnswers(), commands: make(chan func(*loop), maxCommands), done: make(chan struct{})}
	p.locals.Store(&map[events.Gateway]func([]events.Verdict){})
	p.status.set(stopped, "not running")
	return p, nil
}

// Run folds the log until ctx ends, and returns nil then. Any other end is an error, and Ready says it too: *journal.Replaced and
// *journal.Lost when the log is not the one that was folded. A projector runs once.
func (p *Projector) Run(ctx context.Context) error {
	if p.ran.Swap(true) {
		return errors.New("projector: has run before")
	}
	defer close(p.done)
	err := p.run(ctx)
	if err != nil {
		p.status.set(stopped, err.Error())
		return fmt.Errorf("projector: %w", err)
	}
	p.status.set(stopped, "stopped")
	return nil
}

func (p *Projector) run(ctx context.Context) error {
	l, err := p.begin(ctx)
	if err != nil || l == nil {
		return err
	}
	asks, err := p.listen()
	if err != nil {
		return err
	}
	defer asks.close()

	group, ctx := errgroup.WithContext(ctx)
	l.ctx, l.group = ctx, group
	group.Go(func() error { return l.read(ctx) })
	group.Go(func() error { return l.run(ctx) })
	group.Go(func() error { p.serve(ctx, asks); return nil })
	if !p.cfg.ReadOnly {
		group.Go(func() error { return l.write(ctx) })
	}
	err = group.Wait()
	l.saveLast()
	return err
}

// begin finds where to begin: the newest snapshot, or the log's beginning; a shared snapshot where neither is to be had. It waits for a log
// that is out of reach, and for a snapshot that reaches back to what the log still holds: it never begins later than that. No loop and no
// error mean that ctx ended.
func (p *Projector) begin(ctx context.Context) (*loop, error) {
	l := p.newLoop()
	if err := l.prepare(); err != nil {
		return nil, err
	}
	if err := l.restore(); err != nil {
		return nil, err
	}
	p.status.set(catching, "waiting for the log")
	p.status.set(stopped, "")
	for {
		pause := beginPause
		asked := p.cfg.Now().UnixNano()
		info, err := p.cfg.Log.Info(ctx)
		if err == nil {
			why := l.reach(ctx, info)
			if why == "" {
				l.target = info.Last
				l.clock.probed(asked, info.Last)
				return l, l.open(ctx, info)
			}
			if ctx.Err() == nil && p.status.set(catching, why) {
				p.cfg.Logger.Error("projector: " + why)
			}
			pause = fetchAgain
		}
		if ctx.Err() != nil {
			return nil, nil
		}
		if err != nil && !journal.Unreachable(err) {
			return nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// open opens the source where the fold stands.
func (l *loop) open(ctx context.Context, info journal.Info) error {
	from := journal.TapConfig{Name: "projector", From: l.fold.Seq() + 1, Chain: l.chain, Created: l.created}
	l.next = from.From
	l.packs.from = max(l.packs.from, 1)
	if l.fold.Seq() == 0 {
		l.packs.from = l.next
	}
	if l.created.IsZero() {
		l.created, from.Created = info.Created, info.Created
	}
	l.caughtUp()
	var err error
	l.source, err = l.p.cfg.Source(ctx, from)
	return err
}

// Ask gives the verdict on an attempt, if it fell within the last minute and may be trusted.
func (p *Projector) Ask(request events.RequestID, attempt int64) (events.Verdict, bool) {
	if ok, _ := p.Answering(); !ok {
		return events.Verdict{}, false
	}
	return p.answers.find(request, attempt)
}

// Live lists the running requests of a gateway, in no particular order, as of a sequence of the log. The error is ctx's, or says that
// the projector does not answer.
func (p *Projector) Live(ctx context.Context, gateway events.Gateway) (requests []events.RequestID, seq uint64, err error) {
	type live struct {
		requests []events.RequestID
		seq      uint64
	}
	if ok, why := p.Answering(); !ok {
		return nil, 0, fmt.Errorf("list the live requests of %s: %s", gateway, why)
	}
	found, err := Query(ctx, p, func(f *admission.Fold) live { return live{f.Live(gateway), f.Seq()} })
	if err != nil {
		return nil, 0, fmt.Errorf("list the live requests of %s: %w", gateway, err)
	}
	return found.requests, found.seq, nil
}

// Query lets a function look at the fold, on the fold's goroutine: it must be quick, and give nothing that the fold still changes. The
// error is ctx's, or ErrStopped.
func Query[T any](ctx context.Context, p *Projector, look func(*admission.Fold) T) (T, error) {
	var none T
	result := make(chan T, 1)
	select {
	case p.commands <- func(l *loop) { result <- look(l.fold) }:
	case <-ctx.Done():
		return none, ctx.Err()
	case <-p.done:
		return none, ErrStopped
	}
	select {
	case found := <-result:
		return found, nil
	case <-ctx.Done():
		return none, ctx.Err()
	case <-p.done:
		return none, ErrStopped
	}
}

// ErrStopped says that the projector does not run any more.
var ErrStopped = errors.New("the projector has stopped")
