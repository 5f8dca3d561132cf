package refusal

import (
	"net/http"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/wire"
)

// ExposedHeaders are those that scripts of other origins may read: access-control-expose-headers.
const ExposedHeaders = "x-request-id, request-id, retry-after, retry-after-ms, x-should-retry, " +
	"x-tm-error-origin, x-tm-limit-scope, x-tm-limit-kind, x-tm-limit-id, " +
	"x-tm-remaining-rpm, x-tm-remaining-tpm, x-tm-queue-ms, x-tm-admission-mode, x-tm-authorization-mode, " +
	"x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, " +
	"x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, " +
	"anthropic-ratelimit-requests-limit, anthropic-ratelimit-requests-remaining, anthropic-ratelimit-requests-reset, " +
	"anthropic-ratelimit-tokens-limit, anthropic-ratelimit-tokens-remaining, anthropic-ratelimit-tokens-reset, " +
	"anthropic-ratelimit-input-tokens-limit, anthropic-ratelimit-input-tokens-remaining, anthropic-ratelimit-input-tokens-reset, " +
	"anthropic-ratelimit-output-tokens-limit, anthropic-ratelimit-output-tokens-remaining, anthropic-ratelimit-output-tokens-reset"

// Expose lets scripts of other origins read the limit headers.
func Expose(h http.Header) { h.Set("access-control-expose-headers", ExposedHeaders) }

// Headers writes the answer's headers.
func (a *Answer) Headers(h http.Header) {
	set := func(name, value string) {
		if value != "" {
			h.Set(name, visible(value))
		}
	}
	set("x-tm-error-origin", a.Origin)
	set("x-tm-limit-scope", a.Scope)
	set("x-tm-limit-kind", a.Kind)
	set("x-tm-limit-id", a.LimitID)
	if a.RetryMS > 0 {
		h.Set("retry-after", itoa((a.RetryMS+secondMS-1)/secondMS))
		h.Set("retry-after-ms", itoa(a.RetryMS))
	}
	if a.ShouldStop {
		h.Set("x-should-retry", "false")
	}
	if a.Status == http.StatusUnauthorized {
		h.Set("www-authenticate", `Bearer realm="weir"`)
	}
	Expose(h)
}

// visible writes bytes that a header may not have as %XX.
func visible(s string) string {
	plain := func(c byte) bool { return c >= ' ' && c < 0x7f }
	for i := 0; i < len(s); i++ {
		if !plain(s[i]) {
			const hex = "0123456789ABCDEF"
			var b strings.Builder
			for i := 0; i < len(s); i++ {
				if plain(s[i]) {
					b.WriteByte(s[i])
				} else {
					b.Write([]byte{'%', hex[s[i]>>4], hex[s[i]&15]})
				}
			}
			return b.String()
		}
	}
	return s
}

// Admitted writes the headers of an admitted request: what remains, and how long it was paced.
func Admitted(h http.Header, f wire.Format, claims []events.Claim, v *events.Verdict) {
	Remaining(h, f, claims, v.Used, time.Unix(0, v.Time))
	for i := range claims {
		if claims[i].Kind == events.Pace {
			h.Set("x-tm-queue-ms", itoa(v.WaitMS))
		}
	}
	Expose(h)
}

// Remaining writes what remains of each limit that has a header, from what a verdict (or a view) says is used of each claim's
// meter: the lowest remaining amount of all scopes. It promises nothing to later requests.
func Remaining(h http.Header, f wire.Format, claims []events.Claim, used []int64, at time.Time) {
	if len(used) != len(claims) {
		return
	}
	rpm, tpm := least(claims, used, "/rpm", events.Window), least(claims, used, "/tpm", events.Window)
	if rpm.found {
		h.Set("x-tm-remaining-rpm", itoa(rpm.remaining))
	}
	if tpm.found {
		h.Set("x-tm-remaining-tpm", itoa(tpm.remaining))
	}
	if f == wire.Anthropic {
		rpm.anthropic(h, "requests", at)
		tpm.anthropic(h, "tokens", at)
		input, output := least(claims, used, "/itpm", events.Bucket), least(claims, used, "/otpm", events.Bucket)
		input.anthropic(h, "input-tokens", at)
		output.anthropic(h, "output-tokens", at)
		return
	}
	rpm.openai(h, "requests")
	tpm.openai(h, "tokens")
}

// lowest is the meter of a dimension with the least left.
type lowest struct {
	found            bool
	limit, remaining int64
	full             time.Duration // until all of it is back, at most
}

const minute = time.Minute

func least(claims []events.Claim, used []int64, dimension string, kind events.MeterKind) lowest {
	var l lowest
	for i := range claims {
		c := &claims[i]
		if c.Kind != kind || !c.HasLimit || c.Shadow || !strings.HasSuffix(string(c.Meter), dimension) {
			continue
		}
		remaining := min(max(c.Limit-used[i], 0), c.Limit)
		if l.found && remaining >= l.remaining {
			continue
		}
		l = lowest{found: true, limit: c.Limit, remaining: remaining}
		switch {
		case used[i] <= 0:
		case kind == events.Bucket && c.Limit > 0 && used[i] < 1000*c.Limit:
			l.full = time.Duration(float64(minute) * float64(used[i]) / float64(c.Limit)).Truncate(time.Millisecond)
		default:
			l.full = minute // a rolling minute: the newest charge leaves last
		}
	}
	return l
}

func (l *lowest) openai(h http.Header, what string) {
	if !l.found {
		return
	}
	h.Set("x-ratelimit-limit-"+what, itoa(l.limit))
	h.Set("x-ratelimit-remaining-"+what, itoa(l.remaining))
	h.Set("x-ratelimit-reset-"+what, l.full.String())
}

func (l *lowest) anthropic(h http.Header, what string, at time.Time) {
	if !l.found {
		return
	}
	h.Set("anthropic-ratelimit-"+what+"-limit", itoa(l.limit))
	h.Set("anthropic-ratelimit-"+what+"-remaining", itoa(l.remaining))
	h.Set("anthropic-ratelimit-"+what+"-reset", at.Add(l.full).UTC().Format(time.RFC3339))
}
