package wire

// MaxUsage is the largest token count believed from an upstream; a higher or negative one counts as absent.
const MaxUsage = 1 << 40

// Usage is what one call used, in tokens. Input is the whole input: cached and cache-write tokens are part of it. Output
// is the whole output: reasoning is part of it.
type Usage struct {
	Input      int64
	Cached     int64
	CacheWrite int64
	Output     int64
	Reasoning  int64
}

// Fields is a set of usage fields.
type Fields uint8

// The fields of Usage, for Result.Explicit.
const (
	FieldInput Fields = 1 << iota
	FieldCached
	FieldCacheWrite
	FieldOutput
	FieldReasoning
)

// Has says whether all of f are in the set.
func (s Fields) Has(f Fields) bool { return s&f == f }

// Quality says how far a Usage can be trusted.
type Quality uint8

const (
	// QualityNone: nothing was reported and nothing was streamed.
	QualityNone Quality = iota
	// QualityEstimated: nothing was reported; Output is estimated from what was streamed, Input is not known.
	QualityEstimated
	// QualityPartial: the upstream reported some, but not its final numbers; Output is the higher of those and the estimate.
	QualityPartial
	// QualityExact: the upstream's final usage was read.
	QualityExact
)

// String gives the word that events carry.
func (q Quality) String() string {
	return [...]string{"none", "estimated", "partial", "exact"}[q]
}

// Tally merges reported values of one number: the last explicit one counts, nothing is summed, and an absent or lower
// value never replaces a higher one.
type Tally struct {
	Value int64
	Set   bool
}

// Report takes one explicit value. Negative ones and those above MaxUsage are ignored.
func (t *Tally) Report(v int64, ok bool) {
	if !ok || v < 0 || v > MaxUsage {
		return
	}
	t.Set = true
	t.Value = max(t.Value, v)
}

// Field returns f when a value was reported, and nothing otherwise.
func (t *Tally) Field(f Fields) Fields {
	if t.Set {
		return f
	}
	return 0
}

// StreamError is an error that an upstream reported inside a response.
type StreamError struct {
	Type    string
	Code    string
	Message string
}

// Result is what one response said, as far as it was read.
type Result struct {
	Usage        Usage
	Explicit     Fields // what of Usage the upstream reported itself
	Quality      Quality
	FinishReason string // in the upstream's words; "" when it gave none
	OutputBytes  int64  // UTF-8 bytes of text, reasoning and tool arguments seen
	OutputTokens int64  // the estimate from OutputBytes
	Terminal     bool   // the event or byte that ends a complete response came
	Cut          bool   // a stream ended inside an event
	Malformed    int    // events or bodies that could not be read; they were passed on
	Err          *StreamError
}

// Grade completes a Result whose Usage and Explicit hold what was reported. final says that the report was the upstream's
// last word; needs are the fields that it must have for that; outputTokens is the estimate from OutputBytes. A report of
// no input at all, or of no output where some streamed, is a placeholder and not believed.
func (r *Result) Grade(final bool, needs Fields, outputTokens int64) {
	r.OutputTokens = outputTokens
	if r.Usage.Input == 0 {
		r.Explicit &^= FieldInput
	}
	if r.Usage.Output == 0 && outputTokens > 0 {
		r.Explicit &^= FieldOutput
	}
	switch {
	case final && r.Explicit.Has(needs):
		r.Quality = QualityExact
		return
	case r.Explicit&(FieldInput|FieldOutput) != 0:
		r.Quality = QualityPartial
	case outputTokens > 0:
		r.Quality = QualityEstimated
	default:
		r.Quality = QualityNone
	}
	if outputTokens > r.Usage.Output {
		r.Usage.Output = outputTokens
		r.Explicit &^= FieldOutput
	}
}
