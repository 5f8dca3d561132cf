package policy

import "github.com/weirhq/weir/events"

// Gate is the gate that a claim belongs to.
type Gate string

// The gates, as audit records and metrics name them.
const (
	GateLimits   Gate = "limits" // rpm, rps, tpm, concurrency of a gateway scope
	GatePace     Gate = "pace"   // a paced endpoint's queue
	GateB1       Gate = "b1"
	GateB2       Gate = "b2"
	GateB3       Gate = "b3"
	GateB4       Gate = "b4"
	GateDaily    Gate = "daily"
	GateSpend    Gate = "spend"
	GateBalance  Gate = "balance"
	GatePool     Gate = "pool"
	GateFairness Gate = "fairness"
	GatePause    Gate = "pause"
	GateUnknown  Gate = ""
)

// Words are what refusals, audit records and headers say of a claim.
type Words struct {
	Gate    Gate
	Scope   string // platform, org, workspace, principal, key, model, endpoint, pool
	Kind    string // rpm, rps, rps_queue, tpm, concurrency, occupancy, inflight, itpm, otpm, daily, spend, cooldown, fairness
	LimitID string // whose limit it is: the org's, key's, model's or pool's id; empty for the platform's
}

// Which tells a meter's gate, and the words for it. A meter that no gate has gives GateUnknown.
func Which(m events.Meter) Words {
	scope, _, dimension := m.Split()
	parts := m.Parts()
	w := Words{Gate: GateLimits, Scope: string(scope), Kind: dimension, LimitID: parts[0]}
	two := len(parts) > 1
	switch scope {
	case events.ScopePlatform:
		w.LimitID = ""
	case events.ScopeModel:
		if two {
			w.LimitID = parts[1]
		}
	case events.ScopePool:
		w.Gate = GatePool
		if two {
			w.Gate, w.Kind = GateFairness, "fairness"
		}
	}
	switch dimension {
	case "rpm", "rps", "tpm", "concurrency":
	case "occupancy", "inflight":
		if w.Gate = GateB2; scope == events.ScopeKey {
			w.Gate = GateB4
		}
	case "itpm", "otpm":
		w.Gate = GateB4
	case "daily":
		w.Gate = GateDaily
	case "spend-day", "spend-month":
		w.Gate, w.Kind = GateSpend, "spend"
	case "balance":
		w.Gate, w.Kind = GateBalance, "spend"
	case "pace":
		w.Gate, w.Scope, w.Kind = GatePace, string(events.ScopeModel), "rps_queue"
	case "pause":
		w.Gate, w.Kind = GatePause, "cooldown"
	default:
		w.Gate = GateUnknown
	}
	return w
}
