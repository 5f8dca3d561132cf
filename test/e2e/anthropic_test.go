package e2e

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/services/provider"
	"github.com/weirhq/weir/test/e2e/stack"
)

func ascript(text string) option.RequestOption { return option.WithHeader(provider.ScriptHeader, text) }

func greeting() anthropic.MessageNewParams {
	return anthropic.MessageNewParams{Model: "m", MaxTokens: 100, Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("Hello"))}}
}

func TestAnthropic(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: sdkSettings})
	client := stack.Anthropic(s.URL(), "demo")
	ctx := t.Context()

	t.Run("plain", func(t *testing.T) {
		var raw *http.Response
		r, err := client.Messages.New(ctx, greeting(), ascript("tokens=5;input=30;cached=10;cache-write=5"), option.WithResponseInto(&raw))
		if err != nil {
			t.Fatal(err)
		}
		if r.Content[0].Text != "The weir at dawn is " || r.Usage.OutputTokens != 5 || r.Usage.CacheReadInputTokens != 10 {
			t.Errorf("answer %s", r.RawJSON())
		}
		if raw.Header.Get("Anthropic-Ratelimit-Requests-Remaining") == "" || raw.Header.Get("X-Tm-Remaining-Tpm") == "" {
			t.Errorf("headers %v", raw.Header)
		}
		trail := s.Trail(t, raw.Header.Get("Request-Id"))
		settledOnce(t, trail, events.Completed, events.DispatchedYes, events.QualityExact)
		// Anthropic counts cached input beside the rest; the log counts all input once.
		if u := trail.Finals()[0].Usage; u != (events.Usage{InputTokens: 30, CachedTokens: 10, CacheWriteTokens: 5, OutputTokens: 5}) {
			t.Errorf("the log has usage %+v", u)
		}
	})

	t.Run("streaming", func(t *testing.T) {
		stream := client.Messages.NewStreaming(ctx, greeting(), ascript("tokens=6;input=12"))
		defer stream.Close()
		whole := anthropic.Message{}
		for stream.Next() {
			if err := whole.Accumulate(stream.Current()); err != nil {
				t.Error(err)
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		if whole.Content[0].Text != "The weir at dawn is calm" || whole.Usage.OutputTokens != 6 || whole.StopReason != anthropic.StopReasonEndTurn {
			t.Errorf("message %+v", whole)
		}
		trail := s.Trail(t, lastOf(s))
		settledOnce(t, trail, events.Completed, events.DispatchedYes, events.QualityExact)
		if u := trail.Finals()[0].Usage; u.InputTokens != 12 || u.OutputTokens != 6 {
			t.Errorf("cumulative deltas were not read as such: %+v", u)
		}
	})

	t.Run("tools", func(t *testing.T) {
		p := greeting()
		p.Tools = []anthropic.ToolUnionParam{anthropic.ToolUnionParamOfTool(anthropic.ToolInputSchemaParam{Properties: map[string]any{"city": map[string]any{"type": "string"}}}, "get_weather")}
		r, err := client.Messages.New(ctx, p, ascript("tool;tokens=9"))
		if err != nil {
			t.Fatal(err)
		}
		var use anthropic.ToolUseBlock
		for _, b := range r.Content {
			if b.Type == "tool_use" {
				use = b.AsToolUse()
			}
		}
		if use.Name != "get_weather" || !strings.Contains(string(use.Input), "Bern") || r.StopReason != anthropic.StopReasonToolUse {
			t.Fatalf("answer %s", r.RawJSON())
		}
		p.Messages = append(p.Messages, r.ToParam(), anthropic.NewUserMessage(anthropic.NewToolResultBlock(use.ID, "8 degrees", false)))
		if _, err := client.Messages.New(ctx, p); err != nil {
			t.Errorf("the turn after the tool call: %v", err)
		}
		stream := client.Messages.NewStreaming(ctx, p, ascript("tool;tokens=9"))
		defer stream.Close()
		whole := anthropic.Message{}
		for stream.Next() {
			if err := whole.Accumulate(stream.Current()); err != nil {
				t.Error(err)
			}
		}
		if err := stream.Err(); err != nil || whole.StopReason != anthropic.StopReasonToolUse {
			t.Errorf("streamed: %v, stop reason %q", err, whole.StopReason)
		}
	})

	t.Run("vision", func(t *testing.T) {
		p := greeting()
		p.Messages = []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("What is this?"), anthropic.NewImageBlockBase64("image/png", onePixel))}
		if _, err := client.Messages.New(ctx, p); err != nil {
			t.Fatal(err)
		}
		if n := s.Trail(t, lastOf(s)).Reserves[0].Estimate.Images; n != 1 {
			t.Errorf("the reserve counts %d images", n)
		}
	})

	t.Run("count_tokens", func(t *testing.T) {
		p := anthropic.MessageCountTokensParams{Model: "m", Messages: greeting().Messages}
		var raw *http.Response
		r, err := client.Messages.CountTokens(ctx, p, ascript("input=42"), option.WithResponseInto(&raw))
		if err != nil {
			t.Fatal(err)
		}
		if r.InputTokens != 42 || r.RawJSON() != `{"input_tokens":42}` {
			t.Errorf("answer %s", r.RawJSON())
		}
		trail := s.Trail(t, raw.Header.Get("Request-Id"))
		settledOnce(t, trail, events.Completed, events.DispatchedYes, events.QualityExact)
		if cost := trail.Finals()[0].CostNano; cost != 0 {
			t.Errorf("counting cost %d nano-dollars", cost)
		}
		for _, c := range trail.Reserves[0].Claims {
			if scope, _, dimension := c.Meter.Split(); scope == events.ScopeModel || dimension == "daily" {
				t.Errorf("counting claims %s", c.Meter)
			}
		}
	})

	t.Run("models", func(t *testing.T) {
		page, err := client.Models.List(ctx, anthropic.ModelListParams{})
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Data) != 2 || page.Data[0].ID != "m" || page.Data[1].ID != "org/model-2" || page.Data[0].Type != "model" || page.HasMore {
			t.Errorf("models %s", page.RawJSON())
		}
		m, err := client.Models.Get(ctx, "m", anthropic.ModelGetParams{})
		if err != nil || m.ID != "m" || m.Type != "model" {
			t.Errorf("model %+v, %v", m, err)
		}
	})
}

func TestAnthropicErrors(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: sdkSettings})
	for _, c := range []struct {
		name    string
		key     string
		change  func(*anthropic.MessageNewParams)
		script  string
		status  int
		kind    string
		message string // a part of it
	}{
		{"no such key", "nobody", nil, "", 401, "authentication_error", "API key"},
		{"no such model", "demo", func(p *anthropic.MessageNewParams) { p.Model = "claude-9" }, "", 404, "not_found_error", "claude-9"},
		{"output above the model's", "demo", func(p *anthropic.MessageNewParams) { p.MaxTokens = 4097 }, "", 400, "invalid_request_error", "max_tokens is 4097"},
		{"upstream 400", "demo", nil, "status=400", 400, "invalid_request_error", ""},
		{"upstream 429", "demo", nil, "status=429", 429, "rate_limit_error", ""},
		{"upstream 529", "demo", nil, "status=529", 529, "overloaded_error", ""},
		{"upstream breaks off", "demo", nil, "abort", 503, "overloaded_error", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, client := greeting(), stack.Anthropic(s.URL(), c.key)
			if c.change != nil {
				c.change(&p)
			}
			_, err := client.Messages.New(t.Context(), p, ascript(c.script))
			var e *anthropic.Error
			if !errors.As(err, &e) {
				t.Fatalf("no error of the SDK: %v", err)
			}
			if e.StatusCode != c.status || string(e.Type()) != c.kind || !strings.Contains(e.RawJSON(), c.message) {
				t.Errorf("status %d, type %q: %s", e.StatusCode, e.Type(), e.RawJSON())
			}
			if e.RequestID == "" || e.RequestID != e.Response.Header.Get("X-Request-Id") {
				t.Errorf("the SDK has request id %q, the answer %q", e.RequestID, e.Response.Header.Get("X-Request-Id"))
			}
		})
	}
}

// TestAnthropicStreamErrors: what goes wrong inside a stream is an error to the SDK, never a silent end.
func TestAnthropicStreamErrors(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: sdkSettings})
	client := stack.Anthropic(s.URL(), "demo")
	for script, want := range map[string]string{"error-event=3;gap=1ms": "overloaded_error", "cut=3;gap=1ms": "api_error"} {
		stream := client.Messages.NewStreaming(t.Context(), greeting(), ascript(script))
		defer stream.Close()
		for stream.Next() {
		}
		if err := stream.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the stream ends with %v", script, err)
		}
	}
}

func TestAnthropicRetries(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: sdkSettings})
	client := stack.Anthropic(s.URL(), "demo", option.WithMaxRetries(2))
	begin := time.Now()
	if _, err := client.Messages.New(t.Context(), greeting(), ascript("status=429;retry-after=1;times=1")); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < time.Second {
		t.Errorf("it was told to wait 1 s and was there again after %s", took)
	}
	if calls := s.Provider.Ledger().Calls(); len(calls) != 2 {
		t.Errorf("%d calls reached the upstream: want the failed one and its repetition", len(calls))
	}
}
