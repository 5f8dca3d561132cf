package journal_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
)

// A follower reads what came before by itself, then what the leader reads; its chain and order are those of a tap.
func TestFollowersReadWhatATapReads(t *testing.T) {
	log := openLog(t, startBroker(t).connect())
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	publish := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			d := &events.Credit{Org: "acme", AmountNano: int64(i), Reference: fmt.Sprint(i)}
			if _, err := log.Publish(ctx, events.Event{ID: fmt.Sprint("credit/", i), Source: "test", Org: "acme", Data: d}); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish(0, 50)
	feed := journal.NewFeed(log)
	early := feed.Follow(ctx, journal.TapConfig{Name: "early"})
	defer early.Close()
	before := log.Tap(ctx, journal.TapConfig{Name: "before"})
	read := reading(t, ctx)
	read(before, 1, 50)
	before.Close()
	leader := feed.Lead(ctx, journal.TapConfig{Name: "leader", From: 51, Chain: before.Chain(), Created: before.Created()})
	defer leader.Close()
	late := feed.Follow(ctx, journal.TapConfig{Name: "late", From: 41})
	defer late.Close()
	read(early, 1, 50)
	read(late, 41, 50)
	publish(50, 80)
	read(leader, 51, 80)
	read(early, 51, 80)
	read(late, 51, 80)
	tap := log.Tap(ctx, journal.TapConfig{Name: "tap"})
	defer tap.Close()
	read(tap, 1, 80)
	if early.Chain() != tap.Chain() {
		t.Errorf("the follower's chain is %s, the tap's %s", early.Chain(), tap.Chain())
	}
}

type sequential interface {
	Next(context.Context) ([]events.Record, error)
	Position() uint64
	Chain() journal.Chain
}

// reading gives a function that reads from one sequence to another, and fails unless each comes in turn.
func reading(t *testing.T, ctx context.Context) func(r sequential, from, to uint64) {
	return func(r sequential, from, to uint64) {
		t.Helper()
		for next := from; r.Position() < to; {
			records, err := r.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, rec := range records {
				if rec.Seq != next {
					t.Fatalf("sequence %d where %d should be", rec.Seq, next)
				}
				next++
			}
		}
	}
}

func TestAFollowerEndsWithItsContext(t *testing.T) {
	log := openLog(t, startBroker(t).connect())
	feed := journal.NewFeed(log)
	ctx, stop := context.WithCancel(context.Background())
	f := feed.Follow(ctx, journal.TapConfig{})
	defer f.Close()
	stop()
	if _, err := f.Next(ctx); err == nil {
		t.Error("it gave records of an empty log")
	}
}
