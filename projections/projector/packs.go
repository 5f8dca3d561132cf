package projector

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nuid"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
)

const (
	packEvery   = 20 * time.Millisecond
	packMost    = 256
	packFor     = 3 * time.Second // to append one; after that the writer cannot know that it still is
	packRetry   = time.Second     // after the log took none because it is full
	maxPending  = 1 << 16         // verdicts that wait for a writer
	digestsKept = 1 << 16         // sequences whose digest is kept; packs of verdicts follow within a second or so
	chainsKept  = 1 << 10         // batches whose chain is kept
)

var verdictsSubject = events.Subject{Org: events.Platform, Kind: events.KindVerdicts}.String()

// packs are the verdicts and lapses that are not in the log yet, and what is needed to check those that are.
type packs struct {
	pending []decided
	base    uint64 // how many verdicts came before pending[0]
	marks   []mark // ends of batches that decided something in pending
	from    uint64 // where the next pack's stretch begins

	digests []seqDigest // by sequence, modulo its length
	chains  []seqChain  // by place, modulo its length
	batches uint64
}

type mark struct {
	upTo   uint64 // how many verdicts had been decided at its end
	seq    uint64
	digest uint64
	chain  journal.Chain
}

type seqDigest struct{ seq, digest uint64 }

type seqChain struct {
	seq   uint64
	chain journal.Chain
}

func (p *packs) add(d decided) {
	p.pending = append(p.pending, d)
}

// ended takes in the end of a batch.
func (p *packs) ended(seq, digest uint64, chain journal.Chain) {
	if p.chains == nil {
		p.chains = make([]seqChain, chainsKept)
	}
	p.chains[p.batches%chainsKept] = seqChain{seq, chain}
	p.batches++
	upTo, marked := p.base+uint64(len(p.pending)), p.base
	if n := len(p.marks); n > 0 {
		marked = p.marks[n-1].upTo
	}
	if upTo > marked {
		p.marks = append(p.marks, mark{upTo, seq, digest, chain})
	}
}

// digest keeps the fold's digest after a message.
func (p *packs) digest(seq, digest uint64) {
	if p.digests == nil {
		p.digests = make([]seqDigest, digestsKept)
	}
	p.digests[seq%digestsKept] = seqDigest{seq, digest}
}

func (p *packs) digestAt(seq uint64) (string, bool) {
	if p.digests == nil || p.digests[seq%digestsKept].seq != seq {
		return "", false
	}
	return fmt.Sprintf("%016x", p.digests[seq%digestsKept].digest), true
}

func (p *packs) chainAt(seq uint64) (journal.Chain, bool) {
	for i := range p.chains {
		if p.chains[i].seq == seq && seq > 0 {
			return p.chains[i].chain, true
		}
	}
	return journal.Chain{}, false
}

// drop forgets the first n.
func (p *packs) drop(n int) {
	clear(p.pending[:n])
	p.pending = p.pending[n:]
	p.base += uint64(n)
	past := 0
	for past < len(p.marks) && p.marks[past].upTo <= p.base {
		past++
	}
	p.marks = append(p.marks[:0], p.marks[past:]...)
}

// written forgets what a pack in the log holds. It may be told more than once.
func (p *packs) written(d *events.Verdicts) {
	n := 0
	for n < len(p.pending) && p.pending[n].fell < d.ToSeq {
		n++
	}
	// A message may decide more than one pack holds: then the pack ends somewhere among its verdicts.
	for i := n; i < len(p.pending) && p.pending[i].fell == d.ToSeq; i++ {
		if p.pending[i].endsIn(d) {
			n = i + 1
		}
	}
	p.drop(n)
	p.from = d.ToSeq + 1
	if len(p.pending) > 0 && p.pending[0].fell == d.ToSeq {
		p.from = d.ToSeq
	}
}

// cut makes the next pack: whole batches, or a part of one that is too large. It returns up to which verdict.
func (p *packs) cut() (d *events.Verdicts, upTo uint64) {
	d = &events.Verdicts{FromSeq: p.from}
	n := 0
	for _, m := range p.marks {
		if m.upTo-p.base > packMost {
			break
		}
		n, d.ToSeq, d.StateHash, d.Chain = int(m.upTo-p.base), m.seq, fmt.Sprintf("%016x", m.digest), ""
		if m.chain != (journal.Chain{}) {
			d.Chain = m.chain.String()
		}
	}
	if n == 0 {
		n = packMost
		d.ToSeq = p.pending[n-1].fell
		d.StateHash, _ = p.digestAt(d.ToSeq)
	}
	d.Verdicts = make([]events.Verdict, 0, n)
	for i := range n {
		if p.pending[i].isLapse() {
			d.Lapses = append(d.Lapses, p.pending[i].lapse)
		} else {
			d.Verdicts = append(d.Verdicts, p.pending[i].verdict)
		}
	}
	return d, p.base + uint64(n)
}

// endsIn says whether it is the last verdict, or the last lapse, of a pack.
func (d *decided) endsIn(pack *events.Verdicts) bool {
	if d.isLapse() {
		n := len(pack.Lapses)
		return n > 0 && pack.Lapses[n-1] == d.lapse
	}
	n := len(pack.Verdicts)
	return n > 0 && pack.Verdicts[n-1].Request == d.verdict.Request && pack.Verdicts[n-1].Attempt == d.verdict.Attempt
}

// check compares a pack of verdicts in the log with what was folded here.
func (l *loop) check(d *events.Verdicts, seq uint64) {
	l.writer.follow(seq)
	why := ""
	digest, known := l.packs.digestAt(d.ToSeq)
	chain, chained := l.packs.chainAt(d.ToSeq)
	switch {
	case d.ToSeq >= seq:
		why = fmt.Sprintf("the verdicts at sequence %d claim to cover up to %d", seq, d.ToSeq)
	case known && d.StateHash != "" && d.StateHash != digest:
		why = fmt.Sprintf("the verdicts at sequence %d have state %s at %d, the fold here has %s", seq, d.StateHash, d.ToSeq, digest)
	case chained && d.Chain != "" && chain != (journal.Chain{}) && d.Chain != chain.String():
		why = fmt.Sprintf("the verdicts at sequence %d have another log up to %d: chain %s, here %s", seq, d.ToSeq, d.Chain, chain)
	case !known:
		l.stats.Unchecked++
	default:
		l.stats.Checked++
	}
	if why != "" {
		l.stats.Divergences++
		l.p.cfg.Logger.Error("projector: " + why)
		l.p.status.set(diverged, why)
		if l.borrowed && l.p.status.get(catching) != "" {
			l.failed = fmt.Errorf("the shared snapshot that it began from is not of this log: %s", why)
		}
		return
	}
	l.packs.written(d)
}

// packAt gives when the next pack is due; never while there is nothing to write, or while it may not be written.
func (l *loop) packAt() time.Time {
	if !l.writer.mayWrite(l.fold.Seq()) || len(l.packs.pending) == 0 || len(l.packs.marks) == 0 {
		return time.Time{}
	}
	full := len(l.packs.pending) >= packMost && !l.writer.waits
	if at := l.writer.packAt; !full && at.After(l.now) {
		return at
	}
	return l.now
}

// pack appends what was decided, if it is due.
func (l *loop) pack() {
	l.giveUp()
	at := l.packAt()
	if at.IsZero() || l.now.Before(at) {
		return
	}
	d, upTo := l.packs.cut()
	d.Rules = l.fold.Rules()
	ev := events.Event{ID: nuid.Next(), Source: l.p.cfg.Name, Org: events.Platform, Data: d}
	w := &l.writer
	w.inFlight, w.waits, w.packAt = true, false, l.now.Add(packEvery)
	term, expected := w.term, w.expected
	l.async(func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, packFor)
		defer cancel()
		seq, err := l.p.cfg.Log.AppendFenced(ctx, verdictsSubject, ev, expected)
		return func() { l.appended(term, d, upTo, seq, err) }
	})
}

// giveUp forgets verdicts that nobody wrote for too long.
func (l *loop) giveUp() {
	n := len(l.packs.pending) - maxPending
	if n < maxPending/4 || l.writer.inFlight { // many at once, as it is not cheap
		return
	}
	l.packs.drop(n)
	l.packs.from = l.packs.pending[0].fell
	l.stats.Unwritten += uint64(n)
}

// appended takes in what became of a pack.
func (l *loop) appended(term uint64, d *events.Verdicts, upTo, seq uint64, err error) {
	w := &l.writer
	w.inFlight = false
	if err == nil {
		l.stats.Packs++
		if l.packs.base < upTo { // the record may have been read before
			l.packs.written(d)
		}
		w.follow(seq)
		return
	}
	l.stats.PacksLost++
	if w.term != term || l.ctx.Err() != nil {
		return
	}
	if journal.Full(err) {
		w.waits, w.packAt = true, l.now.Add(packRetry)
		return
	}
	l.p.cfg.Logger.Warn("projector: no longer the writer", "error", err)
	l.resign()
}
