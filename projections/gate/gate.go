// Package gate says what the meters of claims are about, in the words of refusals, audit records, metrics and headers: which gate a
// claim belongs to, whose limit it is and of what kind, and with which status and code a gate refuses. It is the one place for these
// words: gateways answer in them, and audit records tell of the same refusals in the same.
package gate

import (
	"strings"

	"github.com/weirhq/weir/events"
)

// Gate is the gate that a claim belongs to.
type Gate string

// The gates.
const (
	Limits   Gate = "limits" // rpm, rps, tpm, concurrency of a gateway scope
	Pace     Gate = "pace"   // a paced endpoint's queue
	B1       Gate = "b1"
	B2       Gate = "b2" // a model's occupancy and in-flight backstop
	B3       Gate = "b3"
	B4       Gate = "b4" // a key's share, input and output tokens a minute
	Daily    Gate = "daily"
	Spend    Gate = "spend"
	Balance  Gate = "balance"
	Pool     Gate = "pool" // a provider account's capacity
	Fairness Gate = "fairness"
	Pause    Gate = "pause"
	Fence    Gate = "fence"    // the version of an org's authority
	Recovery Gate = "recovery" // windows that count as full after a recovery
	Reserve  Gate = "reserve"  // the reserve breaks a rule of claims
	Release  Gate = "release"  // the request was released before it was answered
	Unknown  Gate = ""         // no gate has the meter
)

// The origins of errors, as in the header x-tm-error-origin.
const (
	OriginAdmission      = "gateway_admission"
	OriginQuota          = "upstream_quota"
	OriginUpstream       = "upstream"
	OriginInfrastructure = "gateway_infrastructure"
	OriginAuthorization  = "authorization"
)

// ShadowPrefix begins the dimensions of meters that shadow limits count on: what follows is what they count.
const ShadowPrefix = "shadow-"

// Words are what is said of a claim.
type Words struct {
	Gate    Gate
	Scope   string // platform, org, workspace, principal, key, model, endpoint, pool
	Kind    string // rpm, rps, rps_queue, tpm, concurrency, occupancy, inflight, itpm, otpm, daily, spend, cooldown, fairness
	LimitID string // whose limit it is: the org's, key's, model's or pool's id; empty for the platform's
}

// Which tells a meter's gate, and the words for it.
func Which(m events.Meter) Words {
	scope, _, dimension := m.Split()
	if scope == "" {
		return Words{}
	}
	parts := m.Parts()
	dimension = strings.TrimPrefix(dimension, ShadowPrefix)
	w := Words{Gate: Limits, Scope: string(scope), Kind: dimension, LimitID: parts[0]}
	two := len(parts) > 1
	switch scope {
	case events.ScopePlatform:
		w.LimitID = ""
	case events.ScopeModel:
		if two { // one org's limit of a model
			w.LimitID = parts[1]
		}
	case events.ScopePool:
		w.Gate = Pool
		if two { // one org's share of a pool
			w.Gate, w.Kind = Fairness, "fairness"
		}
	}
	switch dimension {
	case "rpm", "rps", "tpm", "concurrency":
	case "occupancy", "inflight":
		if w.Gate = B2; scope == events.ScopeKey {
			w.Gate = B4
		}
	case "itpm", "otpm":
		w.Gate = B4
	case "daily":
		w.Gate = Daily
	case "spend-day", "spend-month":
		w.Gate, w.Kind = Spend, "spend"
	case "balance":
		w.Gate, w.Kind = Balance, "spend"
	case "pace":
		w.Gate, w.Scope, w.Kind = Pace, string(events.ScopeModel), "rps_queue"
	case "pause":
		w.Gate, w.Kind = Pause, "cooldown"
	default:
		w.Gate = Unknown
	}
	return w
}

// Row is how a gate refuses.
type Row struct {
	Status int // HTTP
	Code   string
	Origin string
}

// rows are the table of refusals. A request that was released before it was answered is answered by nobody.
var rows = map[Gate]Row{
	Limits:   {429, "rate_limit_exceeded", OriginAdmission},
	Pace:     {429, "rate_limit_exceeded", OriginAdmission},
	B1:       {400, "input_too_long", OriginAdmission},
	B2:       {429, "concurrency_limit_exceeded", OriginAdmission},
	B3:       {429, "concurrency_limit_exceeded", OriginAdmission},
	B4:       {429, "rate_limit_exceeded", OriginAdmission},
	Daily:    {429, "token_limit_exceeded", OriginAdmission},
	Spend:    {429, "spend_limit_exceeded", OriginAdmission},
	Balance:  {429, "insufficient_balance", OriginAdmission},
	Pool:     {429, "upstream_quota_exceeded", OriginQuota},
	Fairness: {429, "upstream_quota_exceeded", OriginQuota},
	Pause:    {429, "upstream_quota_exceeded", OriginQuota},
	Fence:    {503, "authorization_unavailable", OriginAuthorization},
	Recovery: {503, "gateway_infrastructure", OriginInfrastructure},
	Reserve:  {503, "gateway_infrastructure", OriginInfrastructure},
	Unknown:  {503, "gateway_infrastructure", OriginInfrastructure},
}

// Row is how the gate refuses.
func (g Gate) Row() Row { return rows[g] }

// Limit says which limit a refusal is about, and with which status and code it is answered.
type Limit struct {
	Words
	Row
}

// Of says which limit a refusal of the fold is about, by the meter of the claim that failed and the reason.
func Of(m events.Meter, reason events.Reason) Limit {
	w := Words{}
	switch reason {
	case events.StaleFence:
		w = Words{Gate: Fence, Scope: string(events.ScopeOrg)}
	case events.Recovering:
		w = Words{Gate: Recovery}
	case events.Invalid:
		w = Which(m)
		w.Gate = Reserve
	case events.Released:
		w = Words{Gate: Release}
	default:
		w = Which(m)
	}
	return Limit{w, w.Gate.Row()}
}
