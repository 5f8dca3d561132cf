package events

import "strings"

// Kind says which fact an event states.
type Kind uint8

// The kinds of events. KindPack is no fact: it is the subject token of a message that carries several events of one gateway.
const (
	KindUnknown Kind = iota
	KindReserve
	KindTrueUp
	KindRelease
	KindRefused
	KindLease
	KindCooldown
	KindTick
	KindFence
	KindCredit
	KindRecover
	KindRules
	KindCorrection
	KindVerdicts
	KindPack
)

var kindNames = [...]string{
	KindUnknown: "unknown", KindReserve: "reserve", KindTrueUp: "true-up", KindRelease: "release", KindRefused: "refused",
	KindLease: "lease", KindCooldown: "cooldown", KindTick: "tick", KindFence: "fence", KindCredit: "credit",
	KindRecover: "recover", KindRules: "rules", KindCorrection: "correction", KindVerdicts: "verdicts", KindPack: "pack",
}

// String gives the kind's name as it stands in subjects and types.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return kindNames[KindUnknown]
}

// ParseKind reads a kind's name; one that this binary does not know is KindUnknown.
func ParseKind(name string) Kind {
	for k := KindReserve; k <= KindPack; k++ {
		if kindNames[k] == name {
			return k
		}
	}
	return KindUnknown
}

// FromGateway says whether a gateway may state facts of this kind.
func (k Kind) FromGateway() bool {
	switch k {
	case KindReserve, KindTrueUp, KindRelease, KindRefused, KindLease, KindCooldown, KindTick:
		return true
	}
	return false
}

// Type gives the CloudEvents type of a kind: "weir.<kind>.v1".
func (k Kind) Type() string { return kindTypes[k] }

var kindTypes = func() (types [KindPack + 1]string) {
	for k := range types {
		types[k] = "weir." + kindNames[k] + ".v1"
	}
	return types
}()

// ParseType reads a CloudEvents type. A version other than v1 is KindUnknown: kept and passed on, never folded.
func ParseType(ceType string) Kind {
	name, ok := strings.CutPrefix(ceType, "weir.")
	if !ok {
		return KindUnknown
	}
	name, ok = strings.CutSuffix(name, ".v1")
	if !ok {
		return KindUnknown
	}
	return ParseKind(name)
}
