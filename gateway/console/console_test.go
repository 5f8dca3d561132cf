package console_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir/gateway/console"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script is an API that answers as it is told: status and body by method and path. What it is not told, it does not know.
type script map[string]string

const signedIn = `200 {"id":"u1","email":"ann@acme.example","role":"owner","org":"acme"}`

func (s script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, known := s[r.Method+" "+r.URL.Path]
	if !known {
		answer = `404 {"error":"there is nothing at ` + r.URL.Path + `","code":"not_found"}`
	}
	var status int
	_, _ = fmt.Sscanf(answer, "%d", &status)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, answer[4:])
}

// serve serves the console over an API.
func serve(t *testing.T, api http.Handler) (*httptest.Server, *console.Handler) {
	t.Helper()
	h := console.New(console.Config{API: api, Now: time.Now, Logger: slog.New(slog.DiscardHandler)})
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	s.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return s, h
}

// get reads a page.
func get(t *testing.T, s *httptest.Server, path string) (int, string, http.Header) {
	t.Helper()
	resp, err := s.Client().Get(s.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text), resp.Header
}

func TestPagesSayWhatIsOutOfReach(t *testing.T) {
	s, _ := serve(t, script{
		"GET /api/me":               signedIn,
		"GET /api/effective-limits": `503 {"error":"nothing can be changed or read now: the log or the store does not answer","code":"gateway_infrastructure"}`,
		"GET /api/headroom":         `500 {"error":"the change failed"}`,
		"GET /api/usage":            `501 {"error":"usage by hour and day is kept in PostgreSQL, whose URL is the field database","code":"not_configured"}`,
		"GET /api/generations":      `503 {"error":"the audit records cannot be read now","code":"gateway_infrastructure"}`,
	})
	for path, want := range map[string]struct {
		status int
		says   string
	}{
		"/console/limits":       {503, "Nothing can be changed or read now: the log or the store does not answer."},
		"/console/headroom":     {500, "The change failed."},
		"/console/usage":        {200, "Usage by hour and day is kept in PostgreSQL, whose URL is the field database."},
		"/console/activity":     {503, "The audit records cannot be read now."},
		"/console/activity/abc": {404, "There is nothing at /api/explain."},
		"/console/none":         {404, "There is nothing at this address."},
		"/console/static/none":  {404, "not found"},
	} {
		status, text, _ := get(t, s, path)
		if status != want.status || !strings.Contains(text, want.says) {
			t.Errorf("%s: %d, want %d with %q: %s", path, status, want.status, want.says, text)
		}
	}
}

// A refusal of money is told in dollars, and when it is worth another try; every instant has its date and zone.
func TestARefusalByTheGateway(t *testing.T) {
	s, _ := serve(t, script{"GET /api/me": signedIn, "GET /api/explain": `200 {"story":{"request":"r1","outcome":"refused","summary":"refused","timeline":[{"time":"2026-03-02T10:00:00.5Z","what":"refused"}],
		"refused_by_gateway":[{"time":"2026-03-02T10:00:00.5Z","gate":"limits","scope":"org","kind":"spend","meter":"org/acme/spend-day","limit":50000000000,"used":49999000000,"requested":2000000,"status":429,
		"code":"spend_limit_exceeded","retry_at":"2026-03-03T00:00:00Z","by":{"count":0,"amount":0}}],"decisions":[{"outcome":"refused","why":"refused","estimate":{"input_tokens":4,"output_tokens":50,"of":"for tokens a minute it counts 127, the input at most by its bytes"},"claims":[]}],"cost":{"nano":0}}}`})
	status, text, _ := get(t, s, "/console/activity/r1")
	for _, want := range []string{"$49.999 of $50.00 used, $0.002 more asked for.", "Worth another try at 2026-03-03 00:00:00 UTC.", "<dt>Came</dt><dd>2026-03-02 10:00:00 UTC</dd>", "<dt>At</dt><dd>2026-03-02 10:00:00 UTC</dd>",
		"Expected 4 input and 50 output tokens", "For tokens a minute it counts 127, the input at most by its bytes."} {
		if !strings.Contains(text, want) {
			t.Errorf("the page (%d) does not say %q:\n%s", status, want, text)
		}
	}
}

// Where others read the log, the page asks again by itself.
func TestAPageAsksAgain(t *testing.T) {
	for answer, again := range map[string]bool{`503 {"error":"others are reading the log: come again","code":"busy"}`: true, `404 {"error":"there is no such request of this org in the log","code":"not_found"}`: false} {
		s, _ := serve(t, script{"GET /api/me": signedIn, "GET /api/explain": answer})
		if status, text, _ := get(t, s, "/console/activity/r1"); strings.Contains(text, `hx-trigger="every`) != again || fmt.Sprint(status) != answer[:3] {
			t.Errorf("%s: %d %s", answer, status, text)
		}
	}
}

func TestUsageIsExact(t *testing.T) {
	row := func(hour, cost string) string {
		return `{"start":"2026-03-02T` + hour + `:00:00Z","key":"<b>k","model":"m","requests":1234,"unsettled":2,"input_tokens":` + cost + `,"cached_tokens":0,"output_tokens":7,"cost_nano":` + cost + `}`
	}
	s, _ := serve(t, script{"GET /api/me": signedIn, "GET /api/effective-limits": `200 {"scopes":[]}`,
		"GET /api/usage": `200 {"by":"hour","as_of":"2026-03-02T12:00:01Z","rows":[` + row("10", "1000000000000000000001") + "," + row("11", "9223372036854775807") + `]}`})
	status, text, _ := get(t, s, "/console/usage")
	for _, want := range []string{"1\u202f000\u202f000\u202f000\u202f000\u202f000\u202f000\u202f001", "1\u202f009\u202f223\u202f372\u202f036\u202f854\u202f775\u202f808", "2\u202f468",
		"$9223372036.854775807", "&lt;b&gt;k", "2026-03-02 10:00:00", "Counted up to 2026-03-02 12:00:01"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page (%d) does not say %q:\n%s", status, want, text)
		}
	}
	if strings.Contains(text, "<b>k") {
		t.Error("a name is not escaped")
	}
}

func TestWhoIsSignedOutIsSentToSignIn(t *testing.T) {
	s, _ := serve(t, script{"GET /api/me": `401 {"error":"sign in first"}`})
	for path, want := range map[string]string{"/console": "/console/", "/console/": "/console/sign-in", "/console/limits?q=a%26b": "/console/sign-in?next=%2Fconsole%2Flimits%3Fq%3Da%2526b"} {
		if status, _, header := get(t, s, path); status != http.StatusSeeOther || header.Get("Location") != want {
			t.Errorf("%s: %d %q, want %q", path, status, header.Get("Location"), want)
		}
	}
	resp, err := s.Client().PostForm(s.URL+"/console/limits/edit", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.Header.Get("Location") != "/console/sign-in?ended=1" {
		t.Errorf("a form leads to %q", resp.Header.Get("Location"))
	}
	req, _ := http.NewRequest(http.MethodGet, s.URL+"/console/activity", nil) // as a script of the page asks
	req.Header.Set("HX-Request", "true")
	if resp, err = s.Client().Do(req); err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("HX-Redirect"), "/console/sign-in") {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
}

// live opens a stream.
func live(t *testing.T, s *httptest.Server) *bufio.Scanner {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/console/live", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if kind := resp.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Fatalf("it is %s", kind)
	}
	return bufio.NewScanner(resp.Body)
}

// next reads one event: "name data". Empty: the stream has ended.
func next(lines *bufio.Scanner) string {
	event := ""
	for lines.Scan() {
		switch line := lines.Text(); {
		case line == "":
			return event
		case event == "":
			event = strings.TrimPrefix(line, "event: ")
		default:
			event += " " + strings.TrimPrefix(line, "data: ")
		}
	}
	return event
}

func TestStreamsAreBoundedAndEnd(t *testing.T) {
	var out, away atomic.Bool
	s, h := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		told := script{"GET /api/me": signedIn, "GET /api/headroom": "200 {\"scopes\":[]}\n"}
		if away.Load() {
			told["GET /api/headroom"] = `503 {"error":"the log is out of reach"}`
		}
		if out.Load() {
			told = script{"GET /api/me": `401 {"error":"sign in first"}`, "GET /api/headroom": `401 {"error":"sign in first"}`}
		}
		told.ServeHTTP(w, r)
	}))
	var streams []*bufio.Scanner
	for range 6 {
		streams = append(streams, live(t, s))
		if got := next(streams[len(streams)-1]); got != `headroom {"scopes":[]}` {
			t.Fatalf("a stream begins with %q", got)
		}
	}
	if got := next(live(t, s)); got != "end too-many" {
		t.Errorf("a seventh stream begins with %q", got)
	}
	away.Store(true)
	for i := 0; ; i++ {
		if got := next(streams[0]); got == `away "The log is out of reach."` {
			break
		} else if i > 5 {
			t.Fatalf("what cannot be read is told as %q", got)
		}
	}
	out.Store(true)
	for i := 0; ; i++ {
		if got := next(streams[0]); got == "end signed-out" {
			break
		} else if i > 5 {
			t.Fatalf("the session's end is told as %q", got)
		}
	}
	if got := next(streams[0]); got != "" {
		t.Errorf("after its end a stream says %q", got)
	}
	if got := next(live(t, s)); got != "end signed-out" {
		t.Errorf("who is signed out is told %q", got)
	}
	out.Store(false)
	last := live(t, s) // a place is free again
	if got := next(last); !strings.HasPrefix(got, "away") {
		t.Errorf("a stream begins with %q", got)
	}
	h.Close()
	for i := 0; next(last) != ""; i++ {
		if i > 5 {
			t.Fatal("the server's end ends no stream")
		}
	}
}

func TestFilesAreServedUnderTheirVersion(t *testing.T) {
	s, _ := serve(t, script{})
	_, text, _ := get(t, s, "/console/sign-in")
	_, rest, found := strings.Cut(text, `<link rel="stylesheet" href="`)
	path, _, _ := strings.Cut(rest, `"`)
	if !found || !strings.Contains(path, "?v=") {
		t.Fatalf("the page has no stylesheet: %s", text)
	}
	status, css, header := get(t, s, path)
	if status != 200 || !strings.Contains(css, "prefers-color-scheme") || header.Get("Content-Type") != "text/css; charset=utf-8" || !strings.Contains(header.Get("Cache-Control"), "immutable") {
		t.Errorf("%d %v", status, header)
	}
	if _, _, header := get(t, s, "/console/static/console.css?v=old"); header.Get("Cache-Control") != "no-cache" {
		t.Errorf("another version is kept: %v", header)
	}
	for _, licence := range []string{"htmx.LICENSE.txt", "uPlot.LICENSE.txt"} {
		if status, _, _ := get(t, s, "/console/static/"+licence); status != 200 {
			t.Errorf("%s: %d", licence, status)
		}
	}
}

// Where somebody signs in from is what the API is told, to slow that address down.
func TestSigningInSaysWhereFrom(t *testing.T) {
	var from string
	s, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from = r.Header.Get("X-Forwarded-For")
		w.WriteHeader(http.StatusNoContent)
	}))
	q, err := http.NewRequest("POST", s.URL+"/console/sign-in", strings.NewReader("email=ann@acme.example&password=x"))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	q.Header.Set("X-Forwarded-For", "198.51.100.7")
	resp, err := s.Client().Do(q)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if from != "198.51.100.7" {
		t.Errorf("the API is told %q", from)
	}
}
