package auditor

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/estimator"
	"github.com/weirhq/weir/projections/generation"
)

func id(n int) events.RequestID { return eventstest.RequestID(n) }

func reserve(n int) *events.Reserve {
	d := eventstest.Reserve(id(n), eventstest.Rate("org/acme/rpm", 600), eventstest.Tokens("org/acme/tpm", 500, 100_000))
	d.Estimate.TextBytes = 1000
	return d
}

func TestARequestFromItsReserveToItsRelease(t *testing.T) {
	onEach(t, aRequestFromItsReserveToItsRelease)
}

func aRequestFromItsReserveToItsRelease(t *testing.T, n *node) {
	n.run(nil)
	n.admit(reserve(1))
	n.await(id(1), "in progress", func(rec *generation.Record) bool {
		return rec.State == generation.InProgress && rec.Attempts[0].Verdict == generation.VerdictAdmitted
	})
	n.state(eventstest.Final(id(1), 250, 40, 91_000), eventstest.Release(id(1)))
	rec := n.await(id(1), "ended", ended)
	if rec.Outcome != events.Completed || rec.Status != 200 || rec.TotalCost != 91_000 || *rec.TokensPrompt != 250 || *rec.TokensCompletion != 40 || *rec.UsageQuality != "exact" {
		t.Errorf("the record is %+v", rec)
	}
	if settled := *rec.Attempts[0].Claims[1].Settled; settled != 290 {
		t.Errorf("tpm was settled to %d, want 290", settled)
	}
}

func TestRefusals(t *testing.T) { onEach(t, refusals) }

func refusals(t *testing.T, n *node) {
	n.run(nil)
	n.state(&events.Refused{Request: id(1), Org: eventstest.Org, Gateway: eventstest.Gateway, Key: "k", Model: "m", Gate: "b1", Origin: "gateway_admission",
		Scope: "model", LimitKind: "input", Status: 400, Code: "input_too_long"})
	d := reserve(2)
	seq := n.state(d)
	n.state(&events.Verdicts{FromSeq: seq, ToSeq: seq, Rules: 1, Verdicts: []events.Verdict{eventstest.Refused(d, seq, time.Now().UnixNano(), 0, 4100)}})
	refused := func(rec *generation.Record) bool { return rec.Outcome == generation.Refused }
	if e := n.await(id(1), "refused", refused).AdmissionEvents[0]; e.Gate != "b1" || e.Kind != "input" || e.Status != 400 {
		t.Errorf("the gateway's refusal is %+v", e)
	}
	e := n.await(id(2), "refused", refused).AdmissionEvents[0]
	if e.Scope != "org" || e.Kind != "rpm" || e.LimitID != "acme" || *e.Limit != 600 || *e.Used != 600 || *e.Requested != 1 || *e.RetryAfterMS != 4100 || e.Status != 429 {
		t.Errorf("the fold's refusal is %+v", e)
	}
}

func TestOnlyItsOrgReadsARecord(t *testing.T) { onEach(t, onlyItsOrgReadsARecord) }

func onlyItsOrgReadsARecord(t *testing.T, n *node) {
	reader := n.reader()
	if _, _, err := reader.Generation(context.Background(), eventstest.Org, id(1)); err == nil || !strings.Contains(err.Error(), "generations") {
		t.Errorf("without a bucket: %v", err)
	}
	n.run(nil)
	n.admit(reserve(1))
	n.await(id(1), "there", func(*generation.Record) bool { return true })
	for _, c := range []struct {
		org events.Org
		id  events.RequestID
	}{{"beta", id(1)}, {"", id(1)}, {eventstest.Org, id(2)}, {eventstest.Org, ""}, {eventstest.Org, "_position"}, {eventstest.Org, ">"}, {eventstest.Org, "a.b c\n"}} {
		if text, found, err := reader.Generation(context.Background(), c.org, c.id); found || err != nil {
			t.Errorf("org %q is answered %q: %s, %v", c.org, c.id, text, err)
		}
	}
}

// An auditor that is stopped and started goes on where it was, also with requests whose records it had begun.
func TestStoppedInTheMiddle(t *testing.T) { onEach(t, stoppedInTheMiddle) }

func stoppedInTheMiddle(t *testing.T, n *node) {
	first := n.run(nil)
	n.admit(reserve(1))
	n.await(id(1), "in progress", func(rec *generation.Record) bool { return rec.Attempts[0].Verdict != "" })
	first.stop()
	n.state(eventstest.Final(id(1), 250, 40, 91_000), eventstest.Release(id(1)))
	n.admit(reserve(2))
	second := n.run(nil)
	rec := n.await(id(1), "ended", ended)
	if len(rec.Attempts[0].Claims) != 2 || rec.TotalCost != 91_000 {
		t.Errorf("the record is %+v", rec)
	}
	n.await(id(2), "in progress", func(rec *generation.Record) bool { return rec.State == generation.InProgress })
	if s := second.Status(); s.Restored != 1 {
		t.Errorf("%d records were read back, want 1: %+v", s.Restored, s)
	}
}

// What is read again after a crash, or stands in the log twice, changes nothing.
func TestReadAgain(t *testing.T) { onEach(t, readAgain) }

func readAgain(t *testing.T, n *node) {
	first := n.run(nil)
	n.admit(reserve(1))
	refused := &events.Refused{Request: id(2), Org: eventstest.Org, Gateway: eventstest.Gateway, Gate: "b3", Origin: "gateway_admission", Status: 429, Code: "c"}
	last := n.state(eventstest.Final(id(1), 250, 40, 91_000), eventstest.Release(id(1)), refused)
	n.stored(first, last)
	first.stop()
	want := map[int]*generation.Record{1: n.record(eventstest.Org, id(1)), 2: n.record(eventstest.Org, id(2))}

	for _, seq := range []uint64{0, 1, 3} { // positions that a crash may have left
		info, err := n.log.Info(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		n.moveTo(generation.Place{Seq: seq, Log: generation.Instant(info.Created.UnixNano())})
		again := n.run(nil)
		n.stored(again, last)
		again.stop()
		for k, rec := range want {
			if diff := cmp.Diff(rec, n.record(eventstest.Org, id(k))); diff != "" {
				t.Errorf("read again from %d, request %d (- before, + after):\n%s", seq, k, diff)
			}
		}
	}

	again := n.run(nil)
	n.stored(again, n.state(reserve(1), eventstest.Final(id(1), 999, 999, 1), eventstest.Release(id(1))))
	rec := n.record(eventstest.Org, id(1))
	rec.AsOf = want[1].AsOf // alone may move
	if diff := cmp.Diff(want[1], rec); diff != "" {
		t.Errorf("the same facts again (- before, + after):\n%s", diff)
	}
}

// A final may come long after the release, when the record has left memory.
func TestLateTrueUp(t *testing.T) { onEach(t, lateTrueUp) }

func lateTrueUp(t *testing.T, n *node) {
	first := n.run(nil)
	n.admit(reserve(1))
	n.stored(first, n.state(eventstest.Release(id(1))))
	if rec := n.record(eventstest.Org, id(1)); rec.State != generation.Ended || rec.Cost.Settled {
		t.Fatalf("after the release: %+v", rec)
	}
	first.stop()
	n.run(nil)
	n.state(eventstest.Final(id(1), 250, 40, 91_000))
	rec := n.await(id(1), "settled", func(rec *generation.Record) bool { return rec.Cost.Settled })
	if rec.TotalCost != 91_000 || rec.Outcome != events.Completed {
		t.Errorf("the record is %+v", rec)
	}
	n.state(&events.Correction{Request: id(1), Revision: 1, CostNano: 50_000, Reason: "refund"})
	if rec := n.await(id(1), "corrected", func(rec *generation.Record) bool { return rec.Cost.Corrected }); rec.TotalCost != 50_000 {
		t.Errorf("after the correction: %+v", rec.Cost)
	}
}

// A request whose gateway died is ended by its lapse, also when its record has left memory; what comes late is believed.
func TestLost(t *testing.T) { onEach(t, lostRequests) }

func lostRequests(t *testing.T, n *node) {
	lapse := func(k int, state events.LapseState, at int64) *events.Verdicts {
		return &events.Verdicts{Rules: 1, Lapses: []events.Lapse{{Request: id(k), State: state, Time: at}}}
	}
	first := n.run(nil)
	n.admit(reserve(1))
	n.admit(reserve(2))
	n.stored(first, n.state(&events.Tick{}))
	first.stop()
	n.run(nil)
	at := time.Now().UnixNano()
	n.state(lapse(1, events.LapseBegan, at), lapse(2, events.LapseBegan, at))
	lost := func(rec *generation.Record) bool {
		return rec.State == generation.Ended && rec.Outcome == events.Abandoned
	}
	for k := 1; k <= 2; k++ {
		if rec := n.await(id(k), "lost", lost); int64(rec.EndedAt) != at || rec.Error == nil || rec.Error.Code != generation.CodeLost || rec.Cost.Settled {
			t.Errorf("request %d is %+v, %+v", k, rec, rec.Error)
		}
	}
	found, err := n.reader().List(context.Background(), &generation.Filter{Org: eventstest.Org, Outcome: events.Abandoned, Limit: 10})
	if err != nil || len(found) != 2 || found[0].ErrorCode != generation.CodeLost {
		t.Errorf("those abandoned are %+v (%v)", found, err)
	}
	n.state(lapse(2, events.LapseOver, at+1))
	n.await(id(2), "back", func(rec *generation.Record) bool { return rec.State == generation.InProgress && rec.Error == nil })
	n.state(eventstest.Final(id(1), 250, 40, 91_000), eventstest.Release(id(1)))
	if rec := n.await(id(1), "released", func(rec *generation.Record) bool { return rec.Outcome == events.Completed }); rec.TotalCost != 91_000 || rec.Error != nil {
		t.Errorf("after a late release: %+v", rec)
	}
	// A stray's release comes under the platform's org, as its gateway no longer knows the request's.
	n.stateOf(events.Platform, &events.Release{Request: id(2), Gateway: eventstest.Gateway, Outcome: events.Abandoned})
	n.await(id(2), "released as a stray", func(rec *generation.Record) bool { return lost(rec) && rec.Released != nil })
}

// Of two auditors one writes; when it stops the other goes on.
func TestTheLease(t *testing.T) { onEach(t, theLease) }

func theLease(t *testing.T, n *node) {
	leased := func(name string) func(*Config) { return func(c *Config) { c.Name, c.Alone = name, false } }
	a := n.run(leased("auditor-a"))
	n.active(a)
	n.admit(reserve(1))
	n.await(id(1), "there", func(*generation.Record) bool { return true })
	b := n.run(leased("auditor-b"))
	n.stored(a, n.state(reserve(2)))
	if b.Status().Active {
		t.Fatal("both write")
	}
	a.stop()
	n.state(eventstest.Final(id(1), 250, 40, 91_000), eventstest.Release(id(1)))
	n.await(id(1), "ended", ended)
	if !b.Status().Active {
		t.Error("the second does not write")
	}
}

func TestWhatIsLearned(t *testing.T) {
	n := newNode(t)
	first := n.run(nil)
	n.admit(reserve(1))
	n.stored(first, n.state(eventstest.Final(id(1), 250, 40, 0)))
	if got := first.Ratio(eventstest.Model); got != 300_000 {
		t.Errorf("the ratio is %d, want 300000", got)
	}
	n.stored(first, n.state(reserve(2)))
	first.stop()
	second := n.run(nil)
	n.stored(second, n.state(eventstest.Final(id(2), 250, 40, 0))) // its reserve came before the restart
	if got := second.Ratio(eventstest.Model); got != 290_000 {
		t.Errorf("after a restart the ratio is %d, want 290000", got)
	}
	ratios := NewRatios(n.connect(access.Gateway))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ratios.Run(ctx) }()
	n.until(func() bool { return ratios.Ratio(eventstest.Model) == 290_000 }, func() string { return "a gateway never knew the ratio" })
	if got := ratios.Ratio("another"); got != estimator.FirstRatio {
		t.Errorf("the ratio of another model is %d", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// With a log that was replaced the audit goes on; what was audited stays.
func TestTheLogIsReplaced(t *testing.T) { onEach(t, theLogIsReplaced) }

func theLogIsReplaced(t *testing.T, n *node) {
	a := n.run(nil)
	for k := range 5 {
		n.admit(reserve(10 + k))
	}
	n.admit(reserve(1))
	n.stored(a, n.state(eventstest.Final(id(1), 250, 40, 91_000)))
	if err := n.js.DeleteStream(context.Background(), n.log.Stream()); err != nil {
		t.Fatal(err)
	}
	n.open()
	n.admit(reserve(2))
	n.await(id(2), "there", func(*generation.Record) bool { return true })
	n.state(eventstest.Release(id(1))) // under a lower sequence than what its record tells of
	if rec := n.await(id(1), "ended", ended); rec.TotalCost != 91_000 {
		t.Errorf("the record is %+v", rec)
	}
}

// An auditor needs no more than its role's permissions, a reader no more than a gateway's.
func TestPermissions(t *testing.T) {
	n := newNode(t)
	nc := n.connect(access.Auditor)
	n.run(func(c *Config) { c.Conn, c.NoEstimates = nc, true })
	n.admit(reserve(1))
	n.state(eventstest.Final(id(1), 250, 40, 91_000), eventstest.Release(id(1)))
	n.await(id(1), "ended", ended)
	text, found, err := NewReader(n.connect(access.Gateway)).Generation(context.Background(), eventstest.Org, id(1))
	if err != nil || !found || !json.Valid(text) {
		t.Errorf("a gateway reads %s, %t, %v", text, found, err)
	}
}

// The bucket holds one value a key, forgets by age, and drops the oldest when it is full instead of refusing.
func TestTheBucket(t *testing.T) {
	n := newNode(t)
	a := n.run(func(c *Config) { c.TTL, c.MaxBytes = time.Hour, 1<<20 })
	last := uint64(0)
	for k := range 800 { // about 2 kB each
		last = n.state(reserve(k))
	}
	n.stored(a, last)
	stream, err := n.js.Stream(context.Background(), "KV_generations")
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if info.Config.MaxAge != time.Hour || info.Config.Discard != jetstream.DiscardOld || info.State.Bytes > 1<<20 {
		t.Errorf("the bucket's stream is %+v with %d bytes", info.Config, info.State.Bytes)
	}
	if n.record(eventstest.Org, id(0)) != nil || n.record(eventstest.Org, id(799)) == nil {
		t.Error("the oldest record should have gone, and the newest be there")
	}
	a.stop()
	n.run(func(c *Config) { c.TTL = 2 * time.Hour })
	n.until(func() bool {
		info, err := stream.Info(context.Background())
		return err == nil && info.Config.MaxAge == 2*time.Hour
	}, func() string { return "the bucket was not brought to what is asked for" })
}

// A list has the org's own requests, newest first, and only those that every field of the filter lets through; a page goes on where the one
// before it ended.
func TestLists(t *testing.T) { onEach(t, lists) }

func lists(t *testing.T, n *node) {
	a := n.run(nil)
	for k := range 6 {
		d := reserve(k)
		d.Key, d.Model = []string{"k1", "k2"}[k%2], []string{"m1", "m1", "m2"}[k%3]
		n.admit(d)
		if k < 4 {
			n.state(eventstest.Final(id(k), 250, 40, int64(k)*1000), eventstest.Release(id(k)))
		}
	}
	n.state(&events.Refused{Request: id(9), Org: eventstest.Org, Gateway: eventstest.Gateway, Key: "k1", Model: "m1", Gate: "b1", Origin: "gateway_admission",
		Scope: "model", LimitKind: "input", Status: 400, Code: "input_too_long"})
	other := reserve(10)
	other.Org = "other"
	n.stored(a, n.state(other))
	at := func(k int) generation.Instant { return generation.Made(id(k)) }
	for _, c := range []struct {
		name   string
		filter generation.Filter
		want   []int
	}{
		{"all", generation.Filter{}, []int{9, 5, 4, 3, 2, 1, 0}},
		{"a page", generation.Filter{Limit: 3}, []int{9, 5, 4}},
		{"the next", generation.Filter{Limit: 3, After: id(4)}, []int{3, 2, 1}},
		{"the last", generation.Filter{Limit: 3, After: id(1)}, []int{0}},
		{"of a key", generation.Filter{Key: "k2"}, []int{5, 3, 1}},
		{"of a model", generation.Filter{Model: "m2"}, []int{5, 2}},
		{"of both", generation.Filter{Key: "k1", Model: "m1"}, []int{9, 4, 0}},
		{"refused", generation.Filter{Outcome: generation.Refused}, []int{9}},
		{"running", generation.Filter{Outcome: generation.Running}, []int{5, 4}},
		{"completed", generation.Filter{Outcome: events.Completed}, []int{3, 2, 1, 0}},
		{"of a time", generation.Filter{From: at(2), To: at(5)}, []int{4, 3, 2}},
		{"of no key", generation.Filter{Key: "k3"}, nil},
	} {
		c.filter.Org = eventstest.Org
		if c.filter.Limit == 0 {
			c.filter.Limit = 100
		}
		found, err := n.reader().List(context.Background(), &c.filter)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		var got, want []events.RequestID
		for _, s := range found {
			got = append(got, s.ID)
		}
		for _, k := range c.want {
			want = append(want, id(k))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (- want, + got):\n%s", c.name, diff)
		}
	}
	found, err := n.reader().List(context.Background(), &generation.Filter{Org: eventstest.Org, Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	s := found[3] // request 3
	if s.Key != "k2" || s.Model != "m1" || s.State != generation.Ended || s.Outcome != events.Completed || s.CostNano != 3000 || s.Tokens.InputTokens != 250 ||
		s.Tokens.OutputTokens != 40 || !s.Settled || s.Attempts != 1 || s.Status != 200 || s.EndedAt == 0 {
		t.Errorf("request 3 is listed as %+v", s)
	}
	if s := found[0]; s.Outcome != generation.Refused || s.Status != 400 || s.ErrorCode != "input_too_long" || s.LimitScope != "model" || s.LimitKind != "input" {
		t.Errorf("the refusal is listed as %+v", s)
	}
}
