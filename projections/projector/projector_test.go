package projector_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/kv"
	"github.com/weirhq/weir/projections/projector"
)

var (
	rpm         = events.NewMeter(events.ScopeOrg, "rpm", "acme")
	concurrency = events.NewMeter(events.ScopeOrg, "concurrency", "acme")
	occupancy   = events.NewMeter(events.ScopeModel, "occupancy", "m")
)

func TestAnswersByCallAndByMessage(t *testing.T) {
	w := newWorld(t)
	p := w.project("proj-aaaaaaaa", nil)
	local := &inbox{}
	p.AnswerLocal(gateway, local.take)
	const far = events.Gateway("far-abcdefgh")
	remote := listen(t, w.connect(string(far), access.Gateway), far)
	ready(t, p)

	sender := w.publisher(far)
	one, two, three := reserve(gateway, claim(rpm, events.Window, 2)), reserve(far, claim(rpm, events.Window, 2)), reserve(far, claim(rpm, events.Window, 2))
	submit(t, w.sender, one)
	flush(t, w.sender)
	submit(t, sender, two)
	flush(t, sender)
	submit(t, sender, three)
	flush(t, sender)

	if v := local.of(t, id(one)); !v.Admitted || v.Used[0] != 1 || v.Gateway != gateway {
		t.Errorf("by call: %+v", v)
	}
	if v := remote.of(t, id(two)); !v.Admitted || v.Used[0] != 2 {
		t.Errorf("by message: %+v", v)
	}
	v := remote.of(t, id(three))
	if v.Admitted || v.Refusal == nil || v.Refusal.Reason != events.OverLimit || v.Refusal.Meter != rpm || !v.Refusal.HasRetry {
		t.Errorf("over the limit: %+v", v)
	}
	if len(local.list()) != 1 || len(remote.list()) != 2 {
		t.Errorf("%d verdicts by call and %d by message, want 1 and 2", len(local.list()), len(remote.list()))
	}
}

// traffic publishes requests of several gateways, of which some are refused and some released, in packs and alone.
func (w *world) traffic(n int) {
	w.t.Helper()
	for i := range n {
		ev := reserve(gateway, claim(rpm, events.Window, 40), claim(concurrency, events.Gauge, 15))
		submit(w.t, w.sender, ev)
		if i%3 == 0 {
			submit(w.t, w.sender, release(gateway, id(ev)))
		}
		if i%7 == 0 {
			flush(w.t, w.sender)
		}
	}
	flush(w.t, w.sender)
}

// last gives the log's last sequence.
func (w *world) last() uint64 {
	w.t.Helper()
	info, err := w.log.Info(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return info.Last
}

func folded(t testing.TB, p *running, seq uint64) {
	t.Helper()
	eventually(t, fmt.Sprintf("folded up to %d", seq), func() bool { return p.Stats().Seq >= seq })
}

// scratch folds the log up to a sequence from its beginning.
func (w *world) scratch(to uint64) *admission.Fold {
	w.t.Helper()
	f := admission.New()
	err := w.log.Read(context.Background(), 1, to, func(r events.Record) error { f.Apply(&r); return nil })
	if err != nil {
		w.t.Fatal(err)
	}
	return f
}

type at struct{ Seq, Digest uint64 }

func stands(t testing.TB, p *running) at {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := projector.Query(ctx, p.Projector, func(f *admission.Fold) at { return at{f.Seq(), f.Digest()} })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTwoProjectorsAnswerAlikeAndOneWrites(t *testing.T) {
	w := newWorld(t)
	one, two := w.project("one-aaaaaaaa", nil), w.project("two-aaaaaaaa", nil)
	first, second := &inbox{}, &inbox{}
	one.AnswerLocal(gateway, first.take)
	two.AnswerLocal(gateway, second.take)
	ready(t, one)
	ready(t, two)
	eventually(t, "a writer", func() bool { return one.Stats().Writer || two.Stats().Writer })
	w.traffic(200)
	eventually(t, "all answered by both", func() bool { return len(first.list()) == 200 && len(second.list()) == 200 })
	if diff := cmp.Diff(first.list(), second.list()); diff != "" {
		t.Errorf("the answers differ:\n%s", diff)
	}
	eventually(t, "all written", func() bool { return len(w.written()) == 200 })
	if one.Stats().Writer == two.Stats().Writer {
		t.Errorf("writers: %v, %v", one.Stats().Writer, two.Stats().Writer)
	}
	eventually(t, "checked by both", func() bool {
		n := one.Stats().Packs + two.Stats().Packs
		return one.Stats().Checked == n && two.Stats().Checked == n
	})
	w.checkPacks(first.list())

	// The writer is cut off: the other one takes over, and what is decided then is written too.
	writer, other, rest := one, two, second
	if two.Stats().Writer {
		writer, other, rest = two, one, first
	}
	writer.conn.Close()
	w.traffic(50)
	eventually(t, "another writer", func() bool { return other.Stats().Writer })
	w.traffic(50)
	eventually(t, "the rest written", func() bool { return len(w.written()) == 300 })
	w.checkPacks(rest.list())
	if s := other.Stats(); s.Divergences != 0 || s.Terms != 1 {
		t.Errorf("the other one: %+v", s)
	}
}

// written gives the verdicts that are in the log.
func (w *world) written() (all []events.Verdict) {
	w.t.Helper()
	for _, d := range w.packs() {
		all = append(all, d.Verdicts...)
	}
	return all
}

func (w *world) packs() (all []*events.Verdicts) {
	w.t.Helper()
	err := w.log.Read(context.Background(), 1, 0, func(r events.Record) error {
		if d, ok := r.Data.(*events.Verdicts); ok {
			all = append(all, d)
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// checkPacks sees that the packs follow one another, hold what was decided in its order, and the fold's digest.
func (w *world) checkPacks(decided []events.Verdict) {
	w.t.Helper()
	next, n := uint64(1), 0
	f, chains := admission.New(), w.chains()
	digests := map[uint64]uint64{}
	if err := w.log.Read(context.Background(), 1, 0, func(r events.Record) error {
		f.Apply(&r)
		digests[r.Seq] = f.Digest()
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	chained := 0
	for _, d := range w.packs() {
		if d.FromSeq != next || d.ToSeq < d.FromSeq || len(d.Verdicts) == 0 || len(d.Verdicts) > 256 || d.Rules != 1 {
			w.t.Fatalf("a pack from %d to %d with %d verdicts where %d is next", d.FromSeq, d.ToSeq, len(d.Verdicts), next)
		}
		next = d.ToSeq + 1
		if want := fmt.Sprintf("%016x", digests[d.ToSeq]); d.StateHash != want {
			w.t.Errorf("at %d: state %s, want %s", d.ToSeq, d.StateHash, want)
		}
		if d.Chain != "" {
			chained++
			if want := chains[d.ToSeq].String(); d.Chain != want {
				w.t.Errorf("at %d: chain %s, want %s", d.ToSeq, d.Chain, want)
			}
		}
		for i := range d.Verdicts {
			want := decided[n]
			want.Gateway, want.Org = "", ""
			if diff := cmp.Diff(want, d.Verdicts[i]); diff != "" {
				w.t.Fatalf("verdict %d:\n%s", n, diff)
			}
			n++
		}
	}
	if n != len(decided) || chained == 0 {
		w.t.Errorf("%d verdicts written, %d decided; %d packs with a chain", n, len(decided), chained)
	}
}

// chains gives the log's hash chain at each sequence.
func (w *world) chains() []journal.Chain {
	w.t.Helper()
	js, err := jetstream.New(w.conn)
	if err != nil {
		w.t.Fatal(err)
	}
	stream, err := js.Stream(context.Background(), journal.DefaultStream)
	if err != nil {
		w.t.Fatal(err)
	}
	all := make([]journal.Chain, 1, w.last()+1)
	for seq := uint64(1); seq <= w.last(); seq++ {
		m, err := stream.GetMsg(context.Background(), seq)
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, all[seq-1].Next(seq, m.Subject, m.Header.Get(nats.MsgIdHdr), m.Data))
	}
	return all
}

func TestRestartFromASnapshot(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	keeps := func(c *projector.Config) { c.DataDir, c.SnapshotEvery = dir, 20*time.Millisecond }
	p := w.project("one-aaaaaaaa", keeps)
	ready(t, p)
	w.traffic(100)
	folded(t, p, w.last())
	eventually(t, "two snapshots", func() bool { return p.Stats().Snapshots >= 2 })
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if ok, why := p.Ready(); ok || why != "stopped" {
		t.Errorf("ready is %v: %s", ok, why)
	}
	if n := len(files(t, dir)); n != 2 {
		t.Errorf("%d snapshots are kept, want 2: %v", n, files(t, dir))
	}

	w.traffic(100)
	p = w.project("two-aaaaaaaa", keeps)
	ready(t, p)
	s := stands(t, p)
	if f := w.scratch(s.Seq); f.Digest() != s.Digest {
		t.Errorf("at %d: digest %016x after a restart, %016x from scratch", s.Seq, s.Digest, f.Digest())
	}
	if got := p.Stats(); got.Records >= s.Seq || got.SnapshotSeq == 0 {
		t.Errorf("it did not begin from a snapshot: %d records up to %d", got.Records, s.Seq)
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}

	// The newest is corrupt: it is set aside, and the one before is used.
	all := files(t, dir)
	corrupt(t, all[len(all)-1])
	if err := os.WriteFile(filepath.Join(dir, "snapshots", ".writing-1"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	p = w.project("three-aaaaaaaa", func(c *projector.Config) { c.DataDir = dir })
	ready(t, p)
	s = stands(t, p)
	if f := w.scratch(s.Seq); f.Digest() != s.Digest {
		t.Errorf("at %d: digest %016x after a corrupt snapshot, %016x from scratch", s.Seq, s.Digest, f.Digest())
	}
	if left := strings.Join(files(t, dir), " "); strings.Count(left, ".corrupt") != 1 || strings.Contains(left, ".writing") {
		t.Errorf("files: %s", left)
	}
	w.checkAllWritten()
}

// checkAllWritten sees that every verdict gets into the log once, over restarts.
func (w *world) checkAllWritten() {
	w.t.Helper()
	f := admission.New()
	var decided []events.Verdict
	eventually(w.t, "all written", func() bool {
		f, decided = admission.New(), nil
		if err := w.log.Read(context.Background(), 1, 0, func(r events.Record) error {
			decided = append(decided, f.Apply(&r)...)
			return nil
		}); err != nil {
			w.t.Fatal(err)
		}
		return len(w.written()) == len(decided)
	})
	w.checkPacks(decided)
}

func TestAsk(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	p := w.project("one-aaaaaaaa", func(c *projector.Config) { c.DataDir = dir })
	ready(t, p)
	ev := reserve(gateway, claim(rpm, events.Window, 5), claim(concurrency, events.Gauge, 5))
	submit(t, w.sender, ev)
	flush(t, w.sender)
	folded(t, p, w.last())
	nc := w.connect(string(gateway), access.Gateway)
	ask := func(q projector.Question) map[string]any { return request(t, nc, access.SubjectAsk, q) }

	if a := ask(projector.Question{Gateway: gateway, Request: id(ev)}); a["outcome"] != "admitted" || a["request"] != ev.Subject {
		t.Errorf("its own: %v", a)
	}
	for what, q := range map[string]projector.Question{
		"another's":          {Gateway: "gx-abcdefgh", Request: id(ev)},
		"another attempt":    {Gateway: gateway, Request: id(ev), Attempt: 1},
		"an unknown request": {Gateway: gateway, Request: newID()},
	} {
		if a := ask(q); a["unknown"] != true || a["outcome"] != nil || a["seq"].(float64) < 1 {
			t.Errorf("%s: %v", what, a)
		}
	}
	if v, ok := p.Ask(id(ev), 0); !ok || !v.Admitted {
		t.Errorf("by call: %+v %v", v, ok)
	}

	live := request(t, nc, access.SubjectLive, projector.Question{Gateway: gateway})
	if ids := live["requests"].([]any); len(ids) != 1 || ids[0] != ev.Subject {
		t.Errorf("live: %v", live)
	}
	if ids, seq, err := p.Live(t.Context(), gateway); err != nil || len(ids) != 1 || seq == 0 {
		t.Errorf("live: %v %d %v", ids, seq, err)
	}
	submit(t, w.sender, release(gateway, id(ev)))
	flush(t, w.sender)
	folded(t, p, w.last())
	live = request(t, nc, access.SubjectLive, projector.Question{Gateway: gateway})
	if ids := live["requests"].([]any); len(ids) != 0 {
		t.Errorf("live after its release: %v", live)
	}

	// A projector that has been restarted still knows what fell shortly before.
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	p = w.project("two-aaaaaaaa", func(c *projector.Config) { c.DataDir = dir })
	ready(t, p)
	if a := ask(projector.Question{Gateway: gateway, Request: id(ev)}); a["outcome"] != "admitted" {
		t.Errorf("after a restart: %v", a)
	}
}

// A gateway of another account gets its verdicts and answers, and no other gateway's.
func TestGatewayFromAnotherAccount(t *testing.T) {
	w := newWorld(t)
	p := w.project("one-aaaaaaaa", nil)
	ready(t, p)
	const far = events.Gateway("far-abcdefgh")
	nc := w.join(string(far))
	got := listen(t, nc, far)
	mine, others := reserve(far, claim(rpm, events.Window, 5)), reserve(gateway, claim(rpm, events.Window, 5))
	submit(t, w.publisher(far), mine)
	submit(t, w.sender, others)
	flush(t, w.sender)
	if v := got.of(t, id(mine)); !v.Admitted {
		t.Errorf("%+v", v)
	}
	folded(t, p, w.last())
	if a := request(t, nc, access.SubjectAsk, projector.Question{Gateway: far, Request: id(mine)}); a["outcome"] != "admitted" {
		t.Errorf("its own: %v", a)
	}
	for _, q := range []projector.Question{{Gateway: far, Request: id(others)}, {Request: id(mine)}} {
		if a := request(t, nc, access.SubjectAsk, q); a["unknown"] != true {
			t.Errorf("%+v: %v", q, a)
		}
	}
	live := request(t, nc, access.SubjectLive, projector.Question{Gateway: far})
	if ids := live["requests"].([]any); len(ids) != 1 || ids[0] != mine.Subject {
		t.Errorf("live: %v", live)
	}
	if n := len(got.list()); n != 1 {
		t.Errorf("%d verdicts, want its own", n)
	}
}

func request(t testing.TB, nc *nats.Conn, subject string, q projector.Question) (a map[string]any) {
	t.Helper()
	body, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	var m *nats.Msg
	eventually(t, "somebody answers", func() bool { // a subscription takes a moment to be known everywhere
		m, err = nc.Request(subject, body, patience)
		return !errors.Is(err, nats.ErrNoResponders)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(m.Data, &a); err != nil {
		t.Fatalf("%s: %v", m.Data, err)
	}
	return a
}

// On a log that is silent otherwise, ticks let a parked reserve reach its deadline, and leases lapse.
func TestTicks(t *testing.T) {
	w := newWorld(t)
	p := w.project("one-aaaaaaaa", nil)
	got := &inbox{}
	p.AnswerLocal(gateway, got.take)
	ready(t, p)
	eventually(t, "a writer", func() bool { return p.Stats().Writer })
	full := claim(occupancy, events.Gauge, 1)
	full.Park = true
	holder := reserve(gateway, full)
	submit(t, w.sender, holder)
	flush(t, w.sender)
	const parkMS, tries = 400, 20
	prompt := false // before the tick that a second of silence brings
	for i := 0; i < tries && !prompt; i++ {
		parked := reserve(gateway, full)
		parked.Data.(*events.Reserve).ParkMS = parkMS
		began := time.Now()
		submit(t, w.sender, parked)
		v := got.of(t, id(parked))
		took := time.Since(began)
		if v.Admitted || v.Refusal.Reason != events.OverLimit || v.ParkedMS != parkMS {
			t.Errorf("%+v %+v", v, v.Refusal)
		}
		if took < parkMS*time.Millisecond {
			t.Errorf("answered after %s", took)
		}
		t.Logf("parked for %d ms, answered after %s", parkMS, took)
		prompt = took < (parkMS+500)*time.Millisecond
	}
	if !prompt {
		t.Errorf("not one of %d was answered when its time to wait was over", tries)
	}

	before := p.Stats().Ticks
	eventually(t, "ticks in silence", func() bool { return p.Stats().Ticks >= before+2 })
	if s := p.Stats(); s.Ticks > 100 {
		t.Errorf("%d ticks", s.Ticks)
	}
	eventually(t, "the lease lapsed", func() bool { return p.Stats().Counts.Lapses == 1 })
}

func TestDivergenceIsAnAlarm(t *testing.T) {
	w := newWorld(t)
	p := w.project("one-aaaaaaaa", func(c *projector.Config) { c.ReadOnly = true })
	ready(t, p)
	submit(t, w.sender, reserve(gateway, claim(rpm, events.Window, 5)))
	flush(t, w.sender)
	forge := func(to uint64, hash string) {
		t.Helper()
		_, err := w.log.Publish(t.Context(), events.Event{ID: string(newID()), Data: &events.Verdicts{FromSeq: 1, ToSeq: to, Rules: 1, StateHash: hash}})
		if err != nil {
			t.Fatal(err)
		}
	}
	forge(1, fmt.Sprintf("%016x", w.scratch(1).Digest()))
	folded(t, p, 2)
	if ok, why := p.Ready(); !ok || p.Stats().Checked != 1 {
		t.Fatalf("a true pack: %s", why)
	}
	forge(1, "0123456789abcdef")
	folded(t, p, 3)
	ok, why := p.Ready()
	if ok || p.Stats().Divergences != 1 || !strings.Contains(why, "0123456789abcdef") {
		t.Fatalf("a forged pack: %v %s", ok, why)
	}
	if answering, _ := p.Answering(); !answering {
		t.Error("it does not answer")
	}
	if _, err := w.log.Publish(t.Context(), events.Event{ID: "recover/1", Data: &events.Recover{Reason: "looked into", Windows: "empty"}}); err != nil {
		t.Fatal(err)
	}
	folded(t, p, 4)
	ready(t, p)
	forge(99, "")
	folded(t, p, 5)
	if ok, _ := p.Ready(); ok || p.Stats().Divergences != 2 {
		t.Error("a pack of the future is no alarm")
	}
}

func TestUnknownRulesStopAnswers(t *testing.T) {
	w := newWorld(t)
	p := w.project("one-aaaaaaaa", nil)
	got := &inbox{}
	p.AnswerLocal(gateway, got.take)
	ready(t, p)
	eventually(t, "a writer", func() bool { return p.Stats().Writer })
	if _, err := w.log.Publish(t.Context(), events.Event{ID: "rules/2", Data: &events.Rules{Version: 2}}); err != nil {
		t.Fatal(err)
	}
	submit(t, w.sender, reserve(gateway, claim(rpm, events.Window, 5)))
	flush(t, w.sender)
	folded(t, p, w.last())
	if ok, why := p.Answering(); ok || !strings.Contains(why, "version 2") {
		t.Errorf("answering is %v: %s", ok, why)
	}
	if n := len(got.list()); n != 0 || p.Stats().Withheld != 1 {
		t.Errorf("%d answers, %d withheld", n, p.Stats().Withheld)
	}
	eventually(t, "the lease given up", func() bool { return !p.Stats().Writer })
}

func TestOldLogIsNotAnswered(t *testing.T) {
	w := newWorld(t)
	w.traffic(50)
	var got inbox
	p := w.project("one-aaaaaaaa", func(c *projector.Config) { c.ReadOnly = true })
	p.AnswerLocal(gateway, got.take)
	folded(t, p, w.last())
	ready(t, p)
	if n := len(got.list()); n != 0 {
		t.Errorf("%d verdicts of the time before it began", n)
	}
	if s := p.Stats(); s.Verdicts != 50 || s.Kept != 50 || s.Withheld != 50 || s.Pending != 50 {
		t.Errorf("%+v", s)
	}
}

func TestReplacedLogStopsIt(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	p := w.project("one-aaaaaaaa", func(c *projector.Config) { c.DataDir = dir })
	ready(t, p)
	w.traffic(10)
	folded(t, p, w.last())
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(w.conn)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), journal.DefaultStream); err != nil {
		t.Fatal(err)
	}
	openLog(t, w.conn, true)
	p = w.project("two-aaaaaaaa", func(c *projector.Config) { c.DataDir = dir })
	eventually(t, "stopped", func() bool { _, why := p.Ready(); return strings.Contains(why, "replaced") })
	if _, ok := errors.AsType[*journal.Replaced](p.stop()); !ok {
		t.Error("Run did not say that the log was replaced")
	}
	if _, err := projector.Query(t.Context(), p.Projector, (*admission.Fold).Seq); !errors.Is(err, projector.ErrStopped) {
		t.Errorf("a question to a projector that has stopped: %v", err)
	}
}

func TestViewsAreWritten(t *testing.T) {
	w := newWorld(t)
	local := kv.NewView(time.Now)
	p := w.project("one-aaaaaaaa", func(c *projector.Config) { c.View = local })
	ready(t, p)
	eventually(t, "a writer", func() bool { return p.Stats().Writer })
	far := kv.NewView(time.Now)
	nc := w.connect("far-abcdefgh", access.Gateway)
	run(t, func(ctx context.Context) error { return far.Watch(ctx, nc) })
	c := claim(rpm, events.Window, 3)
	for range 3 {
		submit(t, w.sender, reserve(gateway, c, claim(concurrency, events.Gauge, 5)))
	}
	flush(t, w.sender)
	folded(t, p, w.last())
	for name, v := range map[string]*kv.View{"handed over": local, "watched": far} {
		eventually(t, "refused by the view "+name, func() bool { _, no := v.Refuses(&c, time.Now()); return no })
		h, _ := v.Refuses(&c, time.Now())
		if h.Used != 3 || h.RetryMS < 50_000 || h.RetryMS > 61_000 {
			t.Errorf("%s: %+v", name, h)
		}
		eventually(t, "the gauge "+name, func() bool { e, ok := v.Get(concurrency, time.Now()); return ok && e.Used == 3 })
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}

	// The next writer corrects what the last one left.
	js, err := jetstream.New(w.conn)
	if err != nil {
		t.Fatal(err)
	}
	bucket, err := js.KeyValue(t.Context(), access.BucketWindows)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bucket.Put(t.Context(), "org/gone/rpm", []byte(`{"kind":"window","used":9,"limit":9,"time":"2030-01-01T00:00:00Z","seq":1}`)); err != nil {
		t.Fatal(err)
	}
	p = w.project("two-aaaaaaaa", nil)
	eventually(t, "corrected", func() bool {
		_, err := bucket.Get(t.Context(), "org/gone/rpm")
		return errors.Is(err, jetstream.ErrKeyNotFound)
	})
	eventually(t, "put anew", func() bool {
		e, err := bucket.Get(t.Context(), string(rpm))
		return err == nil && strings.Contains(string(e.Value()), `"used":3`)
	})
}
