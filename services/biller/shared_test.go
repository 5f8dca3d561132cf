package biller

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/kv"
	"github.com/weirhq/weir/projections/usage"
)

// prune lets the log forget what is before a sequence, as age does.
func (n *node) prune(first uint64) {
	n.t.Helper()
	s, err := n.js.Stream(n.t.Context(), n.log.Stream())
	if err != nil {
		n.t.Fatal(err)
	}
	kept := s.CachedInfo().Config
	pruned := kept
	pruned.Discard, pruned.MaxMsgs = jetstream.DiscardOld, int64(s.CachedInfo().State.LastSeq-first+1)
	for _, c := range []jetstream.StreamConfig{pruned, kept} {
		if _, err := n.js.UpdateStream(n.t.Context(), c); err != nil {
			n.t.Fatal(err)
		}
	}
}

// shared lists the states that are shared, the newest first.
func (n *node) shared() []kv.Snapshot {
	n.t.Helper()
	all, err := kv.NewSnapshots(kv.SnapshotsConfig{JetStream: n.js, Role: access.Biller}).List(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	return all
}

// holds fails the test unless the stream comes to hold exactly these lines.
func (n *node) holds(want []usage.Line) {
	n.t.Helper()
	n.eventually("every line", func() bool { return n.count() >= len(want) })
	var got []usage.Line
	for _, m := range n.messages() {
		l, err := usage.Decode(m.Data)
		if err != nil {
			n.t.Fatal(err)
		}
		got = append(got, l)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.t.Errorf("lines (- by the whole log, + in the stream):\n%.4000s", diff)
	}
}

// ends waits until a biller gives up, and says why.
func (r *running) ends(t *testing.T) string {
	t.Helper()
	select {
	case <-r.done:
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	err := r.stop()
	if err == nil {
		t.Fatal("it ended without an error")
	}
	return err.Error()
}

// A biller on a new machine needs nothing copied where the log's beginning is gone: it goes on from what another shared, to the line.
func TestANewBillerOnAPrunedLog(t *testing.T) {
	n := newNode(t)
	first := n.run(t.TempDir(), nil)
	n.requests(1, 60)
	n.billed()
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	all := n.shared()
	if len(all) == 0 || all[0].Link == "" || all[0].Seq != first.Status().Shared {
		t.Fatalf("shared are %+v, and it says %+v", all, first.Status())
	}
	n.requests(60, 90)
	want := n.lines()
	n.prune(all[0].Seq + 1)

	second := n.run(t.TempDir(), nil)
	n.holds(want)
	n.eventually("nothing pending", func() bool { s := second.Status(); return s.Pending == 0 && s.Billed == s.Applied })
	if err := second.stop(); err != nil {
		t.Fatal(err)
	}
	if got := n.shared(); len(got) != 2 || got[0].Seq <= all[0].Seq {
		t.Errorf("shared are %+v, want also what the second knows", got)
	}
}

// One that stood still until the log had forgotten what it lacks goes on from what another shared.
func TestABillerThatIsTooFarBehind(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	old := n.run(dir, nil)
	n.requests(1, 30)
	n.billed()
	if err := old.stop(); err != nil {
		t.Fatal(err)
	}
	other := n.run(t.TempDir(), nil)
	n.requests(30, 60)
	n.billed()
	if err := other.stop(); err != nil {
		t.Fatal(err)
	}
	n.requests(60, 90)
	want := n.lines()
	n.prune(n.shared()[0].Seq + 1)
	n.run(dir, nil)
	n.holds(want)
}

// The writer shares now and then, and only the writer.
func TestTheWriterShares(t *testing.T) {
	n := newNode(t)
	often := func(name string) func(*Config) {
		return func(c *Config) { c.Name, c.Alone, c.ShareEvery = name, false, 20*time.Millisecond }
	}
	one := n.run(t.TempDir(), often("one"))
	n.eventually("a writer", func() bool { return one.Status().Writing })
	two := n.run(t.TempDir(), often("two"))
	for k := range 3 {
		before := one.Status().Shared
		n.requests(1+k*10, 11+k*10)
		n.eventually("shared again", func() bool { return one.Status().Shared > before })
	}
	if s := two.Status(); s.Shared > 0 {
		t.Errorf("the other one shares, too: %+v", s)
	}
	for _, s := range n.shared() {
		if s.By != "one" {
			t.Errorf("%+v is not the writer's", s)
		}
	}
}

// What does not fit is not gone on with, and what is missing is said.
func TestSharedStatesThatCannotBeUsed(t *testing.T) {
	world := func(t *testing.T, lacks uint64) *node {
		n := newNode(t)
		b := n.run(t.TempDir(), nil)
		n.requests(1, 30)
		n.billed()
		if err := b.stop(); err != nil {
			t.Fatal(err)
		}
		n.requests(30, 40)
		n.prune(n.shared()[0].Seq + 1 + lacks)
		return n
	}
	for _, test := range []struct {
		name  string
		lacks uint64
		spoil func(n *node)
		why   string
	}{
		{"none is there", 0, func(n *node) {
			if err := n.js.DeleteKeyValue(n.t.Context(), access.BucketSnapshots); err != nil {
				n.t.Fatal(err)
			}
		}, "none is shared"},
		{"it ends too early", 3, func(*node) {}, "ends too early"},
		{"it is damaged", 0, func(n *node) {
			bucket, err := n.js.KeyValue(n.t.Context(), access.BucketSnapshots)
			if err != nil {
				n.t.Fatal(err)
			}
			for _, key := range []string{"biller.a.0", "biller.b.0"} {
				if _, err := bucket.Put(n.t.Context(), key, []byte("nonsense")); err != nil {
					n.t.Fatal(err)
				}
			}
		}, "its checksum is wrong"},
		{"the stream has lost lines", 0, func(n *node) {
			if err := n.js.DeleteStream(n.t.Context(), Stream); err != nil {
				n.t.Fatal(err)
			}
		}, "has lines that the stream has lost"},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := world(t, test.lacks)
			test.spoil(n)
			before := n.count()
			why := n.run(t.TempDir(), nil).ends(t)
			for _, want := range []string{"the log begins at sequence", "no state is kept here", test.why} {
				if !strings.Contains(why, want) {
					t.Errorf("it says %q, which lacks %q", why, want)
				}
			}
			if n.count() != before {
				t.Errorf("%d lines were written", n.count()-before)
			}
		})
	}
}
