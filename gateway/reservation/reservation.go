package reservation

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/weirhq/weir/events"
)

// Reservation is what one request holds. Its methods may be called from any goroutine, but a request has one attempt at a time.
type Reservation struct {
	book *Book
	id   events.RequestID
	org  events.Org

	local bool   // admitted without the log: its events go to the spool
	trace string // trace context that its next reserve carries; usually empty

	mu       sync.Mutex
	admitted bool // an attempt is, or may be
	ended    bool
	attempt  int64          // the newest that is, or may be, admitted
	n        int64          // true-ups of that attempt
	final    bool           // it has had its final
	owed     *events.TrueUp // its final, which leaves when another is admitted
	sent     time.Time
	grown    int64 // footprint last published
	grownAt  time.Time
	attempts []*events.Reserve // that were admitted
	at       time.Time         // when the first was
	ending   func()            // ends the call when the lease is about to end; nil: it may run on
	lapsed   bool
}

// Begin starts the book-keeping of a request. Nothing is published before Reserve.
func (b *Book) Begin(id events.RequestID, org events.Org) *Reservation {
	return &Reservation{book: b, id: id, org: org}
}

// ID is the request's id.
func (r *Reservation) ID() events.RequestID { return r.id }

// Trace gives the trace context that the next reserve carries; empty for none. It is for the goroutine that reserves.
func (r *Reservation) Trace(traceparent string) { r.trace = traceparent }

// Reserve publishes an attempt's claims and waits for the verdict, which is an admission or a refusal. The error is *Unavailable when
// no verdict could be had, or Gone when the client left; what may then be in the log is released.
func (r *Reservation) Reserve(ctx context.Context, d *events.Reserve) (events.Verdict, error) {
	b := r.book
	answers, err := b.wait(r, d.Attempt)
	if err != nil {
		return events.Verdict{}, err
	}
	defer b.answered(r, d.Attempt)
	b.stats.Reserved.Add(1)
	sent := b.config.Now()
	park := time.Duration(d.ParkMS) * time.Millisecond
	by := sent.Add(b.config.AnswerWithin + park)
	ev := b.event(fmt.Sprintf("%s/%d", r.id, d.Attempt), r.id, r.org, d)
	ev.TraceParent = r.trace
	err = b.config.Publisher.SubmitBy(ev, by, func(_ uint64, err error) {
		offer(answers, answer{acked: err == nil, err: err, maybe: err != nil && b.config.MaybeAppended(err)})
	})
	if err != nil {
		r.drop()
		return events.Verdict{}, &Unavailable{Why: "the log takes no reserve", Err: err}
	}
	v, maybe, err := r.await(ctx, d, answers, by, park)
	if err != nil {
		b.stats.Unanswered.Add(1)
		r.abandon(d.Attempt, maybe, err)
		return v, err
	}
	if !v.Admitted {
		b.stats.Refused.Add(1)
		r.drop()
		return v, nil
	}
	b.stats.Admitted.Add(1)
	r.took(d, sent)
	return v, nil
}

// took takes in that an attempt is admitted.
func (r *Reservation) took(d *events.Reserve, sent time.Time) {
	if last := r.Owed(events.TrueUp{}); last.Final {
		r.TrueUp(*last)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.attempts) == 0 {
		r.at = r.book.config.Now()
	}
	r.admitted, r.attempt, r.n, r.final, r.sent = true, d.Attempt, 0, false, sent
	r.attempts = append(r.attempts, d)
	for i := range d.Claims {
		if d.Claims[i].Basis == events.BasisFootprint {
			r.grown = max(r.grown, d.Claims[i].Amount)
		}
	}
}

// await waits for the verdict, asking for it when it should have come.
func (r *Reservation) await(ctx context.Context, d *events.Reserve, answers <-chan answer, by time.Time, park time.Duration) (v events.Verdict, maybe bool, err error) {
	b := r.book
	timer := time.NewTimer(by.Sub(b.config.Now()))
	defer timer.Stop()
	acked, maybe := false, true
	for {
		select {
		case a := <-answers:
			switch {
			case a.acked:
				acked = true
				timer.Reset(park + askAfter)
				if park > 0 {
					timer.Reset(park + overdueAfter)
				}
			case a.err != nil:
				return v, a.maybe, &Unavailable{Why: "the log did not take the reserve", Err: a.err}
			default:
				return a.verdict, false, nil
			}
		case <-ctx.Done():
			return v, maybe, errGone
		case <-timer.C:
			if !acked || !b.config.Now().Before(by) {
				return v, maybe, &Unavailable{Why: fmt.Sprintf("no verdict within %s", b.config.AnswerWithin+time.Duration(d.ParkMS)*time.Millisecond)}
			}
			if park > 0 {
				b.tick()
				park = 0
				timer.Reset(askAfter)
				continue
			}
			if v, known := r.ask(ctx, d.Attempt); known {
				return v, false, nil
			}
			timer.Reset(min(askEvery, max(by.Sub(b.config.Now()), time.Millisecond)))
		}
	}
}

// ask asks the projectors for the verdict.
func (r *Reservation) ask(ctx context.Context, attempt int64) (events.Verdict, bool) {
	b := r.book
	if b.config.Projector == nil {
		return events.Verdict{}, false
	}
	b.stats.Asked.Add(1)
	ctx, cancel := context.WithTimeout(ctx, askEvery)
	defer cancel()
	v, known, err := b.config.Projector.Ask(ctx, r.id, attempt)
	return v, known && err == nil
}

// abandon releases an attempt that had no verdict here but may be in the log. It is never dispatched.
func (r *Reservation) abandon(attempt int64, maybe bool, why error) {
	if !maybe {
		r.drop()
		return
	}
	outcome := events.Abandoned
	if Gone(why) {
		outcome = events.Cancelled
	}
	d := events.Release{Attempt: attempt, Outcome: outcome, Dispatched: events.DispatchedNo}
	r.mu.Lock()
	first := !r.admitted
	r.mu.Unlock()
	if !first {
		d.Of = events.OfAttempt
		r.publishRelease(&d, "abandoned")
		return
	}
	r.mu.Lock()
	r.admitted, r.attempt = true, attempt
	r.mu.Unlock()
	r.End(d)
}

// drop forgets a request that holds nothing.
func (r *Reservation) drop() {
	r.mu.Lock()
	holds := r.admitted && !r.ended
	r.mu.Unlock()
	if !holds {
		r.book.forget(r)
	}
}

// Held says whether the reservation is still held for sure, so that the model may be called.
func (r *Reservation) Held() bool {
	if r.local {
		return true // its intent is on the disk, and nothing else holds it
	}
	r.mu.Lock()
	sent := r.sent
	r.mu.Unlock()
	return r.book.Held(sent)
}

// Grow publishes how many tokens the request occupies its model with by now, if it is more than before and not too soon.
func (r *Reservation) Grow(footprint int64) {
	now := r.book.config.Now()
	r.mu.Lock()
	if r.ended || r.final || !r.admitted || footprint <= r.grown || now.Sub(r.grownAt) < GrowEvery {
		r.mu.Unlock()
		return
	}
	r.grown, r.grownAt = footprint, now
	r.mu.Unlock()
	r.TrueUp(events.TrueUp{Quality: events.QualityEstimated, Charges: []events.Charge{{Basis: events.BasisFootprint, Amount: footprint}}})
}

// Correct publishes an exact charge in mid-stream, up or down.
func (r *Reservation) Correct(c events.Charge) {
	r.mu.Lock()
	if c.Basis == events.BasisFootprint {
		r.grown, r.grownAt = c.Amount, r.book.config.Now()
	}
	r.mu.Unlock()
	r.TrueUp(events.TrueUp{Quality: events.QualityExact, Charges: []events.Charge{c}})
}

// TrueUp publishes what the newest attempt used. Nothing follows a final.
func (r *Reservation) TrueUp(d events.TrueUp) {
	r.mu.Lock()
	if !r.admitted || r.final {
		r.mu.Unlock()
		return
	}
	r.n++
	r.final = d.Final
	d.Request, d.Attempt, d.Gateway, d.N = r.id, r.attempt, r.book.config.Gateway, r.n
	r.mu.Unlock()
	id := string(r.id) + "/" + strconv.FormatInt(d.Attempt, 10) + "/true-up/" + strconv.FormatInt(d.N, 10)
	r.submit(r.book.event(id, r.id, r.org, &d))
}

// Owe keeps the final of the newest attempt until another is admitted, after which nothing can be said of this one. A request that ends
// instead takes it back with Owed.
func (r *Reservation) Owe(final events.TrueUp) {
	r.mu.Lock()
	r.owed = &final
	r.mu.Unlock()
}

// Owed gives the final that is owed, which is then no longer; without one, other.
func (r *Reservation) Owed(other events.TrueUp) *events.TrueUp {
	r.mu.Lock()
	defer r.mu.Unlock()
	final := r.owed
	if r.owed = nil; final == nil {
		return &other
	}
	return final
}

// Leave says that the request has left the local pool: what it occupied there is free.
func (r *Reservation) Leave() {
	r.mu.Lock()
	held := r.admitted && !r.ended
	attempt := r.attempt
	r.mu.Unlock()
	if held {
		r.publishRelease(&events.Release{Attempt: attempt, Of: events.OfLocal}, "local")
	}
}

// EndAttempt ends the newest attempt; the request goes on to another.
func (r *Reservation) EndAttempt(d events.Release) {
	r.mu.Lock()
	held := r.admitted && !r.ended
	d.Attempt = r.attempt
	r.mu.Unlock()
	if held {
		d.Of = events.OfAttempt
		r.publishRelease(&d, "attempt")
	}
}

// End ends the request, once: later calls do nothing. It says whether this was the one.
func (r *Reservation) End(d events.Release) bool {
	r.mu.Lock()
	if !r.admitted || r.ended {
		r.mu.Unlock()
		return false
	}
	r.ended = true
	d.Attempt, d.Of = r.attempt, events.OfRequest
	r.mu.Unlock()
	r.publishRelease(&d, "release")
	r.book.forget(r)
	return true
}

// Ended says whether the request holds nothing any more.
func (r *Reservation) Ended() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended || !r.admitted
}

func (r *Reservation) publishRelease(d *events.Release, what string) {
	b := r.book
	d.Request, d.Gateway = r.id, b.config.Gateway
	id := string(r.id) + "/" + strconv.FormatInt(d.Attempt, 10) + "/" + what
	b.stats.Released.Add(1)
	r.submit(b.event(id, r.id, r.org, d))
}
