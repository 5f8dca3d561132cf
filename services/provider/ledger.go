package provider

import (
	"sync"
	"time"
)

// Outcome is how a call ended.
type Outcome string

// The outcomes.
const (
	Live      Outcome = "live"      // it still runs
	Completed Outcome = "completed" // everything was sent
	Failed    Outcome = "failed"    // an error was sent, as the script said
	Broken    Outcome = "broken"    // the connection was broken, as the script said
	Cancelled Outcome = "cancelled" // the client left
)

// Call is one call as the provider saw it.
type Call struct {
	ID        int64     `json:"id"`
	RequestID string    `json:"request_id,omitempty"` // the x-request-id header
	Operation string    `json:"operation"`
	Model     string    `json:"model"`
	Stream    bool      `json:"stream"`
	Started   time.Time `json:"started"`
	Ended     time.Time `json:"ended,omitzero"`
	Outcome   Outcome   `json:"outcome"`
	Status    int       `json:"status,omitempty"`
	Input     int64     `json:"input_tokens"`
	Declared  int64     `json:"declared_tokens"` // the output limit that arrived, all choices; 0 without one
	Output    int64     `json:"output_tokens"`   // sent so far
	Body      []byte    `json:"body,omitempty"`  // only with Config.KeepBodies
	Key       string    `json:"-"`               // the credential that came with it
}

// Totals sum up the calls of one model, or of all.
type Totals struct {
	Calls        int64 `json:"calls"`
	Completed    int64 `json:"completed"`
	Failed       int64 `json:"failed"`
	Broken       int64 `json:"broken"`
	Cancelled    int64 `json:"cancelled"`
	Input        int64 `json:"input_tokens"`
	Output       int64 `json:"output_tokens"`
	Live         int64 `json:"live"`
	MaxLive      int64 `json:"max_live"`      // the most calls at any one time
	Footprint    int64 `json:"footprint"`     // input + declared output of the live calls
	MaxFootprint int64 `json:"max_footprint"` // the most at any one time
}

func (t *Totals) begin(c *Call) {
	t.Calls++
	t.Live++
	t.Footprint += c.Input + c.Declared
	t.MaxLive = max(t.MaxLive, t.Live)
	t.MaxFootprint = max(t.MaxFootprint, t.Footprint)
}

func (t *Totals) end(c *Call) {
	t.Live--
	t.Footprint -= c.Input + c.Declared
	t.Output += c.Output
	switch c.Outcome {
	case Completed:
		t.Completed++
	case Failed:
		t.Failed++
	case Broken:
		t.Broken++
	case Cancelled:
		t.Cancelled++
	}
	if c.Outcome != Failed {
		t.Input += c.Input
	}
}

// Ledger is the provider's own record, for checking from outside what a gateway let through. A call is live from the
// moment its body was read until just before its last bytes are sent, so whoever reacts to those never makes it seem
// that two ran at once.
type Ledger struct {
	mu     sync.Mutex
	all    Totals
	models map[string]*Totals
	calls  []*Call // a ring once it is full
	first  int
	limit  int
}

func newLedger(limit int) *Ledger { return &Ledger{limit: limit, models: map[string]*Totals{}} }

func (l *Ledger) begin(c *Call) *Call {
	c.Outcome, c.Started = Live, time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.models[c.Model]
	if m == nil {
		m = &Totals{}
		l.models[c.Model] = m
	}
	l.all.begin(c)
	m.begin(c)
	if len(l.calls) < l.limit {
		l.calls = append(l.calls, c)
		return c
	}
	l.calls[l.first] = c
	l.first = (l.first + 1) % l.limit
	return c
}

// end ends a call once; later ends change nothing.
func (l *Ledger) end(c *Call, how Outcome, status int, output int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.Outcome != Live {
		return
	}
	c.Outcome, c.Status, c.Output, c.Ended = how, status, output, time.Now()
	l.all.end(c)
	if m := l.models[c.Model]; m != nil {
		m.end(c)
	}
}

// Totals sums up all calls since the start or the last Reset.
func (l *Ledger) Totals() Totals {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all
}

// Model sums up the calls to one model.
func (l *Ledger) Model(name string) Totals {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.models[name]; m != nil {
		return *m
	}
	return Totals{}
}

// Models sums up the calls by model.
func (l *Ledger) Models() map[string]Totals {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[string]Totals, len(l.models))
	for name, m := range l.models {
		out[name] = *m
	}
	return out
}

// Calls lists the newest calls, oldest first, as they are now.
func (l *Ledger) Calls() []Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Call, 0, len(l.calls))
	for i := range l.calls {
		out = append(out, *l.calls[(l.first+i)%len(l.calls)])
	}
	return out
}

// Reset forgets the ended calls: lists and sums begin again with what is live.
func (l *Ledger) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.calls
	l.calls, l.first, l.all, l.models = nil, 0, Totals{}, map[string]*Totals{}
	for _, c := range old {
		if c.Outcome != Live {
			continue
		}
		l.calls = append(l.calls, c)
		l.all.begin(c)
		if l.models[c.Model] == nil {
			l.models[c.Model] = &Totals{}
		}
		l.models[c.Model].begin(c)
	}
}
