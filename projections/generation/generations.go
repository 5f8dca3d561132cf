package generation

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/weirhq/weir/events"
)

// How long records stay in memory, in ns of the log's time, and how many.
const (
	second    = int64(1_000_000_000)
	idleFor   = 5 * second            // since a record was last touched; one that was stored is read back when it is needed
	earlyFor  = 20 * 60 * second      // the same for one that waits for a reserve or verdict
	youngFor  = 2 * second            // an id made so lately is of a request that has not left memory; less than idleFor
	settleFor = 300 * second / 1000   // an unfinished record is drained at most this often
	maxHeld   = 8192                  // records beyond which those that are stored leave at once
	maxMemory = 4 * maxHeld           // records beyond which Full says so
	sizeHint  = 256                   // changed records of a usual Drain
	maxDrain  = 1024                  // records of one Drain
	maxEvents = 256                   // admission events of a record
	maxTries  = 32                    // attempts of a record
	maxEarly  = 64                    // true-ups and releases kept for a reserve or verdict that has not come
	maxBases  = 32                    // bases of an attempt's charges
	idTime    = len("01234567-89ab-") // of a UUIDv7: where its time ends
)

// Counts says what was met that could not be used.
type Counts struct {
	Applied uint64 // records of the log
	Again   uint64 // records of the log that a request's record knew already
	Orphans uint64 // facts of requests that are not known
	Foreign uint64 // facts of a request under another org
	Dropped uint64 // facts beyond a record's bounds
}

// Generations is the records that are being worked on. It belongs to one goroutine.
type Generations struct {
	held  map[events.RequestID]*held
	first *held // the longest untouched
	last  *held
	dirty []*held // in the order in which they changed
	now   int64   // ns: the highest stream time seen
	began int64   // ns: stream time of the first record
	left  int64   // ns: the latest time in the id of a request whose record left memory
	log   Instant
	facts []Fact // to be kept

	Counts Counts
}

// held is a record in memory.
type held struct {
	Record
	kept       bool // it was drained, or restored
	touched    int64
	changed    int64 // since when it differs from what was drained; 0 if it does not
	prev, next *held
}

// New gives the projection with nothing in memory.
func New() *Generations { return &Generations{held: map[events.RequestID]*held{}} }

// Of says which log is applied from here on, by when it began, in ns since 1970.
func (g *Generations) Of(created int64) { g.log = Instant(created) }

// Held is how many records are in memory, and Changed how many of them are still to be drained.
func (g *Generations) Held() int { return len(g.held) }

// Changed is how many records differ from what was drained of them.
func (g *Generations) Changed() int { return len(g.dirty) }

// Full says that too much is in memory for more of the log to be applied before something is drained.
func (g *Generations) Full() bool { return len(g.held) >= maxMemory || len(g.facts) >= maxFacts }

// Missing appends the requests that r speaks of, whose records are not in memory but may have been stored: the caller gives each that
// was to Restore before it applies r.
func (g *Generations) Missing(dst []events.RequestID, r *events.Record) []events.RequestID {
	if r.Fault != "" {
		return dst
	}
	if g.began == 0 {
		g.began = r.At
	}
	add := func(id events.RequestID) {
		if g.held[id] == nil && id != "" && !(first(r) && g.young(id, r.At)) {
			dst = append(dst, id)
		}
	}
	switch d := r.Data.(type) {
	case *events.Reserve:
		add(d.Request)
	case *events.Refused:
		add(d.Request)
	case *events.TrueUp:
		add(d.Request)
	case *events.Release:
		add(d.Request)
	case *events.Correction:
		add(d.Request)
	case *events.Verdicts:
		for i := range d.Verdicts {
			add(d.Verdicts[i].Request)
		}
		for i := range d.Lapses {
			add(d.Lapses[i].Request)
		}
	}
	return dst
}

// first says whether a record is the first that the log has of its request, so that there is nothing of it to read back: whatever else
// comes of a request that is not in memory, comes of one that left it or that is from before it began. A gateway may put a reserve that was
// made without the log there again. Before a refusal may be an attempt that nobody answered; it has used nothing.
func first(r *events.Record) bool {
	switch d := r.Data.(type) {
	case *events.Reserve:
		return d.Attempt == 0 && d.Mode != events.ModeBoundedLocal
	case *events.Refused:
		return true
	}
	return false
}

// young says whether a request's id, a UUIDv7, is of a request that was never stored and left memory: one made since this memory began,
// not long before at, and later than any that left it. The log's clock may not be that of who makes the ids, and then it is no proof alone:
// ids made before this memory began seem to be young for as long as the log's clock is behind.
func (g *Generations) young(id events.RequestID, at int64) bool {
	made, ok := madeAt(id)
	return ok && made > at-youngFor && made > g.began+youngFor && made > g.left
}

// madeAt gives the time in a UUIDv7, ns, to the millisecond.
func madeAt(id events.RequestID) (at int64, ok bool) {
	if len(id) < idTime || id[8] != '-' {
		return 0, false
	}
	var ms int64
	for _, c := range []byte(id[:8] + id[9:idTime-1]) {
		switch {
		case c >= '0' && c <= '9':
			ms = ms<<4 | int64(c-'0')
		case c >= 'a' && c <= 'f':
			ms = ms<<4 | int64(c-'a'+10)
		default:
			return 0, false
		}
	}
	return ms * 1_000_000, true
}

// Restore brings a stored record back. One that is in memory already stays as it is.
func (g *Generations) Restore(text []byte) (*Record, error) {
	h := &held{kept: true}
	if err := json.Unmarshal(text, &h.Record); err != nil {
		return nil, fmt.Errorf("read the record of a request: %w", err)
	}
	if h.ID == "" {
		return nil, fmt.Errorf("read the record of a request: it has no id")
	}
	if known := g.held[h.ID]; known != nil {
		return &known.Record, nil
	}
	g.add(h)
	return &h.Record, nil
}

// Apply folds the log's next record.
func (g *Generations) Apply(r *events.Record) {
	g.Counts.Applied++
	g.now = max(g.now, r.At)
	if r.Fault != "" {
		return
	}
	switch d := r.Data.(type) {
	case *events.Reserve:
		g.on(r, d.Request, true, func(rec *Record) { g.reserve(rec, r, d) })
	case *events.TrueUp:
		if d.Fault == "" {
			g.on(r, d.Request, true, func(rec *Record) { g.takeTrueUp(rec, r.At, d) })
		}
	case *events.Release:
		g.on(r, d.Request, true, func(rec *Record) { g.takeRelease(rec, r.At, d) })
	case *events.Refused:
		g.on(r, d.Request, true, func(rec *Record) { g.refused(rec, r, d) })
	case *events.Correction:
		g.on(r, d.Request, false, func(rec *Record) { g.correction(rec, r.At, d) })
	case *events.Verdicts:
		for i := range d.Verdicts {
			v := &d.Verdicts[i]
			g.on(r, v.Request, false, func(rec *Record) { g.verdict(rec, v) })
		}
		for i := range d.Lapses {
			l := &d.Lapses[i]
			g.on(r, l.Request, false, func(rec *Record) { rec.lapse(l) })
		}
	default:
		g.fact(r)
	}
}

// on changes the record of a request, which begins here if begins says that the fact may begin one.
func (g *Generations) on(r *events.Record, id events.RequestID, begins bool, change func(*Record)) {
	if id == "" {
		g.Counts.Orphans++
		return
	}
	h := g.held[id]
	if h == nil {
		if !begins || stray(r) {
			g.Counts.Orphans++
			return
		}
		h = &held{Record: begin(id, r)}
		g.add(h)
	}
	place := Place{g.log, r.Seq, r.Index, Instant(r.At)}
	_, several := r.Data.(*events.Verdicts) // one record of the log may tell several things of a request
	switch {
	case place.before(h.AsOf), !several && place == h.AsOf:
		g.Counts.Again++
		return
	case !several && h.Org != r.Org && !stray(r):
		g.Counts.Foreign++
		return
	}
	change(&h.Record)
	h.AsOf = place
	g.touch(h)
	if h.changed == 0 {
		h.changed = max(g.now, 1)
		g.dirty = append(g.dirty, h)
	}
}

// stray says whether a record is the release of a request of which its gateway does not know the org: it goes out under the platform's, and
// is folded by its request.
func stray(r *events.Record) bool {
	_, release := r.Data.(*events.Release)
	return release && r.Org == events.Platform
}

func begin(id events.RequestID, r *events.Record) Record {
	return Record{
		ID: id, Org: r.Org, CreatedAt: Instant(r.At), State: InProgress,
		ProviderResponses: []ProviderResponse{}, AdmissionEvents: []AdmissionEvent{}, Attempts: []Attempt{},
	}
}

// Drain gives changed records to be stored, at most a thousand or so: those that tell all that is to be expected at once, others when they
// have been different for a while, or if all is set. What is given counts as stored: it is valid until the next call of any method.
func (g *Generations) Drain(all bool) []*Record {
	out := make([]*Record, 0, min(len(g.dirty), sizeHint))
	kept := g.dirty[:0]
	for _, h := range g.dirty {
		if len(out) == maxDrain || !all && !h.complete() && g.now-h.changed < settleFor {
			kept = append(kept, h)
			continue
		}
		h.changed = 0
		h.derive()
		h.New, h.kept = !h.kept, true
		out = append(out, &h.Record)
	}
	clear(g.dirty[len(kept):])
	g.dirty = kept
	g.forget()
	return out
}

// complete says whether nothing more is to be expected soon.
func (rec *Record) complete() bool {
	if rec.State != Ended {
		return false
	}
	for i := range rec.Attempts {
		if a := &rec.Attempts[i]; a.Verdict == "" {
			return false
		}
	}
	return true
}

// forget drops records from memory that are stored and that nothing has touched for a while.
func (g *Generations) forget() {
	for h := g.first; h != nil; {
		next := h.next
		idle := g.now - h.touched
		if idle < idleFor && len(g.held) <= maxHeld {
			return
		}
		if h.changed == 0 && (len(h.Early) == 0 || idle >= earlyFor) {
			g.unlink(h)
			delete(g.held, h.ID)
			if made, ok := madeAt(h.ID); ok {
				g.left = max(g.left, made)
			}
		}
		h = next
	}
}

func (g *Generations) add(h *held) {
	g.held[h.ID] = h
	h.touched = g.now
	g.link(h)
}

func (g *Generations) touch(h *held) {
	h.touched = g.now
	g.unlink(h)
	g.link(h)
}

func (g *Generations) link(h *held) {
	h.prev, h.next = g.last, nil
	if g.last != nil {
		g.last.next = h
	} else {
		g.first = h
	}
	g.last = h
}

func (g *Generations) unlink(h *held) {
	if h.prev != nil {
		h.prev.next = h.next
	} else {
		g.first = h.next
	}
	if h.next != nil {
		h.next.prev = h.prev
	} else {
		g.last = h.prev
	}
	h.prev, h.next = nil, nil
}

// attempt finds an attempt that has been reserved.
func (rec *Record) attempt(number int64) *Attempt {
	i := slices.IndexFunc(rec.Attempts, func(a Attempt) bool { return a.Attempt == number })
	if i < 0 {
		return nil
	}
	return &rec.Attempts[i]
}
