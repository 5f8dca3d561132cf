package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/services/ledger"
)

const (
	claimsEach  = 32                    // budgets of one reserve
	publishRest = 50 * time.Millisecond // before an event is handed over again for which there was no room
)

// restorer writes to the log what it lacks of what was held before. What it has written it folds too, so that it knows what is still lacking.
type restorer struct {
	*recovery
	present    *admission.Fold
	publishers map[events.Gateway]*journal.Publisher
	working    *errgroup.Group
	ctx        context.Context
}

// restore publishes what the log lacks of what was held before: fences, credits, requests that run, the ends of those that ended, balances
// and the sums of running budgets.
func (r *recovery) restore(ctx context.Context, past *heldBefore, present *admission.Fold) error {
	working, stop := context.WithCancel(ctx)
	group, working := errgroup.WithContext(working)
	w := &restorer{recovery: r, present: present, publishers: map[events.Gateway]*journal.Publisher{}, working: group, ctx: working}
	err := w.all(ctx, past)
	stop()
	return errors.Join(err, group.Wait())
}

func (w *restorer) all(ctx context.Context, past *heldBefore) error {
	for _, write := range []func(*heldBefore) error{w.fences, w.credits, w.requests, w.balances, w.budgets, w.again} {
		if err := write(past); err != nil {
			return err
		}
	}
	for _, p := range w.publishers {
		if err := p.Flush(ctx); err != nil {
			return err
		}
	}
	return nil
}

// as gives what publishes a gateway's events.
func (w *restorer) as(gateway events.Gateway) (*journal.Publisher, error) {
	if p := w.publishers[gateway]; p != nil {
		return p, nil
	}
	p, err := w.log.Publisher(w.ctx, journal.PublisherConfig{Gateway: gateway, Now: time.Now})
	if err != nil {
		return nil, err
	}
	w.publishers[gateway] = p
	w.working.Go(func() error { return p.Run(w.ctx) })
	return p, nil
}

// write publishes an event, a gateway's as that gateway.
func (w *restorer) write(ev events.Event, gateway events.Gateway) error {
	w.present.Apply(&events.Record{Event: ev, Seq: w.present.Seq() + 1, At: w.now.UnixNano()})
	if gateway == "" {
		_, err := w.log.Publish(w.ctx, ev)
		return err
	}
	p, err := w.as(gateway)
	if err != nil {
		return err
	}
	for {
		err := p.Submit(ev, nil)
		if !errors.Is(err, journal.ErrFull) {
			return err
		}
		select {
		case <-w.ctx.Done():
			return w.ctx.Err()
		case <-time.After(publishRest):
		}
	}
}

func (w *restorer) fences(past *heldBefore) error {
	for _, org := range slices.Sorted(maps.Keys(past.Fences)) {
		version := past.Fences[org]
		if version <= w.present.Fence(org) {
			continue
		}
		ev := events.Event{ID: fmt.Sprintf("recover/%s/%s/fence", w.id, org), Org: org, Data: &events.Fence{Org: org, Version: version}}
		if err := w.write(ev, ""); err != nil {
			return err
		}
		w.say("%s: fence %d", org, version)
	}
	return nil
}

// credits makes known which credits were counted, so that none that comes again counts twice. Their amounts are in the balances.
func (w *restorer) credits(past *heldBefore) (err error) {
	counted := ledger.PastOf(w.present, w.now.UnixNano())
	n := 0
	past.Credited(func(org events.Org, reference string) {
		if err != nil || counted.HasCredit(org, reference) {
			return
		}
		n++
		ev := events.Event{ID: "credit/" + uuid.NewString(), Org: org, Data: &events.Credit{Org: org, Reference: reference}}
		err = w.write(ev, "")
	})
	if n > 0 {
		w.say("%d credits of before are known, and count no second time", n)
	}
	return err
}

// balances brings each to what it was.
func (w *restorer) balances(past *heldBefore) error {
	now := ledger.PastOf(w.present, w.now.UnixNano()).Balances
	all := maps.Clone(now)
	maps.Copy(all, past.Balances)
	for _, m := range slices.Sorted(maps.Keys(all)) {
		amount := past.Balances[m] - now[m]
		org := events.Org(m.Parts()[0])
		for n := 0; amount != 0; n++ {
			part := min(max(amount, -events.MaxAmount), events.MaxAmount)
			amount -= part
			reference := fmt.Sprintf("recover/%s/%s", w.id, org)
			if n > 0 {
				reference += fmt.Sprint("/", n)
			}
			ev := events.Event{ID: reference + "/credit", Org: org, Data: &events.Credit{Org: org, AmountNano: part, Reference: reference}}
			if err := w.write(ev, ""); err != nil {
				return err
			}
			w.say("%s: credit of %d nano-dollars: the balance is %d", org, part, past.Balances[m]-amount)
		}
	}
	return nil
}

// budgets charges what running budgets lack: a request for some of them each, admitted, settled and ended.
func (w *restorer) budgets(past *heldBefore) error {
	now := ledger.PastOf(w.present, w.now.UnixNano()).Budgets
	var lack []events.Claim
	for _, m := range slices.Sorted(maps.Keys(past.Budgets)) {
		b := past.Budgets[m]
		switch diff := b.Used - now[m].Used; {
		case diff > 0:
			lack = append(lack, events.Claim{Meter: m, Kind: events.Budget, Period: ledger.PeriodOf(m), Amount: diff, Limit: b.Limit, HasLimit: b.HasLimit, Basis: "fixed"})
		case diff < 0:
			w.say("%s: the log has %d, %d more than was charged before, until its period ends", m, now[m].Used, -diff)
		}
	}
	for m, b := range now {
		if _, known := past.Budgets[m]; !known {
			w.say("%s: the log has %d, of which nothing is known, until its period ends", m, b.Used)
		}
	}
	gateway := events.Gateway(w.n.name)
	for i := 0; i < len(lack); i += claimsEach {
		id := events.RequestID(uuid.Must(uuid.NewV7()).String())
		for _, part := range []struct {
			what string
			data events.Data
		}{
			{"0", &events.Reserve{Request: id, Org: events.Platform, Gateway: gateway, Epoch: 1, Mode: events.ModeBoundedLocal, MaxMS: events.DefaultMaxMS,
				Operation: "recover", Claims: lack[i:min(i+claimsEach, len(lack))]}},
			{"0/true-up/1", &events.TrueUp{Request: id, Gateway: gateway, N: 1, Final: true}},
			{"0/release", &events.Release{Request: id, Gateway: gateway, Outcome: events.Completed, Dispatched: events.DispatchedYes}},
		} {
			ev := events.Event{ID: string(id) + "/" + part.what, Source: string(gateway), Subject: string(id), Org: events.Platform, Data: part.data}
			err := w.write(ev, gateway)
			if _, begins := part.data.(*events.Reserve); begins && err == nil { // nobody keeps a release of the platform's for later
				err = w.publishers[gateway].Flush(w.ctx)
			}
			if err != nil {
				return err
			}
		}
	}
	for _, c := range lack {
		w.say("%s: charged %d: it is at %d", c.Meter, c.Amount, past.Budgets[c.Meter].Used)
	}
	return nil
}

// requests makes known those that run, as their gateways would, and the ends of those that the log knows and that have ended since. At an
// external log nobody may speak for gateways: there, requests that run stay in the sums of budgets.
func (w *restorer) requests(past *heldBefore) error {
	if w.n.broker == nil {
		return nil
	}
	ends := 0
	for _, id := range slices.Sorted(maps.Keys(past.records)) {
		wrote, err := w.ends(past.records[id])
		if err != nil {
			return err
		}
		if wrote {
			ends++
		}
	}
	runs := 0
	for _, rec := range past.Running {
		wrote, err := w.runs(past, rec)
		if err != nil {
			return err
		}
		if wrote {
			runs++
		}
	}
	if ends+runs > 0 {
		w.say("%d requests that ran are known to the log, and the ends of %d", runs, ends)
	}
	return nil
}

// ends publishes what a request came to that the log knows as running.
func (w *restorer) ends(rec *generation.Record) (wrote bool, err error) {
	stands, _ := w.present.Standing(rec.ID)
	for _, has := range stands.Attempts {
		i := slices.IndexFunc(rec.Attempts, func(a generation.Attempt) bool { return a.Attempt == has.Attempt })
		if i < 0 || !has.Admitted || has.Final {
			continue
		}
		a := &rec.Attempts[i]
		if a.Final {
			if err := w.write(w.of(rec, a, fmt.Sprintf("true-up/%d", a.TrueUps), final(rec, a)), a.Gateway); err != nil {
				return wrote, err
			}
			wrote = true
		}
		if a.Released != nil && rec.Released == nil {
			if err := w.write(w.of(rec, a, "attempt", release(rec, a, a.Released)), a.Gateway); err != nil {
				return wrote, err
			}
			wrote = true
		}
	}
	if rec.Released == nil || stands.Ended {
		return wrote, nil
	}
	i := slices.IndexFunc(rec.Attempts, func(a generation.Attempt) bool { return a.Attempt == rec.Released.Attempt })
	if i < 0 {
		return wrote, nil
	}
	return true, w.write(w.of(rec, &rec.Attempts[i], "release", release(rec, &rec.Attempts[i], rec.Released)), rec.Attempts[i].Gateway)
}

// again publishes what gateways wrote to a log that had been cut, and nobody has read: what it is of may be known only now, and the audit
// and the biller go on beyond. What counted already counts no second time.
func (w *restorer) again(*heldBefore) error {
	if w.n.broker == nil {
		return nil
	}
	for _, rec := range w.since {
		rec.ID += "/recovered/" + w.id[:8]
		if err := w.write(rec.Event, rec.Gateway); err != nil {
			return err
		}
	}
	if len(w.since) > 0 {
		w.say("%d finals and releases that came after the cut are published again", len(w.since))
	}
	return nil
}

// of is an event of a request's attempt, under the id that its gateway gives it.
func (w *restorer) of(rec *generation.Record, a *generation.Attempt, what string, d events.Data) events.Event {
	return events.Event{ID: fmt.Sprintf("%s/%d/%s", rec.ID, a.Attempt, what), Source: string(a.Gateway), Subject: string(rec.ID), Org: rec.Org, Data: d}
}

func final(rec *generation.Record, a *generation.Attempt) *events.TrueUp {
	d := &events.TrueUp{Request: rec.ID, Attempt: a.Attempt, Gateway: a.Gateway, N: a.TrueUps, Final: true, PriceVersion: a.PriceVersion, ListNano: a.ListNano}
	for q := events.QualityNone; q <= events.QualityExact; q++ {
		if q.String() == a.UsageQuality {
			d.Quality = q
		}
	}
	if a.Usage != nil {
		d.Usage = *a.Usage
	}
	if a.CostNano != nil {
		d.CostNano = *a.CostNano
	}
	for _, basis := range slices.Sorted(maps.Keys(a.Charges)) {
		d.Charges = append(d.Charges, events.Charge{Basis: basis, Amount: a.Charges[basis]})
	}
	return d
}

func release(rec *generation.Record, a *generation.Attempt, e *generation.Released) *events.Release {
	d := &events.Release{Request: rec.ID, Attempt: a.Attempt, Gateway: a.Gateway, Outcome: e.Outcome, Status: e.Status, FinishReason: e.FinishReason,
		LatencyMS: e.LatencyMS, TTFTMS: e.TTFTMS}
	for _, of := range []events.Of{events.OfRequest, events.OfAttempt} {
		if of.String() == e.Of {
			d.Of = of
		}
	}
	for _, sent := range []events.Dispatched{events.DispatchedUnknown, events.DispatchedNo, events.DispatchedYes} {
		if sent.String() == e.Dispatched {
			d.Dispatched = sent
		}
	}
	if e.Error != nil {
		d.Error, d.Origin = e.Error.Code, e.Error.Origin
	}
	return d
}

// runs publishes the reserves of a request that runs, as admitted already: with what it holds, so that its finals and releases count.
func (w *restorer) runs(past *heldBefore, rec *generation.Record) (wrote bool, err error) {
	stands, _ := w.present.Standing(rec.ID)
	for i := range rec.Attempts {
		a := &rec.Attempts[i]
		at := slices.IndexFunc(stands.Attempts, func(s admission.AttemptStanding) bool { return s.Attempt == a.Attempt })
		if at >= 0 && stands.Attempts[at].Admitted || a.Verdict == generation.VerdictRefused {
			continue
		}
		d := &events.Reserve{Request: rec.ID, Attempt: a.Attempt, Org: rec.Org, Principal: rec.Principal, Key: rec.KeyID, Model: rec.Model, Deployment: a.Deployment,
			Operation: rec.Operation, Gateway: a.Gateway, Epoch: a.Epoch, Mode: events.ModeBoundedLocal, At: int64(a.ReservedAt), MaxMS: events.DefaultMaxMS,
			PriceVersion: a.PriceVersion, BYOK: a.BYOK, Estimate: events.Estimate(a.Estimate), Claims: claimsOf(rec, a)}
		if rec.WorkspaceID != nil {
			d.Workspace = *rec.WorkspaceID
		}
		before := (*ledger.Past)(nil)
		if at >= 0 {
			before = ledger.PastOf(w.present, w.now.UnixNano())
		}
		if err := w.write(w.of(rec, a, "recovered/"+w.id[:8], d), a.Gateway); err != nil {
			return wrote, err
		}
		if wrote = true; before != nil {
			w.early(past, before, d.Claims)
		}
	}
	return wrote, nil
}

// early counts what came of a request beside what its reserve asks for: of one whose final or release the log had already.
func (w *restorer) early(past *heldBefore, before *ledger.Past, claims []events.Claim) {
	now := ledger.PastOf(w.present, w.now.UnixNano())
	for i := range claims {
		m := claims[i].Meter
		switch claims[i].Kind {
		case events.Balance:
			past.Balances[m] += now.Balances[m] - before.Balances[m]
		case events.Budget:
			b := past.Budgets[m]
			b.Used += now.Budgets[m].Used - before.Budgets[m].Used - claims[i].Amount
			past.Budgets[m] = b
		}
	}
}

// claimsOf are the claims of an attempt of a running request that still hold something: gauges, budgets and the balance. Windows and buckets
// begin as the recovery says. What attempts that have ended were charged is in the sums.
func claimsOf(rec *generation.Record, a *generation.Attempt) []events.Claim {
	claims := []events.Claim{}
	for i := range a.Claims {
		c := &a.Claims[i]
		kind, amount := events.ParseMeterKind(c.Counts), c.Amount
		if c.Settled != nil && kind != events.Balance {
			amount = *c.Settled
		}
		claim := events.Claim{Meter: c.Meter, Kind: kind, Basis: c.Basis, Shadow: c.Shadow}
		switch {
		case c.Life == events.LifeAttempt.String() && a.Released != nil, c.Frozen && kind == events.Gauge:
			continue
		case kind == events.Budget:
			claim.Period = ledger.PeriodOf(c.Meter)
			amount -= ended(rec, func(other *generation.Attempt) int64 { return other.Charges[c.Basis] })
		case kind == events.Balance:
			amount -= ended(rec, func(other *generation.Attempt) int64 { return *other.CostNano })
		case kind != events.Gauge:
			continue
		}
		for _, life := range []events.Life{events.LifeRequest, events.LifeLocal, events.LifeAttempt} {
			if life.String() == c.Life {
				claim.Life = life
			}
		}
		if claim.Amount = max(amount, 0); c.Limit != nil {
			claim.Limit, claim.HasLimit = *c.Limit, true
		}
		claims = append(claims, claim)
	}
	return claims
}

// ended sums what the attempts of a request that have had their final came to.
func ended(rec *generation.Record, worth func(*generation.Attempt) int64) (sum int64) {
	for i := range rec.Attempts {
		if a := &rec.Attempts[i]; a.Final && a.CostNano != nil {
			sum += worth(a)
		}
	}
	return sum
}
