package usage

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/weirhq/weir/events"
)

// Type is the CloudEvents type of a line.
const Type = "weir.usage.v1"

// State says what made a line.
type State string

// The states of lines.
const (
	Settled   State = "settled"   // the attempt's final
	Unsettled State = "unsettled" // no final came within 15 minutes of its end: it counts as nothing
	Corrected State = "corrected" // an operator's correction
)

// Instant is an instant in ns since 1970; in JSON RFC 3339 in UTC.
type Instant int64

// MarshalJSON writes it.
func (i Instant) MarshalJSON() ([]byte, error) {
	return append(events.AppendTime([]byte{'"'}, int64(i)), '"'), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (i *Instant) UnmarshalJSON(text []byte) error {
	var t time.Time
	if err := json.Unmarshal(text, &t); err != nil {
		return fmt.Errorf("read instant: %w", err)
	}
	*i = Instant(events.Nanos(t))
	return nil
}

// Amounts are what a line adds to what was said before: tokens by kind, and nano-dollars. Those of corrections may be negative.
type Amounts struct {
	InputTokens      int64 `json:"input_tokens"` // cached and cache-write ones included
	CachedTokens     int64 `json:"cached_tokens"`
	CacheWriteTokens int64 `json:"cache_write_tokens"`
	OutputTokens     int64 `json:"output_tokens"` // reasoning ones included
	ReasoningTokens  int64 `json:"reasoning_tokens"`
	CostNano         int64 `json:"cost_nano"`
}

// Line is one billing line. Its JSON is the data of an event of the stream USAGE; schemas/usage has its form.
type Line struct {
	ID       string  `json:"id"`       // the final's event id; a correction's is that of the line which it corrects
	Revision int64   `json:"revision"` // 0; of a correction higher: of the lines with one id the highest holds
	State    State   `json:"state"`
	Time     Instant `json:"time"` // the log's

	Org        events.Org       `json:"org"`
	Workspace  string           `json:"workspace,omitempty"`
	Principal  string           `json:"principal,omitempty"`
	Key        string           `json:"key,omitempty"` // the key's id
	Model      string           `json:"model,omitempty"`
	Deployment string           `json:"deployment,omitempty"`
	Operation  string           `json:"operation,omitempty"`
	Request    events.RequestID `json:"request"`
	Attempt    int64            `json:"attempt"`

	Quality      string       `json:"quality"` // of the usage: exact, partial, estimated, none
	Usage        events.Usage `json:"usage"`   // the whole, as this revision has it
	CostNano     int64        `json:"cost_nano"`
	Change       Amounts      `json:"change"` // against the revision before; of revision 0 the whole
	PriceVersion string       `json:"price_version,omitempty"`
	BYOK         bool         `json:"byok,omitempty"`      // it went to a provider account of the org's own
	ListNano     int64        `json:"list_nano,omitempty"` // what it would have cost at the house's; the cost is what is charged
	Reason       string       `json:"reason,omitempty"`    // of a correction

	Seq uint64 `json:"seq"` // place in the log of the event that it comes from; of an unsettled one its reserve's
}

// EventID is the line's CloudEvents id, unique among all lines: its ID, and of a correction the ID, a dot and the revision.
func (l *Line) EventID() string {
	if l.Revision == 0 {
		return l.ID
	}
	return l.ID + "." + strconv.FormatInt(l.Revision, 10)
}

// Encode gives the line's JSON, the same bytes for the same line.
func (l *Line) Encode() []byte {
	text, err := json.Marshal(l)
	if err != nil { // cannot be: a line is strings and integers
		panic("usage: " + err.Error())
	}
	return text
}

// Decode reads a line's JSON.
func Decode(text []byte) (Line, error) {
	var l Line
	if err := json.Unmarshal(text, &l); err != nil {
		return Line{}, fmt.Errorf("read a billing line: %w", err)
	}
	if l.ID == "" || l.Request == "" {
		return Line{}, fmt.Errorf("read a billing line: no id or no request")
	}
	return l, nil
}

// amounts gives usage and cost side by side.
func amounts(u events.Usage, cost int64) Amounts {
	return Amounts{u.InputTokens, u.CachedTokens, u.CacheWriteTokens, u.OutputTokens, u.ReasoningTokens, cost}
}

// Plus gives a sum. Sums stop at the ends of the range.
func (a Amounts) Plus(b Amounts) Amounts {
	return Amounts{
		add(a.InputTokens, b.InputTokens), add(a.CachedTokens, b.CachedTokens), add(a.CacheWriteTokens, b.CacheWriteTokens),
		add(a.OutputTokens, b.OutputTokens), add(a.ReasoningTokens, b.ReasoningTokens), add(a.CostNano, b.CostNano),
	}
}

// Minus gives a difference.
func (a Amounts) Minus(b Amounts) Amounts {
	return a.Plus(Amounts{-b.InputTokens, -b.CachedTokens, -b.CacheWriteTokens, -b.OutputTokens, -b.ReasoningTokens, -b.CostNano})
}

func add(a, b int64) int64 {
	c := a + b
	switch {
	case a > 0 && b > 0 && c < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && c >= 0:
		return -math.MaxInt64
	}
	return c
}
