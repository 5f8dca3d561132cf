package events

// Reason says why a reserve was refused.
type Reason string

// The reasons of refusals by the fold.
const (
	OverLimit  Reason = "over_limit"  // does not fit now
	TooLarge   Reason = "too_large"   // would never fit
	Paused     Reason = "paused"      // the meter is paused
	NoBalance  Reason = "no_balance"  // not enough prepaid money
	StaleFence Reason = "stale_fence" // made on an older version of the org's authority
	Recovering Reason = "recovering"  // too soon after a recovery with full windows
	Released   Reason = "released"    // its release came before it, or its request has ended
	Invalid    Reason = "invalid"     // breaks a rule of claims
)

// Verdict is the fold's answer to a reserve.
type Verdict struct {
	Request  RequestID
	Attempt  int64
	Gateway  Gateway // who asked; not part of the encoded verdict
	Org      Org     // whose it is; not part of the encoded verdict
	Seq      uint64  // of the reserve
	Time     int64   // the fold's now when it fell, ns since 1970
	Admitted bool
	ParkedMS int64   // how long it waited
	WaitMS   int64   // how long a paced request is to wait before it is sent
	Used     []int64 // per claim: after an admission, before a refusal
	Shadow   []int   // claims that would have refused but for being shadow
	Refusal  *Refusal
}

// Refusal says why the fold said no.
type Refusal struct {
	Claim     int   // index of the claim that failed; −1 if none is to blame
	Meter     Meter // its meter, or ""
	Reason    Reason
	Used      int64
	Limit     int64
	HasLimit  bool
	Requested int64
	RetryMS   int64 // when it may pass, in ms from Time
	HasRetry  bool
	Odd       *Odd // numbers of an invalid claim that were no integers
}

// Verdicts is what was decided over a stretch of the log. Written by the one projector that holds the writer's lease.
type Verdicts struct {
	FromSeq   uint64
	ToSeq     uint64
	Rules     int64
	StateHash string // the fold's digest after ToSeq, 16 hex digits
	Chain     string // SHA-256 over the log up to ToSeq, 64 hex digits; empty if not kept
	Verdicts  []Verdict
	Lapses    []Lapse
}

// Lapse is what became of a running request without a release: the fold's word for readers that do not fold.
type Lapse struct {
	Request RequestID
	State   LapseState
	Time    int64 // ns since 1970: when, in the fold's time
}

// LapseState says what became of it.
type LapseState string

// The states.
const (
	LapseBegan LapseState = "lapsed"   // its gateway's lease has ended: what it held is freed, and may come back
	LapseOver  LapseState = "returned" // its gateway has renewed its lease after all: it runs
	LapseEnded LapseState = "ended"    // it has ended: it had lapsed for 15 minutes, its time was up, or its gateway began a higher epoch
)

// Kind is KindVerdicts.
func (*Verdicts) Kind() Kind       { return KindVerdicts }
func (*Verdicts) isData()          {}
func (*Verdicts) org() Org         { return "" }
func (*Verdicts) gateway() Gateway { return "" }
