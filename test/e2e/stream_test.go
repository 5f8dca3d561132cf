package e2e

import (
	"bufio"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/weirhq/weir/test/e2e/stack"
)

// TestStreamsPassAsTheyArrive: the client has each event before the upstream has sent the next one.
func TestStreamsPassAsTheyArrive(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: sdkSettings})
	for path, body := range map[string]string{
		"/v1/chat/completions": chat("m", streaming),
		"/v1/completions":      `{"model":"m","stream":true,"prompt":"Hello"}`,
		"/v1/responses":        `{"model":"m","stream":true,"input":"Hello"}`,
		"/v1/messages":         chat("m", `"max_tokens":64,`+streaming),
	} {
		t.Run(path, func(t *testing.T) {
			// The upstream falls silent behind its third event. That the client reads three shows that none was held back.
			q, err := stack.Request{URL: s.URL() + path, Key: "demo", Script: "hang=3;gap=1ms", Body: body}.New()
			if err != nil {
				t.Fatal(err)
			}
			answer, err := http.DefaultClient.Do(q.WithContext(t.Context()))
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			within(t, time.Minute, "the third event of a stream", func() {
				in := bufio.NewScanner(answer.Body)
				for events := 0; events < 3 && in.Scan(); {
					if strings.HasPrefix(in.Text(), "data: ") {
						events++
					}
				}
			})
			if err := t.Context().Err(); err != nil {
				t.Fatal(err)
			}
			if live := s.Provider.Ledger().Totals().Live; live == 0 {
				t.Error("the upstream has ended: the test shows nothing")
			}
			if ct := answer.Header.Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") {
				t.Errorf("content type %q", ct)
			}
			if answer.Header.Get("X-Accel-Buffering") != "no" {
				t.Error("a proxy on the way may collect the events")
			}
		})
	}
}

// TestUsageIsInjectedAndHidden: the upstream is asked for usage whatever the client asked for; the client gets what it asked for.
func TestUsageIsInjectedAndHidden(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: sdkSettings})
	for _, c := range []struct {
		name, fields, script string
		shown                bool
	}{
		{"not asked for", "", "tokens=4", false},
		{"not asked for, options empty", `"stream_options":{},`, "tokens=4", false},
		{"not asked for, in so many words", `"stream_options":{"include_usage":false},`, "tokens=4", false},
		{"not asked for, lines end with CR LF, comments between", "", "tokens=4;crlf;comments", false},
		{"asked for", `"stream_options":{"include_usage":true},`, "tokens=4", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := s.Chat(t, "demo", c.script, chat("m", streaming+c.fields))
			calls := s.Provider.Ledger().Calls()
			if asked := gjson.GetBytes(calls[len(calls)-1].Body, "stream_options.include_usage"); !asked.Bool() {
				t.Errorf("the upstream got %s", calls[len(calls)-1].Body)
			}
			if shown := strings.Contains(string(a.Body), `"usage":{`); shown != c.shown {
				t.Errorf("usage shown: %v\n%s", shown, a.Body)
			}
			if !c.shown && strings.Contains(string(a.Body), `"choices":[]`) {
				t.Errorf("the chunk that held the usage is still there:\n%s", a.Body)
			}
			if !strings.Contains(string(a.Body), "data: [DONE]") {
				t.Errorf("the stream has no end:\n%s", a.Body)
			}
			if final := s.Trail(t, a.ID()).Finals()[0]; final.Usage.OutputTokens != 4 {
				t.Errorf("the log has usage %+v", final.Usage)
			}
		})
	}
}

// TestBodiesPassByteForByte: what the gateway need not change arrives as it was sent.
func TestBodiesPassByteForByte(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: sdkSettings})
	sent := "{ \"messages\" :[{\"role\":\"user\",\"content\":\"\\u00e9 \\ud83d\\ude00 <>&\"}],\n\t\"seed\":12345678901234567890,\"temperature\":0.10, \"max_tokens\":7,\"x\":{\"b\":1,\"a\":[ ]},\"model\":\"m\"}"
	if a := s.Chat(t, "demo", "", sent); a.Status != 200 {
		t.Fatalf("status %d: %s", a.Status, a.Body)
	}
	calls := s.Provider.Ledger().Calls()
	if got := string(calls[0].Body); got != sent {
		t.Errorf("sent\n%s\nand the upstream got\n%s", sent, got)
	}
}
