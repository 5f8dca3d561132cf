package kv

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
)

// How the writer writes.
const (
	putsPerSecond = 2000
	putsAtOnce    = 200 // that may have been saved up
	maxInFlight   = 256
	putEvery      = time.Second          // a meter, unless it is urgent
	turnEvery     = 5 * time.Millisecond // while something waits
	idleTurn      = 50 * time.Millisecond
	heartbeatFor  = time.Second
	ackFor        = 5 * time.Second
	keysFor       = 10 * time.Second // to list what the buckets hold
	resting       = time.Hour        // the timer while the writer is not active
	maxStates     = 1 << 18          // meters known at a time; more are left to the log
	urgentHeat    = 10_000           // above every heat
)

// WriterConfig says where a writer puts meters.
type WriterConfig struct {
	Conn     *nats.Conn
	Name     string           // the process's, for the heartbeat
	Replicas int              // of the buckets if they are made; Defaults to 1
	Now      func() time.Time // only its differences count; Defaults to time.Now
	Logger   *slog.Logger     // Defaults to none
}

// Writer puts what meters show into their buckets while it is active. A meter that passes 80 % or 100 % of its last limit, either way, or
// whose waiters change in number, is put at once; any other change at most once a second. Its methods may be called at the same time.
type Writer struct {
	cfg  WriterConfig
	base time.Time
	js   jetstream.JetStream
	err  error
	log  *slog.Logger

	mu      sync.Mutex
	active  bool
	states  map[events.Meter]*state
	later   queue
	hot     queue
	tokens  int64 // thousandths of a put
	filled  int64 // when tokens were last counted, ns
	seq     uint64
	at      int64 // the fold's time
	beat    int64 // when the last heartbeat left, ns
	failing bool
	stats   WriterStats
	wake    chan struct{}

	// These belong to Run.
	inbox   string
	sends   uint64
	flights map[string]flight // by the subject of their answer
}

// flight is a put that is not acknowledged.
type flight struct {
	meter events.Meter
	sent  int64
}

// WriterStats is what a writer has done.
type WriterStats struct {
	Puts    uint64 // sent
	Failed  uint64 // of these, not acknowledged
	Deletes uint64
	Skipped uint64 // readings whose meter cannot be a key, or that are too many
	Known   int    // meters
	Waiting int    // of these, waiting to be put
}

// NewWriter makes a writer that is not active.
func NewWriter(cfg WriterConfig) *Writer {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	w := &Writer{
		cfg: cfg, base: cfg.Now(), log: cfg.Logger, states: make(map[events.Meter]*state), wake: make(chan struct{}, 1), flights: make(map[string]flight),
		later: queue{before: later}, hot: queue{before: hotter},
	}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	w.js, w.err = jetstream.New(cfg.Conn)
	return w
}

// Activate says whether what is put is written. A writer that becomes active knows nothing: the caller puts every meter.
func (w *Writer) Activate(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active = on
	clear(w.states)
	w.later.all, w.hot.all = nil, nil
	w.beat, w.failing = 0, on // the buckets are made, or looked for, before the first put
	w.signal()
}

// At tells the writer where the fold stands, for its heartbeat.
func (w *Writer) At(seq uint64, now int64) {
	w.mu.Lock()
	w.seq, w.at = seq, now
	w.mu.Unlock()
}

// Put takes what a meter shows at an instant of the fold's time. It does no I/O, and keeps the reading's Falls.
func (w *Writer) Put(r admission.Reading, seq uint64, now int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.active {
		return
	}
	w.seq, w.at = seq, now
	s := w.states[r.Meter]
	if s == nil {
		if !validKey(r.Meter) || len(w.states) >= maxStates {
			w.stats.Skipped++
			return
		}
		s = &state{meter: r.Meter}
		w.states[r.Meter] = s
	}
	s.entry, s.gone = entryOf(&r, seq, now), false
	w.changed(s)
}

// changed queues a meter whose entry has changed.
func (w *Writer) changed(s *state) {
	s.dirty = true
	level := s.entry.level()
	if level != s.level || s.entry.Waiting != s.queued {
		s.urgent = true
	}
	switch {
	case s.urgent:
		s.heat = urgentHeat + s.entry.heat()
		w.hot.move(s)
		w.signal()
	case s.in == &w.hot:
		s.heat = s.entry.heat()
		w.hot.move(s)
	default:
		s.due = w.now()
		if s.put {
			s.due = max(s.due, s.at+int64(putEvery))
		}
		w.later.move(s)
	}
}

// Forget has what the buckets hold of a meter deleted, as the fold does not know it.
func (w *Writer) Forget(m events.Meter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.active || !validKey(m) || w.states[m] != nil || len(w.states) >= maxStates {
		return
	}
	s := &state{meter: m, dirty: true, gone: true, due: w.now()}
	w.states[m] = s
	w.later.move(s)
}

// Keys lists the meters that the buckets hold; none if they cannot be read.
func (w *Writer) Keys(ctx context.Context) []events.Meter {
	ctx, cancel := context.WithTimeout(ctx, keysFor)
	defer cancel()
	var all []events.Meter
	for _, bucket := range views {
		kv, err := w.js.KeyValue(ctx, bucket)
		if err != nil {
			continue
		}
		keys, err := kv.ListKeys(ctx)
		if err != nil {
			continue
		}
		for key := range keys.Keys() {
			if key != heartbeatKey {
				all = append(all, events.Meter(key))
			}
		}
	}
	return all
}

// Stats says what the writer has done.
func (w *Writer) Stats() WriterStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stats
	s.Known, s.Waiting = len(w.states), w.hot.Len()
	return s
}

// Run writes until ctx ends.
func (w *Writer) Run(ctx context.Context) error {
	if w.err != nil {
		return w.err
	}
	w.inbox = w.cfg.Conn.NewInbox() + "."
	acks := make(chan *nats.Msg, 2*maxInFlight)
	sub, err := w.cfg.Conn.ChanSubscribe(w.inbox+"*", acks)
	if err != nil {
		return fmt.Errorf("write the meters: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // it fails only when the connection has gone
	timer := time.NewTimer(idleTurn)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-acks:
			w.answered(m)
			continue // whatever is due has its own wake or timer
		case <-w.wake:
		case <-timer.C:
		}
		w.turn(ctx)
		timer.Reset(w.rest())
	}
}

// turn does what is due.
func (w *Writer) turn(ctx context.Context) {
	if w.mustMake() {
		w.makeBuckets(ctx)
	}
	now := w.now()
	for reply, f := range w.flights {
		if now-f.sent > int64(ackFor) {
			delete(w.flights, reply)
			w.failed(f.meter, false)
		}
	}
	for _, p := range w.take(now) {
		w.send(p, now)
	}
}

// answered takes in the answer to a put.
func (w *Writer) answered(m *nats.Msg) {
	f, ok := w.flights[m.Subject]
	if !ok {
		return
	}
	delete(w.flights, m.Subject)
	if len(m.Data) == 0 { // nobody listens: there is no such bucket
		w.failed(f.meter, true)
	} else if bytes.Contains(m.Data, []byte(`"error"`)) {
		w.failed(f.meter, false)
	}
}

// put is a message to be sent.
type put struct {
	subject string
	meter   events.Meter
	data    []byte
	delete  bool
}

// take gives what is to be put now, within the rate.
func (w *Writer) take(now int64) (batch []put) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.active || w.failing {
		return batch
	}
	if w.beat == 0 || now-w.beat >= int64(heartbeatFor) {
		w.beat = now
		b, _ := json.Marshal(heartbeat{w.cfg.Name, w.at, w.seq}) // of plain fields: cannot fail
		for _, bucket := range views {
			batch = append(batch, put{subject: subjectOf(bucket, heartbeatKey), data: b})
		}
	}
	passed := min(max(0, now-w.filled), int64(time.Second))
	w.tokens = min(putsAtOnce*1000, w.tokens+passed*putsPerSecond/int64(time.Millisecond))
	w.filled = now
	for s := w.later.first(); s != nil && s.due <= now; s = w.later.first() {
		w.ripe(s, now)
	}
	free := maxInFlight - len(w.flights)
	for w.tokens >= 1000 && free > 0 && w.hot.Len() > 0 {
		s := w.hot.first()
		w.tokens -= 1000
		free--
		batch = w.appendPuts(batch, s)
		w.sent(s, now)
	}
	return batch
}

// appendPuts appends what is to be sent of a meter.
func (w *Writer) appendPuts(batch []put, s *state) []put {
	if !s.gone {
		return append(batch, put{subject: subjectOf(bucketOf(s.entry.Kind), s.meter), meter: s.meter, data: appendEntry(nil, &s.entry)})
	}
	for _, bucket := range views {
		batch = append(batch, put{subject: subjectOf(bucket, s.meter), meter: s.meter, delete: true})
	}
	return batch
}

// ripe moves a meter that is due to hot, if it has changed or still lasts; else it is forgotten, and so in time by its bucket.
func (w *Writer) ripe(s *state, now int64) {
	if !s.dirty && !s.entry.lasts(w.at) {
		s.leave()
		delete(w.states, s.meter)
		return
	}
	s.heat = s.entry.heat()
	w.hot.move(s)
}

// sent notes that a meter has been put.
func (w *Writer) sent(s *state, now int64) {
	if s.gone {
		w.stats.Deletes++
		s.leave()
		delete(w.states, s.meter)
		return
	}
	w.stats.Puts++
	s.dirty, s.urgent, s.put, s.at = false, false, true, now
	s.level, s.queued = s.entry.level(), s.entry.Waiting
	s.due = now + int64(refreshEvery)
	if !s.entry.lasts(w.at) {
		s.due = now + int64(putEvery) // kept only for its rate
	}
	w.later.move(s)
}

func (w *Writer) send(p put, now int64) {
	w.sends++
	m := &nats.Msg{Subject: p.subject, Data: p.data, Reply: w.inbox + strconv.FormatUint(w.sends, 36)}
	if p.delete {
		m.Header = nats.Header{"KV-Operation": []string{"DEL"}}
	}
	if err := w.cfg.Conn.PublishMsg(m); err != nil {
		w.failed(p.meter, false)
		return
	}
	w.flights[m.Reply] = flight{p.meter, now}
}

// failed queues a meter again whose put failed, for when it may be put next.
func (w *Writer) failed(m events.Meter, missing bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.Failed++
	w.failing = w.failing || missing
	if s := w.states[m]; s != nil && !s.dirty {
		s.dirty, s.due = true, s.at+int64(putEvery)
		w.later.move(s)
	}
}

func (w *Writer) mustMake() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.active && w.failing
}

// makeBuckets makes the buckets; every meter is then put, as the buckets may be new.
func (w *Writer) makeBuckets(ctx context.Context) {
	err := makeBuckets(ctx, w.js, max(1, w.cfg.Replicas))
	if err != nil && ctx.Err() == nil {
		w.log.Warn("kv: the meters cannot be shown", "error", err)
		select {
		case <-time.After(callFor):
		case <-ctx.Done():
		}
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failing = false
	for _, s := range w.states {
		s.dirty = true
		if s.in != &w.hot {
			s.due = w.now()
			w.later.move(s)
		}
	}
}

// rest gives how long nothing is to be done.
func (w *Writer) rest() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.active:
		return resting
	case w.hot.Len() > 0:
		return turnEvery
	}
	return idleTurn
}

// signal wakes Run.
func (w *Writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// now is the time since the writer was made, ns, and never 0.
func (w *Writer) now() int64 { return int64(w.cfg.Now().Sub(w.base)) + 1 }

const kvPrefix = "$KV."

func subjectOf(bucket string, m events.Meter) string { return kvPrefix + bucket + "." + string(m) }
