package wire

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseCounts(t *testing.T) {
	type want struct {
		Model                            string
		Stream, IncludeUsage, Background bool
		Output                           Limit
		Choices, Messages, Text, Tokens  int64
		Images, Documents, Audio, Base64 int64
		Unknown                          string
	}
	base := want{Model: "m", Choices: 1}
	cases := []struct {
		name, body string
		op         Operation
		change     func(*want)
	}{
		{"plain", `{"model":"m","messages":[{"role":"user","content":"hello"}]}`, Chat, func(w *want) { w.Messages, w.Text = 1, 5 }},
		{"escapes count as what they stand for", `{"model":"m","messages":[{"role":"user","content":"a\n\u00e9\ud83d\ude00\ud800"}]}`, Chat,
			func(w *want) { w.Messages, w.Text = 1, 1+1+2+4+3 }},
		{"an escaped key is the key", `{"mod\u0065l":"m","messages":[],"max_tok\u0065ns":7}`, Chat,
			func(w *want) { w.Output = Limit{"max_tokens", 7, true} }},
		{"completion limit preferred", `{"model":"m","messages":[],"max_tokens":5,"max_completion_tokens":5,"n":3}`, Chat,
			func(w *want) { w.Output, w.Choices = Limit{"max_completion_tokens", 5, true}, 3 }},
		{"negative is undeclared", `{"model":"m","messages":[],"max_tokens":-1000}`, Chat,
			func(w *want) { w.Output = Limit{"max_tokens", -1000, false} }},
		{"nulls are absent", `{"model":"m","messages":[],"max_tokens":null,"n":null,"stream":null,"stream_options":null,"tools":null}`, Chat, func(*want) {}},
		{"2^31", `{"model":"m","messages":[],"max_tokens":2147483648}`, Chat,
			func(w *want) { w.Output = Limit{"max_tokens", 1 << 31, true} }},
		{"10^18", `{"model":"m","messages":[],"max_tokens":1000000000000000000,"n":100}`, Chat,
			func(w *want) { w.Output, w.Choices = Limit{"max_tokens", 1e18, true}, 100 }},
		{"stream with usage", `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[]}`, Chat,
			func(w *want) { w.Stream, w.IncludeUsage = true, true }},
		{"images, files, audio", `{"model":"m","messages":[{"content":[
			{"type":"text","text":"look"},
			{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAABBBB","detail":"low"}},
			{"image_url":{"url":"https://example.org/cat.png"},"type":"image_url"},
			{"type":"file","file":{"filename":"x.pdf","file_data":"data:application/pdf;base64,JVBE"}},
			{"type":"input_audio","input_audio":{"data":"UklG","format":"wav"}}]}]}`, Chat,
			func(w *want) { w.Messages, w.Text, w.Images, w.Documents, w.Audio, w.Base64 = 1, 4, 2, 1, 1, 12 }},
		{"tools and calls", `{"model":"m","tools":[{"type":"function"}],"messages":[
			{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"get","arguments":"{\"a\":1}"}}]},
			{"role":"tool","tool_call_id":"c","content":"12"}]}`, Chat,
			func(w *want) { w.Messages, w.Text = 2, int64(len(`[{"type":"function"}]`)+3+7+2) }},
		{"legacy prompts", `{"model":"m","prompt":["one","two"],"n":2,"best_of":3,"max_tokens":10}`, Completions,
			func(w *want) { w.Messages, w.Text, w.Choices, w.Output = 2, 6, 12, Limit{"max_tokens", 10, true} }},
		{"legacy tokens are one prompt", `{"model":"m","prompt":[1,2,3]}`, Completions,
			func(w *want) { w.Messages, w.Tokens = 1, 3 }},
		{"legacy token lists", `{"model":"m","prompt":[[1,2],[3]]}`, Completions,
			func(w *want) { w.Messages, w.Tokens, w.Choices = 2, 3, 2 }},
		{"embeddings", `{"model":"m","input":["ab","cde"]}`, Embeddings, func(w *want) { w.Messages, w.Text = 2, 5 }},
		{"rerank", `{"model":"m","query":"who","documents":["ab",{"text":"cde"}]}`, Rerank, func(w *want) { w.Messages, w.Text = 2, 8 }},
		{"responses text", `{"model":"m","input":"hello","instructions":"be","max_output_tokens":9}`, Responses,
			func(w *want) { w.Messages, w.Text, w.Output = 1, 7, Limit{"max_output_tokens", 9, true} }},
		{"responses items", `{"model":"m","background":true,"previous_response_id":"resp_1","input":[
			{"role":"user","content":[{"type":"input_text","text":"hi"},{"type":"input_image","image_url":"data:image/png;base64,AAAA"},
			 {"type":"input_file","file_data":"data:application/pdf;base64,BB"}]},
			{"type":"function_call_output","call_id":"c","output":"42"},
			{"type":"function_call","name":"f","arguments":"{}"}]}`, Responses,
			func(w *want) {
				w.Messages, w.Text, w.Images, w.Documents, w.Base64 = 3, 2+2+1+2, 1, 1, 6
				w.Background, w.Unknown = true, "previous_response_id"
			}},
		{"anthropic", `{"model":"m","max_tokens":100,"system":[{"type":"text","text":"sys"}],"tools":[{}],"messages":[
			{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAAAA"}},
			 {"type":"document","source":{"data":"plain","type":"text"}},
			 {"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"ok"},{"type":"image","source":{"type":"url","url":"https://e.org"}}]}]},
			{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{"a":1}},{"type":"thinking","thinking":"hm","signature":"xxxx"}]}]}`, Messages,
			func(w *want) {
				w.Output = Limit{"max_tokens", 100, true}
				w.Messages, w.Text, w.Images, w.Documents, w.Base64 = 2, 3+4+5+2+1+7+2, 2, 1, 6
			}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r, err := Parse(c.op, []byte(c.body))
			if err != nil {
				t.Fatal(err)
			}
			w := base
			c.change(&w)
			got := want{r.Model, r.Stream, r.IncludeUsage, r.Background, r.Output, r.Choices, r.Messages, r.TextBytes, r.TokenIDs,
				r.Images, r.Documents, r.Audio, r.Base64Bytes, r.UnknownInput}
			if d := cmp.Diff(w, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	cases := []struct {
		op                   Operation
		body, param, message string
	}{
		{Chat, ``, "", "the body is empty"},
		{Chat, `[]`, "", "must be a JSON object, got an array"},
		{Chat, `{"model":"m","messages":[]`, "", "not valid JSON: unexpected end at byte 26"},
		{Chat, `{"model":"m","messages":[]} x`, "", "something follows the end of the document at byte 28"},
		{Chat, `{"model":"m","messages":[],}`, "", "not valid JSON"},
		{Chat, `{"model":"m" "messages":[]}`, "", "expected , or }"},
		{Chat, `{"model":"m","messages":[],"x":01}`, "", "invalid number"},
		{Chat, `{"model":"m","messages":[],"x":"\q"}`, "", "invalid escape"},
		{Chat, `{"model":"m","messages":[],"x":tru}`, "", "expected true or false"},
		{Chat, "{\"model\":\"m\xff\",\"messages\":[]}", "", "not valid UTF-8 at byte 11"},
		{Chat, "{\"model\":\"m\n\",\"messages\":[]}", "", "control character in a string"},
		{Chat, `{"model":"m","messages":` + strings.Repeat("[", 1000) + `}`, "", "nested too deeply"},
		{Chat, `{"messages":[]}`, "model", "model is missing"},
		{Chat, `{"model":"","messages":[]}`, "model", "model is missing"},
		{Chat, `{"model":5,"messages":[]}`, "model", "model must be a string, got the number 5"},
		{Chat, `{"model":"` + strings.Repeat("x", 257) + `","messages":[]}`, "model", "model is 257 bytes long, at most 256"},
		{Chat, `{"model":"m"}`, "messages", "messages is missing"},
		{Chat, `{"model":"m","messages":null}`, "messages", "messages is missing"},
		{Chat, `{"model":"m","messages":"hi"}`, "messages", "messages must be an array, got a string"},
		{Chat, `{"model":"m","messages":[{},"x"]}`, "messages[1]", "messages[1] must be an object, got a string"},
		{Chat, `{"model":"m","messages":[{"content":7}]}`, "messages[0].content", "must be a string or an array, got a number"},
		{Chat, `{"model":"m","model":"n","messages":[]}`, "model", "model occurs twice"},
		{Chat, `{"model":"m","messages":[],"max_tokens":1,"max_tok\u0065ns":9}`, "max_tokens", "max_tokens occurs twice"},
		{Chat, `{"model":"m","messages":[],"max_tokens":"100"}`, "max_tokens", "max_tokens must be a number, got the string \"100\""},
		{Chat, `{"model":"m","messages":[],"max_tokens":1.5}`, "max_tokens", "max_tokens is 1.5: it must be a whole number"},
		{Chat, `{"model":"m","messages":[],"max_tokens":1e3}`, "max_tokens", "max_tokens is 1e3: it must be a whole number"},
		{Chat, `{"model":"m","messages":[],"max_tokens":10000000000000000000}`, "max_tokens", "that fits 64 bits"},
		{Chat, `{"model":"m","messages":[],"max_tokens":1` + strings.Repeat("0", 99) + `}`, "max_tokens", "a number of 100 characters"},
		{Chat, `{"model":"m","messages":[],"max_tokens":5,"max_completion_tokens":6}`, "max_tokens", "max_tokens is 5 and max_completion_tokens is 6: they must not differ"},
		{Chat, `{"model":"m","messages":[],"n":0}`, "n", "n is 0: it must be between 1 and 2048"},
		{Chat, `{"model":"m","messages":[],"max_tokens":"` + strings.Repeat("9", 60) + `"}`, "max_tokens", `got the string "` + strings.Repeat("9", 39) + "…"},
		{Chat, `{"model":"m","messages":[],"stream":"yes"}`, "stream", "stream must be a boolean, got the string \"yes\""},
		{Chat, `{"model":"m","messages":[],"stream_options":{"include_usage":1}}`, "stream_options.include_usage", "must be a boolean, got the number 1"},
		{Messages, `{"model":"m","messages":[],"system":5}`, "system", "system must be a string or an array, got the number 5"},
		{Embeddings, `{"model":"m"}`, "input", "input is missing"},
		{Rerank, `{"model":"m","query":"q"}`, "documents", "documents is missing"},
		{Completions, `{"model":"m","prompt":[true]}`, "prompt", "prompt must hold strings or token numbers, got a boolean"},
	}
	for _, c := range cases {
		_, err := Parse(c.op, []byte(c.body))
		var bad *BadRequest
		if !errors.As(err, &bad) {
			t.Errorf("%s: got %v", c.body, err)
			continue
		}
		if bad.Param != c.param || !strings.Contains(bad.Message, c.message) {
			t.Errorf("%s:\n got %q: %q\nwant %q: …%s…", c.body, bad.Param, bad.Message, c.param, c.message)
		}
		if wantCode := map[bool]string{true: CodeMalformed, false: CodeParameter}[c.param == ""]; bad.Code != wantCode {
			t.Errorf("%s: code %s", c.body, bad.Code)
		}
	}
}

func TestRewrite(t *testing.T) {
	ask := Edit{Usage: true}
	cases := []struct {
		name       string
		op         Operation
		edit       Edit
		body, want string
	}{
		{"nothing", Chat, Edit{Usage: true, Model: "m"}, `{"model":"m","messages":[]}`, ``},
		{"model", Chat, Edit{Model: `up"stream`}, `{ "model" : "m" , "messages":[] }`, `{ "model" : "up\"stream" , "messages":[] }`},
		{"usage at the end", Chat, ask, `{"model":"m","stream":true,"messages":[] }`, `{"model":"m","stream":true,"messages":[] ,"stream_options":{"include_usage":true}}`},
		{"usage asked already", Chat, ask, `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[]}`, ``},
		{"usage false", Chat, ask, `{"model":"m","stream":true,"stream_options":{"a":1,"include_usage":false},"messages":[]}`,
			`{"model":"m","stream":true,"stream_options":{"a":1,"include_usage":true},"messages":[]}`},
		{"empty options", Completions, ask, `{"model":"m","stream":true,"stream_options":{ }}`, `{"model":"m","stream":true,"stream_options":{"include_usage":true }}`},
		{"other options", Chat, ask, `{"model":"m","stream":true,"stream_options":{"a":1},"messages":[]}`,
			`{"model":"m","stream":true,"stream_options":{"include_usage":true,"a":1},"messages":[]}`},
		{"null options", Chat, ask, `{"model":"m","stream":true,"stream_options":null,"messages":[]}`,
			`{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[]}`},
		{"responses have it anyway", Responses, ask, `{"model":"m","stream":true,"input":""}`, ``},
		{"bound", Chat, Edit{Bound: 100}, `{"model":"m","messages":[]}`, `{"model":"m","messages":[],"max_completion_tokens":100}`},
		{"bound in the old field", Chat, Edit{Bound: 100, OldField: true}, `{"model":"m","messages":[]}`, `{"model":"m","messages":[],"max_tokens":100}`},
		{"bound for responses", Responses, Edit{Bound: 100}, `{"model":"m"}`, `{"model":"m","max_output_tokens":100}`},
		{"bound for messages", Messages, Edit{Bound: 100}, `{"model":"m","messages":[]}`, `{"model":"m","messages":[],"max_tokens":100}`},
		{"bound over null", Chat, Edit{Bound: 100}, `{"model":"m","max_completion_tokens":null,"messages":[]}`, `{"model":"m","max_completion_tokens":100,"messages":[]}`},
		{"bound over null in the old field", Chat, Edit{Bound: 100, OldField: true}, `{"model":"m","max_tokens":null,"messages":[]}`, `{"model":"m","max_tokens":100,"messages":[]}`},
		{"a limit stays", Chat, Edit{Bound: 100}, `{"model":"m","messages":[],"max_tokens":5}`, ``},
		{"a negative limit stays", Chat, Edit{Bound: 100}, `{"model":"m","messages":[],"max_tokens":-1}`, ``},
		{"no bound without output", Embeddings, Edit{Bound: 100}, `{"model":"m","input":"x"}`, ``},
		{"all at once", Chat, Edit{Model: "u", Usage: true, Bound: 7}, `{"max_completion_tokens":null,"stream":true,"stream_options":{},"messages":[],"model":"m"}`,
			`{"max_completion_tokens":7,"stream":true,"stream_options":{"include_usage":true},"messages":[],"model":"u"}`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			body := []byte(c.body)
			r, err := Parse(c.op, body)
			if err != nil {
				t.Fatal(err)
			}
			got := r.Rewrite(c.edit)
			if c.want == "" {
				if &got[0] != &body[0] || len(got) != len(body) {
					t.Errorf("a body that needs no change was not passed through: %s", got)
				}
				return
			}
			if string(got) != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
			if string(body) != c.body {
				t.Error("the original was changed")
			}
		})
	}
}

// FuzzParse holds the parser against encoding/json: it accepts only what that accepts, and its rewriting changes nothing else.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"model":"m","messages":[{"role":"user","content":"a\u00e9"}],"stream":true}`,
		`{"model":"m","messages":[],"max_completion_tokens":null,"stream_options":{ "x":[1e5,-0.1,null] },"stream":true}`,
		`{"model":"m","stream":true,"stream_options":{"include_usage":false},"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]}]}`,
		`{"model":"\ud83d\ude00","prompt":[[1,2],"x"],"input":[{"type":"message","content":[]}],"query":"","documents":[{}],"messages":[]}`,
		`{"model":1}`, `{`, `{"a":"\`, "{\"\x80\":1}",
	} {
		for op := range All() {
			f.Add(byte(op), []byte(seed))
		}
	}
	f.Fuzz(func(t *testing.T, op byte, body []byte) {
		o := All()[int(op)%len(All())]
		r, err := Parse(o, body)
		if err != nil {
			return
		}
		var before map[string]json.RawMessage
		if err := json.Unmarshal(body, &before); err != nil {
			t.Fatalf("accepted what is no JSON: %v", err)
		}
		if r.TextBytes < 0 || r.Base64Bytes < 0 || r.Base64Bytes > int64(len(body)) || r.Choices < 1 {
			t.Fatalf("impossible counts: %+v", r)
		}
		out := r.Rewrite(Edit{Model: "other", Usage: true, Bound: 77})
		var after map[string]json.RawMessage
		if err := json.Unmarshal(out, &after); err != nil {
			t.Fatalf("rewrote into what is no JSON: %v\n%s", err, out)
		}
		if string(after["model"]) != `"other"` {
			t.Fatalf("model is %s", after["model"])
		}
		for key, v := range before {
			switch key {
			case "model", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens":
			default:
				if string(after[key]) != string(v) {
					t.Fatalf("%s changed from %s to %s", key, v, after[key])
				}
			}
		}
		again, err := Parse(o, out)
		if err != nil {
			t.Fatalf("the rewritten body does not parse: %v\n%s", err, out)
		}
		if again.NeedsUsage() || o.Generates() && again.Output.Field == "" {
			t.Fatalf("the rewritten body lacks what was to be written: %s", out)
		}
		if again.TextBytes != r.TextBytes || again.Messages != r.Messages {
			t.Fatal("rewriting changed the prompt")
		}
	})
}

// body2k is a chat body of about 2 kB, with tools.
func body2k() []byte {
	return []byte(`{"model":"gpt-4o-mini","messages":[{"role":"system","content":"` + strings.Repeat("You are careful. ", 20) +
		`"},{"role":"user","content":"` + strings.Repeat("Where does the river go?\\n", 40) +
		`"}],"temperature":0.2,"stream":true,"tools":[{"type":"function","function":{"name":"get_weather","description":"Current weather","parameters":{"type":"object","properties":{"city":{"type":"string"},"unit":{"type":"string","enum":["c","f"]}},"required":["city"]}}}]}`)
}

func BenchmarkParseAndRewrite(b *testing.B) {
	body := body2k()
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		r, err := Parse(Chat, body)
		if err != nil {
			b.Fatal(err)
		}
		if out := r.Rewrite(Edit{Model: "upstream-name", Usage: true, Bound: 16384}); len(out) <= len(body) {
			b.Fatal("not rewritten")
		}
	}
}
