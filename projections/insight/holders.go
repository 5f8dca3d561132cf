package insight

import (
	"sort"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
)

// maxHolders bounds the holders that are named one by one.
const maxHolders = 10

// Holder is who charged an amount to a meter: one request, or all of one key and model together.
type Holder struct {
	Request  string `json:"request,omitempty"`
	Org      string `json:"org,omitempty"`
	Key      string `json:"key,omitempty"`
	Model    string `json:"model,omitempty"`
	Gateway  string `json:"gateway,omitempty"`
	Since    string `json:"since,omitempty"` // when it was charged
	Requests int64  `json:"requests,omitempty"`
	Amount   int64  `json:"amount"`
}

// Holders says who makes up what a meter shows.
type Holders struct {
	Requests []Holder `json:"requests,omitempty"` // the largest, one by one
	Owners   []Holder `json:"owners,omitempty"`   // the largest by key and model, of all requests
	Count    int64    `json:"count"`              // requests in all
	Amount   int64    `json:"amount"`             // in all
	Rest     int64    `json:"rest,omitempty"`     // of the meter's use that is known to be nobody's: charged before the log was read from
}

// holders says who holds a meter now, but for one request. used is what the meter shows without that request.
func (l *ledger) holders(meter events.Meter, except events.RequestID, used int64) Holders {
	b := l.books[meter]
	if b == nil || b.kind == events.Pause || b.kind == events.Pace {
		return Holders{}
	}
	g := gathering{owners: map[owner]*tally{}, requests: map[events.RequestID]*Holder{}}
	now := l.fold.Now()
	if b.kind != events.Gauge && b.kind != events.Balance {
		if b.kind == events.Budget && b.period == b.periodAt(now) {
			for o, t := range b.settled {
				addTally(g.owners, o, t.amount, t.requests)
				g.count, g.amount = g.count+t.requests, g.amount+t.amount
			}
		}
		for _, p := range b.posts {
			if n := counting(p, now); n != 0 && p.account.id != except {
				g.add(p.account.id, p.account, n, p.at)
			}
		}
	}
	// The fold itself knows who holds gauges and money, and of the rest what was charged before the ledger began.
	l.fold.Holdings(meter, func(h admission.Holding) {
		a := l.accounts[h.Request]
		followed := b.kind != events.Gauge && b.kind != events.Balance && a != nil && a.admitted > 0
		if h.Request != except && !followed && b.kind != events.Bucket {
			g.add(h.Request, a, h.Amount, h.At)
		}
	})
	return g.sum(b.kind, used)
}

// gathering is what is found of a meter's holders.
type gathering struct {
	owners        map[owner]*tally
	requests      map[events.RequestID]*Holder
	count, amount int64
}

// add adds an amount of a request, whose account may be unknown.
func (g *gathering) add(id events.RequestID, a *account, n, at int64) {
	if a == nil {
		a = &account{}
	}
	h := g.requests[id]
	if h == nil {
		if at == 0 {
			at = a.since
		}
		h = &Holder{Request: string(id), Org: string(a.owner.org), Key: a.owner.key, Model: a.owner.model, Gateway: string(a.gateway), Since: stamp(at)}
		g.requests[id] = h
		g.count++
		addTally(g.owners, a.owner, 0, 1)
	}
	h.Amount += n
	g.amount += n
	addTally(g.owners, a.owner, n, 0)
}

// sum gives the largest of what was found.
func (g *gathering) sum(kind events.MeterKind, used int64) Holders {
	h := Holders{Count: g.count, Amount: g.amount}
	for _, r := range g.requests {
		h.Requests = append(h.Requests, *r)
	}
	for o, t := range g.owners {
		h.Owners = append(h.Owners, Holder{Org: string(o.org), Key: o.key, Model: o.model, Requests: t.requests, Amount: t.amount})
	}
	h.Requests, h.Owners = largest(h.Requests), largest(h.Owners)
	if kind != events.Bucket { // what a bucket has refilled is nobody's
		h.Rest = used - h.Amount
	}
	return h
}

func addTally(m map[owner]*tally, o owner, amount, requests int64) {
	t := m[o]
	if t == nil {
		t = &tally{}
		m[o] = t
	}
	t.amount += amount
	t.requests += requests
}

func largest(all []Holder) []Holder {
	sort.SliceStable(all, func(i, j int) bool {
		a, b := &all[i], &all[j]
		switch {
		case a.Amount != b.Amount:
			return a.Amount > b.Amount
		case a.Org != b.Org:
			return a.Org < b.Org
		case a.Key != b.Key:
			return a.Key < b.Key
		case a.Model != b.Model:
			return a.Model < b.Model
		}
		return a.Request < b.Request
	})
	return all[:min(len(all), maxHolders)]
}

// counting gives what a post makes of the use of its window, bucket or budget at an instant.
func counting(p *post, now int64) int64 {
	switch p.claim.Kind {
	case events.Window:
		if !liveWindow(p.claim, p.at, now) {
			return 0
		}
	case events.Bucket:
		if p.touched+minuteNS < now {
			return 0 // refilled since
		}
	case events.Budget:
		if p.closed || p.book.periodAt(p.at) != p.book.periodAt(now) {
			return 0
		}
	}
	return p.worthNow()
}

// liveWindow says whether what was charged to a window at an instant still counts.
func liveWindow(c *events.Claim, at, now int64) bool {
	size, n := secondNS, int64(60)
	if c.WindowMS == 1000 {
		size, n = 20*milli, 50
	}
	return now/size-at/size <= n
}

// periodAt gives the number of the budget's period that holds an instant.
func (b *book) periodAt(at int64) int64 {
	if b.calends == events.Month {
		t := time.Unix(0, at).UTC()
		return int64(t.Year())*12 + int64(t.Month())
	}
	return at / (24 * 60 * minuteNS)
}

// trim drops the posts of a book that count for nothing any more.
func (l *ledger) trim(b *book, now int64) {
	kept := b.posts[:0]
	for _, p := range b.posts {
		gone := false
		switch b.kind {
		case events.Window:
			gone = !liveWindow(p.claim, p.at, now)
		case events.Bucket:
			gone = p.touched+minuteNS < now && l.accounts[p.account.id] != p.account
		case events.Budget:
			gone = p.closed
		}
		if !gone {
			kept = append(kept, p)
		}
	}
	clear(b.posts[len(kept):])
	b.posts, b.trimAt = kept, 2*len(kept)+64
}

// noteEnds notes which requests have ended by themselves.
func (l *ledger) noteEnds(now int64) (running map[events.RequestID]bool) {
	running = map[events.RequestID]bool{}
	for _, g := range l.fold.Gateways() {
		for _, id := range l.fold.Live(g.Gateway) {
			running[id] = true
		}
	}
	for id, a := range l.accounts {
		if a.admitted > 0 && !a.ended && !running[id] {
			a.end(min(now, a.maxAt))
		}
	}
	return running
}

// sweep forgets, every five minutes, what can no longer change.
func (l *ledger) sweep(now int64) {
	at := now / sweepEvery * sweepEvery
	l.next = at + sweepEvery
	running := l.noteEnds(now)
	for id, a := range l.accounts {
		if !running[id] && a.idleSince > 0 && a.idleSince+forgetting <= at {
			delete(l.accounts, id)
			l.close(a)
		}
	}
	for _, b := range l.books {
		if b.kind == events.Budget {
			l.trim(b, now)
		}
	}
}

// close adds the budgets' posts of an account that nothing changes any more to its owner's.
func (l *ledger) close(a *account) {
	for _, p := range a.posts {
		b := p.book
		if b.kind != events.Budget {
			continue
		}
		period := b.periodAt(p.at)
		if period > b.period {
			b.period = period
			clear(b.settled)
		}
		o := a.owner
		if b.settled[o] == nil && len(b.settled) >= maxOwners {
			o = owner{}
		}
		if period == b.period {
			addTally(b.settled, o, p.worthNow(), 1)
		}
		p.closed = true
	}
}
