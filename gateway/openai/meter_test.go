package openai

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/gateway/wire"
)

// run feeds a whole response in pieces of the given size (0: at once) and returns what was forwarded.
func run(t testing.TB, o Options, in string, size int) (string, wire.Result) {
	t.Helper()
	m := NewMeter(o)
	var out bytes.Buffer
	for rest := []byte(in); len(rest) > 0; {
		n := len(rest)
		if size > 0 {
			n = min(n, size)
		}
		got, err := m.Write(bytes.Clone(rest[:n]))
		if err != nil {
			t.Fatal(err)
		}
		out.Write(got)
		rest = rest[n:]
	}
	rest, r := m.Finish()
	out.Write(rest)
	return out.String(), r
}

func chunk(delta, finish, rest string) string {
	return `data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":` + delta +
		`,"finish_reason":` + finish + `}]` + rest + "}\n\n"
}

const done = "data: [DONE]\n\n"

func usageChunk(usage string) string {
	return `data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":` + usage + "}\n\n"
}

func TestStreams(t *testing.T) {
	asked := Options{Operation: wire.Chat, Stream: true}
	hidden := Options{Operation: wire.Chat, Stream: true, HideUsage: true}
	apart := Options{Operation: wire.Chat, Stream: true, ReasoningApart: true}
	responses := Options{Operation: wire.Responses, Stream: true}
	inOut := wire.FieldInput | wire.FieldOutput
	all := inOut | wire.FieldCached | wire.FieldReasoning
	const u = `{"prompt_tokens":64,"completion_tokens":135,"total_tokens":199,"prompt_tokens_details":{"cached_tokens":10},"completion_tokens_details":{"reasoning_tokens":78}}`

	cases := []struct {
		name string
		o    Options
		in   string
		out  string // "" means: as it came
		want wire.Result
	}{
		{"T34 asked: everything as it came", asked,
			chunk(`{"content":"12345678"}`, "null", `,"usage":null`) + chunk(`{}`, `"stop"`, `,"usage":null`) + usageChunk(u) + done, "",
			wire.Result{Usage: wire.Usage{Input: 64, Cached: 10, Output: 135, Reasoning: 78}, Explicit: all, Quality: wire.QualityExact,
				FinishReason: "stop", OutputBytes: 8, OutputTokens: 2, Terminal: true}},
		{"T34 not asked: chunk and nulls are left out", hidden,
			chunk(`{"content":"12345678"}`, "null", `,"usage":null`) + chunk(`{}`, `"stop"`, `,"usage":null`) + usageChunk(u) + done,
			chunk(`{"content":"12345678"}`, "null", ``) + chunk(`{}`, `"stop"`, ``) + done,
			wire.Result{Usage: wire.Usage{Input: 64, Cached: 10, Output: 135, Reasoning: 78}, Explicit: all, Quality: wire.QualityExact,
				FinishReason: "stop", OutputBytes: 8, OutputTokens: 2, Terminal: true}},
		{"T34 none sent: estimated", hidden, chunk(`{"content":"12345678"}`, `"stop"`, ``) + done, "",
			wire.Result{Usage: wire.Usage{Output: 2}, Quality: wire.QualityEstimated, FinishReason: "stop", OutputBytes: 8, OutputTokens: 2, Terminal: true}},
		{"T30 reasoning is inside", asked, usageChunk(u) + done, "",
			wire.Result{Usage: wire.Usage{Input: 64, Cached: 10, Output: 135, Reasoning: 78}, Explicit: all, Quality: wire.QualityExact, Terminal: true}},
		{"T30 reasoning beside, with a total", apart,
			usageChunk(`{"prompt_tokens":64,"completion_tokens":57,"total_tokens":199,"completion_tokens_details":{"reasoning_tokens":78}}`) + done, "",
			wire.Result{Usage: wire.Usage{Input: 64, Output: 135, Reasoning: 78}, Explicit: inOut | wire.FieldReasoning, Quality: wire.QualityExact, Terminal: true}},
		{"T30 reasoning beside, hidden in the total", apart, usageChunk(`{"prompt_tokens":64,"completion_tokens":57,"total_tokens":199}`) + done, "",
			wire.Result{Usage: wire.Usage{Input: 64, Output: 135}, Explicit: inOut, Quality: wire.QualityExact, Terminal: true}},
		{"T32 reasoning under several names counts once", asked,
			chunk(`{"reasoning_content":"abcd","reasoning":"abcd","reasoning_details":[{"type":"reasoning.text","text":"abcd"}]}`, "null", "") +
				chunk(`{"reasoning":"efgh"}`, "null", "") + done, "",
			wire.Result{Usage: wire.Usage{Output: 2}, Quality: wire.QualityEstimated, OutputBytes: 8, OutputTokens: 2, Terminal: true}},
		{"T28 cached beside the input", asked,
			usageChunk(`{"prompt_tokens":7,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":10000}}`) + done, "",
			wire.Result{Usage: wire.Usage{Input: 10007, Cached: 10000, Output: 5}, Explicit: inOut | wire.FieldCached, Quality: wire.QualityExact, Terminal: true}},
		{"T12 usage in every chunk, cut", asked,
			chunk(`{"content":"1234567890123456"}`, "null", `,"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}`) + `data: {"id":"c`,
			chunk(`{"content":"1234567890123456"}`, "null", `,"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}`),
			wire.Result{Usage: wire.Usage{Input: 9, Output: 4}, Explicit: wire.FieldInput, Quality: wire.QualityPartial, OutputBytes: 16, OutputTokens: 4, Cut: true}},
		{"usage in every chunk, not asked: left out of each, and all else as it came", hidden,
			chunk(`{"content":"12345678"}`, "null", `,"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}`) +
				"data: {\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}, \"choices\":[{\"delta\":{}}] }\n\n" +
				chunk(`{}`, `"stop"`, ` , "usage" : {"prompt_tokens":9,"completion_tokens":3}`) + usageChunk(`{"prompt_tokens":9,"completion_tokens":3}`) + done,
			chunk(`{"content":"12345678"}`, "null", ``) + "data: {\"choices\":[{\"delta\":{}}] }\n\n" + chunk(`{}`, `"stop"`, ``) + done,
			wire.Result{Usage: wire.Usage{Input: 9, Output: 3}, Explicit: inOut, Quality: wire.QualityExact, FinishReason: "stop", OutputBytes: 8, OutputTokens: 2, Terminal: true}},
		{"usage of the final chunk never falls", asked,
			chunk(`{}`, `"stop"`, `,"usage":{"prompt_tokens":9,"completion_tokens":7}`) + usageChunk(`{"prompt_tokens":0,"completion_tokens":3}`) + done, "",
			wire.Result{Usage: wire.Usage{Input: 9, Output: 7}, Explicit: inOut, Quality: wire.QualityExact, FinishReason: "stop", Terminal: true}},
		{"placeholders are not believed", asked,
			chunk(`{"content":"12345678"}`, "null", "") + usageChunk(`{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}`) + done, "",
			wire.Result{Usage: wire.Usage{Output: 2}, Quality: wire.QualityEstimated, OutputBytes: 8, OutputTokens: 2, Terminal: true}},
		{"tool calls", asked,
			chunk(`{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"get","arguments":""}}]}`, "null", "") +
				chunk(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":1}"}}]}`, `"tool_calls"`, "") + done, "",
			wire.Result{Usage: wire.Usage{Output: 2}, Quality: wire.QualityEstimated, FinishReason: "tool_calls", OutputBytes: 10, OutputTokens: 2, Terminal: true}},
		{"usage first, and the only member", hidden, "data: { \"usage\" : null , \"choices\":[] }\n\ndata: {\"usage\":null}\n\n" + done,
			"data: { \"choices\":[] }\n\ndata: {}\n\n" + done, wire.Result{Terminal: true}},
		{"filter results stay", hidden, "data: {\"choices\":[],\"prompt_filter_results\":[{}]}\n\n" + done, "", wire.Result{Terminal: true}},
		{"crlf, comments, lines of data", hidden, ": OPENROUTER PROCESSING\r\n\r\ndata: {\"choices\":[{\"delta\":\r\ndata: {\"content\":\"abcd\"}}]}\r\n\r\n" + done, "",
			wire.Result{Usage: wire.Usage{Output: 1}, Quality: wire.QualityEstimated, OutputBytes: 4, OutputTokens: 1, Terminal: true}},
		{"error", asked, chunk(`{"content":"abcd"}`, "null", "") + "data: {\"error\":{\"message\":\"ov\\u0065r\",\"type\":\"server_error\",\"code\":502}}\n\n", "",
			wire.Result{Usage: wire.Usage{Output: 1}, Quality: wire.QualityEstimated, OutputBytes: 4, OutputTokens: 1,
				Err: &wire.StreamError{Type: "server_error", Code: "502", Message: "over"}}},
		{"unreadable events pass", asked, "data: {nonsense\n\n" + chunk(`{"content":"abcd"}`, "null", "") + done, "",
			wire.Result{Usage: wire.Usage{Output: 1}, Quality: wire.QualityEstimated, OutputBytes: 4, OutputTokens: 1, Terminal: true, Malformed: 1}},
		{"no line end at the end", asked, chunk(`{"content":"abcd"}`, "null", "") + "data: [DONE]", chunk(`{"content":"abcd"}`, "null", "") + done,
			wire.Result{Usage: wire.Usage{Output: 1}, Quality: wire.QualityEstimated, OutputBytes: 4, OutputTokens: 1, Terminal: true}},
		{"legacy completions", Options{Operation: wire.Completions, Stream: true, HideUsage: true},
			"data: {\"choices\":[{\"text\":\"abcd\",\"index\":0,\"finish_reason\":\"length\"}],\"usage\":null}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,\"total_tokens\":4}}\n\n" + done,
			"data: {\"choices\":[{\"text\":\"abcd\",\"index\":0,\"finish_reason\":\"length\"}]}\n\n" + done,
			wire.Result{Usage: wire.Usage{Input: 3, Output: 1}, Explicit: inOut, Quality: wire.QualityExact, FinishReason: "length", OutputBytes: 4, OutputTokens: 1, Terminal: true}},
		{"responses", responses,
			"event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"r\",\"status\":\"in_progress\",\"usage\":null,\"output\":[]}}\n\n" +
				"event: response.reasoning_summary_text.delta\ndata: {\"type\":\"response.reasoning_summary_text.delta\",\"delta\":\"hmmm\"}\n\n" +
				"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":1,\"delta\":\"abcd\",\"obfuscation\":\"xxxxxxxxxxx\"}\n\n" +
				"event: response.function_call_arguments.delta\ndata: {\"delta\":\"{}\",\"type\":\"response.function_call_arguments.delta\"}\n\n" +
				"event: response.audio.delta\ndata: {\"type\":\"response.audio.delta\",\"delta\":\"UklGRg\"}\n\n" +
				"event: response.output_text.done\ndata: {\"type\":\"response.output_text.done\",\"text\":\"abcd\"}\n\n" +
				"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\"error\":null,\"incomplete_details\":null,\"output\":[{\"type\":\"message\",\"content\":[{\"type\":\"output_text\",\"text\":\"abcd\"}]}],\"usage\":{\"input_tokens\":36,\"input_tokens_details\":{\"cached_tokens\":5},\"output_tokens\":87,\"output_tokens_details\":{\"reasoning_tokens\":60},\"total_tokens\":123}}}\n\n", "",
			wire.Result{Usage: wire.Usage{Input: 36, Cached: 5, Output: 87, Reasoning: 60}, Explicit: all, Quality: wire.QualityExact,
				FinishReason: "completed", OutputBytes: 10, OutputTokens: 2, Terminal: true}},
		{"responses incomplete", responses,
			"data: {\"type\":\"response.incomplete\",\"response\":{\"status\":\"incomplete\",\"incomplete_details\":{\"reason\":\"max_output_tokens\"},\"usage\":{\"input_tokens\":1,\"output_tokens\":2}}}\n\n", "",
			wire.Result{Usage: wire.Usage{Input: 1, Output: 2}, Explicit: inOut, Quality: wire.QualityExact, FinishReason: "max_output_tokens", Terminal: true}},
		{"responses failed", responses,
			"data: {\"type\":\"response.failed\",\"response\":{\"status\":\"failed\",\"error\":{\"code\":\"server_error\",\"message\":\"no\"},\"usage\":null}}\n\n", "",
			wire.Result{FinishReason: "failed", Terminal: true, Err: &wire.StreamError{Code: "server_error", Message: "no"}}},
		{"responses error", responses, "event: error\ndata: {\"type\":\"error\",\"code\":\"rate_limit\",\"message\":\"slow\",\"param\":null,\"sequence_number\":3}\n\n", "",
			wire.Result{Err: &wire.StreamError{Code: "rate_limit", Message: "slow"}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			want := c.out
			if want == "" {
				want = c.in
			}
			for _, size := range []int{0, 1, 7, 100} {
				out, r := run(t, c.o, c.in, size)
				if out != want {
					t.Errorf("in pieces of %d:\n got %q\nwant %q", size, out, want)
				}
				if d := cmp.Diff(c.want, r); d != "" {
					t.Errorf("in pieces of %d: %s", size, d)
				}
			}
		})
	}
}

func TestBodies(t *testing.T) {
	inOut := wire.FieldInput | wire.FieldOutput
	cases := []struct {
		name string
		o    Options
		in   string
		want wire.Result
	}{
		{"chat", Options{Operation: wire.Chat},
			`{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"abcd","refusal":null,"tool_calls":[{"function":{"name":"f","arguments":"{}x"}}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":12,"total_tokens":21,"prompt_cache_hit_tokens":4}}`,
			wire.Result{Usage: wire.Usage{Input: 9, Cached: 4, Output: 12}, Explicit: inOut | wire.FieldCached, Quality: wire.QualityExact,
				FinishReason: "stop", OutputBytes: 8, OutputTokens: 2, Terminal: true}},
		{"chat without usage", Options{Operation: wire.Chat}, `{"choices":[{"message":{"content":"12345678"},"finish_reason":"stop"}]}`,
			wire.Result{Usage: wire.Usage{Output: 2}, Quality: wire.QualityEstimated, FinishReason: "stop", OutputBytes: 8, OutputTokens: 2, Terminal: true}},
		{"chat cut short", Options{Operation: wire.Chat}, `{"choices":[{"message":{"content":"123456`,
			wire.Result{Usage: wire.Usage{Output: 10}, Quality: wire.QualityEstimated, OutputBytes: 41, OutputTokens: 10, Malformed: 1}},
		{"absurd numbers", Options{Operation: wire.Chat}, `{"choices":[],"usage":{"prompt_tokens":-5,"completion_tokens":1e9,"total_tokens":99999999999999999999}}`,
			wire.Result{Terminal: true}},
		{"embeddings", Options{Operation: wire.Embeddings}, `{"object":"list","data":[{"embedding":[0.1,-0.2]}],"model":"m","usage":{"prompt_tokens":8,"total_tokens":8}}`,
			wire.Result{Usage: wire.Usage{Input: 8}, Explicit: wire.FieldInput, Quality: wire.QualityExact, Terminal: true}},
		{"embeddings, usage before the vectors, no prompt_tokens", Options{Operation: wire.Embeddings}, `{"usage":{"total_tokens":8},"data":[{"embedding":"AAAA"}]}`,
			wire.Result{Usage: wire.Usage{Input: 8}, Explicit: wire.FieldInput, Quality: wire.QualityExact, Terminal: true}},
		{"rerank", Options{Operation: wire.Rerank}, `{"results":[{"index":0,"relevance_score":0.9}],"meta":{"billed_units":{"search_units":1},"tokens":{"input_tokens":33,"output_tokens":0}}}`,
			wire.Result{Usage: wire.Usage{Input: 33}, Explicit: inOut, Quality: wire.QualityExact, Terminal: true}},
		{"responses", Options{Operation: wire.Responses}, `{"id":"r","object":"response","status":"completed","error":null,"output":[{"type":"reasoning","summary":[{"type":"summary_text","text":"hm"}]},{"type":"message","content":[{"type":"output_text","text":"abcd"}]}],"usage":{"input_tokens":5,"output_tokens":6,"output_tokens_details":{"reasoning_tokens":2},"total_tokens":11}}`,
			wire.Result{Usage: wire.Usage{Input: 5, Output: 6, Reasoning: 2}, Explicit: inOut | wire.FieldReasoning, Quality: wire.QualityExact,
				FinishReason: "completed", OutputBytes: 6, OutputTokens: 1, Terminal: true}},
		{"nothing", Options{Operation: wire.Chat}, ``, wire.Result{}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, size := range []int{0, 1, 13} {
				out, r := run(t, c.o, c.in, size)
				if out != c.in {
					t.Errorf("forwarded %q", out)
				}
				if d := cmp.Diff(c.want, r); d != "" {
					t.Errorf("in pieces of %d: %s", size, d)
				}
			}
		})
	}
}

func TestGrowthIsSeenWhileStreaming(t *testing.T) {
	m := NewMeter(Options{Operation: wire.Chat, Stream: true})
	for range 100 {
		if _, err := m.Write([]byte(chunk(`{"content":"abc"}`, "null", ""))); err != nil {
			t.Fatal(err)
		}
	}
	if m.OutputBytes() != 300 || m.Result().OutputTokens != 75 || m.Terminal() {
		t.Errorf("got %d bytes, %d tokens, terminal %v", m.OutputBytes(), m.Result().OutputTokens, m.Terminal())
	}
}

func TestErrorBodies(t *testing.T) {
	e := Error{Message: "too \"many\"\n", Code: "rate_limit_exceeded", Status: 429,
		Metadata: &wire.Metadata{Origin: "gateway_admission", LimitScope: "org", LimitKind: "rpm", LimitID: "org/acme/rpm", Retryable: true, RetryAfterMS: 4100}}
	want := `{"error":{"message":"too \"many\"\n","type":"rate_limit_error","code":"rate_limit_exceeded","param":null,"source":"router","metadata":{"origin":"gateway_admission","limit_scope":"org","limit_kind":"rpm","limit_id":"org/acme/rpm","retryable":true,"retry_after_ms":4100}}}`
	if got := string(ErrorBody(e)); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	if got := string(ErrorEvent(wire.Chat, e, 0)); got != "data: "+want+"\n\n" {
		t.Errorf("event %q", got)
	}
	event := string(ErrorEvent(wire.Responses, e, 9))
	data, ok := strings.CutPrefix(event, "event: error\ndata: ")
	if !ok || !json.Valid([]byte(data)) || !strings.Contains(data, `"sequence_number":9`) {
		t.Errorf("event %q", event)
	}
	if got := string(ModelList([]wire.Model{{ID: "a", OwnedBy: "weir", MaxOutput: 5}, {ID: "b"}})); got !=
		`{"object":"list","data":[{"id":"a","object":"model","created":0,"owned_by":"weir","max_output_tokens":5},{"id":"b","object":"model","created":0,"owned_by":""}]}` {
		t.Errorf("list %s", got)
	}
}

// FuzzMeter: fed in any pieces is the same as fed whole, and without anything to hide every byte is forwarded.
func FuzzMeter(f *testing.F) {
	f.Add(chunk(`{"content":"a\u00e9"}`, "null", `,"usage":null`)+usageChunk(`{"prompt_tokens":1,"completion_tokens":2}`)+done, 3, byte(1))
	f.Add("data: {\"usage\":null,\"choices\":[]}\r\n\r\ndata: {\"err", 1, byte(0))
	f.Add(`{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":1}}`, 2, byte(2))
	f.Fuzz(func(t *testing.T, in string, size int, mode byte) {
		o := Options{Operation: wire.All()[int(mode>>2)%5], Stream: mode&1 != 0 || mode&2 == 0, HideUsage: mode&2 != 0}
		whole, r1 := run(t, o, in, 0)
		cut, r2 := run(t, o, in, max(size%97, 1))
		if whole != cut {
			t.Fatalf("forwarded %q in pieces, %q whole", cut, whole)
		}
		if d := cmp.Diff(r1, r2); d != "" {
			t.Fatal(d)
		}
		if !o.HideUsage && !r1.Cut && !strings.HasPrefix(whole, in) {
			t.Fatalf("%q became %q", in, whole)
		}
		if u := r1.Usage; u.Input < 0 || u.Output < 0 || r1.OutputBytes < 0 {
			t.Fatalf("negative usage %+v", r1)
		}
	})
}

// steady returns a meter that has seen one event, and an event for it.
func steady() (*Meter, []byte) {
	m := NewMeter(Options{Operation: wire.Chat, Stream: true, HideUsage: true})
	return m, []byte(chunk(`{"content":" river"}`, "null", `,"usage":null`))
}

func TestStreamDoesNotAllocate(t *testing.T) {
	m, event := steady()
	piece := make([]byte, len(event))
	halves := func() {
		copy(piece, event)
		for _, p := range [][]byte{piece[:50], piece[50:]} {
			if _, err := m.Write(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	halves()
	if n := testing.AllocsPerRun(200, halves); n != 0 {
		t.Errorf("%v allocations for each event", n)
	}
}

func BenchmarkEvent(b *testing.B) {
	m, event := steady()
	piece := make([]byte, len(event))
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for b.Loop() {
		copy(piece, event)
		if out, err := m.Write(piece); err != nil || len(out) == 0 {
			b.Fatal(err)
		}
	}
}
