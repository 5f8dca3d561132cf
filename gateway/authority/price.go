package authority

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"
)

// Price is a version of a model's price, in nano-dollars a million tokens (so USD × 10^9), exact.
type Price struct {
	Version     string
	Input       int64
	CachedInput int64
	CacheWrite  int64
	Output      int64
	Reasoning   int64 // of output tokens that were reasoning; 0: what other output costs
	Request     int64 // nano-dollars a request
}

// Name names a price by what it is, so that every gateway gives the same price the same name. It is the version of prices that are
// given none.
func (p *Price) Name() string {
	text := fmt.Appendf(nil, "%d %d %d %d %d", p.Input, p.CachedInput, p.CacheWrite, p.Output, p.Request)
	if p.Reasoning != 0 {
		text = fmt.Appendf(text, " %d", p.Reasoning)
	}
	sum := sha256.Sum256(text)
	return "p-" + hex.EncodeToString(sum[:4])
}

// DatedPrice is a price of the files and when it begins.
type DatedPrice struct {
	Price
	From time.Time
}

// PriceAt is the model's price at an instant: of its dated ones the newest that has begun, or else the one without a date. nil: it has
// none.
func (m *Model) PriceAt(at time.Time) *Price {
	price := m.Price
	for i := range m.Prices {
		if m.Prices[i].From.After(at) {
			break
		}
		price = &m.Prices[i].Price
	}
	return price
}

// Price is the version as a price.
func (v *PriceVersion) Price() *Price {
	return &Price{Version: v.Version, Input: v.Input, CachedInput: v.CachedInput, CacheWrite: v.CacheWrite, Output: v.Output, Reasoning: v.Reasoning,
		Request: v.Request}
}
