package reservation_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/reservation"
)

// pages is a spool in memory, and a log that nothing reaches, with a clock of its own.
type pages struct {
	mu      sync.Mutex
	now     time.Time
	acked   time.Time
	lapsed  time.Time
	full    error
	spooled []events.Event
	sent    []events.Event
}

func (p *pages) Append(ev events.Event) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.full == nil {
		p.spooled = append(p.spooled, ev)
	}
	return p.full
}

func (p *pages) Submit(ev events.Event, _ func(uint64, error)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = append(p.sent, ev)
	return nil
}

func (p *pages) SubmitBy(ev events.Event, _ time.Time, done func(uint64, error)) error {
	return p.Submit(ev, done)
}

func (p *pages) LastAcked() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.acked
}

func (p *pages) MayHaveLapsed() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lapsed
}

func (p *pages) clock() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

func (p *pages) book() *reservation.Book { return p.bookOf(nil) }

// bookOf is a book whose log is trusted while trusted says so.
func (p *pages) bookOf(trusted func() bool) *reservation.Book {
	return reservation.NewBook(reservation.Config{Gateway: gateway, Epoch: 1, Publisher: p, Spool: p, Now: p.clock, MaybeAppended: func(error) bool { return true },
		AnswerWithin: patience, Trusted: trusted})
}

func ids(all []events.Event) (out []string) {
	for i := range all {
		if all[i].Data.Kind() != events.KindLease {
			out = append(out, all[i].ID)
		}
	}
	return out
}

func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %q, want %q", what, got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: %q, want %q", what, got, want)
		}
	}
}

func TestWhatIsAdmittedWithoutTheLogIsSpooledInOrder(t *testing.T) {
	p := &pages{now: time.Unix(1000, 0)}
	b := p.book()
	r := b.BeginLocal("r", "acme")
	if err := r.Intend(reserve("r", 1)); err != nil {
		t.Fatal(err)
	}
	if !r.Held() || b.Live() != 1 {
		t.Fatal("an attempt with an intent is not held")
	}
	r.TrueUp(events.TrueUp{Final: true, Quality: events.QualityExact})
	r.EndAttempt(events.Release{Outcome: events.Failed, Dispatched: events.DispatchedYes})
	second := reserve("r", 1)
	second.Attempt = 1
	if err := r.Intend(second); err != nil {
		t.Fatal(err)
	}
	r.TrueUp(events.TrueUp{Final: true, Quality: events.QualityExact})
	if !r.End(events.Release{Outcome: events.Completed, Dispatched: events.DispatchedYes}) || r.End(events.Release{}) {
		t.Fatal("a request ends once")
	}
	same(t, "spooled", ids(p.spooled), "r/0", "r/0/true-up/1", "r/0/attempt", "r/1", "r/1/true-up/1", "r/1/release")
	same(t, "published", ids(p.sent))
	if b.Live() != 0 {
		t.Fatal("the book still has it")
	}
}

func TestWithoutAnIntentNothingIsAdmitted(t *testing.T) {
	p := &pages{now: time.Unix(1000, 0), full: errors.New("the disk is full")}
	b := p.book()
	r := b.BeginLocal("r", "acme")
	var why *reservation.Unavailable
	if err := r.Intend(reserve("r", 1)); !errors.As(err, &why) || !errors.Is(err, p.full) {
		t.Fatalf("%v", err)
	}
	if !r.Ended() || b.Live() != 0 {
		t.Fatal("it holds something")
	}
	p.full = nil
	if err := r.Intend(reserve("r", 1)); err != nil {
		t.Fatal(err)
	}
	p.full = errors.New("the disk is full")
	r.End(events.Release{Outcome: events.Completed, Dispatched: events.DispatchedYes})
	same(t, "what the spool does not take waits for the log", ids(p.sent), "r/0/release")
}

// admitted is a request that the log has admitted.
func admitted(t *testing.T, b *reservation.Book, id events.RequestID) *reservation.Reservation {
	t.Helper()
	r := b.Begin(id, "acme")
	done := make(chan error, 1)
	go func() {
		_, err := r.Reserve(t.Context(), reserve(id, 1))
		done <- err
	}()
	for b.Unanswered() == 0 {
		time.Sleep(time.Millisecond)
	}
	b.Verdicts([]events.Verdict{{Request: id, Admitted: true}})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return r
}

// A process that stood still for longer than its lease goes on with a new one. What it held lapsed meanwhile, and others may have been
// admitted in its place.
func TestALeaseThatIsBackDoesNotHoldWhatMayHaveLapsed(t *testing.T) {
	p := &pages{now: time.Unix(1000, 0), acked: time.Unix(1000, 0)}
	b := p.book()
	before := admitted(t, b, "before")
	ended := make(chan string, 1)
	before.EndBy(func() { ended <- "before" })
	p.mu.Lock()
	p.now = p.now.Add(2 * reservation.LeaseTTL)
	p.acked, p.lapsed = p.now, time.Unix(1000, 0)
	p.mu.Unlock()
	after := admitted(t, b, "after")
	after.EndBy(func() { ended <- "after" })
	if before.Held() || !after.Held() {
		t.Errorf("held: before %t, after %t", before.Held(), after.Held())
	}
	ctx, stop := context.WithCancel(t.Context())
	running := make(chan error, 1)
	go func() { running <- b.Run(ctx) }()
	select {
	case who := <-ended:
		if who != "before" {
			t.Errorf("the call of %s was ended", who)
		}
	case <-time.After(patience):
		t.Error("the call was not ended")
	}
	stop()
	<-running
	if n := b.Stats().Lapsed.Load(); n != 1 {
		t.Errorf("%d calls were ended", n)
	}
}

func TestCallsThatMayNotOutliveTheirLeaseEndBeforeIt(t *testing.T) {
	p := &pages{now: time.Unix(1000, 0), acked: time.Unix(1000, 0)}
	b := p.book()
	ended := make(chan string, 3)
	closed, open := admitted(t, b, "closed"), admitted(t, b, "open")
	closed.EndBy(func() { ended <- "closed" })
	alone := b.BeginLocal("alone", "acme")
	if err := alone.Intend(reserve("alone", 1)); err != nil {
		t.Fatal(err)
	}
	alone.EndBy(func() { ended <- "alone" })
	ctx, stop := context.WithCancel(t.Context())
	running := make(chan error, 1)
	go func() { running <- b.Run(ctx) }()
	time.Sleep(600 * time.Millisecond) // two looks within the lease
	if len(ended) > 0 {
		t.Fatal("a call was ended within its lease")
	}
	p.mu.Lock()
	p.now = p.now.Add(reservation.LeaseTTL - 500*time.Millisecond)
	p.mu.Unlock()
	select {
	case who := <-ended:
		if who != "closed" {
			t.Fatalf("%s was ended", who)
		}
	case <-time.After(patience):
		t.Fatal("the call was not ended")
	}
	p.mu.Lock()
	p.now = p.now.Add(time.Second)
	p.mu.Unlock()
	for end := time.Now().Add(patience); b.Stats().OverAfterLapse.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the call that ran on was not counted")
		}
	}
	stop()
	<-running
	if b.Stats().Lapsed.Load() != 1 || b.Stats().OverAfterLapse.Load() != 1 || len(ended) > 0 {
		t.Errorf("%d ended, %d ran on", b.Stats().Lapsed.Load(), b.Stats().OverAfterLapse.Load())
	}
	if open.Held() {
		t.Error("a lease that has ended holds")
	}
}

// A log that is not the right one gets no signs of life; once it is recovered, or the right one is back, it does.
func TestNoLeaseForAnotherLog(t *testing.T) {
	p := &pages{now: time.Unix(1000, 0)}
	right := false
	b := p.bookOf(func() bool { return right })
	ended, stop := context.WithCancel(t.Context())
	stop()
	for want, is := range []bool{false, true} {
		right = is
		if err := b.Run(ended); err != nil {
			t.Fatal(err)
		}
		if len(p.sent) != want {
			t.Errorf("the log is the right one: %t; %d leases", is, len(p.sent))
		}
	}
}

func TestARecoveredLogIsToldWhatIsHeld(t *testing.T) {
	p := &pages{now: time.Unix(1000, 0)}
	b := p.book()
	r := b.BeginLocal("r", "acme")
	first, second := reserve("r", 1), reserve("r", 1)
	first.Claims[1].Life = events.LifeAttempt
	second.Attempt = 1
	for _, d := range []*events.Reserve{first, second} {
		if err := r.Intend(d); err != nil {
			t.Fatal(err)
		}
	}
	p.now = p.now.Add(time.Minute)
	b.Again()
	if len(p.sent) != 3 || p.sent[0].Data.Kind() != events.KindLease {
		t.Fatalf("want a lease and two reserves: %v", p.sent)
	}
	for i, ev := range p.sent[1:] {
		d := ev.Data.(*events.Reserve)
		if d.Mode != events.ModeBoundedLocal || d.At != time.Unix(1000, 0).UnixNano() || d.Attempt != int64(i) || len(d.Claims) != 1+i || ev.ID == p.spooled[i].ID {
			t.Errorf("%s: %+v", ev.ID, d)
		}
	}
	if len(first.Claims) != 2 {
		t.Error("the reserve itself was changed")
	}
}
