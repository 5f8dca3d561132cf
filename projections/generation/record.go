package generation

import "github.com/weirhq/weir/events"

// The states of a record.
const (
	InProgress = "in_progress"
	Ended      = "ended"
)

// Refused is the outcome of a request of which no attempt was admitted.
const Refused events.Outcome = "refused"

// CodeLost is the error's code of a request that was lost with its gateway. Its outcome is events.Abandoned; whether it was dispatched, and what
// it used, is not known.
const CodeLost = "gateway_lost"

// Record is one request whole, as the log tells it. Its JSON is what is stored and what a client is answered.
type Record struct {
	// What OpenRouter's generation object has too. Null: not known, or not yet.
	ID                     events.RequestID   `json:"id"`
	CreatedAt              Instant            `json:"created_at"`
	Model                  string             `json:"model"`
	APIType                *string            `json:"api_type"`
	WorkspaceID            *string            `json:"workspace_id"`
	ProviderName           *string            `json:"provider_name"` // the deployment of the attempt that served it
	ProviderResponses      []ProviderResponse `json:"provider_responses"`
	Cancelled              bool               `json:"cancelled"`
	FinishReason           *string            `json:"finish_reason"`
	NativeFinishReason     *string            `json:"native_finish_reason"`
	Latency                *int64             `json:"latency"`         // ms, the whole request
	GenerationTime         *int64             `json:"generation_time"` // ms, from the first token on
	TokensPrompt           *int64             `json:"tokens_prompt"`
	TokensCompletion       *int64             `json:"tokens_completion"`
	NativeTokensPrompt     *int64             `json:"native_tokens_prompt"`
	NativeTokensCompletion *int64             `json:"native_tokens_completion"`
	NativeTokensReasoning  *int64             `json:"native_tokens_reasoning"`
	NativeTokensCached     *int64             `json:"native_tokens_cached"`
	NumMediaPrompt         *int64             `json:"num_media_prompt"`
	TotalCost              USD                `json:"total_cost"`
	Usage                  USD                `json:"usage"` // OpenRouter's word for the cost
	IsBYOK                 bool               `json:"is_byok"`
	UpstreamInferenceCost  *USD               `json:"upstream_inference_cost"` // by the price book, at accounts of the org's own; null: it was at none

	// Whose it is.
	Org       events.Org     `json:"org"`
	Principal string         `json:"principal,omitempty"`
	KeyID     string         `json:"key_id,omitempty"`
	Gateway   events.Gateway `json:"gateway,omitempty"`
	Operation string         `json:"operation,omitempty"`

	// How it went.
	State        string         `json:"state"`             // in_progress or ended
	Outcome      events.Outcome `json:"outcome,omitempty"` // of an ended one
	Status       int64          `json:"status,omitempty"`  // HTTP status of the answer
	Error        *Error         `json:"error,omitempty"`
	EndedAt      Instant        `json:"ended_at"`
	UsageQuality *string        `json:"usage_quality"` // of the attempt that served it
	Cost         Cost           `json:"cost"`

	AdmissionEvents []AdmissionEvent `json:"admission_events"`
	Attempts        []Attempt        `json:"attempts"`

	Released  *Released `json:"released,omitempty"`   // the release that ended the request
	Lapsed    Instant   `json:"lapsed,omitempty"`     // when it was lost: its gateway's lease had ended, or its time was up, without a release
	LeftLocal Instant   `json:"left_local,omitempty"` // when it left the local pool
	Early     []Early   `json:"early,omitempty"`      // what came before the reserve or verdict that says what it means
	Truncated bool      `json:"truncated,omitempty"`  // some of it was too much to keep; the log has it all
	AsOf      Place     `json:"as_of"`                // the last place in the log that it tells of

	New bool `json:"-"` // it was not drained before, nor restored
}

// ProviderResponse is an attempt as OpenRouter tells of it.
type ProviderResponse struct {
	EndpointID   string `json:"endpoint_id"`
	ProviderName string `json:"provider_name"`
	Status       *int64 `json:"status"`
	Latency      *int64 `json:"latency"` // ms
}

// Error is how a request or an attempt failed.
type Error struct {
	Code    string `json:"code,omitempty"`
	Origin  string `json:"origin,omitempty"`
	Message string `json:"message,omitempty"`
}

// Cost says what a request cost and how that was reckoned: tokens by kind at the prices of a version, rounded up once for each attempt.
type Cost struct {
	Nano         int64        `json:"nano"` // nano-dollars, the sum of the attempts'
	PriceVersion string       `json:"price_version,omitempty"`
	Tokens       events.Usage `json:"tokens"`
	Settled      bool         `json:"settled"` // every attempt that was dispatched has its final
	Corrected    bool         `json:"corrected,omitempty"`
}

// Place is a place in the log.
type Place struct {
	Log   Instant `json:"log,omitempty"` // when the log began: places in different logs have no order
	Seq   uint64  `json:"seq"`
	Index int     `json:"index"`
	Time  Instant `json:"time"`
}

func (p Place) before(q Place) bool {
	return p.Log == q.Log && (p.Seq < q.Seq || p.Seq == q.Seq && p.Index < q.Index)
}

// The events of admission.
const (
	EventRefused  = "refused"  // by the fold or by a gateway
	EventParked   = "parked"   // admitted after waiting for a gauge to fall
	EventPaced    = "paced"    // admitted to be sent a little later
	EventShadow   = "shadow"   // would have been refused by a shadow limit
	EventFallback = "fallback" // tried at another deployment
	EventRetry    = "retry"    // tried again at the same one
)

// AdmissionEvent is one thing that happened on the way to admission.
type AdmissionEvent struct {
	Event        string        `json:"event"`
	Seq          uint64        `json:"seq"` // where in the log: of a verdict, its reserve
	Time         Instant       `json:"time"`
	Attempt      int64         `json:"attempt"`
	Gate         string        `json:"gate,omitempty"`
	Origin       string        `json:"origin,omitempty"`
	Scope        string        `json:"scope,omitempty"`
	Kind         string        `json:"kind,omitempty"`
	LimitID      string        `json:"limit_id,omitempty"`
	Meter        events.Meter  `json:"meter,omitempty"`
	Reason       events.Reason `json:"reason,omitempty"`
	Limit        *int64        `json:"limit,omitempty"`
	Used         *int64        `json:"used,omitempty"` // before a refusal; of a shadow limit with the request in it
	Requested    *int64        `json:"requested,omitempty"`
	RetryAfterMS *int64        `json:"retry_after_ms,omitempty"`
	RetryAt      Instant       `json:"retry_at,omitempty"`
	ParkedMS     int64         `json:"parked_ms,omitempty"`
	WaitMS       int64         `json:"wait_ms,omitempty"`
	Status       int           `json:"status,omitempty"`
	Code         string        `json:"code,omitempty"`
	Message      string        `json:"message,omitempty"`
	Count        int64         `json:"count,omitempty"` // refusals that a gateway's record stands for, if several
	First        Instant       `json:"first,omitempty"`
	Last         Instant       `json:"last,omitempty"`
	From         string        `json:"from,omitempty"` // deployments of a fallback
	To           string        `json:"to,omitempty"`
	EventID      string        `json:"event_id,omitempty"` // of a gateway's record
}

// Attempt is one try of the request at a backend, with its receipt.
type Attempt struct {
	Attempt      int64            `json:"attempt"`
	Seq          uint64           `json:"seq"` // of its reserve
	ReservedAt   Instant          `json:"reserved_at"`
	Deployment   string           `json:"deployment,omitempty"`
	Gateway      events.Gateway   `json:"gateway,omitempty"`
	Epoch        int64            `json:"epoch,omitempty"` // the gateway's
	Mode         string           `json:"mode,omitempty"`  // bounded_local, if a gateway admitted it by itself
	Verdict      string           `json:"verdict"`         // admitted or refused; empty until it is known
	DecidedAt    Instant          `json:"decided_at"`
	ParkedMS     int64            `json:"parked_ms,omitempty"`
	WaitMS       int64            `json:"wait_ms,omitempty"`
	Estimate     Estimate         `json:"estimate"`
	Claims       []Claim          `json:"claims"`
	Charges      map[string]int64 `json:"charges,omitempty"` // the last true-ups' absolute amounts by basis
	TrueUps      int64            `json:"true_ups,omitempty"`
	Final        bool             `json:"final"`
	UsageQuality string           `json:"usage_quality,omitempty"`
	Usage        *events.Usage    `json:"usage,omitempty"`
	CostNano     *int64           `json:"cost_nano,omitempty"` // of a final
	PriceVersion string           `json:"price_version,omitempty"`
	BYOK         bool             `json:"byok,omitempty"`       // at a provider account of the org's own
	ListNano     int64            `json:"list_nano,omitempty"`  // of such a one's final: what its usage costs by the price book
	Correction   *Correction      `json:"correction,omitempty"` // the one with the highest revision
	Released     *Released        `json:"released,omitempty"`
}

// The verdicts.
const (
	VerdictAdmitted = "admitted"
	VerdictRefused  = "refused"
)

// Estimate is what the gateway expected of a request when it reserved.
type Estimate struct {
	InputTokens    int64 `json:"input_tokens"`
	OutputTokens   int64 `json:"output_tokens"`
	OutputDeclared bool  `json:"output_declared"`
	TextBytes      int64 `json:"text_bytes"`
	Images         int64 `json:"images"`
}

// Claim is a claim with what became of it.
type Claim struct {
	Meter    events.Meter `json:"meter"`
	Scope    string       `json:"scope"`
	Kind     string       `json:"kind"` // which limit it is, as in x-tm-limit-kind
	Counts   string       `json:"counts"`
	Basis    string       `json:"basis"`
	Life     string       `json:"life,omitempty"` // empty: the request
	Amount   int64        `json:"amount"`
	Check    *int64       `json:"check,omitempty"`
	Limit    *int64       `json:"limit"`
	Used     *int64       `json:"used"`               // what the meter held, by the verdict
	Settled  *int64       `json:"settled"`            // what the charge has come to; null: nothing is charged, or not yet known of a balance
	Returned *int64       `json:"returned,omitempty"` // what was given back of it
	Frozen   bool         `json:"frozen,omitempty"`   // since the request left the local pool
	Shadow   bool         `json:"shadow,omitempty"`
	Park     bool         `json:"park,omitempty"`
}

// Released is how an attempt or a request ended.
type Released struct {
	At           Instant        `json:"at"`
	Of           string         `json:"of"`
	Attempt      int64          `json:"attempt"`
	Outcome      events.Outcome `json:"outcome,omitempty"`
	Dispatched   string         `json:"dispatched"`
	Status       int64          `json:"status,omitempty"`
	FinishReason string         `json:"finish_reason,omitempty"`
	LatencyMS    int64          `json:"latency_ms,omitempty"`
	TTFTMS       int64          `json:"ttft_ms,omitempty"`
	Error        *Error         `json:"error,omitempty"`
}

// Correction is what an operator said an attempt had come to.
type Correction struct {
	Revision int64        `json:"revision"`
	At       Instant      `json:"at"`
	Usage    events.Usage `json:"usage"`
	CostNano int64        `json:"cost_nano"`
	Reason   string       `json:"reason,omitempty"`
}

// Early is a true-up or release that came before the reserve it speaks of, or before a verdict that it hangs on. It is folded when that comes.
type Early struct {
	At   Instant `json:"at"`
	Type string  `json:"type"`
	Data string  `json:"data"` // JSON

	Unclear bool `json:"unclear,omitempty"` // it waits for a verdict, not for its attempt's reserve
}
