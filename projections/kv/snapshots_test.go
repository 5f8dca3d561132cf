package kv_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/kv"
)

// patterned gives bytes that tell one place from another.
func patterned(size int, seed byte) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = seed + byte(i) + byte(i>>8) + byte(i>>16)
	}
	return b
}

func TestSnapshotsAreShared(t *testing.T) {
	b := newBroker(t)
	js := func(name string, role access.Role) jetstream.JetStream {
		js, err := jetstream.New(b.connect(name, role))
		if err != nil {
			t.Fatal(err)
		}
		return js
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	config := func(js jetstream.JetStream) kv.SnapshotsConfig {
		return kv.SnapshotsConfig{JetStream: js, Role: access.Projector}
	}
	writes, reads := kv.NewSnapshots(config(js("one-abcdefgh", access.Projector))), kv.NewSnapshots(config(js("tool-abcdefgh", access.Monitor)))
	if all, err := reads.List(ctx); err != nil || len(all) != 0 {
		t.Fatalf("before any: %+v, %v", all, err)
	}

	// One part, several parts, a part that is just full, none.
	const part = 512 << 10
	at := time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)
	for n, size := range []int{100, 3*part + 1, 2 * part, 0, 5} {
		what := kv.Snapshot{Seq: uint64(n + 1), Created: at, Ledger: "l", Link: "ab", At: at.Add(time.Duration(n) * time.Minute), By: "one-abcdefgh"}
		body := patterned(size, byte(n))
		if err := writes.Share(ctx, what, body); err != nil {
			t.Fatal(err)
		}
		all, err := reads.List(ctx)
		if err != nil || len(all) != min(n+1, 2) || all[0].Seq != what.Seq || n > 0 && all[1].Seq != what.Seq-1 {
			t.Fatalf("after %d: %+v, %v", n+1, all, err)
		}
		for i := range all {
			got, err := reads.Fetch(ctx, all[i])
			if want := patterned([]int{100, 3*part + 1, 2 * part, 0, 5}[all[i].Seq-1], byte(all[i].Seq-1)); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("after %d, of sequence %d: %d bytes, want %d (%v)", n+1, all[i].Seq, len(got), len(want), err)
			}
		}
	}
	bucket, err := js("admin-abcdefgh", access.System).KeyValue(ctx, access.BucketSnapshots)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := bucket.Keys(ctx)
	if err != nil || len(keys) != 3 { // two that say what is there, and the last one's part; the empty one has none
		t.Errorf("there are %v (%v)", keys, err)
	}
}

func TestSnapshotsAreBounded(t *testing.T) {
	b := newBroker(t)
	js, err := jetstream.New(b.connect("one-abcdefgh", access.Projector))
	if err != nil {
		t.Fatal(err)
	}
	s := kv.NewSnapshots(kv.SnapshotsConfig{JetStream: js, Role: access.Projector, Most: 1000})
	err = s.Share(t.Context(), kv.Snapshot{Seq: 1}, make([]byte, 1001))
	if err == nil || !strings.Contains(err.Error(), "it has 1001 bytes, and may have 1000") {
		t.Errorf("what is too large: %v", err)
	}
	if all, err := s.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("shared are %+v (%v)", all, err)
	}
	for _, lie := range []kv.Snapshot{{Size: kv.MaxSnapshot + 1, Chunks: 513}, {Size: 10, Chunks: 1 << 30}, {Size: -1}} {
		if err := s.Share(t.Context(), kv.Snapshot{Seq: 1}, []byte("x")); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if _, err := s.Fetch(ctx, lie); err == nil || !strings.Contains(err.Error(), "it says that it has") {
			t.Errorf("fetching %+v: %v", lie, err)
		}
		cancel()
	}
}

// Of two that share at once one does.
func TestSnapshotsOfTwoAtOnce(t *testing.T) {
	b := newBroker(t)
	js, err := jetstream.New(b.connect("one-abcdefgh", access.Projector))
	if err != nil {
		t.Fatal(err)
	}
	cfg := kv.SnapshotsConfig{JetStream: js, Role: access.Projector}
	ended := make(chan error, 2)
	const size = 4 << 20
	for n := range 2 {
		go func() {
			ended <- kv.NewSnapshots(cfg).Share(t.Context(), kv.Snapshot{Seq: uint64(n + 1), At: time.Unix(int64(n), 0)}, patterned(size, byte(n)))
		}()
	}
	failed := 0
	for range 2 {
		if err := <-ended; err != nil {
			failed++
		}
	}
	s := kv.NewSnapshots(cfg)
	all, err := s.List(t.Context())
	if err != nil || len(all) != 2-failed || failed > 1 {
		t.Fatalf("%d failed, shared are %+v (%v)", failed, all, err)
	}
	for i := range all {
		if got, err := s.Fetch(t.Context(), all[i]); err == nil && !bytes.Equal(got, patterned(size, byte(all[i].Seq-1))) {
			t.Errorf("of sequence %d other bytes were fetched", all[i].Seq)
		}
	}
}
