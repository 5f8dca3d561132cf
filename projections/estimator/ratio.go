package estimator

import "math/bits"

// Ratio is tokens per byte of prompt text, in millionths.
type Ratio int64

const (
	// FirstRatio is where every model starts: one token for 3.2 bytes.
	FirstRatio Ratio = 312_500
	// MinRatio and MaxRatio bound what can be learned.
	MinRatio Ratio = 50_000
	MaxRatio Ratio = 1_000_000

	unit   = 1_000_000
	weight = 5 // a new observation weighs one fifth
)

// Observe returns the ratio after one exact input count for a text, rounded down. An observation that says nothing
// (no bytes or no tokens) leaves it as it is.
func Observe(ratio Ratio, textBytes, exactInput int64) Ratio {
	if textBytes <= 0 || exactInput <= 0 {
		return ratio
	}
	sample := MaxRatio
	if exactInput < textBytes { // so that the product fits: the ratio is below one
		hi, lo := bits.Mul64(uint64(exactInput), unit)
		q, _ := bits.Div64(hi, lo, uint64(textBytes))
		sample = clamp(Ratio(q))
	}
	return clamp((ratio*(weight-1) + sample) / weight)
}

func clamp(r Ratio) Ratio { return min(max(r, MinRatio), MaxRatio) }
