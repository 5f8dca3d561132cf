package biller

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/projections/usage"
)

func TestALineInTheStream(t *testing.T) {
	n := newNode(t)
	n.requests(1, 3)
	n.run(t.TempDir(), nil)
	n.billed()
	m := n.messages()[0]
	l := n.lines()[0]
	for name, want := range map[string]string{
		"ce-specversion": "1.0", "ce-id": "e2", "ce-type": "weir.usage.v1", "ce-source": "weir/usage", "ce-subject": "acme", "ce-time": instant(l.Time),
		"content-type": "application/json", "Nats-Msg-Id": "e2.0", "weir-position": "2.0",
	} {
		if got := m.Header[name]; len(got) != 1 || got[0] != want {
			t.Errorf("header %s is %q, want %q", name, got, want)
		}
	}
	if m.Subject != "usage.acme" {
		t.Errorf("subject %s", m.Subject)
	}
}

// withoutDuplicateWindow makes the stream forget ids at once, so that nothing but the place of the last line keeps lines from being written twice.
func (n *node) withoutDuplicateWindow() {
	n.t.Helper()
	_, err := n.js.CreateStream(n.t.Context(), jetstream.StreamConfig{Name: Stream, Subjects: []string{"usage.>"}, AllowDirect: true,
		DenyDelete: true, Discard: jetstream.DiscardNew, Duplicates: 100 * time.Millisecond, MaxAge: DefaultMaxAge, MaxBytes: -1, Replicas: 1})
	if err != nil {
		n.t.Fatal(err)
	}
}

// A biller that crashes again and again, with its newest state, an old one or none, loses nothing and repeats nothing.
func TestCrashes(t *testing.T) {
	n := newNode(t)
	n.withoutDuplicateWindow()
	dir := t.TempDir()
	var old []byte
	for round := range 6 {
		before := n.count()
		b := n.run(dir, func(c *Config) { c.SaveEvery = 10 * time.Millisecond })
		n.requests(round*600, round*600+600)
		n.eventually("some lines more", func() bool { return n.count() > before+50 })
		switch round {
		case 0, 3:
			b.crash(t, dir, nil)
		case 1:
			b.crash(t, dir, readState(t, dir))
			old = readState(t, dir)
		default:
			b.crash(t, dir, old)
		}
	}
	n.run(dir, nil)
	n.billed()
}

func readState(t *testing.T, dir string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, folder, snapshotName))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Two billers that both believe to be the one: the stream's end decides.
func TestTwoWriters(t *testing.T) {
	n := newNode(t)
	n.withoutDuplicateWindow()
	n.run(t.TempDir(), nil)
	n.run(t.TempDir(), nil)
	for k := range 20 {
		n.requests(k*100, k*100+100)
	}
	n.billed()
}

// The lease moves to the other biller when the one that writes goes, in good order or not.
func TestTheLeaseMoves(t *testing.T) {
	n := newNode(t)
	leased := func(c *Config) { c.Alone = false }
	dirs := []string{t.TempDir(), t.TempDir()}
	all := []*running{n.run(dirs[0], leased), n.run(dirs[1], leased)}
	writer := func() int {
		for i, b := range all {
			if b.Status().Writing {
				return i
			}
		}
		return -1
	}
	n.requests(1, 300)
	n.billed()
	first := writer()
	all[first].crash(t, dirs[first], nil)
	n.requests(300, 600)
	n.billed()
	if second := writer(); second == first || second < 0 {
		t.Fatalf("biller %d writes after %d crashed", second, first)
	}
	all[first] = n.run(dirs[first], leased)
	if err := all[1-first].stop(); err != nil {
		t.Error(err)
	}
	n.requests(600, 900)
	n.billed()
	n.eventually("nothing pending", func() bool { s := all[first].Status(); return s.Pending == 0 && s.Billed == s.Applied })
}

func TestCorrectionsFindTheirLines(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	stated := 0
	correct := func(k int, revision int64, org events.Org) {
		stated++
		ev := eventstest.Event(fmt.Sprint("correction", stated), &events.Correction{Request: id(k), Revision: revision, CostNano: 5, Usage: events.Usage{InputTokens: 1}})
		ev.Org = org
		if _, err := n.log.Publish(t.Context(), ev); err != nil {
			t.Fatal(err)
		}
	}
	b := n.run(dir, nil)
	n.requests(1, 9)
	n.billed()
	correct(1, 1, "acme") // long out of memory
	correct(7, 2, "beta")
	n.billed()
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	b = n.run(dir, nil)
	correct(1, 1, "acme") // not above
	correct(1, 4, "acme")
	correct(2, 1, "beta") // another org's
	correct(5, 1, "acme") // was refused
	n.requests(9, 10)
	n.billed()
	lines := n.lines()
	if c := lines[len(lines)-2]; c.State != usage.Corrected || c.Revision != 4 || c.ID != "e2" || c.Change != (usage.Amounts{}) || c.Key != eventstest.Key {
		t.Errorf("the last correction is %+v", c)
	}
	n.eventually("counted", func() bool { s := b.Status(); return s.Counts.Orphans == 2 && s.Counts.Late == 1 })
}

// A log that was replaced is billed from its start, behind what is there.
func TestTheLogIsReplaced(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	b := n.run(dir, nil)
	n.requests(1, 20)
	n.billed()
	before := n.count()
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	if err := n.js.DeleteStream(t.Context(), n.log.Stream()); err != nil {
		t.Fatal(err)
	}
	n.open()
	n.requests(20, 40)
	n.run(dir, nil)
	want := n.lines()
	n.eventually("the lines of both logs", func() bool { return n.count() == before+len(want) })
	for i, m := range n.messages()[before:] {
		if l, err := usage.Decode(m.Data); err != nil || l != want[i] {
			t.Errorf("line %d is %+v (%v), want %+v", i, l, err, want[i])
		}
	}
}

// A stream that is gone is written anew.
func TestTheStreamIsGone(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	n.run(dir, nil)
	n.requests(1, 200)
	n.billed()
	if err := n.js.DeleteStream(t.Context(), Stream); err != nil {
		t.Fatal(err)
	}
	n.requests(200, 210)
	n.billed()
}

func TestNoStartInTheMiddleOfALog(t *testing.T) {
	n := newNode(t)
	n.requests(1, 10)
	if err := n.js.DeleteStream(t.Context(), n.log.Stream()); err != nil {
		t.Fatal(err)
	}
	cfg := jetstream.StreamConfig{Name: n.log.Stream(), Subjects: []string{"acct.>"}, FirstSeq: 100, Compression: jetstream.S2Compression, Discard: jetstream.DiscardNew,
		DenyDelete: true, DenyPurge: true, AllowDirect: true, Duplicates: 2 * time.Minute}
	if _, err := n.js.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	n.open()
	n.requests(10, 12)
	b := n.run(t.TempDir(), nil)
	select {
	case <-b.done:
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	if err := b.stop(); err == nil || !strings.Contains(err.Error(), "begins at sequence 100") {
		t.Errorf("it ended with %v", err)
	}
	if n.count() != 0 {
		t.Errorf("%d lines were written", n.count())
	}
}

func TestDamagedState(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	b := n.run(dir, nil)
	n.requests(1, 50)
	n.billed()
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	text := readState(t, dir)
	text[len(text)/2] ^= 1
	if err := os.WriteFile(filepath.Join(dir, folder, snapshotName), text, 0o600); err != nil {
		t.Fatal(err)
	}
	n.requests(50, 60)
	n.run(dir, nil)
	n.billed()
	if _, err := os.Stat(filepath.Join(dir, folder, snapshotName+".corrupt")); err != nil {
		t.Error(err)
	}
}

// Of each day the first state is kept, so that a log whose beginning is gone can be folded from there.
func TestDailyStates(t *testing.T) {
	dir := t.TempDir()
	for day := range int64(40) {
		for range 2 {
			s := newState()
			s.created, s.applied = time.Unix(0, 0), uint64(day+1)
			if err := save(dir, s.encode(), day*int64(usage.Day)); err != nil {
				t.Fatal(err)
			}
		}
	}
	names, err := filepath.Glob(filepath.Join(dir, folder, "*"))
	if err != nil || len(names) != dailyKept+1 {
		t.Errorf("%d files are kept: %v", len(names), err)
	}
	for from, want := range map[uint64]uint64{0: 6, 20: 19, 41: 40, 42: 0} {
		start, found, err := EarliestStart(dir, time.Unix(0, 0), from)
		if err != nil || found != (want > 0) || start.Applied != want {
			t.Errorf("from %d: %d, %t, %v; want %d", from, start.Applied, found, err, want)
		}
	}
	if _, found, err := EarliestStart(dir, time.Unix(1, 0), 1); found || err != nil {
		t.Errorf("of another log: %t, %v", found, err)
	}
}

func TestSums(t *testing.T) {
	n := newNode(t)
	b := n.run(t.TempDir(), func(c *Config) { c.SaveEvery = time.Millisecond })
	n.requests(1, 50)
	n.billed()
	var want usage.Amounts
	for _, l := range n.lines() {
		want = want.Plus(l.Change)
	}
	n.eventually("the sums", func() bool {
		hours, days := b.Sums()
		var h, d usage.Amounts
		for _, s := range hours {
			h = h.Plus(s.Amounts)
		}
		for _, s := range days {
			d = d.Plus(s.Amounts)
		}
		return h == want && d == want
	})
}

func TestConfigurations(t *testing.T) {
	n := newNode(t)
	good := Config{Conn: n.nc, Log: n.log, Name: "b"}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	bad := Config{MaxAge: -1, MaxBytes: -2, Replicas: -1, SaveEvery: -1, Exports: []Export{{Name: "A"}, {Name: "a"}, {Name: "b", To: &CSV{}, Batch: 2000}, {Name: "b", To: &CSV{}}}}
	err := bad.Validate()
	for _, fault := range []string{"conn", "log", "name", "max age", "max bytes", "replicas", "save every", `export 0: name "A"`, "export 1: to", "export 2: batch 2000", "export 3: name \"b\" stands twice"} {
		if err == nil || !strings.Contains(err.Error(), fault) {
			t.Errorf("no word of %s: %v", fault, err)
		}
	}
}
