package main

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"text/template"
	"time"
)

// told is what a process that runs on has said.
type told struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (t *told) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(b)
}

func (t *told) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// What the demo prints for the command line works while it runs.
func TestTheDemoIsReachedFromTheCommandLine(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var out told
	ended := make(chan error, 1)
	go func() {
		ended <- (&demoCommand{Listen: "127.0.0.1:0", Script: "tokens=4"}).run(ctx, &out, slog.New(slog.DiscardHandler))
	}()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	for end := time.Now().Add(patience); !strings.Contains(out.String(), "Stop with Ctrl-C."); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the demo says %q", out.String())
		}
	}
	find := func(pattern string) string {
		t.Helper()
		m := regexp.MustCompile(pattern).FindStringSubmatch(out.String())
		if m == nil {
			t.Fatalf("no %s in\n%s", pattern, out.String())
		}
		return m[1]
	}
	url, tight := find(`Weir is running at (\S+)`), find(`WEIR_TIGHT_KEY=(\S+)`)
	t.Setenv("WEIR_CONFIG", find(`(?m)^export WEIR_CONFIG=(\S+)`))
	t.Setenv("WEIR_ADMIN_KEY", find(`(?m)^export .* WEIR_ADMIN_KEY=(\S+)`))
	id := ""
	for range 3 {
		q, err := http.NewRequestWithContext(t.Context(), "POST", url+"/v1/chat/completions", strings.NewReader(`{"model":"weir-demo","messages":[{"role":"user","content":"Hello"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Authorization", "Bearer "+tight)
		a, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		_ = a.Body.Close()
		id = a.Header.Get("X-Request-Id")
	}
	weir := func(want string, args ...string) {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) { // what is told of a refusal, and kept, comes a moment later
			var said, wrong bytes.Buffer
			code := run(args, &said, &wrong)
			if code == 0 && regexp.MustCompile(want).MatchString(said.String()) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("weir %v: %d %s\n%s\nwant %s", args, code, wrong.String(), said.String(), want)
			}
		}
	}
	weir(`org/tight/rpm`, "explain", id)
	weir(`(?s)billing +2 agree, 0 not.*audit +2 agree, 0 not.*no difference`, "verify")
	weir(`by org rpm`, "simulate", "--scale", "2x")
}

// A demo over the directory of an earlier one says that the keys of that are not valid any more.
func TestADemoOverAnEarlierOne(t *testing.T) {
	dir := t.TempDir()
	for _, again := range []bool{false, true} {
		d, err := (&demoCommand{}).files(dir, "http://127.0.0.1:1")
		if err != nil {
			t.Fatal(err)
		}
		var said strings.Builder
		if err := template.Must(template.New("").Parse(demoText)).Execute(&said, d); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(said.String(), "their keys and password are not valid any more"); got != again {
			t.Errorf("again %v: it says\n%s", again, said.String())
		}
	}
}
