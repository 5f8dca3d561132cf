package auditor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/estimator"
	"github.com/weirhq/weir/services/follow"
)

// lookEvery is how often what was learned is read: a ratio moves slowly.
const lookEvery = 5 * time.Second

// Ratios knows what was learned of models, from the bucket "estimator". It needs no more than a gateway's permissions.
type Ratios struct {
	nc *nats.Conn

	mu     sync.RWMutex
	ratios map[string]estimator.Ratio
}

// NewRatios makes ratios that know nothing; Load fills them, and Run keeps them so.
func NewRatios(nc *nats.Conn) *Ratios { return &Ratios{nc: nc} }

// Ratio gives a model's tokens per byte.
func (r *Ratios) Ratio(model string) estimator.Ratio {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if ratio, ok := r.ratios[model]; ok {
		return ratio
	}
	return estimator.FirstRatio
}

// Load reads the bucket once. That there is none is no error: then nothing was learned.
func (r *Ratios) Load(ctx context.Context) error {
	js, err := jetstream.New(r.nc)
	if err != nil {
		return fmt.Errorf("read what was learned of models: %w", err)
	}
	all, err := look(ctx, js)
	switch {
	case errors.Is(err, jetstream.ErrBucketNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("read what was learned of models: %w", err)
	}
	ratios := make(map[string]estimator.Ratio, len(all))
	for _, l := range all {
		ratios[l.Model] = l.Ratio
	}
	r.mu.Lock()
	r.ratios = ratios
	r.mu.Unlock()
	return nil
}

// Run reads the bucket again and again until ctx ends. While it cannot be read the last known ratios hold.
func (r *Ratios) Run(ctx context.Context) error {
	for {
		_ = r.Load(ctx) // the last known ones hold
		if follow.Pause(ctx, lookEvery) != nil {
			return nil
		}
	}
}

func look(ctx context.Context, js jetstream.JetStream) ([]estimator.Learned, error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	bucket, err := js.KeyValue(ctx, access.BucketEstimator)
	if err != nil {
		return nil, err
	}
	return allLearned(ctx, bucket)
}

// allLearned reads the whole bucket. What cannot be read of it is left out.
func allLearned(ctx context.Context, bucket jetstream.KeyValue) ([]estimator.Learned, error) {
	watcher, err := bucket.WatchAll(ctx, jetstream.IgnoreDeletes())
	if err != nil {
		return nil, err
	}
	defer func() { _ = watcher.Stop() }() // it fails only when the connection has gone
	var all []estimator.Learned
	for {
		select {
		case entry, open := <-watcher.Updates():
			if !open {
				return nil, errors.New("the watch has ended")
			}
			if entry == nil {
				return all, nil
			}
			if l, err := estimator.Decode(entry.Value()); err == nil {
				all = append(all, l)
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
