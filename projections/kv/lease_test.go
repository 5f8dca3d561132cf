package kv_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/kv"
)

// TestALeaseWaitsForItsBucket: who may not make the bucket says once that it waits for it, asks the broker for nothing that it denies, and
// has the lease when another has made it.
func TestALeaseWaitsForItsBucket(t *testing.T) {
	b := newBroker(t)
	var told, denied atomic.Int64
	lease := func(name string, role access.Role, joins bool) *kv.Lease {
		nc := b.connect(name, role)
		nc.SetErrorHandler(func(*nats.Conn, *nats.Subscription, error) { denied.Add(1) })
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		l := kv.NewLease(kv.LeaseConfig{JetStream: js, Bucket: access.BucketLeases, Key: string(role), Holder: name, Joins: joins, Missing: func() { told.Add(1) }})
		run(t, func(ctx context.Context) error { return l.Run(ctx, func(bool) {}) })
		return l
	}
	early := lease("auditor-abcdefgh", access.Auditor, true)
	eventually(t, "told that the bucket is missing", func() bool { return told.Load() == 1 })
	lease("projector-abcdefgh", access.Projector, false)
	eventually(t, "held", early.Held)
	if told.Load() != 1 || denied.Load() != 0 {
		t.Errorf("told %d times, %d calls were denied", told.Load(), denied.Load())
	}
}
