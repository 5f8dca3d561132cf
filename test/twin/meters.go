package twin

import (
	"math"
	"math/big"
	"time"

	"github.com/weirhq/weir/events"
)

// meter is what is known of a meter besides its charges.
type meter struct {
	kind      events.MeterKind
	windowMS  int64
	period    events.Period
	emptyFrom int64 // since when, or from when on, it is empty if nothing else happens; never while it is held

	limit   int64    // of a bucket: the one of the last claim judged or listed
	level   *big.Int // of a bucket, in 1/60,000
	levelMS int64    // of a bucket: the whole ms of now at which the level was right

	slot  int64 // of a pace
	until int64 // of a pause
}

// charge is one claim of an admitted attempt.
type charge struct {
	meter    events.Meter
	kind     events.MeterKind
	windowMS int64
	period   events.Period
	life     events.Life
	basis    string
	limit    int64
	attempt  int64

	value  int64
	back   int64 // what of it was given back
	bucket int64 // of a window: the bucket it was charged to; of a budget: the period
	held   bool  // of a gauge: it counts
	lapsed bool  // of a gauge: it will count again when its gateway comes back
	frozen bool  // it has left the local pool
}

// know gives a meter: "known from the first valid reserve, cooldown or credit that names it".
func (t *Twin) know(c *events.Claim) *meter {
	m := t.meters[c.Meter]
	if m == nil {
		m = &meter{kind: c.Kind, windowMS: c.WindowMS, period: c.Period, emptyFrom: t.now}
		if c.Kind == events.Bucket {
			// "starts full at limit"
			m.limit, m.level, m.levelMS = c.Limit, units(c.Limit), floorDiv(t.now, ms)
		}
		t.meters[c.Meter] = m
	}
	return m
}

// conflicts says whether a claim's meter is known "as another kind, window or period".
func (m *meter) conflicts(c *events.Claim) bool {
	return m.kind != c.Kind || m.kind == events.Window && m.windowMS != c.WindowMS || m.kind == events.Budget && m.period != c.Period
}

// of says whether a charge is one of a meter's.
func (c *charge) of(name events.Meter, m *meter) bool {
	return c.meter == name && c.kind == m.kind && (m.kind != events.Window || c.windowMS == m.windowMS) && (m.kind != events.Budget || c.period == m.period)
}

// sizes gives a window's bucket in ns and its N: "60000 (buckets of 1 s, N = 60) or 1000 (20 ms, N = 50)".
func sizes(windowMS int64) (size, n int64) {
	if windowMS == 1000 {
		return 20 * ms, 50
	}
	return second, 60
}

// bucketAt gives the number of the bucket of a window that an instant falls into.
func bucketAt(windowMS, at int64) int64 {
	size, _ := sizes(windowMS)
	return floorDiv(at, size)
}

// periodAt numbers the calendar day or month of an instant, UTC.
func periodAt(p events.Period, at int64) int64 {
	u := time.Unix(0, at).UTC()
	if p == events.Month {
		return int64(u.Year())*12 + int64(u.Month())
	}
	return int64(time.Date(u.Year(), u.Month(), u.Day(), 0, 0, 0, 0, time.UTC).Unix() / 86_400)
}

// periodEnd gives the first instant after the period of an instant.
func periodEnd(p events.Period, at int64) int64 {
	u := time.Unix(0, at).UTC()
	if p == events.Month {
		return time.Date(u.Year(), u.Month()+1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
	}
	return time.Date(u.Year(), u.Month(), u.Day()+1, 0, 0, 0, 0, time.UTC).UnixNano()
}

// live says whether a charge counts, and can still be changed:
// "bucket b is live while `bucket(now) - b ≤ N`", "sum of this period", "a gauge while it is held".
func (t *Twin) live(c *charge) bool {
	switch c.kind {
	case events.Window:
		_, n := sizes(c.windowMS)
		return bucketAt(c.windowMS, t.now)-c.bucket <= n
	case events.Budget:
		return c.bucket == periodAt(c.period, t.now)
	case events.Gauge:
		return c.held
	}
	return true
}

// sum adds up the charges of a meter that count now.
func (t *Twin) sum(name events.Meter, m *meter) int64 {
	var sum int64
	for _, c := range t.charges {
		if c.of(name, m) && t.live(c) {
			sum = add(sum, c.value)
		}
	}
	return sum
}

// used is the column `used`.
func (t *Twin) used(name events.Meter, m *meter) int64 {
	switch m.kind {
	case events.Window, events.Gauge, events.Budget, events.Balance:
		return t.sum(name, m)
	case events.Bucket: // "limit − floor(level)"
		level := new(big.Int).Div(t.level(m), big.NewInt(levelUnit)) // Euclidean: down, as the divisor is positive
		return saturate(level.Sub(big.NewInt(m.limit), level))
	case events.Pace: // "the wait until the slot, ms"
		return ceilDiv(max(0, m.slot-t.now), ms)
	case events.Pause: // "ms until then"
		return ceilDiv(max(0, m.until-t.now), ms)
	}
	return 0
}

// level gives a bucket's level now: "refills limit per 60,000 whole ms of now, exact integers, at most full".
func (t *Twin) level(m *meter) *big.Int {
	passed := floorDiv(t.now, ms) - m.levelMS
	level := new(big.Int).Mul(big.NewInt(m.limit), big.NewInt(passed))
	return atMost(level.Add(level, m.level), units(m.limit))
}

// change adds to a bucket's level, "at most to full".
func (t *Twin) change(m *meter, tokens int64) {
	level := new(big.Int).Add(t.level(m), units(tokens))
	m.level, m.levelMS = atMost(level, units(m.limit)), floorDiv(t.now, ms)
}

// look readies a claim's meter for judging or listing: "judging or listing a claim refills at the meter's limit first, then makes the
// claim's limit the meter's and caps the level at it".
func (t *Twin) look(c *events.Claim) *meter {
	m := t.know(c)
	if m.kind == events.Bucket && c.Kind == events.Bucket {
		level := t.level(m)
		m.limit, m.levelMS = c.Limit, floorDiv(t.now, ms)
		m.level = atMost(level, units(m.limit))
		t.note(c.Meter)
	}
	return m
}

// note keeps from when on a meter is empty. It is called after everything that changes what a meter shows.
func (t *Twin) note(name events.Meter) {
	m := t.meters[name]
	if t.used(name, m) > 0 {
		m.emptyFrom = t.emptyAt(name, m)
	} else if m.emptyFrom > t.now {
		m.emptyFrom = t.now
	}
}

// emptyAt gives the instant at which a meter that is not empty will be, if nothing else happens.
func (t *Twin) emptyAt(name events.Meter, m *meter) int64 {
	switch m.kind {
	case events.Window:
		size, n := sizes(m.windowMS)
		last := int64(math.MinInt64)
		for _, c := range t.charges {
			if c.of(name, m) && c.value > 0 {
				last = max(last, c.bucket)
			}
		}
		return (last + n + 1) * size
	case events.Budget:
		return periodEnd(m.period, t.now)
	case events.Bucket:
		short := new(big.Int).Sub(units(m.limit), m.level)
		wait := saturate(ceilQuo(short, m.limit))
		if wait > never/ms-m.levelMS {
			return never
		}
		return (m.levelMS + wait) * ms
	case events.Pace:
		return m.slot
	case events.Pause:
		return m.until
	}
	return never
}

// failure says that a claim does not pass.
type failure struct {
	claim    int
	reason   events.Reason
	retry    int64
	hasRetry bool
	parks    bool // it is a gauge that may be waited on, and merely over
}

// judge is the column `passes when`.
func (t *Twin) judge(i int, c *events.Claim) (failure, bool) {
	m := t.look(c)
	over := failure{claim: i, reason: events.OverLimit, hasRetry: true}
	need := c.Need()
	switch c.Kind {
	case events.Window, events.Gauge, events.Budget:
		// "`limit: null` (window, gauge and budget: count, never refuse)"
		if !c.HasLimit || add(t.sum(c.Meter, m), need) <= c.Limit {
			return failure{}, true
		}
	case events.Bucket:
		if t.level(m).Cmp(units(need)) >= 0 {
			return failure{}, true
		}
	case events.Balance: // "total − holds ≥ check"
		if add(t.totals[c.Meter], -t.sum(c.Meter, m)) >= need {
			return failure{}, true
		}
		return failure{claim: i, reason: events.NoBalance}, false
	case events.Pace: // "max(0, slot − now) ≤ queue_ms"
		wait := t.used(c.Meter, m)
		over.retry = add(wait, -max(c.QueueMS, -never))
		return over, wait <= c.QueueMS
	case events.Pause:
		over.reason, over.retry = events.Paused, t.used(c.Meter, m)
		return over, t.now >= m.until
	}
	if need > c.Limit {
		return failure{claim: i, reason: events.TooLarge}, false
	}
	over.retry = t.retry(c, m, need)
	over.parks = c.Kind == events.Gauge && c.Park
	return over, false
}

// retry is the column `retry_after_ms when over` of the kinds that are judged against a limit.
func (t *Twin) retry(c *events.Claim, m *meter, need int64) int64 {
	switch c.Kind {
	case events.Window: // "until enough of the oldest buckets have aged out"
		size, n := sizes(c.WindowMS)
		for b := bucketAt(c.WindowMS, t.now) - n; ; b++ {
			var left int64
			for _, x := range t.charges {
				if x.of(c.Meter, m) && x.bucket > b {
					left = add(left, x.value)
				}
			}
			if add(left, need) <= c.Limit {
				return ceilDiv((b+n+1)*size-t.now, ms)
			}
		}
	case events.Bucket: // "until level = check"
		return saturate(ceilQuo(new(big.Int).Sub(units(need), t.level(m)), m.limit))
	case events.Budget: // "until the period ends"
		return ceilDiv(periodEnd(c.Period, t.now)-t.now, ms)
	}
	return gaugeRetry
}

// charge is the column `charge`. It gives how long a paced request is to wait.
func (t *Twin) charge(a *attempt, c *events.Claim) (waitMS int64) {
	m := t.know(c)
	x := &charge{meter: c.Meter, kind: c.Kind, windowMS: m.windowMS, period: m.period, life: c.Life, basis: c.Basis, limit: c.Limit, attempt: a.n, value: c.Amount}
	switch c.Kind {
	case events.Window:
		at := t.now
		if r := a.reserve; r.Mode == events.ModeBoundedLocal && r.At != 0 {
			at = min(r.At, t.now) // "window charges go into the bucket of `at` (default and latest: now)"
		}
		x.bucket = bucketAt(c.WindowMS, at)
	case events.Gauge:
		x.held = true
	case events.Budget:
		x.bucket = periodAt(c.Period, t.now)
	case events.Bucket:
		if c.Basis == events.BasisOutput {
			x.value = 0 // "with basis `output` nothing"
		}
		t.change(m, -x.value)
	case events.Balance:
		a.of.hold = x
	case events.Pace:
		// "slot = max(slot, now) + floor(10^9 / limit) ns; the wait until the old slot goes into `wait_ms` (the largest; not a shadow's)"
		if !c.Shadow {
			waitMS = t.used(c.Meter, m)
		}
		m.slot = max(m.slot, t.now) + second/c.Limit
		t.note(c.Meter)
		return waitMS
	case events.Pause:
		return 0
	}
	t.charges = append(t.charges, x)
	a.of.charges = append(a.of.charges, x)
	t.note(c.Meter)
	return 0
}

// meterOf gives the meter of a charge, anew if it was forgotten while the charge was 0.
func (t *Twin) meterOf(x *charge) *meter {
	return t.know(&events.Claim{Meter: x.meter, Kind: x.kind, WindowMS: x.windowMS, Period: x.period, Limit: x.limit})
}

// set changes a charge that counts.
func (t *Twin) set(x *charge, value int64) {
	m := t.meterOf(x)
	if x.kind == events.Bucket && m.kind == events.Bucket {
		t.change(m, x.value-value)
	}
	if x.kind == events.Gauge && value < x.value {
		t.fallen[x.meter] = true
	}
	x.value = value
	t.note(x.meter)
}

// free ends a gauge's charge for good.
func (t *Twin) free(x *charge) {
	held := x.held
	x.held, x.lapsed = false, false
	if held {
		t.freed(x)
	}
}

func (t *Twin) freed(x *charge) {
	if x.value > 0 {
		t.fallen[x.meter] = true
	}
	t.meterOf(x)
	t.note(x.meter)
}

// giveBack takes a charge out of its meter, putBack brings it in again: "each charge in its own bucket".
func (t *Twin) giveBack(x *charge) { t.shift(x, x.value) }

func (t *Twin) putBack(x *charge) { t.shift(x, -x.back) }

func (t *Twin) shift(x *charge, amount int64) {
	if amount == 0 {
		return
	}
	x.value, x.back = add(x.value, -amount), add(x.back, amount)
	m := t.meterOf(x)
	if x.kind == events.Bucket && m.kind == events.Bucket {
		t.change(m, amount)
	}
	t.note(x.meter)
}

func units(tokens int64) *big.Int {
	return new(big.Int).Mul(big.NewInt(tokens), big.NewInt(levelUnit))
}

func atMost(n, most *big.Int) *big.Int {
	if n.Cmp(most) > 0 {
		return most
	}
	return n
}

// ceilQuo rounds up; n and d are positive.
func ceilQuo(n *big.Int, d int64) *big.Int {
	q := new(big.Int).Add(n, big.NewInt(d-1))
	return q.Div(q, big.NewInt(d))
}

func saturate(n *big.Int) int64 {
	switch {
	case n.IsInt64():
		return n.Int64()
	case n.Sign() < 0:
		return math.MinInt64
	}
	return math.MaxInt64
}
