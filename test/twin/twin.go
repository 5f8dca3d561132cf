// Package twin folds the log a second time, slowly and plainly. It is written from the same rules as projections/admission but shares
// no code with it: every sum is taken anew from the recorded charges, every timer is found by looking at everything, nothing is cached.
// Tests fold random logs with both and compare every verdict and every meter.
package twin

import (
	"sort"

	"github.com/weirhq/weir/events"
)

// Units of time and the spans that the rules name, in ns.
const (
	ms     = int64(1_000_000)
	second = 1000 * ms
	minute = 60 * second
	hour   = 60 * minute
	never  = int64(1<<63 - 1)

	silence      = 2000 * ms   // a longer gap between two lines is nobody's fault
	lapseEnds    = 15 * minute // a request lapsed for so long ends
	holdOutlives = hour        // a hold without a final is dropped so long after its request's end
	recoverFor   = 61 * second // how long a recovery with full windows refuses
	forgetEvery  = 5 * minute
	forgetAfter  = 15 * minute

	maxWaiters  = 256  // on one gauge
	gaugeRetry  = 1000 // ms
	levelUnit   = 60_000
	maxBalances = 1 // balance claims of one request
)

// Twin is the state that a log has led to. The zero value is not ready; use New.
type Twin struct {
	started   bool
	lastT     int64 // stream time of the last line
	skew      int64 // what now is ahead of stream time
	now       int64 // the fold's time
	forgotten int64 // the last multiple of five minutes at which things were forgotten

	requests map[events.RequestID]*request
	charges  []*charge // every charge ever made, also of requests that are forgotten
	meters   map[events.Meter]*meter
	gateways map[events.Gateway]*gateway
	fences   map[events.Org]int64
	credited map[credited]bool
	totals   map[events.Meter]int64 // of balances: credits less debits
	waiters  []*attempt             // in order of arrival

	recovering bool
	recovered  int64 // when the last recover with full windows came

	fallen map[events.Meter]bool // gauges that have fallen, or that a waiter has left, since the waiters were last gone through
	out    []events.Verdict
}

type credited struct {
	org       events.Org
	reference string
}

// request is what is known of one request.
type request struct {
	id       events.RequestID
	attempts map[int64]*attempt
	admitted []*attempt // in order of admission

	// Set by the first admission.
	gateway events.Gateway
	epoch   int64
	began   int64 // when it was admitted
	maxMS   int64

	lapsed   bool
	lapsedAt int64
	ended    bool
	endedAt  int64
	refusal  int64 // when its last refused attempt was refused
	early    int64 // when the last true-up or release came of an attempt that is not known yet

	charges []*charge // what its true-ups and releases can change
	hold    *charge   // of its balance claim
}

type state uint8

const (
	unseen   state = iota // only true-ups or releases have come
	waiting               // on gauges
	admitted              // charged
	refused               // nothing changes it any more
)

// attempt is one try of a request.
type attempt struct {
	of    *request
	n     int64
	state state
	kept  []events.Data // true-ups and releases that wait for its admission, in order

	reserve *events.Reserve
	org     events.Org
	seq     uint64
	index   int
	arrived int64
	waitsOn map[events.Meter]bool

	highest    int64 // n of its true-ups
	final      bool
	dispatched events.Dispatched
	fixed      bool             // dispatched is
	values     map[string]int64 // the last value folded, by basis
	finals     map[string]int64 // the values of its final, by basis
	settled    bool             // only its id counts
}

type gateway struct {
	name    events.Gateway
	epoch   int64 // the newest
	ttl     int64 // announced, ns
	running bool
	end     int64
}

// New gives the state of an empty log.
func New() *Twin {
	return &Twin{
		requests: map[events.RequestID]*request{},
		meters:   map[events.Meter]*meter{},
		gateways: map[events.Gateway]*gateway{},
		fences:   map[events.Org]int64{},
		credited: map[credited]bool{},
		totals:   map[events.Meter]int64{},
		fallen:   map[events.Meter]bool{},
	}
}

// Apply folds one record and gives the verdicts that fall, in order.
func (t *Twin) Apply(r events.Record) []events.Verdict {
	t.out = nil
	// "Every line moves time, also of kinds that the fold otherwise ignores"
	t.moveTime(r.At)
	if r.Fault == "" {
		t.fold(&r)
		// "After each event or timer: the waiters on a gauge that has fallen […] are gone through"
		t.wake()
	}
	return t.out
}

func (t *Twin) fold(r *events.Record) {
	switch d := r.Data.(type) {
	case *events.Reserve:
		t.foldReserve(r, d)
	case *events.TrueUp:
		if d.Fault == "" { // "an event that breaks this is not folded"
			t.foldTrueUp(d)
		}
	case *events.Release:
		t.foldRelease(d)
	case *events.Lease:
		t.foldLease(d)
	case *events.Cooldown:
		t.foldCooldown(d)
	case *events.Fence:
		// "never lowered"
		t.fences[d.Org] = max(t.fences[d.Org], d.Version)
	case *events.Credit:
		t.foldCredit(d)
	case *events.Recover:
		// "`recover{windows: empty}` does nothing"
		if d.Windows == "full" {
			t.recovering, t.recovered = true, t.now
		}
	case *events.Tick, *events.Refused, *events.Rules, *events.Correction, *events.Verdicts, *events.Unknown, nil:
	}
}

// foldCooldown: "a pause until now + for_ms (1,000 to 60,000), never shortened; ignored on another kind".
func (t *Twin) foldCooldown(d *events.Cooldown) {
	if m := t.meters[d.Meter]; m != nil && m.kind != events.Pause {
		return
	}
	m := t.know(&events.Claim{Meter: d.Meter, Kind: events.Pause})
	m.until = max(m.until, t.now+clamp(d.ForMS, events.MinForMS, events.MaxForMS)*ms)
	t.note(d.Meter)
}

// foldCredit: "adds to the total of `org/<org>/balance`, once per org and reference".
func (t *Twin) foldCredit(d *events.Credit) {
	if d.AmountNano < -events.MaxAmount || d.AmountNano > events.MaxAmount || t.credited[credited{d.Org, d.Reference}] {
		return
	}
	t.credited[credited{d.Org, d.Reference}] = true
	name := events.Meter("org/" + string(d.Org) + "/balance")
	if t.meters[name] == nil {
		t.know(&events.Claim{Meter: name, Kind: events.Balance})
	}
	t.totals[name] = add(t.totals[name], d.AmountNano)
}

// Meter is what one meter shows.
type Meter struct {
	Name      events.Meter
	Kind      events.MeterKind
	Used      int64
	Available int64 // of a balance: total less holds
}

// Meters gives the meters that are not empty at the last line's time, by name.
func (t *Twin) Meters() []Meter {
	var list []Meter
	for name, m := range t.meters {
		shown := Meter{Name: name, Kind: m.kind, Used: t.used(name, m)}
		if m.kind == events.Balance {
			shown.Available = add(t.totals[name], -shown.Used)
			if t.totals[name] == 0 && shown.Used == 0 {
				continue
			}
		} else if shown.Used == 0 {
			continue
		}
		list = append(list, shown)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	return list
}

// Gauges gives what the reservations hold of every gauge, also of empty ones.
func (t *Twin) Gauges() map[events.Meter]int64 {
	gauges := map[events.Meter]int64{}
	for _, c := range t.charges {
		if c.kind == events.Gauge {
			if c.held {
				gauges[c.meter] = add(gauges[c.meter], c.value)
			} else {
				gauges[c.meter] = add(gauges[c.meter], 0)
			}
		}
	}
	return gauges
}

// Now gives the fold's time, ns since 1970.
func (t *Twin) Now() int64 { return t.now }

// request gives what is known of a request, from now on if it was not.
func (t *Twin) request(id events.RequestID) *request {
	if t.requests[id] == nil {
		t.requests[id] = &request{id: id, attempts: map[int64]*attempt{}}
	}
	return t.requests[id]
}

func (r *request) attempt(n int64) *attempt {
	if r.attempts[n] == nil {
		r.attempts[n] = &attempt{of: r, n: n, values: map[string]int64{}, finals: map[string]int64{}}
	}
	return r.attempts[n]
}

// add saturates: "Sums saturate."
func add(a, b int64) int64 {
	sum := a + b
	switch {
	case a > 0 && b > 0 && sum < 0:
		return never
	case a < 0 && b < 0 && sum >= 0:
		return -never - 1
	}
	return sum
}

func clamp(n, lo, hi int64) int64 { return min(max(n, lo), hi) }

// ceilDiv rounds up; d is positive.
func ceilDiv(n, d int64) int64 {
	q := n / d
	if n%d > 0 {
		q++
	}
	return q
}

// floorDiv rounds down; d is positive.
func floorDiv(n, d int64) int64 {
	q := n / d
	if n%d < 0 {
		q--
	}
	return q
}
