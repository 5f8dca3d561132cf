package journal

import (
	"time"

	"github.com/weirhq/weir/events"
)

// Bounds of the outbox and of packs.
const (
	// MaxOutbox bounds the events that wait for their acknowledgement; beyond it no new work is taken on.
	MaxOutbox = 65_536

	// maxOwed bounds them for what ends or keeps work that was taken on before: leases, releases and finals.
	maxOwed = 2 * MaxOutbox

	// maxPackEvents bounds the events of a pack, so that one message does not hold up those behind it.
	maxPackEvents = 512

	// maxPackBytes bounds a pack's data as estimated; escapes can make it larger, so it stays well under maxMessage.
	maxPackBytes = 384 << 10

	// maxMessage is the largest message that is sent: less than a server's default max_payload of 1 MiB, with room for headers.
	maxMessage = 960 << 10
)

// class orders what leaves together: first what keeps reservations alive, then what frees, then what corrects, then new work.
type class uint8

const (
	classLease class = iota
	classRelease
	classTrueUp
	classReserve
	classRest
	classes
)

func classOf(k events.Kind) class {
	switch k {
	case events.KindLease:
		return classLease
	case events.KindRelease:
		return classRelease
	case events.KindTrueUp:
		return classTrueUp
	case events.KindReserve:
		return classReserve
	}
	return classRest
}

// owed says whether an event ends or keeps work that was taken on before: it is never dropped.
func owed(d events.Data) bool {
	switch d := d.(type) {
	case *events.Lease, *events.Release:
		return true
	case *events.TrueUp:
		return d.Final
	}
	return false
}

// item is an event that waits for its acknowledgement.
type item struct {
	event events.Event
	by    time.Time // the deadline; zero for none
	since time.Time // when it was submitted
	done  func(seq uint64, err error)
	over  bool // done was called, or is about to be
}

// queue is a first-in first-out list.
type queue struct {
	items []item
	head  int
}

func (q *queue) len() int { return len(q.items) - q.head }

func (q *queue) push(it item) { q.items = append(q.items, it) }

func (q *queue) peek() *item { return &q.items[q.head] }

func (q *queue) pop() item {
	it := q.items[q.head]
	q.items[q.head] = item{}
	q.head++
	switch {
	case q.head == len(q.items):
		q.items, q.head = q.items[:0], 0
		if cap(q.items) > 4*maxPackEvents {
			q.items = nil
		}
	case q.head >= 1024 && q.head*2 >= len(q.items):
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	return it
}

// unpop puts items back in front.
func (q *queue) unpop(items []item) {
	q.items = append(append(make([]item, 0, len(items)+q.len()), items...), q.items[q.head:]...)
	q.head = 0
}

// remove takes out the items for which out is true.
func (q *queue) remove(out func(*item) bool) (removed []item) {
	kept := q.items[q.head:q.head]
	for i := q.head; i < len(q.items); i++ {
		if it := q.items[i]; out(&it) {
			removed = append(removed, it)
		} else {
			kept = append(kept, it)
		}
	}
	clear(q.items[q.head+len(kept):])
	q.items = q.items[:q.head+len(kept)]
	if q.len() == 0 {
		q.items, q.head = q.items[:0], 0
	}
	return removed
}

// outbox holds what has not left yet, by class.
type outbox struct {
	queues [classes]queue
	n      int
	by     time.Time // no deadline of what is held is earlier; zero if none has one
}

func (o *outbox) push(it item) {
	o.limit(it.by)
	o.queues[classOf(it.event.Data.Kind())].push(it)
	o.n++
}

// limit notes a deadline.
func (o *outbox) limit(by time.Time) {
	if !by.IsZero() && (o.by.IsZero() || by.Before(o.by)) {
		o.by = by
	}
}

// take gives what leaves next in one message: by class, within the bounds of a pack.
func (o *outbox) take() []item {
	if o.n == 0 {
		return nil
	}
	batch := make([]item, 0, min(o.n, maxPackEvents))
	size := 0
	for c := range o.queues {
		q := &o.queues[c]
		for q.len() > 0 && len(batch) < maxPackEvents {
			size += envelopeHint + sizeHint(q.peek().event.Data)
			if size > maxPackBytes && len(batch) > 0 {
				return o.took(batch)
			}
			batch = append(batch, q.pop())
		}
	}
	return o.took(batch)
}

func (o *outbox) took(batch []item) []item {
	o.n -= len(batch)
	return batch
}

// putBack puts items that were taken in front of their queues again, in their order.
func (o *outbox) putBack(items []item) {
	var byClass [classes][]item
	for _, it := range items {
		o.limit(it.by)
		c := classOf(it.event.Data.Kind())
		byClass[c] = append(byClass[c], it)
	}
	for c := range byClass {
		if len(byClass[c]) > 0 {
			o.queues[c].unpop(byClass[c])
		}
	}
	o.n += len(items)
}

// reserves counts the reserves that wait.
func (o *outbox) reserves() int { return o.queues[classReserve].len() }

// expire takes out what waits past its deadline.
func (o *outbox) expire(now time.Time) []item {
	if o.by.IsZero() || now.Before(o.by) {
		return nil
	}
	o.by = time.Time{}
	var late []item
	for c := range o.queues {
		late = append(late, o.queues[c].remove(func(it *item) bool {
			if !it.by.IsZero() && !now.Before(it.by) {
				return true
			}
			o.limit(it.by)
			return false
		})...)
	}
	o.n -= len(late)
	return late
}

// oldest gives when the item that waits longest was submitted; zero if none waits.
func (o *outbox) oldest() (at time.Time) {
	for c := range o.queues {
		if q := &o.queues[c]; q.len() > 0 && (at.IsZero() || q.peek().since.Before(at)) {
			at = q.peek().since
		}
	}
	return at
}

// empty takes everything out.
func (o *outbox) empty() (all []item) {
	for c := range o.queues {
		all = append(all, o.queues[c].remove(func(*item) bool { return true })...)
	}
	o.n = 0
	return all
}
