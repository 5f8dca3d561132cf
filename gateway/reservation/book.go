// Package reservation is the life of a request's reservation at this gateway: reserved, grown while it streams, trued up, and released
// exactly once, whatever happens to the client, the upstream or the log.
//
// A Book holds a gateway's reservations and its lease. Each request has one Reservation; its Reserve publishes the claims and waits for
// the verdict, its TrueUp and End publish what came of it. Events are handed to a Publisher that keeps them until the log has them.
package reservation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/events"
)

// Bounds of a gateway's reservations.
const (
	// MaxUnanswered bounds the reserves that wait for a verdict: beyond it new work is refused at once.
	MaxUnanswered = 4_096

	// AnswerWithin is how long a reserve waits for its verdict, beside the time that it may park.
	AnswerWithin = time.Second

	// askAfter is how long after its acknowledgement a reserve without a verdict asks for it, and askEvery how often from then on.
	askAfter = 50 * time.Millisecond
	askEvery = 100 * time.Millisecond

	// overdueAfter is how long past its parking time a reserve moves the log's time by a tick.
	overdueAfter = 5 * time.Millisecond

	// LeaseTTL is how long the log holds reservations without a sign of life, and LeaseEvery how often one is given.
	LeaseTTL   = 10 * time.Second
	LeaseEvery = 2 * time.Second

	// dispatchMargin is how long before its lease could end a gateway stops sending requests to models.
	dispatchMargin = 3 * time.Second

	// lapseMargin is how long before its lease could end a gateway ends the calls that may not outlive it, and lapseEvery how often it looks.
	lapseMargin = time.Second
	lapseEvery  = 250 * time.Millisecond

	// GrowEvery is how often at most a running request's growth is published.
	GrowEvery = 250 * time.Millisecond

	// strayEvery is how often what the projectors hold for this gateway is compared with what it holds itself.
	strayEvery = time.Minute

	// strayAge is how old a reservation must be before it can be a stray: younger ones may still be on their way here.
	strayAge = 10 * time.Second
)

// Publisher sends events to the log; it is a journal.Publisher.
type Publisher interface {
	Submit(ev events.Event, done func(seq uint64, err error)) error
	SubmitBy(ev events.Event, by time.Time, done func(seq uint64, err error)) error
	LastAcked() time.Time
	MayHaveLapsed() time.Time
}

// Spool keeps events on the disk until the log is back.
type Spool interface {
	// Append returns nil when the event is on the disk.
	Append(ev events.Event) error
}

// Projector answers questions about what was decided; either may be nil where verdicts come by call.
type Projector interface {
	// Ask gives the verdict on an attempt; known is false if there is none yet.
	Ask(ctx context.Context, id events.RequestID, attempt int64) (v events.Verdict, known bool, err error)
	// Live lists the requests that the fold holds for this gateway.
	Live(ctx context.Context) ([]events.RequestID, error)
}

// Config says whose reservations a Book holds.
type Config struct {
	Gateway   events.Gateway
	Epoch     int64
	Publisher Publisher
	Projector Projector
	Now       func() time.Time
	// MaybeAppended says of a publisher's error whether the event may be in the log all the same.
	MaybeAppended func(error) bool
	// Spool takes what is done without the log. Without one, nothing is.
	Spool Spool
	// AnswerWithin is how long a reserve waits for its verdict, beside the time that it may park. Defaults to the constant of that name.
	AnswerWithin time.Duration
	// Trusted says whether the log is known to be the one that reservations were made in. Defaults to always.
	Trusted func() bool
}

// Book holds the reservations of one gateway process.
type Book struct {
	config Config

	mu      sync.Mutex
	pending map[attemptKey]chan answer
	live    map[events.RequestID]*Reservation

	lapsed time.Time     // as lapse saw it last; Run's own
	anew   chan struct{} // the log was recovered

	stats Stats
}

// Stats counts what a Book has done.
type Stats struct {
	Reserved, Admitted, Refused, Unanswered, Overloaded, Asked, Released, Strays atomic.Int64

	Local          atomic.Int64 // attempts admitted without the log
	Unspooled      atomic.Int64 // events of such requests that the spool did not take; they wait in memory
	Lapsed         atomic.Int64 // calls ended because the lease could not be renewed
	OverAfterLapse atomic.Int64 // requests that ran on when their lease may have ended
}

type attemptKey struct {
	id      events.RequestID
	attempt int64
}

// answer is a verdict, or why there will be none.
type answer struct {
	verdict events.Verdict
	acked   bool
	err     error
	maybe   bool // the reserve may be in the log
}

// NewBook makes the book of a gateway.
func NewBook(config Config) *Book {
	if config.AnswerWithin == 0 {
		config.AnswerWithin = AnswerWithin
	}
	if config.Trusted == nil {
		config.Trusted = func() bool { return true }
	}
	return &Book{config: config, pending: map[attemptKey]chan answer{}, live: map[events.RequestID]*Reservation{},
		anew: make(chan struct{}, 1)}
}

// Gateway is the process whose reservations these are.
func (b *Book) Gateway() events.Gateway { return b.config.Gateway }

// Epoch is the epoch of its leases and reserves. It never changes while the process lives, also not over an outage in which its lease
// ends: a higher epoch would end, in the fold, the requests that still run here and so free what they hold, while the next lease of the
// same epoch puts it back. Another process has another name. What is left of one that died is published under its own name and epoch,
// and then a lease of the next epoch ends what it held: that is in the order in which the log must have it, spool first.
func (b *Book) Epoch() int64 { return b.config.Epoch }

// Stats gives the counters.
func (b *Book) Stats() *Stats { return &b.stats }

// Live counts the requests that hold a reservation or wait for one.
func (b *Book) Live() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.live)
}

// Unanswered counts the reserves that wait for a verdict.
func (b *Book) Unanswered() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.pending)
}

// Verdicts hands over verdicts as they fall. Those on attempts that nobody waits for are dropped: their releases are on their way.
func (b *Book) Verdicts(verdicts []events.Verdict) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range verdicts {
		v := &verdicts[i]
		if c := b.pending[attemptKey{v.Request, v.Attempt}]; c != nil {
			offer(c, answer{verdict: *v})
		}
	}
}

// offer puts an answer where the waiting request looks; there is room for an acknowledgement and a verdict.
func offer(c chan answer, a answer) {
	select {
	case c <- a:
	default:
	}
}

// Unavailable says that no verdict was had: the gateway cannot decide, and refuses for want of its infrastructure.
type Unavailable struct {
	Why        string
	Overloaded bool // of this gateway's own bound, not of the log
	Err        error
}

func (e *Unavailable) Error() string {
	if e.Err != nil {
		return e.Why + ": " + e.Err.Error()
	}
	return e.Why
}

func (e *Unavailable) Unwrap() error { return e.Err }

// wait registers an attempt that waits for its verdict.
func (b *Book) wait(r *Reservation, attempt int64) (chan answer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pending) >= MaxUnanswered {
		b.stats.Overloaded.Add(1)
		return nil, &Unavailable{Why: fmt.Sprintf("%d reserves wait for their verdict", MaxUnanswered), Overloaded: true}
	}
	c := make(chan answer, 4)
	b.pending[attemptKey{r.id, attempt}] = c
	b.live[r.id] = r
	return c, nil
}

func (b *Book) answered(r *Reservation, attempt int64) {
	b.mu.Lock()
	delete(b.pending, attemptKey{r.id, attempt})
	b.mu.Unlock()
}

func (b *Book) forget(r *Reservation) {
	b.mu.Lock()
	delete(b.live, r.id)
	b.mu.Unlock()
}

// Run gives signs of life and releases strays until ctx ends.
func (b *Book) Run(ctx context.Context) error {
	lease := time.NewTicker(LeaseEvery)
	defer lease.Stop()
	stray := time.NewTicker(strayEvery)
	defer stray.Stop()
	lapse := time.NewTicker(lapseEvery)
	defer lapse.Stop()
	var soon <-chan time.Time
	b.renew()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.anew: // what ended here after a log was cut runs on in what is left of it
			soon = time.After(strayAge)
		case <-soon:
			b.releaseStrays(ctx)
		case <-lease.C:
			b.renew()
		case <-lapse.C:
			b.lapse()
		case <-stray.C:
			b.releaseStrays(ctx)
		}
	}
}

// renew publishes a lease, unless the log is another than the one that the reservations were made in: that one knows nothing of them.
func (b *Book) renew() {
	if !b.config.Trusted() {
		return
	}
	d := &events.Lease{Gateway: b.config.Gateway, Epoch: b.config.Epoch, TTLMS: LeaseTTL.Milliseconds()}
	id := fmt.Sprintf("%s/lease/%d", b.config.Gateway, b.config.Now().UnixNano())
	_ = b.config.Publisher.Submit(b.event(id, "", events.Platform, d), nil) // the next one says the same
}

// tick moves the log's time, for a parked reserve that is overdue on a silent log.
func (b *Book) tick() {
	id := fmt.Sprintf("%s/tick/%d", b.config.Gateway, b.config.Now().UnixNano())
	_ = b.config.Publisher.Submit(b.event(id, "", events.Platform, &events.Tick{Gateway: b.config.Gateway}), nil)
}

// Cool pauses a meter for a while, on every gateway, and says for how long.
func (b *Book) Cool(m events.Meter, wait time.Duration) time.Duration {
	d := &events.Cooldown{Gateway: b.config.Gateway, Meter: m, ForMS: min(max(wait.Milliseconds(), events.MinForMS), events.MaxForMS)}
	id := fmt.Sprintf("%s/cooldown/%d", b.config.Gateway, b.config.Now().UnixNano())
	_ = b.config.Publisher.Submit(b.event(id, "", events.Platform, d), nil) // lost, the next 429 says it again
	return time.Duration(d.ForMS) * time.Millisecond
}

func (b *Book) event(id string, request events.RequestID, org events.Org, d events.Data) events.Event {
	return events.Event{ID: id, Source: string(b.config.Gateway), Subject: string(request), Org: org, Data: d}
}

// Held says whether the log still holds this gateway's reservations for sure: whether the last acknowledged lease or reserve was sent
// recently enough, to the log that is known. A request whose reserve was sent at an instant knows that one to be in the log, too. One that
// may have lapsed since then is not held, though a lease has put it back: others may have been admitted in its place meanwhile.
func (b *Book) Held(sent time.Time) bool {
	last := b.config.Publisher.LastAcked()
	if sent.After(last) {
		last = sent
	}
	return b.config.Now().Sub(last) <= LeaseTTL-dispatchMargin && sent.After(b.config.Publisher.MayHaveLapsed()) && b.config.Trusted()
}

// lapse ends the calls that may not outlive the lease when it is about to end, or may have ended, and counts those that do.
func (b *Book) lapse() {
	now, last, lapsed := b.config.Now(), b.config.Publisher.LastAcked(), b.config.Publisher.MayHaveLapsed()
	if now.Sub(last) <= LeaseTTL-lapseMargin && lapsed.Equal(b.lapsed) {
		return
	}
	b.lapsed = lapsed
	b.mu.Lock()
	all := make([]*Reservation, 0, len(b.live))
	for _, r := range b.live {
		all = append(all, r)
	}
	b.mu.Unlock()
	for _, r := range all {
		r.lapse(now, last, lapsed)
	}
}

// Again publishes the live reservations once more, as admitted already: a log that was recovered does not know them.
func (b *Book) Again() {
	b.mu.Lock()
	all := make([]*Reservation, 0, len(b.live))
	for _, r := range b.live {
		all = append(all, r)
	}
	b.mu.Unlock()
	b.renew()
	for _, r := range all {
		r.again()
	}
	select {
	case b.anew <- struct{}{}:
	default:
	}
}

// releaseStrays releases what the projectors hold for this gateway and it does not.
func (b *Book) releaseStrays(ctx context.Context) {
	if b.config.Projector == nil {
		return
	}
	ids, err := b.config.Projector.Live(ctx)
	if err != nil {
		return // asked again in a minute
	}
	for _, id := range ids {
		b.mu.Lock()
		_, ours := b.live[id]
		b.mu.Unlock()
		made, _ := id.MadeAt() // any other id is as old as can be
		if ours || b.config.Now().Sub(made) < strayAge {
			continue
		}
		b.stats.Strays.Add(1)
		d := &events.Release{Request: id, Gateway: b.config.Gateway, Outcome: events.Abandoned}
		// The org of a stray is not known here; the release is folded by its request.
		_ = b.config.Publisher.Submit(b.event(fmt.Sprintf("%s/stray", id), id, events.Platform, d), nil)
	}
}

// errGone says that the client left before there was a verdict.
var errGone = errors.New("the client is gone")

// Gone says whether err means that the client left before there was a verdict.
func Gone(err error) bool { return errors.Is(err, errGone) }
