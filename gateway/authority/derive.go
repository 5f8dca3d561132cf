package authority

// Certified are the limits that a model was measured to hold, a replica.
type Certified struct {
	AdmitBudgetTokens int64
	MaxModelLen       int64 // the longest context that it serves
	MaxInputTokens    int64
	ITPMCeiling       int64 // input tokens a minute
	OTPMCeiling       int64 // output tokens a minute
	SellableRPM       int64
}

// KeyDefaults are suggested limits for a serverless key.
type KeyDefaults struct {
	OccupancyShare        int64 // in millionths
	InputTokensPerMinute  int64
	OutputTokensPerMinute int64
	RequestsPerMinute     int64
}

const (
	millionths    = 1_000_000
	baselineShare = 400_000 // a key gets at least two fifths, because keys do not peak together
)

// DeriveKeyDefaults suggests a key's limits from a model's certified ones. The share is what the longest context needs of the
// budget, at least 0.4 and at most 1. Input tokens are that share of the ceiling, but at least two of the largest inputs and
// at most the ceiling. Output tokens are that share of the ceiling, requests twice what can be sold. Everything rounds down.
func DeriveKeyDefaults(c Certified) KeyDefaults {
	share := int64(baselineShare)
	if c.AdmitBudgetTokens > 0 {
		share = max(share, min(ScaleDown(max(c.MaxModelLen, 0), millionths, c.AdmitBudgetTokens), millionths))
	}
	of := func(ceiling int64) int64 { return ScaleDown(max(ceiling, 0), share, millionths) }
	return KeyDefaults{
		OccupancyShare:        share,
		InputTokensPerMinute:  min(max(of(c.ITPMCeiling), 2*c.MaxInputTokens), c.ITPMCeiling),
		OutputTokensPerMinute: of(c.OTPMCeiling),
		RequestsPerMinute:     2 * c.SellableRPM,
	}
}
