package journal_test

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// relay stands between a client and a broker, and loses what it is told to lose.
type relay struct {
	listener net.Listener
	to       string
	wg       sync.WaitGroup
	mu       sync.Mutex
	conns    map[net.Conn]bool
	deaf     atomic.Bool // what the broker says is lost
	mute     atomic.Bool // what the client says is lost
}

func startRelay(t testing.TB, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: l, to: to, conns: map[net.Conn]bool{}}
	r.wg.Add(1)
	go r.accept()
	t.Cleanup(func() {
		_ = l.Close()
		r.cut()
		r.wg.Wait()
	})
	return r
}

func (r *relay) url() string { return "nats://" + r.listener.Addr().String() }

func (r *relay) accept() {
	defer r.wg.Done()
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", r.to)
		if err != nil {
			_ = client.Close()
			continue
		}
		r.mu.Lock()
		r.conns[client], r.conns[server] = true, true
		r.mu.Unlock()
		r.wg.Add(2)
		go r.copy(server, client, &r.mute)
		go r.copy(client, server, &r.deaf)
	}
}

func (r *relay) copy(to, from net.Conn, lose *atomic.Bool) {
	defer r.wg.Done()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !lose.Load() {
			if _, err := to.Write(buf[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	_ = to.Close()
	_ = from.Close()
}

// cut closes every connection.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		_ = c.Close()
	}
	clear(r.conns)
}

// heal closes every connection and loses nothing on the next ones.
func (r *relay) heal() {
	r.deaf.Store(false)
	r.mute.Store(false)
	r.cut()
}
