package admission

import (
	"time"

	"github.com/weirhq/weir/events"
)

const day = 24 * 60 * minute

// periodOf gives the number of the calendar period, UTC, that holds an instant: days since 1970, or months since year 0.
func periodOf(p events.Period, at int64) int64 {
	if p == events.Day {
		return at / day
	}
	t := time.Unix(0, at).UTC()
	return int64(t.Year())*12 + int64(t.Month()) - 1
}

// periodEnd gives the instant at which a period ends, ns since 1970.
func periodEnd(p events.Period, number int64) int64 {
	if p == events.Day {
		return (number + 1) * day
	}
	next := number + 1
	return time.Date(int(next/12), time.Month(next%12+1), 1, 0, 0, 0, 0, time.UTC).UnixNano()
}

// turn begins a budget's new period, if there is one. The end of the current one is kept in limit, as calendars are slow.
func (f *Fold) turn(m *meter) {
	if f.now < m.limit {
		return
	}
	if m.sum > 0 {
		m.emptied = m.limit
	}
	m.sum = 0
	m.mark = periodOf(m.period, f.now)
	m.limit = periodEnd(m.period, m.mark)
}
