// Package policy turns one request into the claims that it makes: which gates it passes, in which order, how much it asks of
// each meter and what happens to that later. It decides nothing that needs shared state: that is the fold's. What one gateway can
// refuse by itself (a model that is not there, an input that can never fit, a pool under pressure) it refuses here.
package policy

import (
	"errors"
	"slices"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/estimate"
	"github.com/weirhq/weir/gateway/wire"
)

// Settings are what an operator sets for all models of a gateway.
type Settings struct {
	FractionPPM int64 // the admit fraction of B2, in millionths: above 0, at most 1,000,000
	ParkMS      int64 // how long a request may wait for occupancy: 0 to events.MaxParkMS
	MaxMS       int64 // how long a request may run; 0: events.DefaultMaxMS
}

// DefaultFractionPPM is the admit fraction that holds where none is set.
const DefaultFractionPPM = 900_000

// DefaultParkMS is how long a request may wait where nothing is set.
const DefaultParkMS = 250

// Pressure is how loaded a model's healthy replicas are on average. A signal that no replica gives passes.
type Pressure struct {
	KVCache    float64 // 0 to 1
	Waiting    float64 // requests
	HasKVCache bool
	HasWaiting bool
}

// Input is all that a plan depends on.
type Input struct {
	Snapshot *authority.Snapshot
	Key      *authority.Key
	Model    *authority.Model // from Lookup
	Request  *wire.Request
	Target   Target         // of the first attempt
	OwnOnly  bool           // no attempt can go anywhere but to accounts of the org's own
	Ratio    estimate.Ratio // learned, of this model; 0: estimate.FirstRatio
	Healthy  int64          // healthy replicas that serve the model
	Pressure Pressure
	Settings Settings
	Now      time.Time // decides which price holds

	MaxUndeclared int64 // lowers the output of a request that declares none (estimate.Model); 0: it is as usual
}

// Plan is what a request asks for.
type Plan struct {
	// Refusal is set when the gateway refuses by itself. Claims then has the rpm and rps claims alone: if the view shows one of
	// them over, that refusal comes first.
	Refusal *Local
	Claims  []events.Claim // of the first attempt, in the order of the gates; never nil
	Rates   int            // how many of Claims, from the first, are rpm and rps: the view is asked about them before all else

	Estimate estimate.Estimate
	Recorded events.Estimate // for the reserve
	Bound    int64           // the output bound to write into the body (wire.Edit); 0: none
	HoldNano int64           // what the request is expected to cost at most
	ParkMS   int64
	MaxMS    int64
	Price    *authority.Price // nil: the model costs nothing
	Target   Target

	fee  int64 // what an attempt at an account of the org's own costs, in millionths of the price
	free bool  // whatever happens, the request costs nothing

	unpriced bool // the model has no price now
	weights  authority.Weights
	train    bool
	bases    bases // those that the claims use
}

// bases is a set of bases of charges.
type bases uint8

const (
	usesTotal bases = 1 << iota
	usesInput
	usesOutput
	usesFootprint
	usesCost
	usesWeighted
)

// BasisWeighted is the basis of tpm where a model's tokens do not all weigh the same.
const BasisWeighted = "weighted"

// BasisFixed is the basis of charges that no true-up changes: those of a request that never was in the local pool.
const BasisFixed = "fixed"

// PriceVersion names the price that the request is held to; empty for a model without one.
func (p *Plan) PriceVersion() string {
	if p.Price == nil {
		return ""
	}
	return p.Price.Version
}

// New makes the plan of a request's first attempt.
func New(in *Input) *Plan {
	p, b := begin(in)
	if p.Refusal = b.local(); p.Refusal != nil {
		p.Claims = b.claims
		return p
	}
	b.gates()
	p.Claims = b.attempt(b.claims, in.Target)
	p.fit()
	return p
}

// Limits are the claims that show which limits hold for a key and a model, whatever its requests would be refused for. The model may be
// the zero one: then they are those of a request for any model.
func Limits(in *Input) []events.Claim {
	p, b := begin(in)
	p.free = false // caps hold, though nothing may cost anything now
	b.gates()
	return b.claims
}

// begin makes a plan that has the rates alone.
func begin(in *Input) (*Plan, *builder) {
	p := &Plan{Target: in.Target, MaxMS: in.Settings.MaxMS, Price: in.Model.PriceAt(in.Now), weights: in.Model.Weights, fee: in.Snapshot.BYOKFee}
	if p.MaxMS == 0 {
		p.MaxMS = events.DefaultMaxMS
	}
	p.unpriced = p.Price == nil
	if in.Request.Op == wire.CountTokens { // counting debits nothing
		p.Price = nil
	}
	p.free = p.Price == nil || in.OwnOnly && p.fee == 0
	p.train = in.Target.Local && in.Request.Trainable()
	b := &builder{in: in, p: p, scopes: in.Snapshot.Scopes(in.Key), generates: in.Request.Op.Generates()}
	b.claims = make([]events.Claim, 0, typicalClaims)
	b.rates()
	p.Rates = len(b.claims)
	return p, b
}

// gates adds what is claimed after the rates, but for what an attempt claims.
func (b *builder) gates() {
	if b.generates {
		b.occupancy()
		b.serverless()
	}
	b.tokens()
	if b.generates {
		b.daily()
	}
	if b.in.Request.Op != wire.CountTokens {
		b.money()
	}
}

// fit drops shadow claims, the last first, where a reserve would have more claims than it may: they refuse nothing, and without them
// every other one has room.
func (p *Plan) fit() {
	for i := len(p.Claims) - 1; i >= 0 && len(p.Claims) > events.MaxClaims; i-- {
		if !p.Claims[i].Shadow {
			continue
		}
		if p.Claims = slices.Delete(p.Claims, i, i+1); i < p.Rates {
			p.Rates--
		}
	}
}

// typicalClaims is for how many claims room is made at once.
const typicalClaims = 16

// ratio is the learned ratio, or the one that every model starts with.
func (in *Input) ratio() estimate.Ratio {
	if in.Ratio == 0 {
		return estimate.FirstRatio
	}
	return in.Ratio
}

// local makes the estimate and refuses what needs no shared state to refuse.
func (b *builder) local() *Local {
	in, p, m := b.in, b.p, b.in.Model
	r := in.Request
	if r.Background {
		return &Local{Cause: Background, Model: m.ID, Param: "background"}
	}
	shape := Shape(m)
	shape.MaxUndeclared = in.MaxUndeclared
	e, err := estimate.Of(r, in.ratio(), shape)
	if err != nil {
		return badField(m, err)
	}
	p.Estimate, p.Bound = e, e.Bound
	p.Recorded = events.Estimate{InputTokens: e.Learned, OutputTokens: e.Counted, OutputDeclared: e.IsDeclared, TextBytes: r.TextBytes, Images: r.Images}
	if e.IsDeclared {
		p.Recorded.OutputTokens = e.Declared
	}
	if org := in.Snapshot.Orgs[in.Key.Org]; org != nil && org.Billing == authority.Prepaid {
		if b.prepaid = r.Op != wire.CountTokens; b.prepaid && p.unpriced && !(in.OwnOnly && p.fee == 0) {
			return &Local{Cause: NoPrice, Model: m.ID}
		}
	}
	if l := capacity(in.Snapshot, m, in.Target); l != nil {
		return l
	}
	most := events.Usage{InputTokens: e.Reservation, OutputTokens: e.Held}
	if p.Price != nil && p.Price.Reasoning > p.Price.Output { // all of it may be reasoning
		most.ReasoningTokens = e.Held
	}
	p.HoldNano = p.CostNano(most, in.OwnOnly)
	if !b.generates {
		return nil
	}
	if most := m.Policy.MaxInputTokens; most > 0 && e.Learned > most {
		return &Local{Cause: InputTooLong, Model: m.ID, Requested: e.Learned, Limit: most}
	}
	if most := m.Policy.ImagesMax; most > 0 && r.Images > most {
		return &Local{Cause: TooManyImages, Model: m.ID, Requested: r.Images, Limit: most}
	}
	for _, t := range m.Policy.ShedIf {
		if v, known := in.Pressure.signal(t.Metric); known && t.Met(v) {
			return &Local{Cause: UnderPressure, Model: m.ID}
		}
	}
	return nil
}

// Shape is what the estimates need to know of a model.
func Shape(m *authority.Model) estimate.Model {
	shape := estimate.Model{MaxOutput: m.MaxOutputTokens, ContextWindow: m.ContextWindow, MaxInput: m.Policy.MaxInputTokens, Local: m.Local != nil}
	if m.Dedicated != nil {
		shape.DefaultOutput = m.Dedicated.DefaultMaxOutputTokens
	}
	return shape
}

func badField(m *authority.Model, err error) *Local {
	l := &Local{Cause: BadField, Model: m.ID, Message: err.Error(), Code: wire.CodeParameter}
	var bad *wire.BadRequest
	if errors.As(err, &bad) {
		l.Param, l.Code = bad.Param, bad.Code
	}
	return l
}

func (p *Pressure) signal(metric string) (v float64, known bool) {
	switch metric {
	case "kv_cache_utilization":
		return p.KVCache, p.HasKVCache
	case "waiting_requests":
		return p.Waiting, p.HasWaiting
	}
	return 0, false
}
