package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events"
)

const (
	// unmarked is how many sequences beyond the mark somebody may have read: the mark stays a few seconds behind.
	unmarked = 4_096
	// skipMost is how many sequences a recovery passes over; a log that lacks more is better begun anew.
	skipMost = 4_000_000
	// skipAtOnce is how many of their ticks are on their way at the same time.
	skipAtOnce = 256
	// skipMark is in their ids.
	skipMark = "/skip/"
)

// skip passes over the sequences of a log that was cut or restored which stood for something else before: whoever read that far, as the
// auditor and the biller, goes on from there, and would leave out what came to stand at those sequences since. It gives what is lost.
func (r *recovery) skip(ctx context.Context, used uint64) (gone lost, err error) {
	gone = r.passed
	if used <= r.info.Last {
		return gone, nil
	}
	to := used + unmarked
	if to-r.info.Last > skipMost {
		return gone, fmt.Errorf("the log ends at sequence %d, and %d was used: begin with an empty log rather, by moving the broker's directory away", r.info.Last, used)
	}
	if gone.to = to; gone.from == 0 {
		gone.from = r.kept.seq + 1
	}
	r.say("sequences %d to %d were used before, or may have been, and are passed over", r.info.Last+1, to)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(skipAtOnce)
	began := time.Now().UnixNano()
	for seq := r.info.Last + 1; seq <= to && ctx.Err() == nil; seq++ {
		group.Go(func() error {
			id := fmt.Sprintf("recover/%s%s%d/%d", r.id, skipMark, began, seq)
			_, err := r.log.Publish(ctx, events.Event{ID: id, Org: events.Platform, Data: &events.Tick{}})
			return err
		})
	}
	return gone, group.Wait()
}
