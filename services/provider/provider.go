// Package provider is a scripted upstream: a server that answers in both wire formats as real providers do, with streams,
// usage, delays and faults that each request chooses by a header. The demo, the tests and the load tests run against it.
// It keeps its own record of what it was asked to do, so that limits can be checked from outside the gateway.
package provider

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/gateway/wire"
)

const (
	// ScriptHeader carries the script of one request: "delay=50ms;tokens=20;gap=10ms". See Script.
	ScriptHeader = "X-Provider-Script"
	// MaxBody bounds a request body in bytes.
	MaxBody = 64 << 20
	// shutdownGrace is how long Run waits for running answers when it is told to stop.
	shutdownGrace = 5 * time.Second
)

// Config says how the provider behaves. The zero value is a provider that answers at once with 16 tokens.
type Config struct {
	// Models are the ids listed at /v1/models. Any model is served. Defaults to "weir-demo".
	Models []string
	// Script is what requests without the header get, in the header's language. Defaults to nothing.
	Script string
	// Calls is how many calls the ledger lists, the newest. Totals count all. Defaults to 10,000.
	Calls int
	// KeepBodies keeps the body of each listed call. Defaults to false.
	KeepBodies bool
	// AccessKeys are the access keys of AWS that calls of Bedrock's paths must be signed with, secrets by id. Defaults to none: anybody may.
	AccessKeys map[string]string
}

// Server answers the requests. It is safe for concurrent use.
type Server struct {
	config   Config
	defaults Script
	ledger   *Ledger
	next     atomic.Int64
	down     atomic.Bool

	mu      sync.Mutex
	metrics map[string]float64
	used    map[string]int // how often a script with a "times" was followed
}

// New returns a provider. The error says what is wrong with the script.
func New(c Config) (*Server, error) {
	script, err := ParseScript(c.Script)
	if err != nil {
		return nil, err
	}
	if len(c.Models) == 0 {
		c.Models = []string{"weir-demo"}
	}
	if c.Calls <= 0 {
		c.Calls = 10_000
	}
	return &Server{config: c, defaults: script, ledger: newLedger(c.Calls), metrics: map[string]float64{}, used: map[string]int{}}, nil
}

// Ledger is the record of what was asked and answered.
func (s *Server) Ledger() *Ledger { return s.ledger }

// SetHealthy makes /health answer 200 or 503. It does not touch the other endpoints.
func (s *Server) SetHealthy(ok bool) { s.down.Store(!ok) }

// Run serves on l until ctx ends, then lets running answers finish for a moment. It returns nil when stopped.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	server := &http.Server{Handler: s, ReadHeaderTimeout: 30 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	if server.Shutdown(grace) != nil {
		_ = server.Close() // what still runs is cut: that was the grace
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	op, found := wire.ByPath(r.URL.Path)
	switch {
	case found && r.Method == http.MethodPost:
		s.serve(w, r, op)
	case found:
		fail(w, op.Format(), http.StatusMethodNotAllowed, "use POST")
	case s.bedrock(w, r) || s.azure(w, r):
	default:
		s.aside(w, r)
	}
}

// serve answers one call to a model, by its script.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, op wire.Operation) {
	script, err := s.script(r)
	if err != nil {
		fail(w, op.Format(), http.StatusBadRequest, err.Error())
		return
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	body, err := readBody(r, (*buf)[:0])
	*buf = body
	if err != nil {
		fail(w, op.Format(), http.StatusRequestEntityTooLarge, err.Error())
		return
	}
	a := answer{server: s, op: op, script: script, w: w, ctx: r.Context(), id: s.next.Add(1)}
	if err := a.request.read(op, body); err != nil {
		fail(w, op.Format(), http.StatusBadRequest, err.Error())
		return
	}
	a.plan()
	call := &Call{ID: a.id, RequestID: r.Header.Get("X-Request-Id"), Key: credential(r.Header), Operation: op.String(), Model: a.request.model,
		Stream: a.request.stream, Input: a.input, Declared: a.request.declared()}
	if s.config.KeepBodies {
		call.Body = append([]byte(nil), body...)
	}
	a.call = s.ledger.begin(call)
	defer a.end(Cancelled) // only if nothing else ended it: a panic or a client that left
	a.run()
}

// script is what the request asks for. After "times" uses a script is spent and only its amounts remain.
func (s *Server) script(r *http.Request) (Script, error) {
	text, script := r.Header.Get(ScriptHeader), s.defaults
	if text != "" {
		var err error
		if script, err = ParseScript(text); err != nil {
			return script, err
		}
	}
	if script.Times > 0 {
		s.mu.Lock()
		s.used[text]++
		spent := s.used[text] > script.Times
		s.mu.Unlock()
		if spent {
			script.heal()
		}
	}
	return script, nil
}

var jsonType = []string{"application/json"}

// fail answers with an error in the format's shape.
func fail(w http.ResponseWriter, f wire.Format, status int, message string) {
	w.Header()["Content-Type"] = jsonType
	w.WriteHeader(status)
	_, _ = w.Write(errorBody(f, status, message)) // the client may have left
}

func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}

// credential is the key that a request came with, however it was sent.
func credential(h http.Header) string {
	if key, bearer := strings.CutPrefix(h.Get("Authorization"), "Bearer "); bearer {
		return key
	}
	if rest, signed := strings.CutPrefix(h.Get("Authorization"), signatureScheme+"Credential="); signed {
		id, _, _ := strings.Cut(rest, "/")
		return id
	}
	return cmp.Or(h.Get("X-Api-Key"), h.Get("Api-Key"))
}
