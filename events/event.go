package events

import "fmt"

// Data is one fact. It is one of *Reserve, *TrueUp, *Release, *Refused, *Lease, *Cooldown, *Tick, *Fence, *Credit, *Recover, *Rules,
// *Correction, *Verdicts and *Unknown; switches over it list them all.
type Data interface {
	Kind() Kind
	isData()
}

// Event is a fact in its envelope.
type Event struct {
	ID          string // CloudEvents id, unique in the log; also the message's Nats-Msg-Id
	Source      string // CloudEvents source: who states it, usually the gateway
	Subject     string // CloudEvents subject: the request id, where there is one
	Org         Org    // the org token of its subject
	TraceParent string // W3C trace context, where a trace is on
	Data        Data
}

// Record is an event at its place in the log.
type Record struct {
	Seq     uint64  // stream sequence of the message
	Index   int     // place in the message's pack, 0 if alone
	At      int64   // stream time of the message, ns since 1970
	Gateway Gateway // who published it, by its subject; empty if no gateway
	Fault   string  // why it may not be folded; empty if it may
	Event
}

// Kind gives the kind of the record's data; KindUnknown when it could not be read.
func (r *Record) Kind() Kind {
	if r.Data == nil {
		return KindUnknown
	}
	return r.Data.Kind()
}

// Check says why an event that came under a subject may not be folded, or nothing if it may: what a gateway sends counts only
// if it is a gateway's kind and names that gateway, and an event that names an org must stand under that org.
func Check(s Subject, e *Event) (fault string) {
	if e.Data == nil {
		return "unreadable data"
	}
	kind := e.Data.Kind()
	if org := e.Data.(interface{ org() Org }).org(); org != "" && org != e.Org {
		return fmt.Sprintf("org %q under the subject of %q", org, e.Org)
	}
	if s.Gateway == "" {
		return ""
	}
	if !kind.FromGateway() {
		return fmt.Sprintf("kind %s from a gateway", kind)
	}
	by := e.Data.(interface{ gateway() Gateway }).gateway()
	if by != s.Gateway && !(by == "" && (kind == KindTick || kind == KindRefused)) {
		return fmt.Sprintf("gateway %q under the subject of %q", by, s.Gateway)
	}
	return ""
}

// Unknown is data of a kind or version that this binary does not know; it is kept as it stands.
type Unknown struct {
	Type string // the CloudEvents type
	Raw  string // the data
}

// Kind is KindUnknown.
func (*Unknown) Kind() Kind       { return KindUnknown }
func (*Unknown) isData()          {}
func (*Unknown) org() Org         { return "" }
func (*Unknown) gateway() Gateway { return "" }
