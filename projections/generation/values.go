package generation

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
)

// Instant is an instant in ns since 1970; in JSON RFC 3339 in UTC, and null for 0.
type Instant int64

// MarshalJSON writes it.
func (i Instant) MarshalJSON() ([]byte, error) {
	if i == 0 {
		return []byte("null"), nil
	}
	return append(events.AppendTime([]byte{'"'}, int64(i)), '"'), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (i *Instant) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*i = 0
		return nil
	}
	var t time.Time
	if err := json.Unmarshal(text, &t); err != nil {
		return fmt.Errorf("read instant: %w", err)
	}
	*i = Instant(events.Nanos(t))
	return nil
}

func instantOf(text string) Instant {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return 0
	}
	return Instant(events.Nanos(t))
}

// USD is an amount of money in nano-dollars; in JSON a decimal number of dollars, exactly.
type USD int64

const nanoPerDollar = 1_000_000_000

// MarshalJSON writes it.
func (u USD) MarshalJSON() ([]byte, error) {
	sign, n := "", uint64(u)
	if u < 0 {
		sign, n = "-", -n
	}
	text := sign + strconv.FormatUint(n/nanoPerDollar, 10)
	if rest := n % nanoPerDollar; rest > 0 {
		text += "." + strings.TrimRight(fmt.Sprintf("%09d", rest), "0")
	}
	return []byte(text), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (u *USD) UnmarshalJSON(text []byte) error {
	whole, part, _ := strings.Cut(string(text), ".")
	if len(part) > 9 {
		return fmt.Errorf("read USD %s: more than nine decimals", text)
	}
	n, err := strconv.ParseInt(whole+part+strings.Repeat("0", 9-len(part)), 10, 64)
	if err != nil {
		return fmt.Errorf("read USD %s: %w", text, err)
	}
	*u = USD(n)
	return nil
}
