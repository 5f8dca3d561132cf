//go:build chaos

package chaos

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

const long = true

// atOnce is how many rows run at the same time: one, as each says for how long requests failed.
const atOnce = 1

// think is how long a client waits after an answer: so many are not to keep a small machine busy with themselves.
const think = 250 * time.Millisecond

// losses are every way of losing the log, with what tells of it beside the authority in the broker's store, and in PostgreSQL.
var losses = []loss{
	{"deleted", false, "empty"}, {"deleted", true, "full"},
	{"emptied", false, "full"}, {"emptied", true, "empty"},
	{"flipped", false, "empty"}, {"flipped", true, "empty"},
	{"restored from a backup", false, "empty"}, {"restored from a backup", true, "empty"},
	{"another's", false, "empty"}, {"another's", true, "empty"},
	{"cut", false, "empty"}, {"cut", true, "empty"},
	{"all data deleted", false, "empty"}, {"all data deleted", true, "empty"},
}

// The disk is full, and then has room again.
func TestTheDiskIsFull(t *testing.T) {
	data := filepath.Join(t.TempDir(), "disk")
	if err := os.MkdirAll(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", data, "tmpfs", 0, "size=48m"); err != nil {
		t.Fatalf("a small disk is needed for this row: mount: %v", err)
	}
	defer func() { _ = syscall.Unmount(data, syscall.MNT_DETACH) }()
	w := newWorld(t, setup{data: data})
	l := w.run(clients())
	time.Sleep(2 * time.Second)
	filler := filepath.Join(data, "filler")
	fill(t, filler)
	time.Sleep(10 * time.Second)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	if ok, _ := w.admits(0, "strict"); !ok { // a broker that has given its store up comes back with its process
		w.core.stop()
		w.core.start()
	}
	w.ready()
	all := l.end()
	line(t, "the disk was full for 10 s", say(all), w.check(all, checks{}))
}

// fill writes until the disk takes no more.
func fill(t *testing.T, path string) {
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 64<<10)
	for size := len(b); size > 0; {
		if _, err := f.Write(b[:size]); err != nil {
			size /= 2
		}
	}
}
