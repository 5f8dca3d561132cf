package console

import (
	"net/http"
	"net/url"
)

// signInForm is the form with which people sign in.
func signInForm(email, next string) *form {
	return &form{Action: root + "/sign-in", Submit: "Sign in", Hidden: map[string]string{"next": next}, Fields: []field{
		{Name: "email", Label: "Email", Value: email, Type: "email", Required: true, Complete: "username"},
		{Name: "password", Label: "Password", Type: "password", Required: true, Complete: "current-password"},
	}}
}

func (h *Handler) showSignIn(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	p := &page{Title: "Sign in", Data: signInForm("", q.Get("next"))}
	switch {
	case q.Get("out") != "":
		p.Notice = "You are signed out."
	case q.Get("ended") != "":
		p.Notice = "Your session has ended, and what you sent was not saved."
	case q.Get("next") != "":
		p.Notice = "Sign in to see this page."
	}
	return h.show(w, http.StatusOK, "signin", p)
}

// signIn signs somebody in, as POST /api/sign-in does.
func (h *Handler) signIn(w http.ResponseWriter, r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		return err
	}
	email, next := r.PostForm.Get("email"), r.PostForm.Get("next")
	out, err := h.call(r, http.MethodPost, "/api/sign-in", map[string]string{"email": email, "password": r.PostForm.Get("password")})
	if err == nil {
		w.Header()["Set-Cookie"] = out.header["Set-Cookie"]
		return h.to(w, r, within(next))
	}
	f := signInForm(email, next)
	no, ok := err.(*failure)
	status := http.StatusBadRequest
	switch {
	case ok && no.Status == http.StatusUnauthorized:
		f.Problem, status = sentence(no.Message), no.Status
	case ok && no.Status == http.StatusTooManyRequests:
		f.Problem, status = "Too many tries to sign in. Wait "+no.Retry+" seconds.", no.Status
		w.Header().Set("Retry-After", no.Retry)
	default:
		if err := f.refuse(err); err != nil {
			return err
		}
	}
	return h.show(w, status, "signin", &page{Title: "Sign in", Data: f})
}

// signOut ends the session.
func (h *Handler) signOut(w http.ResponseWriter, r *http.Request) error {
	out, err := h.call(r, http.MethodPost, "/api/sign-out", nil)
	if err != nil {
		return err
	}
	w.Header()["Set-Cookie"] = out.header["Set-Cookie"]
	return h.to(w, r, root+"/sign-in?"+url.Values{"out": {"1"}}.Encode())
}
