package store_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/store"
	"github.com/weirhq/weir/gateway/reservation"
	"github.com/weirhq/weir/projections/projector"
)

// gate is a gateway without its HTTP side: a mirror and a book of reservations.
type gate struct {
	name   events.Gateway
	mirror *store.Mirror
	book   *reservation.Book
}

func newGate(t testing.TB, b *broker, s func(*nats.Conn) store.Backend) *gate {
	t.Helper()
	nc, name := b.join()
	log, err := journal.Open(within(t), nc, journal.Config{})
	check(t, err)
	pub, err := log.Publisher(within(t), journal.PublisherConfig{Gateway: events.Gateway(name)})
	check(t, err)
	book := reservation.NewBook(reservation.Config{Gateway: events.Gateway(name), Epoch: 1, Publisher: pub, Now: time.Now, AnswerWithin: patience, MaybeAppended: journal.MaybeAppended})
	_, err = nc.Subscribe(access.VerdictPrefix+name, func(m *nats.Msg) {
		if verdicts, err := events.DecodeVerdicts(m.Data); err == nil {
			book.Verdicts(verdicts)
		}
	})
	check(t, err)
	running(t, func(ctx context.Context) error { _ = pub.Run(ctx); return nil })
	running(t, book.Run)
	return &gate{events.Gateway(name), mirror(t, s(nc)), book}
}

// outcome is what became of one request.
type outcome struct {
	id       events.RequestID
	key      string
	attempt  int64
	admitted bool
	stale    bool // at first
	denied   bool
}

// request does what a gateway does: authenticate, reserve with the fence, and once more on fresh authority when the fence was stale.
func (g *gate) request(ctx context.Context, raw string) (o outcome, err error) {
	o.id = events.RequestID(uuid.Must(uuid.NewV7()).String())
	s := g.mirror.Current()
	k, denial := authority.Authenticate(s, raw, time.Now())
	if denial != "" {
		o.denied = true
		return o, nil
	}
	r := g.book.Begin(o.id, k.Org)
	for {
		o.key = k.ID
		v, err := r.Reserve(ctx, &events.Reserve{Request: o.id, Attempt: o.attempt, Org: k.Org, Key: k.ID, Gateway: g.name, Epoch: 1, MaxMS: events.DefaultMaxMS, Fence: s.Fence(k.Org),
			Claims: []events.Claim{{Meter: events.NewMeter(events.ScopeKey, "concurrency", k.ID), Kind: events.Gauge, Amount: 1, Limit: 1000, HasLimit: true, Basis: events.BasisSlot}}})
		switch {
		case err != nil:
			return o, err
		case v.Admitted:
			o.admitted = true
			r.End(events.Release{Outcome: events.Completed, Dispatched: events.DispatchedYes, Status: 200})
			return o, nil
		case v.Refusal.Reason != events.StaleFence || o.stale:
			return o, nil
		}
		o.stale = true
		s = g.mirror.Fresh(ctx, k.Org, s.Fence(k.Org)+1)
		if k, denial = authority.Authenticate(s, raw, time.Now()); denial != "" {
			o.denied = true
			return o, nil
		}
		o.attempt++
	}
}

// TestRevocationIsStrict revokes one of two keys of an org again and again while two gateways are under load. By the log, not one
// request of the revoked key is admitted after the fence, and the other key goes on.
func TestRevocationIsStrict(t *testing.T) {
	t.Run("kv", func(t *testing.T) {
		b := newBroker(t)
		revocations(t, b, newOperator(t, b), func(nc *nats.Conn) store.Backend { return open(t, nc, false) })
	})
	t.Run("postgres", func(t *testing.T) {
		b, url := newBroker(t), database(t)
		revocations(t, b, newOperatorOn(t, b, openPostgres(t, url)), func(*nats.Conn) store.Backend { return openPostgres(t, url) })
	})
}

func revocations(t *testing.T, b *broker, op *operator, s func(*nats.Conn) store.Backend) {
	name, err := access.NewName("projector")
	check(t, err)
	p, err := projector.New(projector.Config{Log: op.log, Conn: b.connect(access.System), Name: name})
	check(t, err)
	running(t, p.Run)
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if ready, why := p.Ready(); ready {
			break
		} else if time.Now().After(end) {
			t.Fatal("the projector is not ready: ", why)
		}
	}
	gates := []*gate{newGate(t, b, s), newGate(t, b, s)}
	const rounds, clients = 5, 24
	var seen struct{ admitted, stale, denied, goingOn atomic.Int64 }
	for round := range rounds {
		done := op.put(t, &authority.OrgRecord{Org: "acme", Made: true}, key("acme", "bad"), key("acme", "good"))
		for _, g := range gates {
			check(t, g.mirror.Reached(within(t), done.Mark))
		}
		ctx, stop := context.WithCancel(within(t))
		var mu sync.Mutex
		admitted := map[events.RequestID]outcome{}
		var bad, good atomic.Int64
		var all sync.WaitGroup
		for c := range clients {
			all.Go(func() {
				for ctx.Err() == nil {
					raw := []string{"raw-bad", "raw-good"}[c%2]
					o, err := gates[c/2%2].request(ctx, raw)
					var late *reservation.Unavailable
					switch {
					case ctx.Err() != nil:
						return
					case errors.As(err, &late): // the machine is busy: as any client, try again
						continue
					case err != nil:
						t.Error(err)
						return
					}
					if o.stale {
						seen.stale.Add(1)
					}
					if o.denied {
						seen.denied.Add(1)
						time.Sleep(time.Millisecond)
					}
					if !o.admitted {
						continue
					}
					seen.admitted.Add(1)
					if o.key == "bad" {
						bad.Add(1)
					} else {
						good.Add(1)
					}
					mu.Lock()
					admitted[o.id] = o
					mu.Unlock()
				}
			})
		}
		for end := time.Now().Add(patience); bad.Load() < 100; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("only %d requests of the key were admitted before it was revoked", bad.Load())
			}
		}
		revoked, err := op.Change(within(t), func(tx *store.Tx) error {
			tx.Delete(authority.Ref{Org: "acme", Kind: authority.KindKey, ID: "bad"})
			return nil
		})
		check(t, err)
		after := good.Load()
		for end := time.Now().Add(patience); good.Load() < after+200; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the other key does not go on")
			}
		}
		stop()
		all.Wait()
		fence := revoked.Fences["acme"]
		checkLog(t, op.log, fence, admitted)
		seen.goingOn.Add(good.Load() - after)
		t.Logf("round %d: fence at %d; %d and %d admitted", round, fence, bad.Load(), good.Load())
	}
	if seen.stale.Load() == 0 || seen.denied.Load() == 0 {
		t.Errorf("the fence was never met: %d stale, %d denied", seen.stale.Load(), seen.denied.Load())
	}
	t.Logf("%d admitted, %d met a stale fence, %d denied, %d of the other key after the fences", seen.admitted.Load(), seen.stale.Load(), seen.denied.Load(), seen.goingOn.Load())
}

// checkLog finds each admitted reserve in the log: none of the revoked key may stand after the fence.
func checkLog(t *testing.T, log *journal.Log, fence uint64, admitted map[events.RequestID]outcome) {
	t.Helper()
	info, err := log.Info(within(t))
	check(t, err)
	found, before, after := 0, 0, 0
	check(t, log.Read(within(t), info.First, info.Last, func(r events.Record) error {
		d, ok := r.Data.(*events.Reserve)
		if !ok {
			return nil
		}
		o, ok := admitted[d.Request]
		if !ok || o.attempt != d.Attempt {
			return nil
		}
		found++
		switch {
		case d.Key == "bad" && r.Seq > fence:
			t.Errorf("request %s of the revoked key was admitted at %d, after the fence at %d", d.Request, r.Seq, fence)
		case r.Seq > fence:
			after++
		default:
			before++
		}
		return nil
	}))
	if found != len(admitted) || before == 0 || after == 0 {
		t.Errorf("%d of %d admitted requests are in the log, %d before and %d after the fence", found, len(admitted), before, after)
	}
}
