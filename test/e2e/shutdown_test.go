package e2e

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/test/e2e/stack"
)

// TestShutdownDrains: a gateway that is told to stop lets a stream end, refuses what comes new, and owes the log nothing when it has stopped.
func TestShutdownDrains(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: sdkSettings})
	answer, leave := open(t, s, "demo", "tokens=20;gap=20ms", chat("m", streaming))
	defer leave()
	s.Gateways[0].Stop()
	stack.Eventually(t, "the gateway is not ready any more", func() bool {
		a, err := stack.Request{URL: s.URL() + "/ready"}.Send()
		return err == nil && a.Status == http.StatusServiceUnavailable && strings.Contains(string(a.Body), "stops")
	})
	for path, kind := range map[string]string{"/v1/chat/completions": "server_error", "/v1/messages": "overloaded_error"} {
		a := stack.Do(t, stack.Request{URL: s.URL() + path, Key: "demo", Body: chat("m", `"max_tokens":8,`)})
		if e := a.Error(); a.Status != 503 || e.Code != "overloaded" || e.Type != kind || a.Header.Get("Retry-After") != "1" || !e.Metadata.Retryable {
			t.Errorf("%s while it drains: status %d, %s", path, a.Status, a.Body)
		}
	}
	text, err := io.ReadAll(answer.Body)
	if err != nil || !strings.HasSuffix(strings.TrimSpace(string(text)), "data: [DONE]") {
		t.Errorf("the stream did not end: %v\n%s", err, text)
	}
	if err := s.Gateways[0].Wait(); err != nil {
		t.Error("the gateway stopped with ", err)
	}
	settledOnce(t, s.Story(t).Requests[events.RequestID(answer.Header.Get("X-Request-Id"))], events.Completed, events.DispatchedYes, events.QualityExact)
}

// TestShutdownIsBounded: a stream that outlasts the drain ends with an error that the SDK raises, is charged and released.
func TestShutdownIsBounded(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: sdkSettings, DrainFor: 200 * time.Millisecond})
	answer, leave := open(t, s, "demo", "tokens=4000;gap=20ms", chat("m", streaming))
	defer leave()
	plain := make(chan *stack.Answer, 1)
	go func() {
		a, err := stack.Request{URL: s.URL() + "/v1/messages", Key: "demo", Script: "delay=60s", Body: chat("m", `"max_tokens":8,"metadata":{"user_id":"slow"},`)}.Send()
		if err != nil {
			t.Error(err)
		}
		plain <- a
	}()
	stack.Eventually(t, "both requests run", func() bool { return s.Provider.Ledger().Totals().Live == 2 })
	s.Gateways[0].Stop()
	text, err := io.ReadAll(answer.Body)
	if err != nil || !strings.Contains(string(text), `"code":"gateway_infrastructure"`) {
		t.Errorf("the stream ends with %v, %q", err, text[max(0, len(text)-300):])
	}
	a := <-plain
	if e := a.Error(); a.Status != 503 || e.Code != "overloaded" {
		t.Errorf("the answer that had not begun: status %d, %s", a.Status, a.Body)
	}
	within(t, time.Minute, "the end of the gateway", func() { _ = s.Gateways[0].Wait() })
	story := s.Story(t)
	settledOnce(t, story.Requests[events.RequestID(answer.Header.Get("X-Request-Id"))], events.Cancelled, events.DispatchedYes, events.QualityEstimated)
	settledOnce(t, story.Requests[events.RequestID(a.ID())], events.Cancelled, events.DispatchedUnknown, events.QualityNone)
	if held := story.Gauges(); len(held) > 0 {
		t.Errorf("still held: %q", held)
	}
	stack.Eventually(t, "the upstream's calls are cancelled", func() bool { return s.Provider.Ledger().Totals().Live == 0 })
}
