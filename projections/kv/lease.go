package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// How a lease is held.
const (
	LeaseFor  = 3 * time.Second        // a lease that has not been renewed for so long is taken over
	beatEvery = time.Second            // the holder renews it
	beatAgain = 200 * time.Millisecond // after a failure
	lostAfter = LeaseFor - 500*time.Millisecond
	seekEvery = 500 * time.Millisecond
	callFor   = time.Second
)

// LeaseConfig says which lease.
type LeaseConfig struct {
	JetStream jetstream.JetStream
	Bucket    string // made if there is none, but for Joins
	Key       string // of the lease, as projector.writer
	Holder    string // who would hold it: the process's name
	Replicas  int    // of the bucket if it is made; Defaults to 1

	// Joins says that the bucket is for others to make: until it is there it is looked for, and nothing else. Missing, if any, is told once.
	Joins   bool
	Missing func()

	// Now is the clock; only its differences count. Defaults to time.Now.
	Now func() time.Time

	// Wants says whether the lease is wanted; a holder that no longer wants it gives it up. Defaults to always.
	Wants func() bool
}

// Lease elects one of several processes. It only elects: for a moment two may think that they hold it, so what the holder does must be
// harmless when done twice, or fenced by the log.
type Lease struct {
	cfg    LeaseConfig
	bucket jetstream.KeyValue
	resign chan struct{}
	held   atomic.Bool

	revision uint64    // of our own last write while held
	renewed  time.Time // when that was sent
	seen     uint64    // another's revision
	since    time.Time // since when that has been the last
	after    time.Time // not sought before
}

// NewLease makes a lease that is not held; Run seeks it.
func NewLease(cfg LeaseConfig) *Lease {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Wants == nil {
		cfg.Wants = func() bool { return true }
	}
	return &Lease{cfg: cfg, resign: make(chan struct{}, 1)}
}

// Held says whether the lease is held.
func (l *Lease) Held() bool { return l.held.Load() }

// Resign gives the lease up, so that another may have it. It is not sought again for LeaseFor.
func (l *Lease) Resign() {
	select {
	case l.resign <- struct{}{}:
	default:
	}
}

// Run seeks the lease and keeps it until ctx ends; then it is given up. Changed is called on this goroutine, first with true.
func (l *Lease) Run(ctx context.Context, changed func(held bool)) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			l.release()
			return nil
		case <-l.resign:
			l.after = l.cfg.Now().Add(LeaseFor)
			if l.release() {
				changed(false)
			}
			timer.Reset(seekEvery)
		case <-timer.C:
			was := l.held.Load()
			wait := l.step(ctx)
			if is := l.held.Load(); is != was {
				changed(is)
			}
			timer.Reset(wait)
		}
	}
}

// step renews or seeks the lease, and gives when to do so again.
func (l *Lease) step(ctx context.Context) time.Duration {
	if !l.cfg.Wants() {
		l.release()
		return seekEvery
	}
	if l.bucket == nil && !l.open(ctx) {
		return seekEvery
	}
	if l.held.Load() {
		return l.renew(ctx)
	}
	if l.cfg.Now().Before(l.after) {
		return seekEvery
	}
	l.seek(ctx)
	if l.held.Load() {
		return beatEvery
	}
	return seekEvery
}

func (l *Lease) open(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	bucket, err := l.cfg.JetStream.KeyValue(ctx, l.cfg.Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) && l.cfg.Joins {
		if l.cfg.Missing != nil {
			l.cfg.Missing()
			l.cfg.Missing = nil
		}
		return false
	}
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		bucket, err = l.cfg.JetStream.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: l.cfg.Bucket, Description: "Weir: who is the one writer of a projection", Replicas: max(1, l.cfg.Replicas),
		})
	}
	if err != nil {
		return false
	}
	l.bucket = bucket
	return true
}

// value is what stands under the key: for people.
func (l *Lease) value() []byte {
	b, _ := json.Marshal(map[string]string{"holder": l.cfg.Holder}) // cannot fail
	return b
}

func (l *Lease) renew(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	sent := l.cfg.Now()
	revision, err := l.bucket.Update(ctx, l.cfg.Key, l.value(), l.revision)
	switch {
	case err == nil:
		l.revision, l.renewed = revision, sent
		return beatEvery
	case wrongRevision(err), l.cfg.Now().Sub(l.renewed) > lostAfter:
		l.lose()
		return seekEvery
	}
	return beatAgain
}

// seek takes the lease if nobody holds it, or if its holder has not renewed it for LeaseFor of this process's own time.
func (l *Lease) seek(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	entry, err := l.bucket.Get(ctx, l.cfg.Key)
	sent := l.cfg.Now()
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		if revision, err := l.bucket.Create(ctx, l.cfg.Key, l.value()); err == nil {
			l.win(revision, sent)
		}
	case errors.Is(err, jetstream.ErrBucketNotFound), errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, jetstream.ErrNoStreamResponse):
		l.bucket = nil // looked for, and made, anew
	case err != nil:
	case entry.Revision() != l.seen:
		l.seen, l.since = entry.Revision(), sent
	case sent.Sub(l.since) > LeaseFor:
		if revision, err := l.bucket.Update(ctx, l.cfg.Key, l.value(), l.seen); err == nil {
			l.win(revision, sent)
		}
	}
}

func (l *Lease) win(revision uint64, sent time.Time) {
	l.revision, l.renewed = revision, sent
	l.held.Store(true)
}

func (l *Lease) lose() {
	l.held.Store(false)
	l.seen = 0
}

// release gives the lease back, if it is held.
func (l *Lease) release() bool {
	if !l.held.Load() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), callFor)
	defer cancel()
	_ = l.bucket.Delete(ctx, l.cfg.Key, jetstream.LastRevision(l.revision)) // otherwise it runs out
	l.lose()
	return true
}

// wrongRevision says whether another has written the key.
func wrongRevision(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == wrongLastConstant)
}

// wrongLastConstant is the other code by which the broker says that an expected sequence is not the last: on several servers, another
// write of the key is on its way.
const wrongLastConstant = 10164

// String names the lease, for messages.
func (l *Lease) String() string { return fmt.Sprintf("lease %s/%s", l.cfg.Bucket, l.cfg.Key) }
