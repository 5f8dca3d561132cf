package provider

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/gateway/wire/scan"
)

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 8<<10); return &b }}

var errTooLarge = errors.New("reading the body: it is larger than 64 MiB")

// readBody reads the whole body into buf, growing it as needed.
func readBody(r *http.Request, buf []byte) ([]byte, error) {
	if r.ContentLength > MaxBody {
		return buf, errTooLarge
	}
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := r.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case err == io.EOF:
			return buf, nil
		case err != nil:
			return buf, fmt.Errorf("reading the body: %w", err)
		case len(buf) > MaxBody:
			return buf, errTooLarge
		}
	}
}

// request is what an answer depends on. It is read apart from the gateway's own parser, whose judge this is.
type request struct {
	size         int
	model        string
	stream       bool
	includeUsage bool
	limit        int64 // 0 without one
	choices      int64
	prompts      int64
	base64       bool
}

func (r *request) declared() int64 { return r.limit * r.choices * r.prompts }

func (r *request) read(op wire.Operation, body []byte) error {
	r.size, r.choices, r.prompts = len(body), 1, 1
	c := scan.New(body)
	for more := c.Open('{'); more; more = c.More('}') {
		switch string(c.Key()) {
		case "model":
			if c.Kind() != scan.String {
				return errors.New("model must be a string")
			}
			r.model = scan.Text(c.Str())
		case "stream":
			r.stream = string(c.Raw()) == "true"
		case "stream_options":
			r.readOptions(&c)
		case "max_tokens", "max_completion_tokens", "max_output_tokens":
			if v, ok := c.Int(); ok && v > 0 {
				r.limit = min(v, 1<<31)
			}
		case "n":
			if v, ok := c.Int(); ok && v > 0 && v <= 128 {
				r.choices = v
			}
		case "input", "prompt", "documents":
			r.countPrompts(&c, op)
		case "encoding_format":
			r.base64 = string(c.Raw()) == `"base64"`
		default:
			c.Skip()
		}
	}
	c.End()
	if what, at := c.Fault(); what != "" {
		return fmt.Errorf("the body is not valid JSON: %s at byte %d", what, at)
	}
	if r.model == "" {
		return errors.New("you must provide a model parameter")
	}
	return nil
}

func (r *request) readOptions(c *scan.Cursor) {
	if !c.OpenIf('{') {
		return
	}
	for more := true; more; more = c.More('}') {
		if string(c.Key()) == "include_usage" {
			r.includeUsage = string(c.Raw()) == "true"
			continue
		}
		c.Skip()
	}
}

// countPrompts counts the entries of a list, but takes a list of token numbers as one prompt.
func (r *request) countPrompts(c *scan.Cursor, op wire.Operation) {
	if op == wire.Responses || c.Kind() != scan.Array {
		c.Skip()
		return
	}
	count, numbers := int64(0), false
	for more := c.Open('['); more; more = c.More(']') {
		numbers = numbers || c.Kind() == scan.Number
		c.Skip()
		count++
	}
	if !numbers {
		r.prompts = max(count, 1)
	}
}
