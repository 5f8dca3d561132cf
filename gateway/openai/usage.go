package openai

import (
	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/gateway/wire/scan"
)

// usage holds the numbers as they were reported, each merged by itself.
type usage struct {
	input, cached, cacheWrite, output, reasoning, total wire.Tally
}

// read reads a usage object under any of the names that servers of this format give its fields.
func (u *usage) read(c *scan.Cursor) {
	if !c.OpenIf('{') {
		return
	}
	for more := true; more; more = c.More('}') {
		switch string(c.Key()) {
		case "prompt_tokens", "input_tokens":
			u.input.Report(c.Int())
		case "completion_tokens", "output_tokens":
			u.output.Report(c.Int())
		case "total_tokens":
			u.total.Report(c.Int())
		case "prompt_tokens_details", "input_tokens_details", "completion_tokens_details", "output_tokens_details":
			u.details(c)
		case "prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens":
			u.cached.Report(c.Int())
		case "cache_creation_input_tokens":
			u.cacheWrite.Report(c.Int())
		case "reasoning_tokens":
			u.reasoning.Report(c.Int())
		default:
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
		case "cached_tokens":
			u.cached.Report(c.Int())
		case "cache_write_tokens", "cache_creation_tokens":
			u.cacheWrite.Report(c.Int())
		case "reasoning_tokens":
			u.reasoning.Report(c.Int())
		default:
			c.Skip()
		}
	}
}

func (u *usage) merge(v *usage) {
	u.input.Report(v.input.Value, v.input.Set)
	u.cached.Report(v.cached.Value, v.cached.Set)
	u.cacheWrite.Report(v.cacheWrite.Value, v.cacheWrite.Set)
	u.output.Report(v.output.Value, v.output.Set)
	u.reasoning.Report(v.reasoning.Value, v.reasoning.Set)
	u.total.Report(v.total.Value, v.total.Set)
}

// merged gives the numbers their meaning.
func (u *usage) merged(o Options) (wire.Usage, wire.Fields) {
	input := u.input
	if !o.Operation.Generates() && !input.Set { // embeddings and rerank: the total is all input
		input = u.total
	}
	v := wire.Usage{Input: input.Value, Cached: u.cached.Value, CacheWrite: u.cacheWrite.Value,
		Output: u.output.Value, Reasoning: u.reasoning.Value}
	if v.Cached+v.CacheWrite > v.Input && input.Set { // more than the whole: this server counts them beside it
		v.Input += v.Cached + v.CacheWrite
	}
	if o.ReasoningApart && u.output.Set {
		if u.total.Set && u.total.Value >= v.Input+v.Output {
			v.Output = u.total.Value - v.Input
		} else {
			v.Output += v.Reasoning
		}
	}
	return v, input.Field(wire.FieldInput) | u.cached.Field(wire.FieldCached) | u.cacheWrite.Field(wire.FieldCacheWrite) |
		u.output.Field(wire.FieldOutput) | u.reasoning.Field(wire.FieldReasoning)
}
