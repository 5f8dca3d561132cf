package events

// MeterKind says how a meter counts.
type MeterKind uint8

// The kinds of meters.
const (
	MeterUnknown MeterKind = iota
	Window                 // rolls over the last minute or second
	Gauge                  // what is held now
	Bucket                 // refills continuously over a minute
	Budget                 // a calendar day or month, UTC
	Balance                // prepaid money
	Pace                   // one slot after another
	Pause                  // closed until an instant
)

var meterKindNames = [...]string{"unknown", "window", "gauge", "bucket", "budget", "balance", "pace", "pause"}

// String gives the kind's name.
func (k MeterKind) String() string {
	if int(k) < len(meterKindNames) {
		return meterKindNames[k]
	}
	return meterKindNames[MeterUnknown]
}

// ParseMeterKind reads a meter kind's name; another is MeterUnknown.
func ParseMeterKind(name string) MeterKind {
	for k := Window; k <= Pause; k++ {
		if meterKindNames[k] == name {
			return k
		}
	}
	return MeterUnknown
}

// Life says what ends a claim's gauge and freezes its charge.
type Life uint8

// The lives of claims.
const (
	LifeRequest Life = iota // until the request ends
	LifeLocal               // until the request leaves the local pool
	LifeAttempt             // until its attempt ends
)

var lifeNames = [...]string{"request", "local", "attempt"}

// String gives the life's name.
func (l Life) String() string {
	if int(l) < len(lifeNames) {
		return lifeNames[l]
	}
	return lifeNames[LifeRequest]
}

// Period is a budget's calendar period, in UTC.
type Period uint8

// The periods of budgets.
const (
	Day Period = iota
	Month
	PeriodUnknown
)

// String gives the period's name.
func (p Period) String() string {
	switch p {
	case Day:
		return "day"
	case Month:
		return "month"
	}
	return "unknown"
}

// The bases of charges that the gates use. A true-up carries charges by basis; any other name is a basis of its own.
const (
	BasisRequest   = "request"   // one request: never trued up
	BasisSlot      = "slot"      // one place: never trued up
	BasisMoney     = "money"     // a balance's hold: never trued up by charges
	BasisTotal     = "total"     // input and counted output tokens
	BasisInput     = "input"     // input tokens
	BasisOutput    = "output"    // output tokens
	BasisFootprint = "footprint" // tokens that occupy the model now
	BasisCost      = "cost"      // nano-dollars
)

// Bounds and defaults of claims.
const (
	DefaultWindowMS = 60_000
	MaxClaims       = 64                    // claims of one reserve
	MaxAmount       = 1_000_000_000_000_000 // amounts, checks, limits, charges, costs
	MaxBucketAmount = 1_000_000_000_000     // amounts, checks, limits of buckets
)

// Claim is what a request wants of one meter.
type Claim struct {
	Meter    Meter
	Kind     MeterKind
	Life     Life
	Period   Period // of a budget
	Park     bool   // a gauge on which the request may wait
	Shadow   bool   // judged and charged, never refusing
	HasCheck bool   // Check is given; otherwise Amount must fit
	HasLimit bool   // Limit is given; otherwise the claim counts and never refuses
	WindowMS int64  // of a window: 60000 or 1000
	QueueMS  int64  // of a pace: how long it may make a request wait
	Amount   int64  // what is charged
	Check    int64  // what must fit
	Limit    int64  // what it must fit into
	Basis    string // which of a true-up's charges replaces Amount
	Odd      *Odd   // set when a number of the claim was no integer
}

// Odd keeps the numbers of a claim as they stood when one of them was no integer of 64 bits. Such a claim is invalid.
type Odd struct {
	Amount, Check, Limit string // JSON as it stood; empty where the number was fine or absent
}

// Need is what must fit: the check, by default the amount.
func (c *Claim) Need() int64 {
	if c.HasCheck {
		return c.Check
	}
	return c.Amount
}
