// Package console is the pages at /console: limits, pools, headroom, activity and what other limits would have done, for the people of an
// org.
//
// It is a client of the API under /api, called in the same process with the caller's cookie: every rule, role and throttle is the API's,
// and a page can do nothing that the API would refuse. Pages are plain HTML that works without scripts; scripts only save a reload and
// draw what changes. Everything is embedded and served from here under a policy that lets nothing else load.
//
// api.go calls the API, page.go makes pages, live.go sends what changes; the other files have one section each.
package console

import (
	"embed"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	pathpkg "path"
	"strings"
	"time"
)

//go:embed static templates
var files embed.FS

// root is where the console is.
const root = "/console"

// maxForm bounds a form's body.
const maxForm = 64 << 10

// Config is what the console works with. All fields are required.
type Config struct {
	// API serves /api/: a manage.Handler.
	API http.Handler

	Now    func() time.Time
	Logger *slog.Logger
}

// Handler serves /console and all below it. It is an http.Handler.
type Handler struct {
	config Config
	mux    *http.ServeMux
	cross  *http.CrossOriginProtection
	pages  pages
	static static
	live   *streams
}

// New makes the handler.
func New(config Config) *Handler {
	h := &Handler{config: config, mux: http.NewServeMux(), cross: http.NewCrossOriginProtection(), live: newStreams()}
	h.static = newStatic()
	h.pages = newPages(h.static)
	h.mux.Handle("GET "+root+"/static/{name}", h.static)
	h.mux.HandleFunc(root+"/", func(w http.ResponseWriter, r *http.Request) { h.fail(w, r, nil, errNothing) })
	h.open("GET /sign-in", h.showSignIn)
	h.open("POST /sign-in", h.signIn)
	h.open("POST /sign-out", h.signOut)
	home := func(w http.ResponseWriter, r *http.Request, _ *me) error { return h.to(w, r, root+"/headroom") }
	h.page("GET /{$}", home)
	h.mux.HandleFunc("GET "+root, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, root+"/", http.StatusSeeOther) })
	h.limits()
	h.pools()
	h.headroom()
	h.activity()
	h.usage()
	h.simulation()
	return h
}

// loads is what a page may load: nothing but what comes from here.
const loads = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP serves one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Security-Policy", loads)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("X-Frame-Options", "DENY")
	head.Set("Referrer-Policy", "same-origin") // with less, browsers hide where a form was sent from
	head.Set("Cache-Control", "no-store")
	if err := h.cross.Check(r); err != nil {
		h.fail(w, r, nil, &failure{Status: http.StatusForbidden, Message: "This form was sent from another site. Open the console and send it from there."})
		return
	}
	h.mux.ServeHTTP(w, r)
}

// Close ends what is live, so that the server can stop. Pages are served as before.
func (h *Handler) Close() { h.live.close() }

// me is who is signed in.
type me struct {
	ID    string `json:"id"`
	Email string `json:"email"`
	Name  string `json:"name"`
	Role  string `json:"role"`
	Org   string `json:"org"`
}

// Writes says whether write controls are shown. The API decides whether they work.
func (m *me) Writes() bool { return m.Role == "owner" || m.Role == "admin" }

// open registers a page for everybody.
func (h *Handler) open(pattern string, f func(http.ResponseWriter, *http.Request) error) {
	method, path, _ := strings.Cut(pattern, " ")
	h.mux.HandleFunc(method+" "+root+path, func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if err := f(w, r); err != nil {
			h.fail(w, r, nil, err)
		}
	})
}

// page registers a page for those who are signed in. Others are sent to sign in first.
func (h *Handler) page(pattern string, f func(http.ResponseWriter, *http.Request, *me) error) {
	h.open(pattern, func(w http.ResponseWriter, r *http.Request) error {
		var who me
		err := h.get(r, "/api/me", &who)
		if err == nil {
			err = f(w, r, &who)
		}
		if fl, ok := errors.AsType[*failure](err); ok && fl.Status == http.StatusUnauthorized {
			return h.toSignIn(w, r)
		}
		if err != nil {
			h.fail(w, r, &who, err)
		}
		return nil
	})
}

// to sends the browser to another page, also where a script asked.
func (h *Handler) to(w http.ResponseWriter, r *http.Request, path string) error {
	if r.Header.Get("HX-Request") != "" {
		w.Header().Set("HX-Redirect", path)
		return nil
	}
	http.Redirect(w, r, path, http.StatusSeeOther)
	return nil
}

// toSignIn sends the browser to sign in, and then back to the page it asked for.
func (h *Handler) toSignIn(w http.ResponseWriter, r *http.Request) error {
	q := url.Values{}
	if next := r.URL.RequestURI(); r.Method == http.MethodGet && r.URL.Path != root+"/" {
		q.Set("next", next)
	} else if r.Method != http.MethodGet {
		q.Set("ended", "1") // what was sent is lost
	}
	path := root + "/sign-in"
	if len(q) > 0 {
		path += "?" + q.Encode()
	}
	return h.to(w, r, path)
}

// within gives a path of the console that a client named; the console's first page if it is none.
func within(path string) string {
	u, err := url.Parse(path)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || !strings.HasPrefix(u.Path, root+"/") || pathpkg.Clean(u.Path) != strings.TrimSuffix(u.Path, "/") || strings.ContainsAny(path, "\\\r\n\t") ||
		strings.HasPrefix(u.Path, root+"/sign-") {
		return root + "/"
	}
	return path
}
