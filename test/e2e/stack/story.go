package stack

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/admission"
)

// Story is the log, read whole and folded again.
type Story struct {
	Records  []events.Record
	Requests map[events.RequestID]*Trail
	Order    []events.RequestID // by first mention
	Fold     *admission.Fold
}

// Trail is what the log says of one request.
type Trail struct {
	Reserves []*events.Reserve
	Verdicts []events.Verdict
	TrueUps  []*events.TrueUp
	Releases []*events.Release // of whatever they are
	Refused  []*events.Refused
}

// Ended gives the releases of the request itself.
func (t *Trail) Ended() (all []*events.Release) {
	for _, r := range t.Releases {
		if r.Of == events.OfRequest {
			all = append(all, r)
		}
	}
	return all
}

// Finals gives the true-ups after which nothing follows.
func (t *Trail) Finals() (all []*events.TrueUp) {
	for _, u := range t.TrueUps {
		if u.Final {
			all = append(all, u)
		}
	}
	return all
}

// Admitted says whether any attempt was.
func (t *Trail) Admitted() bool {
	for _, v := range t.Verdicts {
		if v.Admitted {
			return true
		}
	}
	return false
}

// Read reads a log to its end and folds it.
func Read(tb testing.TB, log *journal.Log) *Story {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	info, err := log.Info(ctx)
	check(tb, err)
	s := &Story{Requests: map[events.RequestID]*Trail{}, Fold: admission.New()}
	check(tb, log.Read(ctx, 1, info.Last, func(r events.Record) error {
		s.add(r)
		return nil
	}))
	return s
}

func (s *Story) trail(id events.RequestID) *Trail {
	t := s.Requests[id]
	if t == nil {
		t = &Trail{}
		s.Requests[id] = t
		s.Order = append(s.Order, id)
	}
	return t
}

func (s *Story) add(r events.Record) {
	s.Records = append(s.Records, r)
	switch d := r.Data.(type) {
	case *events.Reserve:
		t := s.trail(d.Request)
		t.Reserves = append(t.Reserves, d)
	case *events.TrueUp:
		t := s.trail(d.Request)
		t.TrueUps = append(t.TrueUps, d)
	case *events.Release:
		t := s.trail(d.Request)
		t.Releases = append(t.Releases, d)
	case *events.Refused:
		t := s.trail(d.Request)
		t.Refused = append(t.Refused, d)
	}
	for _, v := range s.Fold.Apply(&r) {
		t := s.trail(v.Request)
		t.Verdicts = append(t.Verdicts, v)
	}
}

// Held gives what a meter shows at the end of the log; 0 for one that is empty.
func (s *Story) Held(m events.Meter) int64 {
	for _, r := range s.Fold.Meters() {
		if r.Meter == m {
			return r.Used
		}
	}
	return 0
}

// Gauges gives the gauges that are not empty.
func (s *Story) Gauges() (held []string) {
	for _, r := range s.Fold.Meters() {
		if r.Kind == events.Gauge && r.Used != 0 {
			held = append(held, fmt.Sprintf("%s: %d", r.Meter, r.Used))
		}
	}
	return held
}

// Story reads the stack's log.
func (s *Stack) Story(tb testing.TB) *Story {
	tb.Helper()
	return Read(tb, s.Log)
}

// Trail waits until the log holds the end of a request, and gives what it says of it.
func (s *Stack) Trail(tb testing.TB, id string) *Trail {
	tb.Helper()
	var t *Trail
	Eventually(tb, "the log holds the end of request "+id, func() bool {
		t = s.Story(tb).Requests[events.RequestID(id)]
		return t != nil && (len(t.Ended()) > 0 || len(t.Refused) > 0 || len(t.Verdicts) > 0 && !t.Admitted())
	})
	return t
}

// Eventually waits for something that is bound to happen.
func Eventually(tb testing.TB, what string, happened func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(readyWithin); !happened(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("within %s it did not happen that %s", readyWithin, what)
		}
	}
}
