package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/openai/openai-go/v3"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/test/e2e/stack"
)

const claude = "eu.anthropic.claude-v1:0"

// clouds are accounts at Azure, in both forms of its paths, and at Bedrock, with an access key and with a wrong one.
func clouds(t *testing.T) *stack.Stack {
	price := `, price: {input: "1", output: "2"}}` + "\n"
	var weir strings.Builder
	weir.WriteString("models:\n")
	for id, route := range map[string]string{"new": "azure-new, model: gpt", "old": "azure-old, model: my gpt", "claude": "aws, model: '" + claude + "'", "oss": "aws, model: oss",
		"forged": "aws-forged, model: '" + claude + "'", "elsewhere": "aws-elsewhere, model: '" + claude + "'"} {
		fmt.Fprintf(&weir, "  - {id: %s, providers: [{connection: %s}]%s", id, route, price)
	}
	weir.WriteString("connections:\n")
	for id, fields := range map[string]string{"azure-new": "provider: azure, api_key_env: AZURE", "azure-old": "provider: azure, version: '2024-10-21', api_key_env: AZURE",
		"aws": "provider: bedrock, region: eu-central-1, api_key_env: AWS", "aws-forged": "provider: bedrock, region: eu-central-1, api_key_env: FORGED",
		"aws-elsewhere": "provider: bedrock, region: eu-central-1, api_key_env: UNKNOWN"} {
		pool := "azure"
		if strings.HasPrefix(id, "aws") {
			pool = id
		}
		fmt.Fprintf(&weir, "  - {id: %s, %s, base_url: '{{upstream}}', pool: %s}\n", id, fields, pool)
	}
	weir.WriteString("pools:\n  - {id: azure, provider: azure, rpm: 1000, tpm: 100000000, concurrency: 100}\n")
	for _, id := range []string{"aws", "aws-forged", "aws-elsewhere"} {
		fmt.Fprintf(&weir, "  - {id: %s, provider: bedrock, rpm: 1000, tpm: 100000000, concurrency: 100}\n", id)
	}
	return stack.New(t, stack.Config{Settings: stack.Settings{Weir: weir.String()}, Env: map[string]string{"AZURE": "azure-secret",
		"AWS": stack.AccessKeyID + ":" + stack.SecretAccessKey, "FORGED": stack.AccessKeyID + ":wrong/secret", "UNKNOWN": "AKIAUNKNOWN00000000:" + stack.SecretAccessKey + ":session"}})
}

// TestClouds: the SDKs' requests at accounts whose paths, credentials, streams and errors have forms of their own.
func TestClouds(t *testing.T) {
	s := clouds(t)
	ctx := t.Context()
	oai, ant := stack.OpenAI(s.URL(), "demo"), stack.Anthropic(s.URL(), "demo")
	last := func() (key, model string) {
		calls := s.Provider.Ledger().Calls()
		c := calls[len(calls)-1]
		return c.Key, c.Model
	}
	settled := func(input, output int64) {
		t.Helper()
		trail := s.Trail(t, lastOf(s))
		settledOnce(t, trail, events.Completed, events.DispatchedYes, events.QualityExact)
		if f := trail.Finals()[0]; f.Usage.InputTokens != input || f.Usage.OutputTokens != output || f.CostNano != 1000*input+2000*output {
			t.Errorf("settled with %+v, %d nano-dollars", f.Usage, f.CostNano)
		}
	}
	for model, want := range map[string][2]string{"new": {"azure-secret", "gpt"}, "old": {"azure-secret", "my gpt"}, "oss": {stack.AccessKeyID, "oss"}} {
		t.Run("OpenAI's format, "+model, func(t *testing.T) {
			p := hello()
			p.Model = model
			r, err := oai.Chat.Completions.New(ctx, p, script("input=12;tokens=5"))
			if err != nil {
				t.Fatal(err)
			}
			if key, at := last(); r.Choices[0].Message.Content == "" || key != want[0] || at != want[1] {
				t.Errorf("%q of the model %q with the key %q", r.Choices[0].Message.Content, at, key)
			}
			settled(12, 5)
			stream := oai.Chat.Completions.NewStreaming(ctx, p, script("input=12;tokens=7"))
			defer stream.Close()
			var whole openai.ChatCompletionAccumulator
			for stream.Next() {
				whole.AddChunk(stream.Current())
			}
			if err := stream.Err(); err != nil || whole.Choices[0].FinishReason != "stop" {
				t.Errorf("streamed: %v, %+v", err, whole)
			}
			settled(12, 7)
		})
	}
	p := greeting()
	p.Model = "claude"
	t.Run("Bedrock, whole", func(t *testing.T) {
		r, err := ant.Messages.New(ctx, p, ascript("input=12;tokens=6"))
		if err != nil {
			t.Fatal(err)
		}
		if key, at := last(); r.Content[0].Text != "The weir at dawn is calm" || key != stack.AccessKeyID || at != claude {
			t.Errorf("%+v of the model %q with the key %q", r.Content, at, key)
		}
		settled(12, 6)
	})
	t.Run("Bedrock, streamed", func(t *testing.T) {
		for _, gap := range []string{"", ";gap=1ms"} {
			stream := ant.Messages.NewStreaming(ctx, p, ascript("input=12;tokens=6"+gap))
			defer stream.Close()
			var whole anthropic.Message
			for stream.Next() {
				if err := whole.Accumulate(stream.Current()); err != nil {
					t.Error(err)
				}
			}
			if err := stream.Err(); err != nil || whole.Content[0].Text != "The weir at dawn is calm" || whole.StopReason != anthropic.StopReasonEndTurn || whole.Usage.OutputTokens != 6 {
				t.Errorf("%v, %+v", err, whole)
			}
			settled(12, 6)
		}
	})
	t.Run("Bedrock, counted", func(t *testing.T) {
		r, err := ant.Messages.CountTokens(ctx, anthropic.MessageCountTokensParams{Model: "claude", Messages: p.Messages}, ascript("input=42"))
		if err != nil || r.RawJSON() != `{"input_tokens":42}` {
			t.Errorf("%v, %+v", err, r)
		}
	})
	t.Run("Bedrock, errors", func(t *testing.T) {
		for _, c := range []struct {
			model, script string
			status        int
			kind          string
		}{
			{"claude", "status=400", 400, "invalid_request_error"}, {"claude", "status=503", 503, "overloaded_error"},
			{"forged", "", 403, "permission_error"}, {"elsewhere", "", 403, "permission_error"}, {"claude", "status=429", 429, "rate_limit_error"},
		} {
			p := p
			p.Model = anthropic.Model(c.model)
			_, err := ant.Messages.New(ctx, p, ascript(c.script))
			var e *anthropic.Error
			if !errors.As(err, &e) || e.StatusCode != c.status || !strings.Contains(e.RawJSON(), `"`+c.kind+`"`) {
				t.Errorf("%s %s: %v", c.model, c.script, err)
			}
		}
		// The 429 paused the account's pool, on its own time.
		a := stack.Do(t, stack.Request{URL: s.URL() + "/v1/messages", Key: "demo", Body: `{"model":"claude","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`})
		if e := a.Error(); a.Status != http.StatusTooManyRequests || e.Code != "upstream_quota_exceeded" || e.Metadata.LimitKind != "cooldown" {
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
	})
	for what, script := range map[string]string{"an error before": "status=400", "an exception": "tokens=9;error-event=3", "a cut within a frame": "tokens=9;cut=4"} {
		t.Run("Bedrock, "+what+" in a stream", func(t *testing.T) {
			stack.Eventually(t, "the pause is over", func() bool {
				a := stack.Do(t, stack.Request{URL: s.URL() + "/v1/messages", Key: "demo", Body: `{"model":"claude","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`})
				return a.Status == http.StatusOK
			})
			stream := ant.Messages.NewStreaming(ctx, p, ascript(script))
			defer stream.Close()
			n := 0
			for stream.Next() {
				n++
			}
			if err := stream.Err(); err == nil || n == 0 != (script == "status=400") {
				t.Errorf("%d events, and then %v", n, err)
			}
			if trail := s.Trail(t, lastOf(s)); len(trail.Releases) != 1 || trail.Releases[0].Outcome != events.Failed {
				t.Errorf("released as %+v", trail.Releases)
			}
		})
	}
}
