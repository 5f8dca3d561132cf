package journal

import (
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
)

// The headers of a message: CloudEvents 1.0, NATS binding, binary mode.
const (
	headerVersion = "ce-specversion"
	headerID      = "ce-id"
	headerType    = "ce-type"
	headerSource  = "ce-source"
	headerSubject = "ce-subject"
	headerTrace   = "ce-traceparent"
	headerContent = "content-type"
	headerMsgID   = nats.MsgIdHdr

	headerLastStream = "Nats-Last-Stream" // of a consumer's heartbeat: the last sequence that it delivered

	specVersion  = "1.0"
	contentJSON  = "application/json"
	contentBatch = "application/cloudevents-batch+json"
)

// maxAttribute bounds an id, source or subject of an event, in bytes: they stand in headers.
const maxAttribute = 256

// unnamed is the source of an event that names none.
const unnamed = "weir"

// Encode makes the message of one event. A gateway's events go under its own subject; gateway is empty for others. The error names
// what cannot stand in a message.
func Encode(ev events.Event, gateway events.Gateway) (*nats.Msg, error) {
	if err := normalize(&ev, gateway); err != nil {
		return nil, err
	}
	return encode(&ev, gateway), nil
}

// normalize fills in an event's defaults and says what of it cannot stand in a message.
func normalize(ev *events.Event, gateway events.Gateway) error {
	if ev.Data == nil {
		return fmt.Errorf("encode event %q: no data", ev.ID)
	}
	if ev.Source == "" {
		ev.Source = string(gateway)
	}
	if ev.Source == "" {
		ev.Source = unnamed
	}
	if ev.Org == "" && ofPlatform(ev.Data.Kind()) {
		ev.Org = events.Platform
	}
	switch {
	case ev.ID == "" || !attribute(ev.ID):
		return fmt.Errorf("encode event: id %q is not 1 to %d visible ASCII characters", ev.ID, maxAttribute)
	case !attribute(ev.Source):
		return fmt.Errorf("encode event %s: source %q is not 1 to %d visible ASCII characters", ev.ID, ev.Source, maxAttribute)
	case !attribute(ev.Subject):
		return fmt.Errorf("encode event %s: subject %q is not up to %d visible ASCII characters", ev.ID, ev.Subject, maxAttribute)
	case !attribute(ev.TraceParent):
		return fmt.Errorf("encode event %s: traceparent %q is not up to %d visible ASCII characters", ev.ID, ev.TraceParent, maxAttribute)
	case !ev.Org.Valid():
		return fmt.Errorf("encode event %s: org %q does not match [A-Za-z0-9][A-Za-z0-9_-]{0,63}", ev.ID, ev.Org)
	}
	if s := subjectOf(ev, gateway); s.Kind == events.KindUnknown {
		return fmt.Errorf("encode event %s: no subject for type %q", ev.ID, events.TypeOf(ev.Data))
	}
	if fault := events.Check(subjectOf(ev, gateway), ev); fault != "" {
		return fmt.Errorf("encode event %s: %s", ev.ID, fault)
	}
	return nil
}

// ofPlatform says whether facts of a kind belong to no org.
func ofPlatform(k events.Kind) bool {
	switch k {
	case events.KindLease, events.KindCooldown, events.KindTick, events.KindRecover, events.KindRules, events.KindVerdicts:
		return true
	}
	return false
}

func subjectOf(ev *events.Event, gateway events.Gateway) events.Subject {
	return events.Subject{Org: ev.Org, Kind: ev.Data.Kind(), Gateway: gateway}
}

// attribute says whether s can stand in a header as it is.
func attribute(s string) bool {
	if len(s) > maxAttribute {
		return false
	}
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] >= 0x7f || s[i] == '%' || s[i] == '"' {
			return false
		}
	}
	return true
}

// encode makes the message of an event that was normalized.
func encode(ev *events.Event, gateway events.Gateway) *nats.Msg {
	return &nats.Msg{
		Subject: subjectOf(ev, gateway).String(),
		Header:  envelope(ev),
		Data:    events.AppendData(make([]byte, 0, sizeHint(ev.Data)), ev.Data),
	}
}

// envelope makes a single event's headers, their values side by side in one array.
func envelope(ev *events.Event) nats.Header {
	h := make(nats.Header, 8)
	values := new([8]string)
	n := 0
	set := func(name, value string) {
		values[n] = value
		h[name] = values[n : n+1 : n+1]
		n++
	}
	set(headerVersion, specVersion)
	set(headerID, ev.ID)
	set(headerType, events.TypeOf(ev.Data))
	set(headerSource, ev.Source)
	if ev.Subject != "" {
		set(headerSubject, ev.Subject)
	}
	if ev.TraceParent != "" {
		set(headerTrace, ev.TraceParent)
	}
	set(headerContent, contentJSON)
	set(headerMsgID, ev.ID)
	return h
}

// encodePack makes the message of several events of one gateway under an id of its own.
func encodePack(evs []events.Event, gateway events.Gateway, id string) *nats.Msg {
	size := 2
	for i := range evs {
		size += envelopeHint + sizeHint(evs[i].Data)
	}
	return &nats.Msg{
		Subject: packSubject(gateway),
		Header:  nats.Header{headerContent: {contentBatch}, headerMsgID: {id}},
		Data:    events.AppendPack(make([]byte, 0, size), evs),
	}
}

func packSubject(gateway events.Gateway) string {
	return events.Subject{Org: events.Platform, Kind: events.KindPack, Gateway: gateway}.String()
}

// envelopeHint is about what an event's attributes take in a pack, in bytes.
const envelopeHint = 256

// sizeHint is about what the data takes, in bytes.
func sizeHint(d events.Data) int {
	switch d := d.(type) {
	case *events.Reserve:
		return 640 + 160*len(d.Claims)
	case *events.TrueUp:
		return 384 + 32*len(d.Charges)
	case *events.Refused:
		return 640 + len(d.Message)
	case *events.Verdicts:
		return 256 + 320*len(d.Verdicts)
	case *events.Unknown:
		return len(d.Raw)
	case *events.Release, *events.Correction:
		return 384
	case *events.Lease, *events.Cooldown, *events.Tick, *events.Fence, *events.Credit, *events.Recover, *events.Rules:
		return 192
	}
	return 256
}

// isPack says whether a content type names a CloudEvents batch.
func isPack(contentType string) bool {
	name, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(name), contentBatch)
}
