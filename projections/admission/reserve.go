package admission

import "github.com/weirhq/weir/events"

// reserve takes a reserve: once, if it keeps the rules, as a lease of its gateway, and then admitted, refused or left to wait.
func (f *Fold) reserve(r *events.Record, d *events.Reserve) {
	if req := f.request(d.Request); req != nil {
		if a := req.attempt(d.Attempt); a != nil && a.state != attemptAhead {
			f.settle(req)
			return
		}
	}
	if refusal, broken := f.broken(d); broken {
		f.refuseInvalid(r, d, refusal)
		return
	}
	w := f.current
	if f.current = nil; w == nil {
		w = &waiter{}
	}
	*w = waiter{attempt: d.Attempt, reserve: d, meters: w.meters[:0], seq: r.Seq, org: r.Org, since: f.now}
	for i := range d.Claims {
		w.meters = append(w.meters, f.meter(&d.Claims[i]))
	}
	f.renew(d.Gateway, d.Epoch, 0)
	f.wake()

	req, a := f.known(d.Request, d.Attempt)
	w.req = req
	f.process(w, a)
	if w.arrival == 0 {
		f.current = w
	}
}

// process decides on a valid reserve.
func (f *Fold) process(w *waiter, a *attempt) {
	req, d := w.req, w.reserve
	if d.Mode == events.ModeBoundedLocal {
		f.admit(w, a)
		if req.ended {
			f.freeAll(req)
			f.holdOn(req)
		}
		f.settle(req)
		return
	}
	if reason, retry := f.barred(req, a, d); reason != "" {
		f.refuse(w, events.Refusal{Claim: -1, Reason: reason, RetryMS: retry, HasRetry: retry > 0})
		return
	}
	f.decide(w)
}

// freeAll frees the gauges of a request that had ended before this attempt of it was admitted.
func (f *Fold) freeAll(req *request) {
	for i := range req.charges {
		f.free(&req.charges[i], freed)
	}
}

// broken looks for the first rule that a reserve breaks.
func (f *Fold) broken(d *events.Reserve) (refusal events.Refusal, broken bool) {
	refusal = events.Refusal{Claim: -1, Reason: events.Invalid}
	g := f.gateways[d.Gateway]
	switch {
	case d.Request == "", d.Claims == nil, len(d.Claims) > events.MaxClaims,
		d.ParkMS < 0 || d.ParkMS > events.MaxParkMS,
		d.MaxMS < events.MinMaxMS || d.MaxMS > events.MaxMaxMS,
		g != nil && d.Epoch < g.epoch:
		return refusal, true
	}
	balances := f.request(d.Request).balances()
	for i := range d.Claims {
		c := &d.Claims[i]
		if c.Kind == events.Balance {
			balances++
		}
		if f.claimBroken(d.Claims[:i], c) || balances > 1 && c.Kind == events.Balance {
			return events.Refusal{Claim: i, Meter: c.Meter, Reason: events.Invalid, Limit: c.Limit, HasLimit: c.HasLimit, Requested: c.Need(), Odd: c.Odd}, true
		}
	}
	return refusal, false
}

// balances counts the balance claims that a request has or waits for.
func (r *request) balances() (n int) {
	if r == nil {
		return 0
	}
	if r.balance != nil {
		n++
	}
	for i := range r.attempts {
		if w := r.attempts[i].waiter; w != nil {
			for j := range w.reserve.Claims {
				if w.reserve.Claims[j].Kind == events.Balance {
					n++
				}
			}
		}
	}
	return n
}

func (f *Fold) claimBroken(before []events.Claim, c *events.Claim) bool {
	most := int64(events.MaxAmount)
	if c.Kind == events.Bucket {
		most = events.MaxBucketAmount
	}
	switch {
	case c.Kind == events.MeterUnknown, c.Meter == "":
		return true
	case c.Odd != nil, c.Amount < 0, c.Amount > most,
		c.HasCheck && (c.Check < 0 || c.Check > most),
		c.HasLimit && (c.Limit < 0 || c.Limit > most):
		return true
	case (c.Kind == events.Bucket || c.Kind == events.Pace) && (!c.HasLimit || c.Limit == 0):
		return true
	case c.Kind == events.Window && c.WindowMS != 60_000 && c.WindowMS != 1_000:
		return true
	case c.Kind == events.Budget && c.Period == events.PeriodUnknown:
		return true
	}
	for i := range before {
		if before[i].Meter == c.Meter {
			return true
		}
	}
	m := f.meters[string(c.Meter)]
	return m != nil && (m.kind != c.Kind || m.kind == events.Window && m.windowMS != c.WindowMS || m.kind == events.Budget && m.period != c.Period)
}

func (f *Fold) refuseInvalid(r *events.Record, d *events.Reserve, refusal events.Refusal) {
	f.answer(events.Verdict{Request: d.Request, Attempt: d.Attempt, Gateway: d.Gateway, Org: r.Org, Seq: r.Seq, Time: f.now, Refusal: &refusal})
	req, a := f.known(d.Request, d.Attempt)
	a.state, a.kept = attemptRefused, nil
	req.idleSince = max(req.idleSince, f.now)
	f.settle(req)
}

// barred says why a valid reserve is refused before any claim is judged.
func (f *Fold) barred(req *request, a *attempt, d *events.Reserve) (reason events.Reason, retryMS int64) {
	if d.Fence < f.fences[d.Org] {
		return events.StaleFence, 0
	}
	if f.now < f.recoverUntil {
		for i := range d.Claims {
			c := &d.Claims[i]
			if c.HasLimit && (c.Kind == events.Window || c.Kind == events.Bucket || c.Kind == events.Budget) {
				return events.Recovering, ceilMS(f.recoverUntil - f.now)
			}
		}
	}
	if req.ended {
		return events.Released, 0
	}
	for _, d := range a.kept {
		if release, ok := d.(*events.Release); ok && release.Of != events.OfLocal {
			return events.Released, 0
		}
	}
	return "", 0
}

// trial is what judging all claims of a reserve comes to.
type trial struct {
	first    int // the first claim that fails, shadow aside; −1 if none does
	failed   judgement
	parkable bool // every failure is a gauge on which it may wait
	over     []*meter
	waitMS   int64
	shadow   []int
}

// try judges all claims.
func (f *Fold) try(w *waiter) trial {
	f.recall(w)
	t := trial{first: -1, parkable: true}
	for i := range w.reserve.Claims {
		c := &w.reserve.Claims[i]
		j := f.judge(w.meters[i], c)
		if c.Shadow {
			if !j.ok {
				t.shadow = append(t.shadow, i)
			}
			continue
		}
		t.waitMS = max(t.waitMS, j.waitMS)
		if j.ok {
			continue
		}
		if t.first < 0 {
			t.first, t.failed = i, j
		}
		if j.parkable {
			t.over = append(t.over, w.meters[i])
		} else {
			t.parkable = false
		}
	}
	return t
}

// recall makes meters known again that were forgotten while a reserve waited. One whose name means something else by now stays aside.
func (f *Fold) recall(w *waiter) {
	for i, m := range w.meters {
		if !m.forgotten {
			continue
		}
		if now := f.meter(&w.reserve.Claims[i]); now.same(m) {
			w.meters[i] = now
		}
	}
}

// decide judges a reserve that has just come: admitted, refused or left to wait.
func (f *Fold) decide(w *waiter) {
	t := f.try(w)
	if t.first >= 0 && (!t.parkable || w.reserve.ParkMS == 0) {
		f.refuse(w, w.refusal(t.first, t.failed))
		return
	}
	on := t.over
	for i := range w.reserve.Claims {
		m := w.meters[i]
		if !w.parks(i) || len(m.waiters) == 0 || contains(on, m) {
			continue
		}
		if w.reserve.ParkMS == 0 {
			f.refuse(w, w.busy(i, m))
			return
		}
		on = append(on, m)
	}
	if len(on) == 0 {
		f.admitDecided(w, &t)
		return
	}
	for i := range w.reserve.Claims {
		if m := w.meters[i]; w.parks(i) && len(m.waiters) >= maxWaiters && contains(on, m) {
			f.refuse(w, w.busy(i, m))
			return
		}
	}
	f.park(w, on)
}

func contains(all []*meter, m *meter) bool {
	for _, other := range all {
		if other == m {
			return true
		}
	}
	return false
}

// refusal names a claim that failed.
func (w *waiter) refusal(i int, j judgement) events.Refusal {
	c := &w.reserve.Claims[i]
	return events.Refusal{Claim: i, Meter: w.meters[i].name, Reason: j.reason, Used: j.used, Limit: c.Limit, HasLimit: c.HasLimit, Requested: c.Need(), RetryMS: j.retryMS, HasRetry: j.hasRetry}
}

// busy names a gauge on which others wait.
func (w *waiter) busy(i int, m *meter) events.Refusal {
	return w.refusal(i, judgement{used: m.sum, reason: events.OverLimit, retryMS: retryGauge, hasRetry: true})
}

// refuse answers a reserve with a refusal, and drops what was kept for it.
func (f *Fold) refuse(w *waiter, refusal events.Refusal) {
	v := w.verdict(f.now)
	v.Used = f.listAll(w)
	v.Refusal = &refusal
	f.answer(v)
	a := w.req.attempt(w.attempt)
	a.state, a.kept, a.waiter = attemptRefused, nil, nil
	w.req.idleSince = max(w.req.idleSince, f.now)
	f.settle(w.req)
}

func (f *Fold) listAll(w *waiter) []int64 {
	f.recall(w)
	used := make([]int64, len(w.meters))
	for i, m := range w.meters {
		used[i] = f.list(m, &w.reserve.Claims[i])
	}
	return used
}

// admitDecided admits a reserve whose claims have all been judged.
func (f *Fold) admitDecided(w *waiter, t *trial) {
	w.waitMS, w.shadow = t.waitMS, t.shadow
	a := w.req.attempt(w.attempt)
	f.admit(w, a)
	f.settle(w.req)
}

// admit charges all claims, answers, and folds what was kept for the attempt.
func (f *Fold) admit(w *waiter, a *attempt) {
	req, d := w.req, w.reserve
	a.state, a.waiter = attemptAdmitted, nil
	if req.admitted++; req.admitted == 1 && !req.ended {
		f.start(req, w)
	}
	at := f.now
	if d.Mode == events.ModeBoundedLocal {
		if d.At != 0 {
			at = min(at, d.At)
		}
		for i, m := range w.meters {
			if m.kind == events.Pace && !d.Claims[i].Shadow {
				w.waitMS = max(w.waitMS, ceilMS(m.mark-f.now))
			}
		}
	}
	if req.charges == nil {
		req.charges = make([]charge, 0, len(d.Claims))
	}
	for i, m := range w.meters {
		ch := f.take(m, &d.Claims[i], d.Attempt, at)
		if m.kind == events.Balance {
			req.balance, req.hold = m, add(req.hold, ch.amount)
		}
		req.charges = append(req.charges, ch)
	}
	v := w.verdict(f.now)
	v.Admitted, v.WaitMS, v.Shadow = true, w.waitMS, w.shadow
	v.Used = f.listAll(w)
	f.answer(v)

	kept := a.kept
	a.kept = nil
	for _, d := range kept {
		switch d := d.(type) {
		case *events.TrueUp:
			f.trueUp(req, d)
		case *events.Release:
			f.release(req, d)
		}
	}
}

// start makes a request a running one of its first admitted attempt's gateway.
func (f *Fold) start(req *request, w *waiter) {
	g := f.gateways[w.reserve.Gateway]
	req.gateway, req.epoch, req.order = g, w.reserve.Epoch, w.arrival
	if req.order == 0 {
		f.arrived++
		req.order = f.arrived
	}
	g.running = append(g.running, req)
	req.place = len(g.running)
	req.maxAt = f.now + w.reserve.MaxMS*ms
	f.timers.set(&req.endTimer, req.maxAt)
}
