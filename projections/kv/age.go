package kv

import (
	"math/bits"
	"time"

	"github.com/weirhq/weir/events"
)

const (
	ms         = int64(time.Millisecond)
	freshFor   = 250 * ms // for so long an entry counts without falls to come
	fullQueue  = 256      // requests that wait on a gauge at most; the fold refuses one more
	retryGauge = 1000     // ms after which a full gauge is worth another try, as the fold says
	minuteMS   = 60_000   // in which a bucket refills its limit
)

// Hint is why a claim does not fit: what the fold would say, as far as the view knows.
type Hint struct {
	Meter     events.Meter
	Kind      events.MeterKind
	Reason    events.Reason // over_limit or paused
	Used      int64
	Limit     int64
	HasLimit  bool
	Requested int64
	RetryMS   int64  // when it may pass
	Seq       uint64 // as of which the view knows the meter
}

// Allowance is what is left of a meter.
type Allowance struct {
	Used      int64
	Remaining int64 // not below 0; of a balance: what is available
	ResetMS   int64 // until nothing is used any more if nothing is added; 0 for gauges and balances
}

// UsedAt gives what the meter shows at a later instant of the fold's time, ns since 1970, if nothing is added.
func (e *Entry) UsedAt(t int64) int64 {
	switch e.Kind {
	case events.Window, events.Budget:
		used := e.Used
		for _, f := range e.Falls {
			if f.At > t {
				break
			}
			used -= f.Amount
		}
		return used
	case events.Bucket:
		return e.draining(t)
	case events.Pace, events.Pause:
		if len(e.Falls) == 0 {
			return 0
		}
		return ceilMS(e.Falls[len(e.Falls)-1].At - t)
	}
	return e.Used
}

// draining gives what a bucket still lacks of its limit: it refills evenly until its only fall. Rounded down.
func (e *Entry) draining(t int64) int64 {
	if len(e.Falls) == 0 || e.Used <= 0 || t >= e.Falls[0].At {
		return 0
	}
	span, left := uint64(e.Falls[0].At-e.Time), uint64(e.Falls[0].At-max(t, e.Time))
	if span == 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(e.Used), left)
	used, _ := bits.Div64(hi, lo, span) // left ≤ span, so the quotient fits
	return int64(used)
}

// falling says whether the meter has falls to come after an instant: then what it shows then follows from what it showed.
func (e *Entry) falling(t int64) bool { return len(e.Falls) > 0 && e.Falls[len(e.Falls)-1].At > t }

// refuses says whether a claim surely does not fit at an instant of the fold's time. What would never fit is left to the log.
func (e *Entry) refuses(c *events.Claim, t int64) (Hint, bool) {
	need := c.Need()
	h := Hint{Meter: c.Meter, Kind: c.Kind, Reason: events.OverLimit, Limit: c.Limit, HasLimit: c.HasLimit, Requested: need, Seq: e.Seq}
	if c.Shadow || c.Kind != e.Kind || t-e.Time > freshFor && !e.falling(t) {
		return h, false
	}
	h.Used = e.UsedAt(t)
	switch c.Kind {
	case events.Window, events.Budget:
		if !c.HasLimit || need > c.Limit || h.Used <= c.Limit-need {
			return h, false
		}
		h.RetryMS = e.fits(c.Limit-need, t)
		return h, true
	case events.Bucket:
		// A lower limit caps the level; a higher one leaves it where it is.
		level := min(e.Limit-h.Used, c.Limit)
		if !e.HasLimit || !c.HasLimit || c.Limit <= 0 || need > c.Limit || level >= need {
			return h, false
		}
		h.Used, h.RetryMS = c.Limit-level, refillMS(need-level, c.Limit)
		return h, true
	case events.Pause:
		h.Reason, h.RetryMS = events.Paused, h.Used
		return h, h.Used > 0
	case events.Gauge:
		h.RetryMS = retryGauge
		return h, c.Park && c.HasLimit && need <= c.Limit && e.Waiting >= fullQueue
	}
	return h, false
}

// fits gives the ms after an instant at which the falls have brought the meter down to most.
func (e *Entry) fits(most, t int64) int64 {
	used := e.Used
	for _, f := range e.Falls {
		if used -= f.Amount; used <= most && f.At > t {
			return ceilMS(f.At - t)
		}
	}
	return 0
}

// refillMS gives the ms in which a bucket refills so many tokens, rounded up. An entry knows no parts of a token: a ms less may do.
func refillMS(tokens, limit int64) int64 {
	hi, lo := bits.Mul64(uint64(tokens), minuteMS)
	if hi >= uint64(limit) {
		return 1<<63 - 1
	}
	wait, rest := bits.Div64(hi, lo, uint64(limit))
	if rest > 0 {
		wait++
	}
	return int64(min(wait, 1<<63-1))
}

// allowance gives what is left of a limit at an instant of the fold's time.
func (e *Entry) allowance(limit, t int64) Allowance {
	a := Allowance{Used: e.UsedAt(t)}
	switch {
	case e.Kind == events.Balance:
		a.Remaining = max(0, e.Available)
		return a
	case e.Kind == events.Bucket && e.HasLimit:
		a.Used = limit - min(e.Limit-a.Used, limit)
	}
	a.Remaining = max(0, limit-a.Used)
	if e.falling(t) && a.Used > 0 {
		a.ResetMS = ceilMS(e.Falls[len(e.Falls)-1].At - t)
	}
	return a
}

// level says how full a meter is for those who watch it: 0 below 80 % of its last limit, 1 from there on, 2 when it is full.
func (e *Entry) level() uint8 {
	switch {
	case e.Kind == events.Pause && e.Used > 0, e.Kind == events.Balance && e.Available <= 0:
		return 2
	case !e.HasLimit || e.Kind == events.Balance:
		return 0
	case e.Used >= e.Limit:
		return 2
	case e.Used >= e.Limit-e.Limit/5:
		return 1
	}
	return 0
}

// heat orders meters: how full they are in thousandths of their limit, at most 4,000.
func (e *Entry) heat() int64 {
	switch {
	case e.Kind == events.Pause && e.Used > 0:
		return 1000
	case !e.HasLimit || e.Used <= 0:
		return 0
	case e.Limit <= 0 || e.Used/4 >= e.Limit:
		return 4000
	}
	hi, lo := bits.Mul64(uint64(e.Used), 1000)
	thousandths, _ := bits.Div64(hi, lo, uint64(e.Limit))
	return int64(thousandths)
}

// lasts says whether the meter shows anything at a later instant.
func (e *Entry) lasts(t int64) bool { return e.UsedAt(t) != 0 || e.Total != 0 || e.Waiting > 0 }

func ceilMS(ns int64) int64 {
	if ns <= 0 {
		return 0
	}
	return (ns-1)/ms + 1
}
