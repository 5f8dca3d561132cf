package auditor

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/estimator"
)

const maxEstimates = 16 << 20 // bytes

// learnedStore keeps what has been learned of models, in the bucket "estimator". What cannot be kept is learned anew after a restart.
type learnedStore struct {
	bucket jetstream.KeyValue // nil: it is not kept
	warn   func(doing string, err error)
}

// openLearned makes the bucket.
func openLearned(ctx context.Context, js jetstream.JetStream, cfg Config, warn func(string, error)) *learnedStore {
	s := &learnedStore{warn: warn}
	if cfg.NoEstimates {
		return s
	}
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	var err error
	s.bucket, err = js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: access.BucketEstimator, Description: "Weir: learned tokens per byte, by model", MaxBytes: maxEstimates, Replicas: cfg.Replicas,
	})
	if err != nil {
		s.bucket, err = js.KeyValue(ctx, access.BucketEstimator) // as another role made it
	}
	if err != nil {
		s.warn("make the bucket "+access.BucketEstimator+": what is learned of models is not kept", err)
	}
	return s
}

// read reads what has been learned of models.
func (s *learnedStore) read(ctx context.Context) ([]estimator.Learned, error) {
	if s.bucket == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	return allLearned(ctx, s.bucket)
}

// put keeps what has been learned. What cannot be kept is learned anew after a restart.
func (s *learnedStore) put(ctx context.Context, all []estimator.Learned) {
	if s.bucket == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	for i := range all {
		if _, err := s.bucket.Put(ctx, estimator.Key(all[i].Model), all[i].Encode()); err != nil {
			s.warn("keep what is learned of "+all[i].Model, err)
			return
		}
	}
}
