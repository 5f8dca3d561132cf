// Package estimate says how many tokens a request is taken for before its exact usage is known. There are two estimates:
// the learned one, near the truth, for the gates that protect a model; and the reservation, an upper bound in bytes, for
// rate windows and provider pools. All arithmetic is in integers and stops at MaxTokens instead of overflowing.
package estimate

import (
	"fmt"
	"math/bits"

	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/projections/estimator"
)

const (
	// MaxTokens is the largest estimate: every meter takes it, and nothing real comes near.
	MaxTokens = 1_000_000_000_000
	// PartTokens is what an image or a document counts in a reservation.
	PartTokens = 65_536
	// MessageTokens is the least that a message counts in the learned estimate.
	MessageTokens = 4
	// DefaultMaxOutput is the output bound of a model that declares none.
	DefaultMaxOutput = 32_768
	// MaxCounted is the most that an output limit counts in a reservation, per choice.
	MaxCounted = 32_768
	// BytesPerToken is how many streamed bytes count as one token of output.
	BytesPerToken = 4
)

// Ratio is tokens per byte of prompt text, in millionths, as learned from the log.
type Ratio = estimator.Ratio

// FirstRatio is where every model starts.
const FirstRatio = estimator.FirstRatio

const unit = 1_000_000

// Learned estimates the input tokens of a text: bytes × ratio, rounded up, but at least MessageTokens for each message.
func Learned(ratio Ratio, textBytes, messages int64) int64 {
	hi, lo := bits.Mul64(uint64(max(textBytes, 0)), uint64(max(ratio, 0)))
	tokens := int64(MaxTokens)
	if hi == 0 && lo <= MaxTokens*unit {
		tokens = int64((lo + unit - 1) / unit)
	}
	return max(tokens, Multiply(MessageTokens, max(messages, 0)))
}

// Reservation is the input estimate in bytes: the body without inline base64, and PartTokens for each image or document.
func Reservation(bodyBytes, base64Bytes, parts int64) int64 {
	return Add(max(bodyBytes-base64Bytes, 0), Multiply(PartTokens, max(parts, 0)))
}

// Streamed estimates the tokens of output text that has passed, rounded down, but at least one for any.
func Streamed(outputBytes int64) int64 {
	if outputBytes <= 0 {
		return 0
	}
	return max(outputBytes/BytesPerToken, 1)
}

// Add adds two counts, up to MaxTokens.
func Add(a, b int64) int64 {
	a, b = min(a, MaxTokens), min(b, MaxTokens)
	return min(a+b, MaxTokens)
}

// Multiply multiplies two counts that are not negative, up to MaxTokens.
func Multiply(a, b int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || lo > MaxTokens {
		return MaxTokens
	}
	return int64(lo)
}

// Model is what the estimates need to know of a model. Zero means not configured.
type Model struct {
	MaxOutput     int64 // the model's own max_output_tokens
	ContextWindow int64 // input and output together
	MaxInput      int64 // the longest input that is admitted
	DefaultOutput int64 // for requests without a limit, where an endpoint sets one; capped at MaxOutput
	Local         bool  // self-hosted: without MaxOutput it has neither bound nor cap
	MaxUndeclared int64 // lowers the output, all choices together, of requests without a limit, also where nothing else bounds it
}

// Max is the output bound of one choice: the model's own maximum, or DefaultMaxOutput. It is 0, meaning none, for a local
// model without one.
func (m Model) Max() int64 {
	if m.MaxOutput > 0 || m.Local {
		return m.MaxOutput
	}
	return DefaultMaxOutput
}

// Default is the output of one choice of a short request without a limit.
func (m Model) Default() int64 { return m.undeclared(0, false) }

// longest is what unknown input is taken for: all that the model holds, or all that is admitted where that is less. 0: neither is known.
func (m Model) longest() int64 {
	if m.MaxInput > 0 && (m.ContextWindow == 0 || m.MaxInput < m.ContextWindow) {
		return m.MaxInput
	}
	return m.ContextWindow
}

// Estimate is one request in tokens, for the claims that it makes.
type Estimate struct {
	Learned     int64 // input, for the gates of a model, itpm and daily
	Reservation int64 // input, for tpm and pools
	Declared    int64 // output that the client declared, all choices: occupancy and daily; 0 if it declared none
	IsDeclared  bool
	Bound       int64 // to be written into the body for each choice; 0: leave it as it is
	Counted     int64 // output that tpm and pools count, all choices
	Held        int64 // output that a balance hold counts, all choices
}

// Of estimates a request. The error, if any, is a *wire.BadRequest: an output limit above the model's.
func Of(r *wire.Request, ratio Ratio, m Model) (Estimate, error) {
	e := Estimate{
		Learned:     Add(Learned(ratio, r.TextBytes, r.Messages), r.TokenIDs),
		Reservation: Reservation(int64(len(r.Body)), r.Base64Bytes, r.Images+r.Documents),
	}
	if r.UnknownInput != "" {
		e.Learned = max(e.Learned, m.longest())
		e.Reservation = max(e.Reservation, m.longest())
	}
	if !r.Op.Generates() {
		return e, nil
	}
	limit := m.Max()
	if r.Output.Declared {
		if limit > 0 && r.Output.Value > limit {
			return e, wire.Parameter(r.Output.Field, fmt.Sprintf("%s is %d: it must be at most %d, the maximum output of the model %s",
				r.Output.Field, r.Output.Value, limit, r.Model))
		}
		e.IsDeclared = true
		e.Declared = Multiply(r.Output.Value, r.Choices)
		e.Counted = Multiply(min(r.Output.Value, MaxCounted), r.Choices)
		e.Held = e.Declared
		return e, nil
	}
	bound := m.undeclared(e.Learned, r.UnknownInput != "")
	if r.Output.Field == "" { // a limit that says nothing, such as -1, is the client's all the same
		if m.MaxUndeclared > 0 {
			bound = min(bound, max(m.MaxUndeclared/max(r.Choices, 1), 1))
		}
		if limit > 0 || m.DefaultOutput > 0 || m.MaxUndeclared > 0 {
			e.Bound = bound
		}
	}
	e.Counted = Multiply(min(bound, MaxCounted), r.Choices)
	e.Held = e.Counted
	return e, nil
}

// undeclared is the output of one choice when the client sets no limit: the default or the maximum, lowered to what the
// context window leaves beside the input, but at least one token. With unknown input there is nothing to lower it to.
func (m Model) undeclared(input int64, unknown bool) int64 {
	limit := m.Max()
	if limit == 0 {
		limit = DefaultMaxOutput
		if m.DefaultOutput > 0 {
			limit = m.DefaultOutput
		}
	} else if m.DefaultOutput > 0 {
		limit = min(limit, m.DefaultOutput)
	}
	if m.ContextWindow > 0 && !unknown {
		limit = min(limit, m.ContextWindow-input)
	}
	return max(limit, 1)
}
