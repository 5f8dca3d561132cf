package console

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

// page is what the frame around every page shows.
type page struct {
	Title   string
	Section string // of the navigation
	Me      *me    // nil: nobody is signed in
	Notice  string // what has just been done
	Script  bool   // what is live is drawn
	Data    any
}

// pages are the templates, each with the frame and the parts around it.
type pages map[string]*template.Template

func newPages(s static) pages {
	shared := template.Must(template.New("").Funcs(functions(s)).ParseFS(files, "templates/frame.html", "templates/parts.html"))
	all := pages{}
	names, err := fs.Glob(files, "templates/*.html")
	if err != nil {
		panic(err) // the pattern is not one
	}
	for _, name := range names {
		if base := path.Base(name); base != "frame.html" && base != "parts.html" {
			all[strings.TrimSuffix(base, ".html")] = template.Must(template.Must(shared.Clone()).ParseFS(files, name))
		}
	}
	return all
}

// show answers with a page.
func (h *Handler) show(w http.ResponseWriter, status int, name string, p *page) error {
	var out bytes.Buffer
	if err := h.pages[name].ExecuteTemplate(&out, "frame", p); err != nil {
		return fmt.Errorf("make the page %s: %w", name, err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(out.Bytes()) // a browser that is gone needs no page
	return nil
}

// trouble is what a page of an error says.
type trouble struct {
	Message string
	Then    string // what to do
}

// fail answers with what went wrong.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, who *me, err error) {
	f, ok := errors.AsType[*failure](err)
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		f, ok = &failure{Status: http.StatusRequestEntityTooLarge, Message: "What was sent is too large."}, true
	}
	if !ok {
		h.config.Logger.Error("a page failed", "path", r.URL.Path, "error", err)
		f = &failure{Status: http.StatusInternalServerError, Message: "The page could not be made."}
	}
	if who != nil && who.ID == "" {
		who = nil
	}
	p := &page{Title: "Not found", Me: who}
	t := trouble{Message: sentence(f.Message), Then: "Go back, or choose a page above."}
	switch {
	case f.Status == http.StatusServiceUnavailable:
		p.Title, t.Then = "Out of reach", "Nothing was changed. Try again in a moment; requests that are being served are not touched by this."
	case f.Status == http.StatusForbidden:
		p.Title = "Not allowed"
	case f.Status == http.StatusUnauthorized:
		p.Title, t.Then = "Signed out", "Sign in first."
	case f.Status >= http.StatusInternalServerError:
		p.Title, t.Then = "Something failed", "Try again. If it fails again, the gateway's own log says why."
	case f.Status != http.StatusNotFound:
		p.Title = "This cannot be done"
	}
	if f.Retry != "" {
		w.Header().Set("Retry-After", f.Retry)
	}
	p.Data = t
	if err := h.show(w, f.Status, "trouble", p); err != nil {
		h.config.Logger.Error("a page failed", "path", r.URL.Path, "error", err)
		http.Error(w, f.Message, f.Status)
	}
}

// sentence makes a sentence of a message.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	text = strings.ToUpper(text[:1]) + text[1:]
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	return text
}

// field is one field of a form.
type field struct {
	Name, Label, Value string
	Type               string // of the input; empty: text
	Options            []option
	Hint, Fault        string
	Unit               string
	Required           bool
	Complete           string // what a browser may fill in
}

// option is one choice of a field.
type option struct {
	Value, Label string
	Chosen       bool
}

// choose marks what is chosen.
func choose(options []option, value string) []option {
	for i := range options {
		options[i].Chosen = options[i].Value == value
	}
	return options
}

// form is a form.
type form struct {
	Action  string
	Fields  []field
	Problem string
	Submit  string
	Back    string
	Clear   string // a second button, which empties the form; empty: none
	Hidden  map[string]string
}

// marked is what a form says whose fields say the rest.
const marked = "Not done: see what is marked below."

// refuse notes what the API said to a form. The error is nil if the form can say it.
func (f *form) refuse(err error) error {
	no, ok := errors.AsType[*failure](err)
	if !ok || no.Status != http.StatusBadRequest && no.Status != http.StatusConflict && no.Status != http.StatusTooManyRequests {
		return err
	}
	rules := no.faults()
	for i := range f.Fields {
		if rule := rules[f.Fields[i].Name]; rule != "" {
			f.Fields[i].Fault = sentence(rule)
			delete(rules, f.Fields[i].Name)
		}
	}
	f.Problem = marked
	if len(rules) > 0 || no.Field == "" {
		f.Problem = sentence(no.Message)
	}
	return nil
}

// static serves the console's files, each under its name with a version that changes with it.
type static map[string]asset

type asset struct {
	data    []byte
	kind    string
	version string
}

var kinds = map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8"}

func newStatic() static {
	all := static{}
	entries, err := files.ReadDir("static")
	if err != nil {
		panic(err) // it is embedded
	}
	for _, e := range entries {
		kind, served := kinds[path.Ext(e.Name())]
		if !served {
			continue
		}
		data, err := files.ReadFile("static/" + e.Name())
		if err != nil {
			panic(err) // it is embedded
		}
		sum := sha256.Sum256(data)
		all[e.Name()] = asset{data, kind, hex.EncodeToString(sum[:6])}
	}
	return all
}

// url is the address of a file as it is now.
func (s static) url(name string) string { return root + "/static/" + name + "?v=" + s[name].version }

func (s static) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a, found := s[r.PathValue("name")]
	if !found {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", a.kind)
	w.Header().Set("Cache-Control", "no-cache")
	if r.URL.Query().Get("v") == a.version {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	_, _ = w.Write(a.data) // a browser that is gone needs no file
}
