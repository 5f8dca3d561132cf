package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/services/ledger"
)

const (
	// unmarked is how many sequences beyond the mark somebody may have read: the mark stays a few seconds behind.
	unmarked = 4_096
	// skipMost is how many sequences a recovery passes over; a log that lacks more is better begun anew.
	skipMost = 4_000_000
	// skipAtOnce is how many of their ticks are on their way at the same time.
	skipAtOnce = 256
)

// skip passes over the sequences of a log that was cut or restored which stood for something else before: whoever read that far, as the
// auditor and the biller, goes on from there, and would leave out what came to stand at those sequences since.
func (r *recovery) skip(ctx context.Context, old ledger.Mark, info journal.Info) error {
	if !old.Created.Equal(info.Created) || old.Seq <= info.Last {
		return nil
	}
	to := old.Seq + unmarked
	if to-info.Last > skipMost {
		return fmt.Errorf("the log ends at sequence %d, and %d was used: begin with an empty log rather, by moving the broker's directory away", info.Last, old.Seq)
	}
	r.say("sequences %d to %d were used before, or may have been, and are passed over", info.Last+1, to)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(skipAtOnce)
	began := time.Now().UnixNano()
	for seq := info.Last + 1; seq <= to && ctx.Err() == nil; seq++ {
		group.Go(func() error {
			id := fmt.Sprintf("recover/%s/skip/%d/%d", r.id, began, seq)
			_, err := r.log.Publish(ctx, events.Event{ID: id, Org: events.Platform, Data: &events.Tick{}})
			return err
		})
	}
	return group.Wait()
}
