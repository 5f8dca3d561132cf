package generation

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	"github.com/weirhq/weir/events"
)

// Row is a record as it is kept: the columns that one looks for, and the record whole. It stays as it is when the record changes.
type Row struct {
	Summary
	JSON     []byte
	Attempts []Attempt // to be read without their claims, which the projection may go on changing
	Events   []AdmissionEvent
	Began    uint64 // the first sequence of the log that it tells of; 0 if that is not known
	AsOf     Place
	New      bool // it is kept for the first time, as far as the projection knows
}

// Row makes what is kept of a record.
func (rec *Record) Row() Row {
	text, err := json.Marshal(rec)
	if err != nil { // cannot be: a record is strings, integers and times
		panic("generation: " + err.Error())
	}
	row := Row{Summary: rec.Summary(), JSON: text, Attempts: slices.Clone(rec.Attempts), Events: slices.Clone(rec.AdmissionEvents), AsOf: rec.AsOf, New: rec.New}
	for i := range rec.Attempts {
		row.began(rec.Attempts[i].Seq)
	}
	for i := range rec.AdmissionEvents {
		row.began(rec.AdmissionEvents[i].Seq)
	}
	return row
}

func (r *Row) began(seq uint64) {
	if r.Began == 0 || seq < r.Began {
		r.Began = seq
	}
}

// Summary is what a list shows of a request.
type Summary struct {
	ID           events.RequestID `json:"id"`
	Org          events.Org       `json:"org"`
	CreatedAt    Instant          `json:"created_at"`
	EndedAt      Instant          `json:"ended_at"`
	Workspace    string           `json:"workspace_id,omitempty"`
	Principal    string           `json:"principal,omitempty"`
	Key          string           `json:"key_id,omitempty"`
	Model        string           `json:"model"`
	Operation    string           `json:"operation,omitempty"`
	Provider     string           `json:"provider_name,omitempty"`
	Gateway      events.Gateway   `json:"gateway,omitempty"`
	State        string           `json:"state"`
	Outcome      events.Outcome   `json:"outcome,omitempty"`
	Status       int64            `json:"status,omitempty"`
	ErrorCode    string           `json:"error_code,omitempty"`
	ErrorOrigin  string           `json:"error_origin,omitempty"`
	LimitScope   string           `json:"limit_scope,omitempty"` // of the last refusal
	LimitKind    string           `json:"limit_kind,omitempty"`
	LimitID      string           `json:"limit_id,omitempty"`
	ParkedMS     int64            `json:"parked_ms,omitempty"` // of all its attempts
	Latency      int64            `json:"latency,omitempty"`   // ms
	UsageQuality string           `json:"usage_quality,omitempty"`
	Tokens       events.Usage     `json:"tokens"` // of all its attempts
	CostNano     int64            `json:"cost_nano"`
	PriceVersion string           `json:"price_version,omitempty"`
	Settled      bool             `json:"settled"`
	Attempts     int64            `json:"attempts"`
}

// Summary sums a record up, as it was last drained.
func (rec *Record) Summary() Summary {
	s := Summary{
		ID: rec.ID, Org: rec.Org, CreatedAt: rec.CreatedAt, EndedAt: rec.EndedAt, Workspace: text(rec.WorkspaceID), Principal: rec.Principal,
		Key: rec.KeyID, Model: rec.Model, Operation: rec.Operation, Provider: text(rec.ProviderName), Gateway: rec.Gateway, State: rec.State,
		Outcome: rec.Outcome, Status: rec.Status, UsageQuality: text(rec.UsageQuality), Tokens: rec.Cost.Tokens, CostNano: rec.Cost.Nano,
		PriceVersion: rec.Cost.PriceVersion, Settled: rec.Cost.Settled, Attempts: int64(len(rec.Attempts)),
	}
	if rec.Error != nil {
		s.ErrorCode, s.ErrorOrigin = rec.Error.Code, rec.Error.Origin
	}
	if e := rec.lastRefusal(); e != nil {
		s.LimitScope, s.LimitKind, s.LimitID = e.Scope, e.Kind, e.LimitID
	}
	for i := range rec.Attempts {
		s.ParkedMS += rec.Attempts[i].ParkedMS
	}
	if rec.Latency != nil {
		s.Latency = *rec.Latency
	}
	return s
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// Key is a request's id as keys of stores have it: the id itself, or if that cannot be a key or is too long, its SHA-256.
func Key(id events.RequestID) string {
	const most = 128
	valid := len(id) > 0 && len(id) <= most && id[0] != '_'
	for i := 0; valid && i < len(id); i++ {
		c := id[i]
		valid = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
	}
	if valid {
		return string(id)
	}
	sum := sha256.Sum256([]byte(id))
	return "sha256." + hex.EncodeToString(sum[:])
}

// Made is when a request came, by its id. An id that does not say so is of the year 1970, and last in lists.
func Made(id events.RequestID) Instant {
	at, ok := id.MadeAt()
	if !ok {
		return 0
	}
	return Instant(events.Nanos(at))
}

// Filter is what a list has: requests of one org, newest first. What is empty or 0 filters nothing.
type Filter struct {
	Org      events.Org // required
	Key      string
	Model    string
	Outcome  events.Outcome // InProgress, for those that run
	From, To Instant        // when they came: from is in it, to is not
	After    events.RequestID
	Limit    int // required
}

// Running is the outcome by which a filter names requests that have none yet.
const Running events.Outcome = InProgress

// Matches says whether a filter lets a request through, whatever its limit.
func (f *Filter) Matches(s *Summary) bool {
	made := Made(s.ID)
	outcome := s.Outcome
	if s.State == InProgress {
		outcome = Running
	}
	return s.Org == f.Org && (f.Key == "" || s.Key == f.Key) && (f.Model == "" || s.Model == f.Model) && (f.Outcome == "" || outcome == f.Outcome) &&
		(f.From == 0 || made >= f.From) && (f.To == 0 || made < f.To) && (f.After == "" || newer(f.After, s.ID))
}

// newer says whether a request stands before another in lists.
func newer(a, b events.RequestID) bool {
	x, y := Made(a), Made(b)
	return x > y || x == y && a > b
}

// Newest is the order of lists.
func Newest(a, b Summary) int {
	switch {
	case newer(a.ID, b.ID):
		return -1
	case newer(b.ID, a.ID):
		return 1
	}
	return 0
}
