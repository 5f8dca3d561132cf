package eventstest

import (
	"fmt"

	"github.com/weirhq/weir/events"
)

// What the builders fill in.
const (
	Org     events.Org     = "acme"
	Gateway events.Gateway = "edge-k3v9x2ab"
	Key                    = "key1"
	Model                  = "qwen3"
)

// RequestID gives the n-th of a row of UUIDv7s, a millisecond apart.
func RequestID(n int) events.RequestID {
	const first = 0x019768c0_0000 // ms: 2025-06-13
	ms := uint64(first + n)
	return events.RequestID(fmt.Sprintf("%08x-%04x-7000-8000-%012x", ms>>16, ms&0xffff, n))
}

// Reserve asks for claims for the first attempt of a chat request. More is set on what it returns.
func Reserve(id events.RequestID, claims ...events.Claim) *events.Reserve {
	if claims == nil {
		claims = []events.Claim{}
	}
	return &events.Reserve{
		Request: id, Org: Org, Key: Key, Model: Model, Operation: "chat", Gateway: Gateway,
		Epoch: 1, MaxMS: events.DefaultMaxMS, Claims: claims,
	}
}

func claim(meter events.Meter, kind events.MeterKind, amount, limit int64, basis string) events.Claim {
	return events.Claim{Meter: meter, Kind: kind, Amount: amount, Limit: limit, HasLimit: true, Basis: basis, WindowMS: events.DefaultWindowMS}
}

// Rate claims one request of a window of a minute.
func Rate(meter events.Meter, limit int64) events.Claim {
	return claim(meter, events.Window, 1, limit, events.BasisRequest)
}

// Tokens claims an amount of a window of a minute that counts total tokens.
func Tokens(meter events.Meter, amount, limit int64) events.Claim {
	return claim(meter, events.Window, amount, limit, events.BasisTotal)
}

// Slot claims one place of a gauge.
func Slot(meter events.Meter, limit int64) events.Claim {
	return claim(meter, events.Gauge, 1, limit, events.BasisSlot)
}

// Occupancy claims tokens of a gauge on which a request may wait, until it leaves the local pool.
func Occupancy(meter events.Meter, amount, limit int64) events.Claim {
	c := claim(meter, events.Gauge, amount, limit, events.BasisFootprint)
	c.Life, c.Park = events.LifeLocal, true
	return c
}

// Hold claims an amount of nano-dollars of an org's balance.
func Hold(meter events.Meter, amount int64) events.Claim {
	c := claim(meter, events.Balance, amount, 0, events.BasisMoney)
	c.HasLimit = false
	return c
}

// Final is the exact final true-up of the first attempt, numbered 1.
func Final(id events.RequestID, input, output, costNano int64) *events.TrueUp {
	return &events.TrueUp{
		Request: id, Gateway: Gateway, N: 1, Final: true, Quality: events.QualityExact, Train: true, CostNano: costNano,
		Usage: events.Usage{InputTokens: input, OutputTokens: output},
		Charges: []events.Charge{
			{Basis: events.BasisTotal, Amount: input + output}, {Basis: events.BasisInput, Amount: input},
			{Basis: events.BasisOutput, Amount: output}, {Basis: events.BasisFootprint, Amount: input + output},
			{Basis: events.BasisCost, Amount: costNano},
		},
	}
}

// Release ends a request, named by its first attempt, that was answered in full.
func Release(id events.RequestID) *events.Release {
	return &events.Release{
		Request: id, Gateway: Gateway, Of: events.OfRequest, Outcome: events.Completed, Dispatched: events.DispatchedYes,
		Status: 200, FinishReason: "stop", LatencyMS: 900, TTFTMS: 120,
	}
}

// Admitted is the verdict that admits a reserve, with what each claim's meter then holds: its amount.
func Admitted(d *events.Reserve, seq uint64, at int64) events.Verdict {
	v := events.Verdict{Request: d.Request, Attempt: d.Attempt, Seq: seq, Time: at, Admitted: true}
	for i := range d.Claims {
		v.Used = append(v.Used, d.Claims[i].Amount)
	}
	return v
}

// Refused is the verdict that refuses a reserve because a claim does not fit: its meter holds the limit.
func Refused(d *events.Reserve, seq uint64, at int64, claim int, retryMS int64) events.Verdict {
	c := &d.Claims[claim]
	v := events.Verdict{Request: d.Request, Attempt: d.Attempt, Seq: seq, Time: at}
	v.Used = make([]int64, len(d.Claims))
	v.Used[claim] = c.Limit
	v.Refusal = &events.Refusal{
		Claim: claim, Meter: c.Meter, Reason: events.OverLimit, Used: c.Limit, Limit: c.Limit, HasLimit: c.HasLimit,
		Requested: c.Need(), RetryMS: retryMS, HasRetry: true,
	}
	return v
}
