package authority

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/weirhq/weir/events"
)

// Kind says what a record of dynamic authority is.
type Kind string

// The kinds of records. A record belongs to an org; the house's own belong to events.Platform.
const (
	KindOrg        Kind = "org" // one an org, with its version
	KindWorkspace  Kind = "workspace"
	KindPrincipal  Kind = "principal"
	KindKey        Kind = "key"
	KindLimit      Kind = "limit"
	KindPool       Kind = "pool"
	KindConnection Kind = "connection"
	KindPrice      Kind = "price"
	KindUser       Kind = "user"
	KindCredit     Kind = "credit"
	KindRegistry   Kind = "registry" // the version of the keys as the tool that writes them counts it
)

// Ref names a record. ID is empty where an org has one of the kind.
type Ref struct {
	Org  events.Org
	Kind Kind
	ID   string
}

// String gives "org/kind/id".
func (r Ref) String() string { return string(r.Org) + "/" + string(r.Kind) + "/" + r.ID }

// Record is one record of dynamic authority: one of the types of this file whose names end in Record, by pointer. A record is
// never changed once it is in a State.
type Record interface{ Ref() Ref }

// LimitSet is Limits as records keep them.
type LimitSet struct {
	RPM         int64 `json:"rpm,omitempty"`
	RPS         int64 `json:"rps,omitempty"`
	TPM         int64 `json:"tpm,omitempty"`
	Concurrency int64 `json:"concurrency,omitempty"`
	SpendDay    int64 `json:"spend_day_nano,omitempty"`
	SpendMonth  int64 `json:"spend_month_nano,omitempty"`
	Closed      bool  `json:"closed,omitempty"`
	Shadow      Rates `json:"shadow,omitzero"`
}

// Limits is the set as limits.
func (l LimitSet) Limits() Limits { return Limits(l) }

// OrgRecord is what the API knows of an org.
type OrgRecord struct {
	Org       events.Org `json:"org"`
	Version   int64      `json:"version"` // raised by every change of the org; never lowered, also not by deleting it
	Name      string     `json:"name,omitempty"`
	Billing   Billing    `json:"billing,omitempty"`  // of an org that the files do not declare
	Made      bool       `json:"made,omitempty"`     // as an org through the API: it has the default limits
	Credited  bool       `json:"credited,omitempty"` // it has had its first credit
	Deleted   bool       `json:"deleted,omitempty"`
	Override  *Override  `json:"override,omitempty"`
	CreatedAt time.Time  `json:"created_at,omitzero"`
}

// Override is what a contract gives an org instead of the defaults, of its keys' ceilings and of the hold before the first
// credit. 0 is no override of that limit.
type Override struct {
	Org       LimitSet `json:"org,omitzero"`
	Workspace LimitSet `json:"workspace,omitzero"`
	Principal LimitSet `json:"principal,omitzero"`
	Key       LimitSet `json:"key,omitzero"` // rpm: the ceiling of every key
}

// lifts says whether it is a contract's, in place of the hold before the first credit. Shadows alone are none.
func (o *Override) lifts() bool {
	if o == nil {
		return false
	}
	bare := *o
	for _, l := range []*LimitSet{&bare.Org, &bare.Workspace, &bare.Principal, &bare.Key} {
		l.Shadow = Rates{}
	}
	return bare != Override{} || *o == Override{}
}

// ScopeRecord is a workspace or a principal.
type ScopeRecord struct {
	Org       events.Org `json:"org"`
	Kind      Kind       `json:"kind"` // KindWorkspace or KindPrincipal
	ID        string     `json:"id"`
	Name      string     `json:"name,omitempty"`
	Limits    LimitSet   `json:"limits,omitzero"` // given by the operator; the org's own can only lower them
	CreatedAt time.Time  `json:"created_at,omitzero"`
}

// Hash is the SHA-256 of a key, written in hexadecimal digits.
type Hash [32]byte

// MarshalText gives 64 hexadecimal digits.
func (h Hash) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h[:]), nil }

// UnmarshalText reads 64 hexadecimal digits.
func (h *Hash) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(h)) {
		return fmt.Errorf("a hash of %d digits: must have %d", len(text), hex.EncodedLen(len(h)))
	}
	_, err := hex.Decode(h[:], text)
	return err
}

// KeyRecord is an inference key. The key itself is nowhere kept.
type KeyRecord struct {
	ID         string      `json:"id"`
	Org        events.Org  `json:"org"`
	Hash       Hash        `json:"hash"`
	Owner      string      `json:"owner,omitempty"` // as written, where the org's id had to be made from it
	Workspace  string      `json:"workspace,omitempty"`
	Principal  string      `json:"principal,omitempty"`
	Name       string      `json:"name,omitempty"`
	Preview    string      `json:"preview,omitempty"`
	Enabled    bool        `json:"enabled"`
	Models     []string    `json:"models,omitempty"` // empty: all
	Expires    time.Time   `json:"expires,omitzero"`
	RPMCeiling int64       `json:"rpm_ceiling,omitempty"` // no limit of the org's own raises it; 0: none
	Limits     LimitSet    `json:"limits,omitzero"`       // given by the operator; the org's own can only lower them
	Daily      int64       `json:"daily,omitempty"`
	Quota      QuotaRecord `json:"quota,omitzero"`
}

// QuotaRecord is Quota as records keep it.
type QuotaRecord struct {
	RequestsPerMinute     int64                       `json:"requests_per_minute,omitempty"`
	TokensPerDay          int64                       `json:"tokens_per_day,omitempty"`
	InputTokensPerMinute  int64                       `json:"input_tokens_per_minute,omitempty"`
	OutputTokensPerMinute int64                       `json:"output_tokens_per_minute,omitempty"`
	OccupancyShare        int64                       `json:"occupancy_share_millionths,omitempty"`
	PerModel              map[string]ModelQuotaRecord `json:"per_model,omitempty"`
}

// ModelQuotaRecord is ModelQuota as records keep it.
type ModelQuotaRecord struct {
	RequestsPerMinutePerReplica int64 `json:"requests_per_minute_per_replica,omitempty"`
	TokensPerDay                int64 `json:"tokens_per_day,omitempty"`
}

// LimitRecord is what an org's own people set for one scope. 0 inherits.
type LimitRecord struct {
	Org         events.Org   `json:"org"`
	Scope       events.Scope `json:"scope"`             // org, workspace, principal, key or model
	Subject     string       `json:"subject,omitempty"` // empty for the org
	RPM         int64        `json:"rpm,omitempty"`
	TPM         int64        `json:"tpm,omitempty"`
	Concurrency int64        `json:"concurrency,omitempty"`
	Closed      bool         `json:"closed,omitempty"`
	UpdatedAt   time.Time    `json:"updated_at,omitzero"`
}

// PoolRecord is the declared capacity of a provider account, before headroom.
type PoolRecord struct {
	ID          string     `json:"id"`
	Org         events.Org `json:"org"` // events.Platform: the house's
	Provider    string     `json:"provider"`
	RPM         int64      `json:"rpm"`
	TPM         int64      `json:"tpm"`
	Concurrency int64      `json:"concurrency"`
	Headroom    int64      `json:"headroom_percent"`
	Parent      string     `json:"parent,omitempty"`
	FairShare   int64      `json:"fair_share_millionths,omitempty"` // of a house pool; 0: its provider's default
	CreatedAt   time.Time  `json:"created_at,omitzero"`
}

// ConnectionRecord is a provider account. Credential is opaque here: what it is sealed with is known to the edge alone.
type ConnectionRecord struct {
	ID         string     `json:"id"`
	Org        events.Org `json:"org"` // events.Platform: the house's
	Provider   string     `json:"provider"`
	Name       string     `json:"name,omitempty"`
	BaseURL    string     `json:"base_url,omitempty"`
	Version    string     `json:"version,omitempty"` // of the API
	Region     string     `json:"region,omitempty"`  // of AWS
	Pool       string     `json:"pool,omitempty"`
	Credential []byte     `json:"credential,omitempty"`
	CreatedAt  time.Time  `json:"created_at,omitzero"`

	Operations []string `json:"operations,omitempty"`      // what it serves; none: what the provider is known for
	Apart      bool     `json:"reasoning_apart,omitempty"` // usage counts reasoning beside the output

	HouseFallback bool `json:"house_fallback,omitempty"` // of an org's own: when it fails, the house's accounts of its provider serve
}

// PriceRecord are the prices of a model, oldest first. The newest that has begun holds.
type PriceRecord struct {
	Model    string         `json:"model"`
	Versions []PriceVersion `json:"versions"`
}

// PriceVersion is a price and when it begins.
type PriceVersion struct {
	Version     string    `json:"version"`
	From        time.Time `json:"from"`
	Input       int64     `json:"input"`
	CachedInput int64     `json:"cached_input"`
	CacheWrite  int64     `json:"cache_write"`
	Output      int64     `json:"output"`
	Reasoning   int64     `json:"reasoning,omitempty"` // 0: what other output costs
	Request     int64     `json:"request,omitempty"`
}

// Role says what a user may do in an org.
type Role string

// The roles. Owners and admins read and write, viewers read.
const (
	RoleOwner  Role = "owner"
	RoleAdmin  Role = "admin"
	RoleViewer Role = "viewer"
)

// Writes says whether the role may change limits and pools.
func (r Role) Writes() bool { return r == RoleOwner || r == RoleAdmin }

// UserRecord is a person of an org. Password is its encoded argon2id hash.
type UserRecord struct {
	ID        string     `json:"id"`
	Org       events.Org `json:"org"`
	Email     string     `json:"email"`
	Name      string     `json:"name,omitempty"`
	Role      Role       `json:"role"`
	Password  string     `json:"password"`
	CreatedAt time.Time  `json:"created_at,omitzero"`
}

// CreditRecord says that a credit was given. The money itself is in the log.
type CreditRecord struct {
	Org        events.Org `json:"org"`
	Reference  string     `json:"reference"`
	AmountNano int64      `json:"amount_nano"`
	At         time.Time  `json:"at,omitzero"`
}

// RegistryRecord is the version of the registry of keys.
type RegistryRecord struct {
	Version string `json:"version"`
}

// Ref names the record.
func (r *OrgRecord) Ref() Ref { return Ref{r.Org, KindOrg, ""} }

// Ref names the record.
func (r *ScopeRecord) Ref() Ref { return Ref{r.Org, r.Kind, r.ID} }

// Ref names the record.
func (r *KeyRecord) Ref() Ref { return Ref{r.Org, KindKey, r.ID} }

// Ref names the record.
func (r *LimitRecord) Ref() Ref { return Ref{r.Org, KindLimit, string(r.Scope) + "/" + r.Subject} }

// Ref names the record.
func (r *PoolRecord) Ref() Ref { return Ref{r.Org, KindPool, r.ID} }

// Ref names the record.
func (r *ConnectionRecord) Ref() Ref { return Ref{r.Org, KindConnection, r.ID} }

// Ref names the record.
func (r *PriceRecord) Ref() Ref { return Ref{events.Platform, KindPrice, r.Model} }

// Ref names the record.
func (r *UserRecord) Ref() Ref { return Ref{r.Org, KindUser, r.ID} }

// Ref names the record.
func (r *CreditRecord) Ref() Ref { return Ref{r.Org, KindCredit, r.Reference} }

// Ref names the record.
func (r *RegistryRecord) Ref() Ref { return Ref{events.Platform, KindRegistry, ""} }

// DecodeRecord reads a record that was kept as JSON under a name. Fields that are not known are passed over, so that an older
// binary reads what a newer one wrote. The error names the record.
func DecodeRecord(ref Ref, data []byte) (Record, error) {
	var r Record
	switch ref.Kind {
	case KindOrg:
		r = &OrgRecord{}
	case KindWorkspace, KindPrincipal:
		r = &ScopeRecord{}
	case KindKey:
		r = &KeyRecord{}
	case KindLimit:
		r = &LimitRecord{}
	case KindPool:
		r = &PoolRecord{}
	case KindConnection:
		r = &ConnectionRecord{}
	case KindPrice:
		r = &PriceRecord{}
	case KindUser:
		r = &UserRecord{}
	case KindCredit:
		r = &CreditRecord{}
	case KindRegistry:
		r = &RegistryRecord{}
	default:
		return nil, fmt.Errorf("record %s: its kind is not known", ref)
	}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("record %s: %w", ref, err)
	}
	if got := r.Ref(); got != ref {
		return nil, fmt.Errorf("record %s: it says that it is %s", ref, got)
	}
	return r, nil
}
