package policy

import "github.com/weirhq/weir/gateway/authority"

// Target is where an attempt goes, as far as its claims depend on it.
type Target struct {
	Local bool   // to the model's own replicas; else to a provider account
	Pool  string // whose capacity the attempt claims; empty for replicas that no pool maps
	Own   bool   // the account is the org's own
}

// Cause says why a gateway refuses by itself.
type Cause uint8

// The causes of local refusals.
const (
	UnknownModel        Cause = iota + 1 // no such model, or not for this key
	UnsupportedEndpoint                  // no route of the model speaks the request's format
	Background                           // background: true
	BadField                             // a field that the model cannot take
	NoPrice                              // a model without a price, asked for by an org that pays in advance
	InputTooLong                         // B1
	TooManyImages                        // B1
	UnderPressure                        // B3
	CapacityUnknown                      // the route goes to a provider account without a pool
)

// Local is a refusal that needs no shared state.
type Local struct {
	Cause     Cause
	Model     string
	Param     string // the field at fault
	Message   string // of BadField
	Code      string // of BadField
	Pool      string // of CapacityUnknown: the pool that there is not, if one is named
	Requested int64
	Limit     int64
}

// Lookup finds the model that a key asks for. One that the key may not use looks like one that does not exist.
func Lookup(s *authority.Snapshot, k *authority.Key, model string) (*authority.Model, *Local) {
	m := s.Models[model]
	if m == nil || !k.May(model) {
		return nil, &Local{Cause: UnknownModel, Model: model, Param: "model"}
	}
	return m, nil
}
