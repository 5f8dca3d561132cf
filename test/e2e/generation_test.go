package e2e

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/test/e2e/stack"
)

// record is what these tests read of a generation.
type record struct {
	ID                     string
	Model                  string
	Org                    string
	State                  string
	Outcome                string
	Status                 int
	EndedAt                time.Time `json:"ended_at"`
	Error                  struct{ Code string }
	NativeTokensPrompt     int64  `json:"native_tokens_prompt"`
	NativeTokensCompletion int64  `json:"native_tokens_completion"`
	UsageQuality           string `json:"usage_quality"`
	Cost                   struct {
		Nano    int64
		Settled bool
		Prices  struct{ Input, Output int64 } `json:"prices_nano"`
	}
	AdmissionEvents []struct {
		Event, Gate, Scope, Kind string
		Limit, Used, Requested   int64
	} `json:"admission_events"`
	Attempts []struct {
		Verdict string
		Claims  []struct{ Meter string }
	}
}

// generation asks a gateway for the record of a request until it is there and ended.
func generation(t *testing.T, url, key, id string) (r record) {
	t.Helper()
	stack.Eventually(t, "the audit has request "+id, func() bool {
		a := stack.Do(t, stack.Request{URL: url + "/v1/generation?id=" + id, Key: key})
		if a.Status != http.StatusOK {
			return false
		}
		var body struct{ Data record }
		if err := json.Unmarshal(a.Body, &body); err != nil {
			t.Fatalf("%v: %s", err, a.Body)
		}
		r = body.Data
		return r.State == "ended"
	})
	return r
}

// lost fails the test unless so many requests were lost with their gateway, and their records end with its lease: 10 s after its last sign of
// life, and what the log stood still.
func (c *cluster) lost(t *testing.T, story *stack.Story, want int) {
	t.Helper()
	const ttl, silent = 10 * time.Second, 2 * time.Second
	n := 0
	for _, id := range story.Order {
		trail := story.Requests[id]
		if !trail.Admitted() || len(trail.Ended()) > 0 {
			continue
		}
		n++
		ends, last := int64(0), int64(0)
		for i := range story.Records {
			r := &story.Records[i]
			if gap := r.At - last; last > 0 && gap > int64(silent) {
				ends += gap
			}
			last = r.At
			switch r.Data.(type) {
			case *events.Lease, *events.Reserve:
				if r.Gateway == trail.Reserves[0].Gateway {
					ends = r.At + int64(ttl)
				}
			}
		}
		r := generation(t, c.urls[0], "demo", string(id))
		if late := r.EndedAt.Sub(time.Unix(0, ends)); r.Outcome != "abandoned" || r.Error.Code != "gateway_lost" || r.Cost.Settled || late.Abs() > time.Second {
			t.Errorf("%s from its lease's end: %+v", late, r)
		}
	}
	if n != want {
		t.Errorf("%d requests have no release, want %d", n, want)
	}
}

// TestGeneration: what became of each request can be read by keys of its org, at whichever gateway, and by no other.
func TestGeneration(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: sdkSettings, Gateways: 2})
	client := stack.OpenAI(s.URL(), "demo")
	var raw *http.Response
	p := hello()
	p.MaxTokens = openai.Int(64)
	if _, err := client.Chat.Completions.New(t.Context(), p, script("tokens=5;input=11"), option.WithResponseInto(&raw)); err != nil {
		t.Fatal(err)
	}
	id := raw.Header.Get("X-Request-Id")
	for _, g := range s.Gateways {
		r := generation(t, g.URL, "demo", id)
		if r.ID != id || r.Model != "m" || r.Org != "demo" || r.Outcome != "completed" || r.Status != 200 || r.NativeTokensPrompt != 11 ||
			r.NativeTokensCompletion != 5 || r.UsageQuality != "exact" || r.Cost.Nano != 11*150+5*600 || !r.Cost.Settled || len(r.Attempts) != 1 || len(r.Attempts[0].Claims) == 0 {
			t.Errorf("record %+v", r)
		}
		if p := r.Cost.Prices; p.Input != 150_000_000 || p.Output != 600_000_000 {
			t.Errorf("the prices of a million tokens are %+v", p)
		}
	}

	t.Run("refused by the fold", func(t *testing.T) {
		var last *stack.Answer
		for range 3 {
			last = s.Chat(t, "tight", "", chat("m", ""))
		}
		if last.Status != 429 {
			t.Fatalf("status %d", last.Status)
		}
		r := generation(t, s.URL(), "tight", last.ID())
		if len(r.AdmissionEvents) == 0 {
			t.Fatalf("record %+v", r)
		}
		e := r.AdmissionEvents[len(r.AdmissionEvents)-1]
		if r.Outcome != "refused" || e.Event != "refused" || e.Scope != "org" || e.Kind != "rpm" || e.Limit != 2 || e.Used != 2 || e.Requested != 1 {
			t.Errorf("record %+v", r)
		}
	})
	t.Run("refused by the gateway", func(t *testing.T) {
		a := s.Chat(t, "demo", "", chat("gpt-9", ""))
		r := generation(t, s.URL(), "demo", a.ID())
		if r.Outcome != "refused" || r.Status != 404 || r.Model != "gpt-9" || len(r.AdmissionEvents) != 1 {
			t.Errorf("record %+v", r)
		}
	})
	t.Run("failed upstream", func(t *testing.T) {
		a := s.Chat(t, "demo", "status=500", chat("m", ""))
		if r := generation(t, s.URL(), "demo", a.ID()); r.Outcome != "failed" || r.Status != 500 || r.Cost.Nano != 0 {
			t.Errorf("record %+v", r)
		}
	})
	for name, r := range map[string]stack.Request{
		"of another org":  {Key: "tight", URL: "/v1/generation?id=" + id},
		"of nobody":       {Key: "demo", URL: "/v1/generation?id=01900000-0000-7000-8000-000000000000"},
		"no id at all":    {Key: "demo", URL: "/v1/generation?id=../../etc/passwd"},
		"with a wildcard": {Key: "demo", URL: "/v1/generation?id=%3E"},
	} {
		r.URL = s.URL() + r.URL
		a := stack.Do(t, r)
		if e := a.Error(); a.Status != 404 || e.Code != "generation_not_found" || e.Metadata.Origin != "authorization" {
			t.Errorf("a request %s: status %d, %s", name, a.Status, a.Body)
		}
	}
	if a := stack.Do(t, stack.Request{Key: "demo", URL: s.URL() + "/v1/generation"}); a.Status != 400 || a.Error().Param != "id" {
		t.Errorf("without an id: status %d, %s", a.Status, a.Body)
	}
}
