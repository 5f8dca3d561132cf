package admission

import "github.com/weirhq/weir/events"

// debit takes a final's cost from a request's balance, and from its hold as much of it as is left.
func (f *Fold) debit(req *request, cost int64) {
	m := req.balance
	if m == nil {
		return
	}
	m.whole = add(m.whole, -cost)
	part := min(cost, req.hold)
	req.hold -= part
	m.sum = add(m.sum, -part)
	f.changed(m)
}

// dropHold gives up what is left of a request's hold.
func (f *Fold) dropHold(req *request) {
	f.timers.remove(&req.holdTimer)
	if req.hold == 0 {
		return
	}
	req.balance.sum = add(req.balance.sum, -req.hold)
	req.hold = 0
	f.changed(req.balance)
}

// credit adds to an org's balance, once per reference.
func (f *Fold) credit(d *events.Credit) {
	if d.AmountNano > events.MaxAmount || d.AmountNano < -events.MaxAmount {
		f.Counts.OutOfRange++
		return
	}
	name := events.NewMeter(events.ScopeOrg, "balance", string(d.Org))
	m := f.meters[string(name)]
	if m != nil && m.kind != events.Balance {
		return
	}
	ref := string(d.Org) + "\x00" + d.Reference
	if _, done := f.credits[ref]; done {
		return
	}
	f.credits[cloneString(ref)] = struct{}{}
	if m == nil {
		m = f.newMeter(name, events.Balance, 0, 0, 0)
	}
	m.whole = add(m.whole, d.AmountNano)
	f.changed(m)
}
