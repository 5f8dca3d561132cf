package kv

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/admission"
)

// heartbeatKey is the key that the writer puts every second into each bucket. No meter has it, as their names have slashes.
const heartbeatKey = "heartbeat"

// maxKey bounds a key, in bytes: it stands in a subject.
const maxKey = 512

// Entry is what a meter showed at an instant of the fold's time.
type Entry struct {
	Kind      events.MeterKind
	Used      int64 // tokens, requests, nano-dollars or ms, by the meter
	Limit     int64 // the limit it was last judged against
	HasLimit  bool
	Available int64 // of a balance: total less holds
	Total     int64 // of a balance
	Waiting   int   // requests that wait on it
	Time      int64 // the fold's time, ns since 1970
	Seq       uint64
	Falls     []admission.Fall // when Used falls by itself, soonest first
}

// entryOf makes the entry of a reading.
func entryOf(r *admission.Reading, seq uint64, now int64) Entry {
	return Entry{
		Kind: r.Kind, Used: r.Used, Limit: r.Limit, HasLimit: r.HasLimit, Available: r.Available, Total: r.Total,
		Waiting: r.Waiting, Time: now, Seq: seq, Falls: r.Falls,
	}
}

// bucketOf gives the bucket that holds a kind of meters.
func bucketOf(kind events.MeterKind) string {
	if kind == events.Gauge {
		return access.BucketOccupancy
	}
	return access.BucketWindows
}

// validKey says whether a meter's name can be a key. The fold takes any name; gateways use events.NewMeter, whose names all can.
func validKey(m events.Meter) bool {
	if m == "" || len(m) > maxKey || m[0] == '.' || m[len(m)-1] == '.' || m == heartbeatKey {
		return false
	}
	for i := 0; i < len(m); i++ {
		switch c := m[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '/', c == '=':
		case c == '.' && m[i-1] != '.':
		default:
			return false
		}
	}
	return true
}

// appendEntry appends an entry as JSON:
// {"kind","used","limit","available","total","waiting","time","seq","falls":[[ms after time, amount],…]}; what is 0 or unknown is left out.
func appendEntry(b []byte, e *Entry) []byte {
	b = append(append(append(b, `{"kind":"`...), e.Kind.String()...), `","used":`...)
	b = strconv.AppendInt(b, e.Used, 10)
	field := func(name string, n int64) {
		b = append(append(append(b, `,"`...), name...), `":`...)
		b = strconv.AppendInt(b, n, 10)
	}
	if e.HasLimit {
		field("limit", e.Limit)
	}
	if e.Kind == events.Balance {
		field("available", e.Available)
		field("total", e.Total)
	}
	if e.Waiting > 0 {
		field("waiting", int64(e.Waiting))
	}
	b = append(b, `,"time":"`...)
	b = append(events.AppendTime(b, e.Time), '"')
	field("seq", int64(e.Seq))
	if len(e.Falls) > 0 {
		b = append(b, `,"falls":[`...)
		for i, f := range e.Falls {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, '[')
			b = strconv.AppendInt(b, ceilMS(f.At-e.Time), 10)
			b = append(b, ',')
			b = strconv.AppendInt(b, f.Amount, 10)
			b = append(b, ']')
		}
		b = append(b, ']')
	}
	return append(b, '}')
}

// decodeEntry reads what appendEntry wrote.
func decodeEntry(b []byte) (Entry, error) {
	var in struct {
		Kind      string     `json:"kind"`
		Used      int64      `json:"used"`
		Limit     *int64     `json:"limit"`
		Available int64      `json:"available"`
		Total     int64      `json:"total"`
		Waiting   int        `json:"waiting"`
		Time      time.Time  `json:"time"`
		Seq       uint64     `json:"seq"`
		Falls     [][2]int64 `json:"falls"`
	}
	if err := json.Unmarshal(b, &in); err != nil {
		return Entry{}, fmt.Errorf("read a meter's entry: %w", err)
	}
	e := Entry{
		Kind: events.ParseMeterKind(in.Kind), Used: in.Used, Available: in.Available, Total: in.Total,
		Waiting: in.Waiting, Time: in.Time.UnixNano(), Seq: in.Seq,
	}
	if e.Kind == events.MeterUnknown {
		return Entry{}, fmt.Errorf("read a meter's entry: kind %q is unknown", in.Kind)
	}
	if in.Limit != nil {
		e.Limit, e.HasLimit = *in.Limit, true
	}
	for _, f := range in.Falls {
		e.Falls = append(e.Falls, admission.Fall{At: e.Time + f[0]*int64(time.Millisecond), Amount: f[1]})
	}
	return e, nil
}

// heartbeat is the writer's sign of life.
type heartbeat struct {
	Writer string `json:"writer"`
	Time   int64  `json:"time"` // the fold's, ns since 1970
	Seq    uint64 `json:"seq"`
}
