package projector_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/kv"
	"github.com/weirhq/weir/projections/projector"
)

func (w *world) jetStream() jetstream.JetStream {
	w.t.Helper()
	js, err := jetstream.New(w.conn)
	if err != nil {
		w.t.Fatal(err)
	}
	return js
}

func (w *world) info() journal.Info {
	w.t.Helper()
	info, err := w.log.Info(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return info
}

// prune lets the log forget all but its last messages, as age does.
func (w *world) prune(keep uint64) journal.Info {
	w.t.Helper()
	js := w.jetStream()
	stream, err := js.Stream(context.Background(), journal.DefaultStream)
	if err != nil {
		w.t.Fatal(err)
	}
	kept := stream.CachedInfo().Config
	cfg := kept
	cfg.Discard, cfg.MaxMsgs = jetstream.DiscardOld, int64(keep)
	for _, c := range []jetstream.StreamConfig{cfg, kept} {
		if _, err := js.UpdateStream(context.Background(), c); err != nil {
			w.t.Fatal(err)
		}
	}
	return w.info()
}

// records gives a stretch of the log.
func (w *world) records(from, to uint64) (records []events.Record) {
	w.t.Helper()
	eventually(w.t, "the log read", func() bool {
		records = nil
		err := w.log.Read(context.Background(), from, to, func(r events.Record) error { records = append(records, r); return nil })
		if err != nil && !journal.Unreachable(err) {
			w.t.Fatal(err)
		}
		return err == nil
	})
	return records
}

// shared lists what is shared, the newest first.
func (w *world) shared() (*kv.Snapshots, []kv.Snapshot) {
	w.t.Helper()
	s := kv.NewSnapshots(kv.SnapshotsConfig{JetStream: w.jetStream(), Role: access.Projector})
	all, err := s.List(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return s, all
}

// share lets a projector share what it knows of the log, and stops it.
func share(t *testing.T, w *world, name string) {
	t.Helper()
	p := w.project(name, often)
	last := w.last()
	eventually(t, "shared", func() bool { return p.Stats().SharedSeq >= last })
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
}

// often makes a projector share all the time.
func often(c *projector.Config) {
	c.SnapshotEvery, c.ShareEvery = 10*time.Millisecond, 20*time.Millisecond
}

// newPruned gives a world in which a snapshot is shared; then gateways wrote more, and then the beginning was forgotten, up to what comes some
// messages after the shared snapshot.
func newPruned(t *testing.T, lacks uint64) (w *world, before []events.Record) {
	t.Helper()
	w = newWorld(t)
	w.traffic(60)
	share(t, w, "one-aaaaaaaa")
	_, all := w.shared()
	w.traffic(60)
	before = w.records(0, 0)
	if info := w.prune(w.last() - all[0].Seq - lacks); info.First != all[0].Seq+1+lacks {
		t.Fatalf("the log begins at %d, want %d", info.First, all[0].Seq+1+lacks)
	}
	return w, before
}

// sameAs fails the test unless a projector that began late is, to the byte, where one is that folded the whole log.
func (w *world) sameAs(p *running, before []events.Record) {
	w.t.Helper()
	type state struct {
		seq   uint64
		bytes []byte
	}
	got, err := projector.Query(context.Background(), p.Projector, func(f *admission.Fold) state { return state{f.Seq(), f.Snapshot(nil)} })
	if err != nil {
		w.t.Fatal(err)
	}
	whole := admission.New()
	for i := range before {
		whole.Apply(&before[i])
	}
	if from := whole.Seq() + 1; from <= got.seq {
		for _, r := range w.records(from, got.seq) {
			whole.Apply(&r)
		}
	}
	if whole.Seq() != got.seq || !bytes.Equal(whole.Snapshot(nil), got.bytes) {
		w.t.Errorf("at %d the state is not that of who folded all, at %d", got.seq, whole.Seq())
	}
}

// stuck fails the test unless a projector says for good why it does not begin.
func stuck(t *testing.T, p *running, words ...string) {
	t.Helper()
	var why string
	eventually(t, "stuck because "+strings.Join(words, ", "), func() bool {
		var ok bool
		if ok, why = p.Answering(); ok {
			t.Fatal("it answers")
		}
		return strings.Contains(why, "no snapshot reaches back to it")
	})
	for _, want := range words {
		if !strings.Contains(why, want) {
			t.Errorf("it says %q, which lacks %q", why, want)
		}
	}
	if s := p.Stats(); s.Records > 0 {
		t.Errorf("it has folded %d records", s.Records)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}

func TestANewProjectorOnAPrunedLog(t *testing.T) {
	w, before := newPruned(t, 0)
	dir := t.TempDir()
	p := w.project("two-aaaaaaaa", func(c *projector.Config) { c.DataDir = dir })
	got := &inbox{}
	p.AnswerLocal(gateway, got.take)
	ready(t, p)
	w.sameAs(p, before)
	if s := p.Stats(); s.Divergences > 0 {
		t.Errorf("what was decided before was not agreed with: %+v", s)
	}

	// It decides on as one that folded all would, and keeps a snapshot of its own.
	whole, want := admission.New(), map[events.RequestID]string{}
	for i := range before {
		whole.Apply(&before[i])
	}
	var sent []events.Event
	for range 10 {
		ev := reserve(gateway, claim(rpm, events.Window, 60), claim(concurrency, events.Gauge, 100))
		sent = append(sent, ev)
		submit(t, w.sender, ev)
	}
	flush(t, w.sender)
	for _, r := range w.records(whole.Seq()+1, 0) {
		for _, v := range whole.Apply(&r) {
			want[v.Request] = string(events.AppendVerdict(nil, &v))
		}
	}
	for _, ev := range sent {
		v := got.of(t, id(ev))
		if diff := cmp.Diff(want[id(ev)], string(events.AppendVerdict(nil, &v))); diff != "" {
			t.Errorf("another verdict (- who folded all, + who began late):\n%s", diff)
		}
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if len(files(t, dir)) == 0 {
		t.Error("it kept no snapshot")
	}

	// The next begins from its own.
	w.prune(5)
	p = w.project("three-aaaaaaaa", func(c *projector.Config) { c.DataDir = dir })
	ready(t, p)
}

func TestTheWriterSharesNowAndThen(t *testing.T) {
	w := newWorld(t)
	one := w.project("one-aaaaaaaa", often)
	eventually(t, "a writer", func() bool { return one.Stats().Writer })
	other := w.project("two-aaaaaaaa", often)
	ready(t, other)
	for n := uint64(1); n <= 3; n++ {
		w.traffic(10)
		eventually(t, "shared again", func() bool { return one.Stats().Shares >= n })
	}
	if s := other.Stats(); s.Shares > 0 || s.Writer {
		t.Errorf("the other one shares, too: %+v", s)
	}
	s := one.Stats()
	if _, all := w.shared(); len(all) != 2 || all[0].Seq < s.SharedSeq || all[1].Seq >= all[0].Seq || s.SharedAt.IsZero() || s.SharesFailed > 0 {
		t.Errorf("shared are %+v, the writer says %+v", all, s)
	}

	// Who writes next waits until the next is due.
	if err := one.stop(); err != nil {
		t.Fatal(err)
	}
	_, before := w.shared()
	rarely := w.project("three-aaaaaaaa", func(c *projector.Config) { c.SnapshotEvery, c.ShareEvery = 10*time.Millisecond, time.Hour })
	if err := other.stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a writer", func() bool { return rarely.Stats().Writer })
	_, after := w.shared()
	w.traffic(10)
	folded(t, rarely, w.last())
	eventually(t, "verdicts written", func() bool { return rarely.Stats().Packs > 0 })
	if s := rarely.Stats(); s.Shares > 0 {
		t.Errorf("it shared at once: before %+v, after %+v, %+v", before, after, s)
	}
}

func TestTheWriterSharesWhenItStops(t *testing.T) {
	w := newWorld(t)
	w.traffic(10)
	p := w.project("one-aaaaaaaa", func(c *projector.Config) { c.SnapshotEvery = 10 * time.Millisecond })
	eventually(t, "shared once", func() bool { return p.Stats().Shares == 1 })
	w.traffic(10)
	last := w.last()
	folded(t, p, last)
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if s := p.Stats(); s.Shares != 2 || s.SharedSeq < last {
		t.Errorf("at last it shared %d, the newest of %d; the log had %d", s.Shares, s.SharedSeq, last)
	}
	if _, all := w.shared(); len(all) != 2 || all[0].Seq < last {
		t.Errorf("shared are %+v", all)
	}
}

func TestSharedSnapshotsThatCannotBeUsed(t *testing.T) {
	bucket := func(w *world) jetstream.KeyValue {
		b, err := w.jetStream().KeyValue(context.Background(), access.BucketSnapshots)
		if err != nil {
			w.t.Fatal(err)
		}
		return b
	}
	t.Run("a part is another one", func(t *testing.T) {
		w, _ := newPruned(t, 0)
		for _, key := range []string{"projector.a.0", "projector.b.0"} {
			if _, err := bucket(w).Put(t.Context(), key, []byte("nonsense")); err != nil {
				t.Fatal(err)
			}
		}
		stuck(t, w.project("two-aaaaaaaa", nil), "its checksum is wrong", "none is kept here")
	})
	t.Run("a part is gone", func(t *testing.T) {
		w, _ := newPruned(t, 0)
		for _, key := range []string{"projector.a.0", "projector.b.0"} {
			if err := bucket(w).Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		stuck(t, w.project("two-aaaaaaaa", nil), "its part 1 of 1")
	})
	t.Run("the newest is damaged", func(t *testing.T) {
		w, before := newPruned(t, 0)
		s, all := w.shared()
		newer := all[0]
		newer.Seq, newer.At = newer.Seq+1, newer.At.Add(time.Second)
		link, _, err := w.log.Link(t.Context(), newer.Seq)
		if err != nil {
			t.Fatal(err)
		}
		newer.Link = link.String()
		if err := s.Share(t.Context(), newer, []byte("nonsense")); err != nil {
			t.Fatal(err)
		}
		p := w.project("three-aaaaaaaa", nil)
		ready(t, p)
		w.sameAs(p, before)
	})
	t.Run("it ends too early", func(t *testing.T) {
		w, _ := newPruned(t, 3)
		_, all := w.shared()
		p := w.project("two-aaaaaaaa", nil)
		stuck(t, p, "ends too early", "are gone")
		if _, why := p.Answering(); why != "stopped" {
			t.Errorf("at last it says %q", why)
		}
		if seq := all[0].Seq; w.info().First != seq+4 {
			t.Errorf("the log begins at %d, the snapshot is of %d", w.info().First, seq)
		}
	})
	t.Run("none is there", func(t *testing.T) {
		w := newWorld(t)
		w.traffic(20)
		w.prune(5)
		stuck(t, w.project("one-aaaaaaaa", nil), "none is kept here", "none is shared")
	})
	t.Run("the own one ends too early, too", func(t *testing.T) {
		w := newWorld(t)
		dir := t.TempDir()
		kept := func(c *projector.Config) { c.DataDir, c.ReadOnly = dir, true }
		p := w.project("one-aaaaaaaa", kept)
		w.traffic(10)
		folded(t, p, w.last())
		if err := p.stop(); err != nil {
			t.Fatal(err)
		}
		w.traffic(20)
		w.prune(5)
		stuck(t, w.project("two-aaaaaaaa", kept), "the one kept here ends at sequence", "none is shared")
	})
	t.Run("of a log before", func(t *testing.T) {
		w, _ := newPruned(t, 0)
		if err := w.jetStream().DeleteStream(t.Context(), journal.DefaultStream); err != nil {
			t.Fatal(err)
		}
		openLog(t, w.conn, true)
		w.traffic(20)
		w.prune(5)
		stuck(t, w.project("two-aaaaaaaa", nil), "is of a log made at")
	})
	t.Run("of a log that went on otherwise", func(t *testing.T) {
		w, _ := newPruned(t, 0)
		s, all := w.shared()
		b, err := s.Fetch(t.Context(), all[0])
		if err != nil {
			t.Fatal(err)
		}
		ledger := func(id string) func(*projector.Config) {
			return func(c *projector.Config) { c.Ledger = id }
		}
		other := all[0]
		other.Ledger, other.At = "l1", other.At.Add(time.Second)
		if err := s.Share(t.Context(), other, b); err != nil {
			t.Fatal(err)
		}
		other.Seq = w.info().First
		other.Link, other.At = strings.Repeat("ab", 32), other.At.Add(time.Second)
		if err := s.Share(t.Context(), other, b); err != nil { // in place of the first
			t.Fatal(err)
		}
		stuck(t, w.project("two-aaaaaaaa", ledger("l2")), "is of ledger l1, and this is ledger l2", "another message stands there now")
		ready(t, w.project("three-aaaaaaaa", ledger("l1")))
	})
	t.Run("its state is another's", func(t *testing.T) {
		w := newWorld(t)
		p := w.project("one-aaaaaaaa", nil)
		w.traffic(30)
		last := w.last()
		wrong, middle, left := admission.New(), last/2, false
		for _, r := range w.records(1, middle) {
			if _, ok := r.Data.(*events.Reserve); ok && !left {
				left = true // one is left out
				continue
			}
			wrong.Apply(&r)
		}
		folded(t, p, last)
		eventually(t, "all written", func() bool { s := p.Stats(); return s.Packs > 0 && s.Pending == 0 })
		if err := p.stop(); err != nil {
			t.Fatal(err)
		}
		if err := w.jetStream().DeleteKeyValue(t.Context(), access.BucketSnapshots); err != nil {
			t.Fatal(err)
		}
		link, held, err := w.log.Link(t.Context(), middle)
		if err != nil || !held {
			t.Fatal(held, err)
		}
		b, err := projector.EncodeSnapshot(w.info().Created, w.chains()[middle], wrong)
		if err != nil {
			t.Fatal(err)
		}
		s, _ := w.shared()
		if err := s.Share(t.Context(), kv.Snapshot{Seq: middle, Created: w.info().Created, Link: link.String(), At: time.Now()}, b); err != nil {
			t.Fatal(err)
		}
		w.prune(w.last() - middle + 1)
		p = w.project("two-aaaaaaaa", nil)
		eventually(t, "stopped", func() bool { _, why := p.Answering(); return strings.Contains(why, "is not of this log") })
		if err := p.stop(); err == nil || !strings.Contains(err.Error(), "have state") {
			t.Errorf("Run said %v", err)
		}
	})
}

// A log that begins at its beginning needs no snapshot, whatever is shared.
func TestAWholeLogNeedsNoSharedSnapshot(t *testing.T) {
	w := newWorld(t)
	w.traffic(20)
	share(t, w, "one-aaaaaaaa")
	before := w.records(0, 0)
	p := w.project("two-aaaaaaaa", nil)
	ready(t, p)
	if s := p.Stats(); s.Records < uint64(len(before)) {
		t.Errorf("it folded %d records of %d", s.Records, len(before))
	}
	w.sameAs(p, before)
}
