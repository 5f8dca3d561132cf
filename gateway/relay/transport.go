package relay

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/events"
)

const (
	maxIdle        = 4096 // connections kept open in all
	maxIdlePerHost = 1024
	// Model servers close idle connections after as little as 5 s. A connection that is given up before that cannot be
	// closed by the server in the moment a request is written to it, which would leave the request's fate unknown.
	localIdle    = 3 * time.Second
	providerIdle = 90 * time.Second
	// maxHeader bounds an answer's headers in bytes.
	maxHeader = 64 << 10
	// pingAfter is how long an HTTP/2 connection may be silent before it is probed.
	pingAfter   = 15 * time.Second
	pingTimeout = 10 * time.Second
)

// newTransport makes a transport without a proxy, without compression, and that counts what it writes.
func newTransport(o *Options, local bool) *http.Transport {
	dialer := &net.Dialer{Timeout: o.Connect, KeepAlive: 15 * time.Second}
	t := &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &conn{Conn: c}, nil
		},
		TLSHandshakeTimeout:    o.Connect,
		TLSClientConfig:        o.TLS.Clone(),
		DisableCompression:     true,
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    maxIdlePerHost,
		MaxResponseHeaderBytes: maxHeader,
		IdleConnTimeout:        providerIdle,
	}
	if local {
		t.IdleConnTimeout = localIdle
		return t
	}
	t.ForceAttemptHTTP2 = true
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout}
	return t
}

// conn counts what is written to it. With barred set it writes nothing any more.
type conn struct {
	net.Conn
	written atomic.Int64
	barred  atomic.Bool
	call    atomic.Pointer[trace] // whose request is written, where a connection has one at a time
}

// Write counts before it writes: whoever sees the old count knows that nothing was under way.
//
// It asks the call's guard once more, as the last thing before the system has the bytes: a process that stood still since the connection
// was chosen would otherwise go on as if no time had passed.
func (c *conn) Write(b []byte) (int, error) {
	if t := c.call.Load(); t != nil && !c.barred.Load() && !t.guard() {
		c.barred.Store(true)
		t.bar()
	}
	if c.barred.Load() {
		return 0, errBarred
	}
	c.written.Add(int64(len(b)))
	n, err := c.Conn.Write(b)
	if n == 0 && err != nil {
		c.written.Add(-int64(len(b)))
	}
	return n, err
}

// trace follows one call through the transport, to prove what was not sent.
type trace struct {
	guard func() bool
	bar   func()

	conn  *conn
	base  int64 // bytes written to the connection before this call had it
	http2 bool  // the connection is shared with other calls
	dirty bool  // an earlier connection of this call took bytes
}

// hooks returns the trace's hooks. All run before the transport returns from the call or, for a connection that comes too
// late, never.
func (t *trace) hooks() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{GetConn: t.getConn, GotConn: t.gotConn}
}

// getConn begins with a connection. The transport begins anew by itself when a connection that it had kept turns out to be
// closed before anything was written, or when an HTTP/2 server says that it did not process the request.
func (t *trace) getConn(string) {
	t.leave()
	if t.conn != nil && t.conn.written.Load() != t.base && !t.http2 {
		t.dirty = true
	}
	t.conn = nil
}

func (t *trace) gotConn(info httptrace.GotConnInfo) {
	c := info.Conn
	t.http2 = false
	if s, ok := c.(*tls.Conn); ok {
		t.http2 = s.ConnectionState().NegotiatedProtocol == "h2"
		c = s.NetConn()
	}
	t.conn, _ = c.(*conn)
	if t.conn == nil {
		t.dirty = true // not one of ours: nothing can be proven
		return
	}
	t.base = t.conn.written.Load()
	if t.guard == nil {
		return
	}
	if !t.http2 {
		t.conn.call.Store(t)
	}
	if !t.guard() {
		if !t.http2 {
			t.conn.barred.Store(true)
		}
		t.bar()
	}
}

// leave takes the call's guard from its connection: what is written there from now on is another's, or nobody's.
func (t *trace) leave() {
	if t.conn != nil {
		t.conn.call.CompareAndSwap(t, nil)
	}
}

// body gives a request's body anew for each time that it is sent. Where the connection may be shared with other calls, its reader asks
// the guard before each piece, which is what keeps a call from being made late there. Elsewhere it is one that the transport knows to be
// in memory, so that headers and body leave in one piece.
func (t *trace) body(b []byte, shared bool) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) {
		r := bytes.NewReader(b)
		if !shared || t.guard == nil {
			return io.NopCloser(r), nil
		}
		return io.NopCloser(&guarded{r, t}), nil
	}
}

// guarded is a body that ends in an error when the call is no longer allowed. It hides how the reader could write itself at once.
type guarded struct {
	r *bytes.Reader
	t *trace
}

// Read reads the next piece if the call is still allowed.
func (g *guarded) Read(p []byte) (int, error) {
	if !g.t.guard() {
		g.t.bar()
		return 0, errBarred
	}
	return g.r.Read(p)
}

// dispatched says what is proven about a call that got no answer.
func (t *trace) dispatched() events.Dispatched {
	if t.dirty || t.conn != nil && (t.http2 || t.conn.written.Load() != t.base) {
		return events.DispatchedUnknown // over HTTP/2 the write may even be still to come
	}
	return events.DispatchedNo
}
