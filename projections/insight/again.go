package insight

import (
	"strconv"

	"github.com/weirhq/weir/events"
)

// maxAgain bounds the requests that one record of a gateway's refusals becomes.
const maxAgain = 10_000

// changes says whether the simulation differs from what was recorded at all.
func (s *Simulation) changes() bool {
	return len(s.config.Limits.rules) > 0 || s.config.Scale != ScaleOnce
}

// asked notes what a key asks of a model, for those of its requests that gateways refuse by themselves.
func (s *Simulation) asked(org events.Org, d *events.Reserve) {
	if d.Attempt != 0 || !s.changes() || !s.own(org) {
		return
	}
	o := owner{org, d.Key, d.Model}
	if _, known := s.asks[o]; known || len(s.asks) < maxOwners {
		s.asks[o] = d
	}
}

// again replays what a gateway refused before the log, as a reserve that asks what the last one of its key and model asked: under other limits it may be
// admitted. It says whether it could: only for a limit that this reserve claims.
func (s *Simulation) again(r *events.Record, d *events.Refused) bool {
	last := s.asks[owner{d.Org, d.Key, d.Model}]
	if last == nil {
		return false
	}
	claim := -1
	for _, m := range metersOf(d) {
		for i := range last.Claims {
			if claim < 0 && last.Claims[i].Meter == m {
				claim = i
			}
		}
	}
	if claim < 0 {
		return false
	}
	n := min(max(1, d.Count), maxAgain)
	for k := range n {
		ask := s.ask(last, d, claim, k)
		c := &ask.Claims[claim]
		refusal := &events.Refusal{Claim: claim, Meter: c.Meter, Reason: events.OverLimit, Used: d.Used, Limit: c.Limit, Requested: d.Requested}
		s.counts.recorded(ask, &events.Verdict{Request: ask.Request, Time: r.At, Refusal: refusal})
		s.counts.again++
		rec := events.Record{Seq: r.Seq, At: r.At, Gateway: ask.Gateway, Event: events.Event{Org: r.Org, Data: ask}}
		s.replay(&rec, &origin{reserve: ask, asked: r.At, decided: true, at: r.At, by: s.applied})
	}
	return true
}

// ask makes the reserve that a gateway did not publish.
func (s *Simulation) ask(last *events.Reserve, d *events.Refused, claim int, k int64) *events.Reserve {
	ask := *last
	ask.Request = d.Request
	if k > 0 {
		ask.Request += events.RequestID("+" + strconv.FormatInt(k, 10))
	}
	if d.Gateway != "" && d.Gateway != ask.Gateway {
		ask.Gateway, ask.Epoch = d.Gateway, 1
	}
	ask.At, ask.Fence = 0, max(ask.Fence, s.sim.Fence(d.Org))
	ask.Claims = append([]events.Claim{}, last.Claims...)
	c := &ask.Claims[claim]
	if d.Limit != nil {
		c.Limit, c.HasLimit = *d.Limit, true
	}
	if d.Requested > 0 && c.Kind == events.Window {
		c.Amount = d.Requested
	}
	return &ask
}
