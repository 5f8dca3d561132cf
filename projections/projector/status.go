package projector

import (
	"sync"
	"time"

	"github.com/weirhq/weir/projections/admission"
)

// condition is a reason not to be ready.
type condition uint8

// The conditions, the gravest first.
const (
	stopped   condition = iota // it does not run, or had to stop: the log was replaced
	rules                      // the fold's rules are unknown
	clockStop                  // the stream's clock is far off, until a recover
	diverged                   // another projector's verdicts do not agree
	clockOff                   // the stream's clock is off
	catching                   // it has not read the log to its end yet
	conditions
)

// trust says whether answers may be given under a condition.
func (c condition) trust() bool { return c == diverged || c == clockOff }

// lasts says whether a condition under which no answers are given lasts until a person does something.
func (c condition) lasts() bool { return c == rules || c == clockStop }

// status is why the projector is not ready. Any goroutine may ask.
type status struct {
	mu  sync.Mutex
	why [conditions]string
}

func (s *status) set(c condition, why string) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = s.why[c] != why
	s.why[c] = why
	return changed
}

func (s *status) get(c condition) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why[c]
}

// first gives the gravest condition among those wanted.
func (s *status) first(wanted func(condition) bool) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c, why := range s.why {
		if why != "" && wanted(condition(c)) {
			return why
		}
	}
	return ""
}

// Ready says whether the projector answers and has nothing to complain of, and if not, why.
func (p *Projector) Ready() (ready bool, why string) {
	why = p.status.first(func(condition) bool { return true })
	return why == "", why
}

// Answering says whether the projector gives answers, and if not, why.
func (p *Projector) Answering() (answering bool, why string) {
	why = p.status.first(func(c condition) bool { return !c.trust() })
	return why == "", why
}

// Stats is what a projector has done, and where it stands.
type Stats struct {
	Seq     uint64        // the last sequence folded
	Behind  uint64        // messages that the log held beyond it, as far as its source says
	Lag     time.Duration // own clock less the time of the last record, when that was folded
	ReadAt  time.Time     // own clock, when that was; with a writer, more than about a second ago means that the log is out of reach
	Offset  time.Duration // the stream's clock less its own, as far as is known
	FoldNow int64         // the fold's time, ns since 1970
	Rules   int64

	Records     uint64 // folded since the start
	Batches     uint64 // reads that brought them
	Verdicts    uint64 // decided
	Messages    uint64 // of verdicts, published
	AnswersLost uint64 // that could not be published; the gateway asks
	Withheld    uint64 // verdicts that were kept and not given
	Asks        uint64 // questions taken
	Unknown     uint64 // to which there was no answer
	FoldTime    time.Duration

	Writer      bool   // holds the writer's lease
	Terms       uint64 // how often it became the writer
	Ticks       uint64 // published
	TicksFailed uint64
	Packs       uint64 // of verdicts, appended
	PacksLost   uint64 // appends that failed
	Unwritten   uint64 // verdicts given up because nobody wrote them
	Pending     int    // verdicts not yet in the log

	Checked     uint64 // packs of verdicts that agreed
	Unchecked   uint64 // packs of verdicts over a stretch that is no longer known
	Divergences uint64 // packs of verdicts that did not agree

	Snapshots       uint64
	SnapshotsFailed uint64
	SnapshotSeq     uint64 // of the newest
	SnapshotBytes   int64
	SnapshotTime    time.Duration // that the newest took
	SnapshotAt      time.Time     // own clock, when it was complete; zero before the first of this process

	Shares       uint64 // snapshots shared with other projectors
	SharesFailed uint64
	SharedSeq    uint64    // of the newest that this process shared
	SharedAt     time.Time // own clock, when it was there; zero before the first of this process

	Kept     int // answers kept
	Meters   int
	Requests int
	Settled  int
	Waiting  int
	Counts   admission.Counts
}

// Stats says what the projector has done, and where it stood after the last batch.
func (p *Projector) Stats() Stats {
	p.statsMu.Lock()
	s := p.stats
	p.statsMu.Unlock()
	s.Kept = p.answers.size()
	s.Asks, s.Unknown = p.asks.Load(), p.unknown.Load()
	return s
}
