package admission

import (
	"math"
	"math/bits"
	"strings"

	"github.com/weirhq/weir/events"
)

// RulesVersion is the newest version of the fold's behaviour that this binary knows.
const RulesVersion = 1

// Durations of the fold, in ns of its own time.
const (
	ms             = int64(1_000_000)
	second         = 1000 * ms
	minute         = 60 * second
	silence        = 2 * second    // longer between two lines, and nobody could renew
	lapseEnds      = 15 * minute   // a request lapsed for so long ends
	holdDrops      = 60 * minute   // an open hold is dropped so long after its request's end
	recoverHolds   = 61 * second   // windows count as full for so long after a recovery
	sweepEvery     = 5 * minute    // instants at which idle state is forgotten
	forgetAfter    = 15 * minute   // how long it must have been idle
	retryGauge     = int64(1_000)  // ms after which a full gauge is worth another try
	maxWaiters     = 256           // requests that wait on one gauge
	maxKept        = 256           // true-ups and releases kept for one attempt that is not admitted yet
	maxSpare       = 1024          // settled requests whose memory is kept for others
	maxBases       = 1024          // names of bases remembered, so that they are stored once
	saturatedLimit = math.MaxInt64 // sums stop here
)

// Counts says what the fold met that it could not use. Nothing of it is lost from the log.
type Counts struct {
	Records    uint64 // records taken
	Faulty     uint64 // records whose Fault says why they may not be folded
	OutOfRange uint64 // true-ups and credits with an amount outside its range
	Unknown    uint64 // kinds or versions that this binary does not know
	Late       uint64 // true-ups after the final, or not above the highest number
	Orphans    uint64 // true-ups and releases dropped because too many were kept for one attempt
	Backwards  uint64 // records whose time was lower than the one before
	Lapses     uint64 // leases that ended
}

// Fold is the state of admission after some prefix of the log.
type Fold struct {
	now, last, skew int64 // ns: the fold's time, the last record's own time, what was added to it
	started         bool
	seq             uint64
	rules           int64
	digest          uint64
	recoverUntil    int64
	nextSweep       int64

	meters   map[string]*meter
	requests map[events.RequestID]*request
	settled  settledSet
	gateways map[events.Gateway]*gateway
	fences   map[events.Org]int64
	credits  map[string]struct{} // org, 0, reference

	timers  timerHeap
	waiting []*waiter // in order of arrival
	arrived uint64    // how many have ever waited
	fallen  []*meter  // gauges that fell or were left since the waiters were last gone through
	dirty   []*meter  // meters changed since Drain
	bases   map[string]string

	peakMeters, peakRequests int // largest since the maps were last made anew

	spare   []*request // memory of settled requests, for the next ones
	current *waiter    // memory for a reserve that does not wait

	out    []events.Verdict
	lapses []events.Lapse

	Counts Counts
}

// New gives the fold of an empty log.
func New() *Fold {
	return &Fold{
		rules:    1,
		meters:   map[string]*meter{},
		requests: map[events.RequestID]*request{},
		settled:  newSettledSet(),
		gateways: map[events.Gateway]*gateway{},
		fences:   map[events.Org]int64{},
		credits:  map[string]struct{}{},
		bases:    map[string]string{},
	}
}

// Apply folds the log's next record and gives the verdicts that fall with it, in order. They are valid until the next call.
func (f *Fold) Apply(r *events.Record) []events.Verdict {
	f.out, f.lapses = f.out[:0], f.lapses[:0]
	f.Counts.Records++
	f.advance(r.At)
	f.seq = r.Seq
	if r.Fault != "" {
		f.Counts.Faulty++
		return f.out
	}
	switch d := r.Data.(type) {
	case *events.Reserve:
		f.reserve(r, d)
	case *events.TrueUp:
		f.takeTrueUp(d)
	case *events.Release:
		f.takeRelease(d)
	case *events.Lease:
		f.announce(d)
	case *events.Cooldown:
		f.cooldown(d)
	case *events.Fence:
		f.fence(d)
	case *events.Credit:
		f.credit(d)
	case *events.Recover:
		f.recover(d)
	case *events.Rules:
		f.rules = max(f.rules, d.Version)
	case *events.Tick, *events.Refused, *events.Correction, *events.Verdicts:
	default:
		f.Counts.Unknown++
	}
	f.wake()
	return f.out
}

// Lapses are what became of running requests without a release, with the last record and in order. They are valid until the next Apply.
func (f *Fold) Lapses() []events.Lapse { return f.lapses }

func (f *Fold) noteLapse(req *request, state events.LapseState) {
	f.lapses = append(f.lapses, events.Lapse{Request: req.id, State: state, Time: f.now})
}

// Seq is the sequence of the last record folded.
func (f *Fold) Seq() uint64 { return f.seq }

// Now is the fold's time, ns since 1970.
func (f *Fold) Now() int64 { return f.now }

// LastTime is the stream time of the last record, ns since 1970.
func (f *Fold) LastTime() int64 { return f.last }

// Rules is the version of the fold's behaviour in force.
func (f *Fold) Rules() int64 { return f.rules }

// Supported says whether this binary knows the rules in force. When it does not, the fold's answers mean nothing.
func (f *Fold) Supported() bool { return f.rules <= RulesVersion }

// Digest sums up every charge and verdict so far: two folds of the same log have the same digest.
func (f *Fold) Digest() uint64 { return f.digest }

// Recovering says until when (ns) reserves with limited windows are refused; 0 if they are not.
func (f *Fold) Recovering() int64 {
	if f.now < f.recoverUntil {
		return f.recoverUntil
	}
	return 0
}

// NextTimer gives the instant, ns in the fold's time, at which something falls due without any event.
func (f *Fold) NextTimer() (at int64, ok bool) {
	f.settleLeaseTimer()
	if len(f.timers) == 0 {
		return 0, false
	}
	return f.timers[0].at, true
}

// Live lists the running requests of a gateway, in no particular order.
func (f *Fold) Live(g events.Gateway) []events.RequestID {
	gw := f.gateways[g]
	if gw == nil {
		return nil
	}
	ids := make([]events.RequestID, len(gw.running))
	for i, req := range gw.running {
		ids[i] = req.id
	}
	return ids
}

// GatewayState is a gateway as the fold knows it.
type GatewayState struct {
	Gateway events.Gateway
	Epoch   int64
	Until   int64 // ns in the fold's time: when its lease ends
	Lapsed  bool
	Running int
}

// Gateways lists the gateways that the fold knows, in no particular order.
func (f *Fold) Gateways() []GatewayState {
	all := make([]GatewayState, 0, len(f.gateways))
	for _, g := range f.gateways {
		all = append(all, GatewayState{g.name, g.epoch, g.end, g.lapsed, len(g.running)})
	}
	return all
}

// Size says how much the fold holds.
func (f *Fold) Size() (meters, requests, settled, waiting int) {
	return len(f.meters), len(f.requests), f.settled.len(), len(f.waiting)
}

// Fence is the version of an org's authority.
func (f *Fold) Fence(org events.Org) int64 { return f.fences[org] }

func (f *Fold) mix(x uint64) {
	const odd = 0x9E3779B97F4A7C15
	f.digest = bits.RotateLeft64(f.digest^x, 27) * odd
}

// answer adds a verdict to those of this record.
func (f *Fold) answer(v events.Verdict) {
	f.mix(v.Seq)
	f.mix(uint64(v.Time))
	if v.Admitted {
		f.mix(1)
	}
	for _, n := range v.Used {
		f.mix(uint64(n))
	}
	f.out = append(f.out, v)
}

// basis gives the one stored copy of a basis' name.
func (f *Fold) basis(name string) string {
	switch name {
	case events.BasisRequest:
		return events.BasisRequest
	case events.BasisSlot:
		return events.BasisSlot
	case events.BasisTotal:
		return events.BasisTotal
	case events.BasisInput:
		return events.BasisInput
	case events.BasisOutput:
		return events.BasisOutput
	case events.BasisFootprint:
		return events.BasisFootprint
	case events.BasisCost:
		return events.BasisCost
	case events.BasisMoney:
		return events.BasisMoney
	}
	if known, ok := f.bases[name]; ok {
		return known
	}
	name = strings.Clone(name)
	if len(f.bases) < maxBases {
		f.bases[name] = name
	}
	return name
}

// add gives a+b, stopping at the ends of the range.
func add(a, b int64) int64 {
	c := a + b
	if (a > 0 && b > 0 && c < 0) || (a < 0 && b < 0 && c >= 0) {
		if a > 0 {
			return saturatedLimit
		}
		return -saturatedLimit
	}
	return c
}

// ceilMS gives a positive span of ns in ms, rounded up; 0 for any other.
func ceilMS(ns int64) int64 {
	if ns <= 0 {
		return 0
	}
	return (ns-1)/ms + 1
}
