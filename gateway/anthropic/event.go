package anthropic

import (
	"bytes"

	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/gateway/wire/scan"
)

// usage holds the numbers as they were reported, each merged by itself: a message_delta repeats what message_start said,
// or leaves it out, or says 0.
type usage struct {
	input, cacheRead, cacheWrite, output, thinking wire.Tally
}

func (u *usage) read(c *scan.Cursor) {
	if !c.OpenIf('{') {
		return
	}
	for more := true; more; more = c.More('}') {
		switch string(c.Key()) {
		case "input_tokens":
			u.input.Report(c.Int())
		case "cache_read_input_tokens":
			u.cacheRead.Report(c.Int())
		case "cache_creation_input_tokens":
			u.cacheWrite.Report(c.Int())
		case "output_tokens":
			u.output.Report(c.Int())
		case "output_tokens_details":
			u.details(c)
		default: // cache_creation breaks cache_creation_input_tokens down; the others are no tokens
			c.Skip()
		}
	}
}

func (u *usage) details(c *scan.Cursor) {
	if !c.OpenIf('{') {
		return
	}
	for more := true; more; more = c.More('}') {
		switch string(c.Key()) {
		case "thinking_tokens", "reasoning_tokens":
			u.thinking.Report(c.Int())
		default:
			c.Skip()
		}
	}
}

func (u *usage) merge(v *usage) {
	u.input.Report(v.input.Value, v.input.Set)
	u.cacheRead.Report(v.cacheRead.Value, v.cacheRead.Set)
	u.cacheWrite.Report(v.cacheWrite.Value, v.cacheWrite.Set)
	u.output.Report(v.output.Value, v.output.Set)
	u.thinking.Report(v.thinking.Value, v.thinking.Set)
}

// merged makes the input whole: this format reports only its uncached part as input_tokens.
func (u *usage) merged() (wire.Usage, wire.Fields) {
	return wire.Usage{
			Input:      u.input.Value + u.cacheRead.Value + u.cacheWrite.Value,
			Cached:     u.cacheRead.Value,
			CacheWrite: u.cacheWrite.Value,
			Output:     u.output.Value,
			Reasoning:  u.thinking.Value,
		}, u.input.Field(wire.FieldInput) | u.cacheRead.Field(wire.FieldCached) | u.cacheWrite.Field(wire.FieldCacheWrite) |
			u.output.Field(wire.FieldOutput) | u.thinking.Field(wire.FieldReasoning)
}

// event is what one event of a stream, or one whole answer, says.
type event struct {
	typ      []byte
	usage    usage
	hasUsage bool
	bytes    int64
	stop     []byte
	failed   bool
	errType  []byte
	message  []byte
}

func (e *event) fault() *wire.StreamError {
	return &wire.StreamError{Type: text(e.errType), Message: text(e.message)}
}

func text(raw []byte) string { return scan.Text(raw, bytes.IndexByte(raw, '\\') >= 0) }

// read reads data and reports whether it is valid JSON. What stood before a fault is kept.
func (e *event) read(data []byte) bool {
	c := scan.New(data)
	if c.Kind() != scan.Object {
		c.Skip()
		c.End()
		return c.OK()
	}
	for more := c.Open('{'); more; more = c.More('}') {
		key := c.Key()
		switch string(key) {
		case "type":
			e.typ = str(&c)
		case "message":
			if c.OpenIf('{') {
				for in := true; in; in = c.More('}') {
					e.messageField(&c, c.Key())
				}
			}
		case "delta":
			e.readDelta(&c)
		case "content_block":
			e.bytes += block(&c)
		case "error":
			e.readError(&c)
		case "input_tokens": // the whole answer of count_tokens
			e.usage.input.Report(c.Int())
			e.hasUsage = true
		default:
			e.messageField(&c, key)
		}
	}
	c.End()
	return c.OK()
}

func str(c *scan.Cursor) []byte {
	if c.Kind() != scan.String {
		c.Skip()
		return nil
	}
	raw, _ := c.Str()
	return raw
}

// messageField reads one member of a message, or of a message_delta.
func (e *event) messageField(c *scan.Cursor, key []byte) {
	switch string(key) {
	case "usage":
		if c.Kind() == scan.Object {
			e.hasUsage = true
		}
		e.usage.read(c)
	case "stop_reason":
		e.stop = str(c)
	case "content":
		if c.Kind() == scan.Array {
			for more := c.Open('['); more; more = c.More(']') {
				e.bytes += block(c)
			}
			return
		}
		c.Skip()
	default:
		c.Skip()
	}
}

// readDelta reads the delta of a content block or of the message.
func (e *event) readDelta(c *scan.Cursor) {
	if !c.OpenIf('{') {
		return
	}
	for more := true; more; more = c.More('}') {
		switch key := c.Key(); string(key) {
		case "text", "partial_json", "thinking", "refusal":
			e.bytes += c.StrLen()
		case "stop_reason":
			e.stop = str(c)
		default: // signatures and citations are no output tokens
			c.Skip()
		}
	}
}

// block counts the output text of a content block. The input of a tool call is empty where it is streamed.
func block(c *scan.Cursor) int64 {
	if !c.OpenIf('{') {
		return 0
	}
	var size int64
	for more := true; more; more = c.More('}') {
		switch string(c.Key()) {
		case "text", "thinking", "name", "refusal":
			size += c.StrLen()
		case "input":
			if raw := c.Raw(); len(raw) > len("{}") {
				size += int64(len(raw))
			}
		default:
			c.Skip()
		}
	}
	return size
}

func (e *event) readError(c *scan.Cursor) {
	if c.Kind() == scan.Object {
		e.failed = true
	}
	if !c.OpenIf('{') {
		return
	}
	for more := true; more; more = c.More('}') {
		switch string(c.Key()) {
		case "type":
			e.errType = str(c)
		case "message":
			e.message = str(c)
		default:
			c.Skip()
		}
	}
}
