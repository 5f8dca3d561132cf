package gates

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/embedded"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/estimate"
	"github.com/weirhq/weir/gateway/policy"
	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/kv"
	"github.com/weirhq/weir/test/e2e/stack"
)

// oneOff are keys that are made, used once and never again, all of one org, as provisioning tools make them.
type oneOff struct {
	t    *testing.T
	w    *world
	body *wire.Request
	fold *admission.Fold
	seq  uint64
	at   int64
}

func newOneOff(t *testing.T, at string) *oneOff {
	t.Helper()
	w := newWorld(t, setup{policy: "mode: serverless\nadmit_budget_tokens: 100000\nmax_inflight: 16", at: at})
	r, err := wire.Parse(wire.Chat, []byte(chatBody("qwen", 100, `"max_tokens":50,`)))
	check(t, err)
	return &oneOff{t: t, w: w, body: r, fold: admission.New(), at: w.start.UnixNano()}
}

func (o *oneOff) apply(org events.Org, d events.Data) []events.Verdict {
	o.seq++
	return o.fold.Apply(&events.Record{Seq: o.seq, At: o.at, Gateway: "gw-a", Event: events.Event{Org: org, Data: d}})
}

// use is the whole life of one key: made, one request, never seen again.
func (o *oneOff) use(i int) {
	o.t.Helper()
	k := &authority.Key{ID: fmt.Sprintf("dyn-%d", i), Org: "tenant", Limits: authority.Limits{RPM: 60, TPM: 100_000, Concurrency: 4}, Daily: 50_000,
		Quota: authority.Quota{RequestsPerMinute: 1_000_000, TokensPerDay: 1_000_000_000, InputTokensPerMinute: 10_000, OutputTokensPerMinute: 10_000, OccupancyShare: 250_000}}
	in := policy.Input{Snapshot: o.w.snap, Key: k, Model: o.w.snap.Models["qwen"], Request: o.body, Target: policy.Target{Local: true},
		Ratio: estimate.FirstRatio, Healthy: 1, Settings: o.w.settings}
	plan := policy.New(&in)
	id := events.RequestID(fmt.Sprintf("r%d", i))
	verdicts := o.apply(k.Org, &events.Reserve{Request: id, Org: k.Org, Key: k.ID, Model: "qwen", Gateway: "gw-a", Epoch: epoch, ParkMS: plan.ParkMS,
		MaxMS: plan.MaxMS, Estimate: plan.Recorded, Claims: plan.Claims})
	if len(verdicts) != 1 || !verdicts[0].Admitted {
		o.t.Fatalf("key %d: %+v", i, verdicts)
	}
	u, q := plan.Usage(&wire.Result{Usage: wire.Usage{Input: 90, Output: 40}, Explicit: wire.FieldInput | wire.FieldOutput, Quality: wire.QualityExact})
	o.apply(k.Org, &events.TrueUp{Request: id, Gateway: "gw-a", N: 1, Final: true, Quality: q, Usage: u, Charges: plan.Charges(u, q, false)})
	o.apply(k.Org, &events.Release{Request: id, Gateway: "gw-a", Outcome: events.Completed, Dispatched: events.DispatchedYes})
}

// pass lets time go by, with a sign of life every second.
func (o *oneOff) pass(d time.Duration) {
	for end := o.at + int64(d); o.at < end; {
		o.at += int64(time.Second)
		o.apply(events.Platform, &events.Tick{Gateway: "gw-a"})
	}
	o.fold.Drain(func(admission.Reading) {})
}

// heap is what is in use, in bytes, after everything that can go has gone.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestIdleKeysAreForgotten: 100,000 one-off keys within an hour, each with every limit that a key can have, the hour before midnight.
func TestIdleKeysAreForgotten(t *testing.T) {
	const keys = 100_000
	o := newOneOff(t, "2026-01-15T22:50:00Z")
	before := heap()
	for i := range keys {
		o.at += int64(time.Hour) / keys
		o.use(i)
		o.fold.Drain(func(admission.Reading) {}) // as a projector does
	}
	peak := heap()
	meters, requests, settled, _ := o.fold.Size()
	t.Logf("after %d keys: %d meters, %d requests, %d settled, %.1f MiB", keys, meters, requests, settled, mib(peak-before))
	if meters < keys {
		t.Errorf("%d meters: each key's day must be known until it is over", meters)
	}
	// a key's day alone outlives the quarter of an hour: without the sweep there would be seven meters a key
	if meters > 3*keys {
		t.Errorf("%d meters: nothing was forgotten within the hour", meters)
	}
	o.pass(35 * time.Minute) // past midnight, and a quarter of an hour on
	after := heap()
	meters, requests, settled, _ = o.fold.Size()
	t.Logf("after the sweep: %d meters, %d requests, %d settled, %.1f MiB", meters, requests, settled, mib(after-before))
	if meters+requests+settled != 0 {
		t.Errorf("%d meters, %d requests and %d settled ones are left", meters, requests, settled)
	}
	if after-before > (peak-before)/10 {
		t.Errorf("%.1f MiB of %.1f are left", mib(after-before), mib(peak-before))
	}
	runtime.KeepAlive(o)
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// views are the buckets of meters.
var views = []string{access.BucketOccupancy, access.BucketWindows}

// broker is a real one, and a connection that may do everything.
func broker(t *testing.T) jetstream.JetStream {
	t.Helper()
	b, err := embedded.Start(t.Context(), embedded.Config{DataDir: t.TempDir(), Log: stack.Quiet()})
	check(t, err)
	t.Cleanup(b.Shutdown)
	name, err := access.NewName("weir")
	check(t, err)
	conn, err := b.Connect(access.Identity{Name: name, Roles: []access.Role{access.System}}, journal.Options(name)...)
	check(t, err)
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	check(t, err)
	return js
}

// write runs a writer of views until the test ends. Its clock can be put forward.
func write(t *testing.T, js jetstream.JetStream) (w *kv.Writer, ahead *atomic.Int64) {
	t.Helper()
	ahead = new(atomic.Int64)
	w = kv.NewWriter(kv.WriterConfig{Conn: js.Conn(), Name: "projector", Logger: stack.Quiet(), Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	w.Activate(true)
	return w, ahead
}

// TestViewsOfIdleKeysVanish: what the buckets hold of one-off keys goes away, with what the writer knows of them.
func TestViewsOfIdleKeysVanish(t *testing.T) {
	const keys = 300
	js := broker(t)
	for _, name := range views { // as an operator makes them, but for a far shorter life
		_, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: name, TTL: 3 * time.Second, Storage: jetstream.MemoryStorage, MaxBytes: 8 << 20})
		check(t, err)
	}
	w, ahead := write(t, js)
	o := newOneOff(t, "2026-01-15T23:58:00Z")
	show := func() { o.fold.Drain(func(r admission.Reading) { w.Put(r, o.seq, o.fold.Now()) }) }
	for i := range keys {
		o.at += int64(100 * time.Millisecond)
		o.use(i)
		show()
	}
	held := func() (n int) {
		for _, name := range views {
			bucket, err := js.KeyValue(t.Context(), name)
			check(t, err)
			keys, err := bucket.ListKeys(t.Context())
			check(t, err)
			for key := range keys.Keys() {
				if strings.HasPrefix(key, "key/") {
					n++
				}
			}
		}
		return n
	}
	most := 0
	stack.Eventually(t, "the buckets show the keys", func() bool { most = max(most, held()); return most >= keys })
	known := w.Stats().Known
	o.pass(40 * time.Minute)
	show()
	w.At(o.seq, o.fold.Now())
	ahead.Store(int64(40 * time.Minute))
	stack.Eventually(t, "the writer has forgotten every key", func() bool { return w.Stats().Known == 0 })
	stack.Eventually(t, "the buckets hold nothing of any key", func() bool { return held() == 0 })
	t.Logf("%d keys: at least %d entries were seen at once, %d meters known to the writer; none in the end", keys, most, known)
}

// TestViewsAreBounded: the buckets that the product makes forget what is not put again, and hold so much and no more.
func TestViewsAreBounded(t *testing.T) {
	js := broker(t)
	write(t, js)
	for _, name := range views {
		var status jetstream.KeyValueStatus
		stack.Eventually(t, "there is a bucket "+name, func() bool {
			bucket, err := js.KeyValue(t.Context(), name)
			if err == nil {
				status, err = bucket.Status(t.Context())
			}
			return err == nil
		})
		made := status.(*jetstream.KeyValueBucketStatus).StreamInfo().Config
		if status.TTL() != 15*time.Minute || made.MaxBytes != 64<<20 || made.Storage != jetstream.MemoryStorage || made.MaxMsgsPerSubject != 1 {
			t.Errorf("%s: entries live %s, %d bytes, %d an entry", name, status.TTL(), made.MaxBytes, made.MaxMsgsPerSubject)
		}
	}
}
