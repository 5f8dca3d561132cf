package refusal

import (
	"strconv"
	"strings"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/strictyaml"
	"github.com/weirhq/weir/projections/gate"
)

func itoa(v int64) string { return strconv.FormatInt(v, 10) }

// maxQuoted bounds what a message repeats of the client's own words, in bytes.
const maxQuoted = 100

func quote(s string) string {
	if len(s) > maxQuoted {
		s = strings.ToValidUTF8(s[:maxQuoted], "") + "…"
	}
	return s
}

// units are what a limit of a kind counts.
var units = map[string]string{
	"rpm": "requests a minute", "rps": "requests a second", "rps_queue": "requests a second",
	"tpm": "tokens a minute", "concurrency": "requests at once",
}

// explain says why a claim was refused. The sentences of B2, B4 and daily are those that clients of such routers know.
func (a *Answer) explain(r *events.Refusal) string {
	large := r.Reason == events.TooLarge
	switch a.Gate {
	case gate.Limits:
		return a.over("rate limit reached", large)
	case gate.Pace:
		return "the queue of model " + a.LimitID + " is full: it takes " + itoa(a.Limit) + " requests a second"
	case gate.B2:
		if large && a.Kind == "occupancy" {
			return "request needs " + itoa(a.Requested) + " tokens, over the model's capacity of " + itoa(a.Limit)
		}
		return "server at capacity for this model, please retry"
	case gate.B4:
		switch {
		case large && a.Kind == "occupancy":
			return "request needs " + itoa(a.Requested) + " tokens, over this key's share of the model, " + itoa(a.Limit)
		case large:
			return "request is " + itoa(a.Requested) + " input tokens, over this key's rate of " + itoa(a.Limit) + " a minute"
		}
		return map[string]string{
			"occupancy": "per-key occupancy share exceeded, please retry",
			"itpm":      "input token rate exceeded, please retry",
			"otpm":      "output token rate exceeded, please retry",
		}[a.Kind]
	case gate.Daily:
		return "insufficient daily token budget for requested max_tokens"
	case gate.Spend:
		_, _, dimension := r.Meter.Split()
		return "spend cap reached: " + dollars(a.Limit) + " a " + strings.TrimPrefix(dimension, "spend-") + " of " + a.whose() + ", of which " + dollars(a.Used) + " is spent or held, and this request may cost " + dollars(a.Requested)
	case gate.Balance:
		return "insufficient balance: the request may cost " + dollars(a.Requested)
	case gate.Pause:
		return "the provider account " + a.LimitID + " is cooling down, please retry"
	case gate.Pool, gate.Fairness:
		what := "the provider account's capacity is used up"
		if a.Gate == gate.Fairness {
			what = "this org's share of the provider account is used up"
		}
		_, _, dimension := r.Meter.Split()
		return a.overIn(what, units[dimension], large)
	}
	return "the request could not be judged: no gate has the meter " + string(r.Meter)
}

func (a *Answer) over(what string, large bool) string { return a.overIn(what, units[a.Kind], large) }

func (a *Answer) overIn(what, unit string, large bool) string {
	text := what + ": " + itoa(a.Limit) + " " + unit + " of " + a.whose()
	if large {
		return text + ", and the request alone needs " + itoa(a.Requested)
	}
	return text + ", of which " + itoa(max(a.Used, 0)) + " are used and " + itoa(a.Requested) + " more asked for"
}

// whose names the limit's owner.
func (a *Answer) whose() string {
	if a.LimitID == "" {
		return "the " + a.Scope
	}
	return a.Scope + " " + a.LimitID
}

// dollars writes nano-dollars as US dollars.
func dollars(nano int64) string {
	if nano < 0 {
		return "-" + dollars(-nano)
	}
	return "$" + strictyaml.FormatDecimal(nano, authority.MoneyDigits)
}
