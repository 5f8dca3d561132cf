package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/kv"
)

// Election finds the one process of a role that writes.
type Election struct {
	Conn     *nats.Conn
	Role     access.Role
	Name     string // the process's own
	Replicas int
	Now      func() time.Time

	// Joins says that another process makes the bucket in which is elected: a projector. Until then it is waited for, as Logger is told.
	Joins  bool
	Logger *slog.Logger

	// Alone says that there can be no other process with the role, as with a broker in this process that does not listen: no lease is
	// sought. After a crash a lease takes 3 s to run out.
	Alone bool
}

// ErrLost is the cause of a context's end when another process writes now.
var ErrLost = errors.New("another process writes")

// Run runs work until it returns, and says by held when this process becomes the one that writes and when it no longer is. The lease is
// kept until work is done, also when ctx has ended.
func (e Election) Run(ctx context.Context, held func(bool), work func(context.Context) error) error {
	if e.Alone {
		held(true)
		defer held(false)
		return work(ctx)
	}
	js, err := jetstream.New(e.Conn)
	if err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	missing := func() {
		e.Logger.Warn("waits for a projector, which makes what is needed to agree on the one that writes", "role", e.Role)
	}
	lease := kv.NewLease(kv.LeaseConfig{JetStream: js, Bucket: access.BucketLeases, Key: string(e.Role), Holder: e.Name, Replicas: e.Replicas, Now: e.Now, Joins: e.Joins, Missing: missing})
	group, ctx := errgroup.WithContext(ctx)
	leased, release := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error { return lease.Run(leased, held) })
	group.Go(func() error {
		defer release()
		return work(ctx)
	})
	return group.Wait()
}

// Turns runs work whenever this process becomes the one that writes, and ends it with the cause ErrLost when it no longer is. What work
// returns while it is the one is returned.
func (e Election) Turns(ctx context.Context, work func(context.Context) error) error {
	turns := make(chan bool, 1)
	told := func(held bool) {
		select {
		case <-turns: // only the last word counts
		default:
		}
		turns <- held
	}
	return e.Run(ctx, told, func(ctx context.Context) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case held := <-turns:
				for held {
					var err error
					var ended bool
					if held, ended, err = turn(ctx, turns, work); ended || err != nil {
						return err
					}
				}
			}
		}
	})
}

// turn works until it is done or the lease is lost, and then says whether it is held again.
func turn(ctx context.Context, turns <-chan bool, work func(context.Context) error) (held, ended bool, err error) {
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	done := make(chan error, 1)
	go func() { done <- work(working) }()
	select {
	case err := <-done:
		return false, true, err
	case held = <-turns:
		stop(ErrLost)
		return held, false, <-done
	}
}
