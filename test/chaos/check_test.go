package chaos

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/services/provider"
	"github.com/weirhq/weir/test/e2e/stack"
)

// made is the org whose keys are made through the API, in the rows with a database.
const made = "made"

// checks are what a row may have lost.
type checks struct {
	killed bool          // a gateway died: the calls it had under way have no final
	since  time.Time     // the log was lost before: only calls since then must be in it
	stood  time.Duration // how long a gateway stood still, and with it who had asked it

	dedicated bool // endpoints have limits of their own, which the row checks itself
	clock     bool // the log's times are wrong, or the gateways'
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
	if n := w.intents(story, c); n > 0 {
		lost += fmt.Sprintf("; %d calls had their intent in a spool when they arrived", n)
	}
	if !c.dedicated {
		w.allowance(story)
	}
	records, done := w.records(nc)
	defer done()
	w.audit(story, records, c)
	w.atOnce(story, all, c)
	return lost
}

// guardFor is how old a reservation may be when its call is made: a lease less the guard's margin.
const guardFor = 7 * time.Second

// atOnce checks that no more calls of the strict org ran at the same time than may, and that none was made when its reservation may have
// lapsed.
func (w *world) atOnce(s *stack.Story, all []result, c checks) {
	reserved := map[string]time.Time{}
	for i := range s.Records {
		if _, ok := s.Records[i].Data.(*events.Reserve); ok && !c.clock {
			reserved[s.Records[i].Subject] = time.Unix(0, s.Records[i].At)
		}
	}
	for i := range all {
		if c.clock { // no process's time can be believed: that is no later
			reserved[all[i].id] = all[i].began
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

// called are the calls that every upstream has on its record.
func (w *world) called() []provider.Call {
	all := w.provider.Ledger().Calls()
	for _, other := range w.others {
		all = append(all, other.Ledger().Calls()...)
	}
	return all
}

// told is what the log and an upstream say of the requests whose calls came to their ends.
type told struct{ calls, input, output, cut, gone int64 }

// calls checks that each call had its intent and that the tokens of the log are the upstream's.
func (w *world) calls(s *stack.Story, c checks) string {
	var sum told
	byRequest := map[string][]provider.Call{}
	for _, call := range w.called() {
		byRequest[call.RequestID] = append(byRequest[call.RequestID], call)
	}
	for id, calls := range byRequest {
		w.request(s, id, calls, c, &sum)
	}
	if sum.calls == 0 {
		w.tb.Error("no call was made")
	}
	switch {
	case sum.gone > 0:
		return fmt.Sprintf("lost: what the log knew of %d calls; of those since then nothing (%d calls, %d and %d tokens on both sides)", sum.gone, sum.calls, sum.input, sum.output)
	case sum.cut == 0:
		return fmt.Sprintf("lost: nothing (%d calls, %d and %d tokens on both sides)", sum.calls, sum.input, sum.output)
	}
	return fmt.Sprintf("lost: the usage of %d calls that were cut off; %d calls, %d and %d tokens on both sides", sum.cut, sum.calls, sum.input, sum.output)
}

// request compares the calls of one request with what the log says of it.
func (w *world) request(s *stack.Story, id string, calls []provider.Call, c checks, sum *told) {
	t := s.Requests[events.RequestID(id)]
	if calls[0].Started.Before(c.since) {
		if t == nil {
			sum.gone++
		}
		return
	}
	if t == nil || !t.Admitted() || len(t.Reserves) < len(calls) {
		w.tb.Errorf("request %s: %d calls have no intent each in the log%s", id, len(calls), saysOf(s, id))
		return
	}
	var input, output, ended int64
	for i := range calls {
		if calls[i].Outcome == provider.Completed {
			input, output, ended = input+calls[i].Input, output+calls[i].Output, ended+1
		}
	}
	finals, exact, used := map[int64]bool{}, int64(0), events.Usage{}
	for _, f := range t.Finals() {
		if finals[f.Attempt] {
			w.tb.Errorf("request %s has two finals of attempt %d", id, f.Attempt)
		}
		finals[f.Attempt] = true
		if f.Quality == events.QualityExact {
			exact, used.InputTokens, used.OutputTokens = exact+1, used.InputTokens+f.Usage.InputTokens, used.OutputTokens+f.Usage.OutputTokens
		}
	}
	switch {
	case len(finals) < len(calls) && !c.killed:
		w.tb.Errorf("request %s has %d finals for %d calls", id, len(finals), len(calls))
	case exact > ended:
		w.tb.Errorf("request %s: exact usage of a call that the upstream does not call completed", id)
	case exact < int64(len(calls)) && calls[len(calls)-1].Outcome != provider.Failed:
		sum.cut++
	case used.InputTokens != input || used.OutputTokens != output:
		w.tb.Errorf("request %s: the log says %d and %d tokens, the upstream %d and %d", id, used.InputTokens, used.OutputTokens, input, output)
	default:
		sum.calls, sum.input, sum.output = sum.calls+ended, sum.input+input, sum.output+output
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
