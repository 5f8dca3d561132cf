package insight

// Story is a request retold. All times are RFC 3339 in UTC; amounts are in the unit of their meter: requests, tokens, ms or nano-dollars.
type Story struct {
	Request    string       `json:"request"`
	Org        string       `json:"org,omitempty"`
	Workspace  string       `json:"workspace,omitempty"`
	Principal  string       `json:"principal,omitempty"`
	Key        string       `json:"key,omitempty"`
	Model      string       `json:"model,omitempty"`
	Operation  string       `json:"operation,omitempty"`
	Outcome    string       `json:"outcome"` // refused, running, lapsed, or how its release says that it ended
	Summary    string       `json:"summary"`
	Decisions  []Decision   `json:"decisions"`
	Turned     []TurnedAway `json:"refused_by_gateway,omitempty"`
	Timeline   []Moment     `json:"timeline"`
	Settlement []Settled    `json:"settlement,omitempty"`
	Cost       Cost         `json:"cost"`
	Folded     Folded       `json:"folded"`
	Notes      []string     `json:"notes,omitempty"`
}

// Decision is what was decided on one attempt, and on what.
type Decision struct {
	Attempt      int64       `json:"attempt"`
	Seq          uint64      `json:"seq"`
	Asked        string      `json:"asked"`
	Decided      string      `json:"decided,omitempty"` // empty while it waits
	Outcome      string      `json:"outcome"`           // admitted, refused, waiting
	Gateway      string      `json:"gateway,omitempty"`
	Epoch        int64       `json:"epoch"`
	Deployment   string      `json:"deployment,omitempty"`
	Mode         string      `json:"mode,omitempty"`
	Fence        int64       `json:"fence"`
	FenceNow     int64       `json:"fence_in_force"`
	ParkMS       int64       `json:"park_ms"`
	PriceVersion string      `json:"price_version,omitempty"`
	Estimate     Estimate    `json:"estimate"`
	ParkedMS     int64       `json:"parked_ms"`
	WaitMS       int64       `json:"wait_ms"`
	Why          string      `json:"why"`
	Refusal      *Refusal    `json:"refusal,omitempty"`
	Claims       []Claim     `json:"claims"`
	WaitedFor    []WaitedFor `json:"waited_for,omitempty"`
	WouldPass    *WouldPass  `json:"would_pass,omitempty"`
}

// Estimate is what the gateway expected.
type Estimate struct {
	InputTokens    int64 `json:"input_tokens"`
	OutputTokens   int64 `json:"output_tokens"`
	OutputDeclared bool  `json:"output_declared"`

	Of string `json:"of,omitempty"` // of which estimate claims of tokens were made, in words; empty: there are none
}

// Refusal is why the fold said no.
type Refusal struct {
	Claim        int    `json:"claim"` // −1 if none is to blame
	Meter        string `json:"meter"`
	Reason       string `json:"reason"`
	Used         int64  `json:"used"`
	Limit        *int64 `json:"limit"`
	Requested    int64  `json:"requested"`
	RetryAfterMS *int64 `json:"retry_after_ms"`
}

// Claim is one claim in the order of the gates, with its meter at the instant of the decision.
type Claim struct {
	Meter   string  `json:"meter"`
	Kind    string  `json:"kind"`
	Basis   string  `json:"basis"`
	Life    string  `json:"life"`
	Amount  int64   `json:"amount"`
	Need    int64   `json:"need"` // what must fit
	Limit   *int64  `json:"limit"`
	Used    int64   `json:"used"` // as the verdict says: with this request after an admission, without it before a refusal
	Fits    bool    `json:"fits"`
	Failed  bool    `json:"failed,omitempty"` // the refusal names it
	Shadow  bool    `json:"shadow,omitempty"`
	Park    bool    `json:"park,omitempty"`
	By      Holders `json:"by"` // who else makes up what is used
	Pause   string  `json:"pause,omitempty"`
	unit    unit
	percent int64
}

// WaitedFor is a gauge on which an attempt waited, as it was when it came.
type WaitedFor struct {
	Meter string  `json:"meter"`
	Used  int64   `json:"used"`
	Need  int64   `json:"need"`
	Limit *int64  `json:"limit"`
	Ahead int     `json:"ahead"` // requests that waited on it before
	By    Holders `json:"by"`
}

// WouldPass is when, as the log went on, a refused attempt would have passed had it come again.
type WouldPass struct {
	At      string `json:"at,omitempty"` // empty: not as far as was looked
	AfterMS int64  `json:"after_ms,omitempty"`
	Looked  string `json:"looked_until"`
}

// TurnedAway is a refusal by a gateway's own gates, before the log.
type TurnedAway struct {
	Seq     uint64  `json:"seq"`
	Time    string  `json:"time"`
	Gate    string  `json:"gate"`
	Origin  string  `json:"origin"`
	Scope   string  `json:"scope,omitempty"`
	Kind    string  `json:"kind,omitempty"`
	Limit   *int64  `json:"limit,omitempty"`
	Used    int64   `json:"used"`
	Asked   int64   `json:"requested"`
	Status  int     `json:"status"`
	Code    string  `json:"code"`
	RetryAt string  `json:"retry_at,omitempty"` // when it was worth another try, as the gateway said
	Why     string  `json:"why"`
	Meter   string  `json:"meter,omitempty"` // that of the limit, if any reserve that was read claims it
	By      Holders `json:"by"`              // who used it when the log was told of the refusal
	unit    unit
}

// Moment is one thing that happened to the request.
type Moment struct {
	Seq     uint64 `json:"seq"`
	Time    string `json:"time"`
	AfterMS int64  `json:"after_ms"` // since the first
	What    string `json:"what"`
	Attempt int64  `json:"attempt"`
	Text    string `json:"text"`
	at      int64
}

// Settled is what became of an admitted claim's charge.
type Settled struct {
	Attempt  int64  `json:"attempt"`
	Meter    string `json:"meter"`
	Kind     string `json:"kind"`
	Basis    string `json:"basis"`
	Reserved int64  `json:"reserved"`
	Settled  int64  `json:"settled"`
	Returned bool   `json:"returned,omitempty"` // given back: it was never sent to a model
	Freed    string `json:"freed,omitempty"`    // gauge: when it was let go
	HeldMS   int64  `json:"held_ms,omitempty"`
	unit     unit
}

// Cost is what the request was charged, and how that was made up.
type Cost struct {
	Nano       int64         `json:"nano"`
	Attempts   []AttemptCost `json:"attempts,omitempty"`
	Held       int64         `json:"held_nano,omitempty"`      // of the balance, at admission
	Open       int64         `json:"held_open_nano,omitempty"` // still held at the end of what was read
	Corrected  int64         `json:"corrected_nano,omitempty"` // as credits of its corrections say
	Unfinished []int64       `json:"without_final,omitempty"`  // admitted attempts whose final has not come
}

// AttemptCost is one attempt's final.
type AttemptCost struct {
	Attempt      int64       `json:"attempt"`
	Nano         int64       `json:"nano"`
	PriceVersion string      `json:"price_version,omitempty"`
	Quality      string      `json:"quality"`
	Usage        usageFields `json:"usage"`
}

// usageFields are tokens by kind, all of them written.
type usageFields struct {
	Input      int64 `json:"input_tokens"`
	Cached     int64 `json:"cached_tokens"`
	CacheWrite int64 `json:"cache_write_tokens"`
	Output     int64 `json:"output_tokens"`
	Reasoning  int64 `json:"reasoning_tokens"`
}

// Folded says which stretch of the log the story was told from.
type Folded struct {
	From     uint64 `json:"from_seq"`
	To       uint64 `json:"to_seq"`
	Snapshot bool   `json:"from_snapshot"`
}
