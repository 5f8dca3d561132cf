package journal

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
)

// How a publisher sends.
const (
	// MaxInFlight is how many messages may be unacknowledged. More would only split packs: the stream stores one after the other.
	MaxInFlight = 4

	// lingerFor is how long what is not urgent waits for company.
	lingerFor = 2 * time.Millisecond

	// sweepEvery is how exact deadlines and retries are.
	sweepEvery = 10 * time.Millisecond

	// fullFor is how long nothing is sent to a stream that takes no more.
	fullFor = time.Second

	// ackChannel is room for the answers to every message in flight and to its retries.
	ackChannel = 1024
)

// PublisherConfig says whose events a publisher sends.
type PublisherConfig struct {
	// Gateway is the process's name, the last token of its subjects. There is no default.
	Gateway events.Gateway

	// Now gives the time that deadlines, retries and LastAcked are in. It should also count while the machine sleeps.
	// Defaults to time.Now.
	Now func() time.Time

	// Find looks in the log for a message that was sent for RetryFor without an acknowledgement. A gateway that may not read the log
	// gives Ask. Defaults to Log.LookFor.
	Find Find

	// Acked is told how long each acknowledged message took from when its oldest copy left. It must not block. Defaults to nothing.
	Acked func(took time.Duration)
}

// Publisher sends one gateway's events. Its methods may be called at the same time.
type Publisher struct {
	log     *Log
	gateway events.Gateway
	now     func() time.Time
	find    Find
	onAck   func(took time.Duration)
	prefix  string // of reply subjects
	packs   string // of the ids of packs: another publisher of the same gateway has another

	mu      sync.Mutex
	outbox  outbox
	flights map[uint64]*flight
	slots   int    // messages in flight or being made
	total   int    // events that are not over
	counter uint64 // of messages
	last    uint64 // the highest sequence seen
	acked   time.Time
	lapsed  time.Time // see MayHaveLapsed
	full    time.Time // until when nothing is sent; zero if the stream takes more
	running bool
	closed  bool
	linger  *time.Timer
	waiting bool // the linger timer runs
	sweep   *time.Timer
	watched bool // the sweep timer runs
	drained []chan struct{}
	stats   Stats

	searches chan search
	searcher sync.WaitGroup
}

// Stats is what a publisher has done, and what it holds.
type Stats struct {
	Queued    int           // events that have not left
	InFlight  int           // messages that left and are not acknowledged
	Waiting   int           // events that are not over: queued or in flight
	Oldest    time.Duration // age of the oldest of them
	Messages  uint64        // acknowledged, packs included
	Packs     uint64        // acknowledged packs
	Events    uint64        // acknowledged
	Duplicate uint64        // messages that an earlier copy of had been appended
	Retries   uint64        // messages sent again
	Searches  uint64        // messages looked for in the log
	Expired   uint64        // events whose deadline passed
	Refused   uint64        // events that the stream will never take
	Full      bool          // the stream takes no more
	LastSeq   uint64        // the highest sequence acknowledged
}

// Publisher makes the publisher of a gateway's events. What is submitted leaves once Run runs.
func (l *Log) Publisher(ctx context.Context, config PublisherConfig) (*Publisher, error) {
	if !config.Gateway.Valid() {
		return nil, fmt.Errorf("publisher: gateway %q does not match [A-Za-z0-9][A-Za-z0-9_-]{0,63}", config.Gateway)
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	if config.Find == nil {
		config.Find = l.LookFor
	}
	if config.Acked == nil {
		config.Acked = func(time.Duration) {}
	}
	if l.nc.Opts.ReconnectBufSize > 0 {
		return nil, fmt.Errorf("publisher of %s: the connection keeps what is published while it is away; open it with journal.Options", config.Gateway)
	}
	info, err := l.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("publisher of %s: %w", config.Gateway, err)
	}
	inbox := l.nc.NewInbox()
	return &Publisher{
		log:      l,
		gateway:  config.Gateway,
		now:      config.Now,
		find:     config.Find,
		onAck:    config.Acked,
		prefix:   inbox + ".",
		packs:    string(config.Gateway) + inbox[strings.LastIndexByte(inbox, '.'):] + ".",
		flights:  make(map[uint64]*flight),
		last:     info.Last,
		searches: make(chan search, 4*MaxInFlight),
		linger:   stopped(),
		sweep:    stopped(),
	}, nil
}

func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// Submit hands an event over. Done is called once, with the sequence of the message that holds the event, or with the error after
// which it is no longer sent. It is called from the publisher's goroutine, or from within Submit for an event that cannot be sent: it
// must not block, and may submit. An error of Submit means that the event was not taken: ErrFull, ErrClosed, Full(err) for a reserve
// while the stream takes no more, or what is wrong with it. Done may be nil. The event's data must not change any more.
func (p *Publisher) Submit(ev events.Event, done func(seq uint64, err error)) error {
	return p.SubmitBy(ev, time.Time{}, done)
}

// SubmitBy is Submit with a deadline, after which the event is not sent any more and done is called with ErrDeadline;
// MaybeAppended says of that error whether it may be in the log all the same. What is already under way in a pack with others may
// still be appended later. Releases and finals have no deadline: it is ignored.
func (p *Publisher) SubmitBy(ev events.Event, by time.Time, done func(seq uint64, err error)) error {
	if err := normalize(&ev, p.gateway); err != nil {
		return err
	}
	isOwed := owed(ev.Data)
	if isOwed {
		by = time.Time{}
	}
	now := p.now()
	p.mu.Lock()
	if err := p.accepts(isOwed, classOf(ev.Data.Kind()), now); err != nil {
		p.mu.Unlock()
		return err
	}
	p.outbox.push(item{event: ev, by: by, since: now, done: done})
	p.total++
	p.watch()
	urgent := leavesAtOnce(ev.Data)
	var batch []item
	if p.open() {
		if urgent {
			batch = p.take()
		} else if !p.waiting {
			p.waiting = true
			p.linger.Reset(lingerFor)
		}
	}
	p.mu.Unlock()
	if batch != nil {
		p.send(batch)
	}
	return nil
}

// leavesAtOnce says whether an event waits for no company: a reserve, for which a client waits, and the end of a request, whose place is
// to be free before its client comes back, perhaps at another gateway.
func leavesAtOnce(d events.Data) bool {
	switch d := d.(type) {
	case *events.Reserve:
		return true
	case *events.Release:
		return d.Of == events.OfRequest
	}
	return false
}

// accepts says why an event cannot be taken. The lock is held.
func (p *Publisher) accepts(isOwed bool, c class, now time.Time) error {
	switch {
	case p.closed:
		return ErrClosed
	case p.total >= maxOwed || p.total >= MaxOutbox && !isOwed:
		return ErrFull
	case c == classReserve && now.Before(p.full):
		return &failure{err: errors.New("the log takes no more"), full: true}
	}
	return nil
}

// open says whether one more message may leave. The lock is held.
func (p *Publisher) open() bool { return p.running && p.slots < MaxInFlight && p.full.IsZero() }

// take takes the next message's events and its place. The lock is held.
func (p *Publisher) take() []item {
	batch := p.outbox.take()
	if batch != nil {
		p.slots++
	}
	return batch
}

// watch starts the sweep. The lock is held.
func (p *Publisher) watch() {
	if !p.watched {
		p.watched = true
		p.sweep.Reset(sweepEvery)
	}
}

// LastAcked says when the last lease or reserve that the log acknowledged was first sent; zero if none was.
func (p *Publisher) LastAcked() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.acked
}

// MayHaveLapsed says until when what was sent may have lapsed in the log meanwhile, though a later lease has put it back: more than a lease
// lay between the sending of one sign of life and the acknowledgement of the next. Zero: nothing has.
func (p *Publisher) MayHaveLapsed() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lapsed
}

// Stats says what the publisher has done and holds.
func (p *Publisher) Stats() Stats {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Queued, s.InFlight, s.Waiting, s.LastSeq, s.Full = p.outbox.n, p.slots, p.total, p.last, !p.full.IsZero()
	oldest := p.outbox.oldest()
	for _, f := range p.flights {
		if oldest.IsZero() || f.since.Before(oldest) {
			oldest = f.since
		}
	}
	if !oldest.IsZero() {
		s.Oldest = now.Sub(oldest)
	}
	return s
}

// Flush waits until everything that was submitted is over. The error says how much is not.
func (p *Publisher) Flush(ctx context.Context) error {
	for {
		p.mu.Lock()
		if p.total == 0 {
			p.mu.Unlock()
			return nil
		}
		if p.closed {
			n := p.total
			p.mu.Unlock()
			return fmt.Errorf("flush: %d events: %w", n, ErrClosed)
		}
		empty := make(chan struct{})
		p.drained = append(p.drained, empty)
		p.mu.Unlock()
		select {
		case <-empty:
		case <-ctx.Done():
			p.mu.Lock()
			n := p.total
			p.mu.Unlock()
			return fmt.Errorf("flush: %d events are not acknowledged: %w", n, ctx.Err())
		}
	}
}

// Run sends what is submitted until ctx ends; then what is not acknowledged is over with ErrClosed. It returns nil, or why it could
// not begin.
func (p *Publisher) Run(ctx context.Context) error {
	acks := make(chan *nats.Msg, ackChannel)
	sub, err := p.log.nc.ChanSubscribe(p.prefix+"*", acks)
	if err != nil {
		return fmt.Errorf("publisher of %s: %w", p.gateway, unreachable(err))
	}
	connected := p.log.nc.StatusChanged(nats.CONNECTED)
	searching, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		p.searcher.Wait()
		p.log.nc.RemoveStatusListener(connected)
		_ = sub.Unsubscribe()
		p.close()
	}()
	p.mu.Lock()
	p.running = true
	p.mu.Unlock()
	p.advance(true)
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-acks:
			p.answers(m, acks)
		case <-p.linger.C:
			p.mu.Lock()
			p.waiting = false
			p.mu.Unlock()
			p.advance(true)
		case <-p.sweep.C:
			p.sweepNow(searching)
		case <-connected:
			p.reconnected()
		case s := <-p.searches:
			p.searched(s)
		}
	}
}

// close ends what is not acknowledged.
func (p *Publisher) close() {
	p.mu.Lock()
	p.running, p.closed = false, true
	var over []ending
	for _, it := range p.outbox.empty() {
		over = append(over, ending{it.done, 0, &failure{err: ErrClosed}})
	}
	for _, f := range p.flights {
		over = f.end(over, 0, &failure{err: ErrClosed, maybe: f.maybe()})
	}
	clear(p.flights)
	p.slots = 0
	p.finish(over)
}

// ending is a call of done that is due.
type ending struct {
	done func(seq uint64, err error)
	seq  uint64
	err  error
}

// finish counts events as over, gives up the lock and calls their done.
func (p *Publisher) finish(over []ending) {
	p.total -= len(over)
	var drained []chan struct{}
	if p.total == 0 || p.closed {
		drained, p.drained = p.drained, nil
	}
	p.mu.Unlock()
	for _, e := range over {
		if e.done != nil {
			e.done(e.seq, e.err)
		}
	}
	for _, c := range drained {
		close(c)
	}
}

func (p *Publisher) reply(n uint64) string { return p.prefix + strconv.FormatUint(n, 36) }
