package conformance

import (
	"errors"
	"strings"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicopt "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	openaiopt "github.com/openai/openai-go/v3/option"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/services/provider"
	"github.com/weirhq/weir/test/e2e/stack"
)

// clouds are accounts at providers whose endpoints are not those of the SDKs.
const clouds = `
models:
  - {id: azure, max_output_tokens: 500, price: {input: "1", output: "4"}, providers: [{connection: azure, model: my deployment}]}
  - {id: bedrock, max_output_tokens: 500, price: {input: "1", output: "4"}, providers: [{connection: bedrock, model: "anthropic.claude-v1:0"}]}
  - {id: unsigned, max_output_tokens: 500, providers: [{connection: wrong}]}
  - {id: throttled, max_output_tokens: 500, providers: [{connection: throttled}]}
connections:
  - {id: azure, provider: azure, base_url: "{{upstream}}", version: 2024-10-21, api_key_env: AZURE_KEY, pool: azure}
  - {id: bedrock, provider: bedrock, base_url: "{{upstream}}", api_key_env: AWS_KEY, pool: bedrock}
  - {id: throttled, provider: bedrock, base_url: "{{upstream}}", api_key_env: AWS_KEY, pool: throttled}
  - {id: wrong, provider: bedrock, base_url: "{{upstream}}", api_key_env: WRONG_KEY, pool: bedrock}
pools:
  - {id: azure, provider: azure, rpm: 1000, tpm: 10000000, concurrency: 100}
  - {id: bedrock, provider: bedrock, rpm: 1000, tpm: 10000000, concurrency: 100}
  - {id: throttled, provider: bedrock, rpm: 1000, tpm: 10000000, concurrency: 100}
`

// TestProviders: adapters for Azure (deployment path, api-version, api-key) and Bedrock (signature, framed streams), with streams and errors.
func TestProviders(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: stack.Settings{Weir: clouds}, Env: map[string]string{"AZURE_KEY": "azure-secret",
		"AWS_KEY": stack.AWS.ID + ":" + stack.AWS.Secret + ":" + stack.AWS.Token, "WRONG_KEY": stack.AWS.ID + ":another"}})
	oc, ac := stack.OpenAI(s.URL(), "demo"), stack.Anthropic(s.URL(), "demo")
	chat := openai.ChatCompletionNewParams{Model: "azure", MaxTokens: openai.Int(50), Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hi")}}
	message := func(model string) anthropic.MessageNewParams {
		return anthropic.MessageNewParams{Model: anthropic.Model(model), MaxTokens: 50, Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("hi"))}}
	}
	openaiScript := func(text string) openaiopt.RequestOption { return openaiopt.WithHeader(provider.ScriptHeader, text) }
	script := func(text string) anthropicopt.RequestOption {
		return anthropicopt.WithHeader(provider.ScriptHeader, text)
	}
	called := func(t *testing.T, model, key string, stream bool) string {
		t.Helper()
		c := last(t, s.Provider)
		if c.Model != model || c.Key != key || c.Stream != stream || c.Declared != 50 {
			t.Errorf("the upstream saw %+v", c)
		}
		return c.RequestID
	}
	settles := func(t *testing.T, id string, input, output int64, quality events.Quality) {
		t.Helper()
		finals := s.Trail(t, id).Finals()
		if len(finals) != 1 || finals[0].Usage.InputTokens != input || finals[0].Usage.OutputTokens != output || finals[0].Quality != quality {
			t.Errorf("finals %+v, want %d and %d, %s", finals, input, output, quality)
		}
	}
	// told reads a stream to its end.
	told := func(t *testing.T, model, text string) (m anthropic.Message, err error) {
		t.Helper()
		stream := ac.Messages.NewStreaming(t.Context(), message(model), script(text))
		defer stream.Close() // an error is not read to the stream's end
		for stream.Next() {
			if err := m.Accumulate(stream.Current()); err != nil {
				t.Fatal(err)
			}
		}
		return m, stream.Err()
	}
	prove(t, s, []sentence{
		{"azure: the path names the deployment, and usage is read", func(t *testing.T, _ *stack.Stack) {
			r, err := oc.Chat.Completions.New(t.Context(), chat, openaiScript("input=30;tokens=7"))
			if err != nil || r.Usage.CompletionTokens != 7 {
				t.Fatalf("%+v, %v", r, err)
			}
			settles(t, called(t, "my deployment", "azure-secret", false), 30, 7, events.QualityExact)
		}},
		{"azure: a stream", func(t *testing.T, _ *stack.Stack) {
			stream := oc.Chat.Completions.NewStreaming(t.Context(), chat, openaiScript("input=30;tokens=7;gap=1ms"))
			var all openai.ChatCompletionAccumulator
			for stream.Next() {
				all.AddChunk(stream.Current())
			}
			if err := stream.Err(); err != nil || len(all.Choices) != 1 || all.Choices[0].Message.Content == "" || all.Choices[0].FinishReason != "stop" {
				t.Fatalf("%+v, %v", all.ChatCompletion, err)
			}
			settles(t, called(t, "my deployment", "azure-secret", true), 30, 7, events.QualityExact)
		}},
		{"azure: an error", func(t *testing.T, _ *stack.Stack) {
			_, err := oc.Chat.Completions.New(t.Context(), chat, openaiScript("status=500"))
			var fault *openai.Error
			if !errors.As(err, &fault) || fault.StatusCode != 500 || fault.Response.Header.Get("X-Tm-Error-Origin") != "upstream" {
				t.Errorf("%v", err)
			}
		}},
		{"bedrock: the call is signed, the path names the model, and usage is read", func(t *testing.T, _ *stack.Stack) {
			m, err := ac.Messages.New(t.Context(), message("bedrock"), script("input=30;tokens=7"))
			if err != nil || m.Usage.OutputTokens != 7 || m.StopReason != "end_turn" {
				t.Fatalf("%+v, %v", m, err)
			}
			settles(t, called(t, "anthropic.claude-v1:0", stack.AWS.ID, false), 30, 7, events.QualityExact)
			if body := string(last(t, s.Provider).Body); !strings.Contains(body, `"anthropic_version":"bedrock-2023-05-31"`) {
				t.Errorf("the upstream got %s", body)
			}
		}},
		{"bedrock: a stream of frames is the stream that the SDK reads", func(t *testing.T, _ *stack.Stack) {
			m, err := told(t, "bedrock", "input=30;tokens=7;reasoning=3;gap=1ms")
			if err != nil || m.StopReason != "end_turn" || len(m.Content) != 2 || m.Content[0].Thinking == "" || m.Content[1].Text == "" || m.Usage.OutputTokens != 10 {
				t.Fatalf("%+v, %v", m, err)
			}
			settles(t, called(t, "anthropic.claude-v1:0", stack.AWS.ID, true), 30, 10, events.QualityExact)
		}},
		{"bedrock: an exception within the stream ends it with an error, and what was streamed is settled", func(t *testing.T, _ *stack.Stack) {
			m, err := told(t, "bedrock", "input=30;tokens=40;gap=1ms;error-event=8")
			if err == nil || !strings.Contains(err.Error(), "rate_limit_error") || len(m.Content) == 0 {
				t.Fatalf("%+v, %v", m, err)
			}
			id := called(t, "anthropic.claude-v1:0", stack.AWS.ID, true)
			if ends := s.Trail(t, id).Ended(); len(ends) != 1 || ends[0].Outcome != events.Failed || ends[0].Error != "stream_error" {
				t.Errorf("it ended %+v", ends)
			}
		}},
		{"bedrock: a stream that is cut ends with an error", func(t *testing.T, _ *stack.Stack) {
			if _, err := told(t, "bedrock", "input=30;tokens=40;gap=1ms;cut=6"); err == nil || !strings.Contains(err.Error(), "before its end") {
				t.Errorf("%v", err)
			}
		}},
		{"bedrock: errors are in the SDK's shape, and throttling pauses the account", func(t *testing.T, _ *stack.Stack) {
			_, err := ac.Messages.New(t.Context(), message("throttled"), script("status=429"))
			var fault *anthropic.Error
			if !errors.As(err, &fault) || fault.StatusCode != 429 || !strings.Contains(fault.RawJSON(), `"rate_limit_error"`) || !strings.Contains(fault.RawJSON(), "the script says so") {
				t.Fatalf("%v", err)
			}
			stack.Eventually(t, "the log has the pause", func() bool {
				for _, r := range s.Story(t).Records {
					if d, is := r.Data.(*events.Cooldown); is && d.Meter == events.NewMeter(events.ScopePool, "pause", "throttled") && d.ForMS == 1000 {
						return true
					}
				}
				return false
			})
		}},
		{"bedrock: a signature that is refused is told as that", func(t *testing.T, _ *stack.Stack) {
			_, err := ac.Messages.New(t.Context(), message("unsigned"))
			var fault *anthropic.Error
			if !errors.As(err, &fault) || fault.StatusCode != 403 || !strings.Contains(fault.RawJSON(), `"permission_error"`) || !strings.Contains(fault.RawJSON(), "signature") {
				t.Errorf("%v", err)
			}
		}},
	})
}
