package openai

import (
	"bytes"

	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/gateway/wire/scan"
)

// event is what one event of a stream, or one whole answer, says.
type event struct {
	usage    usage
	hasUsage bool
	told     struct{ from, to int } // where the usage of a chunk stands, null or not, with its comma
	choices  int
	bytes    int64 // output text in it
	whole    int64 // output text of the answer so far, where an event repeats it
	finish   []byte
	terminal bool
	failed   bool
	errType  []byte
	errCode  []byte
	message  []byte
}

// fault makes the error that the event carries. Texts are taken as they stand in the JSON unless they hold escapes.
func (e *event) fault() *wire.StreamError {
	return &wire.StreamError{Type: text(e.errType), Code: text(e.errCode), Message: text(e.message)}
}

func text(raw []byte) string { return scan.Text(raw, bytes.IndexByte(raw, '\\') >= 0) }

// read reads data and reports whether it is a valid JSON object. What stood before a fault is kept.
func (e *event) read(data []byte, op wire.Operation) bool {
	c := scan.New(data)
	if c.Kind() != scan.Object {
		c.Skip()
		c.End()
		return c.OK()
	}
	if op == wire.Responses {
		e.typed(&c)
	} else {
		e.completion(&c, op)
	}
	c.End()
	return c.OK()
}

// completion reads a chunk or an answer of chat, completions, embeddings or rerank.
func (e *event) completion(c *scan.Cursor, op wire.Operation) {
	last, open := -1, false // end of the member before; the usage stands first and its comma is still to come
	for more := c.Open('{'); more; more = c.More('}') {
		start := c.Start()
		if open {
			e.told.to, open = start, false
		}
		switch string(c.Key()) {
		case "choices":
			e.readChoices(c)
		case "usage":
			if c.Kind() != scan.Null {
				e.readUsage(c)
			} else {
				c.Skip()
			}
			e.told.from, e.told.to = last, c.Pos()
			if last < 0 {
				e.told.from, open = start, true
			}
		case "meta":
			if op == wire.Rerank {
				e.readMeta(c)
				break
			}
			c.Skip()
		case "error":
			e.readError(c)
		default:
			c.Skip()
		}
		last = c.Pos()
	}
}

func (e *event) readUsage(c *scan.Cursor) {
	if c.Kind() == scan.Object {
		e.hasUsage = true
	}
	e.usage.read(c)
}

// readMeta reads the usage of Cohere-style rerank answers.
func (e *event) readMeta(c *scan.Cursor) {
	if !c.OpenIf('{') {
		return
	}
	for more := true; more; more = c.More('}') {
		switch string(c.Key()) {
		case "tokens", "billed_units":
			e.readUsage(c)
		default:
			c.Skip()
		}
	}
}

// readError reads an error: an object, or a plain message.
func (e *event) readError(c *scan.Cursor) {
	switch c.Kind() {
	case scan.String:
		e.failed = true
		e.message, _ = c.Str()
		return
	case scan.Object:
		e.failed = true
	}
	if !c.OpenIf('{') {
		return
	}
	for more := true; more; more = c.More('}') {
		e.errorField(c, string(c.Key()))
	}
}

func (e *event) errorField(c *scan.Cursor, key string) {
	switch k := c.Kind(); {
	case key == "type" && k == scan.String:
		e.errType, _ = c.Str()
	case key == "code" && k == scan.String:
		e.errCode, _ = c.Str()
	case key == "code" && k == scan.Number:
		e.errCode = c.Num()
	case key == "message" && k == scan.String:
		e.message, _ = c.Str()
	default:
		c.Skip()
	}
}

func (e *event) readChoices(c *scan.Cursor) {
	if !c.OpenIf('[') {
		return
	}
	for more := true; more; more = c.More(']') {
		e.choices++
		if !c.OpenIf('{') {
			continue
		}
		for in := true; in; in = c.More('}') {
			switch string(c.Key()) {
			case "delta", "message":
				e.bytes += message(c)
			case "text":
				e.bytes += c.StrLen()
			case "finish_reason":
				e.readFinish(c)
			default:
				c.Skip()
			}
		}
	}
}

func (e *event) readFinish(c *scan.Cursor) {
	if c.Kind() == scan.String {
		e.finish, _ = c.Str()
		return
	}
	c.Skip()
}

// message counts the output text of a delta or a message. Servers that send the same reasoning under several names have
// it counted once.
func message(c *scan.Cursor) int64 {
	if !c.OpenIf('{') {
		return 0
	}
	var size, reasoning int64
	for more := true; more; more = c.More('}') {
		switch string(c.Key()) {
		case "content", "tool_calls", "function_call", "audio":
			size += texts(c)
		case "refusal":
			size += c.StrLen()
		case "reasoning_content", "reasoning", "reasoning_details":
			reasoning = max(reasoning, texts(c))
		default:
			c.Skip()
		}
	}
	return size + reasoning
}

// texts counts the text in a value of any shape: a string, or whatever stands under the names that text has.
func texts(c *scan.Cursor) int64 {
	var size int64
	switch c.Kind() {
	case scan.String:
		return c.StrLen()
	case scan.Array:
		for more := c.Open('['); more; more = c.More(']') {
			if c.Kind() == scan.String {
				c.Skip()
				continue
			}
			size += texts(c)
		}
	case scan.Object:
		for more := c.Open('{'); more; more = c.More('}') {
			switch string(c.Key()) {
			case "text", "name", "arguments", "input", "refusal", "thinking", "transcript", "code":
				if k := c.Kind(); k == scan.Object {
					size += int64(len(c.Raw()))
				} else {
					size += texts(c)
				}
			case "function", "custom", "content", "summary", "reasoning":
				size += texts(c)
			default:
				c.Skip()
			}
		}
	default:
		c.Skip()
	}
	return size
}

var deltaSuffix = []byte(".delta")

// typed reads an event of the Responses API, or a whole response.
func (e *event) typed(c *scan.Cursor) {
	var typ, status, reason []byte
	var delta, output int64
	nested := false
	for more := c.Open('{'); more; more = c.More('}') {
		switch key := c.Key(); string(key) {
		case "type":
			if c.Kind() == scan.String {
				typ, _ = c.Str()
				break
			}
			c.Skip()
		case "delta":
			delta = c.StrLen()
		case "response":
			nested = true
			if c.OpenIf('{') {
				for in := true; in; in = c.More('}') {
					e.responseField(c, c.Key(), &status, &reason, &output)
				}
			}
		case "code", "message":
			e.errorField(c, string(key))
		default:
			e.responseField(c, key, &status, &reason, &output)
		}
	}
	if bytes.HasSuffix(typ, deltaSuffix) && !bytes.HasSuffix(typ, []byte("audio.delta")) {
		e.bytes = delta
	}
	switch string(typ) {
	case "error":
		e.failed = true
	case "response.completed", "response.incomplete", "response.failed", "response.cancelled":
		e.terminal = true
	}
	if e.terminal || !nested && len(typ) == 0 { // the end of a stream, or a whole answer
		e.whole = output
		e.finish = status
		if len(reason) > 0 {
			e.finish = reason
		}
	}
}

// responseField reads one member of a response object.
func (e *event) responseField(c *scan.Cursor, key []byte, status, reason *[]byte, output *int64) {
	switch string(key) {
	case "usage":
		e.readUsage(c)
	case "status":
		if c.Kind() == scan.String {
			*status, _ = c.Str()
			return
		}
		c.Skip()
	case "output":
		*output = texts(c)
	case "error":
		e.readError(c)
	case "incomplete_details":
		if !c.OpenIf('{') {
			return
		}
		for more := true; more; more = c.More('}') {
			if string(c.Key()) == "reason" && c.Kind() == scan.String {
				*reason, _ = c.Str()
				continue
			}
			c.Skip()
		}
	default:
		c.Skip()
	}
}
