package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"go.uber.org/goleak"

	anthropicwire "github.com/weirhq/weir/gateway/anthropic"
	openaiwire "github.com/weirhq/weir/gateway/openai"
	"github.com/weirhq/weir/gateway/wire"
)

func TestMain(m *testing.M) {
	code := m.Run()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections() // the SDKs' and the tests' own
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "leaked:", err)
		code = 1
	}
	os.Exit(code)
}

// begin serves a provider until the test ends.
func begin(t testing.TB, c Config) (*Server, string) {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		h.Close()
	})
	return s, h.URL
}

func post(t testing.TB, url, path, script, body string) (int, http.Header, string, error) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if script != "" {
		req.Header.Set(ScriptHeader, script)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(b), err
}

const (
	chatBody    = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	chatStream  = `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[]}`
	chatPlain   = `{"model":"m","stream":true,"messages":[]}`
	messageBody = `{"model":"m","max_tokens":100,"messages":[]}`
)

func TestOpenAIClientReadsEveryShape(t *testing.T) {
	s, url := begin(t, Config{})
	ctx := context.Background()
	c := openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithAPIKey("k"), option.WithMaxRetries(0), option.WithHTTPClient(http.DefaultClient))
	params := openai.ChatCompletionNewParams{Model: "m", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")}, MaxTokens: openai.Int(50)}
	with := func(script string) option.RequestOption { return option.WithHeader(ScriptHeader, script) }

	whole, err := c.Chat.Completions.New(ctx, params, with("tokens=3;reasoning=2;input=40;cached=10"))
	if err != nil {
		t.Fatal(err)
	}
	u := whole.Usage
	if whole.Choices[0].Message.Content != "The weir at " || whole.Choices[0].FinishReason != "stop" || u.PromptTokens != 40 ||
		u.PromptTokensDetails.CachedTokens != 10 || u.CompletionTokens != 5 || u.CompletionTokensDetails.ReasoningTokens != 2 || u.TotalTokens != 45 {
		t.Errorf("whole: %s", whole.RawJSON())
	}

	params.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	stream := c.Chat.Completions.NewStreaming(ctx, params, with("tool;tokens=8;crlf;comments"))
	defer stream.Close()
	var acc openai.ChatCompletionAccumulator
	for stream.Next() {
		acc.AddChunk(stream.Current())
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	call := acc.Choices[0].Message.ToolCalls[0].Function
	if call.Name != "get_weather" || call.Arguments != `{"city":"Bern","unit":"c"}` || acc.Usage.CompletionTokens != 8 || acc.Choices[0].FinishReason != "tool_calls" {
		t.Errorf("stream: %+v", acc.ChatCompletion)
	}

	legacy, err := c.Completions.New(ctx, openai.CompletionNewParams{Model: "m", Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfStrings: []string{"a", "b"}}}, with("tokens=2"))
	if err != nil || len(legacy.Choices) != 2 || legacy.Choices[1].Text != "The weir" || legacy.Usage.CompletionTokens != 4 {
		t.Errorf("legacy: %v %+v", err, legacy)
	}

	vectors, err := c.Embeddings.New(ctx, openai.EmbeddingNewParams{Model: "m", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a", "b"}}}, with("dims=5"))
	if err != nil || len(vectors.Data) != 2 || len(vectors.Data[1].Embedding) != 5 || vectors.Usage.PromptTokens == 0 {
		t.Errorf("embeddings: %v %+v", err, vectors)
	}

	rp := responses.ResponseNewParams{Model: "m", Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("hi")}, MaxOutputTokens: openai.Int(4)}
	answer, err := c.Responses.New(ctx, rp, with("tokens=3"))
	if err != nil || answer.OutputText() != "The weir at " || answer.Usage.OutputTokens != 3 || answer.Status != "completed" {
		t.Errorf("responses: %v %+v", err, answer)
	}
	events := c.Responses.NewStreaming(ctx, rp, with("tokens=9;reasoning=1"))
	defer events.Close()
	text, next := "", int64(0)
	var last responses.ResponseStreamEventUnion
	for events.Next() {
		last = events.Current()
		if last.SequenceNumber != next {
			t.Errorf("event %s has number %d, want %d", last.Type, last.SequenceNumber, next)
		}
		next++
		if last.Type == "response.output_text.delta" {
			text += last.Delta
		}
	}
	if err := events.Err(); err != nil {
		t.Fatal(err)
	}
	if text != "The weir at " || last.Type != "response.incomplete" || last.Response.Usage.OutputTokens != 4 || last.Response.Usage.OutputTokensDetails.ReasoningTokens != 1 ||
		last.Response.IncompleteDetails.Reason != "max_output_tokens" {
		t.Errorf("response stream: %q, last %s", text, last.RawJSON())
	}

	models, err := c.Models.List(ctx)
	if err != nil || len(models.Data) != 1 || models.Data[0].ID != "weir-demo" {
		t.Errorf("models: %v %+v", err, models)
	}

	_, err = c.Chat.Completions.New(ctx, params, with("status=429;retry-after=3"))
	var bad *openai.Error
	if !errors.As(err, &bad) || bad.StatusCode != 429 || bad.Type != "rate_limit_error" || bad.Response.Header.Get("Retry-After") != "3" {
		t.Errorf("error: %v", err)
	}
	if got := s.Ledger().Totals(); got.Live != 0 || got.Failed != 1 || got.Completed != got.Calls-1 {
		t.Errorf("ledger: %+v", got)
	}
}

func TestAnthropicClientReadsEveryShape(t *testing.T) {
	_, url := begin(t, Config{})
	ctx := context.Background()
	c := anthropic.NewClient(anthropicoption.WithBaseURL(url), anthropicoption.WithAPIKey("k"), anthropicoption.WithMaxRetries(0), anthropicoption.WithHTTPClient(http.DefaultClient))
	with := func(script string) anthropicoption.RequestOption {
		return anthropicoption.WithHeader(ScriptHeader, script)
	}
	params := anthropic.MessageNewParams{Model: "m", MaxTokens: 50, Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("hi"))}}

	whole, err := c.Messages.New(ctx, params, with("tokens=3;input=100;cached=60;cache-write=30;reasoning=1"))
	if err != nil {
		t.Fatal(err)
	}
	if u := whole.Usage; whole.Content[1].Text != "The weir at " || u.InputTokens != 10 || u.CacheReadInputTokens != 60 || u.CacheCreationInputTokens != 30 || u.OutputTokens != 4 {
		t.Errorf("whole: %s", whole.RawJSON())
	}

	for script, want := range map[string]string{"tokens=3;reasoning=2": "thinking,text", "tool;tokens=6": "tool_use"} {
		stream := c.Messages.NewStreaming(ctx, params, with(script))
		defer stream.Close()
		var got anthropic.Message
		for stream.Next() {
			if err := got.Accumulate(stream.Current()); err != nil {
				t.Fatal(err)
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		var kinds []string
		for _, b := range got.Content {
			kinds = append(kinds, string(b.Type))
		}
		if strings.Join(kinds, ",") != want || got.Usage.OutputTokens < 5 || got.StopReason == "" {
			t.Errorf("%s: %+v", script, got)
		}
	}

	count, err := c.Messages.CountTokens(ctx, anthropic.MessageCountTokensParams{Model: "m", Messages: params.Messages}, with("input=77"))
	if err != nil || count.InputTokens != 77 {
		t.Errorf("count: %v %+v", err, count)
	}
	models, err := c.Models.List(ctx, anthropic.ModelListParams{})
	if err != nil || len(models.Data) != 1 || models.Data[0].ID != "weir-demo" {
		t.Errorf("models: %v %+v", err, models)
	}
	stream := c.Messages.NewStreaming(ctx, params, with("error-event=4"))
	defer stream.Close()
	for stream.Next() {
	}
	if err := stream.Err(); err == nil || !strings.Contains(err.Error(), "overloaded_error") {
		t.Errorf("error in the stream: %v", err)
	}
}

// The gateway's meters and the provider's own ledger must agree on every kind of answer.
func TestMetersAgreeWithTheLedger(t *testing.T) {
	s, url := begin(t, Config{})
	type meter interface {
		Write([]byte) ([]byte, error)
		Finish() ([]byte, wire.Result)
	}
	bodies := map[wire.Operation]string{
		wire.Chat: `{"model":"m","messages":[],"n":2`, wire.Completions: `{"model":"m","prompt":["a","b"]`, wire.Responses: `{"model":"m","input":"x"`,
		wire.Messages: `{"model":"m","max_tokens":500,"messages":[]`, wire.Embeddings: `{"model":"m","input":"x"`, wire.Rerank: `{"model":"m","query":"q","documents":["a"]`,
		wire.CountTokens: `{"model":"m","messages":[]`,
	}
	for op, body := range bodies {
		for _, script := range []string{"tokens=20", "tokens=20;reasoning=7;input=500;cached=100;cache-write=50", "tool;tokens=9", "each-usage;tokens=4", "no-usage;tokens=8"} {
			for _, streamed := range []bool{false, true} {
				if streamed && !op.Streams() {
					continue
				}
				end := "}"
				if streamed {
					end = `,"stream":true,"stream_options":{"include_usage":true}}`
				}
				_, _, answer, err := post(t, url, op.Path(), script, body+end)
				if err != nil {
					t.Fatal(err)
				}
				var m meter = openaiwire.NewMeter(openaiwire.Options{Operation: op, Stream: streamed})
				if op.Format() == wire.Anthropic {
					m = anthropicwire.NewMeter(anthropicwire.Options{Operation: op, Stream: streamed})
				}
				if _, err := m.Write([]byte(answer)); err != nil {
					t.Fatal(err)
				}
				_, r := m.Finish()
				calls := s.Ledger().Calls()
				call := calls[len(calls)-1]
				name := op.String() + " " + script
				if !r.Terminal || r.Malformed != 0 || r.Cut {
					t.Errorf("%s: %+v\n%s", name, r, answer)
				}
				if strings.Contains(script, "no-usage") && op != wire.CountTokens {
					if r.Quality == wire.QualityExact || op.Generates() && r.Usage.Output != call.Output {
						t.Errorf("%s: without usage %+v, sent %d\n%s", name, r, call.Output, answer)
					}
					continue
				}
				if r.Quality != wire.QualityExact || r.Usage.Input != call.Input || r.Usage.Output != call.Output {
					t.Errorf("%s: read %+v, sent %d in, %d out\n%s", name, r, call.Input, call.Output, answer)
				}
			}
		}
	}
}

func TestFaults(t *testing.T) {
	s, url := begin(t, Config{Script: "tokens=4"})
	t.Run("cut stream", func(t *testing.T) {
		_, _, body, err := post(t, url, "/v1/chat/completions", "cut=2", chatStream)
		if err == nil || strings.Count(body, "\n\n") != 2 || strings.HasSuffix(body, "\n\n") {
			t.Errorf("got %v after %q", err, body)
		}
	})
	t.Run("cut answer", func(t *testing.T) {
		if _, _, body, err := post(t, url, "/v1/chat/completions", "cut=5", chatBody); err == nil || len(body) != 5 {
			t.Errorf("got %v after %q", err, body)
		}
	})
	t.Run("abort", func(t *testing.T) {
		if status, _, _, err := post(t, url, "/v1/chat/completions", "abort", chatBody); err == nil {
			t.Errorf("got %d", status)
		}
	})
	t.Run("error event", func(t *testing.T) {
		for path, body := range map[string]string{"/v1/chat/completions": chatPlain, "/v1/responses": `{"model":"m","stream":true,"input":"x"}`} {
			_, _, got, err := post(t, url, path, "error-event=100", body)
			if err != nil || !strings.Contains(got, "the script says so") || strings.Contains(got, "[DONE]") || strings.Contains(got, "response.completed") {
				t.Errorf("%s: %v %q", path, err, got)
			}
		}
	})
	t.Run("times", func(t *testing.T) {
		for i, want := range []int{503, 503, 200, 200} {
			if got, _, _, err := post(t, url, "/v1/messages", "status=503;times=2", messageBody); err != nil || got != want {
				t.Errorf("request %d: %d, %v", i, got, err)
			}
		}
	})
	t.Run("bad requests", func(t *testing.T) {
		for _, c := range [][2]string{{"nonsense", chatBody}, {"tokens=-1", chatBody}, {"status=200", chatBody}, {"", `{"model":5}`}, {"", `{`}, {"", `{"messages":[]}`}} {
			if got, _, body, err := post(t, url, "/v1/chat/completions", c[0], c[1]); err != nil || got != 400 || !json.Valid([]byte(body)) {
				t.Errorf("%q: %d, %v, %s", c, got, err, body)
			}
		}
	})
	if got := s.Ledger().Totals(); got.Live != 0 || got.Footprint != 0 || got.Broken != 3 || got.Failed != 4 || got.Completed != 2 {
		t.Errorf("ledger: %+v", got)
	}
}

func TestOnlyThoseWhoAskGetUsage(t *testing.T) {
	_, url := begin(t, Config{})
	if _, _, body, err := post(t, url, "/v1/chat/completions", "tokens=2", chatPlain); err != nil || strings.Contains(body, "usage") {
		t.Errorf("not asked: %v %s", err, body)
	}
	_, _, body, err := post(t, url, "/v1/chat/completions", "tokens=2", chatStream)
	if err != nil || strings.Count(body, `"usage":null`) != 4 || strings.Count(body, `"choices":[],"usage":{`) != 1 || !strings.HasSuffix(body, "data: [DONE]\n\n") {
		t.Errorf("asked: %v %s", err, body)
	}
}

func TestLedgerSeesConcurrencyAndCancellation(t *testing.T) {
	s, url := begin(t, Config{})
	const clients = 5
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions",
				strings.NewReader(`{"model":"m","stream":true,"n":2,"max_tokens":30,"messages":[]}`))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set(ScriptHeader, "hang=3;input=10")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				if ctx.Err() == nil { // it may leave before the answer begins
					t.Error(err)
				}
				return
			}
			defer resp.Body.Close()
			_, _ = io.Copy(io.Discard, resp.Body) // ends when the client leaves
		})
	}
	waitFor(t, func() bool { return s.Ledger().Model("m").Live == clients })
	if got := s.Ledger().Totals(); got.Footprint != clients*(10+60) {
		t.Errorf("footprint %d", got.Footprint)
	}
	s.Ledger().Reset()
	leave()
	wg.Wait()
	waitFor(t, func() bool { return s.Ledger().Totals().Live == 0 })
	want := Totals{Calls: clients, Cancelled: clients, Input: clients * 10, MaxLive: clients, MaxFootprint: clients * 70}
	got := s.Ledger().Totals()
	if want.Output = got.Output; got != want || got.Output == 0 {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen within 20 s")
		}
	}
}

func TestAside(t *testing.T) {
	s, url := begin(t, Config{Calls: 2, KeepBodies: true})
	for range 3 {
		if _, _, _, err := post(t, url, "/v1/chat/completions", "", chatBody); err != nil {
			t.Fatal(err)
		}
	}
	if calls := s.Ledger().Calls(); len(calls) != 2 || calls[0].ID != 2 || calls[1].ID != 3 || string(calls[1].Body) != chatBody {
		t.Errorf("calls %+v", calls)
	}
	get := func(path string) (int, string) {
		resp, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	var ledger struct{ Totals Totals }
	if _, body := get("/ledger"); json.Unmarshal([]byte(body), &ledger) != nil || ledger.Totals.Calls != 3 {
		t.Errorf("ledger %s", body)
	}
	s.SetMetric(MetricCache, 0.93)
	if status, _, _, err := post(t, url, "/metrics", "", "vllm:num_requests_waiting 21\n"); err != nil || status != 204 {
		t.Errorf("setting a metric: %d, %v", status, err)
	}
	_, metrics := get("/metrics")
	for _, want := range []string{`vllm:kv_cache_usage_perc{model_name="weir-demo"} 0.93`, `vllm:num_requests_waiting{model_name="weir-demo"} 21`, `vllm:num_requests_running{model_name="weir-demo"} 0`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s:\n%s", want, metrics)
		}
	}
	s.SetHealthy(false)
	if status, _ := get("/health"); status != 503 {
		t.Errorf("health %d", status)
	}
	if status, _ := get("/nothing"); status != 404 {
		t.Errorf("unknown path %d", status)
	}
}

func TestRunStops(t *testing.T) {
	s, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- s.Run(ctx, l) }()
	if status, _, _, err := post(t, "http://"+l.Addr().String(), "/v1/chat/completions", "", chatBody); err != nil || status != 200 {
		t.Errorf("got %d, %v", status, err)
	}
	http.DefaultClient.CloseIdleConnections()
	stop()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// BenchmarkShortAnswer measures the handler alone, without a socket.
func BenchmarkShortAnswer(b *testing.B) {
	s, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(chatBody))
		w := httptest.NewRecorder()
		if s.ServeHTTP(w, r); w.Code != 200 {
			b.Fatal(w.Body.String())
		}
	}
}
