package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/services/biller"
	"github.com/weirhq/weir/services/config"
)

// taker is a receiver of CloudEvents, which first is out of order, and rejects some.
type taker struct {
	mu      sync.Mutex
	calls   int
	rejects string // what an event may not hold
	taken   map[string]int
	shapes  []map[string]any
}

func (k *taker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls++
	switch {
	case err != nil || r.Header.Get("Authorization") != "Bearer let me in" || r.Header.Get("Content-Type") != "application/cloudevents-batch+json":
		w.WriteHeader(http.StatusUnauthorized)
		return
	case k.calls == 1:
		w.WriteHeader(http.StatusInternalServerError)
		return
	case k.calls == 2:
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		return
	case k.rejects != "" && bytes.Contains(body, []byte(k.rejects)):
		http.Error(w, "not this one", http.StatusBadRequest)
		return
	}
	var batch []map[string]any
	if json.Unmarshal(body, &batch) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	for _, e := range batch {
		k.taken[e["id"].(string)]++
		k.shapes = append(k.shapes, e)
	}
	w.WriteHeader(http.StatusNoContent)
}

func (k *taker) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.taken)
}

// What is configured runs: batches in the shape that OpenMeter takes, tried until they are taken; what is rejected is a dead letter that can
// be sent again; and metrics tell of all of it.
func TestExportsOfTheConfiguration(t *testing.T) {
	k := &taker{taken: map[string]int{}, rejects: `"subject":"beta"`}
	server := httptest.NewServer(k)
	defer server.Close()
	files := t.TempDir()
	secret := filepath.Join(files, "secret")
	if err := os.WriteFile(secret, []byte("let me in\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := startWith(t, "", "exports:\n  - {name: meter, type: cloudevents-http, url: \""+server.URL+"\", secret_file: "+secret+", batch: 2, retry: {first: 10ms, most: 50ms}, dead_letters: "+files+
		"}\n  - {name: files, type: csv, path: "+files+", orgs: [acme]}\n")
	w.chat("acme", 200)
	w.chat("acme", 200)
	w.chat("beta", 200)
	w.eventually("all handed on", func() bool {
		s := w.n.biller.Status().Exports
		return k.count() == 2 && s["meter"].Dead == 1 && s["files"].Exported == 2
	})
	for _, e := range k.shapes {
		data, _ := e["data"].(map[string]any)
		if e["specversion"] != "1.0" || e["source"] != "weir/usage" || e["type"] != "weir.usage.v1" || e["subject"] != "acme" || e["time"] == "" || data["change"] == nil {
			t.Errorf("%v", e)
		}
	}
	text, err := os.ReadFile(filepath.Join(files, "meter.dead.jsonl"))
	if err != nil || !strings.Contains(string(text), "not this one") {
		t.Errorf("%s %v", text, err)
	}
	rows := 0
	names, _ := filepath.Glob(filepath.Join(files, "usage-*.csv"))
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		rows += bytes.Count(text, []byte("\n")) - 1
		if bytes.Contains(text, []byte("beta")) {
			t.Errorf("a line of another org: %s", text)
		}
	}
	if rows != 2 {
		t.Errorf("%d rows", rows)
	}
	_, _, metrics := w.do("GET", "/metrics", "", nil)
	for _, want := range []string{"weir_biller_active 1", "weir_biller_lines_total 3", `weir_export_sent_total{export="meter"} 2`, `weir_export_dead_letters_total{export="meter"} 1`,
		`weir_export_lag_records{export="meter"} 0`, `weir_export_lag_seconds{export="meter"} 0`, `weir_export_sent_total{export="files"} 2`} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(metrics, `weir_export_retried_total{export="meter"} 0`) || strings.Contains(metrics, `weir_export_last_error_seconds{export="meter"} 0`) {
		t.Error("the failures are not counted")
	}

	var out bytes.Buffer
	retry := func(names ...string) error {
		out.Reset()
		return (&exportsRetryCommand{names}).run(t.Context(), w.n.config, &out)
	}
	if err := retry(); err == nil || !strings.Contains(err.Error(), "rejected again: 1") {
		t.Errorf("%v", err)
	}
	if n, err := biller.Letters(filepath.Join(files, "meter.dead.jsonl")); n != 1 || err != nil {
		t.Errorf("%d letters, %v", n, err)
	}
	k.mu.Lock()
	k.rejects = ""
	k.mu.Unlock()
	if err := retry("meter"); err != nil || out.String() != "meter: 1 sent, 0 dead\n" || k.count() != 3 {
		t.Errorf("%v %s", err, out.String())
	}
	if err := retry("meter"); err != nil || out.String() != "meter: 0 sent, 0 dead\n" {
		t.Errorf("%v %s", err, out.String())
	}
	if err := retry("nobody"); err == nil || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("%v", err)
	}
}

// An export that fails is said to, since when and why, until a line is taken.
func TestExportsThatFailAreShown(t *testing.T) {
	var status atomic.Int64
	status.Store(http.StatusServiceUnavailable)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "shut\nfor the day", int(status.Load()))
	}))
	defer server.Close()
	files := t.TempDir()
	secret := filepath.Join(files, "secret")
	w := startWith(t, "", "exports:\n  - {name: meter, type: cloudevents-http, url: \""+server.URL+"\", secret_file: "+secret+", retry: {first: 10ms, most: 50ms}, dead_letters: "+files+
		"}\n  - {name: files, type: csv, path: "+files+"}\n")
	began := time.Now().Add(-time.Second).Truncate(time.Second) // instants are shown in seconds
	list := func() string {
		t.Helper()
		var out bytes.Buffer
		if err := (&exportsListCommand{w.url, testAdmin}).run(w.n.config, &out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	shows := func(wants ...string) (text string) {
		t.Helper()
		w.eventually(strings.Join(wants, ", "), func() bool {
			text = list()
			return !slices.ContainsFunc(wants, func(want string) bool { return !strings.Contains(text, want) })
		})
		return text
	}
	shows("meter: all handed on\n", "files: all handed on\n")
	w.chat("acme", 200)
	text := shows("meter: failing since ", ", 1 behind: ", "no such file or directory\n", "files: all handed on\n")
	_, since, _ := strings.Cut(text, "failing since ")
	since, _, _ = strings.Cut(since, ",")
	if at, err := time.Parse(time.RFC3339, since); err != nil || at.Before(began) || at.After(time.Now()) {
		t.Errorf("since %q: %v", since, err)
	}
	if err := os.WriteFile(secret, []byte("let me in"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text := shows("503 Service Unavailable shut for the day\n"); !strings.Contains(text, "failing since "+since+",") {
		t.Errorf("it fails since %s, not since another reason came:\n%s", since, text)
	}
	if got, err := askStatus(w.url, testAdmin); err != nil || len(got.Exports) != 2 || got.Exports[0].Failing == nil || got.Exports[0].Retried == 0 || got.Exports[1].Failing != nil {
		t.Errorf("status: %+v %v", got.Exports, err)
	}
	status.Store(http.StatusNoContent)
	shows("meter: all handed on\n")
	if got, err := askStatus(w.url, testAdmin); err != nil || got.Exports[0].Failing != nil || got.Exports[0].Failed == nil || got.Exports[0].Sent != 1 {
		t.Errorf("status: %+v %v", got.Exports, err)
	}
	var out bytes.Buffer
	if err := (&exportsListCommand{w.url, "sk-weir-wrong"}).run(w.n.config, &out); err != nil || !strings.Contains(out.String(), "how they do is not known: ") {
		t.Errorf("%v %s", err, out.String())
	}
}

// While a receiver is away, no letter is lost.
func TestRetryToNobody(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	dir := t.TempDir()
	x := config.Export{Name: "meter", Type: config.ExportCloudEvents, URL: server.URL, DeadLetters: dir}
	cfg := &config.Config{Exports: []config.Export{x}}
	letter := `{"id":"e1","stream_seq":1,"reason":"400","line":{"id":"e1","request":"r","org":"acme"}}` + "\n"
	file := filepath.Join(dir, "meter.dead.jsonl")
	if err := os.WriteFile(file, []byte(letter+letter), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (&exportsRetryCommand{}).run(t.Context(), cfg, io.Discard); err == nil {
		t.Error("it was sent to nobody")
	}
	if n, err := biller.Letters(file); n != 2 || err != nil {
		t.Errorf("%d letters, %v", n, err)
	}
	if _, err := os.Stat(file + ".retrying"); !os.IsNotExist(err) {
		t.Errorf("a file is left: %v", err)
	}
}
