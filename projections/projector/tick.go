package projector

import (
	"context"
	"time"

	"github.com/nats-io/nuid"

	"github.com/weirhq/weir/events"
)

const (
	silence = time.Second           // without a record, after which the writer moves time
	tickGap = 10 * time.Millisecond // between two ticks
	tickFor = 2 * time.Second       // to publish one
)

// ticker is the writer's part in moving time.
type ticker struct {
	inFlight bool
	last     time.Time
}

// tickAt gives when the next tick is due by the projector's own clock; never while it is not the writer.
func (l *loop) tickAt() time.Time {
	if !l.writer.held || l.ticker.inFlight {
		return time.Time{}
	}
	due := l.quietSince.Add(silence)
	if at, ok := l.fold.NextTimer(); ok {
		last := l.fold.LastTime()
		own := l.clock.own(streamDue(at, last, l.fold.Now()-last))
		if timer := l.now.Add(time.Duration(own - l.now.UnixNano())); timer.Before(due) {
			due = timer
		}
	}
	if earliest := l.ticker.last.Add(tickGap); due.Before(earliest) {
		due = earliest
	}
	return due
}

// tick publishes a tick if one is due.
func (l *loop) tick() {
	at := l.tickAt()
	if at.IsZero() || l.now.Before(at) {
		return
	}
	l.ticker.inFlight, l.ticker.last = true, l.now
	ev := events.Event{ID: nuid.Next(), Source: l.p.cfg.Name, Org: events.Platform, Data: &events.Tick{}}
	l.async(func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, tickFor)
		defer cancel()
		_, err := l.p.cfg.Log.Publish(ctx, ev)
		return func() {
			l.ticker.inFlight = false
			if err != nil {
				l.stats.TicksFailed++
				return
			}
			l.stats.Ticks++
		}
	})
}
