package authority

import (
	"cmp"

	"github.com/weirhq/weir/events"
)

// HoldRPM is what an org that pays in advance, and each of its keys, may ask a minute until its first credit.
const HoldRPM = 20

// effective is what holds for the scopes of one org: the files' limits, the defaults, the operator's and the org's own.
type effective struct {
	st       *OrgState
	static   *Org // nil: the files do not know it
	defaults *Defaults
	made     bool // has the defaults
	override Override
	hold     bool
}

func newEffective(static *Snapshot, org events.Org, st *OrgState) effective {
	e := effective{st: st, static: static.Orgs[org], defaults: &Defaults{}}
	if r := st.Record; r != nil {
		e.made = r.Made && e.static == nil
		if r.Override != nil {
			e.override = *r.Override
		}
		e.hold = e.made && e.billing() == Prepaid && !r.Credited && !r.Override.lifts()
	}
	if e.made {
		e.defaults = &static.Defaults
	}
	return e
}

// Held says whether an org is held to HoldRPM: it pays in advance, has had no credit, and no contract says otherwise.
func Held(static *Snapshot, org events.Org, st *OrgState) bool {
	e := newEffective(static, org, st)
	return e.hold
}

func (e *effective) billing() Billing {
	switch {
	case e.static != nil:
		return e.static.Billing
	case e.st.Record != nil && e.st.Record.Billing != "":
		return e.st.Record.Billing
	}
	return Postpaid
}

// own is what the org's people set for a scope.
func (e *effective) own(org events.Org, scope events.Scope, subject string) Limits {
	r := e.st.Limits[(&LimitRecord{Org: org, Scope: scope, Subject: subject}).Ref()]
	if r == nil {
		return Limits{}
	}
	return Limits{RPM: r.RPM, TPM: r.TPM, Concurrency: r.Concurrency, Closed: r.Closed}
}

// over gives the limits of a contract instead of those below them, where it has any.
func over(contract, below Limits) Limits {
	first := func(a, b int64) int64 {
		if a != 0 {
			return a
		}
		return b
	}
	return Limits{
		RPM: first(contract.RPM, below.RPM), RPS: first(contract.RPS, below.RPS), TPM: first(contract.TPM, below.TPM),
		Concurrency: first(contract.Concurrency, below.Concurrency), SpendDay: first(contract.SpendDay, below.SpendDay),
		SpendMonth: first(contract.SpendMonth, below.SpendMonth), Closed: contract.Closed || below.Closed, Shadow: cmp.Or(contract.Shadow, below.Shadow),
	}
}

// within gives what holds: an org's own limit in place of a default, but below what the operator gave. A closed outage mode
// of either holds.
func within(given, defaults, own Limits) Limits {
	one := func(given, otherwise, own int64) int64 {
		switch {
		case given != 0:
			return Strictest(given, own)
		case own != 0:
			return own
		}
		return otherwise
	}
	return Limits{
		RPM: one(given.RPM, defaults.RPM, own.RPM), RPS: one(given.RPS, defaults.RPS, own.RPS), TPM: one(given.TPM, defaults.TPM, own.TPM),
		Concurrency: one(given.Concurrency, defaults.Concurrency, own.Concurrency),
		SpendDay:    one(given.SpendDay, defaults.SpendDay, own.SpendDay), SpendMonth: one(given.SpendMonth, defaults.SpendMonth, own.SpendMonth),
		Closed: given.Closed || defaults.Closed || own.Closed, Shadow: cmp.Or(given.Shadow, defaults.Shadow),
	}
}

// held lowers rpm to the hold before the first credit.
func (e *effective) held(l Limits) Limits {
	if e.hold {
		l.RPM = Strictest(l.RPM, HoldRPM)
	}
	return l
}

// org is the org as it is decided on.
func (e *effective) org(id events.Org) *Org {
	o := &Org{ID: id, Billing: e.billing()}
	var given Limits
	if e.static != nil {
		*o = *e.static
		given = e.static.Limits
	} else if r := e.st.Record; r != nil && r.Name != string(id) {
		o.Name = r.Name
	}
	given = over(e.override.Org.Limits(), given)
	o.Limits = e.held(within(given, e.defaults.Org, e.own(id, events.ScopeOrg, "")))
	o.Models = e.models(id, o.Models)
	return o
}

// models are the org's limits of single models: the files', lowered by its own.
func (e *effective) models(id events.Org, files map[string]Limits) map[string]Limits {
	var all map[string]Limits
	for _, l := range e.st.Limits {
		if l.Scope != events.ScopeModel {
			continue
		}
		if all == nil {
			all = make(map[string]Limits, len(files)+1)
			for m, given := range files {
				all[m] = given
			}
		}
		all[l.Subject] = within(files[l.Subject], Limits{}, e.own(id, events.ScopeModel, l.Subject))
	}
	if all == nil {
		return files
	}
	return all
}

// scope is what holds for a workspace or a principal. given is what the files or its record give it.
func (e *effective) scope(org events.Org, scope events.Scope, id string, given Limits) Limits {
	defaults, contract := e.defaults.Workspace, e.override.Workspace
	if scope == events.ScopePrincipal {
		defaults, contract = e.defaults.Principal, e.override.Principal
	}
	return within(over(given, contract.Limits()), defaults, e.own(org, scope, id))
}

// key is what holds for a key. A limit of the org's own never raises the ceiling that the key was made with.
func (e *effective) key(org events.Org, id string, ceiling int64, given Limits) Limits {
	contract := e.override.Key.Limits()
	if contract.RPM != 0 {
		ceiling = contract.RPM
	} else if ceiling == 0 {
		ceiling = e.defaults.Key.RPM
	}
	given.RPM = Strictest(ceiling, given.RPM)
	contract.RPM = 0
	return e.held(within(over(given, contract), e.defaults.Key, e.own(org, events.ScopeKey, id)))
}

// build makes a record's key, without its limits.
func (r *KeyRecord) build() *Key {
	k := &Key{ID: r.ID, Org: r.Org, Workspace: r.Workspace, Principal: r.Principal, Name: r.Name, Preview: r.Preview, Expires: r.Expires,
		Daily: r.Daily, Quota: r.Quota.quota(), Dynamic: true}
	if len(r.Models) > 0 {
		k.Models = make(map[string]bool, len(r.Models))
		for _, m := range r.Models {
			k.Models[m] = true
		}
	}
	return k
}

// Key is the record as a key, for rules that need one. Its limits are those of the record alone.
func (r *KeyRecord) Key() *Key {
	k := r.build()
	k.Limits = r.Limits.Limits()
	return k
}

func (q *QuotaRecord) quota() Quota {
	out := Quota{RequestsPerMinute: q.RequestsPerMinute, TokensPerDay: q.TokensPerDay, InputTokensPerMinute: q.InputTokensPerMinute,
		OutputTokensPerMinute: q.OutputTokensPerMinute, OccupancyShare: q.OccupancyShare}
	if q.PerModel != nil {
		out.PerModel = make(map[string]ModelQuota, len(q.PerModel))
		for m, each := range q.PerModel {
			out.PerModel[m] = ModelQuota(each)
		}
	}
	return out
}

// Pool is the record as a pool, its headroom taken off.
func (r *PoolRecord) Pool() *Pool {
	p := &Pool{ID: r.ID, Org: r.Org, Provider: r.Provider, Parent: r.Parent,
		RPM: Usable(r.RPM, r.Headroom), TPM: Usable(r.TPM, r.Headroom), Concurrency: Usable(r.Concurrency, r.Headroom)}
	if r.Org == events.Platform {
		p.Org, p.FairShare = "", r.FairShare
		if p.FairShare == 0 {
			p.FairShare = shareOf(r.Provider)
		}
	}
	return p
}

// CustomerProviders are the labels that a pool of an org may have.
func CustomerProviders() []string { return append([]string(nil), customerProviders...) }
