package kv_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/access/accesstest"
	"github.com/weirhq/weir/events/journal/embedded"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/kv"
)

// patience is how long what must happen is waited for.
const patience = time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type broker struct {
	t testing.TB
	*embedded.Broker
	secret access.Secret // of the gateway that joins over TCP
}

func newBroker(t testing.TB) *broker {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, secret, err := access.NewCredentials("gw", access.Gateway)
	if err != nil {
		t.Fatal(err)
	}
	b, err := embedded.Start(ctx, embedded.Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0", Credentials: access.Credentials{Identities: []access.Credential{c}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	return &broker{t, b, secret}
}

func (b *broker) connect(name string, roles ...access.Role) *nats.Conn {
	b.t.Helper()
	nc, err := b.Connect(access.Identity{Name: name, Roles: roles})
	if err != nil {
		b.t.Fatal(err)
	}
	return nc
}

func run(t testing.TB, f func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var err error
	go func() { defer close(done); err = f(ctx) }()
	stop = func() error { cancel(); <-done; return err }
	t.Cleanup(func() { _ = stop() })
	return stop
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in %s: not %s", patience, what)
		}
	}
}

// steered is a clock that a test moves.
type steered struct {
	base time.Time
	by   atomic.Int64
}

func (s *steered) now() time.Time       { return s.base.Add(time.Duration(s.by.Load())) }
func (s *steered) pass(d time.Duration) { s.by.Add(int64(d)) }

// puts collects the keys put into a bucket, in order.
type puts struct {
	mu   sync.Mutex
	keys []string
}

func (p *puts) list() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.keys...)
}

func (b *broker) puts(bucket string) *puts {
	b.t.Helper()
	p := &puts{}
	nc := b.connect("watcher-abcdefgh", access.System)
	_, err := nc.Subscribe("$KV."+bucket+".>", func(m *nats.Msg) {
		key := strings.TrimPrefix(m.Subject, "$KV."+bucket+".")
		if key == "heartbeat" {
			return
		}
		p.mu.Lock()
		p.keys = append(p.keys, key)
		p.mu.Unlock()
	})
	if err != nil {
		b.t.Fatal(err)
	}
	if err := nc.FlushTimeout(patience); err != nil {
		b.t.Fatal(err)
	}
	return p
}

func (b *broker) writer(now func() time.Time) *kv.Writer {
	w := kv.NewWriter(kv.WriterConfig{Conn: b.connect("projector-abcdefgh", access.Projector), Name: "projector-abcdefgh", Now: now})
	run(b.t, w.Run)
	return w
}

func window(name string, used, limit int64) admission.Reading {
	at := time.Now().Add(time.Hour).UnixNano()
	return admission.Reading{Meter: events.Meter(name), Kind: events.Window, Used: used, Limit: limit, HasLimit: true, Falls: []admission.Fall{{At: at, Amount: used}}}
}

func TestViewOverTheBroker(t *testing.T) {
	b := newBroker(t)
	w := b.writer(nil)
	v := kv.NewView(time.Now)
	name, err := access.NewName("gw")
	if err != nil {
		t.Fatal(err)
	}
	nc, err := accesstest.Connect(b.URL(), b.secret.Options(access.Identity{Name: name, Roles: []access.Role{access.Gateway}})...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	run(t, func(ctx context.Context) error { return v.Watch(ctx, nc) }) // before there are buckets
	w.Activate(true)

	c := events.Claim{Meter: "org/a/rpm", Kind: events.Window, Amount: 1, HasLimit: true, Limit: 10}
	refuses := func() bool { _, no := v.Refuses(&c, time.Now()); return no }
	w.Put(window("org/a/rpm", 10, 10), 7, time.Now().UnixNano())
	w.Put(admission.Reading{Meter: "model/m/occupancy", Kind: events.Gauge, Used: 5, Limit: 9, HasLimit: true}, 8, time.Now().UnixNano())
	eventually(t, "refused", refuses)
	eventually(t, "the gauge known", func() bool { e, ok := v.Get("model/m/occupancy", time.Now()); return ok && e.Used == 5 && e.Seq == 8 })
	if !v.Ready() || v.Seq() != 8 {
		t.Errorf("ready is %v at %d", v.Ready(), v.Seq())
	}
	w.Put(window("org/a/rpm", 9, 10), 9, time.Now().UnixNano())
	eventually(t, "no longer refused", func() bool { return !refuses() })
	w.At(20, time.Now().UnixNano())
	eventually(t, "a heartbeat", func() bool { return v.Seq() == 20 })

	// The buckets are lost: the writer makes them again and fills them, the view goes on.
	js, err := jetstream.New(b.connect("admin-abcdefgh", access.System))
	if err != nil {
		t.Fatal(err)
	}
	for _, bucket := range []string{access.BucketOccupancy, access.BucketWindows} {
		if err := js.DeleteKeyValue(t.Context(), bucket); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "put again", func() bool {
		bucket, err := js.KeyValue(t.Context(), access.BucketWindows)
		if err != nil {
			return false
		}
		_, err = bucket.Get(t.Context(), "org/a/rpm")
		return err == nil
	})
	w.Put(window("org/a/rpm", 10, 10), 30, time.Now().UnixNano())
	eventually(t, "refused after that", refuses)

	w.Activate(false)
	w.Activate(true)
	keys := w.Keys(t.Context())
	if len(keys) != 2 {
		t.Errorf("keys: %v", keys)
	}
	w.Forget("org/a/rpm")
	eventually(t, "forgotten", func() bool { _, ok := v.Get("org/a/rpm", time.Now()); return !ok })
}

func TestWriterPutsTheHottestFirstAtABoundedRate(t *testing.T) {
	b := newBroker(t)
	c := &steered{base: time.Now()}
	w := b.writer(c.now)
	got := b.puts(access.BucketWindows)
	w.Activate(true)
	const n = 700 // so that no two are equally hot
	for i := range n {
		w.Put(window(fmt.Sprintf("org/o%03d/rpm", i), int64(i), 1000), 1, time.Now().UnixNano()) // below 80 %: none is urgent
	}
	for _, burst := range []int{200, 400, 600} {
		c.pass(time.Second) // 200 at most are saved up
		eventually(t, fmt.Sprintf("%d puts", burst), func() bool { return len(got.list()) >= burst })
		time.Sleep(20 * time.Millisecond) // several turns of the writer in which no time passes
		keys := got.list()
		if len(keys) != burst {
			t.Fatalf("%d puts, want %d", len(keys), burst)
		}
		if want := fmt.Sprintf("org/o%03d/rpm", n-burst); keys[burst-1] != want {
			t.Errorf("put %d is %s, want %s", burst, keys[burst-1], want)
		}
	}
	c.pass(10 * time.Millisecond)
	eventually(t, "20 more", func() bool { return len(got.list()) >= 620 })
	if s := w.Stats(); s.Known != n || s.Skipped != 0 {
		t.Errorf("%+v", s)
	}
	w.Put(admission.Reading{Meter: "a b/c"}, 1, 1)
	if s := w.Stats(); s.Skipped != 1 {
		t.Errorf("a meter that cannot be a key: %+v", s)
	}
}

func TestWriterPutsAMeterOnceASecondUnlessItIsUrgent(t *testing.T) {
	b := newBroker(t)
	c := &steered{base: time.Now()}
	w := b.writer(c.now)
	got := b.puts(access.BucketWindows)
	w.Activate(true)
	c.pass(time.Second)
	at := time.Now().UnixNano()
	expect := func(what string, n int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%s: %d puts", what, n), func() bool { return len(got.list()) >= n })
		time.Sleep(120 * time.Millisecond) // several turns
		if all := got.list(); len(all) != n {
			t.Fatalf("%s: %d puts, want %d", what, len(all), n)
		}
	}
	w.Put(window("org/a/rpm", 1, 10), 1, at)
	expect("the first", 1)
	w.Put(window("org/a/rpm", 2, 10), 2, at)
	expect("within the second", 1)
	c.pass(time.Second)
	expect("after it", 2)
	w.Put(window("org/a/rpm", 8, 10), 3, at)
	expect("80 %", 3)
	w.Put(window("org/a/rpm", 9, 10), 4, at)
	expect("still above", 3)
	w.Put(window("org/a/rpm", 10, 10), 5, at)
	expect("full", 4)
	waiting := window("org/a/rpm", 10, 10)
	waiting.Waiting = 1
	w.Put(waiting, 6, at)
	expect("a waiter", 5)
	c.pass(time.Second)
	w.Put(window("org/a/rpm", 3, 10), 7, at)
	expect("free again", 6)
	c.pass(5*time.Minute - time.Second)
	expect("unchanged", 6)
	c.pass(time.Second)
	expect("what lasts is put again", 7)
}

func TestLease(t *testing.T) {
	b := newBroker(t)
	c := &steered{base: time.Now()}
	lease := func(name string) (*kv.Lease, *atomic.Int64, *nats.Conn, func() error) {
		nc := b.connect(name, access.Projector)
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		l := kv.NewLease(kv.LeaseConfig{JetStream: js, Bucket: access.BucketLeases, Key: "x.writer", Holder: name, Now: c.now})
		var changes atomic.Int64
		stop := run(t, func(ctx context.Context) error {
			return l.Run(ctx, func(held bool) {
				if held != l.Held() {
					t.Errorf("told %v, and held is %v", held, l.Held())
				}
				changes.Add(1)
			})
		})
		return l, &changes, nc, stop
	}
	one, changes, nc, _ := lease("one-abcdefgh")
	eventually(t, "the first holds it", one.Held)
	two, _, _, stopTwo := lease("two-abcdefgh")
	three, _, _, _ := lease("three-abcdefgh")
	time.Sleep(1200 * time.Millisecond) // the others look, the clock stands still
	if two.Held() || three.Held() || !one.Held() {
		t.Fatal("two hold it")
	}

	nc.Close() // the holder is cut off: by its own clock it has lost the lease, by the others' it has run out
	pass := func() bool { c.pass(50 * time.Millisecond); return two.Held() || three.Held() }
	eventually(t, "another holds it", pass)
	eventually(t, "the first knows", func() bool { return !one.Held() })
	if changes.Load() != 2 {
		t.Errorf("the first was told %d changes, want 2", changes.Load())
	}

	// Given up, by a holder that stops or resigns, it is taken at once.
	if two.Held() {
		if err := stopTwo(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the third holds it", three.Held)
		return
	}
	three.Resign()
	eventually(t, "the second holds it", two.Held)
	if three.Held() {
		t.Error("two hold it")
	}
}
