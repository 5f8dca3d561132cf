package twin

import "github.com/weirhq/weir/events"

// foldReserve goes through the steps of "Reserve".
func (t *Twin) foldReserve(rec *events.Record, d *events.Reserve) {
	r := t.request(d.Request)
	a := r.attempt(d.Attempt)
	// 1. "Already folded (same request and attempt): nothing happens, no verdict. So also after a refusal."
	if a.state != unseen {
		return
	}
	a.reserve, a.org, a.seq, a.index, a.arrived = d, d.Org, rec.Seq, rec.Index, t.now
	if a.org == "" {
		a.org = rec.Org
	}

	// 2. "Invalid: refused with `used: []`."
	if invalid, is := t.invalid(r, d); is {
		t.refuse(a, invalid, []int64{})
		return
	}
	for i := range d.Claims {
		t.know(&d.Claims[i])
	}

	// 3. "A valid reserve is a lease of its gateway and epoch (it sets the time and keeps the announced ttl); what that wakes comes first."
	t.lease(d.Gateway, d.Epoch, 0)
	t.wake()

	// 4. "`mode: bounded_local`: admitted without judging"
	if d.Mode == events.ModeBoundedLocal {
		t.admit(a, []int{})
		return
	}

	// 5. "Claim −1 in all three."
	if refusal, is := t.stopped(a); is {
		t.refuse(a, refusal, t.list(d))
		return
	}

	t.decide(a)
}

// decide is steps 6 and 7.
func (t *Twin) decide(a *attempt) {
	d := a.reserve
	// 6. "Judge all claims in order"
	failures, shadow := t.judgeAll(d)
	park := d.ParkMS > 0
	for _, f := range failures {
		park = park && f.parks
	}
	if len(failures) > 0 && !park {
		t.refuse(a, t.named(d, failures[0]), t.list(d))
		return
	}
	waits := map[events.Meter]bool{}
	for _, f := range failures {
		waits[d.Claims[f.claim].Meter] = true
	}
	// "It also waits on a `park` gauge of its own on which somebody already waits: nobody overtakes (with `park_ms: 0`, and only if no
	// claim fails, that is a refusal, `over_limit`, retry 1000, naming the first such claim)."
	for i := range d.Claims {
		if c := &d.Claims[i]; parks(c) && t.waitingOn(c.Meter, nil) > 0 {
			if d.ParkMS == 0 {
				t.refuse(a, t.named(d, full(i)), t.list(d))
				return
			}
			waits[c.Meter] = true
		}
	}
	// 7. "Otherwise all claims are charged: admitted."
	if len(waits) == 0 {
		t.admit(a, shadow)
		return
	}
	// "At most 256 wait on a gauge: one more is refused the same way, naming the first full one."
	for i := range d.Claims {
		if m := d.Claims[i].Meter; waits[m] && t.waitingOn(m, nil) >= maxWaiters {
			t.refuse(a, t.named(d, full(i)), t.list(d))
			return
		}
	}
	a.state, a.waitsOn = waiting, waits
	t.waiters = append(t.waiters, a)
}

// parks says whether a claim is a gauge on which its request may wait. A shadow's never is.
func parks(c *events.Claim) bool { return c.Kind == events.Gauge && c.Park && !c.Shadow }

// full is the refusal of who may not wait on a gauge.
func full(claim int) failure {
	return failure{claim: claim, reason: events.OverLimit, retry: gaugeRetry, hasRetry: true}
}

// invalid is step 2: "First the reserve itself (claim −1) […]. Then the claims in order, the first that breaks any rule".
func (t *Twin) invalid(r *request, d *events.Reserve) (events.Refusal, bool) {
	g := t.gateways[d.Gateway]
	if d.Request == "" || d.Claims == nil || len(d.Claims) > events.MaxClaims || d.ParkMS < 0 || d.ParkMS > events.MaxParkMS ||
		d.MaxMS < events.MinMaxMS || d.MaxMS > events.MaxMaxMS || g != nil && d.Epoch < g.epoch {
		return events.Refusal{Claim: -1, Reason: events.Invalid}, true
	}
	balances := 0
	for _, a := range r.attempts {
		if a.state == waiting || a.state == admitted && !a.settled {
			for i := range a.reserve.Claims {
				if a.reserve.Claims[i].Kind == events.Balance {
					balances++
				}
			}
		}
	}
	named := map[events.Meter]bool{}
	for i := range d.Claims {
		c := &d.Claims[i]
		if c.Kind == events.Balance {
			balances++
		}
		m := t.meters[c.Meter]
		if breaks(c) || named[c.Meter] || c.Kind == events.Balance && balances > maxBalances || m != nil && m.conflicts(c) {
			// "`limit` and `requested` (the check) are the named claim's; […] an invalid claim has `used` 0"
			return events.Refusal{Claim: i, Meter: c.Meter, Reason: events.Invalid, Limit: c.Limit, HasLimit: c.HasLimit, Requested: c.Need(), Odd: c.Odd}, true
		}
		named[c.Meter] = true
	}
	return events.Refusal{}, false
}

// breaks says whether a claim breaks a rule by itself.
func breaks(c *events.Claim) bool {
	most := int64(events.MaxAmount)
	if c.Kind == events.Bucket {
		most = events.MaxBucketAmount
	}
	for _, n := range []int64{c.Amount, c.Check, c.Limit} { // absent ones are 0
		if n < 0 || n > most {
			return true
		}
	}
	switch {
	case c.Kind == events.MeterUnknown, c.Meter == "", c.Odd != nil:
		return true
	case c.Kind == events.Bucket || c.Kind == events.Pace:
		return !c.HasLimit || c.Limit <= 0
	case c.Kind == events.Window:
		return c.WindowMS != 60_000 && c.WindowMS != 1000
	case c.Kind == events.Budget:
		return c.Period != events.Day && c.Period != events.Month
	}
	return false
}

// stopped is step 5.
func (t *Twin) stopped(a *attempt) (events.Refusal, bool) {
	d := a.reserve
	if d.Fence < t.fences[a.org] {
		return events.Refusal{Claim: -1, Reason: events.StaleFence}, true
	}
	// "Within 61 s of a `recover` with `windows: full`, when it has a window, bucket or budget claim with a limit, shadow or not"
	if rest := t.recovered + recoverFor - t.now; t.recovering && rest > 0 {
		for i := range d.Claims {
			switch c := &d.Claims[i]; c.Kind {
			case events.Window, events.Bucket, events.Budget:
				if c.HasLimit {
					return events.Refusal{Claim: -1, Reason: events.Recovering, RetryMS: ceilDiv(rest, ms), HasRetry: true}, true
				}
			}
		}
	}
	// "Its release (not `local`) came before it, or its request has ended"
	released := a.of.ended
	for _, k := range a.kept {
		if k, is := k.(*events.Release); is && k.Of != events.OfLocal {
			released = true
		}
	}
	return events.Refusal{Claim: -1, Reason: events.Released}, released
}

// judgeAll judges all claims, shadows apart.
func (t *Twin) judgeAll(d *events.Reserve) (failures []failure, shadow []int) {
	shadow = []int{}
	for i := range d.Claims {
		f, ok := t.judge(i, &d.Claims[i])
		switch {
		case ok:
		case d.Claims[i].Shadow:
			shadow = append(shadow, i)
		default:
			failures = append(failures, f)
		}
	}
	return failures, shadow
}

// named is the refusal that names a claim.
func (t *Twin) named(d *events.Reserve, f failure) events.Refusal {
	c := &d.Claims[f.claim]
	return events.Refusal{Claim: f.claim, Meter: c.Meter, Reason: f.reason, Used: t.used(c.Meter, t.look(c)), Limit: c.Limit, HasLimit: c.HasLimit,
		Requested: c.Need(), RetryMS: f.retry, HasRetry: f.hasRetry}
}

// list gives what every claim's meter shows.
func (t *Twin) list(d *events.Reserve) []int64 {
	used := []int64{}
	for i := range d.Claims {
		c := &d.Claims[i]
		used = append(used, t.used(c.Meter, t.look(c)))
	}
	return used
}

// admit is step 7: all claims are charged, and what came before is folded next.
func (t *Twin) admit(a *attempt, shadow []int) {
	r, d := a.of, a.reserve
	a.state = admitted
	if len(r.admitted) == 0 {
		r.gateway, r.epoch, r.began, r.maxMS = d.Gateway, d.Epoch, t.now, d.MaxMS
	}
	r.admitted = append(r.admitted, a)
	wait := int64(0)
	for i := range d.Claims {
		wait = max(wait, t.charge(a, &d.Claims[i]))
	}
	t.out = append(t.out, events.Verdict{Request: r.id, Attempt: a.n, Gateway: d.Gateway, Org: a.org, Seq: a.seq, Time: t.now, Admitted: true,
		ParkedMS: (t.now - a.arrived) / ms, WaitMS: wait, Used: t.list(d), Shadow: shadow})
	// "if the request has ended, its gauges are freed right after"
	if r.ended {
		for _, x := range r.charges {
			t.free(x)
		}
	}
	// "True-ups and releases of this attempt that came before it are folded next"
	kept := a.kept
	a.kept = nil
	for _, k := range kept {
		switch k := k.(type) {
		case *events.TrueUp:
			t.trueUp(a, k)
		case *events.Release:
			t.release(a, k)
		}
	}
}

// refuse answers no: "a refusal drops them", the true-ups and releases that came before it.
func (t *Twin) refuse(a *attempt, why events.Refusal, used []int64) {
	r := a.of
	a.state, a.kept = refused, nil
	r.refusal = t.now
	t.out = append(t.out, events.Verdict{Request: r.id, Attempt: a.n, Gateway: a.reserve.Gateway, Org: a.org, Seq: a.seq, Time: t.now,
		ParkedMS: (t.now - a.arrived) / ms, Used: used, Shadow: []int{}, Refusal: &why})
	t.settle(r)
}
