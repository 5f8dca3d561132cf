package eventstest

import (
	"fmt"

	"github.com/weirhq/weir/events"
)

// Log makes records as the log would hold them, each in a message of its own.
type Log struct {
	Now  int64 // ns since 1970: stream time of the next record
	Step int64 // ns by which Now moves with each record
	seq  uint64
}

// NewLog gives an empty log whose first record is at now, in ns since 1970, and each later one a millisecond after the one before.
func NewLog(now int64) *Log { return &Log{Now: now, Step: 1_000_000} }

// Add gives the record of a fact. The org is the fact's own, else Org; verdicts and what belongs to no org are the platform's.
func (l *Log) Add(d events.Data) events.Record {
	l.seq++
	r := events.Record{Seq: l.seq, At: l.Now, Event: Event(fmt.Sprintf("event-%d", l.seq), d)}
	if d.Kind().FromGateway() {
		r.Gateway = gatewayOf(d)
	}
	l.Now += l.Step
	return r
}

// Verdicts gives the record of what was decided up to now.
func (l *Log) Verdicts(verdicts ...events.Verdict) events.Record {
	return l.Add(&events.Verdicts{FromSeq: l.seq, ToSeq: l.seq, Rules: 1, Verdicts: verdicts})
}

// Event puts a fact in an envelope.
func Event(id string, d events.Data) events.Event {
	e := events.Event{ID: id, Source: string(gatewayOf(d)), Org: Org, Data: d}
	if e.Source == "" {
		e.Source = "weir"
	}
	switch d := d.(type) {
	case *events.Reserve:
		e.Org, e.Subject = d.Org, string(d.Request)
	case *events.Refused:
		e.Org, e.Subject = d.Org, string(d.Request)
	case *events.TrueUp:
		e.Subject = string(d.Request)
	case *events.Release:
		e.Subject = string(d.Request)
	case *events.Correction:
		e.Subject = string(d.Request)
	case *events.Fence:
		e.Org = d.Org
	case *events.Credit:
		e.Org = d.Org
	default:
		e.Org = events.Platform
	}
	return e
}

func gatewayOf(d events.Data) events.Gateway {
	switch d := d.(type) {
	case *events.Reserve:
		return d.Gateway
	case *events.TrueUp:
		return d.Gateway
	case *events.Release:
		return d.Gateway
	case *events.Refused:
		return d.Gateway
	case *events.Lease:
		return d.Gateway
	case *events.Cooldown:
		return d.Gateway
	case *events.Tick:
		return d.Gateway
	}
	return ""
}
