package generation

import "github.com/weirhq/weir/events"

// The kinds of facts.
const (
	FactCredit  = "credit"
	FactFence   = "fence"
	FactRecover = "recover" // the log was recovered: of the sequences from From to To it holds nothing of what was there
	FactGap     = "gap"     // nothing of the sequences from From to To is kept
)

// maxFacts is how many facts wait to be kept, at the most: beyond it Full says so.
const maxFacts = 4096

// Fact is what the log says beside its requests and balances hang on: kept with the records, so that balances and fences can be told
// without the log.
type Fact struct {
	At         Place      `json:"at"`
	Kind       string     `json:"kind"`
	Org        events.Org `json:"org,omitempty"`
	AmountNano int64      `json:"amount_nano,omitempty"` // of a credit
	Reference  string     `json:"reference,omitempty"`   // of a credit
	Version    int64      `json:"version,omitempty"`     // of a fence
	From       uint64     `json:"from,omitempty"`
	To         uint64     `json:"to,omitempty"`
}

// fact takes in a record that tells of no request.
func (g *Generations) fact(r *events.Record) {
	f := Fact{At: Place{g.log, r.Seq, r.Index, Instant(r.At)}}
	switch d := r.Data.(type) {
	case *events.Credit:
		f.Kind, f.Org, f.AmountNano, f.Reference = FactCredit, d.Org, d.AmountNano, d.Reference
	case *events.Fence:
		f.Kind, f.Org, f.Version = FactFence, d.Org, d.Version
	case *events.Recover:
		f.Kind, f.From, f.To = FactRecover, d.LostFrom, d.LostTo
	default:
		return
	}
	g.facts = append(g.facts, f)
}

// Gap notes that nothing of a stretch of the log was applied.
func (g *Generations) Gap(from, to uint64) {
	g.facts = append(g.facts, Fact{At: Place{Log: g.log, Seq: to, Time: Instant(g.now)}, Kind: FactGap, From: from, To: to})
}

// Facts gives the facts that were met since the last call.
func (g *Generations) Facts() []Fact {
	facts := g.facts
	g.facts = nil
	return facts
}

// Kept is what is kept of one log beyond a sequence.
type Kept struct {
	To    uint64 // the sequence up to which it tells; 0: nothing of this log is kept
	Facts []Fact // in the order of the log
}
