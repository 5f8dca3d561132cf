package admission

import "github.com/weirhq/weir/events"

// Holding is what one claim of a request that can still change holds of a meter.
type Holding struct {
	Request events.RequestID
	Attempt int64
	Amount  int64
	At      int64 // window: ns at which its bucket began; else 0
}

// Holdings gives what requests hold of a meter, in the order of their ids: gauges that are held, window buckets that are live, budgets of the
// running period, and a balance's holds. Requests that are settled no longer name what they charged; their part of Used is not listed.
func (f *Fold) Holdings(name events.Meter, each func(Holding)) {
	m := f.meters[string(name)]
	if m == nil {
		return
	}
	f.used(m)
	for _, id := range sorted(f.requests) {
		req := f.requests[id]
		for i := range req.charges {
			ch := &req.charges[i]
			if ch.meter == m && !ch.back && ch.amount != 0 {
				if h, holds := f.holding(req, ch); holds {
					each(h)
				}
			}
		}
	}
}

func (f *Fold) holding(req *request, ch *charge) (Holding, bool) {
	h := Holding{Request: req.id, Attempt: ch.attempt, Amount: ch.amount}
	switch m := ch.meter; m.kind {
	case events.Gauge:
		return h, ch.held == held
	case events.Window:
		size, live := m.grain()
		h.At = ch.at * size
		return h, ch.at >= f.now/size-live
	case events.Budget:
		return h, ch.at == m.mark
	case events.Balance:
		h.Amount = req.hold
		return h, req.hold != 0
	}
	return h, false
}
