package journal_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
)

// follow reads from a tap until it has n records.
func follow(t testing.TB, tap *journal.Tap, n int) (all []events.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	for len(all) < n {
		records, err := tap.Next(ctx)
		if err != nil {
			t.Fatalf("after %d of %d records: %v", len(all), n, err)
		}
		if len(records) == 0 {
			t.Fatal("Next gave no record and no error")
		}
		all = append(all, records...)
	}
	return all
}

// contiguous checks that records are whole messages from sequence from on, none left out or repeated.
func contiguous(t testing.TB, all []events.Record, from uint64) {
	t.Helper()
	want, index := from, 0
	for i, rec := range all {
		if i > 0 && rec.Seq == all[i-1].Seq {
			index++
		} else if i > 0 {
			want, index = want+1, 0
		}
		if rec.Seq != want || rec.Index != index {
			t.Fatalf("record %d is %d/%d, want %d/%d", i, rec.Seq, rec.Index, want, index)
		}
		if rec.Fault != "" {
			t.Fatalf("record %d/%d: %s", rec.Seq, rec.Index, rec.Fault)
		}
	}
}

// write publishes n events in packs and singles, and waits for them.
func write(t testing.TB, p *journal.Publisher, n int) {
	t.Helper()
	r := newResults()
	for i := range n {
		submit(t, p, r, reserve(gateway, "acme"))
		if i%16 == 0 {
			flush(t, p)
		}
	}
	flush(t, p)
}

func TestTapGivesWhatTheLogHolds(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	p := startPublisher(t, l, journal.PublisherConfig{Gateway: gateway})
	write(t, p, 500)
	tap := l.Tap(t.Context(), journal.TapConfig{})
	defer tap.Close()
	all := follow(t, tap, 500)
	write(t, p, 200)
	all = append(all, follow(t, tap, 200)...)
	contiguous(t, all, 1)
	held := everything(t, l)
	if len(held) != 700 || len(all) != 700 {
		t.Fatalf("the log holds %d records, the tap gave %d; want 700", len(held), len(all))
	}
	for i := range held {
		if held[i].ID != all[i].ID || held[i].At != all[i].At || held[i].Seq != all[i].Seq {
			t.Fatalf("record %d: the log holds %s at %d, the tap gave %s at %d", i, held[i].ID, held[i].At, all[i].ID, all[i].At)
		}
	}
	if tap.Position() != last(t, l) || tap.Created().IsZero() {
		t.Errorf("position %d, want %d; stream made at %s", tap.Position(), last(t, l), tap.Created())
	}
}

func TestChainIsTheSameForEveryReader(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	p := startPublisher(t, l, journal.PublisherConfig{Gateway: gateway})
	write(t, p, 100)
	one := l.Tap(t.Context(), journal.TapConfig{Name: "one"})
	defer one.Close()
	follow(t, one, 100)
	at, chain := one.Position(), one.Chain()
	write(t, p, 100)
	follow(t, one, 100)

	whole := l.Tap(t.Context(), journal.TapConfig{Name: "whole"})
	defer whole.Close()
	follow(t, whole, 200)
	resumed := openLog(t, b.connect()).Tap(t.Context(), journal.TapConfig{Name: "resumed", From: at + 1, Chain: chain, Created: one.Created()})
	defer resumed.Close()
	contiguous(t, follow(t, resumed, 100), at+1)

	// The chain as its definition says, from what the stream holds.
	var want journal.Chain
	for seq := uint64(1); seq <= last(t, l); seq++ {
		m := stored(t, b, seq)
		h := sha256.New()
		h.Write(want[:])
		h.Write(binary.BigEndian.AppendUint64(nil, seq))
		h.Write([]byte(m.Subject + "\x00" + m.Header.Get("Nats-Msg-Id") + "\x00"))
		h.Write(m.Data)
		h.Sum(want[:0])
	}
	for name, tap := range map[string]*journal.Tap{"one": one, "whole": whole, "resumed": resumed} {
		if tap.Chain() != want || tap.Position() != last(t, l) {
			t.Errorf("tap %s: chain %s at %d, want %s at %d", name, tap.Chain(), tap.Position(), want, last(t, l))
		}
	}
}

// consumers deletes every consumer of the log, and gives how many there were.
func deleteConsumers(t testing.TB, b *broker) (n int) {
	t.Helper()
	js, err := jetstream.New(b.connect())
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), journal.DefaultStream)
	if err != nil {
		t.Fatal(err)
	}
	names := s.ConsumerNames(t.Context())
	for name := range names.Name() {
		if err := s.DeleteConsumer(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		n++
	}
	if err := names.Err(); err != nil && !errors.Is(err, jetstream.ErrEndOfData) {
		t.Fatal(err)
	}
	return n
}

func TestTapSurvivesTheLossOfItsConsumer(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	p := startPublisher(t, l, journal.PublisherConfig{Gateway: gateway})
	tap := l.Tap(t.Context(), journal.TapConfig{})
	defer tap.Close()
	write(t, p, 50)
	all := follow(t, tap, 50)
	for range 3 {
		eventually(t, "there is a consumer", func() bool {
			if deleteConsumers(t, b) > 0 {
				return true
			}
			write(t, p, 1) // only a reader that reads asks for one
			all = append(all, follow(t, tap, 1)...)
			return false
		})
		write(t, p, 50)
		all = append(all, follow(t, tap, 50)...)
	}
	contiguous(t, all, 1)
}

func TestTapSurvivesRestartsOfTheBroker(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	p := startPublisher(t, l, journal.PublisherConfig{Gateway: gateway})
	const n = 3000
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for range n {
			if err := p.Submit(reserve(gateway, "acme"), nil); err != nil {
				t.Error(err)
			}
			time.Sleep(200 * time.Microsecond)
		}
	})
	tap := l.Tap(t.Context(), journal.TapConfig{})
	defer tap.Close()
	all := follow(t, tap, 500)
	b.restart()
	all = append(all, follow(t, tap, 500)...)
	b.restart()
	all = append(all, follow(t, tap, n-len(all))...)
	contiguous(t, all, 1)
	if len(all) != n {
		t.Errorf("%d records, want %d", len(all), n)
	}
}

func TestTapReadsWhatAConnectionLost(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	p := startPublisher(t, l, journal.PublisherConfig{Gateway: gateway})
	way := startRelay(t, b.Addr().String())
	tap := openLog(t, dial(t, way.url())).Tap(t.Context(), journal.TapConfig{})
	defer tap.Close()
	write(t, p, 10)
	all := follow(t, tap, 10)
	for _, lost := range []int{1, 100, 2000} { // the last more than what is filled in before a new consumer is asked for
		way.deaf.Store(true)
		write(t, p, lost)
		way.heal()
		all = append(all, follow(t, tap, lost)...)
	}
	write(t, p, 10)
	all = append(all, follow(t, tap, 10)...)
	contiguous(t, all, 1)
}

// TestTapFillsGaps loses whole messages of a connection that lives on: the next message, or the consumer's heartbeat, shows the gap.
func TestTapFillsGaps(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	p := startPublisher(t, l, journal.PublisherConfig{Gateway: gateway})
	way := startRelay(t, b.Addr().String())
	nc := dial(t, way.url())
	tap := openLog(t, nc).Tap(t.Context(), journal.TapConfig{})
	defer tap.Close()
	write(t, p, 10)
	all := follow(t, tap, 10)
	for _, then := range []int{1, 0} {
		write(t, p, 1)
		all = append(all, follow(t, tap, 1)...)
		way.deaf.Store(true)
		write(t, p, 3)
		time.Sleep(50 * time.Millisecond) // they are delivered, and lost
		way.deaf.Store(false)
		write(t, p, then)
		all = append(all, follow(t, tap, 3+then)...)
	}
	contiguous(t, all, 1)
	if n := nc.Stats().Reconnects; n != 0 {
		t.Errorf("the connection was made %d times again", n)
	}
}

func TestTapReadsFarBehind(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	p := startPublisher(t, l, journal.PublisherConfig{Gateway: gateway})
	r := newResults()
	for range 10_000 {
		submit(t, p, r, reserve(gateway, "acme"))
	}
	flush(t, p)
	tap := l.Tap(t.Context(), journal.TapConfig{})
	defer tap.Close()
	contiguous(t, follow(t, tap, 10_000), 1)
}

func TestTapSaysThatTheLogNoLongerHolds(t *testing.T) {
	b := startBroker(t)
	nc := b.connect()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	config := plainStream()
	config.FirstSeq = 1000
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	l, err := journal.Open(t.Context(), nc, journal.Config{})
	if err != nil {
		t.Fatal(err)
	}
	p := startPublisher(t, l, journal.PublisherConfig{Gateway: gateway})
	write(t, p, 1)
	tap := l.Tap(t.Context(), journal.TapConfig{From: 10})
	defer tap.Close()
	_, err = tap.Next(t.Context())
	if lost, ok := errors.AsType[*journal.Lost](err); !ok || lost.From != 10 || lost.First != 1000 {
		t.Errorf("tap from 10: %v, want *Lost{10, 1000}", err)
	}
	err = l.Read(t.Context(), 10, 0, func(events.Record) error { return nil })
	if lost, ok := errors.AsType[*journal.Lost](err); !ok || lost.From != 10 || lost.First != 1000 {
		t.Errorf("read from 10: %v, want *Lost{10, 1000}", err)
	}
	open := l.Tap(t.Context(), journal.TapConfig{})
	defer open.Close()
	contiguous(t, follow(t, open, 1), 1000)
}

func TestTapSaysThatTheLogWasReplaced(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	p := startPublisher(t, l, journal.PublisherConfig{Gateway: gateway})
	tap := l.Tap(t.Context(), journal.TapConfig{})
	defer tap.Close()
	write(t, p, 20)
	follow(t, tap, 20)
	at, created := tap.Position(), tap.Created()

	b.fresh()
	nc := b.connect()
	other := openLog(t, nc)
	q := startPublisher(t, other, journal.PublisherConfig{Gateway: "gw-00000002"})
	for range 2 * at { // further than the old log was read
		submit(t, q, newResults(), reserve("gw-00000002", "acme"))
		flush(t, q)
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	records, err := tap.Next(ctx)
	if replaced, ok := errors.AsType[*journal.Replaced](err); !ok || replaced.Position != at || !replaced.Expected.Equal(created) {
		t.Errorf("running tap: %d records, %v; want *Replaced at %d", len(records), err, at)
	}
	resumed := other.Tap(t.Context(), journal.TapConfig{From: at + 1, Created: created})
	defer resumed.Close()
	records, err = resumed.Next(ctx)
	if _, ok := errors.AsType[*journal.Replaced](err); !ok {
		t.Errorf("resumed tap: %d records, %v; want *Replaced", len(records), err)
	}
	behind := other.Tap(t.Context(), journal.TapConfig{From: 10 * at})
	defer behind.Close()
	records, err = behind.Next(ctx)
	if replaced, ok := errors.AsType[*journal.Replaced](err); !ok || replaced.Last != 2*at || replaced.Position != 10*at-1 {
		t.Errorf("tap beyond the end: %d records, %v; want *Replaced that ends at %d", len(records), err, 2*at)
	}
}

func TestTapEnds(t *testing.T) {
	b := startBroker(t)
	nc := b.connect()
	l := openLog(t, nc)
	ctx, cancel := context.WithCancel(t.Context())
	tap := l.Tap(t.Context(), journal.TapConfig{})
	defer tap.Close()
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := tap.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("next: %v, want context.Canceled", err)
	}
	ending, end := context.WithCancel(t.Context())
	other := l.Tap(ending, journal.TapConfig{})
	time.AfterFunc(20*time.Millisecond, end)
	if _, err := other.Next(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("next of a tap that has ended: %v, want context.Canceled", err)
	}
}

func TestTapOnAClosedConnectionEnds(t *testing.T) {
	b := startBroker(t)
	nc := b.connect()
	tap := openLog(t, nc).Tap(t.Context(), journal.TapConfig{})
	defer tap.Close()
	time.AfterFunc(20*time.Millisecond, nc.Close)
	if _, err := tap.Next(t.Context()); !journal.Unreachable(err) {
		t.Errorf("next: %v, want Unreachable", err)
	}
}
