package chaos

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/gateway/outage"
	"github.com/weirhq/weir/services/provider"
	"github.com/weirhq/weir/test/e2e/stack"
)

// checks are what a row may have lost.
type checks struct {
	killed bool          // a gateway died: the calls it had under way have no final
	since  time.Time     // the log was lost before: only calls since then must be in it
	stood  time.Duration // how long a gateway stood still, and with it who had asked it

	dedicated bool // endpoints have limits of their own, which the row checks itself
}

// check waits until nothing is under way and compares what the clients were told, the upstream's record and the log. It says what was lost.
func (w *world) check(all []result, c checks) string {
	w.tb.Helper()
	w.until("no call is under way", func() bool { return w.provider.Ledger().Totals().Live == 0 })
	nc, log, _ := w.join(access.Auditor)
	defer nc.Close()
	var story *stack.Story
	w.until("the log has an end for each request, and nothing is held", func() bool {
		story = stack.Read(w.tb, log)
		return len(w.open(story)) == 0
	})
	w.clients(all, c.stood)
	w.once(story)
	lost := w.calls(story, c)
	if !c.dedicated {
		w.allowance(story)
	}
	records, done := w.records(nc)
	defer done()
	w.audit(story, records, c)
	w.atOnce(story)
	return lost
}

// guardFor is how old a reservation may be when its call is made: a lease less the guard's margin.
const guardFor = 7 * time.Second

// atOnce checks that no more calls of the strict org ran at the same time than may, and that none was made when its reservation may have
// lapsed.
func (w *world) atOnce(s *stack.Story) {
	reserved := map[string]time.Time{}
	for i := range s.Records {
		if _, ok := s.Records[i].Data.(*events.Reserve); ok {
			reserved[s.Records[i].Subject] = time.Unix(0, s.Records[i].At)
		}
	}
	var calls []provider.Call
	for _, c := range w.provider.Ledger().Calls() {
		if c.Model != "strict" {
			continue
		}
		calls = append(calls, c)
		if at, known := reserved[c.RequestID]; known && c.Started.Sub(at) > guardFor {
			w.tb.Errorf("the call of request %s was made %s after its reservation:%s", c.RequestID, c.Started.Sub(at), saysOf(s, c.RequestID))
		}
	}
	for i := range calls {
		n, words := 0, ""
		for j := range calls {
			if c := &calls[j]; !c.Started.After(calls[i].Started) && c.Ended.After(calls[i].Started) {
				n++
				words += fmt.Sprintf("\n  %s to %s, %s, request %s", c.Started.UTC().Format(time.StampMicro), c.Ended.UTC().Format(time.StampMicro), c.Outcome, c.RequestID) + saysOf(s, c.RequestID)
			}
		}
		if n > strictAtOnce {
			w.tb.Errorf("%d calls of the strict org ran at once, its limit is %d:%s", n, strictAtOnce, words)
			break
		}
	}
}

// saysOf is what the log says of a request, for people.
func saysOf(s *stack.Story, id string) (words string) {
	for k := range s.Records {
		r := &s.Records[k]
		if r.Subject != id {
			continue
		}
		what := ""
		switch d := r.Data.(type) {
		case *events.Reserve:
			what = fmt.Sprintf("org %s, mode %q, at %s", d.Org, d.Mode, time.Unix(0, d.At).UTC().Format(time.StampMicro))
		case *events.Release:
			what = fmt.Sprintf("of %v, outcome %v, dispatched %v", d.Of, d.Outcome, d.Dispatched)
		}
		words += fmt.Sprintf("\n    %d at %s %s %s %s", r.Seq, time.Unix(0, r.At).UTC().Format(time.StampMicro), r.ID, r.Source, what)
	}
	if t := s.Requests[events.RequestID(id)]; t != nil {
		words += fmt.Sprintf("\n    verdicts %+v", t.Verdicts)
	}
	return words
}

// open lists gauges that are held, and requests that were admitted and have not ended.
func (w *world) open(s *stack.Story) (left []string) {
	left = s.Gauges()
	for id, t := range s.Requests {
		if t.Admitted() && len(t.Ended()) == 0 && !lapsed(s, t) {
			left = append(left, string(id))
		}
	}
	return left
}

// lapsed says whether a request's gateway is gone: then its lease's end is its own.
func lapsed(s *stack.Story, t *stack.Trail) bool {
	for _, g := range s.Fold.Gateways() {
		if len(t.Reserves) > 0 && g.Gateway == t.Reserves[0].Gateway {
			return g.Lapsed || g.Epoch > t.Reserves[0].Epoch
		}
	}
	return true
}

// clients checks what clients were told.
func (w *world) clients(all []result, stood time.Duration) {
	for i := range all {
		r := &all[i]
		switch {
		case r.status == http.StatusTooManyRequests && r.org == "open":
			w.tb.Errorf("the open org was refused with 429 %s: its limits are far above its load", r.code)
		case r.status == http.StatusServiceUnavailable && r.code == "authorization_unavailable" && w.database != nil && r.org == made: // whose keys are of the API
		case r.status == http.StatusServiceUnavailable && r.code != "gateway_infrastructure" && r.code != "overloaded":
			w.tb.Errorf("a 503 of code %q", r.code)
		case r.bounded && r.org == "strict":
			w.tb.Errorf("request %s of the strict org was admitted without the log", r.id)
		case r.status == http.StatusServiceUnavailable && r.took > mostWait+stood:
			w.tb.Errorf("a request waited %s for a refusal", r.took)
		case r.status >= 500 && r.status != http.StatusServiceUnavailable:
			w.tb.Errorf("a request got %d %s", r.status, r.code)
		}
	}
}

// once checks that no event is in the log twice.
func (w *world) once(s *stack.Story) {
	seen := map[string]uint64{}
	for i := range s.Records {
		r := &s.Records[i]
		if r.Fault != "" {
			w.tb.Errorf("sequence %d: %s", r.Seq, r.Fault)
		}
		if before, twice := seen[r.ID]; twice {
			w.tb.Errorf("%s is in the log twice, at %d and %d", r.ID, before, r.Seq)
		}
		seen[r.ID] = r.Seq
	}
}

// calls checks that each call had its intent and that the tokens of the log are the upstream's.
func (w *world) calls(s *stack.Story, c checks) string {
	var input, output, cut, told, gone int64
	for _, call := range w.provider.Ledger().Calls() {
		t := s.Requests[events.RequestID(call.RequestID)]
		if call.Started.Before(c.since) {
			if t == nil {
				gone++
			}
			continue
		}
		if t == nil || !t.Admitted() {
			w.tb.Errorf("call %d of request %s has no intent in the log", call.ID, call.RequestID)
			continue
		}
		finals := t.Finals()
		switch {
		case len(finals) > 1:
			w.tb.Errorf("request %s has %d finals", call.RequestID, len(finals))
		case len(finals) == 0 && c.killed:
			cut++
		case len(finals) == 0:
			w.tb.Errorf("request %s has no final", call.RequestID)
		case call.Outcome == provider.Completed && finals[0].Quality == events.QualityExact:
			input, output, told = input+call.Input, output+call.Output, told+1
			if u := finals[0].Usage; u.InputTokens != call.Input || u.OutputTokens != call.Output {
				w.tb.Errorf("request %s: the log says %d and %d tokens, the upstream %d and %d", call.RequestID, u.InputTokens, u.OutputTokens, call.Input, call.Output)
			}
		case finals[0].Quality == events.QualityExact:
			w.tb.Errorf("request %s: exact usage of a call that the upstream calls %s", call.RequestID, call.Outcome)
		default:
			cut++
		}
	}
	if told == 0 {
		w.tb.Error("no call was made")
	}
	if gone > 0 {
		return fmt.Sprintf("lost: what the log knew of %d calls; of those since then nothing (%d calls, %d and %d tokens on both sides)", gone, told, input, output)
	}
	if cut == 0 {
		return fmt.Sprintf("lost: nothing (%d calls, %d and %d tokens on both sides)", told, input, output)
	}
	return fmt.Sprintf("lost: the usage of %d calls that were cut off; %d calls, %d and %d tokens on both sides", cut, told, input, output)
}

// allowance checks that no gateway ever granted more than the allowance: in any minute, and for how long.
func (w *world) allowance(s *stack.Story) {
	type scope struct {
		gateway events.Gateway
		org     events.Org
	}
	granted := map[scope][]time.Time{}
	for _, id := range s.Order {
		for _, d := range s.Requests[id].Reserves {
			if d.Mode == events.ModeBoundedLocal && d.Operation != "recover" && d.Attempt == 0 && !again(s, d) {
				k := scope{d.Gateway, d.Org}
				granted[k] = append(granted[k], time.Unix(0, d.At))
			}
		}
	}
	for k, at := range granted {
		for i := range at {
			n := 0
			for j := range at {
				if d := at[j].Sub(at[i]); d >= 0 && d < time.Minute {
					n++
				}
			}
			if n > outage.Requests {
				w.tb.Errorf("%s granted org %s %d requests within a minute", k.gateway, k.org, n)
			}
		}
	}
}

// again says whether a reserve only repeats what the log before it had admitted.
func again(s *stack.Story, d *events.Reserve) bool {
	for i := range s.Records {
		if r, ok := s.Records[i].Data.(*events.Reserve); ok && r == d {
			return len(s.Records[i].ID) > len(string(d.Request))+len("/0")
		}
	}
	return false
}

// line prints a row's line.
func line(tb testing.TB, what, failed, lost string) {
	tb.Helper()
	fmt.Printf("chaos: %s: %s; %s\n", what, failed, lost)
}
