package events

import (
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"
)

// AppendData appends d's JSON to dst. Fields at their defaults are left out.
func AppendData(dst []byte, d Data) []byte {
	switch d := d.(type) {
	case *Reserve:
		return appendReserve(dst, d)
	case *TrueUp:
		return appendTrueUp(dst, d)
	case *Release:
		return appendRelease(dst, d)
	case *Lease:
		return appendLease(dst, d)
	case *Tick:
		if d.Gateway == "" {
			return append(dst, '{', '}')
		}
		return append(appendString(append(dst, `{"gateway":`...), string(d.Gateway)), '}')
	case *Verdicts:
		return appendVerdictsData(dst, d)
	case *Unknown:
		return append(dst, d.Raw...)
	case *Refused, *Cooldown, *Fence, *Credit, *Recover, *Rules, *Correction:
		text, err := json.Marshal(d)
		if err != nil { // cannot be: these are structs of strings and integers
			panic("events: " + err.Error())
		}
		return append(dst, text...)
	}
	panic("events: unknown data")
}

// object writes an object's fields one after the other.
type object struct {
	b     []byte
	first bool
}

func begin(dst []byte) object { return object{append(dst, '{'), true} }

func (o *object) name(k string) {
	if !o.first {
		o.b = append(o.b, ',')
	}
	o.first = false
	o.b = append(o.b, '"')
	o.b = append(o.b, k...)
	o.b = append(o.b, '"', ':')
}

func (o *object) str(k, v string) {
	if v != "" {
		o.name(k)
		o.b = appendString(o.b, v)
	}
}

// word writes a string that is known to need no escapes.
func (o *object) word(k, v string) {
	o.name(k)
	o.b = append(o.b, '"')
	o.b = append(o.b, v...)
	o.b = append(o.b, '"')
}

func (o *object) int(k string, v int64) {
	if v != 0 {
		o.always(k, v)
	}
}

func (o *object) always(k string, v int64) {
	o.name(k)
	o.b = strconv.AppendInt(o.b, v, 10)
}

func (o *object) flag(k string, v bool) {
	if v {
		o.name(k)
		o.b = append(o.b, "true"...)
	}
}

func (o *object) end() []byte { return append(o.b, '}') }

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string. Bytes that are no UTF-8 become U+FFFD.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			dst = append(dst, s[start:i]...)
			switch c {
			case '"', '\\':
				dst = append(dst, '\\', c)
			case '\n':
				dst = append(dst, '\\', 'n')
			default:
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 {
			dst = append(dst, s[start:i]...)
			dst = append(dst, "\ufffd"...)
			start = i + 1
		}
		i += size
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// AppendTime appends an instant, ns since 1970, as RFC 3339 in UTC with as many decimals as it needs.
func AppendTime(dst []byte, ns int64) []byte {
	return time.Unix(0, ns).UTC().AppendFormat(dst, time.RFC3339Nano)
}

func (o *object) time(k string, ns int64) {
	o.name(k)
	o.b = append(o.b, '"')
	o.b = AppendTime(o.b, ns)
	o.b = append(o.b, '"')
}

func appendReserve(dst []byte, d *Reserve) []byte {
	o := begin(dst)
	o.str("request", string(d.Request))
	o.int("attempt", d.Attempt)
	o.str("org", string(d.Org))
	o.str("workspace", d.Workspace)
	o.str("principal", d.Principal)
	o.str("key", d.Key)
	o.str("model", d.Model)
	o.str("deployment", d.Deployment)
	o.str("operation", d.Operation)
	o.str("gateway", string(d.Gateway))
	o.always("epoch", d.Epoch)
	if d.Mode == ModeBoundedLocal {
		o.word("mode", BoundedLocal)
	}
	if d.At != 0 {
		o.time("at", d.At)
	}
	o.int("fence", d.Fence)
	o.int("park_ms", d.ParkMS)
	if d.MaxMS != DefaultMaxMS {
		o.always("max_ms", d.MaxMS)
	}
	o.str("price_version", d.PriceVersion)
	o.flag("byok", d.BYOK)
	if d.Estimate != (Estimate{}) {
		o.name("estimate")
		o.b = appendEstimate(o.b, &d.Estimate)
	}
	if d.Claims != nil {
		o.name("claims")
		o.b = append(o.b, '[')
		for i := range d.Claims {
			if i > 0 {
				o.b = append(o.b, ',')
			}
			o.b = appendClaim(o.b, &d.Claims[i])
		}
		o.b = append(o.b, ']')
	}
	return o.end()
}

func appendEstimate(dst []byte, e *Estimate) []byte {
	o := begin(dst)
	o.int("input_tokens", e.InputTokens)
	o.int("output_tokens", e.OutputTokens)
	o.flag("output_declared", e.OutputDeclared)
	o.int("text_bytes", e.TextBytes)
	o.int("images", e.Images)
	return o.end()
}

func appendClaim(dst []byte, c *Claim) []byte {
	o := begin(dst)
	o.str("meter", string(c.Meter))
	o.word("kind", c.Kind.String())
	o.odd("amount", c.Amount, true, c.Odd, func(odd *Odd) string { return odd.Amount })
	o.odd("check", c.Check, c.HasCheck, c.Odd, func(odd *Odd) string { return odd.Check })
	o.odd("limit", c.Limit, c.HasLimit, c.Odd, func(odd *Odd) string { return odd.Limit })
	if c.Basis != BasisRequest {
		o.str("basis", c.Basis)
	}
	if c.Life != LifeRequest {
		o.word("life", c.Life.String())
	}
	if c.WindowMS != DefaultWindowMS {
		o.int("window_ms", c.WindowMS)
	}
	if c.Period != Day {
		o.word("period", c.Period.String())
	}
	o.int("queue_ms", c.QueueMS)
	o.flag("park", c.Park)
	o.flag("shadow", c.Shadow)
	return o.end()
}

// odd writes a number of a claim, as it stood if it was no integer.
func (o *object) odd(k string, v int64, has bool, odd *Odd, raw func(*Odd) string) {
	if odd != nil {
		if text := raw(odd); text != "" {
			o.name(k)
			o.b = append(o.b, text...)
			return
		}
	}
	if has {
		o.always(k, v)
	}
}

func appendTrueUp(dst []byte, d *TrueUp) []byte {
	o := begin(dst)
	o.str("request", string(d.Request))
	o.int("attempt", d.Attempt)
	o.str("gateway", string(d.Gateway))
	o.int("n", d.N)
	o.flag("final", d.Final)
	o.word("quality", d.Quality.String())
	if d.Usage != (Usage{}) {
		o.name("usage")
		o.b = appendUsage(o.b, &d.Usage)
	}
	o.name("charges")
	charges := begin(o.b)
	for i := range d.Charges {
		charges.name("")
		charges.b = append(charges.b[:len(charges.b)-3], appendString(nil, d.Charges[i].Basis)...)
		charges.b = append(charges.b, ':')
		charges.b = strconv.AppendInt(charges.b, d.Charges[i].Amount, 10)
	}
	o.b = charges.end()
	o.int("cost_nano", d.CostNano)
	o.str("price_version", d.PriceVersion)
	o.int("list_nano", d.ListNano)
	o.flag("train", d.Train)
	return o.end()
}

func appendUsage(dst []byte, u *Usage) []byte {
	o := begin(dst)
	o.always("input_tokens", u.InputTokens)
	o.int("cached_tokens", u.CachedTokens)
	o.int("cache_write_tokens", u.CacheWriteTokens)
	o.always("output_tokens", u.OutputTokens)
	o.int("reasoning_tokens", u.ReasoningTokens)
	return o.end()
}

func appendRelease(dst []byte, d *Release) []byte {
	o := begin(dst)
	o.str("request", string(d.Request))
	o.int("attempt", d.Attempt)
	o.str("gateway", string(d.Gateway))
	o.word("of", d.Of.String())
	o.str("outcome", string(d.Outcome))
	o.word("dispatched", d.Dispatched.String())
	o.int("status", d.Status)
	o.str("finish_reason", d.FinishReason)
	o.int("latency_ms", d.LatencyMS)
	o.int("ttft_ms", d.TTFTMS)
	o.str("error", d.Error)
	o.str("origin", d.Origin)
	return o.end()
}

func appendLease(dst []byte, d *Lease) []byte {
	o := begin(dst)
	o.str("gateway", string(d.Gateway))
	o.always("epoch", d.Epoch)
	o.int("ttl_ms", d.TTLMS)
	return o.end()
}

// AppendVerdict appends one verdict as JSON, with every field.
func AppendVerdict(dst []byte, v *Verdict) []byte {
	o := begin(dst)
	o.name("request")
	o.b = appendString(o.b, string(v.Request))
	o.always("attempt", v.Attempt)
	o.name("seq")
	o.b = strconv.AppendUint(o.b, v.Seq, 10)
	o.time("time", v.Time)
	if v.Admitted {
		o.word("outcome", "admitted")
	} else {
		o.word("outcome", "refused")
	}
	o.always("parked_ms", v.ParkedMS)
	o.always("wait_ms", v.WaitMS)
	o.name("used")
	o.b = append(o.b, '[')
	for i, n := range v.Used {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.b = strconv.AppendInt(o.b, n, 10)
	}
	o.b = append(o.b, ']')
	o.name("shadow")
	o.b = append(o.b, '[')
	for i, n := range v.Shadow {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.b = strconv.AppendInt(o.b, int64(n), 10)
	}
	o.b = append(o.b, ']')
	o.name("refusal")
	if v.Refusal == nil {
		o.b = append(o.b, "null"...)
	} else {
		o.b = appendRefusal(o.b, v.Refusal)
	}
	return o.end()
}

func appendRefusal(dst []byte, r *Refusal) []byte {
	o := begin(dst)
	o.always("claim", int64(r.Claim))
	o.name("meter")
	o.b = appendString(o.b, string(r.Meter))
	o.word("reason", string(r.Reason))
	o.always("used", r.Used)
	limit, requested := "", ""
	if r.Odd != nil {
		limit, requested = r.Odd.Limit, r.Odd.Check
		if requested == "" {
			requested = r.Odd.Amount
		}
	}
	o.orNull("limit", r.Limit, r.HasLimit, limit)
	o.orNull("requested", r.Requested, true, requested)
	o.orNull("retry_after_ms", r.RetryMS, r.HasRetry, "")
	return o.end()
}

func (o *object) orNull(k string, v int64, has bool, raw string) {
	switch {
	case raw != "":
		o.name(k)
		o.b = append(o.b, raw...)
	case has:
		o.always(k, v)
	default:
		o.name(k)
		o.b = append(o.b, "null"...)
	}
}

func appendVerdictsData(dst []byte, d *Verdicts) []byte {
	o := begin(dst)
	o.always("from_seq", int64(d.FromSeq))
	o.always("to_seq", int64(d.ToSeq))
	o.always("rules", d.Rules)
	o.str("state_hash", d.StateHash)
	o.str("chain", d.Chain)
	o.name("verdicts")
	o.b = AppendVerdicts(o.b, d.Verdicts)
	if len(d.Lapses) > 0 {
		o.name("lapses")
		o.b = appendLapses(o.b, d.Lapses)
	}
	return o.end()
}

func appendLapses(dst []byte, lapses []Lapse) []byte {
	dst = append(dst, '[')
	for i := range lapses {
		if i > 0 {
			dst = append(dst, ',')
		}
		o := begin(dst)
		o.word("request", string(lapses[i].Request))
		o.word("state", string(lapses[i].State))
		o.time("time", lapses[i].Time)
		dst = o.end()
	}
	return append(dst, ']')
}

// AppendVerdicts appends verdicts as a JSON array: what a projector answers on a gateway's verdict subject.
func AppendVerdicts(dst []byte, verdicts []Verdict) []byte {
	dst = append(dst, '[')
	for i := range verdicts {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendVerdict(dst, &verdicts[i])
	}
	return append(dst, ']')
}

// AppendPack appends events as a CloudEvents JSON batch. Each carries its org as the extension attribute "org".
func AppendPack(dst []byte, events []Event) []byte {
	dst = append(dst, '[')
	for i := range events {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendEvent(dst, &events[i])
	}
	return append(dst, ']')
}

func appendEvent(dst []byte, e *Event) []byte {
	o := begin(dst)
	o.word("specversion", "1.0")
	o.str("id", e.ID)
	o.str("source", e.Source)
	o.word("type", TypeOf(e.Data))
	o.str("subject", e.Subject)
	o.str("org", string(e.Org))
	o.str("traceparent", e.TraceParent)
	o.name("data")
	o.b = AppendData(o.b, e.Data)
	return o.end()
}

// TypeOf gives the CloudEvents type of d.
func TypeOf(d Data) string {
	if u, ok := d.(*Unknown); ok {
		return u.Type
	}
	return d.Kind().Type()
}
