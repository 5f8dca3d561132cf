package policy

import (
	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/estimate"
)

// builder adds a plan's claims gate by gate.
type builder struct {
	in        *Input
	p         *Plan
	scopes    []authority.Scope
	claims    []events.Claim
	generates bool
	prepaid   bool
}

const millionths = 1_000_000

func (b *builder) add(c events.Claim) { b.claims = append(b.claims, c) }

// replaced says whether a scope gives way to a dedicated endpoint's own limits: all but the platform's.
func (b *builder) replaced(s *authority.Scope) bool {
	return b.in.Model.Dedicated != nil && s.Scope != events.ScopePlatform
}

// window adds a claim of a minute or a second, if there is a limit.
func (b *builder) window(m events.Meter, ms, amount, limit int64, basis string) {
	if limit > 0 {
		b.add(events.Claim{Meter: m, Kind: events.Window, WindowMS: ms, Amount: amount, Limit: limit, HasLimit: true, Basis: basis})
	}
}

// shadow adds a claim of the same on the meter beside it that refuses nothing, if there is a limit to try out.
func (b *builder) shadow(m events.Meter, ms, amount, limit int64, basis string) {
	if limit > 0 {
		b.add(events.Claim{Meter: authority.Shadow(m), Kind: events.Window, WindowMS: ms, Amount: amount, Limit: limit, HasLimit: true, Basis: basis, Shadow: true})
	}
}

const (
	minuteMS = 60_000
	secondMS = 1_000
)

// rates adds rpm and rps of every scope, outermost first.
func (b *builder) rates() {
	for i := range b.scopes {
		if s := &b.scopes[i]; !b.replaced(s) {
			b.window(s.Names.RPM, minuteMS, 1, s.Limits.RPM, events.BasisRequest)
			b.window(s.Names.RPS, secondMS, 1, s.Limits.RPS, events.BasisRequest)
			b.shadow(s.Names.RPM, minuteMS, 1, s.Limits.Shadow.RPM, events.BasisRequest)
			b.shadow(s.Names.RPS, secondMS, 1, s.Limits.Shadow.RPS, events.BasisRequest)
		}
	}
	if d := b.in.Model.Dedicated; d != nil {
		names := b.in.Model.Names()
		b.window(names.Endpoint.RPM, minuteMS, 1, d.Limits.RPM, events.BasisRequest)
		if d.QueueMS > 0 && d.Limits.RPS > 0 {
			b.add(events.Claim{Meter: names.Pace, Kind: events.Pace, Amount: 1, Limit: d.Limits.RPS, HasLimit: true, QueueMS: d.QueueMS, Basis: events.BasisRequest})
		} else {
			b.window(names.Endpoint.RPS, secondMS, 1, d.Limits.RPS, events.BasisRequest)
		}
	}
	limits := b.model()
	limits.RPM = authority.Strictest(limits.RPM, b.perReplica())
	if limits.RPM > 0 {
		b.window(authority.OrgModel(b.in.Key.Org, b.in.Model, "rpm"), minuteMS, 1, limits.RPM, events.BasisRequest)
	}
	if limits.RPS > 0 {
		b.window(authority.OrgModel(b.in.Key.Org, b.in.Model, "rps"), secondMS, 1, limits.RPS, events.BasisRequest)
	}
	if s := limits.Shadow; s != (authority.Rates{}) {
		b.shadow(authority.OrgModel(b.in.Key.Org, b.in.Model, "rpm"), minuteMS, 1, s.RPM, events.BasisRequest)
		b.shadow(authority.OrgModel(b.in.Key.Org, b.in.Model, "rps"), secondMS, 1, s.RPS, events.BasisRequest)
	}
}

// model gives the org's limits for this model.
func (b *builder) model() authority.Limits {
	if org := b.in.Snapshot.Orgs[b.in.Key.Org]; org != nil {
		return org.Models[b.in.Model.ID]
	}
	return authority.Limits{}
}

// perReplica is the rpm that the key's quota gives for this model: scaled by healthy replicas. Without any it is not checked, so
// that routing can say what is wrong. A model that providers alone serve counts as one replica.
func (b *builder) perReplica() int64 {
	quota := b.in.Key.Quota.PerModel[b.in.Model.ID]
	if b.in.Model.Local == nil {
		return quota.RequestsPerMinutePerReplica
	}
	return estimate.Multiply(quota.RequestsPerMinutePerReplica, max(b.in.Healthy, 0))
}

// footprint is what the request occupies of a model at first: learned input and declared output.
func (b *builder) footprint() int64 {
	return estimate.Add(b.p.Estimate.Learned, b.p.Estimate.Declared)
}

// replicas is by how much limits for each replica are scaled. At least one, so that no gate is ever off for want of replicas.
func (b *builder) replicas() int64 { return max(b.in.Healthy, 1) }

// occupancy adds B2. Requests that never enter the local pool do not occupy it.
func (b *builder) occupancy() {
	pol := &b.in.Model.Policy
	if !b.in.Target.Local {
		return
	}
	names := b.in.Model.Names()
	park := false
	if pol.AdmitBudgetTokens > 0 {
		all := estimate.Multiply(pol.AdmitBudgetTokens, b.replicas())
		limit := max(authority.ScaleDown(all, b.in.Settings.FractionPPM, millionths), 1)
		b.add(events.Claim{Meter: names.Occupancy, Kind: events.Gauge, Life: events.LifeLocal, Park: true,
			Amount: b.footprint(), Limit: limit, HasLimit: true, Basis: events.BasisFootprint})
		b.p.bases |= usesFootprint
		park = true
	}
	if pol.MaxInflight > 0 {
		b.add(events.Claim{Meter: names.Inflight, Kind: events.Gauge, Life: events.LifeLocal, Park: true,
			Amount: 1, Limit: estimate.Multiply(pol.MaxInflight, b.replicas()), HasLimit: true, Basis: events.BasisSlot})
		park = true
	}
	if park {
		b.p.ParkMS = b.in.Settings.ParkMS
	}
}

// serverless adds B4.
func (b *builder) serverless() {
	pol, quota := &b.in.Model.Policy, &b.in.Key.Quota
	if !pol.Serverless {
		return
	}
	meter := func(dimension string) events.Meter { return authority.KeyModel(b.in.Key, b.in.Model, dimension) }
	if quota.OccupancyShare > 0 && pol.AdmitBudgetTokens > 0 && b.in.Target.Local {
		all := estimate.Multiply(pol.AdmitBudgetTokens, b.replicas())
		b.add(events.Claim{Meter: meter("occupancy"), Kind: events.Gauge, Life: events.LifeLocal, Amount: b.footprint(),
			Limit: max(authority.ScaleDown(all, quota.OccupancyShare, millionths), 1), HasLimit: true, Basis: events.BasisFootprint})
		b.p.bases |= usesFootprint
	}
	if quota.OutputTokensPerMinute > 0 && b.in.Target.Local {
		b.add(events.Claim{Meter: meter("otpm"), Kind: events.Bucket, Life: events.LifeLocal, Check: 1, HasCheck: true,
			Limit: quota.OutputTokensPerMinute, HasLimit: true, Basis: events.BasisOutput})
		b.p.bases |= usesOutput
	}
	if quota.InputTokensPerMinute > 0 {
		b.add(events.Claim{Meter: meter("itpm"), Kind: events.Bucket, Life: events.LifeLocal, Amount: b.p.Estimate.Learned,
			Limit: quota.InputTokensPerMinute, HasLimit: true, Basis: b.localBasis(events.BasisInput, usesInput)})
	}
}

// localBasis is the basis of a charge that is trued up only by what the local pool used.
func (b *builder) localBasis(basis string, use bases) string {
	if !b.in.Target.Local {
		return BasisFixed
	}
	b.p.bases |= use
	return basis
}

// tokens adds tpm and concurrency of every scope, outermost first.
func (b *builder) tokens() {
	amount, basis := b.reserved()
	for i := range b.scopes {
		if s := &b.scopes[i]; !b.replaced(s) {
			b.pair(s.Names.TPM, s.Names.Concurrency, &s.Limits, amount, basis)
		}
	}
	if d := b.in.Model.Dedicated; d != nil {
		names := b.in.Model.Names()
		b.pair(names.Endpoint.TPM, names.Endpoint.Concurrency, &d.Limits, amount, basis)
	}
	if limits := b.model(); limits.TPM > 0 || limits.Concurrency > 0 || limits.Shadow != (authority.Rates{}) {
		m := b.in.Model
		b.pair(authority.OrgModel(b.in.Key.Org, m, "tpm"), authority.OrgModel(b.in.Key.Org, m, "concurrency"), &limits, amount, basis)
	}
}

// reserved is what tpm charges at first, and the basis that replaces it.
func (b *builder) reserved() (amount int64, basis string) {
	e := &b.p.Estimate
	if b.p.weights == (authority.Weights{}) {
		return estimate.Add(e.Reservation, e.Counted), events.BasisTotal
	}
	return weigh(b.p.weights, events.Usage{InputTokens: e.Reservation, OutputTokens: e.Counted}), BasisWeighted
}

func (b *builder) pair(tpm, concurrency events.Meter, l *authority.Limits, amount int64, basis string) {
	if l.TPM > 0 || l.Shadow.TPM > 0 {
		b.window(tpm, minuteMS, amount, l.TPM, basis)
		b.shadow(tpm, minuteMS, amount, l.Shadow.TPM, basis)
		if b.p.bases |= usesTotal; basis == BasisWeighted {
			b.p.bases |= usesWeighted
		}
	}
	if l.Concurrency > 0 {
		b.add(events.Claim{Meter: concurrency, Kind: events.Gauge, Amount: 1, Limit: l.Concurrency, HasLimit: true, Basis: events.BasisSlot})
	}
	if l.Shadow.Concurrency > 0 {
		b.add(events.Claim{Meter: authority.Shadow(concurrency), Kind: events.Gauge, Amount: 1, Limit: l.Shadow.Concurrency, HasLimit: true,
			Basis: events.BasisSlot, Shadow: true})
	}
}

// daily adds the daily token budgets: the owner's, the key's own, and the owner's for this model.
func (b *builder) daily() {
	for i := range b.scopes {
		b.day(b.scopes[i].Names.Daily, b.scopes[i].Daily)
	}
	if quota := b.in.Key.Quota.PerModel[b.in.Model.ID]; quota.TokensPerDay > 0 {
		b.day(authority.OrgModel(b.in.Key.Org, b.in.Model, "daily"), quota.TokensPerDay)
	}
}

func (b *builder) day(m events.Meter, limit int64) {
	if limit == 0 {
		return
	}
	e := &b.p.Estimate
	b.add(events.Claim{Meter: m, Kind: events.Budget, Period: events.Day, Life: events.LifeLocal, Amount: e.Learned,
		Check: estimate.Add(e.Learned, e.Declared), HasCheck: true, Limit: limit, HasLimit: true, Basis: b.localBasis(events.BasisTotal, usesTotal)})
}

// money adds spend caps and the balance. A model without a price costs nothing, and neither does an account of the org's own without
// a fee.
func (b *builder) money() {
	if b.p.free {
		return
	}
	for i := range b.scopes {
		switch s := &b.scopes[i]; s.Scope {
		case events.ScopeOrg, events.ScopeWorkspace, events.ScopeKey:
			b.cap(s.Names.SpendDay, events.Day, s.Limits.SpendDay)
			b.cap(s.Names.SpendMonth, events.Month, s.Limits.SpendMonth)
		}
	}
	if b.prepaid {
		b.add(events.Claim{Meter: b.in.Snapshot.Balance(b.in.Key), Kind: events.Balance, Amount: b.p.HoldNano, Basis: events.BasisMoney})
	}
}

func (b *builder) cap(m events.Meter, period events.Period, limit int64) {
	if limit > 0 {
		b.add(events.Claim{Meter: m, Kind: events.Budget, Period: period, Amount: b.p.HoldNano, Limit: limit, HasLimit: true, Basis: events.BasisCost})
		b.p.bases |= usesCost
	}
}

// attempt adds what one attempt claims of a provider account: the leaf's pause, each pool up the chain, then the org's fair share
// of each house pool.
func (b *builder) attempt(claims []events.Claim, t Target) []events.Claim {
	chain := b.in.Snapshot.Chain(t.Pool)
	if len(chain) == 0 {
		return claims
	}
	tokens := estimate.Add(b.p.Estimate.Reservation, b.p.Estimate.Counted)
	b.p.bases |= usesTotal
	claims = append(claims, events.Claim{Meter: chain[0].Pause, Kind: events.Pause, Life: events.LifeAttempt, Basis: events.BasisRequest})
	for i := range chain {
		p := chain[i].Pool
		claims = account(claims, [3]events.Meter{chain[i].RPM, chain[i].TPM, chain[i].Concurrency}, [3]int64{p.RPM, p.TPM, p.Concurrency}, tokens)
	}
	org := b.in.Key.Org
	for i := range chain {
		p := chain[i].Pool
		if p.Org != "" || p.FairShare == 0 {
			continue
		}
		share := func(limit int64) int64 {
			if limit == 0 {
				return 0
			}
			return max(authority.ScaleDown(limit, p.FairShare, millionths), 1)
		}
		meters := [3]events.Meter{chain[i].OrgShare(org, "rpm"), chain[i].OrgShare(org, "tpm"), chain[i].OrgShare(org, "concurrency")}
		claims = account(claims, meters, [3]int64{share(p.RPM), share(p.TPM), share(p.Concurrency)}, tokens)
	}
	return claims
}

// account adds rpm, tpm and concurrency of one account.
func account(claims []events.Claim, meters [3]events.Meter, limits [3]int64, tokens int64) []events.Claim {
	if limits[0] > 0 {
		claims = append(claims, events.Claim{Meter: meters[0], Kind: events.Window, Life: events.LifeAttempt, WindowMS: minuteMS,
			Amount: 1, Limit: limits[0], HasLimit: true, Basis: events.BasisRequest})
	}
	if limits[1] > 0 {
		claims = append(claims, events.Claim{Meter: meters[1], Kind: events.Window, Life: events.LifeAttempt, WindowMS: minuteMS,
			Amount: tokens, Limit: limits[1], HasLimit: true, Basis: events.BasisTotal})
	}
	if limits[2] > 0 {
		claims = append(claims, events.Claim{Meter: meters[2], Kind: events.Gauge, Life: events.LifeAttempt,
			Amount: 1, Limit: limits[2], HasLimit: true, Basis: events.BasisSlot})
	}
	return claims
}

// AttemptClaims are the claims of a further attempt of a planned request: those of its target's pools alone, never nil. The
// refusal is CapacityUnknown: the account has no pool.
func AttemptClaims(in *Input, p *Plan, t Target) ([]events.Claim, *Local) {
	if l := capacity(in.Snapshot, in.Model, t); l != nil {
		return nil, l
	}
	b := builder{in: in, p: p}
	return b.attempt([]events.Claim{}, t), nil
}

// capacity refuses a provider account whose capacity nobody declared: it is not taken to be unlimited.
func capacity(s *authority.Snapshot, m *authority.Model, t Target) *Local {
	if t.Local || s.Pools[t.Pool] != nil {
		return nil
	}
	return &Local{Cause: CapacityUnknown, Model: m.ID, Pool: t.Pool}
}
