package reservation

import (
	"fmt"
	"time"

	"github.com/weirhq/weir/events"
)

// BeginLocal is Begin for a request that is admitted without the log. Its events are spooled, and published when the log is back.
func (b *Book) BeginLocal(id events.RequestID, org events.Org) *Reservation {
	return &Reservation{book: b, id: id, org: org, local: true}
}

// Local says whether the request was admitted without the log.
func (r *Reservation) Local() bool { return r.local }

// Intend spools an attempt that was admitted without the log. Only when it returns nil, the attempt's intent is on the disk and the model
// may be called.
func (r *Reservation) Intend(d *events.Reserve) error {
	b := r.book
	if b.config.Spool == nil {
		return &Unavailable{Why: "there is no spool"}
	}
	ev := b.event(fmt.Sprintf("%s/%d", r.id, d.Attempt), r.id, r.org, d)
	ev.TraceParent = r.trace
	if err := b.config.Spool.Append(ev); err != nil {
		return &Unavailable{Why: "the intent could not be spooled", Err: err}
	}
	b.stats.Local.Add(1)
	b.mu.Lock()
	b.live[r.id] = r
	b.mu.Unlock()
	r.took(d, b.config.Now())
	return nil
}

// EndBy gives what ends the request's call when its lease cannot be renewed. It is called at most once, from another goroutine.
func (r *Reservation) EndBy(end func()) {
	r.mu.Lock()
	r.ending = end
	r.mu.Unlock()
}

// lapse ends the call if it may not run on without its lease; last is when the last lease that is in the log was sent, and what was reserved
// until lapsed may have lapsed already.
func (r *Reservation) lapse(now, last, lapsed time.Time) {
	r.mu.Lock()
	if r.sent.After(last) {
		last = r.sent
	}
	late := now.Sub(last)
	if !r.sent.After(lapsed) {
		late = max(late, LeaseTTL+1)
	}
	if r.local || r.lapsed || r.ended || !r.admitted || late <= LeaseTTL-lapseMargin || r.ending == nil && late <= LeaseTTL {
		r.mu.Unlock()
		return
	}
	r.lapsed = true
	end := r.ending
	r.mu.Unlock()
	if end == nil {
		r.book.stats.OverAfterLapse.Add(1)
		return
	}
	r.book.stats.Lapsed.Add(1)
	end()
}

// again publishes what the request holds once more. Of attempts that have ended, nothing of their own is held.
func (r *Reservation) again() {
	r.mu.Lock()
	if r.ended || !r.admitted {
		r.mu.Unlock()
		return
	}
	all, at := append([]*events.Reserve(nil), r.attempts...), r.at
	r.mu.Unlock()
	b := r.book
	for i, d := range all {
		c := *d
		c.Mode, c.At, c.ParkMS = events.ModeBoundedLocal, at.UnixNano(), 0
		if i+1 < len(all) {
			c.Claims = []events.Claim{}
			for _, claim := range d.Claims {
				if claim.Life != events.LifeAttempt {
					c.Claims = append(c.Claims, claim)
				}
			}
		}
		id := fmt.Sprintf("%s/%d/again/%d", r.id, c.Attempt, b.config.Now().UnixNano())
		_ = b.config.Publisher.Submit(b.event(id, r.id, r.org, &c), nil) // without room for it the request runs on uncounted until its end
	}
}

// submit hands an event of the request over: to the spool if it was admitted without the log. What the spool does not take waits in memory.
func (r *Reservation) submit(ev events.Event) {
	b := r.book
	if r.local {
		if b.config.Spool.Append(ev) == nil {
			return
		}
		b.stats.Unspooled.Add(1)
	}
	_ = b.config.Publisher.Submit(ev, nil) // a final and a release are owed: taken while there is any room, and kept until the log has them
}
