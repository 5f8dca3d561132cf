package postgrestest

import (
	"bytes"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// Proxy stands between a client and a server, and makes the way bad: cut off, slow, or broken off in the middle.
type Proxy struct {
	listener net.Listener
	server   string

	mu    sync.Mutex
	cut   bool
	delay time.Duration
	lose  []byte
	conns map[net.Conn]bool
	done  sync.WaitGroup
}

// Through gives a proxy in front of a server, and the connection string that goes through it. It ends with the test.
func Through(tb testing.TB, to string) (*Proxy, string) {
	tb.Helper()
	u, err := url.Parse(to)
	if err != nil {
		tb.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{listener: l, server: u.Host, conns: map[net.Conn]bool{}}
	p.done.Go(p.accept)
	tb.Cleanup(func() {
		_ = l.Close()
		p.Cut()
		p.done.Wait()
	})
	u.Host = l.Addr().String()
	return p, u.String()
}

// Cut breaks all connections off, and takes no other until Heal.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for c := range p.conns {
		_ = c.Close()
	}
}

// Slow holds every answer of the server back for a while.
func (p *Proxy) Slow(by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = by
}

// Lose passes on what a client says with a text in it, once, and breaks its connection off instead of passing on the answer.
func (p *Proxy) Lose(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = []byte(text)
}

// Heal makes the way good again.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut, p.delay, p.lose = false, 0, nil
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		if p.cut {
			_, _ = client.Close(), server.Close()
		}
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		lost := make(chan struct{})
		p.done.Go(func() { p.pass(server, client, func(b []byte) { p.losing(b, lost) }) })
		p.done.Go(func() {
			p.pass(client, server, func([]byte) {
				select {
				case <-lost: // the server has done it
					_ = client.Close()
				default:
					p.wait()
				}
			})
		})
	}
}

func (p *Proxy) losing(said []byte, lost chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.lose) > 0 && bytes.Contains(said, p.lose) {
		p.lose = nil
		close(lost)
	}
}

func (p *Proxy) wait() {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	time.Sleep(delay)
}

// pass copies until either side ends.
func (p *Proxy) pass(to, from net.Conn, before func([]byte)) {
	defer func() {
		_, _ = to.Close(), from.Close()
		p.mu.Lock()
		delete(p.conns, to)
		delete(p.conns, from)
		p.mu.Unlock()
	}()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if n > 0 {
			before(b[:n])
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
