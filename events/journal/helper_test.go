package journal_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/test/freeport"
)

// within bounds everything that a test waits for.
const within = 2 * time.Minute

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// broker is a server in this process that can be stopped and started again on the same directory and port.
type broker struct {
	t    testing.TB
	dir  string
	port int
	*server.Server
}

func startBroker(t testing.TB) *broker {
	t.Helper()
	port, err := freeport.Take() // one that is still free after a restart
	if err != nil {
		t.Fatal(err)
	}
	b := &broker{t: t, dir: t.TempDir(), port: port}
	b.start()
	t.Cleanup(b.stop)
	return b
}

func (b *broker) start() {
	b.t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: b.port, NoLog: true, NoSigs: true, JetStream: true, StoreDir: b.dir,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(within) {
		b.t.Fatal("the broker did not start")
	}
	b.Server, b.port = s, s.Addr().(*net.TCPAddr).Port
}

func (b *broker) stop() {
	b.Shutdown()
	b.WaitForShutdown()
}

func (b *broker) restart() {
	b.t.Helper()
	b.stop()
	b.start()
}

// connect gives a connection over TCP, which survives restarts.
func (b *broker) connect(opts ...nats.Option) *nats.Conn {
	b.t.Helper()
	return dial(b.t, fmt.Sprintf("nats://127.0.0.1:%d", b.port), opts...)
}

func dial(t testing.TB, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	opts = append(journal.Options(t.Name()), opts...)
	opts = append(opts, nats.ReconnectWait(20*time.Millisecond), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if nc.IsClosed() {
			return
		}
		closed := make(chan struct{})
		nc.SetClosedHandler(func(*nats.Conn) { close(closed) })
		nc.Close()
		<-closed
	})
	return nc
}

func openLog(t testing.TB, nc *nats.Conn) *journal.Log {
	t.Helper()
	l, err := journal.Open(t.Context(), nc, journal.Config{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// startPublisher runs a publisher until the test ends.
func startPublisher(t testing.TB, l *journal.Log, config journal.PublisherConfig) *journal.Publisher {
	t.Helper()
	p, err := l.Publisher(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	run(t, p)
	return p
}

// run runs a publisher until the test ends.
func run(t testing.TB, p *journal.Publisher) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- p.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ran; err != nil {
			t.Errorf("run the publisher: %v", err)
		}
	})
}

const gateway events.Gateway = "gw-00000001"

func newID() string { return uuid.Must(uuid.NewV7()).String() }

func event(org events.Org, d events.Data, request string) events.Event {
	return events.Event{ID: newID(), Source: string(gateway), Subject: request, Org: org, Data: d}
}

func reserve(gw events.Gateway, org events.Org) events.Event {
	id := newID()
	return event(org, &events.Reserve{
		Request: events.RequestID(id), Org: org, Model: "qwen3", Gateway: gw, Epoch: 1, MaxMS: events.DefaultMaxMS,
		Claims: []events.Claim{
			{Meter: events.NewMeter(events.ScopeOrg, "rpm", string(org)), Kind: events.Window, Amount: 1, HasLimit: true, Limit: 300,
				WindowMS: events.DefaultWindowMS, Basis: events.BasisRequest},
			{Meter: events.NewMeter(events.ScopeModel, "occupancy", "qwen3"), Kind: events.Gauge, Amount: 1200, HasLimit: true,
				Limit: 100_000, Park: true, Life: events.LifeLocal, WindowMS: events.DefaultWindowMS, Basis: events.BasisFootprint},
		},
	}, id)
}

func release(gw events.Gateway, org events.Org, request string) events.Event {
	return event(org, &events.Release{
		Request: events.RequestID(request), Gateway: gw, Outcome: events.Completed, Dispatched: events.DispatchedYes,
		Status: 200, FinishReason: "stop", LatencyMS: 812, TTFTMS: 41,
	}, request)
}

func final(gw events.Gateway, org events.Org, request string) events.Event {
	return event(org, &events.TrueUp{
		Request: events.RequestID(request), Gateway: gw, N: 1, Final: true, Quality: events.QualityExact,
		Usage:   events.Usage{InputTokens: 1000, OutputTokens: 200},
		Charges: []events.Charge{{Basis: events.BasisTotal, Amount: 1200}},
	}, request)
}

func lease(gw events.Gateway) events.Event {
	return event("", &events.Lease{Gateway: gw, Epoch: 1, TTLMS: 10_000}, "")
}

// everything reads the whole log.
func everything(t testing.TB, l *journal.Log) (all []events.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	err := l.Read(ctx, 0, 0, func(r events.Record) error {
		all = append(all, r)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// results collects what done was called with, by event id.
type results struct {
	mu    sync.Mutex
	seqs  map[string]uint64
	errs  map[string]error
	calls map[string]int
}

func newResults() *results {
	return &results{seqs: map[string]uint64{}, errs: map[string]error{}, calls: map[string]int{}}
}

func (r *results) of(id string) func(uint64, error) {
	return func(seq uint64, err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.calls[id]++
		r.seqs[id], r.errs[id] = seq, err
	}
}

// exactlyOnce checks that every event was acknowledged once and stands in the log once, at the sequence that was said.
func (r *results) exactlyOnce(t testing.TB, l *journal.Log, ids []string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	stored := map[string][]uint64{}
	for _, rec := range everything(t, l) {
		if rec.Fault != "" {
			t.Errorf("record %d/%d: %s", rec.Seq, rec.Index, rec.Fault)
		}
		stored[rec.ID] = append(stored[rec.ID], rec.Seq)
	}
	for _, id := range ids {
		if r.calls[id] != 1 || r.errs[id] != nil {
			t.Errorf("event %s: done called %d times, last with %v", id, r.calls[id], r.errs[id])
		}
		if s := stored[id]; len(s) != 1 || s[0] != r.seqs[id] {
			t.Errorf("event %s: acknowledged at %d, stored at %v", id, r.seqs[id], s)
		}
	}
	if len(stored) != len(ids) {
		t.Errorf("%d events stored, %d submitted", len(stored), len(ids))
	}
}

func flush(t testing.TB, p *journal.Publisher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}

func submit(t testing.TB, p *journal.Publisher, r *results, ev events.Event) string {
	t.Helper()
	if err := p.Submit(ev, r.of(ev.ID)); err != nil {
		t.Fatal(err)
	}
	return ev.ID
}

// stored gives a message as the stream holds it.
func stored(t testing.TB, b *broker, seq uint64) *jetstream.RawStreamMsg {
	t.Helper()
	js, err := jetstream.New(b.connect())
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), journal.DefaultStream)
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.GetMsg(t.Context(), seq)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// last gives the last sequence of the log.
func last(t testing.TB, l *journal.Log) uint64 {
	t.Helper()
	info, err := l.Info(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return info.Last
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}

// fresh removes a broker's store, as if its disk had been replaced.
func (b *broker) fresh() {
	b.t.Helper()
	b.stop()
	if err := os.RemoveAll(b.dir); err != nil {
		b.t.Fatal(err)
	}
	b.start()
}

var errEnough = errors.New("enough")
