package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/postgres/sums"
	"github.com/weirhq/weir/projections/usage"
)

// requestsNamed is how many requests stand behind a sum that differs.
const requestsNamed = 5

// use is what a row of the usage tables is of.
type use struct {
	org                           events.Org
	start                         int64 // ns since 1970
	workspace, key, model, prices string
}

func (u use) String() string {
	return fmt.Sprintf("workspace %q, key %q, model %q, prices %q", u.workspace, u.key, u.model, u.prices)
}

// tally is what lines come to in a row of the usage tables.
type tally struct {
	requests, unsettled, corrections int64
	amounts                          usage.Amounts
	fell                             place // of the newest line
	outside                          bool  // lines to which the log does not come count in it as well
	lines                            int
	names                            []events.RequestID // the first of those behind it
}

// place is where in the log a line falls: with which message, and which of that message's lines it is.
type place struct {
	seq uint64
	n   int64
}

func (p place) after(at sums.Position) bool {
	return cmp.Or(cmp.Compare(p.seq, at.LogSeq), cmp.Compare(p.n, at.LogN)) > 0
}

// tallies are by hour.
type tallies map[use]*tally

// of gives the tally of the hour in which a line counts, making it if need be.
func (t tallies) of(l *usage.Line, counts int64) *tally {
	u := use{l.Org, counts / usage.Hour * usage.Hour, l.Workspace, l.Key, l.Model, l.PriceVersion}
	sum := t[u]
	if sum == nil {
		u.org, u.workspace, u.key = events.Org(strings.Clone(string(u.org))), strings.Clone(u.workspace), strings.Clone(u.key)
		u.model, u.prices = strings.Clone(u.model), strings.Clone(u.prices)
		sum = &tally{}
		t[u] = sum
	}
	return sum
}

// add counts a line.
func (t *tally) add(l *usage.Line, fell place, request events.RequestID) {
	switch l.State {
	case usage.Settled:
		t.requests++
	case usage.Unsettled:
		t.unsettled++
	case usage.Corrected:
		t.corrections++
	}
	t.amounts, t.fell = t.amounts.Plus(l.Change), fell
	if t.lines++; len(t.names) < requestsNamed && !slices.Contains(t.names, request) {
		t.names = append(t.names, request)
	}
}

// by gives tallies of a longer period.
func (t tallies) by(length int64) tallies {
	all := tallies{}
	for u, h := range t {
		u.start = u.start / length * length
		sum := all[u]
		if sum == nil {
			sum = &tally{}
			all[u] = sum
		}
		sum.requests, sum.unsettled, sum.corrections = sum.requests+h.requests, sum.unsettled+h.unsettled, sum.corrections+h.corrections
		sum.amounts, sum.outside, sum.lines = sum.amounts.Plus(h.amounts), sum.outside || h.outside, sum.lines+h.lines
		if h.fell.seq > sum.fell.seq || h.fell.seq == sum.fell.seq && h.fell.n > sum.fell.n {
			sum.fell = h.fell
		}
		sum.names = append(sum.names, h.names...)
	}
	return all
}

// tables compares usage by hour and day in a database, row by row, with what the log comes to. Rows that lines of another log may be in, and
// those of which lines are still to be counted, are left out.
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
	for _, t := range []struct {
		by     sums.Period
		name   string
		length int64
	}{{sums.Hour, "usage_hourly", usage.Hour}, {sums.Day, "usage_daily", usage.Day}} {
		want := v.tallies.by(t.length)
		known := v.known(t.length, log)
		err := table.Each(ctx, t.by, time.Unix(0, known).UTC(), func(r *sums.Row) {
			u := use{r.Org, r.Start.UnixNano(), r.Workspace, r.Key, r.Model, r.PriceVersion}
			v.tallied(k, t.name, u, want[u], r, at)
			delete(want, u)
		})
		if err != nil {
			return err
		}
		for u, sum := range want {
			if u.start < known {
				k.Outside++
				continue
			}
			v.tallied(k, t.name, u, sum, nil, at)
		}
	}
	return nil
}

// known gives the first instant from which every line is known here: where the log begins, or where it was folded on from, others may be in
// the same period.
func (v *verifier) known(length int64, log journal.Info) int64 {
	first := max(log.Created.UnixNano(), v.since) / length * length
	if v.whole && (v.report.Billing == nil || v.report.Billing.Outside == 0) {
		return first
	}
	return first + length
}

// tallied compares a row with a tally; either may be nil.
func (v *verifier) tallied(k *keptCount, name string, u use, t *tally, r *sums.Row, at sums.Position) {
	d := difference{What: "another sum in " + name, Org: u.org, Day: dayOf(u.start), Of: u.String(), Log: "nothing; no request", Kept: "nothing"}
	if name == "usage_hourly" {
		d.Day = time.Unix(0, u.start).UTC().Format("2006-01-02T15Z")
	}
	log := ""
	if t != nil {
		a := &t.amounts
		log = written(t.requests, t.unsettled, t.corrections, a.InputTokens, a.CachedTokens, a.CacheWriteTokens, a.OutputTokens, a.ReasoningTokens, a.CostNano)
		d.Log = fmt.Sprintf("%s; %d lines, of requests %s", log, t.lines, namesOf(t.names))
	}
	if r != nil {
		d.Kept = written(r.Requests, r.Unsettled, r.Corrections, r.InputTokens, r.CachedTokens, r.CacheWriteTokens, r.OutputTokens, r.ReasoningTokens, r.CostNano)
	}
	switch {
	case t != nil && t.outside:
		k.Outside++
	case t != nil && t.fell.after(at):
		k.Behind++
	case log == d.Kept:
		k.Agree++
	default:
		v.differs(d)
	}
}

func namesOf(requests []events.RequestID) string {
	var names []string
	for _, r := range requests {
		names = append(names, string(r))
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return strings.Join(names[:min(len(names), requestsNamed)], ", ")
}

func written(requests, unsettled, corrections int64, input, cached, cacheWrite, output, reasoning, cost any) string {
	return fmt.Sprintf("%d requests, %d unsettled, %d corrections; input %v, cached %v, cache writes %v, output %v, reasoning %v tokens, %v nano-dollars",
		requests, unsettled, corrections, input, cached, cacheWrite, output, reasoning, cost)
}
