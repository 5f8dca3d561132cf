package spool

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/events"
)

// childDir makes the test binary a gateway that spools until it is killed.
const childDir = "WEIR_SPOOL_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		child(dir)
		return
	}
	os.Exit(m.Run())
}

// child spools events and says of each that it is spooled.
func child(dir string) {
	s, _, err := Open(dir, head)
	if err != nil {
		fmt.Println(err)
		return
	}
	for i := 0; ; i++ {
		if err := s.Append(event(i), 7); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("spooled", i)
	}
}

var head = Head{Gateway: "gw-12345678", Epoch: 1}

func event(i int) events.Event {
	id := events.RequestID(fmt.Sprintf("r%d", i))
	return events.Event{ID: string(id) + "/0", Source: "gw-12345678", Subject: string(id), Org: "acme", Data: &events.Reserve{
		Request: id, Org: "acme", Key: "k", Gateway: "gw-12345678", Epoch: 1, Mode: events.ModeBoundedLocal, At: 1_700_000_000_000_000_000, MaxMS: events.DefaultMaxMS,
		Claims: []events.Claim{{Meter: "org/acme/rpm", Kind: events.Window, WindowMS: 60_000, Amount: 1, Limit: 5, HasLimit: true, Basis: events.BasisRequest}}}}
}

func open(tb testing.TB, dir string) (*Spool, []string) {
	tb.Helper()
	s, damage, err := Open(dir, head)
	if err != nil {
		tb.Fatal(err)
	}
	return s, damage
}

func ids(s *Spool) (all []string) {
	for _, e := range s.Next(1 << 20) {
		all = append(all, e.ID)
	}
	return all
}

func fill(tb testing.TB, s *Spool, from, to int) {
	tb.Helper()
	for i := from; i < to; i++ {
		if err := s.Append(event(i), uint64(100+i)); err != nil {
			tb.Fatal(err)
		}
	}
}

func want(from, to int) (all []string) {
	for i := from; i < to; i++ {
		all = append(all, event(i).ID)
	}
	return all
}

func same(tb testing.TB, got, want []string) {
	tb.Helper()
	if strings.Join(got, " ") != strings.Join(want, " ") {
		tb.Fatalf("got %d events %.200v, want %d %.200v", len(got), got, len(want), want)
	}
}

func TestWhatWasSpooledIsThereInOrderUntilItIsPublished(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	fill(t, s, 0, 10)
	same(t, ids(s), want(0, 10))
	if err := s.Published(4); err != nil {
		t.Fatal(err)
	}
	same(t, ids(s), want(4, 10))
	fill(t, s, 10, 12)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(event(0), 0); err == nil {
		t.Fatal("a closed spool took an event")
	}

	s, damage := open(t, dir)
	if len(damage) > 0 {
		t.Fatal(damage)
	}
	same(t, ids(s), want(0, 12)) // those published of a segment that is not, are looked for in the log
	first := s.Next(1)[0]
	if r := first.Data.(*events.Reserve); first.After != 100 || r.Mode != events.ModeBoundedLocal || r.At != 1_700_000_000_000_000_000 || len(r.Claims) != 1 {
		t.Fatalf("%+v, %+v", first, r)
	}
	if err := s.Published(12); err != nil {
		t.Fatal(err)
	}
	if s.Waiting() != 0 || len(s.Next(1)) != 0 {
		t.Fatal("something is left")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := Left(dir); err != nil || len(left) != 0 {
		t.Fatalf("an empty spool was left: %v, %v", left, err)
	}
}

func TestASpoolIsUsedByOneProcess(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	if _, _, err := Open(dir, head); !InUse(err) {
		t.Fatalf("%v, want that it is in use", err)
	}
	if left, err := Left(dir); err != nil || len(left) != 1 || left[0] != head.Gateway {
		t.Fatalf("%v, %v", left, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestSegmentsAreRemovedOneByOne(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	one := len(events.AppendPack(nil, []events.Event{event(1000)})) + frameHead
	n := 3 * segmentBytes / one
	for i := range n { // without a sync for each, this is what Append does
		g, err := s.open(1)
		if err != nil {
			t.Fatal(err)
		}
		b := appendFrame(nil, events.AppendPack(nil, []events.Event{event(i)}))
		if _, err := g.file.WriteAt(b, g.size); err != nil {
			t.Fatal(err)
		}
		g.size, s.bytes, s.waiting = g.size+int64(len(b)), s.bytes+int64(len(b)), s.waiting+1
		g.entries = append(g.entries, entry{event(i), int64(len(b))})
	}
	files := func() int {
		paths, _ := filepath.Glob(filepath.Join(dir, string(head.Gateway), "*"+suffix))
		return len(paths)
	}
	if files() < 3 {
		t.Fatalf("%d segments", files())
	}
	before := files()
	if err := s.Published(n / 2); err != nil {
		t.Fatal(err)
	}
	if files() >= before || files() == 0 {
		t.Fatalf("%d of %d segments after half was published", files(), before)
	}
	s.bytes = MaxBytes
	if err := s.Append(event(0), 0); err != ErrFull {
		t.Fatalf("%v, want ErrFull", err)
	}
}

// Whatever the tail of a segment looks like, what stands before it counts, and what is spooled then is there too.
func TestDamageIsCutOff(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		s, _ := open(t, dir)
		n := rapid.IntRange(1, 6).Draw(r, "events")
		ends := []int64{}
		for i := range n {
			fill(t, s, i, i+1)
			ends = append(ends, s.segments[0].size)
		}
		path := s.segments[0].path
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		where := rapid.Int64Range(0, int64(len(b))-1).Draw(r, "where")
		whole := 0
		for whole < n && ends[whole] <= where {
			whole++
		}
		if rapid.Bool().Draw(r, "cut") {
			b = b[:where]
		} else {
			b[where] ^= byte(rapid.IntRange(1, 255).Draw(r, "bits"))
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, damage := open(t, dir)
		cleanCut := whole > 0 && int64(len(b)) == ends[whole-1]
		if len(damage) == 0 && !cleanCut {
			r.Fatalf("damage at %d was not noticed", where)
		}
		got := ids(s)
		if where >= ends[0]-firstSize() { // not in the head
			same(t, got, want(0, whole))
		}
		fill(t, s, n, n+1)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s, damage = open(t, dir)
		if len(damage) > 0 {
			r.Fatalf("the damage is still there: %v", damage)
		}
		same(t, ids(s), append(got, want(n, n+1)...))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// firstSize is how many bytes the first event took.
func firstSize() int64 {
	return int64(len(events.AppendPack(nil, []events.Event{event(0)})) + frameHead)
}

func TestWhatIsSpooledSurvivesKill9(t *testing.T) {
	dir := t.TempDir()
	for round := range 3 {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), childDir+"="+dir)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		said := 0
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if lines.Text() != fmt.Sprintf("spooled %d", said) {
				t.Errorf("the child said %q", lines.Text())
				break
			}
			if said++; said == 20+round {
				_ = c.Process.Kill() // SIGKILL; what it says until it is dead is read on
			}
		}
		_ = c.Wait() // killed
		s, _ := open(t, dir)
		got := ids(s)
		if len(got) < said {
			t.Fatalf("%d events were spooled, %d are there", said, len(got))
		}
		same(t, got[:said], want(0, said))
		if err := s.Published(len(got)); err != nil {
			t.Fatal(err)
		}
		for _, g := range s.segments {
			t.Errorf("segment %s is left", g.path)
		}
		_ = s.lock.Close() // kept as the child left it
	}
}
