package authority

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/weirhq/weir/events"
)

// Denial says why a key was not accepted. Empty: it was.
type Denial string

// The denials. Clients are told no more than that the key is missing or not valid.
const (
	DeniedMissing Denial = "missing" // no key was sent
	DeniedUnknown Denial = "unknown"
	DeniedExpired Denial = "expired"
)

// MaxRawKey bounds a key in bytes, so that nobody has long texts hashed.
const MaxRawKey = 512

// Who everybody is without authentication.
const (
	DefaultOrg   events.Org = "default"
	AnonymousKey            = "anonymous"
)

// Authenticate finds the key that a client sent. now decides whether it has expired.
func Authenticate(s *Snapshot, raw string, now time.Time) (*Key, Denial) {
	if s.Mode == ModeNone && s.Anonymous != nil {
		return s.Anonymous, ""
	}
	if raw == "" {
		return nil, DeniedMissing
	}
	if len(raw) > MaxRawKey {
		return nil, DeniedUnknown
	}
	k := s.Keys[HashKey(raw)]
	if k == nil {
		return nil, DeniedUnknown
	}
	if !k.Expires.IsZero() && !now.Before(k.Expires) {
		return nil, DeniedExpired
	}
	return k, ""
}

// HashKey is what is kept of a key.
func HashKey(raw string) [32]byte { return sha256.Sum256([]byte(raw)) }

// keyIDDigits is how many hex digits of its hash a static key's id has: enough that no two share one.
const keyIDDigits = 16

// KeyID is the id of a static key, from its hash.
func KeyID(hash [32]byte) string { return "k-" + hex.EncodeToString(hash[:])[:keyIDDigits] }

// OrgOf is the org of an owner: the owner's own name where it can stand in a subject, else "o-" and 16 hex digits of its SHA-256.
func OrgOf(owner string) events.Org {
	if org := events.Org(owner); org.Valid() && org != events.Platform {
		return org
	}
	hash := sha256.Sum256([]byte(owner))
	return events.Org("o-" + hex.EncodeToString(hash[:])[:keyIDDigits])
}

// May says whether a key may ask for a model.
func (k *Key) May(model string) bool {
	if k.Quota.PerModel != nil {
		_, ok := k.Quota.PerModel[model]
		return ok
	}
	return k.Models == nil || k.Models[model]
}

// Fence is the version of an org's authority that reserves must present.
func (s *Snapshot) Fence(org events.Org) int64 { return s.Fences[org] }

// WithFences is the snapshot with other fences; everything else is shared.
func (s *Snapshot) WithFences(fences map[events.Org]int64) *Snapshot {
	other := *s
	other.Fences = fences
	return &other
}
