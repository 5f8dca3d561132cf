package projector

import (
	"strings"
	"sync"

	"github.com/weirhq/weir/events"
)

// How long answers are kept for gateways that ask again.
const (
	keepFor    = 60_000_000_000 // ns of the projector's own clock
	maxAnswers = 1 << 17        // about 300 bytes each; a minute at 2,000 a second
	minAnswers = 1 << 10        // room at first
)

// answers are the verdicts of the last minute, by request and attempt. Any goroutine may ask.
type answers struct {
	mu    sync.Mutex
	ring  []kept // a power of two; the answer at place n is in ring[n&(len-1)]
	first uint64 // the oldest place
	next  uint64 // the place after the newest
	index map[answerKey]uint64
}

type answerKey struct {
	request events.RequestID
	attempt int64
}

type kept struct {
	verdict events.Verdict
	at      int64 // when it was decided, ns of the projector's own clock
}

func newAnswers() *answers {
	return &answers{ring: make([]kept, minAnswers), index: make(map[answerKey]uint64)}
}

// keep adds verdicts, and forgets those that are too old or too many. The verdicts must not point into records of the log.
func (a *answers) keep(verdicts []decided, now int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.first < a.next && a.at(a.first).at+keepFor < now {
		a.drop()
	}
	for i := range verdicts {
		if a.next-a.first == uint64(len(a.ring)) {
			a.makeRoom()
		}
		v := &verdicts[i].verdict
		*a.at(a.next) = kept{*v, now}
		a.index[answerKey{v.Request, v.Attempt}] = a.next
		a.next++
	}
}

func (a *answers) at(place uint64) *kept { return &a.ring[place&uint64(len(a.ring)-1)] }

// drop forgets the oldest.
func (a *answers) drop() {
	k := a.at(a.first)
	key := answerKey{k.verdict.Request, k.verdict.Attempt}
	if a.index[key] == a.first {
		delete(a.index, key)
	}
	*k = kept{}
	a.first++
}

func (a *answers) makeRoom() {
	if len(a.ring) == maxAnswers {
		a.drop()
		return
	}
	grown := make([]kept, 2*len(a.ring))
	for n := a.first; n < a.next; n++ {
		grown[n&uint64(len(grown)-1)] = *a.at(n)
	}
	a.ring = grown
}

// find gives the verdict on an attempt, if it is kept.
func (a *answers) find(request events.RequestID, attempt int64) (events.Verdict, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	place, ok := a.index[answerKey{request, attempt}]
	if !ok {
		return events.Verdict{}, false
	}
	return a.at(place).verdict, true
}

// newest gives up to so many of the newest answers that are not older than since, oldest first.
func (a *answers) newest(most int, since int64) []events.Verdict {
	a.mu.Lock()
	defer a.mu.Unlock()
	from := max(a.first, a.next-min(uint64(most), a.next-a.first))
	for from < a.next && a.at(from).at < since {
		from++
	}
	out := make([]events.Verdict, 0, a.next-from)
	for ; from < a.next; from++ {
		out = append(out, a.at(from).verdict)
	}
	return out
}

func (a *answers) size() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return int(a.next - a.first)
}

// decided is a verdict that can be kept, or a lapse, and the sequence of the record with which it fell.
type decided struct {
	verdict events.Verdict
	fell    uint64
	lapse   events.Lapse // with a request: it stands here in place of a verdict
}

func (d *decided) isLapse() bool { return d.lapse.Request != "" }

// keepable copies what of a verdict points into its reserve's message, so that keeping the one does not keep the other.
func keepable(v *events.Verdict, gateway events.Gateway) events.Verdict {
	c := *v
	c.Request, c.Gateway, c.Org = events.RequestID(strings.Clone(string(v.Request))), gateway, ""
	if r := v.Refusal; r != nil && r.Reason == events.Invalid {
		copied := *r
		copied.Meter = events.Meter(strings.Clone(string(r.Meter)))
		if r.Odd != nil {
			copied.Odd = &events.Odd{Amount: strings.Clone(r.Odd.Amount), Check: strings.Clone(r.Odd.Check), Limit: strings.Clone(r.Odd.Limit)}
		}
		c.Refusal = &copied
	}
	return c
}
