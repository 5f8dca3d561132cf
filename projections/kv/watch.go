package kv

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events"
)

const (
	silentFor = 3 * time.Second // without any update, after which a watch is opened anew: three heartbeats
	silentMax = 30 * time.Second
	openPause = 250 * time.Millisecond // before a watch is opened anew; doubled up to silentFor
	openFor   = 5 * time.Second
)

// Watch fills the view from the buckets until ctx ends. A watch that falls silent is opened anew; while that brings nothing, ever more
// slowly. The error is of a connection that JetStream cannot use.
func (v *View) Watch(ctx context.Context, nc *nats.Conn) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("watch the meters: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	filled := make(chan struct{}, len(views))
	for _, bucket := range views {
		group.Go(func() error { v.watch(ctx, js, bucket, filled); return nil })
	}
	group.Go(func() error {
		for range views {
			select {
			case <-filled:
			case <-ctx.Done():
				return nil
			}
		}
		v.ready.Store(true)
		return nil
	})
	return group.Wait()
}

// watch keeps one bucket watched.
func (v *View) watch(ctx context.Context, js jetstream.JetStream, bucket string, filled chan<- struct{}) {
	patience, pause := silentFor, openPause
	told := false
	for ctx.Err() == nil {
		fresh := v.follow(ctx, js, bucket, patience, func() {
			if !told {
				told = true
				filled <- struct{}{}
			}
		})
		if fresh {
			patience, pause = silentFor, openPause
			continue
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		patience, pause = min(2*patience, silentMax), min(2*pause, silentFor)
	}
}

// follow watches a bucket until it is silent for too long. It says whether anything new came after what the bucket held.
func (v *View) follow(ctx context.Context, js jetstream.JetStream, bucket string, patience time.Duration, filled func()) (fresh bool) {
	open, cancel := context.WithTimeout(ctx, openFor)
	kv, err := js.KeyValue(open, bucket)
	cancel()
	if err != nil {
		return false
	}
	watch, stop := context.WithCancel(ctx)
	defer stop()
	watcher, err := kv.WatchAll(watch)
	if err != nil {
		return false
	}
	defer func() { _ = watcher.Stop() }() // it fails only when the connection has gone
	timer := time.NewTimer(patience)
	defer timer.Stop()
	initial := true
	for {
		select {
		case update, ok := <-watcher.Updates():
			if !ok {
				return fresh
			}
			if update == nil {
				initial = false
				filled()
				continue
			}
			v.take(update)
			fresh = fresh || !initial
			timer.Reset(patience)
		case <-timer.C:
			return fresh
		case <-ctx.Done():
			return fresh
		}
	}
}

// take takes in one update of a bucket. What cannot be read is as good as not known.
func (v *View) take(update jetstream.KeyValueEntry) {
	key := update.Key()
	meter := events.Meter(key)
	at := v.own(v.now())
	switch {
	case key == heartbeatKey:
		var beat heartbeat
		if update.Operation() == jetstream.KeyValuePut && json.Unmarshal(update.Value(), &beat) == nil {
			v.note(beat.Time, beat.Seq, at)
		}
	case update.Operation() != jetstream.KeyValuePut:
		v.entries.Delete(meter)
	default:
		e, err := decodeEntry(update.Value())
		if err != nil {
			v.entries.Delete(meter)
			return
		}
		if known, ok := v.entries.Load(meter); ok && known.(*arrival).entry.Seq > e.Seq && known.(*arrival).entry.Time >= e.Time {
			return // an older entry, of a watch opened anew
		}
		v.note(e.Time, e.Seq, at)
		v.entries.Store(meter, &arrival{e, at})
	}
}
