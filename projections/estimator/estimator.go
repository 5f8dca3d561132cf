package estimator

import (
	"encoding/json"
	"fmt"
	"sort"

	"github.com/weirhq/weir/events"
)

// Bounds of what is kept.
const (
	maxExpected = 65_536 // attempts whose true-up has not come; the oldest are given up
	maxModels   = 4096
)

// Learned is what is known of a model.
type Learned struct {
	Model        string `json:"model"`
	Ratio        Ratio  `json:"ratio_ppm"`
	Observations int64  `json:"observations"`

	// The place in the log of the last observation: the log by when it began, and the time, in ns since 1970.
	Log   int64  `json:"log"`
	Seq   uint64 `json:"seq"`
	Index int    `json:"index"`
	Time  int64  `json:"time"`
}

// Key is the name under which a model's ratio is kept: the model with bytes outside [A-Za-z0-9_-] as =XX.
func Key(model string) string {
	_, subject, _ := events.NewMeter(events.ScopeModel, "ratio", model).Split()
	return subject
}

// Encode writes it as JSON.
func (l *Learned) Encode() []byte {
	text, err := json.Marshal(l)
	if err != nil { // cannot be: a struct of strings and integers
		panic("estimator: " + err.Error())
	}
	return text
}

// Decode reads what Encode writes. A ratio out of its bounds is brought into them.
func Decode(text []byte) (Learned, error) {
	var l Learned
	if err := json.Unmarshal(text, &l); err != nil {
		return Learned{}, fmt.Errorf("read a learned ratio: %w", err)
	}
	l.Ratio = clamp(l.Ratio)
	return l, nil
}

type try struct {
	request events.RequestID
	attempt int64
}

type expected struct {
	model string
	bytes int64
}

// Estimator is what has been learned after some prefix of the log. It belongs to one goroutine.
type Estimator struct {
	models   map[string]*Learned
	expected map[try]expected
	order    []try // in which they came; entries that are gone stay until they are reached
	changed  map[string]bool
	log      int64
}

// New gives an estimator that has learned nothing.
func New() *Estimator {
	return &Estimator{models: map[string]*Learned{}, expected: map[try]expected{}, changed: map[string]bool{}}
}

// Of says which log is applied from here on, by when it began, in ns since 1970.
func (e *Estimator) Of(created int64) { e.log = created }

// Restore brings back what was learned of a model.
func (e *Estimator) Restore(l Learned) { e.models[l.Model] = &l }

// Ratio gives a model's ratio.
func (e *Estimator) Ratio(model string) Ratio {
	if l := e.models[model]; l != nil {
		return l.Ratio
	}
	return FirstRatio
}

// Apply folds the log's next record. Records up to a model's last observation that come again teach nothing.
func (e *Estimator) Apply(r *events.Record) {
	if r.Fault != "" {
		return
	}
	switch d := r.Data.(type) {
	case *events.Reserve:
		if d.Estimate.Images == 0 {
			e.Expect(d.Request, d.Attempt, d.Model, d.Estimate.TextBytes)
		}
	case *events.TrueUp:
		e.observe(r, d)
	}
}

// Expect says that a true-up of an attempt may tell of a text for a model: as its reserve does when it is applied.
func (e *Estimator) Expect(request events.RequestID, attempt int64, model string, textBytes int64) {
	t := try{request, attempt}
	if _, known := e.expected[t]; known || textBytes <= 0 || model == "" {
		return
	}
	e.expected[t] = expected{model, textBytes}
	e.order = append(e.order, t)
	for len(e.expected) > maxExpected || len(e.order) > 2*maxExpected {
		delete(e.expected, e.order[0])
		e.order = e.order[1:]
	}
}

// observe learns from a true-up. An attempt teaches once, by its first exact numbers.
func (e *Estimator) observe(r *events.Record, d *events.TrueUp) {
	t := try{d.Request, d.Attempt}
	x, known := e.expected[t]
	if !known || d.Fault != "" {
		return
	}
	teaches := d.Train && d.Quality == events.QualityExact && d.Usage.InputTokens > 0
	if !teaches && !d.Final {
		return
	}
	delete(e.expected, t)
	if !teaches {
		return
	}
	l := e.models[x.model]
	if l == nil {
		if len(e.models) >= maxModels {
			return
		}
		l = &Learned{Model: x.model, Ratio: FirstRatio}
		e.models[x.model] = l
	}
	if l.Log == e.log && (r.Seq < l.Seq || r.Seq == l.Seq && r.Index <= l.Index) {
		return
	}
	l.Ratio = Observe(l.Ratio, x.bytes, d.Usage.InputTokens)
	l.Observations++
	l.Log, l.Seq, l.Index, l.Time = e.log, r.Seq, r.Index, r.At
	e.changed[x.model] = true
}

// Drain gives the models that have learned since the last call, by name.
func (e *Estimator) Drain() []Learned {
	var out []Learned
	for model := range e.changed {
		out = append(out, *e.models[model])
	}
	clear(e.changed)
	sort.Slice(out, func(i, j int) bool { return out[i].Model < out[j].Model })
	return out
}
