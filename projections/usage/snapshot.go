package usage

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
)

// snapshotVersion is the first byte of a snapshot. Another layout takes another number.
const snapshotVersion = 1

// image is the state beside the fold's, as a snapshot has it.
type image struct {
	Requests []savedRequest `json:"requests"`
	Due      []savedEnding  `json:"due"`
	Swept    int64          `json:"swept"`
	Hours    []Sum          `json:"hours"`
	Days     []Sum          `json:"days"`
	Counts   Counts         `json:"counts"`
}

type savedRequest struct {
	ID       events.RequestID `json:"id"`
	Attempts []savedAttempt   `json:"attempts"`
	Ended    bool             `json:"ended,omitempty"`
	Spoken   int64            `json:"spoken"`
	Touched  int64            `json:"touched"`
}

type savedAttempt struct {
	Number     int64    `json:"number"`
	State      int      `json:"state"`
	Kept       int      `json:"kept,omitempty"`
	Last       int64    `json:"last,omitempty"`
	Final      bool     `json:"final,omitempty"`
	Fixed      bool     `json:"fixed,omitempty"`
	Dispatched int      `json:"dispatched,omitempty"`
	Due        int64    `json:"due,omitempty"`
	Released   []string `json:"released,omitempty"` // JSON
	Line       Line     `json:"line"`
	Given      bool     `json:"given,omitempty"`
}

type savedEnding struct {
	Request events.RequestID `json:"request"`
	Attempt int64            `json:"attempt"`
	At      int64            `json:"at"`
}

// Snapshot appends the whole state to dst, the same bytes for the same state.
func (u *Usage) Snapshot(dst []byte) []byte {
	m := image{Swept: u.swept, Hours: u.Hours(), Days: u.Days(), Counts: u.Counts}
	for _, req := range u.requests {
		m.Requests = append(m.Requests, req.save())
	}
	slices.SortFunc(m.Requests, func(a, b savedRequest) int { return cmp.Compare(a.ID, b.ID) })
	for _, e := range u.due {
		m.Due = append(m.Due, savedEnding{e.request, e.attempt, e.at})
	}
	text, err := json.Marshal(m)
	if err != nil { // cannot be: it is strings and integers
		panic("usage: " + err.Error())
	}
	dst = append(dst, snapshotVersion)
	dst = binary.AppendUvarint(dst, uint64(len(text)))
	dst = append(dst, text...)
	return u.fold.Snapshot(dst)
}

func (req *request) save() savedRequest {
	s := savedRequest{ID: req.id, Ended: req.ended, Spoken: req.spoken, Touched: req.touched}
	for _, a := range req.attempts {
		saved := savedAttempt{Number: a.number, State: int(a.state), Kept: a.kept, Last: a.last, Final: a.final, Fixed: a.fixed,
			Dispatched: int(a.dispatched), Due: a.due, Line: a.line, Given: a.given}
		for _, d := range a.released {
			saved.Released = append(saved.Released, string(events.AppendData(nil, d)))
		}
		s.Attempts = append(s.Attempts, saved)
	}
	return s
}

// Restore reads a snapshot.
func Restore(snapshot []byte) (*Usage, error) {
	if len(snapshot) == 0 || snapshot[0] != snapshotVersion {
		return nil, fmt.Errorf("restore usage: not of version %d", snapshotVersion)
	}
	size, n := binary.Uvarint(snapshot[1:])
	rest := snapshot[1+max(n, 0):]
	if n <= 0 || size > uint64(len(rest)) {
		return nil, errors.New("restore usage: cut off")
	}
	var m image
	if err := json.Unmarshal(rest[:size], &m); err != nil {
		return nil, fmt.Errorf("restore usage: %w", err)
	}
	fold, err := admission.Restore(rest[size:])
	if err != nil {
		return nil, fmt.Errorf("restore usage: %w", err)
	}
	u := New(fold)
	u.swept, u.Counts = m.Swept, m.Counts
	for i := range m.Requests {
		req, err := m.Requests[i].load()
		if err != nil {
			return nil, fmt.Errorf("restore usage: request %s: %w", m.Requests[i].ID, err)
		}
		u.requests[req.id] = req
	}
	for _, e := range m.Due {
		u.due = append(u.due, ending{place{e.Request, e.Attempt}, e.At})
	}
	for i, saved := range [2][]Sum{m.Hours, m.Days} {
		for k := range saved {
			u.sums[i][saved[k].Group] = &saved[k]
		}
	}
	return u, nil
}

func (s *savedRequest) load() (*request, error) {
	req := &request{id: s.ID, ended: s.Ended, spoken: s.Spoken, touched: s.Touched}
	for _, saved := range s.Attempts {
		a := &attempt{number: saved.Number, state: attemptState(saved.State), kept: saved.Kept, last: saved.Last, final: saved.Final,
			fixed: saved.Fixed, dispatched: events.Dispatched(saved.Dispatched), due: saved.Due, line: saved.Line, given: saved.Given}
		for _, text := range saved.Released {
			d, err := events.DecodeData(events.KindRelease.Type(), []byte(text))
			if err != nil {
				return nil, err
			}
			a.released = append(a.released, d.(*events.Release))
		}
		if a.state == admitted {
			req.admitted++
		}
		req.attempts = append(req.attempts, a)
	}
	return req, nil
}
