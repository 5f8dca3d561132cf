package provider

import (
	"strconv"

	"github.com/weirhq/weir/gateway/wire"
)

// created stands in every OpenAI answer: the second of the call's start.
func (a *answer) created() []byte { return strconv.AppendInt(nil, a.call.Started.Unix(), 10) }

func (a *answer) appendText(n int) {
	for i := range n {
		a.buf = append(a.buf, words[i%len(words)]...)
	}
}

func (a *answer) finishReason() string {
	switch {
	case a.short:
		return "length"
	case a.script.Tool:
		return "tool_calls"
	}
	return "stop"
}

// usage encodes the usage as chat and completions report it, with so many output tokens.
func (a *answer) usage(output int64) []byte {
	b := make([]byte, 0, 256)
	reasoning := int64(a.think) * a.copies()
	reported, total := output, a.input+output
	if a.script.Apart {
		reported = max(output-reasoning, 0)
	}
	b = strconv.AppendInt(append(b, `{"prompt_tokens":`...), a.input, 10)
	b = strconv.AppendInt(append(b, `,"completion_tokens":`...), reported, 10)
	b = strconv.AppendInt(append(b, `,"total_tokens":`...), total, 10)
	b = strconv.AppendInt(append(b, `,"prompt_tokens_details":{"cached_tokens":`...), int64(a.script.Cached), 10)
	if a.script.CacheWrite > 0 {
		b = strconv.AppendInt(append(b, `,"cache_write_tokens":`...), int64(a.script.CacheWrite), 10)
	}
	b = strconv.AppendInt(append(b, `,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":`...), reasoning, 10)
	return append(b, `,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}`...)
}

// head begins a chat or completions object.
func (a *answer) head(object string) []byte {
	b := make([]byte, 0, 160)
	prefix := `{"id":"chatcmpl-`
	if a.op == wire.Completions {
		prefix = `{"id":"cmpl-`
	}
	b = strconv.AppendInt(append(b, prefix...), a.id, 10)
	b = append(append(append(b, `","object":"`...), object...), `","created":`...)
	b = append(append(b, a.created()...), `,"model":`...)
	return append(b, a.model...)
}

// body writes the answer that is no stream into the buffer.
func (a *answer) body() {
	switch a.op {
	case wire.Chat, wire.Completions:
		a.completion()
	case wire.Embeddings:
		a.embeddings()
	case wire.Rerank:
		a.rerank()
	case wire.Responses:
		a.buf = append(a.buf, a.response("completed", a.output())...)
	case wire.Messages:
		a.message()
	case wire.CountTokens:
		a.buf = append(strconv.AppendInt(append(a.buf, `{"input_tokens":`...), a.input, 10), '}')
	}
}

const toolArguments = `{\"city\":\"Bern\",\"unit\":\"c\"}`

func (a *answer) completion() {
	object := "chat.completion"
	if a.op == wire.Completions {
		object = "text_completion"
	}
	a.buf = append(append(a.buf, a.head(object)...), `,"choices":[`...)
	for i := range a.copies() {
		if i > 0 {
			a.buf = append(a.buf, ',')
		}
		a.buf = strconv.AppendInt(append(a.buf, `{"index":`...), i, 10)
		if a.op == wire.Completions {
			a.buf = append(a.buf, `,"text":"`...)
			a.appendText(a.tokens)
			a.buf = append(a.buf, '"')
		} else {
			a.chatMessage()
		}
		a.buf = append(append(append(a.buf, `,"logprobs":null,"finish_reason":"`...), a.finishReason()...), `"}`...)
	}
	a.buf = append(a.buf, ']')
	if !a.script.NoUsage {
		a.buf = append(append(a.buf, `,"usage":`...), a.usage(a.output())...)
	}
	a.buf = append(a.buf, `,"system_fingerprint":"fp_weir"}`...)
}

func (a *answer) chatMessage() {
	a.buf = append(a.buf, `,"message":{"role":"assistant","content":`...)
	if a.script.Tool {
		a.buf = append(a.buf, `null,"tool_calls":[{"id":"call_`...)
		a.buf = strconv.AppendInt(a.buf, a.id, 10)
		a.buf = append(a.buf, `","type":"function","function":{"name":"get_weather","arguments":"`+toolArguments+`"}}]`...)
	} else {
		a.buf = append(a.buf, '"')
		a.appendText(a.tokens)
		a.buf = append(a.buf, '"')
	}
	if a.think > 0 {
		a.buf = append(a.buf, `,"reasoning_content":"`...)
		a.appendText(a.think)
		a.buf = append(a.buf, '"')
	}
	a.buf = append(a.buf, `,"refusal":null}`...)
}

// chunks streams chat and completions: every chunk with a null usage when it was asked for, and at the end one chunk
// that holds nothing but the usage.
func (a *answer) chunks() {
	object := "chat.completion.chunk"
	if a.op == wire.Completions {
		object = "text_completion"
	}
	c := chunker{a: a, head: append(a.head(object), `,"choices":[{"index":`...)}
	for i := range a.copies() {
		if !c.choice(i) {
			return
		}
	}
	if a.request.includeUsage && !a.script.NoUsage {
		if !a.event("", a.head(object), []byte(`,"choices":[],"usage":`), a.usage(a.sent), []byte("}")) {
			return
		}
	}
	a.last("", []byte("[DONE]"))
}

type chunker struct {
	a    *answer
	head []byte
}

// send streams one chunk: a delta of chat, or text.
func (c *chunker) send(choice int64, delta, finish string, tokens int64) bool {
	a := c.a
	a.sent += tokens
	room := make([]byte, 0, 160)
	room = append(strconv.AppendInt(room, choice, 10), ',')
	room = append(append(append(append(room, delta...), `,"logprobs":null,"finish_reason":`...), finish...), `}]`...)
	switch {
	case !a.request.includeUsage || a.script.NoUsage:
	case a.script.EachUsage:
		room = append(append(room, `,"usage":`...), a.usage(a.sent)...)
	default:
		room = append(room, `,"usage":null`...)
	}
	return a.event("", c.head, room, []byte("}"))
}

// choice streams one choice whole.
func (c *chunker) choice(i int64) bool {
	a := c.a
	finish := `"` + a.finishReason() + `"`
	if a.op == wire.Completions {
		for t := range a.tokens {
			if !c.send(i, `"text":"`+words[t%len(words)]+`"`, "null", 1) {
				return false
			}
		}
		return c.send(i, `"text":""`, finish, 0)
	}
	if !c.send(i, `"delta":{"role":"assistant","content":"","refusal":null}`, "null", 0) {
		return false
	}
	for t := range a.think {
		if !c.send(i, `"delta":{"reasoning_content":"`+words[t%len(words)]+`"}`, "null", 1) {
			return false
		}
	}
	if !c.content(i) {
		return false
	}
	return c.send(i, `"delta":{}`, finish, 0)
}

// content streams the visible tokens: text, or the arguments of a tool call in two pieces.
func (c *chunker) content(i int64) bool {
	a := c.a
	if !a.script.Tool {
		for t := range a.tokens {
			if !c.send(i, `"delta":{"content":"`+words[t%len(words)]+`"}`, "null", 1) {
				return false
			}
		}
		return true
	}
	half := int64(a.tokens) / 2
	call := `"delta":{"tool_calls":[{"index":0,"id":"call_` + strconv.FormatInt(a.id, 10) +
		`","type":"function","function":{"name":"get_weather","arguments":""}}]}`
	return c.send(i, call, "null", 0) &&
		c.send(i, `"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"city\":\"Bern\","}}]}`, "null", half) &&
		c.send(i, `"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\"unit\":\"c\"}"}}]}`, "null", int64(a.tokens)-half)
}
