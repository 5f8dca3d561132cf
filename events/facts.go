package events

// Mode says how a reserve came to be.
type Mode uint8

// The modes of reserves.
const (
	ModeNormal       Mode = iota
	ModeBoundedLocal      // admitted by a gateway from its bounded allowance while the log was out of reach
)

// BoundedLocal is the name of ModeBoundedLocal in events.
const BoundedLocal = "bounded_local"

// Bounds and defaults of reserves.
const (
	MaxParkMS    = 5_000
	MinMaxMS     = 1_000
	MaxMaxMS     = 86_400_000
	DefaultMaxMS = 3_600_000
)

// Reserve asks for all claims of an attempt at once. Published by a gateway.
type Reserve struct {
	Request      RequestID
	Attempt      int64
	Org          Org
	Workspace    string
	Principal    string
	Key          string // the key's id, never the key
	Model        string // as asked for
	Deployment   string // the replica, or connection and upstream model, chosen for this attempt
	Operation    string
	Gateway      Gateway
	Epoch        int64
	Mode         Mode
	At           int64 // ns since 1970: when a bounded_local request was admitted; 0 if not given
	Fence        int64 // version of the org's authority that was used
	ParkMS       int64 // how long it may wait; −1 if it was no integer
	MaxMS        int64 // how long the request may run; DefaultMaxMS when absent
	PriceVersion string
	BYOK         bool // the attempt goes to an account of the org's own
	Estimate     Estimate
	Claims       []Claim // nil if there was no list
}

// Estimate is what the gateway expected of the request when it reserved, for the audit and the estimator.
type Estimate struct {
	InputTokens    int64
	OutputTokens   int64
	OutputDeclared bool
	TextBytes      int64 // bytes of text that the learned ratio applies to
	Images         int64
}

// Quality says how well a true-up knows its numbers.
type Quality uint8

// The qualities of usage.
const (
	QualityNone      Quality = iota // nothing is known
	QualityEstimated                // from what was streamed
	QualityPartial                  // the provider reported some of it
	QualityExact                    // the provider's own final numbers
)

var qualityNames = [...]string{"none", "estimated", "partial", "exact"}

// String gives the quality's name.
func (q Quality) String() string {
	if int(q) < len(qualityNames) {
		return qualityNames[q]
	}
	return qualityNames[QualityNone]
}

// Usage is what an attempt used, in tokens. Input includes cached and cache-write tokens, output includes reasoning.
type Usage struct {
	InputTokens      int64 `json:"input_tokens"`
	CachedTokens     int64 `json:"cached_tokens,omitempty"`
	CacheWriteTokens int64 `json:"cache_write_tokens,omitempty"`
	OutputTokens     int64 `json:"output_tokens"`
	ReasoningTokens  int64 `json:"reasoning_tokens,omitempty"`
}

// Charge is an absolute amount by basis.
type Charge struct {
	Basis  string
	Amount int64
}

// TrueUp replaces an attempt's estimates. Values are absolute. Published by a gateway.
type TrueUp struct {
	Request      RequestID
	Attempt      int64
	Gateway      Gateway
	N            int64 // counts from 1; 0 if absent: the next; negative if it can be above no other
	Final        bool
	Quality      Quality
	Usage        Usage
	Charges      []Charge
	CostNano     int64 // nano-dollars, debited by a final
	PriceVersion string
	ListNano     int64  // of an attempt at an account of the org's own: what its usage costs by the price book, in nano-dollars
	Train        bool   // usage may teach the estimator
	Fault        string // a number out of its range: the event is counted and not folded
}

// Of says what a release ends.
type Of uint8

// What a release ends.
const (
	OfRequest Of = iota
	OfAttempt
	OfLocal // nothing ends: the request has left the local pool
)

var ofNames = [...]string{"request", "attempt", "local"}

// String gives its name.
func (o Of) String() string {
	if int(o) < len(ofNames) {
		return ofNames[o]
	}
	return ofNames[OfRequest]
}

// Outcome says how an attempt or request ended.
type Outcome string

// The outcomes.
const (
	Completed     Outcome = "completed"
	Failed        Outcome = "failed"
	Cancelled     Outcome = "cancelled"
	TimedOut      Outcome = "timeout"
	NotDispatched Outcome = "not_dispatched"
	Abandoned     Outcome = "abandoned"
)

// Dispatched says whether the backend got the request.
type Dispatched uint8

// Whether the backend got the request.
const (
	DispatchedUnknown Dispatched = iota
	DispatchedYes
	DispatchedNo
)

var dispatchedNames = [...]string{"unknown", "yes", "no"}

// String gives its name.
func (d Dispatched) String() string {
	if int(d) < len(dispatchedNames) {
		return dispatchedNames[d]
	}
	return dispatchedNames[DispatchedUnknown]
}

// Release ends an attempt or a request, or says that it left the local pool. Published by a gateway.
type Release struct {
	Request      RequestID
	Attempt      int64
	Gateway      Gateway
	Of           Of
	Outcome      Outcome
	Dispatched   Dispatched
	Status       int64 // HTTP status that the client saw, 0 if none
	FinishReason string
	LatencyMS    int64
	TTFTMS       int64  // time to the first token
	Error        string // the error's code, where there was one
	Origin       string // the error's origin
}

// Lease is a gateway's sign of life: it renews every reservation of that gateway and epoch.
type Lease struct {
	Gateway Gateway
	Epoch   int64
	TTLMS   int64 // 0 if absent
}

// Bounds and default of leases.
const (
	MinTTLMS     = 10_000
	MaxTTLMS     = 60_000
	DefaultTTLMS = 10_000
)

// Tick moves time and says nothing else.
type Tick struct {
	Gateway Gateway
}

// Cooldown pauses a meter.
type Cooldown struct {
	Gateway Gateway `json:"gateway,omitempty"`
	Meter   Meter   `json:"meter"`
	ForMS   int64   `json:"for_ms"`
}

// Bounds of cooldowns.
const (
	MinForMS = 1_000
	MaxForMS = 60_000
)

// Fence raises the version of an org's authority that reserves must present. Published by the authority.
type Fence struct {
	Org     Org   `json:"org"`
	Version int64 `json:"version"`
}

// Credit adds to an org's balance, once per reference. Published by the authority.
type Credit struct {
	Org        Org    `json:"org"`
	AmountNano int64  `json:"amount_nano"` // may be negative
	Reference  string `json:"reference"`
}

// Recover opens admission again after the log was replaced or lost. Published by an operator.
type Recover struct {
	Reason  string `json:"reason"`
	Windows string `json:"windows"` // full, or empty

	// LostFrom and LostTo are the sequences that were used before, and whose messages are lost: the log was cut, or restored from a copy, and
	// what stands there now says nothing. 0: it begins anew.
	LostFrom uint64 `json:"lost_from,omitempty"`
	LostTo   uint64 `json:"lost_to,omitempty"`
}

// Rules changes the fold's behaviour from here on. Published by an operator.
type Rules struct {
	Version int64 `json:"version"`
}

// Correction changes what billing consumers were told; the fold ignores it. Published by an operator.
type Correction struct {
	Request  RequestID `json:"request"`
	Attempt  int64     `json:"attempt"`
	Revision int64     `json:"revision"`
	Usage    Usage     `json:"usage"`
	CostNano int64     `json:"cost_nano"`
	Reason   string    `json:"reason"`
}

// Refused is the audit record of a refusal that a gateway made by itself; the fold ignores it.
type Refused struct {
	Request   RequestID `json:"request"`
	Org       Org       `json:"org"`
	Gateway   Gateway   `json:"gateway,omitempty"`
	Workspace string    `json:"workspace,omitempty"`
	Principal string    `json:"principal,omitempty"`
	Key       string    `json:"key,omitempty"`
	Model     string    `json:"model,omitempty"`
	Operation string    `json:"operation,omitempty"`
	Gate      string    `json:"gate"`
	Origin    string    `json:"origin"`
	Scope     string    `json:"scope,omitempty"`
	LimitKind string    `json:"kind,omitempty"`
	LimitID   string    `json:"limit_id,omitempty"`
	Limit     *int64    `json:"limit,omitempty"`
	Used      int64     `json:"used,omitempty"`
	Requested int64     `json:"requested,omitempty"`
	Status    int       `json:"status"`
	Code      string    `json:"code"`
	Message   string    `json:"message,omitempty"`
	RetryAt   string    `json:"retry_at,omitempty"` // RFC 3339, where it is known
	Count     int64     `json:"count,omitempty"`    // how many refusals this record stands for; 0 means 1
	First     string    `json:"first,omitempty"`    // RFC 3339, of the first and last of several
	Last      string    `json:"last,omitempty"`
}

// Kind is KindReserve.
func (*Reserve) Kind() Kind { return KindReserve }

// Kind is KindTrueUp.
func (*TrueUp) Kind() Kind { return KindTrueUp }

// Kind is KindRelease.
func (*Release) Kind() Kind { return KindRelease }

// Kind is KindRefused.
func (*Refused) Kind() Kind { return KindRefused }

// Kind is KindLease.
func (*Lease) Kind() Kind { return KindLease }

// Kind is KindCooldown.
func (*Cooldown) Kind() Kind { return KindCooldown }

// Kind is KindTick.
func (*Tick) Kind() Kind { return KindTick }

// Kind is KindFence.
func (*Fence) Kind() Kind { return KindFence }

// Kind is KindCredit.
func (*Credit) Kind() Kind { return KindCredit }

// Kind is KindRecover.
func (*Recover) Kind() Kind { return KindRecover }

// Kind is KindRules.
func (*Rules) Kind() Kind { return KindRules }

// Kind is KindCorrection.
func (*Correction) Kind() Kind { return KindCorrection }

func (*Reserve) isData()    {}
func (*TrueUp) isData()     {}
func (*Release) isData()    {}
func (*Refused) isData()    {}
func (*Lease) isData()      {}
func (*Cooldown) isData()   {}
func (*Tick) isData()       {}
func (*Fence) isData()      {}
func (*Credit) isData()     {}
func (*Recover) isData()    {}
func (*Rules) isData()      {}
func (*Correction) isData() {}

func (d *Reserve) org() Org  { return d.Org }
func (*TrueUp) org() Org     { return "" }
func (*Release) org() Org    { return "" }
func (d *Refused) org() Org  { return d.Org }
func (*Lease) org() Org      { return "" }
func (*Cooldown) org() Org   { return "" }
func (*Tick) org() Org       { return "" }
func (d *Fence) org() Org    { return d.Org }
func (d *Credit) org() Org   { return d.Org }
func (*Recover) org() Org    { return "" }
func (*Rules) org() Org      { return "" }
func (*Correction) org() Org { return "" }

func (d *Reserve) gateway() Gateway  { return d.Gateway }
func (d *TrueUp) gateway() Gateway   { return d.Gateway }
func (d *Release) gateway() Gateway  { return d.Gateway }
func (d *Refused) gateway() Gateway  { return d.Gateway }
func (d *Lease) gateway() Gateway    { return d.Gateway }
func (d *Cooldown) gateway() Gateway { return d.Gateway }
func (d *Tick) gateway() Gateway     { return d.Gateway }
func (*Fence) gateway() Gateway      { return "" }
func (*Credit) gateway() Gateway     { return "" }
func (*Recover) gateway() Gateway    { return "" }
func (*Rules) gateway() Gateway      { return "" }
func (*Correction) gateway() Gateway { return "" }
