package bedrock

import (
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"github.com/weirhq/weir/gateway/relay"
	"github.com/weirhq/weir/gateway/wire"
)

// version is the version of Anthropic's format at Bedrock.
const version = "bedrock-2023-05-31"

const eventStream = "application/vnd.amazon.eventstream"

// rewrite makes an Anthropic request one that invokes a model: what says the model and whether to stream moves from the body into the path,
// and the versions from the headers into the body.
func (d *dialect) rewrite(c *relay.Call) (err error) {
	c.URL = d.model + "/invoke"
	accept := "application/json"
	if c.Stream {
		c.URL, accept = d.model+"/invoke-with-response-stream", eventStream
	}
	b := c.Body
	for _, field := range [...]string{"model", "stream"} {
		if b, err = sjson.DeleteBytes(b, field); err != nil {
			return fmt.Errorf("leave out %s: %w", field, err)
		}
	}
	if !gjson.GetBytes(b, "anthropic_version").Exists() {
		if b, err = sjson.SetBytes(b, "anthropic_version", version); err != nil {
			return fmt.Errorf("set anthropic_version: %w", err)
		}
	}
	if beta := c.Header["Anthropic-Beta"]; len(beta) > 0 && !gjson.GetBytes(b, "anthropic_beta").Exists() {
		if b, err = sjson.SetBytes(b, "anthropic_beta", split(beta)); err != nil {
			return fmt.Errorf("set anthropic_beta: %w", err)
		}
	}
	if d.op == wire.CountTokens {
		c.URL = d.model + "/count-tokens"
		b, err = counted(b)
	}
	c.Body = b
	delete(c.Header, "Anthropic-Beta")
	delete(c.Header, "Anthropic-Version")
	c.Header["Accept"] = []string{accept}
	return err
}

// counted asks how many tokens a request has: it goes in whole, as the text of one field. What is counted must be a request that could be
// made, and so has a limit.
func counted(b []byte) (_ []byte, err error) {
	if !gjson.GetBytes(b, "max_tokens").Exists() {
		if b, err = sjson.SetBytes(b, "max_tokens", 1); err != nil {
			return b, fmt.Errorf("set max_tokens: %w", err)
		}
	}
	const head, tail = `{"input":{"invokeModel":{"body":"`, `"}}}`
	out := make([]byte, 0, len(head)+base64.StdEncoding.EncodedLen(len(b))+len(tail))
	out = base64.StdEncoding.AppendEncode(append(out, head...), b)
	return append(out, tail...), nil
}

// split reads a list of values from headers.
func split(lines []string) (all []string) {
	for _, line := range lines {
		for v := range strings.SplitSeq(line, ",") {
			if v = strings.TrimSpace(v); v != "" {
				all = append(all, v)
			}
		}
	}
	return all
}
