package journal_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
)

func TestPublisherSendsEverythingOnce(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	p := startPublisher(t, l, journal.PublisherConfig{Gateway: gateway})
	r := newResults()
	var ids []string
	for range 1000 {
		ev := reserve(gateway, "acme")
		ids = append(ids, submit(t, p, r, ev))
		ids = append(ids, submit(t, p, r, release(gateway, "acme", ev.Subject)))
	}
	flush(t, p)
	r.exactlyOnce(t, l, ids)
	if s := p.Stats(); s.Packs == 0 || s.Messages >= s.Events || s.Waiting != 0 || s.InFlight != 0 || s.Retries != 0 {
		t.Errorf("no packs formed, or something is left or was sent twice: %+v", s)
	}
}

func TestAloneAnEventGoesOnItsOwnSubject(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	p := startPublisher(t, l, journal.PublisherConfig{Gateway: gateway})
	want := map[string]string{}
	for _, ev := range []events.Event{reserve(gateway, "acme"), release(gateway, "acme", newID()), final(gateway, "acme", newID()), lease(gateway)} {
		submit(t, p, newResults(), ev)
		flush(t, p)
		org := ev.Org
		if org == "" {
			org = events.Platform
		}
		want[ev.ID] = events.Subject{Org: org, Kind: ev.Data.Kind(), Gateway: gateway}.String()
	}
	for seq := uint64(1); seq <= 4; seq++ {
		m := stored(t, b, seq)
		if id := m.Header.Get("ce-id"); m.Subject != want[id] || m.Header.Get("Nats-Msg-Id") != id {
			t.Errorf("sequence %d: event %q under %q with message id %q; want %q", seq, id, m.Subject, m.Header.Get("Nats-Msg-Id"), want[id])
		}
	}
	if s := p.Stats(); s.Packs != 0 || s.Messages != 4 {
		t.Errorf("%d messages, %d packs; want 4, 0", s.Messages, s.Packs)
	}
}

var packID = regexp.MustCompile(`^` + string(gateway) + `\.[0-9A-Za-z]+\.1$`)

// Two publishers of a gateway, as when another process publishes what it has spooled, do not pass for one: the broker would take the second's pack
// for a copy of the first's.
func TestPacksOfTwoPublishersAreTwo(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	for range 2 {
		p, err := l.Publisher(t.Context(), journal.PublisherConfig{Gateway: gateway})
		if err != nil {
			t.Fatal(err)
		}
		r := newResults()
		submit(t, p, r, reserve(gateway, "acme"))
		submit(t, p, r, reserve(gateway, "acme"))
		run(t, p)
		flush(t, p)
	}
	if all := everything(t, l); len(all) != 4 || last(t, l) != 2 {
		t.Errorf("the log holds %d events in %d messages, want 4 in 2", len(all), last(t, l))
	}
}

func TestPackLeavesInOrderOfUrgency(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	p, err := l.Publisher(t.Context(), journal.PublisherConfig{Gateway: gateway})
	if err != nil {
		t.Fatal(err)
	}
	r := newResults()
	submit(t, p, r, event("", &events.Tick{Gateway: gateway}, ""))
	first := reserve(gateway, "acme")
	submit(t, p, r, first)
	submit(t, p, r, reserve(gateway, "beta"))
	submit(t, p, r, final(gateway, "acme", first.Subject))
	submit(t, p, r, release(gateway, "acme", first.Subject))
	submit(t, p, r, lease(gateway))
	run(t, p)
	flush(t, p)
	var kinds []string
	for _, rec := range everything(t, l) {
		kinds = append(kinds, fmt.Sprintf("%d/%d %s %s", rec.Seq, rec.Index, rec.Kind(), rec.Org))
	}
	want := []string{"1/0 lease _", "1/1 release acme", "1/2 true-up acme", "1/3 reserve acme", "1/4 reserve beta", "1/5 tick _"}
	if !slices.Equal(kinds, want) {
		t.Errorf("the pack holds\n\t%s\nwant\n\t%s", strings.Join(kinds, "\n\t"), strings.Join(want, "\n\t"))
	}
	if m := stored(t, b, 1); m.Subject != "acct._.pack."+string(gateway) || !packID.MatchString(m.Header.Get("Nats-Msg-Id")) {
		t.Errorf("the pack stands under %q with message id %q", m.Subject, m.Header.Get("Nats-Msg-Id"))
	}
}

func TestLostAcknowledgementIsNoSecondCopy(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	way := startRelay(t, b.Addr().String())
	p := startPublisher(t, openLog(t, dial(t, way.url())), journal.PublisherConfig{Gateway: gateway})
	r := newResults()
	way.deaf.Store(true)
	var ids []string
	for range 3 {
		ids = append(ids, submit(t, p, r, reserve(gateway, "acme")))
	}
	eventually(t, "the log holds what was sent", func() bool { return last(t, l) >= 1 })
	way.heal()
	flush(t, p)
	r.exactlyOnce(t, l, ids)
	if s := p.Stats(); s.Duplicate == 0 || s.Retries == 0 {
		t.Errorf("nothing was sent again: %+v", s)
	}
}

func TestBrokerRestartsWhilePublishing(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	p := startPublisher(t, l, journal.PublisherConfig{Gateway: gateway})
	r := newResults()
	var mu sync.Mutex
	var ids []string
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				ev := reserve(gateway, "acme")
				if err := p.Submit(ev, r.of(ev.ID)); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				ids = append(ids, ev.ID)
				mu.Unlock()
				time.Sleep(time.Millisecond)
			}
		})
	}
	for range 3 {
		before := p.Stats().Events
		eventually(t, "events are acknowledged", func() bool { return p.Stats().Events > before+50 })
		b.restart()
	}
	before := p.Stats().Events
	eventually(t, "events are acknowledged again", func() bool { return p.Stats().Events > before+50 })
	stop()
	wg.Wait()
	flush(t, p)
	r.exactlyOnce(t, l, ids)
	if p.Stats().Retries == 0 {
		t.Error("nothing was sent again: the restarts met no message in flight")
	}
}

func TestTwoGatewaysAtOnce(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	r := newResults()
	var mu sync.Mutex
	var ids []string
	var wg sync.WaitGroup
	for _, gw := range []events.Gateway{"gw-00000001", "gw-00000002"} {
		p := startPublisher(t, openLog(t, b.connect()), journal.PublisherConfig{Gateway: gw})
		for range 4 {
			wg.Go(func() {
				for range 250 {
					ev := reserve(gw, "acme")
					if err := p.Submit(ev, r.of(ev.ID)); err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					ids = append(ids, ev.ID)
					mu.Unlock()
				}
				flush(t, p)
			})
		}
	}
	wg.Wait()
	r.exactlyOnce(t, l, ids)
	for _, rec := range everything(t, l) {
		if d := rec.Data.(*events.Reserve); d.Gateway != rec.Gateway {
			t.Fatalf("event of %s under the subject of %s", d.Gateway, rec.Gateway)
		}
	}
}

func TestOutboxIsBounded(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	p, err := l.Publisher(t.Context(), journal.PublisherConfig{Gateway: gateway})
	if err != nil {
		t.Fatal(err)
	}
	var acknowledged atomic.Int64
	done := func(_ uint64, err error) {
		if err == nil {
			acknowledged.Add(1)
		}
	}
	for range journal.MaxOutbox {
		if err := p.Submit(event("", &events.Tick{Gateway: gateway}, ""), done); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Submit(reserve(gateway, "acme"), done); !errors.Is(err, journal.ErrFull) {
		t.Errorf("a reserve beyond the bound: %v, want ErrFull", err)
	}
	growth := final(gateway, "acme", newID())
	growth.Data.(*events.TrueUp).Final = false
	if err := p.Submit(growth, done); !errors.Is(err, journal.ErrFull) {
		t.Errorf("a growth beyond the bound: %v, want ErrFull", err)
	}
	for _, ev := range []events.Event{release(gateway, "acme", newID()), final(gateway, "acme", newID()), lease(gateway)} {
		if err := p.Submit(ev, done); err != nil {
			t.Errorf("a %s beyond the bound: %v", ev.Data.Kind(), err)
		}
	}
	run(t, p)
	flush(t, p)
	if n := acknowledged.Load(); n != journal.MaxOutbox+3 {
		t.Errorf("%d events acknowledged, want %d", n, journal.MaxOutbox+3)
	}
	if err := p.Submit(reserve(gateway, "acme"), done); err != nil {
		t.Errorf("a reserve after the outbox is empty: %v", err)
	}
	flush(t, p)
}

func TestDeadlineOfWhatNeverLeft(t *testing.T) {
	b := startBroker(t)
	nc := b.connect()
	l := openLog(t, nc)
	p := startPublisher(t, l, journal.PublisherConfig{Gateway: gateway})
	b.stop()
	eventually(t, "the connection is gone", func() bool { return !nc.IsConnected() })
	failed := make(chan error, 1)
	if err := p.SubmitBy(reserve(gateway, "acme"), time.Now().Add(50*time.Millisecond), func(_ uint64, err error) { failed <- err }); err != nil {
		t.Fatal(err)
	}
	kept := release(gateway, "acme", newID())
	if err := p.SubmitBy(kept, time.Now().Add(50*time.Millisecond), nil); err != nil {
		t.Fatal(err)
	}
	err := <-failed
	if !errors.Is(err, journal.ErrDeadline) || journal.MaybeAppended(err) || !journal.Unreachable(err) {
		t.Errorf("reserve: %v, maybe appended %t; want ErrDeadline, false", err, journal.MaybeAppended(err))
	}
	b.start()
	flush(t, p)
	if all := everything(t, l); len(all) != 1 || all[0].ID != kept.ID {
		t.Errorf("the log holds %d events, want the release alone", len(all))
	}
}

// A pack that could not leave before the deadline of a reserve in it leaves without that reserve: nobody would release it.
func TestDeadlineOfWhatNeverLeftWithOthers(t *testing.T) {
	b := startBroker(t)
	nc := b.connect()
	l := openLog(t, nc)
	p, err := l.Publisher(t.Context(), journal.PublisherConfig{Gateway: gateway})
	if err != nil {
		t.Fatal(err)
	}
	b.stop()
	eventually(t, "the connection is gone", func() bool { return !nc.IsConnected() })
	kept := release(gateway, "acme", newID())
	if err := p.SubmitBy(kept, time.Time{}, nil); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	if err := p.SubmitBy(reserve(gateway, "acme"), time.Now().Add(500*time.Millisecond), func(_ uint64, err error) { failed <- err }); err != nil {
		t.Fatal(err)
	}
	run(t, p)
	if err := <-failed; !errors.Is(err, journal.ErrDeadline) || journal.MaybeAppended(err) {
		t.Errorf("reserve: %v, maybe appended %t; want ErrDeadline, false", err, journal.MaybeAppended(err))
	}
	b.start()
	flush(t, p)
	if all := everything(t, l); len(all) != 1 || all[0].ID != kept.ID {
		t.Errorf("the log holds %d events, want the release alone", len(all))
	}
}

func TestDeadlineOfWhatMayHaveArrived(t *testing.T) {
	b := startBroker(t)
	way := startRelay(t, b.Addr().String())
	p := startPublisher(t, openLog(t, dial(t, way.url())), journal.PublisherConfig{Gateway: gateway})
	way.deaf.Store(true)
	failed := make(chan error, 1)
	if err := p.SubmitBy(reserve(gateway, "acme"), time.Now().Add(50*time.Millisecond), func(_ uint64, err error) { failed <- err }); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; !errors.Is(err, journal.ErrDeadline) || !journal.MaybeAppended(err) {
		t.Errorf("reserve: %v, maybe appended %t; want ErrDeadline, true", err, journal.MaybeAppended(err))
	}
	if s := p.Stats(); s.InFlight != 0 || s.Expired != 1 {
		t.Errorf("a message that nobody waits for is still in flight: %+v", s)
	}
	way.heal()
}

// clock is a time that a test moves.
type clock struct{ skew atomic.Int64 }

func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.skew.Load())) }

func (c *clock) pass(d time.Duration) { c.skew.Add(int64(d)) }

func TestWhatIsOldIsLookedForBeforeItIsSentAgain(t *testing.T) {
	for _, arrived := range []bool{true, false} {
		t.Run(fmt.Sprintf("arrived=%t", arrived), func(t *testing.T) {
			b := startBroker(t)
			l := openLog(t, b.connect())
			way := startRelay(t, b.Addr().String())
			var time clock
			p := startPublisher(t, openLog(t, dial(t, way.url())), journal.PublisherConfig{Gateway: gateway, Now: time.now, Find: l.LookFor})
			r := newResults()
			before := submit(t, p, r, reserve(gateway, "acme"))
			flush(t, p)
			way.deaf.Store(true)
			way.mute.Store(!arrived)
			ids := []string{before, submit(t, p, r, final(gateway, "acme", newID()))}
			eventually(t, "it has left", func() bool { return p.Stats().InFlight == 1 && (!arrived || last(t, l) == 2) })
			time.pass(journal.RetryFor)
			eventually(t, "it is looked for", func() bool { return p.Stats().Searches == 1 })
			if arrived {
				flush(t, p) // no acknowledgement can get through
				if n := p.Stats().Duplicate; n != 0 {
					t.Errorf("%d duplicates: it was sent again", n)
				}
			}
			way.heal()
			flush(t, p)
			r.exactlyOnce(t, l, ids)
			if n := p.Stats().Searches; n != 1 {
				t.Errorf("looked for %d times, want once", n)
			}
		})
	}
}

func TestFullStreamRefusesReservesAndKeepsReleases(t *testing.T) {
	b := startBroker(t)
	nc := b.connect()
	l, err := journal.Open(t.Context(), nc, journal.Config{Create: true, MaxBytes: 16 << 10})
	if err != nil {
		t.Fatal(err)
	}
	p := startPublisher(t, l, journal.PublisherConfig{Gateway: gateway})
	var full error
	for full == nil {
		outcome := make(chan error, 1)
		if full = p.Submit(reserve(gateway, "acme"), func(_ uint64, err error) { outcome <- err }); full == nil {
			full = <-outcome
		}
	}
	if !journal.Full(full) || journal.MaybeAppended(full) {
		t.Fatalf("reserve: %v; full %t, maybe appended %t; want true, false", full, journal.Full(full), journal.MaybeAppended(full))
	}
	if err := p.Submit(reserve(gateway, "acme"), nil); !journal.Full(err) {
		t.Errorf("the next reserve: %v, want it to be refused at once", err)
	}
	r := newResults()
	ids := []string{submit(t, p, r, release(gateway, "acme", newID())), submit(t, p, r, final(gateway, "acme", newID()))}
	if !p.Stats().Full {
		t.Error("the statistics do not say that the stream is full")
	}
	if _, err := journal.Open(t.Context(), nc, journal.Config{Create: true, MaxBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	flush(t, p)
	n := 0
	for _, rec := range everything(t, l) {
		if slices.Contains(ids, rec.ID) {
			n++
		}
	}
	if n != 2 || r.errs[ids[0]] != nil || r.errs[ids[1]] != nil {
		t.Errorf("%d of 2 events that may not be lost are in the log; errors %v", n, r.errs)
	}
}

func TestLastAckedIsWhenItWasSent(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	at := time.Unix(1_800_000_000, 0)
	p := startPublisher(t, l, journal.PublisherConfig{Gateway: gateway, Now: func() time.Time { return at }})
	submit(t, p, newResults(), release(gateway, "acme", newID()))
	flush(t, p)
	if got := p.LastAcked(); !got.IsZero() {
		t.Errorf("after a release alone: %v, want zero", got)
	}
	submit(t, p, newResults(), lease(gateway))
	flush(t, p)
	if got := p.LastAcked(); !got.Equal(at) {
		t.Errorf("after a lease: %v, want %v", got, at)
	}
}

func TestWhatMayHaveLapsed(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	begin := time.Unix(1_800_000_000, 0)
	var at atomic.Int64
	at.Store(begin.UnixNano())
	p := startPublisher(t, l, journal.PublisherConfig{Gateway: gateway, Now: func() time.Time { return time.Unix(0, at.Load()) }})
	for _, step := range []struct {
		after time.Duration // the beginning
		want  time.Time
	}{
		{0, time.Time{}},
		{10 * time.Second, time.Time{}},
		{20*time.Second + time.Millisecond, begin.Add(10 * time.Second)},
		{22 * time.Second, begin.Add(10 * time.Second)},
	} {
		at.Store(begin.Add(step.after).UnixNano())
		submit(t, p, newResults(), lease(gateway))
		flush(t, p)
		if got := p.MayHaveLapsed(); !got.Equal(step.want) {
			t.Errorf("a lease after %s: %v, want %v", step.after, got, step.want)
		}
	}
}

func TestEventThatNoMessageHoldsHarmsNoOther(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	p, err := l.Publisher(t.Context(), journal.PublisherConfig{Gateway: gateway})
	if err != nil {
		t.Fatal(err)
	}
	r := newResults()
	refused := func(size int) events.Event {
		return event("acme", &events.Refused{Org: "acme", Gate: "B1", Origin: "gateway_admission", Code: "x",
			Message: strings.Repeat("m", size)}, newID())
	}
	tooLarge := submit(t, p, r, refused(2<<20))
	var ids []string
	for range 20 {
		ids = append(ids, submit(t, p, r, refused(100<<10)))
		ids = append(ids, submit(t, p, r, reserve(gateway, "acme")))
	}
	run(t, p)
	flush(t, p)
	if r.calls[tooLarge] != 1 || r.errs[tooLarge] == nil || journal.MaybeAppended(r.errs[tooLarge]) {
		t.Errorf("too large: done called %d times with %v", r.calls[tooLarge], r.errs[tooLarge])
	}
	r.exactlyOnce(t, l, ids)
}

func TestSubmitRefusesWhatCannotBeFolded(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	p := startPublisher(t, l, journal.PublisherConfig{Gateway: gateway})
	unnamed := reserve(gateway, "acme")
	unnamed.ID = ""
	spaced := reserve(gateway, "acme")
	spaced.Subject = "two words"
	orgless := release(gateway, "", newID())
	tests := []struct {
		event events.Event
		want  string
	}{
		{reserve("gw-other", "acme"), `gateway "gw-other"`},
		{event("acme", &events.Fence{Org: "acme", Version: 2}, ""), "kind fence from a gateway"},
		{unnamed, `id ""`},
		{spaced, `subject "two words"`},
		{orgless, `org ""`},
		{events.Event{ID: "x"}, "no data"},
	}
	for _, tt := range tests {
		err := p.Submit(tt.event, func(uint64, error) { t.Errorf("%s: done was called", tt.want) })
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("submit: %v, want an error with %s", err, tt.want)
		}
	}
	flush(t, p)
}

func TestStoppedPublisherEndsWhatItHolds(t *testing.T) {
	b := startBroker(t)
	way := startRelay(t, b.Addr().String())
	l := openLog(t, dial(t, way.url()))
	p, err := l.Publisher(t.Context(), journal.PublisherConfig{Gateway: gateway})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- p.Run(ctx) }()
	way.deaf.Store(true)
	outcome := make(chan error, 1)
	if err := p.Submit(release(gateway, "acme", newID()), func(_ uint64, err error) { outcome <- err }); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has left", func() bool { return p.Stats().InFlight == 1 })
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := p.Flush(short); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 events") {
		t.Errorf("flush: %v, want that 1 event is not acknowledged", err)
	}
	stop()
	if err := <-ran; err != nil {
		t.Errorf("run: %v", err)
	}
	if err := <-outcome; !errors.Is(err, journal.ErrClosed) || !journal.MaybeAppended(err) {
		t.Errorf("the release ended with %v, maybe appended %t; want ErrClosed, true", err, journal.MaybeAppended(err))
	}
	if err := p.Submit(release(gateway, "acme", newID()), nil); !errors.Is(err, journal.ErrClosed) {
		t.Errorf("submit after the end: %v, want ErrClosed", err)
	}
	way.heal()
}

func TestPublisherRefusesAConnectionThatKeepsMessages(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect(nats.ReconnectBufSize(1<<20)))
	if _, err := l.Publisher(t.Context(), journal.PublisherConfig{Gateway: gateway}); err == nil || !strings.Contains(err.Error(), "journal.Options") {
		t.Errorf("publisher: %v, want an error that names journal.Options", err)
	}
}
