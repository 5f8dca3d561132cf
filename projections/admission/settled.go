package admission

import "github.com/weirhq/weir/events"

// settled is what is left of a request that nothing can change: that it was, and which of its attempts were admitted and refused.
type settled struct {
	since             int64 // ns: since when it could be forgotten
	endedAt           int64 // ns; 0 if no attempt was admitted
	admitted, refused uint64
}

// settledSet keeps settled requests by id. Ids in the usual form of a UUID, nearly all of them, take 16 bytes.
type settledSet struct {
	byUUID map[[16]byte]settled
	byName map[events.RequestID]settled
	peak   int
}

func newSettledSet() settledSet {
	return settledSet{byUUID: map[[16]byte]settled{}, byName: map[events.RequestID]settled{}}
}

func (s *settledSet) len() int { return len(s.byUUID) + len(s.byName) }

func (s *settledSet) get(id events.RequestID) (settled, bool) {
	if key, ok := uuidBytes(id); ok {
		v, found := s.byUUID[key]
		return v, found
	}
	v, found := s.byName[id]
	return v, found
}

func (s *settledSet) put(id events.RequestID, v settled) {
	if key, ok := uuidBytes(id); ok {
		s.byUUID[key] = v
		s.peak = max(s.peak, len(s.byUUID))
		return
	}
	s.byName[id] = v
}

func (s *settledSet) remove(id events.RequestID) {
	if key, ok := uuidBytes(id); ok {
		delete(s.byUUID, key)
		return
	}
	delete(s.byName, id)
}

// forget removes those that have been idle since an instant or longer.
func (s *settledSet) forget(since int64) {
	for id, v := range s.byUUID {
		if v.since <= since {
			delete(s.byUUID, id)
		}
	}
	for id, v := range s.byName {
		if v.since <= since {
			delete(s.byName, id)
		}
	}
	s.byUUID = shrunk(s.byUUID, &s.peak)
}

// shrunk makes a map anew when it holds far less than it once did: a map keeps the memory of its largest size.
func shrunk[K comparable, V any](m map[K]V, peak *int) map[K]V {
	const worthwhile, share = 1024, 4
	if *peak < worthwhile || len(m) > *peak/share {
		return m
	}
	less := make(map[K]V, len(m))
	for k, v := range m {
		less[k] = v
	}
	*peak = len(less)
	return less
}

// uuidBytes gives the 16 bytes of a UUID written in lower case with dashes.
func uuidBytes(id events.RequestID) (b [16]byte, ok bool) {
	if len(id) != 36 || id[8] != '-' || id[13] != '-' || id[18] != '-' || id[23] != '-' {
		return b, false
	}
	n := 0
	for i := 0; i < 36; i++ {
		c := id[i]
		switch {
		case i == 8 || i == 13 || i == 18 || i == 23:
			continue
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		default:
			return b, false
		}
		if n&1 == 0 {
			b[n/2] = c << 4
		} else {
			b[n/2] |= c
		}
		n++
	}
	return b, true
}

// uuidText writes the id that uuidBytes read.
func uuidText(b [16]byte) events.RequestID {
	const hex = "0123456789abcdef"
	text := make([]byte, 0, 36)
	for i, c := range b {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			text = append(text, '-')
		}
		text = append(text, hex[c>>4], hex[c&15])
	}
	return events.RequestID(text)
}
