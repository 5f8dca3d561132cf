package main

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"

	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/services/biller"
	"github.com/weirhq/weir/services/config"
)

// remote gives the log of a process that keeps it for itself, as another sees it.
func (v *verified) remote() *httpLog {
	n := &node{config: &config.Config{}, log: v.log, conn: v.nc}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /log", n.serveLog)
	mux.HandleFunc("GET /log/{stream}", n.serveStream)
	s := httptest.NewServer(mux)
	v.t.Cleanup(s.Close)
	return &httpLog{url: s.URL}
}

// What a running process keeps for itself is compared as what is on a broker.
func TestVerifyARunningProcess(t *testing.T) {
	v := startVerified(t)
	v.traffic()
	v.stop()
	there := v.remote()
	verify := func() *verification {
		t.Helper()
		check := newVerifier()
		if err := check.live(t.Context(), there, v.dir, nil, nil, newProgress("verifying")); err != nil {
			t.Fatal(err)
		}
		return check.finish()
	}
	here, _, err := v.verify()
	if err != nil {
		t.Fatal(err)
	}
	got := verify()
	if got.Found != 0 || got.Billing == nil || got.Billing.Agree == 0 || got.Audit == nil || got.Audit.Agree == 0 || got.Chained == 0 {
		t.Fatalf("little was proven: %+v", got)
	}
	if !reflect.DeepEqual(got, here) {
		t.Errorf("a running process: %+v\non its broker: %+v", got, here)
	}
	stream, err := v.js.Stream(t.Context(), biller.Stream)
	if err == nil {
		err = stream.DeleteMsg(t.Context(), 2)
	}
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := verify().found("missing from billing"); n != 1 {
		t.Errorf("a line that is gone is missed %d times", n)
	}
}

func TestStreamsAreForOperators(t *testing.T) {
	v := startVerified(t)
	there := v.remote()
	if state, err := there.state(t.Context(), journal.DefaultStream); err != nil || state == nil || state.Config.Name != journal.DefaultStream {
		t.Errorf("the log's state is %+v (%v)", state, err)
	}
	if _, err := there.state(t.Context(), "KV_authority"); err == nil {
		t.Error("secrets are shown")
	}
	n := &node{config: &config.Config{AdminKeys: [][32]byte{{1}}}, log: v.log, conn: v.nc}
	r := httptest.NewRequest(http.MethodGet, "/log/USAGE", nil)
	r.SetPathValue("stream", biller.Stream)
	w := httptest.NewRecorder()
	if n.serveStream(w, r); w.Code != http.StatusUnauthorized {
		t.Errorf("who has no admin key got %d", w.Code)
	}
}

// A process that ends in the middle of an answer has not given all.
func TestAnAnswerThatBreaksOff(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"Seq":1,"At":"2026-03-02T10:00:00Z","Subject":"usage.acme","Data":"e30="}` + "\n"))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer s.Close()
	taken := 0
	err := (&httpLog{url: s.URL}).read(t.Context(), biller.Stream, "", 1, 9, func(*journal.Stored) error { taken++; return nil })
	if err == nil || taken != 1 {
		t.Errorf("%d messages, %v", taken, err)
	}
}
