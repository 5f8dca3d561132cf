package main

import (
	"context"
	"fmt"
	"math"
	"sort"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/postgres/sums"
	"github.com/weirhq/weir/projections/usage"
)

// requestsNamed is how many requests stand behind a sum that differs.
const requestsNamed = 5

// period is an org's hour or day.
type period struct {
	org   events.Org
	start int64 // ns since 1970
}

// tables compares usage by hour and day in a database with what the log comes to. Periods that lines of another log may be in, and those of
// which lines are still to be counted, are left out.
func (v *verifier) tables(ctx context.Context, table *sums.Table, log journal.Info) error {
	at, err := table.Position(ctx)
	if err != nil {
		return err
	}
	k := &keptCount{}
	v.report.Tables = k
	if at.StreamCreated == 0 || at.LogCreated != log.Created.UnixNano() {
		k.Behind = int64(len(v.attempts))
		return nil
	}
	behind := map[attemptKey]bool{}
	for _, mark := range v.lines {
		if mark.fell > at.LogSeq {
			behind[mark.key] = true
		}
	}
	for _, t := range []struct {
		by     sums.Period
		length int64
	}{{sums.Hour, usage.Hour}, {sums.Day, usage.Day}} {
		if err := v.compareTable(ctx, table, t.by, t.length, behind, k, log); err != nil {
			return err
		}
	}
	return nil
}

// compareTable compares one of the tables.
func (v *verifier) compareTable(ctx context.Context, table *sums.Table, by sums.Period, length int64, behind map[attemptKey]bool, k *keptCount, log journal.Info) error {
	want, open := map[period]usage.Amounts{}, map[period]bool{}
	for key, b := range v.attempts {
		if b.late {
			continue
		}
		p := period{b.org, b.at / length * length}
		want[p] = want[p].Plus(b.log)
		open[p] = open[p] || behind[key]
	}
	// Where the log begins, or where it was folded on from, lines that are not known here may be in the same period.
	first := log.Created.UnixNano() / length * length
	switch {
	case !v.whole:
		first = math.MaxInt64 - length
		for p := range want {
			first = min(first, p.start)
		}
	case v.report.Billing == nil || v.report.Billing.Outside == 0:
		first -= length
	}
	rows, err := table.Totals(ctx, by, time.Unix(0, first+length).UTC())
	if err != nil {
		return err
	}
	kept := map[period]*sums.Row{}
	for i := range rows {
		r := &rows[i]
		p := period{r.Org, r.Start.UnixNano()}
		kept[p] = r
		if _, known := want[p]; !known {
			want[p] = usage.Amounts{}
		}
	}
	for p, amounts := range want {
		switch r := kept[p]; {
		case p.start < first+length:
			k.Outside++
		case open[p]:
			k.Behind++
		case r != nil && written(r) == amountsText(amounts) || r == nil && amounts == (usage.Amounts{}):
			k.Agree++
		default:
			d := difference{What: "another sum in usage_daily", Org: p.org, Day: dayOf(p.start), Log: amountsText(amounts), Kept: "nothing"}
			if by == sums.Hour {
				d.What, d.Day = "another sum in usage_hourly", time.Unix(0, p.start).UTC().Format("2006-01-02T15Z")
			}
			if r != nil {
				d.Kept = written(r)
			}
			d.Log += v.behindSum(p, length)
			v.differs(d)
		}
	}
	return nil
}

// behindSum names some of the requests that a sum is of.
func (v *verifier) behindSum(p period, length int64) string {
	var names []string
	n := 0
	for key, b := range v.attempts {
		if b.org == p.org && b.at/length*length == p.start {
			if n++; n <= 1000 {
				names = append(names, string(key.request))
			}
		}
	}
	if n == 0 {
		return "; no request"
	}
	sort.Strings(names)
	return fmt.Sprintf("; %d attempts, of requests %s", n, strings.Join(names[:min(len(names), requestsNamed)], ", "))
}

func amountsText(a usage.Amounts) string {
	return fmt.Sprintf("input %d, cached %d, cache writes %d, output %d, reasoning %d tokens, %d nano-dollars",
		a.InputTokens, a.CachedTokens, a.CacheWriteTokens, a.OutputTokens, a.ReasoningTokens, a.CostNano)
}

func written(r *sums.Row) string {
	return fmt.Sprintf("input %s, cached %s, cache writes %s, output %s, reasoning %s tokens, %s nano-dollars",
		r.InputTokens, r.CachedTokens, r.CacheWriteTokens, r.OutputTokens, r.ReasoningTokens, r.CostNano)
}
