package auditor

import (
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/projections/postgres"
)

// whole appends a request from its reserve to its release.
func (n *node) whole(k int) (seq uint64) {
	n.admit(reserve(k))
	return n.state(eventstest.Final(id(k), 250, 40, 91_000), eventstest.Release(id(k)))
}

// exact fails the test unless requests 0 to some are kept, each once and whole.
func (n *node) exact(requests int) {
	n.t.Helper()
	found, err := n.reader().List(context.Background(), &generation.Filter{Org: eventstest.Org, Limit: 1_000_000})
	if err != nil || len(found) != requests {
		n.t.Fatalf("%d requests are listed, want %d (%v)", len(found), requests, err)
	}
	for i, s := range found {
		if want := id(requests - 1 - i); s.ID != want || s.Outcome != events.Completed || s.CostNano != 91_000 || s.Attempts != 1 {
			n.t.Errorf("place %d has %+v, want %s", i, s, want)
		}
	}
	if n.pool == nil {
		return
	}
	var tries int
	if err := n.pool.QueryRow(context.Background(), "SELECT count(*) FROM attempts WHERE final AND cost_nano = 91000 AND outcome = 'completed'").Scan(&tries); err != nil || tries != requests {
		n.t.Errorf("%d attempts, want %d (%v)", tries, requests, err)
	}
}

// An auditor that is stopped again and again in the middle of its work loses nothing and counts nothing twice.
func TestStoppedAgainAndAgain(t *testing.T) { onEach(t, stoppedAgainAndAgain) }

func stoppedAgainAndAgain(t *testing.T, n *node) {
	const requests = 300
	var last uint64
	var group errgroup.Group
	group.Go(func() error {
		for k := range requests {
			last = n.whole(k)
		}
		return nil
	})
	for pause := range 8 {
		a := n.run(nil)
		time.Sleep(time.Duration(pause*7) * time.Millisecond)
		if n.pool != nil && pause%2 == 0 { // while it waits for the server in the middle of a write
			tx, err := n.pool.Begin(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(context.Background(), "UPDATE "+n.serving()+".position SET closed = closed"); err != nil {
				t.Fatal(err)
			}
			n.whole(requests + pause)
			time.Sleep(2 * pageEvery)
			time.AfterFunc(pageEvery, func() { _ = tx.Rollback(context.Background()) })
		}
		a.stop()
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	for pause := range 8 {
		last = max(last, n.whole(requests+pause)) // known already, or new
	}
	a := n.run(nil)
	n.stored(a, last)
	n.exact(requests + 8)
}

// wire is a way to the database that can be cut.
type wire struct {
	net.Listener
	to string

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

func newWire(t *testing.T, to string) *wire {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{Listener: l, to: to, conns: map[net.Conn]bool{}}
	var group errgroup.Group
	group.Go(func() error {
		for {
			in, err := l.Accept()
			if err != nil {
				return nil
			}
			group.Go(func() error { w.carry(in); return nil })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		w.set(true)
		_ = group.Wait()
	})
	return w
}

// set cuts the way, or mends it.
func (w *wire) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut = cut; cut {
		for c := range w.conns {
			_ = c.Close()
		}
	}
}

// hold keeps a connection to be cut, or closes it at once.
func (w *wire) hold(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		_ = c.Close()
		return false
	}
	w.conns[c] = true
	return true
}

func (w *wire) carry(in net.Conn) {
	out, err := net.Dial("tcp", w.to)
	if err != nil || !w.hold(in) || !w.hold(out) {
		_ = in.Close()
		return
	}
	var group errgroup.Group
	for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
		group.Go(func() error {
			_, _ = io.Copy(pair[0], pair[1])
			_, _ = pair[0].Close(), pair[1].Close()
			return nil
		})
	}
	_ = group.Wait()
}

// While the database is away the auditor waits, the log goes on, and then everything is there, each once. It also begins without it.
func TestTheDatabaseIsAway(t *testing.T) {
	n := newPostgres(t)
	at, err := url.Parse(n.url)
	if err != nil {
		t.Fatal(err)
	}
	w := newWire(t, at.Host)
	at.Host = w.Addr().String()
	direct := n.pool
	n.url = at.String()
	if n.pool, err = postgres.Open(n.url, t.Name()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.pool.Close)
	w.set(true)
	cfg := func(c *Config) { c.Alone = true; c.Name = "first" }
	a := n.begin(cfg)
	last := n.whole(0)
	w.set(false)
	n.active(a)
	n.stored(a, last)
	for k := 1; k < 60; k++ {
		if k%20 == 10 {
			w.set(true)
		}
		last = n.whole(k) // the log takes it all the same
		if k%20 == 19 {
			time.Sleep(2 * retryPause)
			w.set(false)
		}
	}
	n.stored(a, last)
	a.stop()
	n.pool = direct
	n.exact(60)
}

// Even without a lease two auditors do not interleave: what one has written the other finds out before it writes.
func TestTwoWithoutALease(t *testing.T) {
	n := newPostgres(t)
	named := func(name string) func(*Config) { return func(c *Config) { c.Name = name } }
	a, b := n.run(named("a")), n.run(named("b"))
	var last uint64
	for k := range 100 {
		last = n.whole(k)
	}
	n.until(func() bool { return a.Status().Position >= last || b.Status().Position >= last }, func() string { return "neither got on" })
	a.stop()
	b.stop()
	n.stored(n.run(named("c")), last)
	n.exact(100)
}
