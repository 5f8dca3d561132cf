package policy

import (
	"math/bits"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/estimate"
	"github.com/weirhq/weir/gateway/wire"
)

// Usage is what one attempt used, as events carry it. Input that the upstream did not report is taken to be the estimate, so that
// a stream that was cut is not free; nothing is made up for an attempt of which nothing is known.
func (p *Plan) Usage(r *wire.Result) (events.Usage, events.Quality) {
	u := events.Usage{InputTokens: r.Usage.Input, CachedTokens: r.Usage.Cached, CacheWriteTokens: r.Usage.CacheWrite,
		OutputTokens: r.Usage.Output, ReasoningTokens: r.Usage.Reasoning}
	switch r.Quality {
	case wire.QualityExact:
		return u, events.QualityExact
	case wire.QualityNone:
		return events.Usage{}, events.QualityNone
	}
	if !r.Explicit.Has(wire.FieldInput) {
		u.InputTokens = max(p.Estimate.Learned, u.CachedTokens+u.CacheWriteTokens)
	}
	if r.Quality == wire.QualityPartial {
		return u, events.QualityPartial
	}
	return u, events.QualityEstimated
}

// Trains says whether usage of this quality may teach the estimator: exact, of text alone, from the local pool.
func (p *Plan) Trains(q events.Quality) bool { return p.train && q == events.QualityExact }

// Charges are what an attempt is charged, by basis: those bases that the request's claims have. own says that it went to an account of
// the org's own. Nothing is charged anew for usage of which nothing is known: what was reserved stays.
func (p *Plan) Charges(u events.Usage, q events.Quality, own bool) []events.Charge {
	if q == events.QualityNone {
		return nil
	}
	charges := make([]events.Charge, 0, 6)
	add := func(use bases, basis string, amount int64) {
		if p.bases&use != 0 {
			charges = append(charges, events.Charge{Basis: basis, Amount: min(amount, events.MaxAmount)})
		}
	}
	add(usesTotal, events.BasisTotal, u.InputTokens+u.OutputTokens)
	add(usesInput, events.BasisInput, u.InputTokens)
	add(usesOutput, events.BasisOutput, u.OutputTokens)
	add(usesFootprint, events.BasisFootprint, p.footprint(u.InputTokens, u.OutputTokens))
	add(usesCost, events.BasisCost, p.CostNano(u, own))
	add(usesWeighted, BasisWeighted, weigh(p.weights, u))
	return charges
}

// Capped says whether a spend cap is among the request's claims.
func (p *Plan) Capped() bool { return p.bases&usesCost != 0 }

// Growth is the charge of a request in mid-stream: its footprint alone. Input is the exact count where it is known, else 0. ok is
// false when nothing claims a footprint, or when it is the declared one, which streaming does not change.
func (p *Plan) Growth(input, output int64) (c events.Charge, ok bool) {
	if p.bases&usesFootprint == 0 || input == 0 && p.Estimate.IsDeclared {
		return c, false
	}
	if input == 0 {
		input = p.Estimate.Learned
	}
	return events.Charge{Basis: events.BasisFootprint, Amount: p.footprint(input, output)}, true
}

// footprint is input and declared output; without a declaration, input and what has streamed.
func (p *Plan) footprint(input, output int64) int64 {
	if p.Estimate.IsDeclared {
		output = p.Estimate.Declared
	}
	return estimate.Add(input, output)
}

// CostNano is what usage of an attempt costs, in nano-dollars: by the price that the request is held to, or at an account of the org's
// own the fee's part of that. A model without a price costs nothing.
func (p *Plan) CostNano(u events.Usage, own bool) int64 {
	if own {
		return p.part(u, p.fee)
	}
	return p.ListNano(u)
}

// ListNano is what usage costs by the price that the request is held to, whoever's the account, in nano-dollars.
func (p *Plan) ListNano(u events.Usage) int64 { return p.part(u, millionths) }

func (p *Plan) part(u events.Usage, share int64) int64 {
	if p.Price == nil {
		return 0
	}
	return cost(p.Price, u, share)
}

// tokensPerPrice is how many tokens a price is for.
const tokensPerPrice = 1_000_000

// cost is a share, in millionths, of the exact sum of tokens × price, rounded up once to a nano-dollar, at most events.MaxAmount. Cached and
// cache-write tokens are parts of the input and cost their own price instead of its; reasoning is part of the output, and costs what that does
// unless it has a price of its own.
func cost(price *authority.Price, u events.Usage, share int64) int64 {
	cached := clamp(u.CachedTokens)
	written := clamp(u.CacheWriteTokens)
	output, reasoning, thought := clamp(u.OutputTokens), int64(0), price.Reasoning
	if thought != 0 {
		reasoning = min(clamp(u.ReasoningTokens), output)
	}
	plain := max(clamp(u.InputTokens)-cached-written, 0)
	var hi, lo uint64 // at most 6 × 10^15 × 10^15
	for _, part := range [...][2]int64{{plain, price.Input}, {cached, price.CachedInput}, {written, price.CacheWrite}, {output - reasoning, price.Output}, {reasoning, thought},
		{tokensPerPrice, price.Request}} {
		h, l := bits.Mul64(uint64(part[0]), uint64(min(max(part[1], 0), events.MaxAmount)))
		var carry uint64
		lo, carry = bits.Add64(lo, l, 0)
		hi += h + carry
	}
	carried, lo := bits.Mul64(lo, uint64(share))
	hi = hi*uint64(share) + carried // below 2^57: the whole is below 2^121
	const unit = tokensPerPrice * millionths
	if hi >= unit {
		return events.MaxAmount
	}
	nano, rest := bits.Div64(hi, lo, unit)
	if rest > 0 {
		nano++
	}
	return int64(min(nano, events.MaxAmount))
}

// clamp brings a count into what can be charged.
func clamp(tokens int64) int64 { return min(max(tokens, 0), estimate.MaxTokens) }

// weightUnit is the weight of a token that counts once.
const weightUnit = 1000

// weigh is usage in weighted tokens, rounded up.
func weigh(w authority.Weights, u events.Usage) int64 {
	cached := min(clamp(u.CachedTokens), clamp(u.InputTokens))
	sum := uint64(0)
	for _, part := range [...][2]int64{{clamp(u.InputTokens) - cached, w.Input}, {cached, w.Cached}, {clamp(u.OutputTokens), w.Output}} {
		sum += uint64(estimate.Multiply(part[0], part[1])) // at most 3 × MaxTokens
	}
	return min(int64((sum+weightUnit-1)/weightUnit), estimate.MaxTokens)
}
