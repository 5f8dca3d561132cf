package insight

import (
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
)

// Bounds of a report.
const (
	maxOwnersHit = 10_000 // owners whose changes are counted apart
	shownOwners  = 20
	shownFirst   = 10
	maxScopes    = 1_000
	maxHours     = 24 * 366
)

// Report says what a simulation came to.
type Report struct {
	FromSeq     uint64      `json:"from_seq"`
	From        string      `json:"from"`
	To          string      `json:"to"`
	Records     int64       `json:"records"`
	Scale       float64     `json:"scale"`
	Recorded    Outcomes    `json:"recorded"`
	Simulated   Outcomes    `json:"simulated"`
	Changed     Changed     `json:"changed"`
	Scopes      []ScopeRow  `json:"scopes"`
	Hours       []HourRow   `json:"hours"`
	Owners      []OwnerRow  `json:"owners"` // those whom the change touches, the most refused first
	First       []FirstHit  `json:"first"`  // the first that are newly refused
	Replayed    int64       `json:"refused_by_gateways_replayed"`
	Turned      []TurnedRow `json:"refused_by_gateways"` // and not replayed
	Rules       []LimitRule `json:"limits"`
	Assumptions []string    `json:"assumptions"`
}

// Outcomes counts reserves: an attempt each.
type Outcomes struct {
	Asked    int64 `json:"asked"`
	Admitted int64 `json:"admitted"`
	Refused  int64 `json:"refused"`
	Waited   int64 `json:"waited"`    // of both, those that waited
	ParkedMS int64 `json:"parked_ms"` // in all
}

// Changed counts the reserves whose fate differs; of copies, each counts.
type Changed struct {
	NowRefused  int64 `json:"now_refused"`
	NowAdmitted int64 `json:"now_admitted"`
	Later       int64 `json:"admitted_later"`
	LeftOut     int64 `json:"left_out"` // later attempts of requests whose fate differs
	Invented    int64 `json:"invented"` // requests whose usage and life are assumed
}

// ScopeRow counts the refusals of one kind of limit.
type ScopeRow struct {
	Scope     string `json:"scope"` // as "org rpm", or the reason where no claim is to blame
	Recorded  int64  `json:"recorded"`
	Simulated int64  `json:"simulated"`
}

// HourRow counts one hour, UTC, by when it was asked.
type HourRow struct {
	Hour              string           `json:"hour"`
	RecordedAdmitted  int64            `json:"recorded_admitted"`
	RecordedRefused   int64            `json:"recorded_refused"`
	SimulatedAdmitted int64            `json:"simulated_admitted"`
	SimulatedRefused  int64            `json:"simulated_refused"`
	Scopes            map[string]int64 `json:"scopes,omitempty"` // simulated refusals
}

// OwnerRow counts what changes for one key and model.
type OwnerRow struct {
	Org         string `json:"org"`
	Key         string `json:"key"`
	Model       string `json:"model"`
	NowRefused  int64  `json:"now_refused"`
	NowAdmitted int64  `json:"now_admitted"`
	FirstAt     string `json:"first_at,omitempty"`    // of its new refusals
	FirstMeter  string `json:"first_meter,omitempty"` // that refused it
}

// FirstHit is a request that would be refused and was not.
type FirstHit struct {
	Time    string `json:"time"`
	Request string `json:"request"`
	Org     string `json:"org"`
	Key     string `json:"key"`
	Model   string `json:"model"`
	Meter   string `json:"meter,omitempty"`
	Why     string `json:"why"`
}

// TurnedRow counts what gateways refused before the log, and for no limit that is simulated.
type TurnedRow struct {
	Scope string `json:"scope"`
	Code  string `json:"code"`
	Count int64  `json:"count"`
}

// counts is what a simulation counts.
type counts struct {
	from              uint64
	records, last     int64
	first             int64
	recordedOutcomes  Outcomes
	simulatedOutcomes Outcomes
	changed           Changed
	leftOut, invented int64
	again             int64 // gateways' refusals that were replayed
	scopes            map[string]*ScopeRow
	hours             map[int64]*HourRow
	owners            map[owner]*OwnerRow
	firsts            []FirstHit
	gateways          map[TurnedRow]int64
}

func newCounts() counts {
	return counts{scopes: map[string]*ScopeRow{}, hours: map[int64]*HourRow{}, owners: map[owner]*OwnerRow{}, gateways: map[TurnedRow]int64{}}
}

func (o *Outcomes) add(v *events.Verdict) {
	o.Asked++
	if v.Admitted {
		o.Admitted++
	} else {
		o.Refused++
	}
	if v.ParkedMS > 0 {
		o.Waited++
		o.ParkedMS += v.ParkedMS
	}
}

// scopeOf names the kind of limit that a refusal is about.
func scopeOf(r *events.Refusal) string {
	if r == nil {
		return "unknown"
	}
	if r.Claim < 0 || r.Reason == events.Invalid {
		return string(r.Reason)
	}
	scope, _, dimension := r.Meter.Split()
	if scope == "" {
		return "other"
	}
	return string(scope) + " " + dimension
}

func (c *counts) scope(name string) *ScopeRow {
	row := c.scopes[name]
	if row == nil {
		if len(c.scopes) >= maxScopes {
			name = "other"
			if row = c.scopes[name]; row != nil {
				return row
			}
		}
		row = &ScopeRow{Scope: name}
		c.scopes[name] = row
	}
	return row
}

const hourNS = 60 * minuteNS

func (c *counts) hour(at int64) *HourRow {
	n := at / hourNS
	row := c.hours[n]
	if row == nil {
		if len(c.hours) >= maxHours {
			return &HourRow{Scopes: map[string]int64{}} // nobody reads a year by the hour
		}
		row = &HourRow{Hour: time.Unix(0, n*hourNS).UTC().Format("2006-01-02 15:00"), Scopes: map[string]int64{}}
		c.hours[n] = row
	}
	return row
}

// recorded counts what really was decided.
func (c *counts) recorded(d *events.Reserve, v *events.Verdict) {
	c.recordedOutcomes.add(v)
	hour := c.hour(v.Time - v.ParkedMS*milli)
	if v.Admitted {
		hour.RecordedAdmitted++
		return
	}
	hour.RecordedRefused++
	c.scope(scopeOf(v.Refusal)).Recorded++
}

// simulated counts what was decided in the simulation.
func (c *counts) simulated(f *fate, v *events.Verdict) {
	c.simulatedOutcomes.add(v)
	hour := c.hour(f.asked)
	if v.Admitted {
		hour.SimulatedAdmitted++
		return
	}
	hour.SimulatedRefused++
	scope := c.scope(scopeOf(v.Refusal))
	scope.Simulated++
	hour.Scopes[scope.Scope]++
	f.refusal = v.Refusal
}

// compared counts what differs, when both are decided.
func (c *counts) compared(f *fate) {
	refusal := f.refusal
	if f.admitted == f.origin.admitted {
		if f.admitted && f.at-f.offset > f.origin.at {
			c.changed.Later++
		}
		return
	}
	d := f.origin.reserve
	row := c.owner(owner{d.Org, d.Key, d.Model})
	if f.admitted {
		c.changed.NowAdmitted++
		row.NowAdmitted++
		return
	}
	c.changed.NowRefused++
	if row.NowRefused++; row.NowRefused == 1 {
		row.FirstAt = stamp(f.at)
		if refusal != nil {
			row.FirstMeter = string(refusal.Meter)
		}
	}
	if len(c.firsts) < shownFirst && refusal != nil {
		c.firsts = append(c.firsts, FirstHit{
			Time: stamp(f.at), Request: string(f.request), Org: string(d.Org), Key: d.Key, Model: d.Model,
			Meter: string(refusal.Meter), Why: strings.TrimSpace(refusalWords(refusal)),
		})
	}
}

func (c *counts) owner(o owner) *OwnerRow {
	row := c.owners[o]
	if row == nil {
		if len(c.owners) >= maxOwnersHit {
			o = owner{org: "(others)"}
			if row = c.owners[o]; row != nil {
				return row
			}
		}
		row = &OwnerRow{Org: string(o.org), Key: o.key, Model: o.model}
		c.owners[o] = row
	}
	return row
}

// turned counts what a gateway refused by itself.
func (c *counts) turned(d *events.Refused) {
	row := TurnedRow{Scope: strings.TrimSpace(d.Scope + " " + d.LimitKind), Code: d.Code}
	if _, known := c.gateways[row]; !known && len(c.gateways) >= maxScopes {
		row = TurnedRow{Code: "other"}
	}
	c.gateways[row] += max(1, d.Count)
}

// Report gives what the simulation came to so far. Finish it first.
func (s *Simulation) Report() *Report {
	c := &s.counts
	r := &Report{
		FromSeq: c.from, From: stamp(c.first), To: stamp(c.last), Records: c.records, Scale: float64(s.config.Scale) / ScaleOnce,
		Recorded: c.recordedOutcomes, Simulated: c.simulatedOutcomes, Changed: c.changed, First: append([]FirstHit{}, c.firsts...),
		Rules: append([]LimitRule{}, s.config.Limits.rules...), Scopes: []ScopeRow{}, Hours: []HourRow{}, Owners: []OwnerRow{}, Turned: []TurnedRow{},
	}
	r.Changed.LeftOut, r.Changed.Invented, r.Replayed = c.leftOut, c.invented, c.again
	for _, row := range c.scopes {
		r.Scopes = append(r.Scopes, *row)
	}
	sort.Slice(r.Scopes, func(i, j int) bool {
		a, b := &r.Scopes[i], &r.Scopes[j]
		return a.Simulated > b.Simulated || a.Simulated == b.Simulated && a.Scope < b.Scope
	})
	for _, row := range c.hours {
		r.Hours = append(r.Hours, *row)
	}
	sort.Slice(r.Hours, func(i, j int) bool { return r.Hours[i].Hour < r.Hours[j].Hour })
	for _, row := range c.owners {
		r.Owners = append(r.Owners, *row)
	}
	sort.Slice(r.Owners, func(i, j int) bool { return r.Owners[i].before(&r.Owners[j]) })
	for row, n := range c.gateways {
		row.Count = n
		r.Turned = append(r.Turned, row)
	}
	sort.Slice(r.Turned, func(i, j int) bool {
		a, b := &r.Turned[i], &r.Turned[j]
		return a.Count > b.Count || a.Count == b.Count && a.Scope+a.Code < b.Scope+b.Code
	})
	s.assume(r)
	return r
}

func (o *OwnerRow) before(p *OwnerRow) bool {
	switch {
	case o.NowRefused != p.NowRefused:
		return o.NowRefused > p.NowRefused
	case o.NowAdmitted != p.NowAdmitted:
		return o.NowAdmitted > p.NowAdmitted
	}
	return o.Org+"\x00"+o.Key+"\x00"+o.Model < p.Org+"\x00"+p.Key+"\x00"+p.Model
}

// assume says what the numbers rest on.
func (s *Simulation) assume(r *Report) {
	say := func(format string, args ...any) {
		r.Assumptions = append(r.Assumptions, fmt.Sprintf(format, args...))
	}
	say("a request that is refused does not come again, and asks nobody else: its later attempts, if it had any, are left out (%s)", Number(r.Changed.LeftOut))
	say("a request that really was refused and now is admitted uses what was estimated, and runs as long as half of its model's requests did up to then (%s)", Number(r.Changed.Invented))
	say("true-ups and releases come as long after their admission as they really did; one that is admitted sooner than it was still ends when it did")
	say("gateways estimate, route and renew their leases as they did; nothing happens while the log was silent for more than 2 s")
	if s.config.Org != "" {
		say("only requests of %s come under other limits or load, and only they are counted: those of others come as they came", s.config.Org)
	}
	if s.config.Scale != ScaleOnce {
		say("each request comes %s times with an id of its own, each copy up to 5 s later by an amount that its id gives; where the scale is no whole number the id says whether it comes once more", trimFloat(r.Scale))
	}
	if r.Replayed > 0 {
		say("a request that a gateway refused before the log asks what the last one of its key and model asked (%s); of one that is now admitted, it is not known whether another was a second try of it", Number(r.Replayed))
	}
	turned := int64(0)
	for i := range r.Turned {
		turned += r.Turned[i].Count
	}
	if turned > 0 {
		say("%s requests were refused by gateways before they reached the log: they are not replayed and count in neither column", Number(turned))
	}
	for i := range r.Rules {
		rule := &r.Rules[i]
		switch {
		case rule.Claims == 0:
			say("no claim names %s: its limit changed nothing", rule.Pattern)
		case rule.Unusable > 0:
			say("%s of %s claims of %s kept their limit: a bucket or pace needs one above 0, a balance or pause has none", Number(rule.Unusable), Number(rule.Claims), rule.Pattern)
		}
	}
	if s.first > 1 && !s.whole {
		say("folded from sequence %d on, and nothing is known of before: meters and balances began empty", s.first)
	}
}

func trimFloat(f float64) string {
	return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.3f", f), "0"), ".")
}

// Text writes a report for reading.
func (r *Report) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s records from %s to %s", Number(r.Records), r.From, r.To)
	if r.Scale != 1 {
		fmt.Fprintf(&b, ", at %s times the load", trimFloat(r.Scale))
	}
	fmt.Fprintf(&b, "\n\n%-28s %14s %14s\n", "", "recorded", "simulated")
	row := func(name string, a, s int64) { fmt.Fprintf(&b, "%-28s %14s %14s\n", name, Number(a), Number(s)) }
	row("asked", r.Recorded.Asked, r.Simulated.Asked)
	row("admitted", r.Recorded.Admitted, r.Simulated.Admitted)
	row("refused", r.Recorded.Refused, r.Simulated.Refused)
	for i := range r.Scopes {
		row("  by "+r.Scopes[i].Scope, r.Scopes[i].Recorded, r.Scopes[i].Simulated)
	}
	row("waited", r.Recorded.Waited, r.Simulated.Waited)
	row("  ms in all", r.Recorded.ParkedMS, r.Simulated.ParkedMS)
	fmt.Fprintf(&b, "\nchanged: %s now refused, %s now admitted, %s admitted later\n",
		Number(r.Changed.NowRefused), Number(r.Changed.NowAdmitted), Number(r.Changed.Later))
	r.hoursText(&b)
	r.ownersText(&b)
	if len(r.Turned) > 0 {
		b.WriteString("\nrefused by gateways before the log, not replayed\n")
		for i := range r.Turned {
			fmt.Fprintf(&b, "  %10s  %s\n", Number(r.Turned[i].Count), strings.TrimSpace(r.Turned[i].Scope+" "+r.Turned[i].Code))
		}
	}
	if len(r.Rules) > 0 {
		b.WriteString("\nlimits\n")
		for i := range r.Rules {
			rule := &r.Rules[i]
			limit := "none"
			if rule.Limit != nil {
				limit = Number(*rule.Limit)
			}
			fmt.Fprintf(&b, "  %-32s %14s  for %s claims of %s meters\n", rule.Pattern, limit, Number(rule.Claims), Number(rule.Meters))
		}
	}
	b.WriteString("\nassumed\n")
	for _, a := range r.Assumptions {
		fmt.Fprintf(&b, "  - %s\n", a)
	}
	return b.String()
}

func (r *Report) hoursText(b *strings.Builder) {
	if len(r.Hours) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%-18s %14s %14s   %s\n", "refused by hour", "recorded", "simulated", "of the simulated")
	for i := range r.Hours {
		h := &r.Hours[i]
		names := make([]string, 0, len(h.Scopes))
		for name := range h.Scopes {
			names = append(names, name)
		}
		sort.Slice(names, func(i, j int) bool {
			return h.Scopes[names[i]] > h.Scopes[names[j]] || h.Scopes[names[i]] == h.Scopes[names[j]] && names[i] < names[j]
		})
		for j, name := range names {
			names[j] = name + " " + Number(h.Scopes[name])
		}
		share := func(refused, admitted int64) string {
			if refused+admitted == 0 {
				return "-"
			}
			return fmt.Sprintf("%s (%d%%)", Number(refused), refused*100/(refused+admitted))
		}
		fmt.Fprintf(b, "%-18s %14s %14s   %s\n", h.Hour, share(h.RecordedRefused, h.RecordedAdmitted), share(h.SimulatedRefused, h.SimulatedAdmitted), strings.Join(names, ", "))
	}
}

func (r *Report) ownersText(b *strings.Builder) {
	if len(r.First) > 0 {
		b.WriteString("\nwho would be refused first\n")
		for i := range r.First {
			h := &r.First[i]
			fmt.Fprintf(b, "  %s  %s: %s\n", h.Time, parts("org ", h.Org, "key ", h.Key, "model ", h.Model, "request ", h.Request), h.Why)
		}
	}
	if len(r.Owners) > 0 {
		b.WriteString("\nwhom it changes\n")
		for i := range r.Owners[:min(len(r.Owners), shownOwners)] {
			o := &r.Owners[i]
			fmt.Fprintf(b, "  %-40s %10s now refused %10s now admitted", parts("org ", o.Org, "key ", o.Key, "model ", o.Model), Number(o.NowRefused), Number(o.NowAdmitted))
			if o.FirstAt != "" {
				fmt.Fprintf(b, "   first at %s by %s", o.FirstAt, o.FirstMeter)
			}
			b.WriteString("\n")
		}
		if more := len(r.Owners) - shownOwners; more > 0 {
			fmt.Fprintf(b, "  and %s more\n", Number(int64(more)))
		}
	}
}
