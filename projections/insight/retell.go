package insight

import (
	"fmt"
	"sort"
	"strings"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
)

// Story gives what has been told so far.
func (e *Explainer) Story() *Story {
	s := e.story // what follows is of this call alone
	s.Timeline = append([]Moment{}, s.Timeline...)
	s.Decisions = append([]Decision{}, s.Decisions...)
	sort.SliceStable(s.Timeline, func(i, j int) bool { return s.Timeline[i].at < s.Timeline[j].at })
	e.settle(&s)
	e.outcome(&s)
	if e.dropped > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("%d further growth true-ups are left out of the timeline", e.dropped))
	}
	s.Notes = append(s.Notes, e.other...)
	if s.Folded.Snapshot {
		s.Notes = append(s.Notes, fmt.Sprintf("folded from a snapshot before sequence %d: of what was charged before it, keys and models are not known, nor who charged windows and budgets and had ended", s.Folded.From))
	} else if s.Folded.From > 1 {
		s.Notes = append(s.Notes, fmt.Sprintf("folded from sequence %d on: what was charged or credited before is missing", s.Folded.From))
	}
	return &s
}

// settle says what each charge came to.
func (e *Explainer) settle(s *Story) {
	s.Cost.Attempts = append([]AttemptCost{}, s.Cost.Attempts...)
	sort.Slice(s.Cost.Attempts, func(i, j int) bool { return s.Cost.Attempts[i].Attempt < s.Cost.Attempts[j].Attempt })
	a := e.account
	if a == nil {
		return
	}
	e.ledger.noteEnds(e.fold.Now())
	for _, p := range a.posts {
		c := p.claim
		if c.Kind == events.Pace || c.Kind == events.Pause {
			continue
		}
		settled := Settled{
			Attempt: p.attempt, Meter: string(c.Meter), Kind: c.Kind.String(), Basis: c.Basis, Reserved: c.Amount, Settled: p.worthNow(),
			Returned: p.back, unit: unitOf(c.Kind, c.Meter),
		}
		if p.freed {
			settled.Freed, settled.HeldMS = stamp(p.freedAt), (p.freedAt-p.at)/milli // as the timeline counts
		}
		if c.Kind == events.Balance {
			s.Cost.Held += c.Amount
			e.fold.Holdings(c.Meter, func(h admission.Holding) {
				if h.Request == a.id {
					s.Cost.Open = h.Amount
				}
			})
			settled.Settled = 0
			for _, cost := range s.Cost.Attempts {
				settled.Settled += cost.Nano
			}
		}
		s.Settlement = append(s.Settlement, settled)
	}
	for i := range a.attempts {
		if entry := &a.attempts[i]; entry.admitted && !entry.final && !(entry.fixed && entry.dispatched == events.DispatchedNo) {
			s.Cost.Unfinished = append(s.Cost.Unfinished, entry.number)
		}
	}
	admitted := map[int64]bool{}
	for i := range a.attempts {
		admitted[a.attempts[i].number] = a.attempts[i].admitted
	}
	kept := s.Cost.Attempts[:0]
	for _, c := range s.Cost.Attempts { // a refused attempt's final is not folded
		if admitted[c.Attempt] {
			kept = append(kept, c)
			s.Cost.Nano += c.Nano
		}
	}
	s.Cost.Attempts = kept
}

// outcome sums the story up.
func (e *Explainer) outcome(s *Story) {
	last := -1
	for i := range s.Decisions {
		if s.Decisions[i].Outcome == "admitted" || last < 0 || s.Decisions[last].Outcome != "admitted" {
			last = i
		}
	}
	switch {
	case last < 0 && len(s.Turned) > 0:
		s.Outcome, s.Summary = "refused", s.Turned[len(s.Turned)-1].Why
	case last < 0:
		s.Outcome, s.Summary = "unknown", "the log holds no reserve of it"
	case s.Decisions[last].Outcome != "admitted":
		s.Outcome, s.Summary = s.Decisions[last].Outcome, s.Decisions[last].Why
	case e.released != nil:
		s.Outcome = string(e.released.Outcome)
		s.Summary = releaseWords(e.released) + ", " + Money(s.Cost.Nano)
	case e.account != nil && e.account.ended:
		s.Outcome, s.Summary = "lapsed", "ended without a release: its time, its gateway's lease or a new epoch ended it"
	case e.lapsed:
		s.Outcome, s.Summary = "lapsed", "its gateway's lease has ended; what it held is freed"
	default:
		s.Outcome, s.Summary = "running", "admitted and not released as far as the log was read"
	}
	if last >= 0 {
		s.Summary = strings.TrimSpace(s.Summary)
	}
}

// For gives the story as an org may see it: what other orgs hold is told as one amount, without names.
func (s *Story) For(org string) *Story {
	own := *s
	own.Decisions = append([]Decision(nil), s.Decisions...)
	for i := range own.Decisions {
		d := &own.Decisions[i]
		d.Claims = append([]Claim(nil), d.Claims...)
		for j := range d.Claims {
			d.Claims[j].By = d.Claims[j].By.of(org)
		}
		d.WaitedFor = append([]WaitedFor(nil), d.WaitedFor...)
		for j := range d.WaitedFor {
			d.WaitedFor[j].By = d.WaitedFor[j].By.of(org)
		}
	}
	own.Turned = append([]TurnedAway(nil), s.Turned...)
	for i := range own.Turned {
		own.Turned[i].By = own.Turned[i].By.of(org)
	}
	return &own
}

// of keeps the holders of one org.
func (h Holders) of(org string) Holders {
	own := Holders{Count: h.Count, Amount: h.Amount, Rest: h.Rest}
	for _, r := range h.Requests {
		if r.Org == org {
			own.Requests = append(own.Requests, r)
		}
	}
	for _, o := range h.Owners {
		if o.Org == org {
			own.Owners = append(own.Owners, o)
		}
	}
	return own
}

// Text writes a story for reading.
func (s *Story) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "request  %s\n", s.Request)
	fmt.Fprintf(&b, "         %s\n", parts("org ", s.Org, "workspace ", s.Workspace, "principal ", s.Principal, "key ", s.Key, "model ", s.Model, "", s.Operation))
	fmt.Fprintf(&b, "outcome  %s\n", s.Summary)
	for i := range s.Turned {
		s.Turned[i].text(&b)
	}
	for i := range s.Decisions {
		s.Decisions[i].text(&b)
	}
	if len(s.Timeline) > 0 {
		b.WriteString("\nwhat happened\n")
		for i := range s.Timeline {
			m := &s.Timeline[i]
			fmt.Fprintf(&b, "  %s  %8s  seq %-8d %-10s %s\n", clock(m.at), "+"+Span(m.AfterMS), m.Seq, m.What, m.Text)
		}
	}
	s.settlementText(&b)
	s.costText(&b)
	for _, n := range s.Notes {
		fmt.Fprintf(&b, "\nnote: %s\n", n)
	}
	return b.String()
}

// parts joins labelled values, leaving out the empty ones.
func parts(labelled ...string) string {
	var all []string
	for i := 0; i+1 < len(labelled); i += 2 {
		if labelled[i+1] != "" {
			all = append(all, labelled[i]+labelled[i+1])
		}
	}
	return strings.Join(all, ", ")
}

// crowded is the share of a limit, in percent, from which on it is shown who uses it.
const crowded = 80

func (d *Decision) text(b *strings.Builder) {
	fmt.Fprintf(b, "\nattempt %d, asked %s at sequence %d: %s\n", d.Attempt, d.Asked, d.Seq, d.Why)
	fmt.Fprintf(b, "  %s\n", parts("gateway ", d.Gateway, "at ", d.Deployment, "mode ", d.Mode, "prices ", d.PriceVersion,
		"estimated ", fmt.Sprintf("%s in and %s out", Number(d.Estimate.InputTokens), Number(d.Estimate.OutputTokens))))
	if d.Estimate.Of != "" {
		fmt.Fprintf(b, "  %s\n", d.Estimate.Of)
	}
	for i := range d.WaitedFor {
		w := &d.WaitedFor[i]
		fmt.Fprintf(b, "  waited %s for %s\n", Span(d.ParkedMS), waitedWords(w))
		w.By.text(b, unitCount)
	}
	width := 0
	for i := range d.Claims {
		width = max(width, len(d.Claims[i].Meter))
	}
	for i := range d.Claims {
		d.Claims[i].text(b, width)
	}
	if p := d.WouldPass; p != nil {
		if p.At != "" {
			fmt.Fprintf(b, "  would have passed at %s, %s later, as the log went on\n", p.At, Span(p.AfterMS))
		} else {
			fmt.Fprintf(b, "  would not have passed until %s, as the log went on\n", p.Looked)
		}
	}
}

func (t *TurnedAway) text(b *strings.Builder) {
	fmt.Fprintf(b, "\nturned away at %s, told at sequence %d: %s\n", t.Time, t.Seq, t.Why)
	if t.RetryAt != "" {
		fmt.Fprintf(b, "  worth another try at %s\n", t.RetryAt)
	}
	if t.Meter != "" {
		fmt.Fprintf(b, "  NO     %s, of which others use\n", t.Meter)
		t.By.text(b, t.unit)
	}
}

func (c *Claim) text(b *strings.Builder, width int) {
	mark := "ok"
	switch {
	case c.Failed:
		mark = "NO"
	case !c.Fits && c.Shadow:
		mark = "shadow"
	case !c.Fits:
		mark = "over"
	}
	limit := "no limit"
	if c.Limit != nil && c.Kind != events.Pace.String() {
		limit = "of " + c.unit.write(*c.Limit)
	}
	fmt.Fprintf(b, "  %-6s %-*s %14s %-16s", mark, width, c.Meter, c.unit.write(c.Used), limit)
	if c.Need != c.Amount {
		fmt.Fprintf(b, " needs %s, takes %s", c.unit.write(c.Need), c.unit.write(c.Amount))
	} else if c.Amount != 0 {
		fmt.Fprintf(b, " takes %s", c.unit.write(c.Amount))
	}
	if c.Pause != "" {
		b.WriteString(" " + c.Pause)
	}
	b.WriteString("\n")
	if c.Failed || !c.Fits || c.percent >= crowded {
		c.By.text(b, c.unit)
	}
}

func (h *Holders) text(b *strings.Builder, u unit) {
	if h.Count == 0 && h.Rest == 0 {
		return
	}
	for i := range h.Owners {
		o := &h.Owners[i]
		fmt.Fprintf(b, "           %s by %s (%s)\n", u.write(o.Amount), parts("key ", o.Key, "model ", o.Model, "org ", o.Org), times(o.Requests))
	}
	for i := range h.Requests[:min(len(h.Requests), 5)] {
		r := &h.Requests[i]
		fmt.Fprintf(b, "             %s by request %s since %s\n", u.write(r.Amount), r.Request, r.Since)
	}
	if h.Rest != 0 {
		fmt.Fprintf(b, "           %s by others that are not known\n", u.write(h.Rest))
	}
}

func times(n int64) string {
	if n == 1 {
		return "1 request"
	}
	return Number(n) + " requests"
}

func (s *Story) settlementText(b *strings.Builder) {
	if len(s.Settlement) == 0 {
		return
	}
	b.WriteString("\nwhat each claim was settled to\n")
	width := 0
	for i := range s.Settlement {
		width = max(width, len(s.Settlement[i].Meter))
	}
	for i := range s.Settlement {
		c := &s.Settlement[i]
		fmt.Fprintf(b, "  %-*s %14s -> %-14s", width, c.Meter, c.unit.write(c.Reserved), c.unit.write(c.Settled))
		switch {
		case c.Returned:
			b.WriteString(" given back: never sent to a model")
		case c.Freed != "":
			fmt.Fprintf(b, " held for %s", Span(c.HeldMS))
		case c.Kind == events.Gauge.String():
			b.WriteString(" still held")
		}
		b.WriteString("\n")
	}
}

func (s *Story) costText(b *strings.Builder) {
	c := &s.Cost
	if len(c.Attempts) == 0 && c.Held == 0 && len(c.Unfinished) == 0 {
		return
	}
	fmt.Fprintf(b, "\ncost %s (%s nano-dollars)\n", Money(c.Nano), Number(c.Nano))
	for i := range c.Attempts {
		a := &c.Attempts[i]
		u := &events.Usage{InputTokens: a.Usage.Input, CachedTokens: a.Usage.Cached, CacheWriteTokens: a.Usage.CacheWrite, OutputTokens: a.Usage.Output, ReasoningTokens: a.Usage.Reasoning}
		fmt.Fprintf(b, "  attempt %d: %s, %s, %s\n", a.Attempt, Money(a.Nano), usageWords(u), parts("usage ", a.Quality, "prices ", a.PriceVersion))
	}
	for _, n := range c.Unfinished {
		fmt.Fprintf(b, "  attempt %d: no final in the log as far as it was read\n", n)
	}
	if c.Held > 0 {
		fmt.Fprintf(b, "  balance: held %s, debited %s, still held %s\n", Money(c.Held), Money(c.Nano), Money(c.Open))
	}
	if c.Corrected != 0 {
		fmt.Fprintf(b, "  corrected by a credit of %s\n", Money(c.Corrected))
	}
}
