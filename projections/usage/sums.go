package usage

import (
	"cmp"
	"slices"

	"github.com/weirhq/weir/events"
)

// Periods of sums.
const (
	Hour = 60 * minute
	Day  = 24 * Hour
)

// How long sums are kept, by the fold's time: an hour's for two days, a day's for two months.
const (
	hoursKept = 2 * Day
	daysKept  = 62 * Day
)

// Group is whose usage a sum is, and of which period.
type Group struct {
	Start     Instant    `json:"start"` // UTC
	Org       events.Org `json:"org"`
	Workspace string     `json:"workspace,omitempty"`
	Key       string     `json:"key,omitempty"`
	Model     string     `json:"model,omitempty"`
}

// Sum is what a group came to. A correction counts in the period in which it was made, so that a period that is over stays as it was.
type Sum struct {
	Group
	Lines       int64 `json:"lines"` // settled
	Unsettled   int64 `json:"unsettled,omitempty"`
	Corrections int64 `json:"corrections,omitempty"`
	Amounts
}

// sums are by period, hours before days.
type sums [2]map[Group]*Sum

var (
	periods = [2]int64{Hour, Day}
	kept    = [2]int64{hoursKept, daysKept}
)

func newSums() sums { return sums{map[Group]*Sum{}, map[Group]*Sum{}} }

// add counts a line.
func (s *sums) add(l *Line) {
	for i, period := range periods {
		g := Group{Instant(floor(int64(l.Time), period)), l.Org, l.Workspace, l.Key, l.Model}
		sum := s[i][g]
		if sum == nil {
			sum = &Sum{Group: g}
			s[i][g] = sum
		}
		switch l.State {
		case Settled:
			sum.Lines++
		case Unsettled:
			sum.Unsettled++
		case Corrected:
			sum.Corrections++
		}
		sum.Amounts = sum.Amounts.Plus(l.Change)
	}
}

// prune forgets periods that are long over.
func (s *sums) prune(now int64) {
	for i := range s {
		for g := range s[i] {
			if int64(g.Start)+periods[i]+kept[i] <= now {
				delete(s[i], g)
			}
		}
	}
}

func (s *sums) sorted(i int) []Sum {
	out := make([]Sum, 0, len(s[i]))
	for _, sum := range s[i] {
		out = append(out, *sum)
	}
	slices.SortFunc(out, func(a, b Sum) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Org, b.Org), cmp.Compare(a.Workspace, b.Workspace),
			cmp.Compare(a.Key, b.Key), cmp.Compare(a.Model, b.Model))
	})
	return out
}

// Hours gives the sums of the hours of the last two days, in order.
func (u *Usage) Hours() []Sum { return u.sums.sorted(0) }

// Days gives the sums of the days of the last two months, in order.
func (u *Usage) Days() []Sum { return u.sums.sorted(1) }

// floor gives the multiple of a period at or before an instant.
func floor(at, period int64) int64 {
	n := at / period
	if at%period < 0 {
		n--
	}
	return n * period
}
