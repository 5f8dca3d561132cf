package eventstest

import (
	"fmt"
	"math"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/events"
)

// Kinds lists every kind of fact that this binary knows.
func Kinds() []events.Kind {
	var kinds []events.Kind
	for k := events.KindReserve; k <= events.KindVerdicts; k++ {
		kinds = append(kinds, k)
	}
	return kinds
}

// Data generates valid facts of a kind, in the form that decoding gives.
func Data(kind events.Kind) *rapid.Generator[events.Data] {
	return rapid.Custom(func(t *rapid.T) events.Data {
		d := draw{t}
		switch kind {
		case events.KindReserve:
			return d.reserve()
		case events.KindTrueUp:
			return d.trueUp()
		case events.KindRelease:
			return d.release()
		case events.KindRefused:
			return d.refused()
		case events.KindLease:
			return &events.Lease{Gateway: d.gateway(), Epoch: d.small(), TTLMS: d.pick(0, 10_000, 60_000, 12_345)}
		case events.KindCooldown:
			return &events.Cooldown{Gateway: d.gateway(), Meter: d.meter(), ForMS: d.in(events.MinForMS, events.MaxForMS)}
		case events.KindTick:
			if d.flag() {
				return &events.Tick{}
			}
			return &events.Tick{Gateway: d.gateway()}
		case events.KindFence:
			return &events.Fence{Org: d.org(), Version: d.in(0, math.MaxInt64)}
		case events.KindCredit:
			return &events.Credit{Org: d.org(), AmountNano: d.in(-events.MaxAmount, events.MaxAmount), Reference: "r" + d.text()}
		case events.KindRecover:
			return &events.Recover{Reason: d.text(), Windows: rapid.SampledFrom([]string{"full", "empty"}).Draw(t, "windows")}
		case events.KindRules:
			return &events.Rules{Version: d.in(1, 100)}
		case events.KindCorrection:
			return &events.Correction{Request: d.request(), Attempt: d.small(), Revision: d.in(1, 9), Usage: d.usage(), CostNano: d.amount(), Reason: d.text()}
		case events.KindVerdicts:
			return d.verdicts()
		}
		panic(fmt.Sprintf("eventstest: no facts of kind %s", kind))
	})
}

// Verdict generates verdicts as decoding gives them.
func Verdict() *rapid.Generator[events.Verdict] {
	return rapid.Custom(func(t *rapid.T) events.Verdict { return draw{t}.verdict() })
}

// Events generates an event of any kind in an envelope.
func Events() *rapid.Generator[events.Event] {
	return rapid.Custom(func(t *rapid.T) events.Event {
		d := draw{t}
		e := Event(fmt.Sprintf("e%d", d.in(0, 1<<40)), Data(rapid.SampledFrom(Kinds()).Draw(t, "kind")).Draw(t, "data"))
		if d.flag() {
			e.TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		}
		return e
	})
}

// draw takes one fact's parts from a rapid test.
type draw struct{ t *rapid.T }

func (d draw) in(least, most int64) int64 { return rapid.Int64Range(least, most).Draw(d.t, "n") }
func (d draw) small() int64               { return d.in(0, 5) }
func (d draw) flag() bool                 { return rapid.Bool().Draw(d.t, "flag") }
func (d draw) pick(of ...int64) int64     { return rapid.SampledFrom(of).Draw(d.t, "one of") }
func (d draw) amount() int64 {
	if d.flag() {
		return d.in(0, 5000)
	}
	return d.in(0, events.MaxAmount)
}

// text gives any text, with quotes, escapes and letters of all scripts.
func (d draw) text() string { return rapid.String().Draw(d.t, "text") }

func (d draw) maybe() string {
	if d.flag() {
		return ""
	}
	return d.text()
}

func (d draw) request() events.RequestID { return RequestID(int(d.in(0, 99))) }
func (d draw) org() events.Org {
	return rapid.SampledFrom([]events.Org{"acme", "beta", "o-3f9a", "A", "0_x"}).Draw(d.t, "org")
}
func (d draw) gateway() events.Gateway {
	return rapid.SampledFrom([]events.Gateway{"edge-k3v9x2ab", "gw-00000000"}).Draw(d.t, "gateway")
}

func (d draw) meter() events.Meter {
	scope := rapid.SampledFrom([]events.Scope{events.ScopePlatform, events.ScopeOrg, events.ScopeKey, events.ScopeModel, events.ScopePool}).Draw(d.t, "scope")
	dimension := rapid.SampledFrom([]string{"rpm", "tpm", "occupancy", "spend-month", "pause"}).Draw(d.t, "dimension")
	return events.NewMeter(scope, dimension, rapid.SliceOfN(rapid.String(), 1, 2).Draw(d.t, "subject")...)
}

// when gives an instant from 1970 to 2200, to the nanosecond.
func (d draw) when() int64 { return d.in(1, 7_258_118_400_000_000_000) }

func (d draw) usage() events.Usage {
	u := events.Usage{InputTokens: d.amount(), OutputTokens: d.amount()}
	u.CachedTokens, u.CacheWriteTokens = d.in(0, u.InputTokens), d.pick(0, 7)
	u.ReasoningTokens = d.in(0, u.OutputTokens)
	return u
}

func (d draw) reserve() *events.Reserve {
	r := &events.Reserve{
		Request: d.request(), Attempt: d.small(), Org: d.org(), Workspace: d.maybe(), Principal: d.maybe(), Key: d.maybe(),
		Model: d.maybe(), Deployment: d.maybe(), Operation: d.maybe(), Gateway: d.gateway(), Epoch: d.small(), Fence: d.small(),
		ParkMS: d.in(0, events.MaxParkMS), MaxMS: d.pick(events.DefaultMaxMS, events.MinMaxMS, events.MaxMaxMS), PriceVersion: d.maybe(), BYOK: d.flag(),
		Claims: []events.Claim{},
	}
	if d.flag() {
		r.Mode, r.At = events.ModeBoundedLocal, d.when()
	}
	if d.flag() {
		r.Estimate = events.Estimate{InputTokens: d.amount(), OutputTokens: d.amount(), OutputDeclared: d.flag(), TextBytes: d.amount(), Images: d.small()}
	}
	for range d.pick(0, 1, 3, 8, 16, 17, events.MaxClaims) {
		r.Claims = append(r.Claims, d.claim())
	}
	return r
}

func (d draw) claim() events.Claim {
	c := events.Claim{
		Meter: d.meter(), Kind: events.MeterKind(d.in(int64(events.Window), int64(events.Pause))), Life: events.Life(d.in(0, 2)),
		Period: events.Period(d.in(0, 1)), Park: d.flag(), Shadow: d.flag(), HasCheck: d.flag(), HasLimit: d.flag(),
		WindowMS: d.pick(events.DefaultWindowMS, 1000), QueueMS: d.pick(0, 500), Amount: d.amount(),
		Basis: rapid.SampledFrom([]string{events.BasisRequest, events.BasisTotal, events.BasisCost, "a basis of one's own"}).Draw(d.t, "basis"),
	}
	if c.HasCheck {
		c.Check = d.amount()
	}
	if c.HasLimit {
		c.Limit = d.amount()
	}
	return c
}

func (d draw) trueUp() *events.TrueUp {
	u := &events.TrueUp{
		Request: d.request(), Attempt: d.small(), Gateway: d.gateway(), N: d.small(), Final: d.flag(), Quality: events.Quality(d.in(0, 3)),
		CostNano: d.amount(), PriceVersion: d.maybe(), ListNano: d.amount(), Train: d.flag(),
	}
	if d.flag() {
		u.Usage = d.usage()
	}
	bases := rapid.SliceOfNDistinct(rapid.String(), 0, 8, rapid.ID).Draw(d.t, "bases")
	for _, basis := range bases {
		u.Charges = append(u.Charges, events.Charge{Basis: basis, Amount: d.amount()})
	}
	return u
}

func (d draw) release() *events.Release {
	return &events.Release{
		Request: d.request(), Attempt: d.small(), Gateway: d.gateway(), Of: events.Of(d.in(0, 2)),
		Outcome: rapid.SampledFrom([]events.Outcome{"", events.Completed, events.Failed, events.Cancelled, events.TimedOut,
			events.NotDispatched, events.Abandoned}).Draw(d.t, "outcome"),
		Dispatched: events.Dispatched(d.in(0, 2)), Status: d.pick(0, 200, 429, 503), FinishReason: d.maybe(),
		LatencyMS: d.in(0, 1<<40), TTFTMS: d.small(), Error: d.maybe(), Origin: d.maybe(),
	}
}

func (d draw) refused() *events.Refused {
	r := &events.Refused{
		Request: d.request(), Org: d.org(), Gateway: d.gateway(), Workspace: d.maybe(), Principal: d.maybe(), Key: d.maybe(),
		Model: d.maybe(), Operation: d.maybe(), Gate: "B" + d.text(), Origin: d.text(), Scope: d.maybe(), LimitKind: d.maybe(),
		LimitID: d.maybe(), Used: d.small(), Requested: d.amount(), Status: int(d.pick(400, 429, 503)), Code: d.text(), Message: d.maybe(),
		Count: d.small(),
	}
	if d.flag() {
		limit := d.amount()
		r.Limit = &limit
	}
	if d.flag() {
		r.RetryAt, r.First, r.Last = d.instant(), d.instant(), d.instant()
	}
	return r
}

func (d draw) instant() string { return string(events.AppendTime(nil, d.when())) }

func (d draw) verdicts() *events.Verdicts {
	v := &events.Verdicts{
		FromSeq: uint64(d.in(0, math.MaxInt64)), ToSeq: uint64(d.in(0, math.MaxInt64)), Rules: d.in(1, 9),
		StateHash: fmt.Sprintf("%016x", rapid.Uint64().Draw(d.t, "hash")),
	}
	if d.flag() {
		v.Chain = fmt.Sprintf("%064x", rapid.Uint64().Draw(d.t, "chain"))
	}
	for range d.small() {
		v.Verdicts = append(v.Verdicts, d.verdict())
	}
	for range d.pick(0, 0, 2) {
		v.Lapses = append(v.Lapses, events.Lapse{Request: d.request(), Time: d.when(),
			State: rapid.SampledFrom([]events.LapseState{events.LapseBegan, events.LapseOver, events.LapseEnded}).Draw(d.t, "lapse")})
	}
	return v
}

func (d draw) verdict() events.Verdict {
	v := events.Verdict{
		Request: d.request(), Attempt: d.small(), Seq: uint64(d.in(0, math.MaxInt64)), Time: d.when(), Admitted: d.flag(),
		ParkedMS: d.in(0, events.MaxParkMS), WaitMS: d.small(),
	}
	for range d.small() {
		v.Used = append(v.Used, d.in(math.MinInt64, math.MaxInt64))
	}
	if v.Admitted {
		for range d.pick(0, 0, 2) {
			v.Shadow = append(v.Shadow, int(d.small()))
		}
		return v
	}
	v.Refusal = &events.Refusal{
		Claim: int(d.in(-1, 9)), Meter: d.meter(), Used: d.in(math.MinInt64, math.MaxInt64), HasLimit: d.flag(), Requested: d.amount(), HasRetry: d.flag(),
		Reason: rapid.SampledFrom([]events.Reason{events.OverLimit, events.TooLarge, events.Paused, events.NoBalance, events.StaleFence,
			events.Recovering, events.Released, events.Invalid}).Draw(d.t, "reason"),
	}
	if v.Refusal.HasLimit {
		v.Refusal.Limit = d.amount()
	}
	if v.Refusal.HasRetry {
		v.Refusal.RetryMS = d.in(0, 1<<40)
	}
	return v
}
