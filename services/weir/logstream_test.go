package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/embedded"
	"github.com/weirhq/weir/gateway/inquiry"
	"github.com/weirhq/weir/services/config"
)

// logNode is a node that only has a log.
func logNode(t *testing.T) *node {
	t.Helper()
	b, err := embedded.Start(t.Context(), embedded.Config{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	nc, err := b.Connect(access.Identity{Name: "test-00000001", Roles: []access.Role{access.System}}, journal.Options("test")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	l, err := journal.Open(t.Context(), nc, journal.Config{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	return &node{config: &config.Config{}, log: l, name: "test-00000001"}
}

func (n *node) credit(t *testing.T, reference string) uint64 {
	t.Helper()
	seq, err := n.log.Publish(t.Context(), events.Event{ID: "credit/" + reference, Source: "test", Org: "acme", Data: &events.Credit{Org: "acme", AmountNano: 5, Reference: reference}})
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

func TestARunningProcessGivesItsLog(t *testing.T) {
	n := logNode(t)
	n.credit(t, "a")
	n.credit(t, "b")
	server := httptest.NewServer(http.HandlerFunc(n.serveLog))
	defer server.Close()
	h := &httpLog{url: server.URL}
	var got []string
	take := func(r *events.Record) error {
		got = append(got, r.Data.(*events.Credit).Reference)
		return nil
	}
	if err := h.Read(t.Context(), 0, take); err != nil {
		t.Fatal(err)
	}
	if strings.Join(got, "") != "ab" {
		t.Errorf("read %q, want a and b", got)
	}
	if seq, err := h.SeqAt(t.Context(), time.Now().Add(time.Hour).UnixNano()); err != nil || seq != 3 {
		t.Errorf("the first sequence in an hour is %d (%v), want 3", seq, err)
	}
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	got = nil
	_ = h.follow(ctx, 2, func(r *events.Record) error {
		if len(got) == 0 {
			n.credit(t, "c")
		}
		return take(r)
	}, func() error {
		if len(got) == 2 {
			return inquiry.ErrEnough
		}
		return nil
	})
	if strings.Join(got, "") != "bc" {
		t.Errorf("followed %q, want b and then c", got)
	}
}

// A recorded line reads back as the record it was.
func TestLinesReadBack(t *testing.T) {
	r := events.Record{Seq: 7, At: 1_780_000_000_123_456_789, Gateway: "gw-00000001", Event: events.Event{Org: "acme",
		Data: &events.Release{Request: "r1", Gateway: "gw-00000001", Outcome: events.Completed, Dispatched: events.DispatchedYes}}}
	line, err := lineOf(&r)
	if err != nil {
		t.Fatal(err)
	}
	got, err := lineRecord(string(line))
	if err != nil || got.Fault != "" || got.Seq != r.Seq || got.At != r.At || got.Org != r.Org || *got.Data.(*events.Release) != *r.Data.(*events.Release) {
		t.Errorf("%s reads back as %+v (%v)", line, got, err)
	}
}

func TestOnlyOperatorsReadTheLog(t *testing.T) {
	n := logNode(t)
	ask := func(change func(*http.Request)) int {
		r := httptest.NewRequest(http.MethodGet, "/log?from=1", nil)
		r.RemoteAddr = "127.0.0.1:4000"
		change(r)
		w := httptest.NewRecorder()
		n.serveLog(w, r)
		if w.Code != http.StatusOK && !json.Valid(w.Body.Bytes()) {
			t.Errorf("not JSON: %s", w.Body)
		}
		return w.Code
	}
	if code := ask(func(*http.Request) {}); code != http.StatusOK {
		t.Errorf("this machine got %d", code)
	}
	if code := ask(func(r *http.Request) { r.RemoteAddr = "10.0.0.9:4000" }); code != http.StatusUnauthorized {
		t.Errorf("another machine got %d", code)
	}
	if code := ask(func(r *http.Request) { r.Header.Set("X-Forwarded-For", "10.0.0.9") }); code != http.StatusUnauthorized {
		t.Errorf("another machine through a proxy got %d", code)
	}
	for header, value := range map[string]string{"Origin": "http://elsewhere.example", "Sec-Fetch-Site": "cross-site"} {
		if code := ask(func(r *http.Request) { r.Header.Set(header, value) }); code != http.StatusUnauthorized {
			t.Errorf("a page in a browser on this machine got %d with %s", code, header)
		}
	}
	n.config.AdminKeys = [][32]byte{{1}}
	if code := ask(func(*http.Request) {}); code != http.StatusUnauthorized {
		t.Errorf("this machine without the admin key got %d", code)
	}
}
