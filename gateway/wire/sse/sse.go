// Package sse cuts a stream of server-sent events that arrives in arbitrary pieces into whole events, shows each to a
// handler, and returns the bytes to pass on. It ends lines at LF or CRLF, as all model servers do.
package sse

import (
	"bytes"
	"errors"
)

// MaxEvent bounds one event in bytes. Final events of the Responses API repeat the whole answer, images included, so it
// is generous; without a bound a server could make a gateway hold any amount.
const MaxEvent = 16 << 20

// ErrTooLarge says that an event is longer than MaxEvent. The stream cannot be read further.
var ErrTooLarge = errors.New("reading the stream: an event is larger than 16 MiB")

// Edit says what to do with one event. The zero value passes it on as it came.
type Edit struct {
	Drop     bool // leave the whole event out
	From, To int  // leave out the bytes data[From:To]; nothing when To is 0
	Bad      bool // the data could not be read; it is passed on, unless it is the unfinished end of a cut stream
}

// Handler is shown each event that has data. name is "" without an event field. Both are valid only during the call.
type Handler interface {
	Event(name, data []byte) Edit
}

// Stream holds what has not made a whole event yet. The zero value is ready.
type Stream struct {
	buf     []byte // bytes kept from earlier pieces: passed on up to done, pending from there
	done    int
	scanned int // where the search for the end of the pending event goes on
	joined  []byte
}

// Write takes the next piece and returns what is to be passed on now: whole events only. The piece may be edited in
// place, and what is returned may be part of it or of the stream's own buffer: it is valid until the next call.
// With ErrTooLarge the events before the oversized one are still returned.
func (s *Stream) Write(piece []byte, h Handler) ([]byte, error) {
	if len(s.buf) == s.done {
		s.buf, s.done, s.scanned = s.buf[:0], 0, 0
		out, rest, scanned, err := s.events(piece, 0, h)
		s.buf = append(s.buf, rest...)
		s.scanned = scanned
		return out, err
	}
	if s.done > 0 {
		s.buf = s.buf[:copy(s.buf, s.buf[s.done:])]
	}
	s.buf = append(s.buf, piece...)
	from := s.scanned
	out, rest, scanned, err := s.events(s.buf, from, h)
	s.done = len(s.buf) - len(rest)
	s.scanned = scanned
	return out, err
}

// events passes the whole events of b through h, compacting b over what is left out. scanned says how far b's first
// event was searched before, and how far rest was on return.
func (s *Stream) events(b []byte, scanned int, h Handler) (out, rest []byte, left int, err error) {
	read, write := 0, 0
	for {
		end, next := boundary(b, read, max(read, scanned))
		if end < 0 {
			rest, left = b[read:], next-read
			if len(rest) > MaxEvent {
				err = ErrTooLarge
			}
			return b[:write], rest, left, err
		}
		if end-read > MaxEvent {
			return b[:write], nil, 0, ErrTooLarge
		}
		write = s.pass(b, read, end, write, h)
		read = end
	}
}

// boundary finds the end of the event that begins at start: behind its empty line. Without one it returns -1 and where
// to search on when more has come.
func boundary(b []byte, start, from int) (end, resume int) {
	if start < len(b) && from == start { // an empty line where an event could begin
		if b[start] == '\n' {
			return start + 1, 0
		}
		if b[start] == '\r' {
			if start+1 == len(b) {
				return -1, start
			}
			if b[start+1] == '\n' {
				return start + 2, 0
			}
		}
	}
	for i := from; ; {
		j := bytes.IndexByte(b[i:], '\n')
		if j < 0 {
			return -1, len(b)
		}
		j += i
		switch rest := b[j+1:]; {
		case len(rest) == 0 || len(rest) == 1 && rest[0] == '\r':
			return -1, j
		case rest[0] == '\n':
			return j + 2, 0
		case rest[0] == '\r' && rest[1] == '\n':
			return j + 3, 0
		}
		i = j + 1
	}
}

// pass shows b[read:end] to h and moves what is to be passed on to b[write:]. It returns the new write position.
func (s *Stream) pass(b []byte, read, end, write int, h Handler) int {
	name, data, at := s.fields(b[read:end])
	if data == nil {
		return write + move(b, write, read, end)
	}
	e := h.Event(name, data)
	if e.Drop {
		return write
	}
	if e.To > 0 && at >= 0 {
		write += move(b, write, read, read+at+e.From)
		return write + move(b, write, read+at+e.To, end)
	}
	return write + move(b, write, read, end)
}

func move(b []byte, to, from, end int) int {
	if to == from {
		return end - from
	}
	return copy(b[to:], b[from:end])
}

// fields reads the name and the data of one event. at is where the data begins in it, -1 when it spans lines and so was
// joined elsewhere. data is nil for an event without a data field.
func (s *Stream) fields(event []byte) (name, data []byte, at int) {
	lines := 0
	for i := 0; i < len(event); {
		end := bytes.IndexByte(event[i:], '\n')
		next := i + end + 1
		if end < 0 {
			next = len(event)
			end = next
		} else {
			end += i
		}
		if end > i && event[end-1] == '\r' {
			end--
		}
		line := event[i:end]
		switch {
		case bytes.HasPrefix(line, dataField):
			from := i + len(dataField)
			if from < end && event[from] == ' ' {
				from++
			}
			if lines++; lines == 1 {
				data, at = event[from:end:end], from
			} else {
				if lines == 2 {
					s.joined = append(s.joined[:0], data...)
				}
				s.joined = append(append(s.joined, '\n'), event[from:end]...)
				data, at = s.joined, -1
			}
		case bytes.HasPrefix(line, eventField):
			name = bytes.TrimPrefix(line[len(eventField):], space)
		}
		i = next
	}
	return name, data, at
}

var (
	dataField  = []byte("data:")
	eventField = []byte("event:")
	space      = []byte(" ")
)

// Finish is called when nothing more comes. An unfinished last event that reads whole is shown to h and returned with
// its missing line ends; anything else is left out, and cut is true.
func (s *Stream) Finish(h Handler) (out []byte, cut bool) {
	rest := s.buf[s.done:]
	s.done = len(s.buf)
	if len(rest) == 0 {
		return nil, false
	}
	name, data, at := s.fields(rest)
	if data == nil {
		return nil, true
	}
	e := h.Event(name, data)
	if e.Bad {
		return nil, true
	}
	if e.Drop {
		return nil, false
	}
	out = append(out, rest...)
	if e.To > 0 && at >= 0 {
		out = append(out[:at+e.From], rest[at+e.To:]...)
	}
	if bytes.HasSuffix(out, []byte("\n")) {
		return append(out, '\n'), false
	}
	return append(out, "\n\n"...), false
}
