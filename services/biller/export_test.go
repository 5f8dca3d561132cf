package biller

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/projections/usage"
	schemas "github.com/weirhq/weir/schemas/usage"
	"github.com/weirhq/weir/test/freeport"
)

// receiver is a system outside that behaves badly: of what it is sent it takes some and answers, takes some and does not answer in time,
// takes some and breaks the connection, and refuses some for the moment.
type receiver struct {
	t       *testing.T
	address string
	server  *http.Server
	client  *http.Client
	stop    chan struct{}

	mu       sync.Mutex
	bad      bool
	calls    int
	repeated int
	taken    map[string]string // by id: what was taken first
	rejects  func(text string) bool
	read     func(body []byte) map[string]string
}

func newReceiver(t *testing.T, read func([]byte) map[string]string) *receiver {
	r := &receiver{t: t, bad: true, taken: map[string]string{}, read: read, address: freeport.Address(t), rejects: func(string) bool { return false },
		client: &http.Client{Timeout: 150 * time.Millisecond, Transport: &http.Transport{}}}
	r.start()
	t.Cleanup(func() { r.end(); r.client.CloseIdleConnections() })
	return r
}

func (r *receiver) endpoint() Endpoint {
	return Endpoint{URL: "http://" + r.address + "/api/v1/events", Client: r.client, Header: http.Header{"authorization": {"Bearer secret"}}}
}

func (r *receiver) start() {
	r.t.Helper()
	listener, err := net.Listen("tcp", r.address)
	if err != nil {
		r.t.Fatal(err)
	}
	r.address, r.stop = listener.Addr().String(), make(chan struct{})
	r.server = &http.Server{Handler: r}
	go func() { _ = r.server.Serve(listener) }()
}

func (r *receiver) end() { close(r.stop); _ = r.server.Close() }

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil || request.Header.Get("Authorization") != "Bearer secret" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	how := r.calls % 5
	if !r.bad {
		how = 0
	}
	if how == 1 {
		w.Header().Set("Retry-After", "0")
		w.WriteHeader([]int{429, 500, 502, 503}[r.calls/5%4])
		return
	}
	all := r.read(body)
	for _, text := range all {
		if r.rejects(text) {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
	}
	for id, text := range all {
		before, again := r.taken[id]
		if again {
			r.repeated++
			if before != text {
				r.t.Errorf("%s came as %s and as %s", id, before, text)
			}
			continue
		}
		r.taken[id] = text
		if how == 2 && len(r.taken)%3 == 0 {
			panic(http.ErrAbortHandler) // with part of a batch taken
		}
	}
	if how == 3 {
		r.mu.Unlock()
		select {
		case <-time.After(300 * time.Millisecond):
		case <-r.stop:
		}
		r.mu.Lock()
	}
	w.WriteHeader(http.StatusNoContent)
}

func (r *receiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.taken)
}

// readCloudEvents reads a batch, whose events must hold their schema.
func readCloudEvents(t *testing.T) func([]byte) map[string]string {
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	for _, name := range []string{"usage.schema.json", "event.schema.json"} {
		text, err := schemas.Files().ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
		if err == nil {
			err = compiler.AddResource("https://github.com/weirhq/weir/schemas/usage/"+name, doc)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	schema := compiler.MustCompile("https://github.com/weirhq/weir/schemas/usage/event.schema.json")
	return func(body []byte) map[string]string {
		var batch []json.RawMessage
		if err := json.Unmarshal(body, &batch); err != nil {
			t.Error(err)
		}
		all := map[string]string{}
		for _, text := range batch {
			var e struct {
				ID   string
				Data json.RawMessage
			}
			doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
			if err == nil {
				err = errors.Join(schema.Validate(doc), json.Unmarshal(text, &e))
			}
			if err != nil {
				t.Errorf("%s: %v", text, err)
			}
			all[e.ID] = string(e.Data)
		}
		return all
	}
}

// texts are the log's lines by their ids.
func (n *node) texts() map[string]string {
	all := map[string]string{}
	for _, l := range n.lines() {
		all[l.EventID()] = string(l.Encode())
	}
	return all
}

// After a receiver has failed, timed out and restarted, and the biller has crashed, what it has by id is what there is: nothing is missing
// and nothing is different.
func TestCloudEventsToABadReceiver(t *testing.T) {
	n := newNode(t)
	r := newReceiver(t, readCloudEvents(t))
	dir := t.TempDir()
	export := func(c *Config) {
		c.SaveEvery = 50 * time.Millisecond
		c.Exports = []Export{{Name: "meter", To: &CloudEvents{r.endpoint()}, Batch: 20, AckWait: 600 * time.Millisecond, MaxWait: 50 * time.Millisecond}}
	}
	b := n.run(dir, export)
	n.requests(1, 150)
	n.eventually("half taken", func() bool { return r.count() > 60 })
	r.end()
	n.requests(150, 200)
	n.eventually("failures", func() bool { return b.Status().Exports["meter"].Failures > 5 })
	r.start()
	n.eventually("more taken", func() bool { return r.count() > 80 })
	b.crash(t, dir, readState(t, dir))
	b = n.run(dir, export)
	n.requests(200, 260)
	n.state(&events.Correction{Request: id(3), Revision: 1, CostNano: 7, Reason: "test"})
	want := n.texts()
	n.eventually(fmt.Sprintf("%d taken", len(want)), func() bool { return r.count() >= len(want) })
	n.billed()
	r.mu.Lock()
	defer r.mu.Unlock()
	if diff := cmp.Diff(want, r.taken); diff != "" {
		t.Errorf("(- lines, + taken):\n%.3000s", diff)
	}
	if r.repeated == 0 {
		t.Error("nothing came twice: the receiver did not fail as it should")
	}
	t.Logf("%d lines in %d calls, %d came again", len(want), r.calls, r.repeated)
}

// What a receiver will never take is kept with its reason; all else is taken.
func TestDeadLetters(t *testing.T) {
	n := newNode(t)
	r := newReceiver(t, readCloudEvents(t))
	bad := fmt.Sprintf("%q", id(17))
	r.rejects = func(text string) bool { return strings.Contains(text, bad) || strings.Contains(text, `"org":"beta"`) }
	dir := t.TempDir()
	b := n.run(dir, func(c *Config) {
		c.Exports = []Export{{Name: "meter", To: &CloudEvents{r.endpoint()}, Batch: 16, MaxWait: 20 * time.Millisecond}}
	})
	n.requests(1, 60)
	want := n.texts()
	dead := map[string]bool{}
	for id, text := range want {
		if r.rejects(text) {
			dead[id] = true
			delete(want, id)
		}
	}
	n.eventually("all taken or dead", func() bool { s := b.Status().Exports["meter"]; return s.Exported+s.Dead >= uint64(len(want)+len(dead)) })
	r.mu.Lock()
	diff := cmp.Diff(want, r.taken)
	r.mu.Unlock()
	if diff != "" {
		t.Errorf("(- lines, + taken):\n%.3000s", diff)
	}
	text, err := os.ReadFile(filepath.Join(dir, folder, "meter.dead.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		var letter struct {
			ID, Reason string
			Line       usage.Line
		}
		if err := json.Unmarshal([]byte(one), &letter); err != nil {
			t.Fatal(err)
		}
		if !dead[letter.ID] || letter.Line.EventID() != letter.ID || !strings.Contains(letter.Reason, "400") {
			t.Errorf("dead letter %s", one)
		}
		delete(dead, letter.ID)
	}
	if len(dead) != 0 {
		t.Errorf("%d lines were neither taken nor kept", len(dead))
	}
}

func TestMeterEventsToABadReceiver(t *testing.T) {
	n := newNode(t)
	type event struct {
		EventName  string `json:"event_name"`
		Identifier string
		Timestamp  time.Time
		Payload    map[string]string
	}
	r := newReceiver(t, func(body []byte) map[string]string {
		var e event
		if err := json.Unmarshal(body, &e); err != nil || e.EventName != "cost" || e.Timestamp.IsZero() || e.Payload["stripe_customer_id"] != "cus_acme" {
			t.Errorf("%s: %v", body, err)
		}
		return map[string]string{strings.TrimSuffix(e.Identifier, ".cost_nano"): e.Payload["value"]}
	})
	meter := &MeterEvents{Endpoint: r.endpoint(), Event: "cost", Amount: "cost_nano", Customer: func(o events.Org) (string, bool) { return "cus_" + string(o), o == "acme" }}
	b := n.run(t.TempDir(), func(c *Config) {
		c.Exports = []Export{{Name: "stripe", To: meter, Batch: 10, MaxWait: 20 * time.Millisecond, AckWait: time.Second}}
	})
	n.requests(1, 30)
	unused := eventstest.Final(id(100), 0, 0, 0)
	n.state(eventstest.Reserve(id(100)), unused, &events.Correction{Request: id(3), Revision: 1, CostNano: 1000})
	want, beta := map[string]string{}, 0
	for _, l := range n.lines() {
		switch {
		case l.Org == "beta":
			beta++
		case l.Change.CostNano != 0:
			want[l.EventID()] = fmt.Sprint(l.Change.CostNano)
		}
	}
	if want["e8.1"] != "-2000" {
		t.Fatalf("the correction is %q", want["e8.1"])
	}
	n.eventually("all taken", func() bool { return r.count() >= len(want) && b.Status().Exports["stripe"].Dead == uint64(beta) })
	r.mu.Lock()
	defer r.mu.Unlock()
	if diff := cmp.Diff(want, r.taken); diff != "" {
		t.Errorf("(- lines, + taken):\n%s", diff)
	}
}

func TestAnswers(t *testing.T) {
	var status int
	var body, retry string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", retry)
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	defer server.Close()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	e := MeterEvents{Endpoint: Endpoint{URL: server.URL}, Event: "e", Amount: "total_tokens"}
	send := func() error {
		_, err := e.Export(t.Context(), []Record{{ID: strings.Repeat("x", 200), Line: usage.Line{Change: usage.Amounts{InputTokens: 1, OutputTokens: 2}}}})
		return err
	}
	for status = range 600 {
		if status < 200 {
			continue
		}
		err := send()
		_, rejected := errors.AsType[*Rejected](err)
		switch {
		case status < 300:
			if err != nil {
				t.Errorf("%d: %v", status, err)
			}
		case status == 400 || status == 413 || status == 422:
			if !rejected {
				t.Errorf("%d is not a rejection: %v", status, err)
			}
		case err == nil || rejected:
			t.Errorf("%d is not tried again: %v", status, err)
		}
	}
	status, retry = 503, "7"
	if l, ok := errors.AsType[*later](send()); !ok || l.after != 7*time.Second {
		t.Error("Retry-After is not heeded")
	}
	status, body = 400, `{"error":{"code":"duplicate_meter_event"}}`
	if err := send(); err != nil {
		t.Errorf("what was taken before: %v", err)
	}
}

// csvRows reads all files, without their heads.
func csvRows(t *testing.T, dir string) (rows [][]string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.csv"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		all, err := csv.NewReader(file).ReadAll()
		_ = file.Close()
		if err != nil || !slices.Equal(all[0], columns) {
			t.Fatalf("%s: %v", name, err)
		}
		rows = append(rows, all[1:]...)
	}
	return rows
}

// Whatever a crash left of a file, and whatever is given again, each line has one row.
func TestCSV(t *testing.T) {
	n := newNode(t)
	dir, out := t.TempDir(), t.TempDir()
	export := func(c *Config) {
		c.Exports = []Export{{Name: "csv", To: &CSV{Dir: out}, Batch: 7, AckWait: 300 * time.Millisecond}}
	}
	b := n.run(dir, export)
	n.requests(1, 100)
	n.eventually("some rows", func() bool { return b.Status().Exports["csv"].Exported > 20 })
	b.crash(t, dir, nil)
	files, err := filepath.Glob(filepath.Join(out, "*.csv"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	if err := appendTo(files[len(files)-1], []byte(`99999,"half a `)); err != nil {
		t.Fatal(err)
	}
	n.requests(100, 120)
	b = n.run(dir, export)
	n.billed()
	want := n.lines()
	n.eventually("a file that is whole", func() bool { return b.Status().Exports["csv"].Exported > 0 })
	n.eventually("all rows", func() bool { return len(csvRows(t, out)) >= len(want) })
	got := map[string]string{}
	for _, row := range csvRows(t, out) {
		if got[row[1]] != "" {
			t.Errorf("line %s has two rows", row[1])
		}
		got[row[1]] = strings.Join(row[1:], ",")
	}
	for i := range want {
		r := Record{ID: want[i].EventID(), Line: want[i]}
		if text := strings.Join(row(&r)[1:], ","); got[r.ID] != text {
			t.Errorf("row %q, want %q", got[r.ID], text)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d rows, want %d", len(got), len(want))
	}
}

func TestRuns(t *testing.T) {
	var s runs
	for _, seq := range []uint64{5, 3, 4, 9, 1, 2, 7, 8, 6} {
		if !s.add(seq) || s.add(seq) {
			t.Fatalf("%d: %v", seq, s.all)
		}
	}
	if diff := cmp.Diff([]run{{1, 9}}, s.all, cmp.AllowUnexported(run{})); diff != "" {
		t.Error(diff)
	}
}

// An export that is new may begin at a time.
func TestFrom(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	b := n.run(dir, nil)
	n.requests(1, 10)
	n.billed()
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	var got syncIDs
	n.run(dir, func(c *Config) { c.Exports = []Export{{Name: "late", To: &got, From: time.Now()}} })
	n.requests(10, 12)
	n.billed()
	n.eventually("the new line", func() bool { return len(got.all()) > 0 })
	if diff := cmp.Diff([]string{"e32"}, got.all()); diff != "" {
		t.Error(diff)
	}
}

// syncIDs takes everything and remembers the ids.
type syncIDs struct {
	mu  sync.Mutex
	ids []string
}

func (s *syncIDs) Export(_ context.Context, records []Record) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range records {
		s.ids = append(s.ids, r.ID)
	}
	return len(records), nil
}

func (s *syncIDs) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ids)
}

// A secret in a receiver's URL is in no error: errors are logged and shown.
func TestErrorsNameNoURL(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // that the client goes is seen only then
		<-r.Context().Done()
	}))
	defer server.Close()
	away, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = away.Close() // nobody listens there now
	for name, e := range map[string]Endpoint{
		"nobody listens": {URL: "http://" + away.Addr().String() + "/hook/s3cret?token=s3cret"},
		"too slow":       {URL: server.URL + "/hook/s3cret?token=s3cret", Timeout: time.Millisecond},
		"no URL":         {URL: "http://127.0.0.1:1/%zz?token=s3cret"},
	} {
		err := e.post(t.Context(), "application/json", []byte("{}"))
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", name, err)
		}
		if name == "too slow" && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}
