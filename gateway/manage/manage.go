// Package manage is the HTTP side of dynamic authority: /admin/* for operators with an admin key, /api/* for the people of an org with a
// session. Every change is checked on the newest state, goes behind its org's fence, and is refused while the log is out of reach.
//
// Bodies are strict JSON of bounded size. What is wrong with one is said at once, each fault with field, value and rule. body.go reads
// bodies, admin.go has the operators' orgs and people, keys.go the registry of keys, house.go pools, connections and prices, limits.go,
// effective.go, headroom.go and pools.go the customers' API, session.go how people sign in.
package manage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/store"
)

// Bounds of the API.
const (
	// MaxBody bounds a body, and MaxReplace that of a whole registry of keys.
	MaxBody    = 64 << 10
	MaxReplace = 16 << 20

	// MaxPage is how many records a list has at most, and defaultPage how many where nothing else is asked for.
	MaxPage     = 1_000
	defaultPage = 100

	// NewestPools is how many pools a customer's list has.
	NewestPools = 100

	// Bounds of one org.
	MaxLimits      = 10_000
	MaxPools       = 1_000
	MaxConnections = 1_000
	MaxScopes      = 10_000 // workspaces, and principals
	MaxUsers       = 1_000
	MaxPrices      = 100 // versions of one model's price
)

// Log is where credits are published; it is a journal.Log.
type Log interface {
	Publish(ctx context.Context, ev events.Event) (seq uint64, err error)
}

// Config is what the API works with. All fields without a default are required.
type Config struct {
	Authority *store.Authority
	Sessions  store.Sessions
	Log       Log
	Source    string // who makes the changes, in the log

	// AdminKeys are the SHA-256 of the operators' keys. Defaults to none: then nobody may use /admin.
	AdminKeys [][32]byte

	// Meters shows what is used of limits. Defaults to none: then /api/headroom is not there.
	Meters Meters

	// Seal seals a connection's credential before it is kept. Defaults to none: then credentials are refused.
	Seal func(org events.Org, connection, secret string) ([]byte, error)

	// Renew seals with the newest key what an older one sealed; nil: it is sealed with that already. It is there where Seal is.
	Renew func(*authority.ConnectionRecord) ([]byte, error)

	// Secure marks the session's cookie as one for HTTPS alone, also where this server itself speaks HTTP. Defaults to false.
	Secure bool

	// Proxies are the networks of proxies whose X-Forwarded-For says where somebody signs in from, to slow that address down. Defaults to
	// none: it is the connection's.
	Proxies []netip.Prefix

	Now    func() time.Time
	Random io.Reader // of ids, tokens and salts: crypto/rand
	Logger *slog.Logger
}

// Handler serves /admin/ and /api/. It is an http.Handler.
type Handler struct {
	config Config
	mirror *store.Mirror
	mux    *http.ServeMux
	cross  *http.CrossOriginProtection
	signIn *signIn
}

// New makes the handler.
func New(config Config) *Handler {
	h := &Handler{config: config, mirror: config.Authority.Mirror(), mux: http.NewServeMux(), cross: http.NewCrossOriginProtection()}
	h.signIn = newSignIn(config.Random)
	h.admin()
	h.customers()
	h.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { h.fail(w, r, h.nothing(w, r)) })
	return h
}

// nothing answers what no endpoint takes: 405 for a path that takes other methods.
func (h *Handler) nothing(w http.ResponseWriter, r *http.Request) error {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete} {
		if _, pattern := h.mux.Handler(&http.Request{Method: method, URL: r.URL, Host: r.Host}); strings.HasPrefix(pattern, method+" ") || method == http.MethodHead && strings.HasPrefix(pattern, "GET ") {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		return problemf(http.StatusNotFound, "not_found", "there is nothing at %s %s", r.Method, r.URL.Path)
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	return problemf(http.StatusMethodNotAllowed, "method_not_allowed", "%s takes %s, not %s", r.URL.Path, strings.Join(allowed, ", "), r.Method)
}

// ServeHTTP serves one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	h.mux.ServeHTTP(w, r)
}

// problem is an answer that is no success.
type problem struct {
	status  int
	code    string
	message string
	faults  authority.Faults
	current *string // of a registry whose version is newer
	retry   time.Duration
}

func (p *problem) Error() string { return p.message }

func problemf(status int, code, format string, args ...any) *problem {
	return &problem{status: status, code: code, message: fmt.Sprintf(format, args...)}
}

// invalid is a 400 for one field.
func invalid(field, value, rule string, args ...any) *problem {
	return faulty(authority.Faults{{Field: field, Value: value, Rule: fmt.Sprintf(rule, args...)}})
}

// faulty is a 400 for all faults of a body; nil if there are none.
func faulty(fs authority.Faults) *problem {
	if len(fs) == 0 {
		return nil
	}
	return &problem{status: http.StatusBadRequest, code: "invalid", message: fs.Error(), faults: fs}
}

// fault is one thing that is wrong, as answers have it.
type fault struct {
	Field string `json:"field,omitempty"`
	Value string `json:"value,omitempty"`
	Rule  string `json:"rule"`
}

// failed is the body of an answer that is no success. The first fault stands beside the message.
type failed struct {
	Error   string  `json:"error"`
	Code    string  `json:"code,omitempty"`
	Field   string  `json:"field,omitempty"`
	Value   string  `json:"value,omitempty"`
	Rule    string  `json:"rule,omitempty"`
	Faults  []fault `json:"faults,omitempty"` // where there are several
	Current *string `json:"current_version,omitempty"`
}

// Words gives what may be told of an error to whoever asked, and logs what may not.
func (h *Handler) Words(r *http.Request, err error) string { return h.problem(r, err).message }

// problem makes an answer of an error, and logs what the answer does not say.
func (h *Handler) problem(r *http.Request, err error) *problem {
	p, ok := errors.AsType[*problem](err)
	switch {
	case ok:
	case store.TooLarge(err):
		p = problemf(http.StatusBadRequest, "invalid", "%s", err)
	case store.Unavailable(err), store.Conflict(err):
		p = away()
		if store.Unsure(err) {
			p.message = "the store did not answer in time: read back whether the change was made before it is made again"
		}
		h.config.Logger.Warn("management is refused", "path", r.URL.Path, "error", err)
	default:
		p = problemf(http.StatusInternalServerError, "internal_error", "this failed here, and the log of this process says why")
		h.config.Logger.Error("management failed", "path", r.URL.Path, "error", err)
	}
	return p
}

// fail answers with what went wrong.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := h.problem(r, err)
	body := failed{Error: p.message, Code: p.code, Current: p.current}
	if len(p.faults) > 0 {
		body.Field, body.Value, body.Rule = p.faults[0].Field, p.faults[0].Value, p.faults[0].Rule
	}
	if len(p.faults) > 1 {
		for _, f := range p.faults {
			body.Faults = append(body.Faults, fault{f.Field, f.Value, f.Rule})
		}
	}
	if p.status == http.StatusUnauthorized && strings.HasPrefix(r.URL.Path, "/admin/") {
		w.Header().Set("WWW-Authenticate", `Bearer realm="weir-admin"`)
	}
	if p.retry > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((p.retry+time.Second-1)/time.Second), 10))
	}
	answer(w, p.status, body)
}

// away is a 503 while the log or the store does not answer.
func away() *problem {
	return &problem{status: http.StatusServiceUnavailable, code: "gateway_infrastructure", retry: time.Second,
		message: "nothing can be changed or read now: the log or the store does not answer"}
}

// answer writes JSON.
func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a client that is gone needs no answer
}

// body reads a JSON body whole.
func body(w http.ResponseWriter, r *http.Request, most int64) (string, error) {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" || params["charset"] != "" && params["charset"] != "utf-8" && params["charset"] != "UTF-8" {
		return "", &problem{status: http.StatusUnsupportedMediaType, code: "unsupported_media_type", message: "the content type must be application/json"}
	}
	if r.ContentLength > most {
		return "", tooLarge(most)
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	if err != nil {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			return "", tooLarge(most)
		}
		return "", problemf(http.StatusBadRequest, "invalid", "the body could not be read to its end: %s", err)
	}
	return string(data), nil
}

func tooLarge(most int64) *problem {
	return problemf(http.StatusRequestEntityTooLarge, "body_too_large", "the body is larger than %d bytes", most)
}

// read reads a body's object, calls f for its fields, and gives all faults at once.
func read(w http.ResponseWriter, r *http.Request, f func(*object)) error {
	text, err := body(w, r, MaxBody)
	if err != nil {
		return err
	}
	var in reader
	o := in.parse(text)
	if o != nil {
		f(o)
		o.end()
	}
	if p := faulty(in.faults); p != nil {
		return p
	}
	return nil
}

// change makes a change and notes it. decide's error is answered as it is.
func (h *Handler) change(r *http.Request, who string, decide func(*store.Tx) error) error {
	done, err := h.config.Authority.Change(r.Context(), decide)
	if err == nil && len(done.Versions) > 0 {
		h.config.Logger.Info("the authority was changed", "by", who, "method", r.Method, "path", r.URL.Path, "change", done.Mark.N, "orgs", len(done.Versions))
	}
	return err
}

// newID makes a random UUID.
func (h *Handler) newID() (string, error) {
	var b [16]byte
	if _, err := io.ReadFull(h.config.Random, b[:]); err != nil {
		return "", fmt.Errorf("make an id: %w", err)
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]), nil
}

// page reads what part of a list is asked for: ids after one, at most so many.
func page(r *http.Request) (after string, limit int, err error) {
	q := r.URL.Query()
	limit = defaultPage
	if text := q.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > MaxPage {
			return "", 0, invalid("limit", text, "must be a whole number from 1 to %d", MaxPage)
		}
	}
	return q.Get("after"), limit, nil
}

// state calls f with the records as they are, once all have come. They are held until it returns: it must not wait for anything.
func (h *Handler) state(f func(*authority.State, *authority.Snapshot) error) (err error) {
	if !h.mirror.Ready() {
		return &problem{status: http.StatusServiceUnavailable, code: "gateway_infrastructure", message: "the authority has not been read yet", retry: time.Second}
	}
	h.mirror.Read(func(s *authority.State, static *authority.Snapshot) { err = f(s, static) })
	return err
}

// show answers with what f makes of the records. Nothing is sent while they are held: a client that reads slowly would hold up all others,
// and what changes.
func (h *Handler) show(w http.ResponseWriter, status int, f func(*authority.State, *authority.Snapshot) (any, error)) error {
	var body any
	err := h.state(func(s *authority.State, static *authority.Snapshot) (err error) {
		body, err = f(s, static)
		return err
	})
	if err == nil {
		answer(w, status, body)
	}
	return err
}
