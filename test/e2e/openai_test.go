package e2e

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/services/provider"
	"github.com/weirhq/weir/test/e2e/stack"
)

// onePixel is a PNG.
const onePixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

// sdkSettings are those of the tests with SDKs: an org with room, one with two requests a minute, one with two at once.
var sdkSettings = stack.Settings{
	Keys: []stack.Key{{Name: "demo"}, {Name: "tight"}, {Name: "narrow"}},
	Weir: `
orgs:
  demo: {limits: {rpm: 100000, tpm: 100000000, concurrency: 64}}
  tight: {limits: {rpm: 2}}
  narrow: {limits: {concurrency: 1}}
models:
  - id: m
    context_window: 131072
    max_output_tokens: 4096
    price: {input: "0.15", cached_input: "0.075", output: "0.60"}
    local: {engine: vllm, replicas: ["{{upstream}}"]}
  - id: org/model-2
    local: {engine: vllm, replicas: ["{{upstream}}"]}
`,
	Policies: map[string]string{"m": "models: [m]\nadmit_budget_tokens: 1000000\nmax_inflight: 64\nrouting_policy: {strategy: least-loaded}\n"},
}

func script(text string) option.RequestOption { return option.WithHeader(provider.ScriptHeader, text) }

func hello() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: "m", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello")}}
}

func weather() []openai.ChatCompletionToolUnionParam {
	return []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "get_weather",
		Parameters: shared.FunctionParameters{"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}}})}
}

func TestOpenAI(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: sdkSettings})
	client := stack.OpenAI(s.URL(), "demo")
	ctx := t.Context()

	t.Run("plain", func(t *testing.T) {
		var raw *http.Response
		p := hello()
		p.MaxCompletionTokens = openai.Int(64)
		r, err := client.Chat.Completions.New(ctx, p, script("tokens=5;input=11;cached=4;reasoning=3"), option.WithResponseInto(&raw))
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Choices[0].Message.Content; got != "The weir at dawn is " {
			t.Errorf("content %q", got)
		}
		if u := r.Usage; u.PromptTokens != 11 || u.CompletionTokens != 8 || u.PromptTokensDetails.CachedTokens != 4 || u.CompletionTokensDetails.ReasoningTokens != 3 {
			t.Errorf("usage %s", u.RawJSON())
		}
		id := raw.Header.Get("X-Request-Id")
		if raw.Header.Get("X-Tm-Remaining-Rpm") == "" || id == "" || id != raw.Header.Get("Request-Id") {
			t.Errorf("headers %v", raw.Header)
		}
		trail := s.Trail(t, id)
		settledOnce(t, trail, events.Completed, events.DispatchedYes, events.QualityExact)
		if u := trail.Finals()[0].Usage; u != (events.Usage{InputTokens: 11, CachedTokens: 4, OutputTokens: 8, ReasoningTokens: 3}) {
			t.Errorf("the log has usage %+v", u)
		}
		// 7 tokens of input at 150 nano-dollars, 4 cached ones at 75, 8 of output at 600.
		if cost := trail.Finals()[0].CostNano; cost != 7*150+4*75+8*600 {
			t.Errorf("cost %d nano-dollars", cost)
		}
	})

	t.Run("streaming, usage not asked for", func(t *testing.T) {
		stream := client.Chat.Completions.NewStreaming(ctx, hello(), script("tokens=6"))
		defer stream.Close()
		var text strings.Builder
		chunks, usage := 0, int64(0)
		for stream.Next() {
			c := stream.Current()
			chunks++
			usage += c.Usage.TotalTokens
			if c.JSON.Usage.Valid() || len(c.Choices) == 0 {
				t.Errorf("a chunk shows that usage was asked for upstream: %s", c.RawJSON())
			}
			for _, choice := range c.Choices {
				text.WriteString(choice.Delta.Content)
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		if text.String() != "The weir at dawn is calm" || chunks != 8 || usage != 0 {
			t.Errorf("%d chunks, %q, usage %d", chunks, text.String(), usage)
		}
		id := lastOf(s)
		settledOnce(t, s.Trail(t, id), events.Completed, events.DispatchedYes, events.QualityExact)
	})

	t.Run("streaming, usage asked for", func(t *testing.T) {
		p := hello()
		p.StreamOptions.IncludeUsage = openai.Bool(true)
		stream := client.Chat.Completions.NewStreaming(ctx, p, script("tokens=6;input=20"))
		defer stream.Close()
		var last openai.ChatCompletionChunk
		for stream.Next() {
			last = stream.Current()
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		if last.Usage.PromptTokens != 20 || last.Usage.CompletionTokens != 6 || len(last.Choices) != 0 {
			t.Errorf("the last chunk is %s", last.RawJSON())
		}
	})

	t.Run("tools", func(t *testing.T) {
		p := hello()
		p.Tools = weather()
		r, err := client.Chat.Completions.New(ctx, p, script("tool;tokens=9"))
		if err != nil {
			t.Fatal(err)
		}
		m := r.Choices[0].Message
		if len(m.ToolCalls) != 1 || m.ToolCalls[0].Function.Arguments != `{"city":"Bern","unit":"c"}` || r.Choices[0].FinishReason != "tool_calls" {
			t.Fatalf("message %s", m.RawJSON())
		}
		p.Messages = append(p.Messages, m.ToParam(), openai.ToolMessage("8 degrees", m.ToolCalls[0].ID))
		if _, err := client.Chat.Completions.New(ctx, p); err != nil {
			t.Errorf("the turn after the tool call: %v", err)
		}
	})

	t.Run("tools, streaming", func(t *testing.T) {
		p := hello()
		p.Tools = weather()
		stream := client.Chat.Completions.NewStreaming(ctx, p, script("tool;tokens=9"))
		defer stream.Close()
		whole := openai.ChatCompletionAccumulator{}
		for stream.Next() {
			if !whole.AddChunk(stream.Current()) {
				t.Error("a chunk does not fit those before")
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		calls := whole.Choices[0].Message.ToolCalls
		if len(calls) != 1 || calls[0].Function.Name != "get_weather" || calls[0].Function.Arguments != `{"city":"Bern","unit":"c"}` {
			t.Errorf("tool calls %+v", calls)
		}
	})

	t.Run("vision", func(t *testing.T) {
		p := hello()
		p.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{
			openai.TextContentPart("What is this?"),
			openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: "data:image/png;base64," + onePixel}),
		})}
		if _, err := client.Chat.Completions.New(ctx, p, script("tokens=2")); err != nil {
			t.Fatal(err)
		}
		trail := s.Trail(t, lastOf(s))
		if n := trail.Reserves[0].Estimate.Images; n != 1 {
			t.Errorf("the reserve counts %d images", n)
		}
		if trail.Finals()[0].Train {
			t.Error("a request with an image trains the text ratio")
		}
	})

	t.Run("completions", func(t *testing.T) {
		r, err := client.Completions.New(ctx, openai.CompletionNewParams{Model: "m", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Once")}}, script("tokens=3"))
		if err != nil {
			t.Fatal(err)
		}
		if r.Choices[0].Text != "The weir at " || r.Usage.CompletionTokens != 3 {
			t.Errorf("answer %s", r.RawJSON())
		}
		stream := client.Completions.NewStreaming(ctx, openai.CompletionNewParams{Model: "m", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Once")}}, script("tokens=3"))
		defer stream.Close()
		text := ""
		for stream.Next() {
			text += stream.Current().Choices[0].Text
		}
		if err := stream.Err(); err != nil || text != "The weir at " {
			t.Errorf("streamed %q, %v", text, err)
		}
	})

	t.Run("responses", func(t *testing.T) {
		p := responses.ResponseNewParams{Model: "m", Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("Hello")}}
		r, err := client.Responses.New(ctx, p, script("tokens=4;input=9;reasoning=2"))
		if err != nil {
			t.Fatal(err)
		}
		if r.OutputText() != "The weir at dawn" || r.Usage.InputTokens != 9 || r.Usage.OutputTokens != 6 || r.Usage.OutputTokensDetails.ReasoningTokens != 2 {
			t.Errorf("answer %s", r.RawJSON())
		}
		stream := client.Responses.NewStreaming(ctx, p, script("tokens=4"))
		defer stream.Close()
		text, completed := "", false
		for stream.Next() {
			e := stream.Current()
			text += e.AsResponseOutputTextDelta().Delta
			completed = completed || e.Type == "response.completed"
		}
		if err := stream.Err(); err != nil || !completed || !strings.Contains(text, "The weir at dawn") {
			t.Errorf("streamed %q, completed %v, %v", text, completed, err)
		}
		settledOnce(t, s.Trail(t, lastOf(s)), events.Completed, events.DispatchedYes, events.QualityExact)
	})

	t.Run("embeddings", func(t *testing.T) {
		r, err := client.Embeddings.New(ctx, openai.EmbeddingNewParams{Model: "m", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a", "b"}}}, script("dims=4;input=7"))
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Data) != 2 || len(r.Data[0].Embedding) != 4 || r.Usage.PromptTokens != 7 {
			t.Errorf("answer %s", r.RawJSON())
		}
		trail := s.Trail(t, lastOf(s))
		settledOnce(t, trail, events.Completed, events.DispatchedYes, events.QualityExact)
		for _, c := range trail.Reserves[0].Claims {
			if _, _, dimension := c.Meter.Split(); dimension == "occupancy" || dimension == "inflight" {
				t.Errorf("embeddings claim %s", c.Meter)
			}
		}
	})

	t.Run("models", func(t *testing.T) {
		page, err := client.Models.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, m := range page.Data {
			ids = append(ids, m.ID)
		}
		if strings.Join(ids, " ") != "m org/model-2" {
			t.Errorf("models %q", ids)
		}
		m, err := client.Models.Get(ctx, "org/model-2")
		if err != nil || m.ID != "org/model-2" || m.Object != "model" {
			t.Errorf("model %+v, %v", m, err)
		}
	})
}

// TestOpenAIErrors: the SDK gets each error as its own type, with what a program needs to react.
func TestOpenAIErrors(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: sdkSettings})
	call := func(key string, change func(*openai.ChatCompletionNewParams), opts ...option.RequestOption) *openai.Error {
		t.Helper()
		p := hello()
		if change != nil {
			change(&p)
		}
		client := stack.OpenAI(s.URL(), key)
		_, err := client.Chat.Completions.New(t.Context(), p, opts...)
		var e *openai.Error
		if !errors.As(err, &e) {
			t.Fatalf("no error of the SDK: %v", err)
		}
		if e.Response.Header.Get("X-Request-Id") == "" {
			t.Error("the error has no request id")
		}
		return e
	}
	for _, c := range []struct {
		name              string
		key               string
		change            func(*openai.ChatCompletionNewParams)
		opts              []option.RequestOption
		status            int
		code, kind, param string
		origin            string
	}{
		{"no such key", "nobody", nil, nil, 401, "unauthorized", "authentication_error", "", "authorization"},
		{"no such model", "demo", func(p *openai.ChatCompletionNewParams) { p.Model = "gpt-9" }, nil, 404, "model_not_found", "not_found_error", "model", "authorization"},
		{"output above the model's", "demo", func(p *openai.ChatCompletionNewParams) { p.MaxTokens = openai.Int(4097) }, nil, 400, "invalid_parameter", "invalid_request_error", "max_tokens", ""},
		{"upstream 400", "demo", nil, []option.RequestOption{script("status=400")}, 400, "", "invalid_request_error", "", "upstream"},
		{"upstream 500", "demo", nil, []option.RequestOption{script("status=500")}, 500, "", "server_error", "", "upstream"},
		{"upstream 429", "demo", nil, []option.RequestOption{script("status=429;retry-after=7")}, 429, "", "rate_limit_error", "", "upstream"},
		{"upstream breaks off", "demo", nil, []option.RequestOption{script("abort")}, 503, "no_capacity", "server_error", "", "upstream"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := call(c.key, c.change, c.opts...)
			if e.StatusCode != c.status || e.Code != c.code || e.Type != c.kind || e.Param != c.param || e.Message == "" {
				t.Errorf("status %d, code %q, type %q, param %q, message %q", e.StatusCode, e.Code, e.Type, e.Param, e.Message)
			}
			if got := e.Response.Header.Get("X-Tm-Error-Origin"); got != c.origin {
				t.Errorf("origin %q, want %q", got, c.origin)
			}
		})
	}
	if e := call("demo", nil, script("status=429;retry-after=7")); e.Response.Header.Get("Retry-After") != "7" {
		t.Errorf("an upstream's retry-after arrives as %q", e.Response.Header.Get("Retry-After"))
	}
	t.Run("rpm", func(t *testing.T) {
		var e *openai.Error
		for range 3 {
			p, client := hello(), stack.OpenAI(s.URL(), "tight")
			_, err := client.Chat.Completions.New(t.Context(), p)
			errors.As(err, &e)
		}
		if e == nil || e.StatusCode != 429 || e.Code != "rate_limit_exceeded" || e.Type != "rate_limit_error" {
			t.Fatalf("the third of two requests a minute: %+v", e)
		}
		h := e.Response.Header
		if h.Get("X-Tm-Limit-Scope") != "org" || h.Get("X-Tm-Limit-Kind") != "rpm" || h.Get("X-Tm-Limit-Id") != "tight" || h.Get("Retry-After") == "" {
			t.Errorf("headers %v", h)
		}
		if !strings.Contains(e.Message, "2 requests a minute") {
			t.Errorf("message %q", e.Message)
		}
	})
}

// TestOpenAIRetries: the SDK retries a refusal by itself, waits for as long as it is told, and gets through.
func TestOpenAIRetries(t *testing.T) {
	s := stack.New(t, stack.Config{Settings: sdkSettings})
	t.Run("a refusal of the gateway", func(t *testing.T) {
		holding, client := stack.OpenAI(s.URL(), "narrow"), stack.OpenAI(s.URL(), "narrow", option.WithMaxRetries(5))
		stream := holding.Chat.Completions.NewStreaming(t.Context(), hello(), script("tokens=12;gap=50ms"))
		defer stream.Close()
		if !stream.Next() {
			t.Fatal("no stream: ", stream.Err())
		}
		done := make(chan error, 1)
		var raw *http.Response
		begin := time.Now()
		go func() {
			_, err := client.Chat.Completions.New(t.Context(), hello(), option.WithResponseInto(&raw))
			done <- err
		}()
		for stream.Next() {
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal("not admitted in spite of its retries: ", err)
		}
		if n := raw.Request.Header.Get("X-Stainless-Retry-Count"); n == "0" || n == "" {
			t.Errorf("it got through at once (retry count %q): the test shows nothing", n)
		}
		if took := time.Since(begin); took < time.Second {
			t.Errorf("it was told to wait 1 s and was there again after %s", took)
		}
	})
	t.Run("a refusal of the upstream", func(t *testing.T) {
		client := stack.OpenAI(s.URL(), "demo", option.WithMaxRetries(2))
		begin := time.Now()
		if _, err := client.Chat.Completions.New(t.Context(), hello(), script("status=429;retry-after=1;times=1")); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took < time.Second {
			t.Errorf("it was told to wait 1 s and was there again after %s", took)
		}
	})
	t.Run("what would never pass is not tried again", func(t *testing.T) {
		client := stack.OpenAI(s.URL(), "demo", option.WithMaxRetries(5))
		p := hello()
		p.Model = "gpt-9"
		var raw *http.Response
		_, err := client.Chat.Completions.New(context.WithoutCancel(t.Context()), p, option.WithResponseInto(&raw))
		if err == nil || raw.Header.Get("X-Should-Retry") != "false" || raw.Request.Header.Get("X-Stainless-Retry-Count") != "0" {
			t.Errorf("%v, retry count %q, headers %v", err, raw.Request.Header.Get("X-Stainless-Retry-Count"), raw.Header)
		}
	})
}
