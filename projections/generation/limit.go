package generation

import "github.com/weirhq/weir/events"

// Limit says which limit a refusal is about, in the words of the error headers: origin, scope, kind and id, and with which status and
// code it is answered.
type Limit struct {
	Gate   string
	Origin string
	Scope  string
	Kind   string
	ID     string
	Status int
	Code   string
}

// The gates by which refusals of the fold are named. A gateway names its own refusals in the same words.
const (
	GateLimits   = "limits" // rate and concurrency limits of the gateway's scopes
	GatePace     = "pace"
	GateB2       = "b2" // a model's occupancy and in-flight backstop
	GateB4       = "b4" // a key's share, input and output tokens a minute
	GateDaily    = "daily"
	GateSpend    = "spend"
	GateBalance  = "balance"
	GatePool     = "pool" // a provider account's capacity
	GateFairness = "fairness"
	GatePause    = "pause"
	GateFence    = "fence"    // the version of an org's authority
	GateRecovery = "recovery" // windows that count as full after a recovery
	GateReserve  = "reserve"  // the reserve breaks a rule of claims
	GateRelease  = "release"  // the request was released before it was answered
)

// The origins of errors, as in the header x-tm-error-origin.
const (
	OriginAdmission      = "gateway_admission"
	OriginQuota          = "upstream_quota"
	OriginUpstream       = "upstream"
	OriginInfrastructure = "gateway_infrastructure"
	OriginAuthorization  = "authorization"
)

const (
	tooMany     = 429
	unavailable = 503
)

// LimitOf says which limit a refusal of the fold is about, by the meter of the claim that failed and the reason. The kinds are rpm, rps,
// rps_queue, tpm, concurrency, occupancy, inflight, otpm, itpm, daily, spend, cooldown and fairness.
func LimitOf(meter events.Meter, reason events.Reason) Limit {
	switch reason {
	case events.StaleFence:
		return Limit{Gate: GateFence, Origin: OriginAuthorization, Scope: string(events.ScopeOrg), Status: unavailable, Code: "authorization_unavailable"}
	case events.Recovering:
		return Limit{Gate: GateRecovery, Origin: OriginInfrastructure, Status: unavailable, Code: OriginInfrastructure}
	case events.Invalid:
		l := Limit{Gate: GateReserve, Origin: OriginInfrastructure, Status: unavailable, Code: OriginInfrastructure}
		l.Scope, l.Kind, l.ID = nameOf(meter)
		return l
	case events.Released:
		return Limit{Gate: GateRelease}
	}
	l := Limit{Origin: OriginAdmission, Status: tooMany}
	l.Scope, l.Kind, l.ID = nameOf(meter)
	scope, _, dimension := meter.Split()
	l.Gate, l.Code = gateOf(scope, l.Kind, dimension)
	if scope == events.ScopePool {
		l.Origin = OriginQuota
	}
	return l
}

// nameOf gives a meter's scope, kind and id in the words of the headers x-tm-limit-scope, -kind and -id.
func nameOf(meter events.Meter) (scope, kind, id string) {
	s, _, dimension := meter.Split()
	if s == "" {
		return "", "", ""
	}
	parts := meter.Parts()
	scope, kind, id = string(s), dimension, parts[0]
	switch {
	case s == events.ScopePlatform:
		id = ""
	case s == events.ScopeModel && len(parts) > 1: // one org's limit of a model
		id = parts[1]
	case s == events.ScopePool && len(parts) > 1: // one org's share of a pool
		kind = "fairness"
	}
	switch dimension {
	case "pause":
		kind = "cooldown"
	case "pace":
		scope, kind = string(events.ScopeModel), "rps_queue"
	case "balance", "spend-day", "spend-month":
		kind = "spend"
	}
	return scope, kind, id
}

func gateOf(scope events.Scope, kind, dimension string) (gate, code string) {
	switch {
	case kind == "cooldown":
		return GatePause, "upstream_quota_exceeded"
	case kind == "fairness":
		return GateFairness, "upstream_quota_exceeded"
	case scope == events.ScopePool:
		return GatePool, "upstream_quota_exceeded"
	}
	switch dimension {
	case "pace":
		return GatePace, "rate_limit_exceeded"
	case "otpm", "itpm":
		return GateB4, "rate_limit_exceeded"
	case "occupancy", "inflight":
		if scope == events.ScopeKey {
			return GateB4, "rate_limit_exceeded"
		}
		return GateB2, "concurrency_limit_exceeded"
	case "daily":
		return GateDaily, "token_limit_exceeded"
	case "balance":
		return GateBalance, "insufficient_balance"
	case "spend-day", "spend-month":
		return GateSpend, "spend_limit_exceeded"
	}
	return GateLimits, "rate_limit_exceeded"
}
