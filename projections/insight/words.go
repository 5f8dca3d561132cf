package insight

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
)

// Number writes an integer with its thousands apart: 1,234,567.
func Number(n int64) string {
	text := strconv.FormatInt(n, 10)
	sign := ""
	if text[0] == '-' {
		sign, text = "-", text[1:]
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return sign + text
}

// Span writes ms for reading, rounded up: 250 ms, 4.1 s, 3 min 20 s, 7 h 5 min.
func Span(ms int64) string {
	switch {
	case ms < 1000:
		return strconv.FormatInt(ms, 10) + " ms"
	case ms <= 60_000:
		tenths := (ms + 99) / 100
		if tenths%10 == 0 {
			return strconv.FormatInt(tenths/10, 10) + " s"
		}
		return fmt.Sprintf("%d.%d s", tenths/10, tenths%10)
	case ms <= 3_600_000:
		return twoUnits((ms+999)/1000, "min", "s")
	default:
		return twoUnits((ms+59_999)/60_000, "h", "min")
	}
}

// twoUnits writes a number of the smaller unit, sixty of which are one of the larger.
func twoUnits(n int64, large, small string) string {
	if n%60 == 0 {
		return fmt.Sprintf("%d %s", n/60, large)
	}
	return fmt.Sprintf("%d %s %d %s", n/60, large, n%60, small)
}

// Money writes nano-dollars as dollars, to the last one and without trailing zeros: $0.000312, $12.00.
func Money(nano int64) string {
	sign, n := "", uint64(nano)
	if nano < 0 {
		sign, n = "-", -n
	}
	text := strings.TrimRight(fmt.Sprintf("%d.%09d", n/1_000_000_000, n%1_000_000_000), "0")
	for strings.IndexByte(text, '.')+3 > len(text) {
		text += "0"
	}
	return sign + "$" + text
}

// ShortID gives the part of a request id that tells it from its neighbours: the last 8 characters of a UUIDv7 are chance.
func ShortID(id events.RequestID) string { return string(id[max(0, len(id)-shortLength):]) }

const shortLength = 8

// stamp writes an instant as the log does; nothing for 0.
func stamp(ns int64) string {
	if ns == 0 {
		return ""
	}
	return string(events.AppendTime(nil, ns))
}

// clock writes an instant's time of day, UTC, to the ms.
func clock(ns int64) string { return time.Unix(0, ns).UTC().Format("15:04:05.000") }

// unit is what a meter counts in.
type unit uint8

const (
	unitCount unit = iota
	unitNano       // nano-dollars
	unitMS
)

// unitOf tells a meter's unit by its kind and its name: only money and waits are no counts.
func unitOf(kind events.MeterKind, meter events.Meter) unit {
	if kind == events.Pace || kind == events.Pause {
		return unitMS
	}
	_, _, dimension := meter.Split()
	switch {
	case kind == events.Balance, dimension == "balance", strings.HasPrefix(dimension, "spend"):
		return unitNano
	case dimension == "pause", dimension == "pace":
		return unitMS
	}
	return unitCount
}

func (u unit) write(n int64) string {
	switch u {
	case unitNano:
		return Money(n)
	case unitMS:
		return Span(n)
	}
	return Number(n)
}

// admission says in words how a reserve was admitted. The reserve may be nil where it is not known.
func admittedWords(v *events.Verdict, d *events.Reserve) string {
	text := "admitted"
	if v.ParkedMS > 0 {
		text += " after waiting " + Span(v.ParkedMS)
	}
	if v.WaitMS > 0 {
		text += ", to be sent in " + Span(v.WaitMS)
	}
	if d == nil {
		return text
	}
	if i := fullest(v, d); i >= 0 {
		c := &d.Claims[i]
		u := unitOf(c.Kind, c.Meter)
		text += fmt.Sprintf("; fullest %s %s of %s", c.Meter, u.write(v.Used[i]), u.write(c.Limit))
	}
	for _, i := range v.Shadow {
		if i < len(d.Claims) {
			text += "; shadow " + string(d.Claims[i].Meter) + " would have refused"
		}
	}
	return text
}

// fullest gives the claim whose meter stands nearest to its limit; −1 if none has one.
func fullest(v *events.Verdict, d *events.Reserve) int {
	best, share := -1, -1.0
	for i := range d.Claims {
		c := &d.Claims[i]
		if i >= len(v.Used) || !c.HasLimit || c.Limit <= 0 || c.Kind == events.Pace {
			continue
		}
		if s := float64(v.Used[i]) / float64(c.Limit); s > share {
			best, share = i, s
		}
	}
	return best
}

// refusedWords says in words why a reserve was refused.
func refusedWords(v *events.Verdict) string {
	text := "refused "
	if v.ParkedMS > 0 {
		text = "refused after waiting " + Span(v.ParkedMS) + ": "
	}
	r := v.Refusal
	if r == nil {
		return "refused"
	}
	return text + refusalWords(r)
}

func refusalWords(r *events.Refusal) string {
	text := string(r.Meter)
	u := unitOf(events.MeterUnknown, r.Meter)
	switch r.Reason {
	case events.OverLimit:
		switch {
		case u == unitMS:
			text += " " + Span(r.Used) + " behind"
		default:
			text += " " + u.write(r.Used) + " of " + u.write(r.Limit)
			if r.Requested != 1 {
				text += ", asks " + u.write(r.Requested)
			}
		}
	case events.TooLarge:
		text += " asks " + u.write(r.Requested) + " of " + u.write(r.Limit) + ", never fits"
	case events.Paused:
		text += " paused"
	case events.NoBalance:
		text += " has less than " + u.write(r.Requested) + " left, " + u.write(r.Used) + " held"
	case events.StaleFence:
		text += "made on an older version of the org's authority"
	case events.Recovering:
		text += "recovering: windows count as full"
	case events.Released:
		text += "its request has ended"
	case events.Invalid:
		text += "invalid"
		if r.Claim >= 0 {
			text = fmt.Sprintf("claim %d, %s, is invalid", r.Claim, r.Meter)
		}
	default:
		text += " " + string(r.Reason)
	}
	if r.HasRetry {
		text += ", retry in " + Span(r.RetryMS)
	}
	return text
}
