package kv

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events/journal/access"
)

const (
	entryTTL       = 15 * time.Minute // an entry that is not put again vanishes, so that forgotten meters do
	refreshEvery   = 5 * time.Minute  // what lasts is put again
	maxBucketBytes = 64 << 20         // of one bucket; an entry that does not fit is decided by the log
)

// views are the buckets of meters.
var views = [...]string{access.BucketOccupancy, access.BucketWindows}

// makeBuckets makes the buckets of meters, or sees that they are there. They are in memory: the log holds all that is in them, and a
// broker that forces each message to the disk must not do so for a view.
func makeBuckets(ctx context.Context, js jetstream.JetStream, replicas int) error {
	for _, name := range views {
		cfg := jetstream.KeyValueConfig{
			Bucket:      name,
			Description: "Weir: what the meters show, for gateways to refuse by",
			TTL:         entryTTL,
			MaxBytes:    maxBucketBytes,
			Storage:     jetstream.MemoryStorage,
			Replicas:    replicas,
		}
		ctx, cancel := context.WithTimeout(ctx, callFor)
		_, err := js.CreateKeyValue(ctx, cfg)
		if errors.Is(err, jetstream.ErrBucketExists) {
			_, err = js.KeyValue(ctx, name) // as an operator made it
		}
		cancel()
		if err != nil {
			return fmt.Errorf("make bucket %s: %w", name, err)
		}
	}
	return nil
}
