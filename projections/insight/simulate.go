package insight

import (
	"container/heap"
	"fmt"
	"math/bits"
	"slices"
	"strconv"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
)

// Scales, in thousandths.
const (
	ScaleOnce = 1000
	MaxScale  = 100 * ScaleOnce
)

// Bounds of a simulation.
const (
	copyWithin   = 5 * secondNS       // a copy of a request comes within so long after it
	silentFor    = 2 * secondNS       // longer between two records, and nothing happens in between
	differFor    = 2 * 60 * minuteNS  // how long it is remembered that a request's fate differs, if it is never released
	runsFor      = 25 * 60 * minuteNS // how long a request is remembered for its life: longer than the longest
	tidyEvery    = 10 * minuteNS
	defaultLife  = secondNS // of a model none of whose requests has ended yet
	maxScheduled = 4 << 20  // events that wait for their time
)

// SimulationConfig says what is different from what was recorded.
type SimulationConfig struct {
	// Limits are other limits. Defaults to none: those recorded.
	Limits *Limits

	// Scale is how many times the load comes, in thousandths: at 2500 each request comes twice and every second one a third time, at 500
	// every second one is left out. From 1 to MaxScale. Defaults to 1000.
	Scale int64

	// From is the instant, ns since 1970, at which the simulation begins; what was recorded before is folded as it was. Defaults to the
	// first record.
	From int64

	// Org is whose requests come under the other limits and the scale, and are counted; those of others come as they came. Defaults to all.
	Org events.Org
}

// Simulation folds a recorded log twice, as it was and under other limits or load, and counts what differs.
type Simulation struct {
	config    SimulationConfig
	recording *Recording
	sim       *admission.Fold // nil before From
	lastAt    int64           // ns: of the last record
	each      func(*events.Verdict)
	spare     *events.Reserve // memory for the next reserve with other limits

	lives     map[events.RequestID]*life // requests of which a fate is open or differs
	origins   map[attemptID]*origin      // reserves that wait in what was recorded
	running   map[events.RequestID]run
	asks      map[owner]*events.Reserve // the last one of each key and model
	lengths   map[string]*lengths
	scheduled schedule
	order     uint64
	applied   int64  // records
	first     uint64 // the sequence of the first of them
	whole     bool   // what was before it is known, if there was anything
	nextTidy  int64
	counts    counts
}

// origin is what really happened to a recorded reserve.
type origin struct {
	reserve  *events.Reserve
	asked    int64 // ns
	decided  bool
	admitted bool
	at       int64 // ns: when it was decided
	by       int64 // how many records had been applied by then
	fates    []*fate
}

// fate is what happens to a reserve, or a copy of it, in the simulation.
type fate struct {
	origin   *origin
	life     *life
	request  events.RequestID
	attempt  int64
	offset   int64 // ns by which a copy comes later
	asked    int64
	decided  bool
	admitted bool
	at       int64 // ns: when it was decided
	delay    int64 // ns by which it was admitted later than really
	refusal  *events.Refusal
	invented bool // its true-up and release are estimates
	held     []later
}

// later is an event that waits for its attempt to be admitted.
type later struct {
	after int64 // ns since the real admission
	rec   events.Record
}

// life is a request of the simulation.
type life struct {
	fates []*fate
	since int64
}

func (l *life) fate(attempt int64) *fate {
	for _, f := range l.fates {
		if f.attempt == attempt {
			return f
		}
	}
	return nil
}

// differs says whether one of its attempts has another fate than really.
func (l *life) differs() bool {
	for _, f := range l.fates {
		if f.decided && f.origin.decided && f.admitted != f.origin.admitted {
			return true
		}
	}
	return false
}

// decided says whether nothing of it waits, really or in the simulation.
func (l *life) decided() bool {
	for _, f := range l.fates {
		if !f.decided || !f.origin.decided {
			return false
		}
	}
	return true
}

// run is a request that really runs.
type run struct {
	model string
	at    int64
}

// NewSimulation begins a simulation. The fold is that of the log before the first record to come. The error names what is out of range.
func NewSimulation(fold *admission.Fold, config SimulationConfig) (*Simulation, error) {
	if config.Scale == 0 {
		config.Scale = ScaleOnce
	}
	if config.Scale < 1 || config.Scale > MaxScale {
		return nil, fmt.Errorf("simulate: scale %d thousandths: is not from 1 to %d", config.Scale, MaxScale)
	}
	if config.Limits == nil {
		config.Limits, _ = NewLimits(nil) // cannot fail
	}
	return &Simulation{
		config: config, recording: &Recording{fold: fold, from: config.From}, lives: map[events.RequestID]*life{}, origins: map[attemptID]*origin{},
		running: map[events.RequestID]run{}, asks: map[owner]*events.Reserve{}, lengths: map[string]*lengths{}, counts: newCounts(), whole: fold.Seq() > 0,
	}, nil
}

// Recording is the first half of a simulation: the log folded as it was. It may run ahead of the second half, which takes what it gives, on
// another goroutine.
type Recording struct {
	fold  *admission.Fold
	from  int64
	begun bool
}

// Recorded is a record with what was decided with it.
type Recorded struct {
	Record   events.Record
	Verdicts []events.Verdict
	begin    *admission.Fold // of the first record of the simulation: the fold before it
}

// Apply folds the log's next record as it was. What it gives stays valid. The error says that the log needs other rules than this binary
// knows.
func (f *Recording) Apply(r *events.Record) (Recorded, error) {
	out := Recorded{Record: *r}
	if !f.begun && r.At >= f.from {
		begin, err := admission.Restore(f.fold.Snapshot(nil))
		if err != nil {
			return out, fmt.Errorf("simulate: %w", err)
		}
		f.begun, out.begin = true, begin
	}
	out.Verdicts = slices.Clone(f.fold.Apply(r))
	if !f.fold.Supported() {
		return out, fmt.Errorf("simulate: the log asks for rules version %d at sequence %d, this binary knows %d", f.fold.Rules(), r.Seq, admission.RulesVersion)
	}
	return out, nil
}

// Recording gives the first half. There is one.
func (s *Simulation) Recording() *Recording { return s.recording }

// Take takes what the first half gives, record by record. The error says that more is on its way than a simulation holds.
func (s *Simulation) Take(in *Recorded) error {
	r := &in.Record
	if s.applied == 0 {
		s.first = r.Seq
	}
	if in.begin != nil {
		s.sim, s.lastAt = in.begin, r.At
		s.counts.from, s.counts.first = r.Seq, r.At
	}
	if s.sim != nil {
		s.due(r.At)
	}
	var recorded *origin
	if d, ok := r.Data.(*events.Reserve); ok && r.Fault == "" && d.Request != "" {
		s.asked(r.Org, d)
		if s.sim != nil {
			recorded = s.origin(r.At, d)
		}
	}
	s.applied++
	for i := range in.Verdicts {
		s.reallyDecided(&in.Verdicts[i])
	}
	s.follow(r)
	if s.sim == nil {
		return nil
	}
	if recorded != nil && !recorded.decided && recorded.reserve.ParkMS == 0 {
		delete(s.origins, attemptID{recorded.reserve.Request, recorded.reserve.Attempt})
		recorded = nil // decided before: a duplicate
	}
	if s.scheduled.Len() > maxScheduled {
		return fmt.Errorf("simulate: more than %d events wait at sequence %d: take a smaller scale", maxScheduled, r.Seq)
	}
	s.counts.records++
	s.counts.last = r.At
	s.replay(r, recorded)
	s.lastAt = max(s.lastAt, r.At)
	s.tidy(r.At)
	return nil
}

// origin notes that a reserve was recorded; nil if it waits already.
func (s *Simulation) origin(at int64, d *events.Reserve) *origin {
	id := attemptID{d.Request, d.Attempt}
	if s.origins[id] != nil {
		return nil
	}
	o := &origin{reserve: d, asked: at}
	s.origins[id] = o
	return o
}

// Finish lets happen what is on its way when the log has ended.
func (s *Simulation) Finish() {
	if s.sim == nil {
		return
	}
	for s.scheduled.Len() > 0 {
		next := heap.Pop(&s.scheduled).(scheduled)
		s.at(next, max(next.at, s.lastAt))
	}
}

// due lets happen what is scheduled up to an instant. In a silence of the log nothing happens: it is made up for at its end.
func (s *Simulation) due(at int64) {
	silent := at-s.lastAt > silentFor
	for s.scheduled.Len() > 0 && s.scheduled[0].at <= at {
		next := heap.Pop(&s.scheduled).(scheduled)
		when := max(next.at, s.lastAt)
		if silent {
			when = at
		}
		s.at(next, when)
		s.lastAt = max(s.lastAt, when)
	}
}

// at lets a scheduled event happen.
func (s *Simulation) at(next scheduled, when int64) {
	next.rec.At = when
	if next.direct {
		s.fold(&next.rec)
		return
	}
	s.deliver(&next.rec, next.origin, next.offset)
}

// replay gives a record to the simulation, as often as the scale says.
func (s *Simulation) replay(r *events.Record, recorded *origin) {
	id := RequestOf(r.Data)
	switch r.Data.(type) {
	case *events.Reserve, *events.TrueUp, *events.Release:
	default:
		s.fold(r)
		return
	}
	if r.Fault != "" || id == "" {
		s.fold(r)
		return
	}
	n := int64(1)
	if s.own(r.Org) {
		n = s.copies(id)
	}
	for k := range n {
		if k == 0 {
			s.deliver(r, recorded, 0)
			continue
		}
		offset := 1 + int64(hash(id, uint64(k)))%copyWithin
		s.plan(scheduled{at: r.At + offset, rec: copyOf(r, k, offset), origin: recorded, offset: offset})
	}
}

// own says whether an org's requests are those that the simulation is about.
func (s *Simulation) own(org events.Org) bool { return s.config.Org == "" || s.config.Org == org }

// copies gives how many times a request comes.
func (s *Simulation) copies(id events.RequestID) int64 {
	n, part := s.config.Scale/ScaleOnce, s.config.Scale%ScaleOnce
	if part > 0 && int64(hash(id, 0)%ScaleOnce) < part {
		n++
	}
	return n
}

// deliver lets an event of a request, or of its copy, happen in the simulation.
func (s *Simulation) deliver(r *events.Record, recorded *origin, offset int64) {
	switch d := r.Data.(type) {
	case *events.Reserve:
		s.reserve(r, d, recorded, offset)
	case *events.TrueUp:
		s.settle(r, d.Request, d.Attempt, offset, false)
	case *events.Release:
		s.settle(r, d.Request, d.Attempt, offset, d.Of == events.OfRequest)
	}
}

// reserve lets a reserve be decided under the limits of the simulation.
func (s *Simulation) reserve(r *events.Record, d *events.Reserve, recorded *origin, offset int64) {
	l := s.lives[d.Request]
	if l != nil && l.differs() {
		if s.own(d.Org) {
			s.counts.leftOut++
		}
		return
	}
	if l == nil {
		l = &life{since: r.At}
		s.lives[d.Request] = l
	}
	if f := l.fate(d.Attempt); f != nil && recorded != nil && (recorded.decided || !f.origin.decided) {
		l.fates = slices.DeleteFunc(l.fates, func(g *fate) bool { return g == f }) // the log had forgotten it, and decides anew
	}
	if l.fate(d.Attempt) == nil && recorded != nil {
		f := &fate{origin: recorded, life: l, request: d.Request, attempt: d.Attempt, offset: offset, asked: r.At}
		l.fates = append(l.fates, f)
		recorded.fates = append(recorded.fates, f)
	}
	if s.spare == nil {
		s.spare = &events.Reserve{}
	}
	if offset != 0 { // a copy, whose gateway would know what was changed since
		d.Fence = max(d.Fence, s.sim.Fence(d.Org))
	}
	rec := *r
	if s.own(d.Org) {
		rec.Data = s.config.Limits.apply(d, s.spare)
	}
	s.fold(&rec)
	if f := l.fate(d.Attempt); f == nil || !f.decided {
		s.spare = nil // the fold keeps a reserve that waits
	}
	s.drop(d.Request, l)
}

// settle lets a true-up or release happen, at its distance from the admission.
func (s *Simulation) settle(r *events.Record, id events.RequestID, attempt, offset int64, ends bool) {
	l := s.lives[id]
	if l == nil {
		s.fold(r)
		return
	}
	f := l.fate(attempt)
	switch {
	case f == nil || !f.origin.decided || !f.origin.admitted && !f.invented:
		s.fold(r) // as it came
	case f.invented:
		return // its own are on their way
	case !f.decided && offset == 0 && f.origin.by == s.applied:
		s.fold(r) // it really was decided with this very record, and so may be here
	case !f.decided:
		f.held = append(f.held, later{r.At - offset - f.origin.at, *r})
		return // when it is admitted
	case !f.admitted: // the fold would not take it
	case f.delay > 0:
		s.plan(scheduled{at: r.At + f.delay, rec: *r, direct: true})
	default:
		s.fold(r)
	}
	if ends && l.decided() {
		delete(s.lives, id)
	}
}

// fold applies a record to the simulated fold and takes in the verdicts.
func (s *Simulation) fold(r *events.Record) {
	for _, v := range s.sim.Apply(r) {
		if s.each != nil {
			s.each(&v)
		}
		if l := s.lives[v.Request]; l != nil {
			if f := l.fate(v.Attempt); f != nil && !f.decided {
				s.decided(f, &v)
				s.drop(v.Request, l)
			}
		}
	}
}

// reallyDecided takes in a verdict of what was recorded.
func (s *Simulation) reallyDecided(v *events.Verdict) {
	o := s.origins[attemptID{v.Request, v.Attempt}]
	if o == nil {
		return // asked before the simulation began
	}
	delete(s.origins, attemptID{v.Request, v.Attempt})
	o.decided, o.admitted, o.at, o.by = true, v.Admitted, v.Time, s.applied
	if s.own(o.reserve.Org) {
		s.counts.recorded(o.reserve, v)
	}
	if v.Admitted {
		s.running[v.Request] = run{o.reserve.Model, v.Time}
	}
	for _, f := range o.fates {
		s.both(f)
		s.drop(f.request, f.life)
	}
}

// decided takes in a verdict of the simulation.
func (s *Simulation) decided(f *fate, v *events.Verdict) {
	f.decided, f.admitted, f.at = true, v.Admitted, v.Time
	if s.own(f.origin.reserve.Org) {
		s.counts.simulated(f, v)
	}
	s.both(f)
}

// both goes on when a reserve is decided really and in the simulation.
func (s *Simulation) both(f *fate) {
	if !f.decided || !f.origin.decided {
		return
	}
	if s.own(f.origin.reserve.Org) {
		s.counts.compared(f)
	}
	switch {
	case f.admitted && f.origin.admitted:
		f.delay = max(0, f.at-f.offset-f.origin.at)
		for _, h := range f.held {
			s.plan(scheduled{at: f.at + h.after, rec: h.rec, direct: true})
		}
	case f.admitted:
		s.invent(f)
	}
	f.held = nil
}

// drop forgets a request whose attempts are all decided as they really were.
func (s *Simulation) drop(id events.RequestID, l *life) {
	if s.lives[id] != l {
		return
	}
	for _, f := range l.fates {
		if !f.decided || !f.origin.decided || f.delay > 0 || f.admitted != f.origin.admitted {
			return
		}
	}
	delete(s.lives, id)
}

// invent makes the true-up and the release of an attempt that really was refused.
func (s *Simulation) invent(f *fate) {
	f.invented = true
	d := f.origin.reserve
	if s.own(d.Org) {
		s.counts.invented++
	}
	final := &events.TrueUp{Request: f.request, Attempt: f.attempt, Gateway: d.Gateway, N: 1, Final: true, Quality: events.QualityEstimated, PriceVersion: d.PriceVersion}
	final.Usage = events.Usage{InputTokens: d.Estimate.InputTokens, OutputTokens: d.Estimate.OutputTokens}
	final.Charges, final.CostNano = expected(d)
	release := &events.Release{Request: f.request, Attempt: f.attempt, Gateway: d.Gateway, Outcome: events.Completed, Dispatched: events.DispatchedYes}
	at := f.at + s.median(d.Model)
	for _, data := range []events.Data{final, release} {
		s.plan(scheduled{at: at, direct: true, rec: events.Record{Gateway: d.Gateway, Event: events.Event{Org: d.Org, Data: data}}})
	}
}

// expected gives what a reserve expected to be charged, by basis.
func expected(d *events.Reserve) (charges []events.Charge, cost int64) {
	for i := range d.Claims {
		c := &d.Claims[i]
		amount := c.Amount
		switch c.Basis {
		case events.BasisRequest, events.BasisSlot, "":
			continue
		case events.BasisMoney:
			cost = max(cost, amount)
			continue
		case events.BasisOutput:
			amount = max(amount, d.Estimate.OutputTokens)
		case events.BasisCost:
			cost = max(cost, amount)
		}
		found := false
		for j := range charges {
			if charges[j].Basis == c.Basis {
				charges[j].Amount, found = max(charges[j].Amount, amount), true
			}
		}
		if !found {
			charges = append(charges, events.Charge{Basis: c.Basis, Amount: amount})
		}
	}
	return charges, cost
}

// follow learns how long the requests of each model run.
func (s *Simulation) follow(r *events.Record) {
	switch d := r.Data.(type) {
	case *events.Release:
		run, known := s.running[d.Request]
		if !known || d.Of != events.OfRequest || r.Fault != "" {
			return
		}
		delete(s.running, d.Request)
		n := s.lengths[run.model]
		if n == nil {
			if len(s.lengths) >= maxOwners {
				return
			}
			n = &lengths{}
			s.lengths[run.model] = n
		}
		n.add(r.At - run.at)
	case *events.Refused:
		if s.sim != nil && s.own(r.Org) && !s.again(r, d) {
			s.counts.turned(d)
		}
	}
}

// median gives how long half of a model's requests have run at most, as far as is known.
func (s *Simulation) median(model string) int64 {
	if n := s.lengths[model]; n != nil && n.all > 0 {
		return n.median()
	}
	return defaultLife
}

// tidy forgets what will not be released any more.
func (s *Simulation) tidy(now int64) {
	if now < s.nextTidy {
		return
	}
	s.nextTidy = now + tidyEvery
	for id, r := range s.running {
		if r.at+runsFor < now {
			delete(s.running, id)
		}
	}
	for id, l := range s.lives {
		if l.since+differFor < now {
			delete(s.lives, id)
		}
	}
	for id, o := range s.origins {
		if o.asked+minuteNS < now {
			delete(s.origins, id)
		}
	}
}

// lengths is a histogram of lives: eight classes for each doubling, in ms.
type lengths struct {
	all    int64
	counts [64 * 8]int64
}

func (l *lengths) add(ns int64) {
	l.all++
	l.counts[class(max(1, ns/milli))]++
}

func class(n int64) int {
	if n < 16 {
		return int(n)
	}
	top := bits.Len64(uint64(n)) - 1
	return top*8 + int(n>>(top-3)&7)
}

// classEnd is the least number of the next class.
func classEnd(c int) int64 {
	if c < 16 {
		return int64(c) + 1
	}
	top := c / 8
	return int64(8+c%8+1) << (top - 3)
}

func (l *lengths) median() int64 {
	left := (l.all + 1) / 2
	for c, n := range l.counts {
		if left -= n; left <= 0 {
			return (classEnd(c) - 1) * milli
		}
	}
	return defaultLife
}

// hash spreads an id over 64 bits, the same each time.
func hash(id events.RequestID, salt uint64) uint64 {
	const prime = 1099511628211
	h := uint64(14695981039346656037) ^ salt*prime
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * prime
	}
	h ^= h >> 32
	h *= 0x9E3779B97F4A7C15
	return (h ^ h>>29) >> 1
}

// copyOf makes the k-th copy of a request's event.
func copyOf(r *events.Record, k, offset int64) events.Record {
	c := *r
	switch d := r.Data.(type) {
	case *events.Reserve:
		n := *d
		n.Request = copyID(d.Request, k)
		if n.At != 0 {
			n.At += offset
		}
		c.Data = &n
	case *events.TrueUp:
		n := *d
		n.Request = copyID(d.Request, k)
		c.Data = &n
	case *events.Release:
		n := *d
		n.Request = copyID(d.Request, k)
		c.Data = &n
	}
	return c
}

// copyID names the k-th copy of a request. A UUIDv7 becomes one of a version that gateways do not make.
func copyID(id events.RequestID, k int64) events.RequestID {
	if len(id) == 36 && id[14] == '7' && k <= 8 {
		return id[:14] + events.RequestID(strconv.FormatInt(7+k, 16)) + id[15:]
	}
	return id + "~" + events.RequestID(strconv.FormatInt(k, 10))
}

// scheduled is an event that is to happen.
type scheduled struct {
	at     int64
	order  uint64
	rec    events.Record
	origin *origin
	offset int64
	direct bool // to the fold, whatever else holds
}

func (s *Simulation) plan(e scheduled) {
	s.order++
	e.order = s.order
	heap.Push(&s.scheduled, e)
}

type schedule []scheduled

func (s schedule) Len() int { return len(s) }
func (s schedule) Less(i, j int) bool {
	return s[i].at < s[j].at || s[i].at == s[j].at && s[i].order < s[j].order
}
func (s schedule) Swap(i, j int) { s[i], s[j] = s[j], s[i] }

// Push is for container/heap.
func (s *schedule) Push(e any) { *s = append(*s, e.(scheduled)) }

// Pop is for container/heap.
func (s *schedule) Pop() any {
	last := len(*s) - 1
	e := (*s)[last]
	(*s)[last] = scheduled{}
	*s = (*s)[:last]
	return e
}
