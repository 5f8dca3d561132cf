// Package authority says who may do what: keys, orgs, limits, models, prices, pools and connections.
//
// A Snapshot is all of it at one moment and never changes; a gateway decides each request on one Snapshot and presents the org's
// fence in its reserve. Static authority comes from weir.yaml, auth.yaml and policy files; dynamic authority from a store.
package authority

import (
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/wire"
)

// Mode says how clients authenticate.
type Mode string

// The modes of api.mode.
const (
	ModeNone    Mode = "none"    // everybody is org "default", key "anonymous"
	ModeAPIKey  Mode = "api-key" // static keys
	ModeDynamic Mode = "dynamic" // static keys and those made through the API
)

// Snapshot is the authority at one moment. Its maps are never changed after it is made.
type Snapshot struct {
	Mode        Mode
	Keys        map[[32]byte]*Key // by SHA-256 of the key
	Orgs        map[events.Org]*Org
	Workspaces  map[string]*Limits // by id; workspaces and principals without limits of their own are absent
	Principals  map[string]*Limits
	Models      map[string]*Model // by the name that clients ask for
	Connections map[string]*Connection
	Pools       map[string]*Pool
	Platform    Limits
	Defaults    Defaults             // of orgs made through the API
	BYOKFee     int64                // what requests at accounts of the org's own cost, in millionths of the price
	Anonymous   *Key                 // who everybody is in ModeNone; nil otherwise
	Fences      map[events.Org]int64 // version of each org's dynamic authority; absent: 0
	LoadedAt    time.Time

	platform *Scope // the platform's meters; made by Seal
}

// Defaults are the limits that orgs made through the API start with, and what belongs to them.
type Defaults struct{ Org, Workspace, Principal, Key Limits }

// Limits are a scope's limits. 0 is no limit.
type Limits struct {
	RPM         int64 // requests a minute
	RPS         int64 // requests a second
	TPM         int64 // reservation-estimated, then exact, tokens a minute
	Concurrency int64 // requests at once
	SpendDay    int64 // nano-dollars a UTC day
	SpendMonth  int64 // nano-dollars a UTC month
	Closed      bool  // outage_mode closed: nothing is admitted while the log is out of reach
	Shadow      Rates // limits that are tried out: they refuse nothing
}

// Billing says how an org pays.
type Billing string

// How an org pays.
const (
	Postpaid Billing = "postpaid"
	Prepaid  Billing = "prepaid" // a balance hold on each request
)

// Org is a tenant.
type Org struct {
	ID      events.Org
	Name    string // as configured, where ID had to be made from it
	Billing Billing
	Limits  Limits
	Models  map[string]Limits // limits of one model for this org
	Daily   int64             // tokens a UTC day over all its keys; 0: none

	names Names // made by Seal
}

// Key is one inference key. The key itself is nowhere kept.
type Key struct {
	ID        string
	Org       events.Org
	Workspace string
	Principal string
	Name      string
	Preview   string
	Models    map[string]bool // models it may ask for; nil: all
	Expires   time.Time       // zero: never
	Limits    Limits          // of the key itself
	Quota     Quota           // as in auth.yaml
	Daily     int64           // tokens a UTC day of this key alone; 0: none
	Dynamic   bool            // made through the API
	At        Pos             // where it is declared, for messages

	scopes []Scope      // what applies to it, outermost first; made by Seal
	money  events.Meter // its org's balance; made by Seal
	part   string       // its id as one part of a meter's subject; made by Seal
}

// Quota is what auth.yaml gives a key. Requests and daily tokens are counted for the key's owner, with this key's limit.
type Quota struct {
	RequestsPerMinute     int64
	TokensPerDay          int64
	InputTokensPerMinute  int64
	OutputTokensPerMinute int64
	OccupancyShare        int64                 // of a serverless model's budget, in millionths; 0: none
	PerModel              map[string]ModelQuota // nil: none; else also the list of models allowed
}

// ModelQuota is a key's quota for one model.
type ModelQuota struct {
	RequestsPerMinutePerReplica int64
	TokensPerDay                int64
}

// Model is what a client can ask for.
type Model struct {
	ID              string
	ContextWindow   int64        // tokens; 0: unknown
	MaxOutputTokens int64        // 0: undeclared
	Created         int64        // seconds since 1970, for the list of models
	Price           *Price       // nil: none; with Prices that before the first of them
	Prices          []DatedPrice // by when they begin; PriceAt gives the one that holds
	Local           *Local
	Providers       []Route // in order of fallback
	Dedicated       *Dedicated
	Policy          Policy
	Weights         Weights
	At              Pos // where it is declared, for messages

	names ModelNames // made by Seal
}

// Weights scale a model's tokens for the tpm of gateway scopes, in thousandths. The zero value counts every token as one.
type Weights struct{ Input, Cached, Output int64 }

// Local is a model's own pool of replicas.
type Local struct {
	Engine   string   // vllm, sglang, llamacpp, tgi, ollama, openai
	Replicas []string // base URLs
	Model    string   // the name that the replicas know; empty: the model's id
	Pool     string   // of a mapped deployment; usually empty
	Labels   []Labels // of each replica, in the order of Replicas

	APIKey     func() string    // what the replicas ask for; nil: nothing
	Operations []wire.Operation // what they serve; nil: what the engine is known for
	Apart      bool             // usage counts reasoning beside the output instead of in it
}

// Labels are what a policy's match compares with.
type Labels struct {
	Region, Organization, Machine, GPUModel string
	Tags                                    []string
	Capacity                                int64 // requests at once that the replica is made for; 0: not declared
}

// Route is a provider that can serve a model.
type Route struct {
	Connection string
	Model      string // the provider's name for it
	Pool       string // overrides the connection's
}

// Dedicated is an endpoint with limits of its own instead of those of org, workspace, principal and key.
type Dedicated struct {
	Limits                 Limits
	QueueMS                int64 // with RPS: paced, waiting at most so long
	DefaultMaxOutputTokens int64
}

// Policy is a model's admission and routing policy. 0 disables a check.
type Policy struct {
	File              string // where it was read, for messages
	Serverless        bool
	MaxInputTokens    int64
	ImagesMax         int64
	AdmitBudgetTokens int64 // a replica
	MaxInflight       int64 // a replica
	ShedIf            []Threshold
	Step                     // the first routing step
	FallbackChain     []Step // further steps over the same replicas, in order
	FallbackProvider  *FallbackProvider
}

// Step is one step of routing over a model's replicas.
type Step struct {
	Name      string
	Match     map[string]string // region, engine, organization, machine, gpu_model
	Tags      []string          // all of which a replica must have
	ExcludeIf []Threshold
	Strategy  string // least-loaded
	MaxTries  int    // failed forwards before the next step; 0: the gateway's default
}

// FallbackProvider names the provider to use after the local pool.
type FallbackProvider struct {
	Engine, Model string
	Connection    string // that provides it; found by Build, empty if there is none
}

// Threshold is one condition on an engine's metric.
type Threshold struct {
	Metric string // kv_cache_utilization, waiting_requests, …
	Op     string // gt, gte, lt, lte
	Value  float64
}

// Met says whether a value is on the bad side of the threshold.
func (t Threshold) Met(v float64) bool {
	switch t.Op {
	case "gt":
		return v > t.Value
	case "gte":
		return v >= t.Value
	case "lt":
		return v < t.Value
	case "lte":
		return v <= t.Value
	}
	return false
}

// Connection is a provider account.
type Connection struct {
	ID       string
	Org      events.Org // empty: the house's
	Provider string     // openai, anthropic, azure, bedrock, or the label of an OpenAI-compatible provider
	BaseURL  string
	Pool     string
	APIKey   func() string // the credential at the moment of the call
	Shut     bool          // its credential cannot be opened here: no call is made with it
	Version  string        // of the API, where the provider wants one
	Region   string        // of AWS, where the base URL does not name it
	At       Pos           // where it is declared, for messages

	Operations []wire.Operation // what it serves; nil: what the provider is known for
	Apart      bool             // usage counts reasoning beside the output instead of in it

	HouseFallback bool // of an org's own: when it fails, the house's accounts of its provider serve
}

// Pool is the declared capacity of a provider account.
type Pool struct {
	ID          string
	Org         events.Org // empty: the house's
	Provider    string
	RPM         int64 // usable, headroom taken off
	TPM         int64
	Concurrency int64
	Parent      string
	FairShare   int64 // an org's share of a house pool, in millionths; 0: none
	At          Pos   // where it is declared, for messages

	chain []PoolNames // of itself, then of each pool above it; made by Seal
}
