package insight

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weirhq/weir/events"
)

// MinSuffix is how many characters of a request id name it, from its end.
const MinSuffix = 8

// Bounds of a search.
const (
	maxTargetAttempts = 64            // reserves of one request that are retold
	maxTurned         = 8             // refusals by gateways, likewise
	lookBeyond        = 5 * minuteNS  // of the log after a refusal: what is asked is whether it soon would have passed
	lateBy            = 20 * minuteNS // after a request's longest life, for what comes late
)

// Target is a request as a log holds it: what an Explainer needs to know beforehand.
type Target struct {
	Request  events.RequestID
	Org      events.Org // whose it is; empty if no valid record names it
	Reserves []*events.Reserve
	Turned   []*events.Refused // by gateways, before the log
	First    uint64            // sequence of the first record that names it
	Last     uint64            // of the last one
	LastAt   int64             // stream time of that, ns
}

// Finder looks for a request in a log.
type Finder struct {
	id      string
	target  Target
	started bool
	ends    int64 // ns: nothing of it comes after
	err     error
}

// NewFinder looks for a request by its id, or by the last MinSuffix characters of it or more.
func NewFinder(id string) (*Finder, error) {
	if len(id) < MinSuffix {
		return nil, fmt.Errorf("request %q: give the id, or at least its last %d characters", id, MinSuffix)
	}
	return &Finder{id: id}, nil
}

// RequestOf gives the request that a fact is about, "" if none. A credit is about the request whose correction it refers to.
func RequestOf(d events.Data) events.RequestID {
	switch d := d.(type) {
	case *events.Reserve:
		return d.Request
	case *events.TrueUp:
		return d.Request
	case *events.Release:
		return d.Request
	case *events.Refused:
		return d.Request
	case *events.Correction:
		return d.Request
	case *events.Credit:
		rest, ok := strings.CutPrefix(d.Reference, "correction/")
		if id, _, named := strings.Cut(rest, "/"); ok && named {
			return events.RequestID(id)
		}
	}
	return ""
}

// Take looks at the next record. It says whether the rest of the log may hold more of the request.
func (f *Finder) Take(r *events.Record) (more bool) {
	if f.err != nil || f.started && r.At > f.ends {
		return false
	}
	id := RequestOf(r.Data)
	if id == "" || !strings.HasSuffix(string(id), f.id) {
		return true
	}
	t := &f.target
	if !f.started {
		f.started = true
		t.Request, t.First = id, r.Seq
		f.ends = r.At + lookBeyond
	}
	if id != t.Request {
		f.err = fmt.Errorf("request %q: is the end of %s and of %s", f.id, t.Request, id)
		return false
	}
	t.Last, t.LastAt = r.Seq, r.At
	if t.Org == "" && r.Fault == "" {
		t.Org = r.Org
	}
	switch d := r.Data.(type) {
	case *events.Reserve:
		if r.Fault == "" && len(t.Reserves) < maxTargetAttempts {
			t.Reserves = append(t.Reserves, d)
		}
		f.ends = max(f.ends, r.At+min(max(d.MaxMS, 0), events.MaxMaxMS)*milli+lateBy)
	case *events.Refused:
		if r.Fault == "" && len(t.Turned) < maxTurned {
			t.Turned = append(t.Turned, d)
		}
	case *events.Release:
		if d.Of == events.OfRequest { // late true-ups may follow
			f.ends = r.At + lookBeyond
		}
	}
	return true
}

// Started says whether a record that names the request has come.
func (f *Finder) Started() bool { return f.started }

// ErrNotFound says that no record names the request.
var ErrNotFound = errors.New("no record of the log names it")

// Target gives what was found. The error is ErrNotFound, or names the requests whose ids end alike.
func (f *Finder) Target() (*Target, error) {
	if f.err != nil {
		return nil, f.err
	}
	if !f.started {
		return nil, fmt.Errorf("request %q: %w", f.id, ErrNotFound)
	}
	return &f.target, nil
}

// MadeAt gives when an id was made, ns since 1970, if it is a UUIDv7.
func MadeAt(id string) (ns int64, ok bool) {
	at, ok := events.RequestID(id).MadeAt()
	if !ok {
		return 0, false
	}
	return at.UnixNano(), true
}
