package console

import (
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/projections/insight"
)

// thin separates thousands: a narrow space that does not break.
const thin = "\u202f"

// functions are what templates call.
func functions(s static) template.FuncMap {
	return template.FuncMap{
		"static": s.url, "n": count, "money": money, "ms": span, "when": when, "day": day, "clock": clock, "short": short,
		"scope": scopeName, "kind": kindName, "amount": amount, "full": full, "sentence": sentence, "plural": plural,
		"meter": meterWords, "of": meterAmount, "many": bigCount, "dollars": bigMoney, "word": word, "share": share,
	}
}

// count writes an integer with its thousands apart.
func count(v any) string {
	var n int64
	switch v := v.(type) {
	case int:
		n = int64(v)
	case int64:
		n = v
	case uint64:
		return apart(strconv.FormatUint(v, 10))
	case *int64:
		if v == nil {
			return "–"
		}
		n = *v
	default:
		return fmt.Sprint(v)
	}
	return apart(strconv.FormatInt(n, 10))
}

func apart(digits string) string {
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "−", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + thin + digits[i:]
	}
	return sign + digits
}

// span writes ms for reading.
func span(v any) string {
	switch v := v.(type) {
	case int64:
		return insight.Span(v)
	case *int64:
		if v != nil {
			return insight.Span(*v)
		}
	}
	return "–"
}

// money writes nano-dollars to the last one.
func money(v any) string {
	switch v := v.(type) {
	case int64:
		return insight.Money(v)
	case *int64:
		if v == nil {
			return "–"
		}
		return insight.Money(*v)
	}
	return fmt.Sprint(v)
}

// The times of pages are UTC.
func when(v any) string  { return written(v, "2006-01-02 15:04:05") }
func day(v any) string   { return written(v, "2006-01-02") }
func clock(v any) string { return written(v, "15:04:05.000") }

func written(v any, layout string) string {
	var at time.Time
	switch v := v.(type) {
	case time.Time:
		at = v
	case generation.Instant:
		if v != 0 {
			at = time.Unix(0, int64(v))
		}
	case string:
		parsed, err := time.Parse(time.RFC3339Nano, v)
		if err != nil {
			return v
		}
		at = parsed
	}
	if at.IsZero() {
		return "–"
	}
	return at.UTC().Format(layout)
}

// short keeps of an id what tells it from its neighbours.
func short(of any) string {
	const keep = 8
	id := ""
	if text, pointer := of.(*string); pointer && text != nil {
		id = *text
	} else if !pointer {
		id = fmt.Sprint(of)
	}
	if len(id) <= 2*keep {
		return id
	}
	return "…" + id[len(id)-keep:]
}

var scopeNames = map[string]string{"platform": "Platform", "org": "Org", "workspace": "Workspace", "principal": "Principal", "key": "Key", "model": "Model", "pool": "Pool",
	"endpoint": "Endpoint"}

func scopeName(scope any) string {
	text := fmt.Sprint(scope)
	if name := scopeNames[text]; name != "" {
		return name
	}
	return text
}

var kindNames = map[string]string{"rpm": "Requests a minute", "rps": "Requests a second", "tpm": "Tokens a minute", "concurrency": "At once", "daily": "Tokens a day",
	"spend_day": "Spend a day", "spend_month": "Spend a month", "spend": "Spend", "occupancy": "Tokens in flight", "inflight": "Requests in flight", "itpm": "Input tokens a minute",
	"otpm": "Output tokens a minute", "rps_queue": "Paced queue", "cooldown": "Pause after a provider's 429", "fairness": "Fair share", "pressure": "Pressure", "input": "Input size",
	"images": "Images"}

func kindName(kind string) string {
	if name := kindNames[kind]; name != "" {
		return name
	}
	return kind
}

// amount writes an amount of a kind of limit: money in dollars.
func amount(kind string, n int64) string {
	if strings.HasPrefix(kind, "spend") {
		return insight.Money(n)
	}
	return count(n)
}

// full is how much of a limit is used, in percent.
func full(used, limit int64) int64 {
	if limit <= 0 || used <= 0 {
		return 0
	}
	return min(100, int64(float64(used)/float64(limit)*100))
}

// plural writes a number with its noun.
func plural(n int, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + several
}

// word writes a code for reading.
func word(code any) string { return strings.ReplaceAll(fmt.Sprint(code), "_", " ") }

// share is a part of a whole in percent, for bars.
func share(part, whole int64) int64 { return full(part, whole) }
