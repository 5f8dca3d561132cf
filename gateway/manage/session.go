package manage

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/store"
)

// How people are signed in.
const (
	cookieName = "weir_session"
	sessionFor = 12 * time.Hour
	tokenBytes = 32
)

// signIn is what signing in needs.
type signIn struct {
	passwords *passwords
	accounts  *throttle
	addresses *throttle
}

func newSignIn(random io.Reader) *signIn {
	return &signIn{newPasswords(random), newThrottle(accountTries), newThrottle(addressTries)}
}

// session is what is kept of one sign-in. Stamp is of the password that it was made with: another password ends it.
type session struct {
	User    string     `json:"user"`
	Org     events.Org `json:"org"`
	Stamp   string     `json:"stamp"`
	Expires time.Time  `json:"expires"`
}

func stamp(u *authority.UserRecord) string {
	sum := sha256.Sum256([]byte(u.ID + "\x00" + u.Password))
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// customers registers what the people of an org may do.
func (h *Handler) customers() {
	handle := func(pattern string, f func(http.ResponseWriter, *http.Request) error) {
		h.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Add("Vary", "Cookie")
			if err := h.cross.Check(r); err != nil {
				h.fail(w, r, problemf(http.StatusForbidden, "cross_origin", "requests from other origins are refused"))
				return
			}
			if err := f(w, r); err != nil {
				h.fail(w, r, err)
			}
		})
	}
	reads := func(f func(http.ResponseWriter, *http.Request, *authority.UserRecord) error) func(http.ResponseWriter, *http.Request) error {
		return func(w http.ResponseWriter, r *http.Request) error {
			u, err := h.user(r)
			if err != nil {
				return err
			}
			return f(w, r, u)
		}
	}
	writes := func(f func(http.ResponseWriter, *http.Request, *authority.UserRecord) error) func(http.ResponseWriter, *http.Request) error {
		return reads(func(w http.ResponseWriter, r *http.Request, u *authority.UserRecord) error {
			if !u.Role.Writes() {
				return problemf(http.StatusForbidden, "forbidden", "the role %s reads: owners and admins write", u.Role)
			}
			return f(w, r, u)
		})
	}
	handle("/api/", h.nothing)
	handle("POST /api/sign-in", h.enter)
	handle("POST /api/sign-out", h.leave)
	handle("GET /api/me", reads(h.me))
	handle("GET /api/admission-limits", reads(h.listLimits))
	handle("POST /api/admission-limits", writes(h.putLimit))
	handle("GET /api/effective-limits", reads(h.listEffective))
	handle("GET /api/headroom", reads(h.headroom))
	handle("GET /api/connections", reads(h.listOwnConnections))
	handle("GET /api/quota-pools", reads(h.listPools))
	handle("POST /api/quota-pools", writes(h.createPool))
	handle("GET /api/quota-pools/{id}", reads(h.getPool))
	handle("POST /api/quota-pools/{id}", writes(h.replacePool))
	handle("POST /api/quota-pools/{id}/bind", writes(h.bindPool))
}

// tokenHash is what is kept of a cookie.
func tokenHash(token string) authority.Hash { return sha256.Sum256([]byte(token)) }

// user is who is signed in. The role is the one that the user has now.
func (h *Handler) user(r *http.Request) (*authority.UserRecord, error) {
	refused := problemf(http.StatusUnauthorized, "unauthorized", "sign in first")
	if r.Header.Get("Authorization") != "" || r.Header.Get("X-Api-Key") != "" {
		refused.message = "keys cannot call this API: sign in first"
	}
	cookie, err := r.Cookie(cookieName)
	if err != nil || cookie.Value == "" || len(cookie.Value) > 2*tokenBytes {
		return nil, refused
	}
	data, found, err := h.config.Sessions.Session(r.Context(), tokenHash(cookie.Value))
	if err != nil {
		return nil, err
	}
	var s session
	if !found || json.Unmarshal(data, &s) != nil || !h.config.Now().Before(s.Expires) {
		return nil, refused
	}
	var u *authority.UserRecord
	err = h.state(func(st *authority.State, static *authority.Snapshot) error {
		org, err := known(st, static, s.Org)
		if err == nil {
			u = org.Users[s.User]
		}
		if u == nil || stamp(u) != s.Stamp {
			return refused
		}
		return nil
	})
	return u, err
}

// meBody says who is signed in.
type meBody struct {
	ID    string         `json:"id"`
	Email string         `json:"email"`
	Name  string         `json:"name,omitempty"`
	Role  authority.Role `json:"role"`
	Org   events.Org     `json:"org"`
}

func showUser(u *authority.UserRecord) meBody { return meBody{u.ID, u.Email, u.Name, u.Role, u.Org} }

func (h *Handler) me(w http.ResponseWriter, _ *http.Request, u *authority.UserRecord) error {
	answer(w, http.StatusOK, showUser(u))
	return nil
}

// enter signs somebody in. What is wrong of the two is not said, and takes as long to find out.
func (h *Handler) enter(w http.ResponseWriter, r *http.Request) error {
	var email, password string
	if err := read(w, r, func(o *object) {
		if o.required("email", "who signs in") {
			email = strings.ToLower(o.text("email", authority.MaxName))
		}
		if o.required("password", "as text") {
			password = o.fields["password"].Str
		}
	}); err != nil {
		return err
	}
	now := h.config.Now()
	wait := h.signIn.addresses.try(address(r, h.config.Proxies), now)
	if wait == 0 {
		wait = h.signIn.accounts.try(email, now)
	}
	if wait > 0 {
		return &problem{status: http.StatusTooManyRequests, code: "too_many_tries", message: "too many tries to sign in: wait", retry: wait}
	}
	var u *authority.UserRecord
	if err := h.state(func(s *authority.State, static *authority.Snapshot) error {
		if u = s.UserByEmail(email); u != nil {
			if _, err := known(s, static, u.Org); err != nil {
				u = nil
			}
		}
		return nil
	}); err != nil {
		return err
	}
	hash := ""
	if u != nil {
		hash = u.Password
	}
	right := false
	if len(password) <= maxPassword {
		var err error
		if right, err = h.signIn.passwords.matches(r.Context(), password, hash); err != nil {
			return err
		}
	}
	if !right {
		return problemf(http.StatusUnauthorized, "unauthorized", "the email or the password is not right")
	}
	if err := h.begin(w, r, u, now); store.Unavailable(err) { // a session that may be there is nobody's
		h.config.Logger.Warn("a sign-in is refused", "error", err)
		return away()
	} else if err != nil {
		return err
	}
	answer(w, http.StatusOK, showUser(u))
	return nil
}

// begin keeps a session and gives its cookie.
func (h *Handler) begin(w http.ResponseWriter, r *http.Request, u *authority.UserRecord, now time.Time) error {
	raw := make([]byte, tokenBytes)
	if _, err := io.ReadFull(h.config.Random, raw); err != nil {
		return fmt.Errorf("make a session: %w", err)
	}
	token := base64.RawURLEncoding.EncodeToString(raw)
	data, err := json.Marshal(session{User: u.ID, Org: u.Org, Stamp: stamp(u), Expires: now.Add(sessionFor).UTC()})
	if err != nil {
		return err
	}
	if err := h.config.Sessions.PutSession(r.Context(), tokenHash(token), data, sessionFor); err != nil {
		return err
	}
	h.cookie(w, r, token, int(sessionFor/time.Second))
	return nil
}

func (h *Handler) cookie(w http.ResponseWriter, r *http.Request, token string, age int) {
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: token, Path: "/", MaxAge: age, HttpOnly: true, SameSite: http.SameSiteLaxMode,
		Secure: h.config.Secure || r.TLS != nil})
}

// leave ends a session, and forgets the cookie in any case.
func (h *Handler) leave(w http.ResponseWriter, r *http.Request) error {
	if c, err := r.Cookie(cookieName); err == nil && c.Value != "" && len(c.Value) <= 2*tokenBytes {
		if err := h.config.Sessions.DropSession(r.Context(), tokenHash(c.Value)); err != nil {
			return err
		}
	}
	h.cookie(w, r, "", -1)
	w.WriteHeader(http.StatusNoContent)
	return nil
}
