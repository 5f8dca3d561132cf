package anthropic

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

func frame(name, rest string) string {
	return "event: " + name + "\ndata: {\"type\":\"" + name + "\"" + rest + "}\n\n"
}

func start(usage string) string {
	return frame("message_start", `,"message":{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":`+usage+`}`)
}

func delta(inner string) string {
	return frame("content_block_delta", `,"index":0,"delta":{`+inner+`}`)
}

func textDelta(s string) string { return delta(`"type":"text_delta","text":"` + s + `"`) }

func end(usage string) string {
	return frame("message_delta", `,"delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":`+usage) + frame("message_stop", "")
}

func TestStreams(t *testing.T) {
	o := Options{Operation: wire.Messages, Stream: true}
	inOut := wire.FieldInput | wire.FieldOutput
	cached := inOut | wire.FieldCached | wire.FieldCacheWrite
	exact := func(u wire.Usage, explicit wire.Fields) wire.Result {
		return wire.Result{Usage: u, Explicit: explicit, Quality: wire.QualityExact, FinishReason: "end_turn", Terminal: true}
	}
	cases := []struct {
		name, in, out string // out "": as it came
		want          wire.Result
	}{
		{"T22 deltas are not summed", start(`{"input_tokens":10,"output_tokens":1}`) + end(`{"output_tokens":15}`), "",
			exact(wire.Usage{Input: 10, Output: 15}, inOut)},
		{"cumulative deltas", start(`{"input_tokens":42,"output_tokens":1}`) +
			frame("message_delta", `,"delta":{"stop_reason":null},"usage":{"output_tokens":5}`) + end(`{"output_tokens":9}`), "",
			exact(wire.Usage{Input: 42, Output: 9}, inOut)},
		{"T23 cache tokens repeat", start(`{"input_tokens":317,"cache_creation_input_tokens":4425,"cache_read_input_tokens":0,"cache_creation":{"ephemeral_5m_input_tokens":4425,"ephemeral_1h_input_tokens":0},"output_tokens":3,"service_tier":"standard"}`) +
			end(`{"input_tokens":317,"cache_creation_input_tokens":4425,"cache_read_input_tokens":0,"output_tokens":50}`), "",
			exact(wire.Usage{Input: 4742, CacheWrite: 4425, Output: 50}, cached)},
		{"T24 zero input in the delta", start(`{"input_tokens":15,"output_tokens":1}`) + end(`{"input_tokens":0,"output_tokens":20}`), "",
			exact(wire.Usage{Input: 15, Output: 20}, inOut)},
		{"T24 absent input in the delta", start(`{"input_tokens":15,"output_tokens":1}`) + end(`{"output_tokens":20}`), "",
			exact(wire.Usage{Input: 15, Output: 20}, inOut)},
		{"input only in the delta", start(`{"input_tokens":0,"output_tokens":0}`) + end(`{"input_tokens":15,"output_tokens":20}`), "",
			exact(wire.Usage{Input: 15, Output: 20}, inOut)},
		{"T28 cached input is input", start(`{"input_tokens":7,"cache_read_input_tokens":10000,"output_tokens":1}`) + end(`{"output_tokens":2}`), "",
			exact(wire.Usage{Input: 10007, Cached: 10000, Output: 2}, inOut|wire.FieldCached)},
		{"T12 cut after the start", start(`{"input_tokens":1000,"output_tokens":1}`) + strings.Repeat(textDelta("1234"), 40) + "event: content_block_de",
			start(`{"input_tokens":1000,"output_tokens":1}`) + strings.Repeat(textDelta("1234"), 40),
			wire.Result{Usage: wire.Usage{Input: 1000, Output: 40}, Explicit: wire.FieldInput, Quality: wire.QualityPartial, OutputBytes: 160, OutputTokens: 40, Cut: true}},
		{"T13 no usage at all", frame("message_start", `,"message":{"id":"m"}`) + textDelta("12345678"), "",
			wire.Result{Usage: wire.Usage{Output: 2}, Quality: wire.QualityEstimated, OutputBytes: 8, OutputTokens: 2}},
		{"T32 thinking and tool input count, signatures do not",
			frame("content_block_start", `,"index":0,"content_block":{"type":"thinking","thinking":"","signature":""}`) + frame("ping", "") +
				delta(`"type":"thinking_delta","thinking":"hmm\u2026"`) + delta(`"type":"signature_delta","signature":"EqQBCkYIBxgCKkA"`) +
				frame("content_block_start", `,"index":1,"content_block":{"type":"tool_use","id":"toolu_1","name":"get","input":{}}`) +
				delta(`"type":"input_json_delta","partial_json":"{\"a\":1}"`) +
				delta(`"type":"citations_delta","citation":{"type":"char_location","cited_text":"xxxxxxxx"}`), "",
			wire.Result{Usage: wire.Usage{Output: 4}, Quality: wire.QualityEstimated, OutputBytes: 6 + 3 + 7, OutputTokens: 4}},
		{"thinking is a part of the output", start(`{"input_tokens":5,"output_tokens":1}`) + end(`{"output_tokens":30,"output_tokens_details":{"thinking_tokens":20}}`), "",
			exact(wire.Usage{Input: 5, Output: 30, Reasoning: 20}, inOut|wire.FieldReasoning)},
		{"error in the stream", start(`{"input_tokens":5,"output_tokens":1}`) + "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n", "",
			wire.Result{Usage: wire.Usage{Input: 5, Output: 1}, Explicit: inOut, Quality: wire.QualityPartial, Err: &wire.StreamError{Type: "overloaded_error", Message: "Overloaded"}}},
		{"unknown events, crlf", "event: new_thing\r\ndata: {\"type\":\"new_thing\",\"x\":[1]}\r\n\r\n" + start(`{"input_tokens":5,"output_tokens":1}`) + end(`{"output_tokens":2}`), "",
			exact(wire.Usage{Input: 5, Output: 2}, inOut)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			want := c.out
			if want == "" {
				want = c.in
			}
			for _, size := range []int{0, 1, 9, 64} {
				out, r := run(t, o, c.in, size)
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

// The exact input is known after the first event, so that a live request can be corrected before it ends.
func TestInputIsKnownEarly(t *testing.T) {
	m := NewMeter(Options{Operation: wire.Messages, Stream: true})
	if _, err := m.Write([]byte(start(`{"input_tokens":100,"cache_read_input_tokens":20,"output_tokens":1}`))); err != nil {
		t.Fatal(err)
	}
	if u, explicit := m.Usage(); u.Input != 120 || !explicit.Has(wire.FieldInput) {
		t.Errorf("got %+v, %v", u, explicit)
	}
}

func TestBodies(t *testing.T) {
	inOut := wire.FieldInput | wire.FieldOutput
	cases := []struct {
		name string
		op   wire.Operation
		in   string
		want wire.Result
	}{
		{"message", wire.Messages, `{"id":"m","type":"message","role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"x"},{"type":"text","text":"abcd"},{"type":"tool_use","id":"t","name":"f","input":{"a":1}}],"stop_reason":"tool_use","usage":{"input_tokens":3,"cache_creation_input_tokens":4,"cache_read_input_tokens":5,"output_tokens":9}}`,
			wire.Result{Usage: wire.Usage{Input: 12, Cached: 5, CacheWrite: 4, Output: 9}, Explicit: inOut | wire.FieldCached | wire.FieldCacheWrite,
				Quality: wire.QualityExact, FinishReason: "tool_use", OutputBytes: 14, OutputTokens: 3, Terminal: true}},
		{"count_tokens", wire.CountTokens, `{"input_tokens":2095}`,
			wire.Result{Usage: wire.Usage{Input: 2095}, Explicit: wire.FieldInput, Quality: wire.QualityExact, Terminal: true}},
		{"error", wire.Messages, `{"type":"error","error":{"type":"not_found_error","message":"model: x"},"request_id":"r"}`,
			wire.Result{Terminal: true, Err: &wire.StreamError{Type: "not_found_error", Message: "model: x"}}},
		{"not JSON", wire.CountTokens, `<html>`, wire.Result{Malformed: 1}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, size := range []int{0, 1, 10} {
				out, r := run(t, Options{Operation: c.op}, c.in, size)
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

func TestEncoders(t *testing.T) {
	e := Error{Message: "no", Code: "input_too_long", Status: 400, RequestID: "r1", Metadata: &wire.Metadata{Origin: "gateway_admission"}}
	want := `{"type":"error","error":{"type":"invalid_request_error","message":"no","code":"input_too_long","source":"router","metadata":{"origin":"gateway_admission","retryable":false}},"request_id":"r1"}`
	if got := string(ErrorBody(e)); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	if got := string(ErrorEvent(e)); got != "event: error\ndata: "+want+"\n\n" {
		t.Errorf("event %q", got)
	}
	if got := string(CountBody(7)); got != `{"input_tokens":7}` {
		t.Errorf("count %s", got)
	}
	for _, list := range [][]wire.Model{nil, {{ID: "a", ContextWindow: 10, MaxOutput: 5}, {ID: "b"}}} {
		var got struct {
			Data    []map[string]any `json:"data"`
			FirstID *string          `json:"first_id"`
			LastID  *string          `json:"last_id"`
		}
		if err := json.Unmarshal(ModelList(list), &got); err != nil || len(got.Data) != len(list) {
			t.Fatalf("list of %d: %v, %+v", len(list), err, got)
		}
		if len(list) > 0 && (*got.FirstID != "a" || *got.LastID != "b" || got.Data[0]["max_tokens"] != 5.0 || got.Data[1]["type"] != "model") {
			t.Errorf("list %+v", got)
		}
	}
}

// FuzzMeter: fed in any pieces is the same as fed whole, and every byte is forwarded.
func FuzzMeter(f *testing.F) {
	f.Add(start(`{"input_tokens":10,"output_tokens":1}`)+textDelta("a\\u00e9")+end(`{"output_tokens":15}`), 3, true)
	f.Add("event: ping\r\ndata: {\"type\": \"ping\"}\r\n\r\nevent: mess", 1, true)
	f.Add(`{"content":[{"text":"x"}],"usage":{"input_tokens":1}}`, 2, false)
	f.Fuzz(func(t *testing.T, in string, size int, stream bool) {
		o := Options{Operation: wire.Messages, Stream: stream}
		whole, r1 := run(t, o, in, 0)
		cut, r2 := run(t, o, in, max(size%97, 1))
		if whole != cut {
			t.Fatalf("forwarded %q in pieces, %q whole", cut, whole)
		}
		if d := cmp.Diff(r1, r2); d != "" {
			t.Fatal(d)
		}
		if !r1.Cut && !strings.HasPrefix(whole, in) {
			t.Fatalf("%q became %q", in, whole)
		}
	})
}

func TestStreamDoesNotAllocate(t *testing.T) {
	m := NewMeter(Options{Operation: wire.Messages, Stream: true})
	in := []byte(textDelta(" river"))
	halves := func() {
		for _, p := range [][]byte{in[:50], in[50:]} {
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
	m := NewMeter(Options{Operation: wire.Messages, Stream: true})
	in := []byte(textDelta(" river"))
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for b.Loop() {
		if out, err := m.Write(in); err != nil || len(out) == 0 {
			b.Fatal(err)
		}
	}
}
