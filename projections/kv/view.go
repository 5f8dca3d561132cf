package kv

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
)

const (
	offsetFor  = 30 * time.Second // for so long the best estimate of the fold's time counts, up to twice
	forgetFor  = 20 * time.Minute // an entry that came before that is forgotten: what lasts is put every 5 minutes
	pruneEvery = time.Minute
)

// View is the last known entry of each meter, at a gateway. Its methods may be called at the same time; readers take no lock.
type View struct {
	now     func() time.Time
	base    time.Time
	entries sync.Map // events.Meter → *arrival
	ready   atomic.Bool
	near    atomic.Bool // filled in the projector's own process: what does not change is not told again
	seq     atomic.Uint64
	offset  atomic.Int64 // the fold's time less the view's own, ns: the largest seen of late

	last atomic.Int64 // when anything last came, own time

	mu              sync.Mutex
	current, before int64 // the largest offset of this period and the one before
	since           int64
	seen            bool
	prunedAt        int64
}

// arrival is an entry, and when it came in the view's own time.
type arrival struct {
	entry Entry
	at    int64
}

// NewView makes an empty view. Now is the gateway's clock, of which only differences count; it should carry monotonic time.
func NewView(now func() time.Time) *View {
	return &View{now: now, base: now()}
}

// own gives an instant in the view's own time, ns.
func (v *View) own(now time.Time) int64 { return int64(now.Sub(v.base)) }

// Put takes what a meter shows at an instant of the fold's time, in the projector's own process. It keeps the reading's Falls.
func (v *View) Put(r admission.Reading, seq uint64, now int64) {
	at := v.own(v.now())
	v.note(now, seq, at)
	v.entries.Store(r.Meter, &arrival{entryOf(&r, seq, now), at})
	v.near.Store(true)
	v.ready.Store(true)
}

// Pause has a pause shown from now on for so long, unless one that lasts longer is: what the gateway has just been told it knows before the log
// tells it, and without the log, too.
func (v *View) Pause(m events.Meter, now time.Time, lasts time.Duration) {
	at := v.own(now)
	t := v.offset.Load() + at
	if e, at := v.find(m, now); e != nil {
		if t = at; e.Kind == events.Pause && e.UsedAt(t) >= lasts.Milliseconds() {
			return
		}
	}
	e := Entry{Kind: events.Pause, Used: lasts.Milliseconds(), Time: t, Seq: v.seq.Load(), Falls: []admission.Fall{{At: t + int64(lasts)}}}
	v.entries.Store(m, &arrival{e, at})
}

// note takes in that the fold's time was now at an instant of the view's own time. What comes late shows less, so the largest
// difference is the best.
func (v *View) note(now int64, seq uint64, at int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.last.Store(at)
	d := now - at
	if !v.seen || at-v.since > int64(offsetFor) {
		v.before = v.current
		if !v.seen {
			v.before = d
		}
		v.current, v.since, v.seen = d, at, true
	}
	v.current = max(v.current, d)
	v.offset.Store(max(v.current, v.before))
	if seq > v.seq.Load() {
		v.seq.Store(seq)
	}
	if at-v.prunedAt > int64(pruneEvery) {
		v.prunedAt = at
		v.prune(at)
	}
}

func (v *View) prune(at int64) {
	v.entries.Range(func(key, value any) bool {
		a := value.(*arrival)
		if at-a.at > int64(forgetFor) && !(v.near.Load() && a.entry.lasts(v.offset.Load()+at)) {
			v.entries.Delete(key)
		}
		return true
	})
}

// Ready says whether the view has been filled.
func (v *View) Ready() bool { return v.ready.Load() }

// Seq is the newest sequence of the log as of which the view knows anything.
func (v *View) Seq() uint64 { return v.seq.Load() }

// Age is how long ago anything last came. A view that is watched hears from the writer every second, if only its heartbeat.
func (v *View) Age(now time.Time) time.Duration { return time.Duration(v.own(now) - v.last.Load()) }

// find gives a meter's last entry, and the fold's time at an instant of the gateway's as far as is known: the entry's own time and what
// has passed since it came, or later if others show that it came late.
func (v *View) find(m events.Meter, now time.Time) (e *Entry, t int64) {
	value, ok := v.entries.Load(m)
	if !ok {
		return nil, 0
	}
	a, at := value.(*arrival), v.own(now)
	return &a.entry, max(a.entry.Time+at-a.at, v.offset.Load()+at)
}

// Refuses says whether a claim surely does not fit now: only a window, bucket, budget or pause that the view shows over, or a gauge on
// which as many wait as may. Everything else is the log's to decide.
func (v *View) Refuses(c *events.Claim, now time.Time) (Hint, bool) {
	e, t := v.find(c.Meter, now)
	if e == nil || !v.ready.Load() && e.Kind != events.Pause { // a pause may be known before the view is filled
		return Hint{}, false
	}
	return e.refuses(c, t)
}

// RefusesAny gives the first of a reserve's claims that surely does not fit now.
func (v *View) RefusesAny(claims []events.Claim, now time.Time) (claim int, hint Hint, refuses bool) {
	for i := range claims {
		if h, no := v.Refuses(&claims[i], now); no {
			return i, h, true
		}
	}
	return -1, Hint{}, false
}

// Remaining gives what is left of a limit of a meter now. A meter that the view does not know is empty; known says so.
func (v *View) Remaining(m events.Meter, limit int64, now time.Time) (left Allowance, known bool) {
	e, t := v.find(m, now)
	if e == nil {
		return Allowance{Remaining: max(0, limit)}, false
	}
	return e.allowance(limit, t), true
}

// Get gives a meter's last entry, with Used and Time brought up to now.
func (v *View) Get(m events.Meter, now time.Time) (Entry, bool) {
	e, t := v.find(m, now)
	if e == nil {
		return Entry{}, false
	}
	return e.aged(t), true
}

// aged is the entry at a later instant of the fold's time.
func (e *Entry) aged(t int64) Entry {
	c := *e
	c.Used = e.UsedAt(t)
	for len(c.Falls) > 0 && c.Falls[0].At <= t {
		c.Falls = c.Falls[1:]
	}
	c.Time = max(t, e.Time)
	return c
}

// Each gives all meters that show anything now, in no order, until the function returns false.
func (v *View) Each(now time.Time, each func(events.Meter, Entry) bool) {
	v.entries.Range(func(key, _ any) bool {
		e, t := v.find(key.(events.Meter), now)
		if e == nil || !e.lasts(t) {
			return true
		}
		return each(key.(events.Meter), e.aged(t))
	})
}
