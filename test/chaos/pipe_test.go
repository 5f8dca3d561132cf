package chaos

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// pipe is the way between one process and the log's: it can be cut, stand still or be slow, for everything or for some subjects alone.
type pipe struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	cut   bool
	slow  []string      // subjects that begin so are late; an empty one is all
	by    time.Duration // by how much
	conns map[net.Conn]bool
	done  sync.WaitGroup
}

// newPipe makes a way to an address. It ends with the test.
func newPipe(tb testing.TB, to string) *pipe {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &pipe{listener: l, to: to, conns: map[net.Conn]bool{}}
	p.done.Go(p.accept)
	tb.Cleanup(func() {
		_ = l.Close()
		p.sever()
		p.done.Wait()
	})
	return p
}

func (p *pipe) addr() string { return p.listener.Addr().String() }

// sever breaks every connection and takes no other until heal.
func (p *pipe) sever() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for c := range p.conns {
		_ = c.Close()
	}
}

// late makes messages on subjects that begin so arrive that much later, both ways.
func (p *pipe) late(by time.Duration, subjects ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.by, p.slow = by, subjects
}

// heal makes the way good again.
func (p *pipe) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut, p.slow, p.by = false, nil, 0
}

func (p *pipe) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", p.to)
		p.mu.Lock()
		if err != nil || p.cut {
			p.mu.Unlock()
			_ = near.Close()
			if far != nil {
				_ = far.Close()
			}
			continue
		}
		p.conns[near], p.conns[far] = true, true
		p.mu.Unlock()
		end := func() {
			_ = near.Close()
			_ = far.Close()
			p.mu.Lock()
			delete(p.conns, near)
			delete(p.conns, far)
			p.mu.Unlock()
		}
		p.done.Go(func() { defer end(); p.carry(near, far) })
		p.done.Go(func() { defer end(); p.carry(far, near) })
	}
}

// carry passes messages on, each at its time: those that are late do not hold the others up.
func (p *pipe) carry(from, to net.Conn) {
	ways := map[bool]chan held{}
	var sending sync.WaitGroup
	var writing sync.Mutex
	for _, late := range []bool{false, true} {
		way := make(chan held, 1<<16)
		ways[late] = way
		sending.Go(func() {
			for h := range way {
				time.Sleep(time.Until(h.due))
				writing.Lock()
				_, _ = to.Write(h.frame) // who is gone needs nothing
				writing.Unlock()
			}
		})
	}
	in := bufio.NewReaderSize(from, 1<<16)
	for {
		frame, subject, err := readFrame(in)
		if err != nil {
			break
		}
		h := held{time.Now(), frame}
		late := false
		p.mu.Lock()
		for _, prefix := range p.slow {
			late = late || prefix == "" || subject != "" && strings.HasPrefix(subject, prefix)
		}
		if late {
			h.due = h.due.Add(p.by)
		}
		p.mu.Unlock()
		ways[late] <- h
	}
	for _, way := range ways {
		close(way)
	}
	sending.Wait()
}

// held is a frame that leaves at its time.
type held struct {
	due   time.Time
	frame []byte
}

// readFrame reads one operation of the NATS protocol, with its payload, and the subject that it is on.
func readFrame(in *bufio.Reader) (frame []byte, subject string, err error) {
	line, err := in.ReadBytes('\n')
	if err != nil {
		return nil, "", err
	}
	words := strings.Fields(string(line))
	if len(words) < 3 {
		return line, "", nil
	}
	switch strings.ToUpper(words[0]) {
	case "PUB", "HPUB", "MSG", "HMSG":
	default:
		return line, "", nil
	}
	size, err := strconv.Atoi(words[len(words)-1])
	if err != nil {
		return nil, "", fmt.Errorf("read %q: %w", line, err)
	}
	payload := make([]byte, size+len("\r\n"))
	if _, err := io.ReadFull(in, payload); err != nil {
		return nil, "", err
	}
	return append(bytes.Clone(line), payload...), words[1], nil
}
