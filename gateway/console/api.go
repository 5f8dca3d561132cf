package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// failure is an answer of the API that is no success.
type failure struct {
	Status  int     `json:"-"`
	Message string  `json:"error"`
	Code    string  `json:"code"`
	Field   string  `json:"field"`
	Value   string  `json:"value"`
	Rule    string  `json:"rule"`
	Faults  []fault `json:"faults"`
	Retry   string  `json:"-"` // seconds, if it says when to try again
}

// fault is one thing that is wrong with what was sent.
type fault struct {
	Field string `json:"field"`
	Value string `json:"value"`
	Rule  string `json:"rule"`
}

func (f *failure) Error() string { return f.Message }

var errNothing = &failure{Status: http.StatusNotFound, Message: "There is nothing at this address."}

// faults gives what is wrong by field.
func (f *failure) faults() map[string]string {
	rules := map[string]string{}
	if f.Field != "" {
		rules[f.Field] = f.Rule
	}
	for _, each := range f.Faults {
		rules[each.Field] = each.Rule
	}
	return rules
}

// reply is an answer of the API.
type reply struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func (r *reply) Header() http.Header { return r.header }

func (r *reply) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(p)
}

func (r *reply) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

// call calls the API as whoever made a request: with its cookie and address.
func (h *Handler) call(r *http.Request, method, path string, body any) (*reply, error) {
	in := r.Clone(r.Context())
	target, err := url.ParseRequestURI(path)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", path, err)
	}
	in.Method, in.URL, in.RequestURI, in.Body, in.ContentLength = method, target, path, http.NoBody, 0
	in.Form, in.PostForm, in.MultipartForm, in.TransferEncoding = nil, nil, nil, nil
	in.Header = http.Header{"Cookie": r.Header["Cookie"], "X-Forwarded-For": r.Header["X-Forwarded-For"]}
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("call %s: %w", path, err)
		}
		in.Header.Set("Content-Type", "application/json")
		in.Body, in.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	}
	out := &reply{header: http.Header{}}
	h.config.API.ServeHTTP(out, in)
	out.WriteHeader(http.StatusOK)
	if out.status >= http.StatusBadRequest {
		f := &failure{Status: out.status, Retry: out.header.Get("Retry-After")}
		if err := json.Unmarshal(out.body.Bytes(), f); err != nil || f.Message == "" {
			f.Message = http.StatusText(out.status)
		}
		return out, f
	}
	return out, nil
}

// get reads an answer of the API.
func (h *Handler) get(r *http.Request, path string, into any) error {
	out, err := h.call(r, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	return read(out, into)
}

func read(out *reply, into any) error {
	if err := json.Unmarshal(out.body.Bytes(), into); err != nil {
		return fmt.Errorf("read an answer of the API: %w", err)
	}
	return nil
}

// number reads a form's number as the API wants it: null if it is empty, as it was typed if it is none, for the API to say what is wrong.
func number(text string) any {
	text = strings.Map(func(c rune) rune {
		if c == ' ' || c == '\u00a0' || c == '\u2009' || c == '\u202f' {
			return -1
		}
		return c
	}, strings.TrimSpace(text))
	if text == "" {
		return nil
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil && json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	return text
}

// optional reads a form's text: null if it is empty.
func optional(text string) any {
	if text = strings.TrimSpace(text); text == "" {
		return nil
	}
	return text
}
