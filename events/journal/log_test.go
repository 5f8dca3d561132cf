package journal_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
)

// plainStream is the stream as Open makes it, written out.
func plainStream() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        "ACCOUNTING",
		Subjects:    []string{"acct.>"},
		Storage:     jetstream.FileStorage,
		Discard:     jetstream.DiscardNew,
		MaxAge:      720 * time.Hour,
		Duplicates:  2 * time.Minute,
		DenyDelete:  true,
		DenyPurge:   true,
		AllowDirect: true,
		Replicas:    1,
	}
}

func TestOpenMakesTheStream(t *testing.T) {
	b := startBroker(t)
	nc := b.connect()
	if _, err := journal.Open(t.Context(), nc, journal.Config{}); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("open without Create: %v, want that there is no stream", err)
	}
	l := openLog(t, nc)
	info, err := l.Info(t.Context())
	if err != nil || info.First != 1 || info.Last != 0 || info.Created.IsZero() || info.MaxBytes != -1 || info.Replicas != 1 {
		t.Errorf("a new log: %+v, %v", info, err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), "ACCOUNTING")
	if err != nil {
		t.Fatal(err)
	}
	got, want := s.CachedInfo().Config, plainStream()
	if got.Subjects[0] != want.Subjects[0] || got.Storage != want.Storage || got.Compression != want.Compression || got.Discard != want.Discard ||
		got.MaxAge != want.MaxAge || got.Duplicates != want.Duplicates || !got.DenyDelete || !got.DenyPurge || !got.AllowDirect {
		t.Errorf("the stream is %+v", got)
	}
	if _, err := journal.Open(t.Context(), nc, journal.Config{}); err != nil {
		t.Errorf("open it again: %v", err)
	}
	if _, err := journal.Open(t.Context(), nc, journal.Config{Create: true, MaxAge: 24 * time.Hour, MaxBytes: 1 << 30}); err != nil {
		t.Errorf("change its bounds: %v", err)
	}
	if info, err := l.Info(t.Context()); err != nil || info.MaxBytes != 1<<30 {
		t.Errorf("after a change of bounds: %+v, %v", info, err)
	}
	for _, compress := range []bool{true, false} {
		if _, err := journal.Open(t.Context(), nc, journal.Config{Create: true, Compress: compress}); err != nil {
			t.Fatalf("compression %v: %v", compress, err)
		}
		if info, err := s.Info(t.Context()); err != nil || (info.Config.Compression == jetstream.S2Compression) != compress {
			t.Errorf("compression %v: %+v, %v", compress, info, err)
		}
	}
}

func TestOpenNamesWhatDoesNotHold(t *testing.T) {
	tests := []struct {
		field string
		spoil func(*jetstream.StreamConfig)
	}{
		{"subjects", func(c *jetstream.StreamConfig) { c.Subjects = []string{"acct.*.reserve"} }},
		{"storage", func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }},
		{"discard", func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld }},
		{"max_msgs", func(c *jetstream.StreamConfig) { c.MaxMsgs = 1000 }},
		{"max_msgs_per_subject", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1000 }},
		{"max_msg_size", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1000 }},
		{"duplicate_window", func(c *jetstream.StreamConfig) { c.Duplicates = time.Second }},
		{"deny_delete", func(c *jetstream.StreamConfig) { c.DenyDelete = false }},
		{"deny_purge", func(c *jetstream.StreamConfig) { c.DenyPurge = false }},
		{"allow_direct", func(c *jetstream.StreamConfig) { c.AllowDirect = false }},
		{"allow_msg_ttl", func(c *jetstream.StreamConfig) { c.AllowMsgTTL = true }},
		{"no_ack", func(c *jetstream.StreamConfig) { c.NoAck = true }},
	}
	b := startBroker(t)
	nc := b.connect()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		config := plainStream()
		tt.spoil(&config)
		if _, err := js.CreateStream(t.Context(), config); err != nil {
			t.Fatalf("%s: %v", tt.field, err)
		}
		_, err := journal.Open(t.Context(), nc, journal.Config{Create: true})
		if err == nil || !strings.Contains(err.Error(), tt.field+" is ") {
			t.Errorf("%s: %v", tt.field, err)
		}
		if err := js.DeleteStream(t.Context(), config.Name); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []journal.Config{{Replicas: 2}, {MaxAge: time.Minute}, {MaxBytes: -5}} {
		if _, err := journal.Open(t.Context(), nc, bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

func TestPublishIsAppendedOnce(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	fence := event("acme", &events.Fence{Org: "acme", Version: 2}, "")
	seq, err := l.Publish(t.Context(), fence)
	if err != nil || seq != 1 {
		t.Fatalf("publish: sequence %d, %v", seq, err)
	}
	if seq, err := l.Publish(t.Context(), fence); err != nil || seq != 1 {
		t.Errorf("publish again: sequence %d, %v; want 1", seq, err)
	}
	all := everything(t, l)
	if len(all) != 1 || all[0].Org != "acme" || all[0].Gateway != "" || *all[0].Data.(*events.Fence) != (events.Fence{Org: "acme", Version: 2}) {
		t.Errorf("the log holds %+v", all)
	}
	other := event("beta", &events.Fence{Org: "acme", Version: 2}, "")
	if _, err := l.Publish(t.Context(), other); err == nil {
		t.Error("a fence of acme under beta was published")
	}
}

func TestPublishWaitsForTheBroker(t *testing.T) {
	b := startBroker(t)
	nc := b.connect()
	l := openLog(t, nc)
	b.stop()
	eventually(t, "the connection is gone", func() bool { return !nc.IsConnected() })
	for _, wait := range []time.Duration{0, 100 * time.Millisecond} { // before it was tried, and after
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		_, err := l.Publish(ctx, event("acme", &events.Fence{Org: "acme", Version: 1}, ""))
		if !journal.Unreachable(err) || journal.MaybeAppended(err) {
			t.Errorf("while the broker is away, for %s: %v; unreachable %t, maybe appended %t; want true, false", wait, err, journal.Unreachable(err), journal.MaybeAppended(err))
		}
		cancel()
	}
	started := make(chan struct{})
	time.AfterFunc(50*time.Millisecond, func() { defer close(started); b.start() })
	seq, err := l.Publish(t.Context(), event("acme", &events.Fence{Org: "acme", Version: 1}, ""))
	<-started
	if err != nil || seq != 1 {
		t.Errorf("when it is back: sequence %d, %v", seq, err)
	}
}

// untilStored is a context that ends when the log holds something.
func untilStored(t *testing.T, b *broker) context.Context {
	t.Helper()
	l := openLog(t, b.connect())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if info, err := l.Info(ctx); err == nil && info.Last > 0 {
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return ctx
}

func TestPublishThatMayHaveArrived(t *testing.T) {
	b := startBroker(t)
	way := startRelay(t, b.Addr().String())
	l := openLog(t, dial(t, way.url()))
	way.deaf.Store(true)
	ctx := untilStored(t, b)
	_, err := l.Publish(ctx, event("acme", &events.Fence{Org: "acme", Version: 1}, ""))
	if !journal.Unreachable(err) || !journal.MaybeAppended(err) {
		t.Errorf("%v; unreachable %t, maybe appended %t; want true, true", err, journal.Unreachable(err), journal.MaybeAppended(err))
	}
	way.heal()
}

const verdictsSubject = "acct._.verdicts"

func verdicts(from, to uint64) events.Event {
	return event("", &events.Verdicts{FromSeq: from, ToSeq: to, Rules: 1, StateHash: "0123456789abcdef"}, "")
}

func TestFencedAppendHasOneWriter(t *testing.T) {
	b := startBroker(t)
	one, two := openLog(t, b.connect()), openLog(t, b.connect())
	if _, seq, err := one.Last(t.Context(), verdictsSubject); err != nil || seq != 0 {
		t.Fatalf("last of an empty subject: sequence %d, %v", seq, err)
	}
	first, err := one.AppendFenced(t.Context(), verdictsSubject, verdicts(1, 1), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := one.Publish(t.Context(), event("acme", &events.Fence{Org: "acme", Version: 1}, "")); err != nil { // another subject is no conflict
		t.Fatal(err)
	}
	second, err := two.AppendFenced(t.Context(), verdictsSubject, verdicts(2, 2), first)
	if err != nil {
		t.Fatal(err)
	}
	_, err = one.AppendFenced(t.Context(), verdictsSubject, verdicts(2, 3), first)
	if err == nil || journal.Unreachable(err) || journal.MaybeAppended(err) {
		t.Errorf("the writer that was overtaken: %v; unreachable %t, maybe appended %t; want neither", err, journal.Unreachable(err), journal.MaybeAppended(err))
	}
	records, seq, err := one.Last(t.Context(), verdictsSubject)
	if err != nil || seq != second || len(records) != 1 || records[0].Fault != "" || records[0].Seq != second {
		t.Fatalf("last: %+v at %d, %v; want one record at %d", records, seq, err, second)
	}
	if d := records[0].Data.(*events.Verdicts); d.FromSeq != 2 || d.ToSeq != 2 {
		t.Errorf("last covers %d to %d, want 2 to 2", d.FromSeq, d.ToSeq)
	}
	if _, err := one.AppendFenced(t.Context(), "acct._.tick", verdicts(3, 3), 0); err == nil {
		t.Errorf("append under another kind's subject: %v", err)
	}
}

func TestFencedAppendWithoutAnAnswerMayBeInTheLog(t *testing.T) {
	b := startBroker(t)
	way := startRelay(t, b.Addr().String())
	l := openLog(t, dial(t, way.url()))
	way.deaf.Store(true)
	ctx := untilStored(t, b)
	_, err := l.AppendFenced(ctx, verdictsSubject, verdicts(1, 1), 0)
	if !journal.Unreachable(err) || !journal.MaybeAppended(err) {
		t.Errorf("%v; unreachable %t, maybe appended %t; want both", err, journal.Unreachable(err), journal.MaybeAppended(err))
	}
	way.heal()
}

func TestReadGivesAStretch(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	for v := range int64(700) {
		if _, err := l.Publish(t.Context(), event("acme", &events.Fence{Org: "acme", Version: v + 1}, "")); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct{ from, to, first, last uint64 }{
		{0, 0, 1, 700}, {1, 1, 1, 1}, {10, 300, 10, 300}, {690, 0, 690, 700}, {690, 9999, 690, 700}, {701, 0, 0, 0}, {5, 4, 0, 0},
	}
	for _, tt := range tests {
		var seqs []uint64
		err := l.Read(t.Context(), tt.from, tt.to, func(r events.Record) error {
			if v := r.Data.(*events.Fence).Version; uint64(v) != r.Seq {
				t.Fatalf("sequence %d holds version %d", r.Seq, v)
			}
			seqs = append(seqs, r.Seq)
			return nil
		})
		if err != nil {
			t.Errorf("read %d to %d: %v", tt.from, tt.to, err)
		}
		if tt.first == 0 && len(seqs) == 0 {
			continue
		}
		if len(seqs) == 0 || seqs[0] != tt.first || seqs[len(seqs)-1] != tt.last || uint64(len(seqs)) != tt.last-tt.first+1 {
			t.Errorf("read %d to %d gave %d records %v", tt.from, tt.to, len(seqs), seqs)
		}
	}
	n := 0
	err := l.Read(t.Context(), 0, 0, func(events.Record) error {
		if n++; n == 3 {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) || n != 3 {
		t.Errorf("a function that stops: %v after %d records", err, n)
	}
}

// A request for the second stretch is lost, as one is that a broker whose disk stalls does not come to: it is asked for again.
func TestReadAsksAgain(t *testing.T) {
	b := startBroker(t)
	direct := openLog(t, b.connect())
	const all = 300 // more than one answer holds
	for v := range int64(all) {
		if _, err := direct.Publish(t.Context(), event("acme", &events.Fence{Org: "acme", Version: v + 1}, "")); err != nil {
			t.Fatal(err)
		}
	}
	way := startRelay(t, b.Addr().String())
	l := openLog(t, dial(t, way.url()))
	n := uint64(0)
	err := l.Read(t.Context(), 0, 0, func(r events.Record) error {
		if n++; n != r.Seq {
			t.Fatalf("record %d is of sequence %d", n, r.Seq)
		}
		if n == 250 {
			way.mute.Store(true)
			time.AfterFunc(500*time.Millisecond, func() { way.mute.Store(false) })
		}
		return nil
	})
	if err != nil || n != all {
		t.Errorf("%d records of %d, %v", n, all, err)
	}
}

func TestLookForFindsEventsAloneAndInPacks(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	p, err := l.Publisher(t.Context(), journal.PublisherConfig{Gateway: gateway})
	if err != nil {
		t.Fatal(err)
	}
	r := newResults()
	packed := []string{submit(t, p, r, reserve(gateway, "acme")), submit(t, p, r, reserve(gateway, "acme"))}
	run(t, p)
	flush(t, p)
	alone := submit(t, p, r, reserve(gateway, "acme"))
	flush(t, p)

	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() { answered <- l.Answer(ctx, "log.ask") }()
	defer func() {
		cancel()
		if err := <-answered; err != nil {
			t.Error(err)
		}
	}()
	nc := b.connect()
	asked := journal.Ask(nc, "log.ask")
	eventually(t, "somebody answers", func() bool { _, err := asked(t.Context(), 0, "x"); return err == nil })
	pack := stored(t, b, 1).Header.Get("Nats-Msg-Id")
	for name, find := range map[string]journal.Find{"looked": l.LookFor, "asked": asked} {
		found, err := find(t.Context(), 0, packed[0], packed[1], alone, pack, "no such id")
		if err != nil {
			t.Fatal(err)
		}
		if len(found) != 4 || found[packed[0]] != 1 || found[packed[1]] != 1 || found[alone] != 2 || found[pack] != 1 {
			t.Errorf("%s for: %v", name, found)
		}
		if found, err := find(t.Context(), 1, packed[0], alone); err != nil || len(found) != 1 || found[alone] != 2 {
			t.Errorf("%s for after sequence 1: %v, %v", name, found, err)
		}
	}
	m, err := nc.Request("log.ask", []byte("{"), within)
	if err != nil || !strings.Contains(string(m.Data), "unreadable question") {
		t.Errorf("an unreadable question: %s, %v", m.Data, err)
	}
}

func TestOptionsKeepNothingForLater(t *testing.T) {
	b := startBroker(t)
	nc := b.connect()
	b.stop()
	eventually(t, "the connection is gone", func() bool { return !nc.IsConnected() })
	if err := nc.Publish("x", nil); !errors.Is(err, nats.ErrReconnectBufExceeded) {
		t.Errorf("publish while the broker is away: %v", err)
	}
	b.start()
	eventually(t, "the connection is back", nc.IsConnected)
}
