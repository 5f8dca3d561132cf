package chaos

import (
	endian "encoding/binary"
	"fmt"
	"hash/crc32"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/gateway/outage/spool"
	"github.com/weirhq/weir/test/e2e/stack"
)

// witness stands before the upstreams: at the moment a call arrives it looks into the gateways' spools, on the disk, for the call's intent.
type witness struct {
	spools string // a pattern of the spools' segments

	mu   sync.Mutex
	seen map[events.RequestID][]arrival // in the order in which the calls came
}

// arrival is what was on the disk when a call arrived.
type arrival struct {
	at      time.Time
	looked  time.Time      // when the spools had been read: what was published meanwhile is in none any more
	intents map[int64]bool // the attempts of its request whose reserves were spooled
}

func newWitness(dir string) *witness {
	return &witness{spools: filepath.Join(dir, "*-data", "spool", "*", "*.spool"), seen: map[events.RequestID][]arrival{}}
}

// before gives an upstream to which calls go by the witness.
func (w *witness) before(upstream http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if id := events.RequestID(r.Header.Get("X-Request-Id")); id != "" && r.Method == http.MethodPost {
			a := arrival{at: time.Now(), intents: w.spooled(id)}
			a.looked = time.Now()
			w.mu.Lock()
			w.seen[id] = append(w.seen[id], a)
			w.mu.Unlock()
		}
		upstream.ServeHTTP(rw, r)
	})
}

// spooled gives the attempts of a request whose reserves stand in a spool.
func (w *witness) spooled(id events.RequestID) map[int64]bool {
	attempts := map[int64]bool{}
	paths, _ := filepath.Glob(w.spools) // the pattern is a good one
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // published, and removed since
		}
		for _, ev := range segment(b) {
			if d, ok := ev.Data.(*events.Reserve); ok && d.Request == id {
				attempts[d.Attempt] = true
			}
		}
	}
	return attempts
}

// segment reads what is whole of a spool's segment, as its package describes it: a magic word, a frame with the head, then one for each
// event.
func segment(b []byte) (all []events.Event) {
	const magic, head = 8, 8
	for at, n := min(magic, len(b)), 0; len(b)-at >= head; n++ {
		size := int(endian.BigEndian.Uint32(b[at:]))
		if size > len(b)-at-head {
			break
		}
		data := b[at+head : at+head+size]
		if crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)) != endian.BigEndian.Uint32(b[at+4:]) {
			break
		}
		if evs, err := events.DecodePack(data); n > 0 && err == nil {
			all = append(all, evs...)
		}
		at += head + size
	}
	return all
}

// intent is the reserve of an attempt as the log has it.
type intent struct {
	*events.Reserve
	at    time.Time // in the log
	again bool      // it repeats what a log that was lost had admitted
}

// intents checks that each call had its intent when it arrived: in a spool on the disk if it was admitted without the log, else in the log.
// It gives how many had it in a spool.
func (w *world) intents(s *stack.Story, c checks) (spooled int) {
	reserved := map[events.RequestID][]intent{}
	for i := range s.Records {
		r := &s.Records[i]
		d, ok := r.Data.(*events.Reserve)
		if ok && (len(reserved[d.Request]) == 0 || !attempted(reserved[d.Request], d.Attempt)) {
			reserved[d.Request] = append(reserved[d.Request], intent{d, time.Unix(0, r.At), len(r.ID) > len(string(d.Request))+len("/0")})
		}
	}
	w.witness.mu.Lock()
	defer w.witness.mu.Unlock()
	for id, arrivals := range w.witness.seen {
		t := s.Requests[id]
		if t == nil || arrivals[0].at.Before(c.since) {
			continue // what the log does not know is another check's
		}
		var dispatched []intent
		for _, in := range reserved[id] {
			if !undispatched(t, in.Attempt) {
				dispatched = append(dispatched, in)
			}
		}
		for i, a := range arrivals {
			switch {
			case i >= len(dispatched):
				w.tb.Errorf("request %s: its call %d came to the upstream at %s and has no intent%s", id, i, a.at.UTC().Format(time.StampMicro), saysOf(s, string(id)))
			case dispatched[i].again:
			case a.intents[dispatched[i].Attempt]:
				spooled++
			case dispatched[i].Mode == events.ModeBoundedLocal && dispatched[i].at.After(a.looked): // and not published just then
				w.tb.Errorf("request %s: its call %d came to the upstream at %s, and its intent was in no spool%s", id, i, a.at.UTC().Format(time.StampMicro), saysOf(s, string(id)))
			case dispatched[i].at.After(a.at) && !c.clock:
				w.tb.Errorf("request %s: its call %d came to the upstream at %s, before its reserve was in the log%s", id, i, a.at.UTC().Format(time.StampMicro), saysOf(s, string(id)))
			}
		}
	}
	return spooled
}

func attempted(all []intent, attempt int64) bool {
	for i := range all {
		if all[i].Attempt == attempt {
			return true
		}
	}
	return false
}

// undispatched says whether the log has it that an attempt's call was never made: it was refused, or released before.
func undispatched(t *stack.Trail, attempt int64) bool {
	for i := range t.Verdicts {
		if v := &t.Verdicts[i]; v.Attempt == attempt && !v.Admitted {
			return true
		}
	}
	for _, r := range t.Releases {
		if r.Attempt == attempt && r.Dispatched == events.DispatchedNo {
			return true
		}
	}
	return false
}

// The witness finds the intent that is on the disk, and no other's.
func TestTheWitnessLooksIntoTheSpools(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _, err := spool.Open(filepath.Join(dir, "gw0-data", "spool"), spool.Head{Gateway: eventstest.Gateway, Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	known, unknown := eventstest.RequestID(1), eventstest.RequestID(2)
	d := eventstest.Reserve(known)
	d.Attempt = 1
	if err := s.Append(eventstest.Event(fmt.Sprintf("%s/1", known), d), 7); err != nil {
		t.Fatal(err)
	}
	w, called := newWitness(dir), 0
	upstream := w.before(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called++ }))
	for _, id := range []events.RequestID{known, unknown} {
		r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", nil)
		r.Header.Set("X-Request-Id", string(id))
		upstream.ServeHTTP(httptest.NewRecorder(), r)
	}
	if called != 2 || len(w.seen[known]) != 1 || !w.seen[known][0].intents[1] || w.seen[known][0].intents[0] || len(w.seen[unknown]) != 1 || len(w.seen[unknown][0].intents) != 0 {
		t.Errorf("%d calls came through; it saw %+v", called, w.seen)
	}
}
