// Package gateway is the HTTP side of Weir: from a client's key to the last byte of its answer.
//
// A request for a model is authenticated, parsed in place, planned (which meters it claims, how much, against which limits), refused at
// once if a fresh view shows that it cannot pass, and otherwise reserved: one event, one verdict. Only then is a model called. The answer
// passes through as it arrives while its usage is read; before its last byte leaves, what it used and its release are on their way to
// the log. Every way out of a request, also a panic, ends in exactly one release.
//
// server.go has what all requests share, exchange.go the life of a request for a model, attempt.go its calls, settle.go what it used,
// info.go the endpoints that only read.
package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/estimate"
	"github.com/weirhq/weir/gateway/policy"
	"github.com/weirhq/weir/gateway/refusal"
	"github.com/weirhq/weir/gateway/relay"
	"github.com/weirhq/weir/gateway/reservation"
	"github.com/weirhq/weir/gateway/trace"
	"github.com/weirhq/weir/gateway/upstream"
	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/projections/gate"
	"github.com/weirhq/weir/projections/kv"
)

// Bounds of a server.
const (
	// DefaultMaxInHand bounds the requests for models that are under way at once, parked and streaming ones included.
	DefaultMaxInHand = 16_384

	// DefaultMaxRequestBytes bounds a body.
	DefaultMaxRequestBytes = 32 << 20
)

// Generations reads the audit records of requests.
type Generations interface {
	// Generation gives a request's record as JSON; found is false if there is none, or it is another org's.
	Generation(ctx context.Context, org events.Org, id events.RequestID) (record json.RawMessage, found bool, err error)
}

// Config is what a server works with. All fields without a default are required.
type Config struct {
	Gateway   events.Gateway
	Authority func() *authority.Snapshot
	// Fresh gives the authority in which an org has at least a version, or after a bounded wait the current one. Defaults to Authority.
	Fresh func(ctx context.Context, org events.Org, atLeast int64) *authority.Snapshot

	// Standing says how well dynamic authority is known. Defaults to Verified.
	Standing func() Standing

	// Apart says that dynamic authority is kept elsewhere than in the log's broker: while neither can be reached, its keys are refused.
	Apart bool

	// Stale is told of an org whose fence in the log is above the version that is known, also after a wait. Defaults to nothing.
	Stale func(org events.Org, version int64)

	// Degraded says what does not work while the gateway admits. Defaults to nothing.
	Degraded func() []string

	// FreeEstimates says that usage that is not exact costs nothing. Defaults to false: it costs what is estimated.
	FreeEstimates bool

	Book        *reservation.Book
	Reporter    *reservation.Reporter
	View        *kv.View // nil: every request goes to the log
	Upstream    *upstream.Set
	Relay       *relay.Relay
	Generations Generations
	Ratio       func(model string) estimate.Ratio // learned tokens per byte

	// Ready says why the gateway cannot admit anything; empty: it can.
	Ready func() string

	// Reach and Allowance are what is admitted by while the log is out of reach. Default to none: then nothing is.
	Reach     Reach
	Allowance *Allowance

	Settings        policy.Settings
	MaxRequestBytes int64    // Defaults to 32 MiB
	MaxInHand       int64    // Defaults to 16384
	Forward         []string // client headers, in canonical form, that go upstream beside the usual ones. Defaults to none.

	Now    func() time.Time
	NewID  func() events.RequestID
	Logger *slog.Logger
	Meters *Metrics
	Tracer *trace.Tracer // nil: nothing is traced
}

// Server serves SDK traffic. It is an http.Handler.
type Server struct {
	config Config
	mux    *http.ServeMux
	inHand atomic.Int64
	closed atomic.Bool
}

// New makes a server.
func New(config Config) *Server {
	if config.MaxRequestBytes == 0 {
		config.MaxRequestBytes = DefaultMaxRequestBytes
	}
	if config.MaxInHand == 0 {
		config.MaxInHand = DefaultMaxInHand
	}
	if config.Fresh == nil {
		config.Fresh = func(context.Context, events.Org, int64) *authority.Snapshot { return config.Authority() }
	}
	if config.Meters == nil {
		config.Meters = NewMetrics()
	}
	s := &Server{config: config, mux: http.NewServeMux()}
	for _, op := range wire.All() {
		s.mux.HandleFunc("POST "+op.Path(), func(w http.ResponseWriter, r *http.Request) { s.serveModel(w, r, op) })
	}
	s.mux.HandleFunc("GET /v1/models", s.serveModels)
	s.mux.HandleFunc("GET /v1/models/{id...}", s.serveModelInfo)
	s.mux.HandleFunc("GET /v1/limits", s.serveLimits)
	s.mux.HandleFunc("GET /v1/generation", s.serveGeneration)
	s.mux.HandleFunc("GET /health", s.serveHealth)
	s.mux.HandleFunc("GET /ready", s.serveReady)
	s.mux.HandleFunc("/", s.serveUnknown)
	return s
}

// Handle adds endpoints of others under a pattern, such as metrics and management.
func (s *Server) Handle(pattern string, h http.Handler) { s.mux.Handle(pattern, h) }

// InHand counts the requests for models that are under way.
func (s *Server) InHand() int64 { return s.inHand.Load() }

// Drain makes the server refuse new requests for models, with 503 and a retry, while those under way go on.
func (s *Server) Drain() { s.closed.Store(true) }

// client is one HTTP request with what every answer to it needs.
type client struct {
	id     events.RequestID
	format wire.Format
	r      *http.Request
	w      http.ResponseWriter
	key    *authority.Key
	snap   *authority.Snapshot
	status int    // answered; 0 before
	origin string // of the error that was answered; empty: none
}

// ServeHTTP gives every request an id, and an answer even when its handler panics.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := s.config.NewID()
	h := w.Header()
	h["X-Request-Id"] = []string{string(id)}
	h["Request-Id"] = []string{string(id)}
	if s.open(r.URL.Path) {
		h[allowOrigin] = anyOrigin
		if preflight(w, r) {
			return
		}
	}
	if s.closed.Load() {
		h["Connection"] = closing // so that the client comes back to another gateway
	}
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
			panic(v) // meant for the HTTP server: the answer is cut off
		}
		s.panicked(id, v)
		answer := refusal.Answer{Status: http.StatusInternalServerError, Code: "internal_error", Origin: gate.OriginInfrastructure,
			Message: "the gateway failed while it served this request"}
		(&client{id: id, format: formatOf(r), r: r, w: w}).write(&answer)
	}()
	s.mux.ServeHTTP(w, r.WithContext(withID(r.Context(), id)))
}

// panicked counts and reports a panic, from the deferred function that met it.
func (s *Server) panicked(id events.RequestID, v any) {
	s.config.Meters.panics.Inc()
	s.config.Logger.Error("a request panicked", "request", id, "panic", v, "stack", string(debug.Stack()))
}

var closing = []string{"close"}

type idKey struct{}

func withID(ctx context.Context, id events.RequestID) context.Context {
	return context.WithValue(ctx, idKey{}, id)
}

// begin makes the client of a request, and authenticates it unless open. It answers and gives nil if that fails.
func (s *Server) begin(w http.ResponseWriter, r *http.Request, format wire.Format) *client {
	id, _ := r.Context().Value(idKey{}).(events.RequestID)
	c := &client{id: id, format: format, r: r, w: w, snap: s.config.Authority()}
	if answer := s.authorize(c); answer != nil {
		c.write(answer)
		return nil
	}
	return c
}

// rawKey is the key that a client sent, as OpenAI's or Anthropic's SDK sends it.
func rawKey(r *http.Request) string {
	if v := r.Header.Get("Authorization"); v != "" {
		scheme, token, ok := strings.Cut(v, " ")
		if ok && strings.EqualFold(scheme, "bearer") {
			return strings.TrimSpace(token)
		}
	}
	return strings.TrimSpace(r.Header.Get("X-Api-Key"))
}

// write answers a request with a refusal or a failure.
func (c *client) write(a *refusal.Answer) {
	h := c.w.Header()
	a.Headers(h)
	h["Content-Type"] = jsonContent
	c.status, c.origin = a.Status, a.Origin
	c.w.WriteHeader(a.Status)
	_, _ = c.w.Write(a.Body(c.format, string(c.id))) // a client that is gone needs no answer
}

var jsonContent = []string{"application/json"}

// formatOf says whose errors a client understands where the path does not.
func formatOf(r *http.Request) wire.Format {
	if strings.HasPrefix(r.URL.Path, "/v1/messages") || r.Header.Get("Anthropic-Version") != "" {
		return wire.Anthropic
	}
	return wire.OpenAI
}
