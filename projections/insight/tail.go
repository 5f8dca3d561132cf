package insight

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/weirhq/weir/events"
)

// maxJoined bounds the reserves that a Tail remembers, to say whose a verdict, a true-up or a release is: about 30 MB of twelve claims each.
const maxJoined = 8192

// Line is one thing that happened, for reading. Key and Model are those of the request's reserve, where it is known.
type Line struct {
	Seq     uint64          `json:"seq"` // of the message
	Index   int             `json:"index,omitempty"`
	Time    string          `json:"time"`
	Kind    string          `json:"kind"` // an event's, or "verdict"
	Org     string          `json:"org,omitempty"`
	Gateway string          `json:"gateway,omitempty"`
	Request string          `json:"request,omitempty"`
	Attempt int64           `json:"attempt,omitempty"`
	Key     string          `json:"key,omitempty"`
	Model   string          `json:"model,omitempty"`
	Outcome string          `json:"outcome,omitempty"` // admitted, refused, or a release's
	Reason  string          `json:"reason,omitempty"`  // of a refusal, or its code
	Text    string          `json:"text"`
	Data    json.RawMessage `json:"data,omitempty"`
	At      int64           `json:"-"` // ns since 1970
}

type attemptID struct {
	request events.RequestID
	attempt int64
}

// Tail turns records into lines. It remembers a bounded number of reserves.
type Tail struct {
	attempts map[attemptID]*events.Reserve
	requests map[events.RequestID]*events.Reserve
	ring     []*events.Reserve
	next     int
	line     Line
}

// NewTail gives a Tail that has seen nothing.
func NewTail() *Tail {
	return &Tail{attempts: map[attemptID]*events.Reserve{}, requests: map[events.RequestID]*events.Reserve{}}
}

// Take gives a record's lines to each: one, or of a pack of verdicts one a verdict. A line is valid until each returns; its Data is
// only there if data asks for it.
func (t *Tail) Take(r *events.Record, data bool, each func(*Line)) {
	if d, ok := r.Data.(*events.Verdicts); ok && r.Fault == "" {
		for i := range d.Verdicts {
			t.verdict(r, &d.Verdicts[i], data)
			each(&t.line)
		}
		return
	}
	t.line = Line{Seq: r.Seq, Index: r.Index, Time: stamp(r.At), Kind: r.Kind().String(), Gateway: string(r.Gateway), At: r.At}
	if r.Org != events.Platform {
		t.line.Org = string(r.Org)
	}
	t.describe(r)
	if r.Fault != "" {
		t.line.Text = "not folded: " + r.Fault
	}
	if data && r.Data != nil {
		t.line.Data = dataOf(r.Data)
	}
	each(&t.line)
}

// dataOf gives an event's data; what is no JSON is given as a string.
func dataOf(d events.Data) json.RawMessage {
	text := events.AppendData(nil, d)
	if u, ok := d.(*events.Unknown); ok && !json.Valid(text) {
		text, _ = json.Marshal(u.Raw) // a string always can be
	}
	return text
}

func (t *Tail) remember(d *events.Reserve) {
	if len(t.ring) < maxJoined {
		t.ring = append(t.ring, d)
	} else {
		old := t.ring[t.next]
		t.ring[t.next] = d
		t.next = (t.next + 1) % maxJoined
		if id := (attemptID{old.Request, old.Attempt}); t.attempts[id] == old {
			delete(t.attempts, id)
		}
		if t.requests[old.Request] == old {
			delete(t.requests, old.Request)
		}
	}
	t.attempts[attemptID{d.Request, d.Attempt}] = d
	t.requests[d.Request] = d
}

// of notes whose a line is.
func (t *Tail) of(id events.RequestID, attempt int64) {
	t.line.Request, t.line.Attempt = string(id), attempt
	if d := t.requests[id]; d != nil {
		t.line.Key, t.line.Model = d.Key, d.Model
		if t.line.Gateway == "" {
			t.line.Gateway = string(d.Gateway)
		}
		if t.line.Org == "" {
			t.line.Org = string(d.Org)
		}
	}
}

func (t *Tail) verdict(r *events.Record, v *events.Verdict, data bool) {
	t.line = Line{Seq: r.Seq, Index: r.Index, Time: stamp(v.Time), Kind: "verdict", Outcome: "admitted", At: v.Time}
	t.of(v.Request, v.Attempt)
	if v.Admitted {
		t.line.Text = admittedWords(v, t.attempts[attemptID{v.Request, v.Attempt}])
	} else {
		t.line.Outcome, t.line.Text = "refused", refusedWords(v)
		if v.Refusal != nil {
			t.line.Reason = string(v.Refusal.Reason)
		}
	}
	if data {
		t.line.Data = events.AppendVerdict(nil, v)
	}
}

// describe says in words what a record states.
func (t *Tail) describe(r *events.Record) {
	l := &t.line
	switch d := r.Data.(type) {
	case *events.Reserve:
		t.remember(d)
		t.of(d.Request, d.Attempt)
		l.Key, l.Model, l.Text = d.Key, d.Model, reserveWords(d)
	case *events.TrueUp:
		t.of(d.Request, d.Attempt)
		l.Text = trueUpWords(d)
	case *events.Release:
		t.of(d.Request, d.Attempt)
		l.Outcome, l.Text = string(d.Outcome), releaseWords(d)
	case *events.Refused:
		t.of(d.Request, 0)
		l.Key, l.Model, l.Outcome, l.Reason, l.Text = d.Key, d.Model, "refused", d.Code, gatewayRefusedWords(d)
	case *events.Lease:
		l.Text = fmt.Sprintf("%s, epoch %d, for %s", d.Gateway, d.Epoch, Span(leaseTTL(d)))
	case *events.Cooldown:
		l.Text = fmt.Sprintf("%s paused for %s", d.Meter, Span(d.ForMS))
	case *events.Tick:
	case *events.Fence:
		l.Text = fmt.Sprintf("authority of %s is at version %d", d.Org, d.Version)
	case *events.Credit:
		l.Request, l.Text = string(RequestOf(d)), creditWords(d)
	case *events.Recover:
		l.Text = "recovered, windows " + d.Windows + ": " + d.Reason
	case *events.Rules:
		l.Text = fmt.Sprintf("the fold's rules are version %d from here on", d.Version)
	case *events.Correction:
		t.of(d.Request, d.Attempt)
		l.Text = correctionWords(d)
	case *events.Verdicts: // with a fault, or it would have been taken apart
	case *events.Unknown:
		l.Text = "of a kind that this version does not know: " + d.Type
	case nil:
		l.Text = "unreadable"
	}
}

func leaseTTL(d *events.Lease) int64 {
	if d.TTLMS == 0 {
		return events.DefaultTTLMS
	}
	return d.TTLMS
}

func reserveWords(d *events.Reserve) string {
	var b strings.Builder
	if d.Mode == events.ModeBoundedLocal {
		b.WriteString("admitted by its gateway while the log was out of reach; ")
	}
	if d.Attempt > 0 {
		fmt.Fprintf(&b, "attempt %d ", d.Attempt)
	}
	fmt.Fprintf(&b, "asks %d claims", len(d.Claims))
	if e := &d.Estimate; e.InputTokens > 0 || e.OutputTokens > 0 {
		fmt.Fprintf(&b, " for %s in, %s out", Number(e.InputTokens), Number(e.OutputTokens))
	}
	if d.ParkMS > 0 {
		b.WriteString(", waits up to " + Span(d.ParkMS))
	}
	if d.Deployment != "" {
		b.WriteString(", at " + d.Deployment)
	}
	return b.String()
}

func usageWords(u *events.Usage) string {
	text := Number(u.InputTokens) + " in"
	if u.CachedTokens > 0 {
		text += " (" + Number(u.CachedTokens) + " cached)"
	}
	text += ", " + Number(u.OutputTokens) + " out"
	if u.ReasoningTokens > 0 {
		text += " (" + Number(u.ReasoningTokens) + " reasoning)"
	}
	return text
}

func trueUpWords(d *events.TrueUp) string {
	if d.Fault != "" {
		return "not folded: " + d.Fault
	}
	if d.Final {
		return fmt.Sprintf("final, %s: %s, %s", d.Quality, usageWords(&d.Usage), Money(d.CostNano))
	}
	return fmt.Sprintf("growth, %s: %s", d.Quality, chargesWords(d.Charges))
}

func chargesWords(charges []events.Charge) string {
	parts := make([]string, len(charges))
	for i, c := range charges {
		u := unitCount
		if c.Basis == events.BasisCost || c.Basis == events.BasisMoney {
			u = unitNano
		}
		parts[i] = c.Basis + " " + u.write(c.Amount)
	}
	return strings.Join(parts, ", ")
}

func releaseWords(d *events.Release) string {
	var b strings.Builder
	switch d.Of {
	case events.OfLocal:
		return "left the local pool"
	case events.OfAttempt:
		fmt.Fprintf(&b, "attempt %d ", d.Attempt)
	}
	b.WriteString(string(d.Outcome))
	if d.Status != 0 {
		fmt.Fprintf(&b, " with %d", d.Status)
	}
	if d.FinishReason != "" {
		b.WriteString(", " + d.FinishReason)
	}
	if d.LatencyMS > 0 {
		b.WriteString(", took " + Span(d.LatencyMS))
	}
	if d.TTFTMS > 0 {
		b.WriteString(", first token after " + Span(d.TTFTMS))
	}
	if d.Error != "" {
		fmt.Fprintf(&b, ", %s %s", d.Origin, d.Error)
	}
	if d.Dispatched == events.DispatchedNo {
		b.WriteString(", never sent to a model")
	}
	return b.String()
}

func gatewayRefusedWords(d *events.Refused) string {
	text := "refused by its gateway at " + d.Gate
	if d.Scope != "" {
		text += ", " + d.Scope + " " + d.LimitKind
	}
	if d.Limit != nil {
		text += fmt.Sprintf(" %s of %s", Number(d.Used), Number(*d.Limit))
	}
	text += fmt.Sprintf(": %d %s", d.Status, d.Code)
	if d.Count > 1 {
		text += fmt.Sprintf(", %s times", Number(d.Count))
	}
	return text
}

func creditWords(d *events.Credit) string {
	return fmt.Sprintf("%s for %s (%s)", Money(d.AmountNano), d.Org, d.Reference)
}

func correctionWords(d *events.Correction) string {
	return fmt.Sprintf("revision %d: %s, %s (%s)", d.Revision, usageWords(&d.Usage), Money(d.CostNano), d.Reason)
}
