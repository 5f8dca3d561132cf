package reservation_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/embedded"
	"github.com/weirhq/weir/gateway/reservation"
	"github.com/weirhq/weir/projections/projector"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const gateway events.Gateway = "gw-00000001"

// patience is how long a test waits for what is bound to happen.
const patience = time.Minute

// desk is a book on a real log, with or without a projector that decides.
type desk struct {
	t    *testing.T
	log  *journal.Log
	pub  *journal.Publisher
	book *reservation.Book
}

func newDesk(t *testing.T, decides bool) *desk {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	broker, err := embedded.Start(ctx, embedded.Config{DataDir: t.TempDir()})
	check(err)
	nc, err := broker.Connect(access.Identity{Name: string(gateway), Roles: []access.Role{access.System}}, journal.Options("test")...)
	check(err)
	t.Cleanup(func() { stop(); running.Wait(); nc.Close(); broker.Shutdown() })
	d := &desk{t: t}
	d.log, err = journal.Open(ctx, nc, journal.Config{Create: true})
	check(err)
	d.pub, err = d.log.Publisher(ctx, journal.PublisherConfig{Gateway: gateway})
	check(err)
	running.Go(func() { _ = d.pub.Run(ctx) })
	config := reservation.Config{Gateway: gateway, Epoch: 1, Publisher: d.pub, Now: time.Now, MaybeAppended: journal.MaybeAppended}
	if decides {
		config.AnswerWithin = patience // there will be an answer, however late
		at := time.Now()
		config.Now = func() time.Time { return at } // what is too soon is not for the machine to say
	}
	d.book = reservation.NewBook(config)
	if decides {
		p, err := projector.New(projector.Config{Log: d.log, Conn: nc, Name: string(gateway)})
		check(err)
		p.AnswerLocal(gateway, d.book.Verdicts)
		running.Go(func() { _ = p.Run(ctx) })
		for ok := false; !ok; time.Sleep(time.Millisecond) {
			ok, _ = p.Answering()
		}
	}
	return d
}

func reserve(id events.RequestID, limit int64) *events.Reserve {
	return &events.Reserve{Request: id, Org: "acme", Gateway: gateway, Epoch: 1, MaxMS: events.DefaultMaxMS, Claims: []events.Claim{
		{Meter: "org/acme/concurrency", Kind: events.Gauge, Amount: 1, Limit: limit, HasLimit: true, Basis: events.BasisSlot},
		{Meter: "model/m/occupancy", Kind: events.Gauge, Life: events.LifeLocal, Amount: 100, Limit: 1000, HasLimit: true, Basis: events.BasisFootprint},
	}}
}

// facts reads what the log says of a request, in words.
func (d *desk) facts(id events.RequestID) (facts []string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := d.pub.Flush(ctx); err != nil {
		d.t.Fatal(err)
	}
	err := d.log.Read(ctx, 0, 0, func(r events.Record) error {
		switch f := r.Data.(type) {
		case *events.Reserve:
			if f.Request == id {
				facts = append(facts, fmt.Sprintf("reserve %d", f.Attempt))
			}
		case *events.TrueUp:
			if f.Request == id {
				facts = append(facts, fmt.Sprintf("true-up %d n=%d final=%t %v", f.Attempt, f.N, f.Final, f.Charges))
			}
		case *events.Release:
			if f.Request == id {
				facts = append(facts, fmt.Sprintf("release %d of %s, %s, dispatched %s", f.Attempt, f.Of, f.Outcome, f.Dispatched))
			}
		}
		return nil
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return facts
}

func (d *desk) want(id events.RequestID, want ...string) {
	d.t.Helper()
	got := d.facts(id)
	slices.Sort(got) // what leaves together is packed releases first
	slices.Sort(want)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		d.t.Errorf("the log says of %s\n got %q\nwant %q", id, got, want)
	}
}

func TestALife(t *testing.T) {
	d := newDesk(t, true)
	r := d.book.Begin("r1", "acme")
	v, err := r.Reserve(t.Context(), reserve("r1", 1))
	if err != nil || !v.Admitted {
		t.Fatalf("not admitted: %+v, %v", v, err)
	}
	if !r.Held() {
		t.Error("a reservation that was just admitted is not held")
	}
	other := d.book.Begin("r2", "acme")
	if v, err := other.Reserve(t.Context(), reserve("r2", 1)); err != nil || v.Admitted || v.Refusal.Meter != "org/acme/concurrency" {
		t.Fatalf("the second was not refused for its place: %+v, %v", v, err)
	}
	r.Grow(90) // less than was reserved: nothing to say
	r.Correct(events.Charge{Basis: events.BasisFootprint, Amount: 80})
	r.Grow(120) // too soon
	r.TrueUp(events.TrueUp{Final: true, Quality: events.QualityExact, Charges: []events.Charge{{Basis: events.BasisFootprint, Amount: 110}}})
	r.TrueUp(events.TrueUp{Final: true})
	r.Grow(500)
	if !r.End(events.Release{Outcome: events.Completed, Dispatched: events.DispatchedYes}) {
		t.Error("the first end was not the one")
	}
	if r.End(events.Release{Outcome: events.Failed}) {
		t.Error("it ended twice")
	}
	r.Leave()
	if n := d.book.Live(); n != 0 {
		t.Errorf("%d requests are left in the book", n)
	}
	d.want("r1", "reserve 0", "true-up 0 n=1 final=false [{footprint 80}]", "release 0 of request, completed, dispatched yes", "true-up 0 n=2 final=true [{footprint 110}]")
	d.want("r2", "reserve 0")
}

// A reserve without an answer is never dispatched; what may be in the log of it is released.
func TestNoVerdict(t *testing.T) {
	d := newDesk(t, false)
	r := d.book.Begin("r1", "acme")
	_, err := r.Reserve(t.Context(), reserve("r1", 1))
	var why *reservation.Unavailable
	if !errors.As(err, &why) || why.Overloaded {
		t.Fatalf("got %v, want that no verdict could be had", err)
	}
	if !r.Ended() || d.book.Live() != 0 || d.book.Unanswered() != 0 {
		t.Error("it still holds something")
	}
	d.book.Verdicts([]events.Verdict{{Request: "r1", Admitted: true}}) // too late: nobody waits
	d.want("r1", "reserve 0", "release 0 of request, abandoned, dispatched no")
}

func TestTheClientLeavesBeforeTheVerdict(t *testing.T) {
	d := newDesk(t, false)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	r := d.book.Begin("r1", "acme")
	patient := reserve("r1", 1)
	patient.ParkMS = events.MaxParkMS
	if _, err := r.Reserve(ctx, patient); !reservation.Gone(err) {
		t.Fatalf("got %v, want that the client is gone", err)
	}
	d.want("r1", "reserve 0", "release 0 of request, cancelled, dispatched no")
}

func TestAFallback(t *testing.T) {
	d := newDesk(t, true)
	r := d.book.Begin("r1", "acme")
	if v, err := r.Reserve(t.Context(), reserve("r1", 5)); err != nil || !v.Admitted {
		t.Fatal(v, err)
	}
	r.Owe(events.TrueUp{Final: true})
	r.EndAttempt(events.Release{Outcome: events.Failed, Dispatched: events.DispatchedYes})
	r.Leave()
	full := &events.Reserve{Request: "r1", Attempt: 1, Org: "acme", Gateway: gateway, Epoch: 1, MaxMS: events.DefaultMaxMS, Claims: []events.Claim{
		{Meter: "pool/p/concurrency", Kind: events.Gauge, Amount: 2, Limit: 1, HasLimit: true, Basis: events.BasisSlot, Life: events.LifeAttempt}}}
	if v, err := r.Reserve(t.Context(), full); err != nil || v.Admitted {
		t.Fatal(v, err)
	}
	owed := r.Owed(events.TrueUp{})
	if !owed.Final || r.Owed(events.TrueUp{}).Final {
		t.Error("a final is owed until it is taken")
	}
	r.Owe(*owed)
	next := &events.Reserve{Request: "r1", Attempt: 2, Org: "acme", Gateway: gateway, Epoch: 1, MaxMS: events.DefaultMaxMS, Claims: []events.Claim{}}
	if v, err := r.Reserve(t.Context(), next); err != nil || !v.Admitted {
		t.Fatal(v, err)
	}
	r.TrueUp(events.TrueUp{Final: true})
	r.End(events.Release{Outcome: events.Completed, Dispatched: events.DispatchedYes})
	d.want("r1", "reserve 0", "reserve 1", "reserve 2", "release 0 of attempt, failed, dispatched yes", "release 0 of local, , dispatched unknown", "true-up 0 n=1 final=true []",
		"release 2 of request, completed, dispatched yes", "true-up 2 n=1 final=true []")
}

// The waiters may park as long as any request may, so that none gives up before the last of them waits.
func TestManyUnanswered(t *testing.T) {
	d := newDesk(t, false)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	patient := func(id events.RequestID) *events.Reserve {
		r := reserve(id, 1)
		r.ParkMS = events.MaxParkMS
		return r
	}
	var waiting sync.WaitGroup
	var overloaded atomic.Int64
	for i := range 2 * reservation.MaxUnanswered {
		id := events.RequestID(fmt.Sprint("w", i))
		waiting.Go(func() {
			_, err := d.book.Begin(id, "acme").Reserve(ctx, patient(id))
			var why *reservation.Unavailable
			if errors.As(err, &why) && why.Overloaded && overloaded.Add(1) == 1 {
				cancel() // the bound was met: the others need not wait any longer
			}
		})
	}
	waiting.Wait()
	if overloaded.Load() == 0 {
		t.Errorf("%d reserves without an answer were never more than %d at once", 2*reservation.MaxUnanswered, reservation.MaxUnanswered)
	}
	if n := d.book.Unanswered(); n != 0 {
		t.Errorf("%d still wait", n)
	}
}

func TestReportsOfRefusalsAreCounted(t *testing.T) {
	d := newDesk(t, false)
	r := reservation.NewReporter(gateway, d.pub, time.Now)
	const refusals = 100
	for i := range refusals {
		r.Refused(&events.Refused{Request: events.RequestID(fmt.Sprint("r", i)), Org: "acme", Key: "k1", LimitID: "k1", Gate: "limits", Status: 429, Code: "rate_limit_exceeded"})
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := r.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if err := d.pub.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	records, total := 0, int64(0)
	err := d.log.Read(t.Context(), 0, 0, func(rec events.Record) error {
		if f, ok := rec.Data.(*events.Refused); ok {
			records++
			total += max(f.Count, 1)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if total != refusals || records != 6 || r.Lost() != 0 {
		t.Errorf("%d records stand for %d refusals, want 6 for %d (%d lost)", records, total, refusals, r.Lost())
	}
}
