package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"testing"
	"time"

	"github.com/weirhq/weir/test/e2e/stack"
)

// slowly is a request whose headers have been judged and whose body is yet to come.
type slowly struct {
	body     *io.PipeWriter
	answered chan *stack.Answer
}

// begin sends a request's headers and waits until the gateway asks for its body: by then it has authenticated the key.
func begin(t *testing.T, r stack.Request) *slowly {
	t.Helper()
	in, out := io.Pipe()
	q, err := r.New()
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	q.Body, q.ContentLength = in, -1
	q.Header.Set("Expect", "100-continue")
	q = q.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { close(asked) }}))
	s := &slowly{body: out, answered: make(chan *stack.Answer, 1)}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: time.Hour}} // the body is a while in coming
	go func() {
		defer close(s.answered)
		response, err := client.Do(q)
		if err != nil {
			t.Error(err)
			return
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Error(err)
		}
		s.answered <- &stack.Answer{Status: response.StatusCode, Header: response.Header, Body: text}
	}()
	select {
	case <-asked:
	case a := <-s.answered:
		t.Fatalf("it was answered before its body came: %+v", a)
	}
	return s
}

// end sends the body and gives the answer.
func (s *slowly) end(t *testing.T, body string) *stack.Answer {
	t.Helper()
	if _, err := io.WriteString(s.body, body); err != nil {
		t.Fatal(err)
	}
	_ = s.body.Close() // a pipe's never fails
	a := <-s.answered
	if a == nil {
		t.FailNow()
	}
	return a
}

// TestWhatChangesWhileABodyComes: a request is decided on what holds when its body is here, all of it: where it goes, which pool that claims
// of, and whether its key is still one.
func TestWhatChangesWhileABodyComes(t *testing.T) {
	const admin = "sk-admin-of-the-test"
	s := stack.New(t, stack.Config{Env: map[string]string{"WEIR_ADMIN_KEYS": admin},
		Settings: stack.Settings{Mode: "dynamic", Weir: rebound, Keys: []stack.Key{{Name: "acme"}}}})
	version := 0
	put := func(path, body string) {
		t.Helper()
		a := stack.Do(t, stack.Request{Method: http.MethodPut, URL: s.URL() + path, Body: body, Header: map[string]string{"Authorization": "Bearer " + admin}})
		if a.Status >= 300 {
			t.Fatalf("%s: status %d: %s", path, a.Status, a.Body)
		}
	}
	key := func(name string, enabled bool) {
		t.Helper()
		version++
		put("/admin/api-keys/"+name, fmt.Sprintf(`{"version":"v%06d","key_hash":%q,"owner":"acme","name":%q,"enabled":%t}`,
			version, hashed(stack.KeyText(name)), name, enabled))
	}
	ask := func(key string) *slowly {
		t.Helper()
		return begin(t, stack.Request{Method: http.MethodPost, URL: s.URL() + "/v1/chat/completions", Key: key})
	}
	body := chat("m", `"max_tokens":5,`)
	t.Run("a pool is made, and an account bound to it", func(t *testing.T) {
		r := ask("acme")
		put("/admin/pools/new", `{"org":"acme","provider":"openai","rpm":10000,"tpm":10000000,"concurrency":100}`)
		put("/admin/connections/own", `{"org":"acme","provider":"openai","base_url":"`+s.Upstream("other")+`","pool":"new"}`)
		a := r.end(t, body)
		trail := s.Trail(t, a.ID())
		if a.Status != http.StatusOK || len(trail.Reserves) != 1 || poolOf(trail.Reserves[0]) != "new" || trail.Reserves[0].Deployment != "own/m" {
			t.Errorf("status %d: %s: %+v", a.Status, a.Body, trail.Reserves)
		}
	})
	t.Run("its key is revoked", func(t *testing.T) {
		key("brief", true)
		r := ask("brief")
		key("brief", false)
		a := r.end(t, body)
		if trail := s.Trail(t, a.ID()); a.Status != http.StatusUnauthorized || len(trail.Reserves) != 0 {
			t.Errorf("status %d: %s: %+v", a.Status, a.Body, trail.Reserves)
		}
	})
}
