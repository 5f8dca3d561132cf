package journal

import (
	"context"
	"sort"
	"sync"
	"time"

	"github.com/weirhq/weir/events"
)

// feedRecords bounds the records that a Feed keeps for followers. One that falls behind them reads the log by a tap of its own.
const feedRecords = 16_384

// Feed shares one reading of the log among several readers of a process: one leads, and reads by a tap; what it has read, the others
// follow without reading and decoding it again.
type Feed struct {
	log *Log

	mu      sync.Mutex
	kept    []stretch // consecutive stretches of the log, oldest first
	records int       // in kept
	more    chan struct{}
	readers int // followers
}

// stretch is what one Next of the leader gave.
type stretch struct {
	first, last uint64
	records     []events.Record
	chain       Chain
	created     time.Time
}

// NewFeed makes a feed of a log.
func NewFeed(l *Log) *Feed { return &Feed{log: l, more: make(chan struct{})} }

// Lead begins the reading that others follow. There is one leader at a time.
func (f *Feed) Lead(ctx context.Context, config TapConfig) *Leader {
	f.mu.Lock()
	f.kept, f.records = nil, 0
	f.mu.Unlock()
	return &Leader{Tap: f.log.Tap(ctx, config), feed: f}
}

// Leader is the tap that a feed's followers follow.
type Leader struct {
	*Tap
	feed *Feed
}

// Next is the tap's, and hands what it gives to the followers.
func (l *Leader) Next(ctx context.Context) ([]events.Record, error) {
	records, err := l.Tap.Next(ctx)
	if err == nil && len(records) > 0 {
		l.feed.put(records, l.Chain(), l.Created())
	}
	return records, err
}

func (f *Feed) put(records []events.Record, chain Chain, created time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers == 0 {
		f.kept, f.records = nil, 0
		return
	}
	s := stretch{records[0].Seq, records[len(records)-1].Seq, append([]events.Record(nil), records...), chain, created}
	f.kept = append(f.kept, s)
	f.records += len(records)
	for f.records > feedRecords && len(f.kept) > 1 {
		f.records -= len(f.kept[0].records)
		f.kept[0] = stretch{}
		f.kept = f.kept[1:]
	}
	close(f.more)
	f.more = make(chan struct{})
}

// Follow begins a reading that follows the leader's as soon as it has caught up with it.
func (f *Feed) Follow(ctx context.Context, config TapConfig) *Follower {
	f.mu.Lock()
	f.readers++
	f.mu.Unlock()
	return &Follower{feed: f, ctx: ctx, config: config, position: max(config.From, 1) - 1, chain: config.Chain, created: config.Created}
}

// Follower reads the log in order and without a gap, mostly what the leader has read. It belongs to one goroutine.
type Follower struct {
	feed     *Feed
	ctx      context.Context
	config   TapConfig
	tap      *Tap // while the leader's stretches do not reach back far enough
	position uint64
	chain    Chain
	created  time.Time
	closed   bool
}

// Next waits for the next messages, as a Tap does.
func (w *Follower) Next(ctx context.Context) ([]events.Record, error) {
	for {
		s, more, known := w.feed.after(w.position)
		switch {
		case known && s.last > 0:
			w.drop()
			w.position, w.chain, w.created = s.last, s.chain, s.created
			return s.records, nil
		case known: // caught up with the leader
			w.drop()
			select {
			case <-more:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		default:
			return w.own(ctx)
		}
	}
}

// own reads what the leader's stretches do not have.
func (w *Follower) own(ctx context.Context) ([]events.Record, error) {
	if w.tap == nil {
		w.tap = w.feed.log.Tap(w.ctx, TapConfig{Name: w.config.Name, From: w.position + 1, Chain: w.chain, Created: w.created})
	}
	records, err := w.tap.Next(ctx)
	if err == nil {
		w.position, w.chain, w.created = w.tap.Position(), w.tap.Chain(), w.tap.Created()
	}
	return records, err
}

func (w *Follower) drop() {
	if w.tap != nil {
		w.tap.Close()
		w.tap = nil
	}
}

// after gives the leader's records beyond a position. Known says whether the leader's stretches reach back to it; then an empty stretch
// means that there is nothing beyond it yet, and more is closed when there is.
func (f *Feed) after(position uint64) (s stretch, more <-chan struct{}, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.kept) == 0 || f.kept[0].first > position+1 || f.kept[len(f.kept)-1].last < position {
		return stretch{}, f.more, false
	}
	next := sort.Search(len(f.kept), func(i int) bool { return f.kept[i].last > position })
	if next == len(f.kept) {
		return stretch{}, f.more, true
	}
	s = f.kept[next]
	i := 0
	for i < len(s.records) && s.records[i].Seq <= position {
		i++
	}
	s.records = append([]events.Record(nil), s.records[i:]...)
	return s, f.more, true
}

// Chain gives the hash chain after the last record that Next returned.
func (w *Follower) Chain() Chain { return w.chain }

// Created gives when the stream was made.
func (w *Follower) Created() time.Time { return w.created }

// Position gives the last sequence that Next returned.
func (w *Follower) Position() uint64 { return w.position }

// Close ends the reading.
func (w *Follower) Close() {
	if w.closed {
		return
	}
	w.closed = true
	w.drop()
	w.feed.mu.Lock()
	w.feed.readers--
	w.feed.mu.Unlock()
}
