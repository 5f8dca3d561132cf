package inquiry

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/gateway/manage"
	"github.com/weirhq/weir/projections/admission"
)

// nothing is a log without a record.
type nothing struct{}

func (nothing) Read(context.Context, uint64, func(*events.Record) error) error              { return nil }
func (nothing) SeqAt(context.Context, int64) (uint64, error)                                { return 0, nil }
func (nothing) FoldBefore(context.Context, uint64) (*admission.Fold, error)                 { return nil, nil }
func (nothing) Serve(string, func(http.ResponseWriter, *http.Request, manage.Caller) error) {}
func (nothing) Words(_ *http.Request, err error) string                                     { return "told of " + err.Error() }

// torn is a log that cannot be read beyond some records.
type torn struct {
	nothing
	records int
}

func (l torn) Read(_ context.Context, _ uint64, each func(*events.Record) error) error {
	log := eventstest.NewLog(0)
	for range l.records {
		r := log.Add(&events.Fence{Org: eventstest.Org, Version: 1})
		if err := each(&r); err != nil {
			return err
		}
	}
	return errTorn
}

var errTorn = errors.New("torn")

// simulating asks for a simulation.
func simulating(accept string) *http.Request {
	r := httptest.NewRequest("POST", "/api/simulate", strings.NewReader(`{"scale":"2x"}`))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", accept)
	return r
}

// A failure has a status of its own until a line has been sent, and then is a line in the words of the door.
func TestASimulationThatFails(t *testing.T) {
	var clock time.Time
	now := func() time.Time { clock = clock.Add(progressEvery); return clock }
	for records, line := range map[int]string{1: "", lookAtClock: `{"failure":{"error":"told of torn"}}`} {
		w := httptest.NewRecorder()
		err := Mount(nothing{}, Config{Log: torn{records: records}, Now: now}).simulate(w, simulating("application/x-ndjson"), manage.Caller{Operator: true})
		if line == "" && (!errors.Is(err, errTorn) || w.Body.Len() > 0) {
			t.Errorf("before a line: %v, sent %q", err, w.Body)
		}
		if lines := strings.Split(strings.TrimSpace(w.Body.String()), "\n"); line != "" && (err != nil || len(lines) != 2 || lines[1] != line) {
			t.Errorf("after a line: %v, sent %q", err, w.Body)
		}
	}
}

// slowly is a client that reads slowly: something happens before it has taken anything in.
type slowly struct {
	*httptest.ResponseRecorder
	meanwhile func()
}

func (s slowly) Write(p []byte) (int, error) {
	s.meanwhile()
	return s.ResponseRecorder.Write(p)
}

// Others may ask while an answer is on its way, however long it takes.
func TestASlowClientKeepsNobodyFromAsking(t *testing.T) {
	h := Mount(nothing{}, Config{Log: nothing{}, Now: time.Now})
	for _, accept := range []string{"", "application/x-ndjson"} {
		wrote := false
		w := slowly{httptest.NewRecorder(), func() {
			if wrote = true; len(h.readers) != 0 {
				t.Errorf("%q: it holds %d places while it answers", accept, len(h.readers))
			}
		}}
		if err := h.simulate(w, simulating(accept), manage.Caller{Operator: true}); err != nil || !wrote || w.Code != http.StatusOK {
			t.Errorf("%q: %v, wrote %t: %d %s", accept, err, wrote, w.Code, w.Body)
		}
	}
}

// One org's questions leave room for those of others, and operators are not counted as an org.
func TestAnOrgReadsOnceAtATime(t *testing.T) {
	h := Mount(nothing{}, Config{Log: nothing{}, Now: time.Now})
	ask := func(who manage.Caller) func() {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // who would wait for a turn
		defer cancel()
		if _, done, err := h.reading(ctx, who); err == nil {
			t.Cleanup(done)
			return done
		}
		return nil
	}
	a, b, operator := manage.Caller{Org: "a"}, manage.Caller{Org: "b"}, manage.Caller{Operator: true}
	first := ask(a)
	if first == nil || ask(a) != nil {
		t.Fatal("an org reads twice at once, or never")
	}
	other := ask(b)
	if other == nil {
		t.Fatal("another org waits for the first")
	}
	if ask(operator) != nil || ask(manage.Caller{Org: "c"}) != nil {
		t.Error("more read at once than may")
	}
	other()
	if ask(manage.Caller{Org: "c"}) == nil {
		t.Error("an org that was refused while others read is not let in later")
	}
	first()
	if ask(operator) == nil {
		t.Error("an operator is not let in")
	}
}

// Whoever comes while another question is answered has its turn after it.
func TestQuestionsWaitForTheirTurn(t *testing.T) {
	for name, callers := range map[string][]manage.Caller{"of one org": {{Org: "a"}, {Org: "a"}, {Org: "a"}}, "of all": {{Org: "a"}, {Org: "b"}, {Org: "c"}, {Operator: true}}} {
		h := Mount(nothing{}, Config{Log: nothing{}, Now: time.Now})
		answered := make(chan error)
		first := make([]func(), 0, MaxReaders)
		for _, who := range callers[:MaxReaders] {
			if _, done, err := h.reading(t.Context(), who); err == nil {
				first = append(first, done)
			}
			if callers[0] == callers[1] {
				break
			}
		}
		for _, who := range callers[len(first):] {
			go func() {
				_, done, err := h.reading(t.Context(), who)
				if err == nil {
					done()
				}
				answered <- err
			}()
		}
		select {
		case err := <-answered:
			t.Errorf("%s: one did not wait: %v", name, err)
			continue
		case <-time.After(20 * time.Millisecond):
		}
		for _, done := range first {
			done()
		}
		for range callers[len(first):] {
			if err := <-answered; err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
