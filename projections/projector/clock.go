package projector

import (
	"fmt"
	"time"
)

// How far the stream's clock may be from the projector's own.
const (
	skewAlarm = 2 * time.Second  // not ready, but answers
	skewStop  = 30 * time.Second // stops answering until a recover
	probeGap  = time.Second      // between two questions for where the log ends
	offsetFor = 10 * time.Second // for so long the best estimate of the stream's clock counts, up to twice
)

// streamClock compares the stream's clock with the projector's own. A record that was stored later than its time says, or whose time is
// yet to come, proves by how much the two differ at least; one that is merely old may have been waiting to be read.
type streamClock struct {
	asked  int64     // own clock, ns: when the log's end was last asked for
	end    uint64    // what it was then or later: records after it were stored after asked
	next   time.Time // not asked again before
	asking bool
	alarm  bool // the clock was found to be off

	current, before int64 // the largest of stream's clock less own seen in this period and the one before, ns
	since           time.Time
	seen            bool
}

// ClockOff is what a projector says, by its name, of a stream's clock that is so far ahead of its own, or behind it if negative.
func ClockOff(off time.Duration, by string) string {
	way := "ahead of"
	if off < 0 {
		way = "behind"
	}
	off = max(off, -off)
	why := fmt.Sprintf("the stream's clock is off: at least %s %s that of %s", off.Round(time.Millisecond), way, by)
	if off > skewStop {
		why += "; admission is stopped until weir recover"
	}
	return why
}

// probed takes in where the log ended at some instant not before asked.
func (c *streamClock) probed(asked int64, end uint64) { c.asked, c.end = asked, end }

// off gives by how much a record proves the stream's clock to be off, ns: positive if it is ahead of the projector's own.
func (c *streamClock) off(seq uint64, at, now int64) int64 {
	if ahead := at - now; ahead > 0 {
		return ahead
	}
	if seq > c.end && c.asked > at && c.asked <= now { // or the own clock has been set back since
		return at - c.asked
	}
	return 0
}

// suspicious says whether a record is so old that either the stream's clock is behind, or the record waited; which, a probe will tell.
func (c *streamClock) suspicious(at, now int64) bool { return now-at > int64(skewAlarm) }

// sample takes in the time of a record that has just been read. Reading takes time, so the largest difference is the best.
func (c *streamClock) sample(at int64, now time.Time) {
	d := at - now.UnixNano()
	if !c.seen || now.Sub(c.since) > offsetFor {
		c.before, c.current = c.current, d
		if !c.seen {
			c.before = d
		}
		c.since, c.seen = now, true
	}
	c.current = max(c.current, d)
}

// own gives when, ns of the projector's own clock, the stream's clock will be at an instant.
func (c *streamClock) own(stream int64) int64 { return stream - max(c.current, c.before) }

// streamDue gives the stream time at which a message moves the fold's time to at, when the last one at last left it skew ahead. While
// skew lasts, ten ns of the stream move the fold by nine.
func streamDue(at, last, skew int64) int64 {
	need := at - last - skew
	if need <= 0 {
		return last
	}
	return min(at, last+(need*10+8)/9)
}
