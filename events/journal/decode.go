package journal

import (
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
)

// Decode reads a message at its place in the log: seq is its sequence, at its stream time in ns since 1970. It gives at least one
// record, whatever the message holds: what cannot be read, or may not be folded, has a Fault.
func Decode(subject string, header nats.Header, data []byte, seq uint64, at int64) []events.Record {
	return appendRecords(nil, subject, header, data, seq, at)
}

func appendRecords(dst []events.Record, subject string, header nats.Header, data []byte, seq uint64, at int64) []events.Record {
	s, err := events.ParseSubject(subject)
	rec := events.Record{Seq: seq, At: at, Gateway: s.Gateway}
	content := first(header, headerContent)
	switch {
	case err != nil:
		rec.Fault = err.Error()
	case isPack(content) && s.Kind != events.KindPack:
		rec.Fault = "a pack under the subject of kind " + s.Type
	case s.Kind == events.KindPack && !isPack(content):
		rec.Fault = fmt.Sprintf("content type %q under the subject of packs", content)
	case s.Kind == events.KindPack && (s.Org != events.Platform || s.Gateway == ""):
		rec.Fault = "a pack that is no gateway's"
	case s.Kind == events.KindPack:
		return appendPack(dst, rec, s, header, data)
	}
	rec.Event = events.Event{
		ID:          first(header, headerID),
		Source:      first(header, headerSource),
		Subject:     first(header, headerSubject),
		Org:         s.Org,
		TraceParent: first(header, headerTrace),
	}
	decodeSingle(&rec, s, header, data)
	return append(dst, rec)
}

// decodeSingle reads the one event of a message into rec. A fault found before stands.
func decodeSingle(rec *events.Record, s events.Subject, header nats.Header, data []byte) {
	ceType := first(header, headerType)
	d, err := events.DecodeData(ceType, data)
	if err != nil || rec.Fault != "" {
		rec.Data = &events.Unknown{Type: ceType, Raw: string(data)}
	} else {
		rec.Data = d
	}
	switch {
	case rec.Fault != "":
	case rec.ID == "":
		rec.Fault = "no ce-id"
	case first(header, headerVersion) != specVersion:
		rec.Fault = fmt.Sprintf("ce-specversion %q is not %s", first(header, headerVersion), specVersion)
	case err != nil:
		rec.Fault = err.Error()
	case d.Kind() != s.Kind && d.Kind() != events.KindUnknown:
		rec.Fault = fmt.Sprintf("kind %s under the subject of %s", d.Kind(), s.Type)
	default:
		rec.Fault = events.Check(s, &rec.Event)
	}
}

// appendPack reads a gateway's pack: one record per element, or one with a fault if it cannot be taken apart.
func appendPack(dst []events.Record, rec events.Record, s events.Subject, header nats.Header, data []byte) []events.Record {
	evs, err := events.DecodePack(data)
	if err != nil || len(evs) == 0 {
		rec.ID, rec.Org = first(header, headerMsgID), s.Org
		rec.Data = &events.Unknown{Type: events.KindPack.Type(), Raw: string(data)}
		rec.Fault = "an empty pack"
		if err != nil {
			rec.Fault = err.Error()
		}
		return append(dst, rec)
	}
	for i := range evs {
		r := rec
		r.Index, r.Event = i, evs[i]
		switch {
		case r.ID == "":
			r.Fault = "no id"
		case !r.Org.Valid():
			r.Fault = fmt.Sprintf("org %q does not match [A-Za-z0-9][A-Za-z0-9_-]{0,63}", r.Org)
		default:
			r.Fault = events.Check(s, &r.Event)
		}
		dst = append(dst, r)
	}
	return dst
}

func first(h nats.Header, name string) string {
	if v := h[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}
