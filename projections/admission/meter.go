package admission

import (
	"sort"

	"github.com/weirhq/weir/events"
)

// meter is one counter. What its fields mean depends on its kind; each kind has a file.
type meter struct {
	name      events.Meter
	kind      events.MeterKind
	period    events.Period // of a budget
	hasLimit  bool          // lastLimit is one
	isDirty   bool          // in Fold.dirty
	hasFallen bool          // in Fold.fallen
	forgotten bool          // no longer in Fold.meters
	windowMS  int64         // of a window
	sum       int64         // window, gauge, budget: what is charged; balance: holds
	whole     int64         // bucket: tokens left, rounded down; balance: total
	frac      int64         // bucket: 60,000ths of a token above whole
	mark      int64         // bucket: ms of the last refill; budget: its period; pace: the next slot, ns; pause: until, ns
	limit     int64         // bucket: what it refills to; budget: when its period ends, ns
	emptied   int64         // ns: since when it is empty, if it is; at first, when it was named
	lastLimit int64         // the limit it was last judged against, for those who watch it
	slots     []slot        // window: its live buckets, oldest first
	waiters   []*waiter     // gauge: who waits on it, in order of arrival
}

// meter gives a claim's meter, making it if need be. The claim has passed the rules.
func (f *Fold) meter(c *events.Claim) *meter {
	if m := f.meters[string(c.Meter)]; m != nil {
		return m
	}
	return f.newMeter(c.Meter, c.Kind, c.Period, c.WindowMS, c.Limit)
}

func (f *Fold) newMeter(name events.Meter, kind events.MeterKind, period events.Period, windowMS, limit int64) *meter {
	m := &meter{name: events.Meter(cloneString(string(name))), kind: kind, emptied: f.now}
	switch kind {
	case events.Window:
		m.windowMS = windowMS
	case events.Budget:
		m.period = period
		m.mark = periodOf(period, f.now)
		m.limit = periodEnd(period, m.mark)
	case events.Bucket:
		m.limit, m.whole, m.mark = limit, limit, f.now/ms
	}
	f.meters[string(m.name)] = m
	f.peakMeters = max(f.peakMeters, len(f.meters))
	return m
}

// same says whether two meters of one name count in the same way.
func (m *meter) same(other *meter) bool {
	return m.kind == other.kind && m.windowMS == other.windowMS && m.period == other.period
}

// judgement is what one claim comes to.
type judgement struct {
	used     int64 // before the charge
	ok       bool
	parkable bool // a gauge that is merely over
	reason   events.Reason
	retryMS  int64
	hasRetry bool
	waitMS   int64 // of a pace
}

// judge looks whether a claim fits its meter now.
func (f *Fold) judge(m *meter, c *events.Claim) judgement {
	need := c.Need()
	if c.HasLimit {
		m.lastLimit, m.hasLimit = c.Limit, true
	}
	j := judgement{ok: true}
	switch m.kind {
	case events.Window:
		f.roll(m)
		j.used = m.sum
		j.ok = !c.HasLimit || add(m.sum, need) <= c.Limit
		if !j.ok && need <= c.Limit {
			j.retryMS, j.hasRetry = f.windowRetry(m, need, c.Limit), true
		}
	case events.Gauge:
		j.used = m.sum
		j.ok = !c.HasLimit || add(m.sum, need) <= c.Limit
		if !j.ok && need <= c.Limit {
			j.retryMS, j.hasRetry, j.parkable = retryGauge, true, c.Park
		}
	case events.Bucket:
		f.retune(m, c.Limit)
		j.used = m.limit - m.whole
		j.ok = m.whole >= need
		if !j.ok && need <= c.Limit {
			j.retryMS, j.hasRetry = bucketRetry(m, need), true
		}
	case events.Budget:
		f.turn(m)
		j.used = m.sum
		j.ok = !c.HasLimit || add(m.sum, need) <= c.Limit
		if !j.ok && need <= c.Limit {
			j.retryMS, j.hasRetry = ceilMS(m.limit-f.now), true
		}
	case events.Balance:
		j.used = m.sum
		j.ok = add(m.whole, -m.sum) >= need
		j.reason = events.NoBalance
		return j
	case events.Pace:
		wait := max(0, m.mark-f.now)
		j.used, j.waitMS = ceilMS(wait), ceilMS(wait)
		queue := min(c.QueueMS, saturatedLimit/ms) * ms
		j.ok = wait <= queue
		j.reason, j.retryMS, j.hasRetry = events.OverLimit, ceilMS(wait-queue), true
		return j
	case events.Pause:
		j.used = ceilMS(m.mark - f.now)
		j.ok = f.now >= m.mark
		j.reason, j.retryMS, j.hasRetry = events.Paused, j.used, true
		return j
	}
	j.reason = events.OverLimit
	if c.HasLimit && need > c.Limit {
		j.reason = events.TooLarge
	}
	return j
}

// list gives what a claim's meter shows now. Listing a bucket makes the claim's limit the meter's, as judging it does.
func (f *Fold) list(m *meter, c *events.Claim) int64 {
	if m.kind == events.Bucket {
		f.retune(m, c.Limit)
	}
	return f.used(m)
}

// used gives what a meter shows now.
func (f *Fold) used(m *meter) int64 {
	switch m.kind {
	case events.Window:
		f.roll(m)
	case events.Bucket:
		f.refill(m)
		return m.limit - m.whole
	case events.Budget:
		f.turn(m)
	case events.Pace, events.Pause:
		return ceilMS(m.mark - f.now)
	}
	return m.sum
}

// emptySince says whether a meter is empty at an instant that is not before its last change, and since when.
func (m *meter) emptySince(at int64) (since int64, empty bool) {
	switch m.kind {
	case events.Window:
		size, live := m.grain()
		for i := len(m.slots) - 1; i >= 0; i-- {
			if m.slots[i].n > 0 {
				gone := (m.slots[i].bucket + live + 1) * size
				return gone, gone <= at
			}
		}
	case events.Bucket:
		full := m.fullAt()
		return max(full, m.emptied), full <= at
	case events.Budget:
		if m.sum > 0 {
			return m.limit, m.limit <= at
		}
	case events.Pace, events.Pause:
		return max(m.mark, m.emptied), m.mark <= at
	default:
		return m.emptied, m.sum == 0
	}
	return m.emptied, true
}

// changed notes that a meter's value has moved to sum, for the digest and for those who watch it.
func (f *Fold) changed(m *meter) {
	f.mix(uint64(m.sum) ^ uint64(m.whole)<<1 ^ uint64(m.mark)<<2)
	if !m.isDirty {
		m.isDirty = true
		f.dirty = append(f.dirty, m)
	}
}

// charge is what a claim of an admitted attempt holds of its meter.
type charge struct {
	meter   *meter
	basis   string
	attempt int64
	amount  int64 // what is charged, or would be again
	at      int64 // window: the bucket it was charged to; budget: its period
	limit   int64 // bucket: the claim's limit
	life    events.Life
	held    holding
	frozen  bool // the request has left the local pool
	back    bool // the amount has been given back
}

// holding says what has become of a gauge's charge.
type holding uint8

const (
	notGauge holding = iota
	held
	lapsed // freed by a lapse, and may come back
	freed
)

// take charges a claim to its meter and gives the record of it. at is the instant of a window's charge.
func (f *Fold) take(m *meter, c *events.Claim, attempt, at int64) charge {
	ch := charge{meter: m, basis: f.basis(c.Basis), attempt: attempt, amount: c.Amount, life: c.Life}
	switch m.kind {
	case events.Window:
		size, _ := m.grain()
		ch.at = at / size
		f.pour(m, ch.at, ch.amount)
	case events.Gauge:
		ch.held = held
		m.sum = add(m.sum, ch.amount)
	case events.Bucket:
		ch.limit = c.Limit
		if c.Basis == events.BasisOutput {
			ch.amount = 0
		}
		f.refill(m)
		m.whole = add(m.whole, -ch.amount)
	case events.Budget:
		f.turn(m)
		ch.at = m.mark
		m.sum = add(m.sum, ch.amount)
	case events.Balance:
		m.sum = add(m.sum, ch.amount)
	case events.Pace:
		m.mark = max(m.mark, f.now) + second/c.Limit
	}
	if m.hasLimit = c.HasLimit; c.HasLimit {
		m.lastLimit = c.Limit
	}
	f.changed(m)
	return ch
}

// shift moves a charge's meter by a difference, in the bucket or period that was charged.
func (f *Fold) shift(ch *charge, delta int64) {
	if delta == 0 {
		return
	}
	m := f.alive(ch)
	switch m.kind {
	case events.Window:
		f.pour(m, ch.at, delta)
	case events.Gauge:
		if ch.held != held {
			return
		}
		f.lift(m, delta)
	case events.Bucket:
		f.refill(m)
		f.draw(m, delta)
	case events.Budget:
		f.turn(m)
		if m.mark != ch.at {
			return
		}
		if m.sum = add(m.sum, delta); m.sum == 0 {
			m.emptied = f.now
		}
	}
	f.changed(m)
}

// alive gives a charge's meter, known again if it had been forgotten while it stood at nothing.
func (f *Fold) alive(ch *charge) *meter {
	if !ch.meter.forgotten {
		return ch.meter
	}
	old := ch.meter
	if m := f.meters[string(old.name)]; m != nil {
		if !m.same(old) {
			return old // the name means something else by now
		}
		ch.meter = m
		return m
	}
	ch.meter = f.newMeter(old.name, old.kind, old.period, old.windowMS, ch.limit)
	return ch.meter
}

// Reading is what a meter shows.
type Reading struct {
	Meter     events.Meter
	Kind      events.MeterKind
	Used      int64 // tokens, requests, nano-dollars or ms, by the meter
	Available int64 // of a balance: total less holds
	Total     int64 // of a balance
	Limit     int64 // the limit it was last judged against
	HasLimit  bool
	Waiting   int    // requests that wait on it
	Falls     []Fall // when it will fall by itself, soonest first
}

// Fall is an amount by which a meter's Used will fall by itself at an instant, ns in the fold's time.
type Fall struct {
	At     int64
	Amount int64
}

// Meters lists the meters that are not empty at the last record's time, by name, without their falls.
func (f *Fold) Meters() []Reading {
	var all []Reading
	for _, m := range f.meters {
		if r := f.reading(m); r.Used != 0 || r.Total != 0 {
			all = append(all, r)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Meter < all[j].Meter })
	return all
}

func (f *Fold) reading(m *meter) Reading {
	r := Reading{Meter: m.name, Kind: m.kind, Used: f.used(m), Limit: m.lastLimit, HasLimit: m.hasLimit, Waiting: len(m.waiters)}
	if m.kind == events.Balance {
		r.Total, r.Available = m.whole, add(m.whole, -m.sum)
	}
	return r
}

// Drain gives the readings of all meters that changed since the last call, with their falls, in the order in which they changed.
func (f *Fold) Drain(visit func(Reading)) {
	for _, m := range f.dirty {
		m.isDirty = false
		if m.forgotten { // it fell to nothing, or its name means a newer meter by now
			if newer := f.meters[string(m.name)]; newer != nil {
				m = newer
			}
		}
		r := f.reading(m)
		r.Falls = f.falls(m)
		visit(r)
	}
	clear(f.dirty)
	f.dirty = f.dirty[:0]
}

// Reading gives one meter with its falls, if it is known.
func (f *Fold) Reading(name events.Meter) (Reading, bool) {
	m := f.meters[string(name)]
	if m == nil {
		return Reading{}, false
	}
	r := f.reading(m)
	r.Falls = f.falls(m)
	return r, true
}

// falls says when a meter falls by itself, after used has brought it up to now.
func (f *Fold) falls(m *meter) []Fall {
	switch m.kind {
	case events.Window:
		size, live := m.grain()
		falls := make([]Fall, 0, len(m.slots))
		for _, s := range m.slots {
			if s.n != 0 {
				falls = append(falls, Fall{(s.bucket + live + 1) * size, s.n})
			}
		}
		return falls
	case events.Bucket:
		if used := m.limit - m.whole; used > 0 {
			return []Fall{{m.fullAt(), used}}
		}
	case events.Budget:
		if m.sum > 0 {
			return []Fall{{m.limit, m.sum}}
		}
	case events.Pace, events.Pause:
		if m.mark > f.now {
			return []Fall{{m.mark, ceilMS(m.mark - f.now)}}
		}
	}
	return nil
}
