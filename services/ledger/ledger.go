// Package ledger knows which log is the right one. Of the log's identity (its ledger's id, and when its stream was made), its last known
// sequence, its hash chain there and what stands there, it keeps a mark on the disk, outside the broker's directory, and where the
// authority is kept: in its bucket, or in the database. A log that does not agree with every mark that can be found was replaced, emptied, restored or cut: then nothing is admitted until
// an operator has recovered it. Only where no mark is found anywhere, a new ledger begins.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events/journal"
)

// How the ledger is watched.
const (
	every     = time.Second     // between two looks at the log, and two marks
	readEvery = 5 * time.Second // between two looks at the shared mark
	oddFor    = 5 * time.Second // how long a log may seem to be behind, or gone: a new leader has not applied everything yet
	callFor   = 5 * time.Second
)

// Mark is what is known of the log up to a sequence.
type Mark struct {
	ID      string    `json:"id"`
	Created time.Time `json:"created"` // when its stream was made
	Seq     uint64    `json:"seq"`
	Chain   string    `json:"chain,omitempty"` // at Seq; empty where the log is not read
	Tail    string    `json:"tail,omitempty"`  // digest of the message at Seq; likewise
	At      time.Time `json:"at"`              // when it was written

	// Recovered is when an operator said that this log is to be gone on with, whatever the marks before said.
	Recovered time.Time `json:"recovered,omitzero"`
	Reason    string    `json:"reason,omitempty"`

	// Gateways is how many serve. In the shared mark alone.
	Gateways int64 `json:"gateways,omitempty"`
}

// Config says whose ledger it is.
type Config struct {
	Dir  string // data_dir/ledger
	Log  *journal.Log
	Conn *nats.Conn

	// Reads says that the process reads the log, so that it can compare what stands at a mark.
	Reads bool

	// Shared is where the mark is kept for all processes.
	Shared Shared

	// Writes says that this process keeps the shared mark. Defaults to false: it only reads it.
	Writes bool

	// Behind is how far a mark stays behind what was read, so that a power failure within the log's sync interval does not look like a log
	// that was cut. 0 where every message is forced to the disk.
	Behind time.Duration

	// Gateways counts those that serve; nil if the process does not know, 0 while it does not.
	Gateways func() int64

	Now    func() time.Time
	Logger *slog.Logger
}

// Ledger watches one process's log. Its methods may be called at the same time.
type Ledger struct {
	c Config

	mu      sync.Mutex
	mark    Mark
	saved   Mark
	seen    []position // that are to become the mark
	halted  string
	checked uint64 // reconnections of the connection when the log last agreed
	agreed  bool   // it did
	odd     time.Time
	readAt  time.Time
	shared  Mark // as last read or written
	known   bool // there is a shared mark
	onward  []func()
	onHalt  []func()
}

// position is where the log was read to at an instant.
type position struct {
	at          time.Time
	seq         uint64
	chain, tail string
}

// Open compares the log with every mark that can be found. A log that does not agree is no error: Why says so. The error says what could
// not be read.
func Open(ctx context.Context, c Config) (*Ledger, error) {
	l := &Ledger{c: c}
	own, found, err := Read(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("open the ledger: %w", err)
	}
	l.mark, l.saved = own, own
	if l.halted, err = readHalt(c.Dir); err != nil {
		return nil, fmt.Errorf("open the ledger: %w", err)
	}
	if err := l.share(ctx); err != nil {
		return nil, fmt.Errorf("open the ledger: %w", err)
	}
	shared, known := l.shared, l.known
	info, err := c.Log.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the ledger: %w", err)
	}
	reconnects := l.reconnects()
	switch {
	case known && l.accepts(&shared, info):
		if err := l.adopt(shared); err != nil {
			return nil, fmt.Errorf("open the ledger: %w", err)
		}
		l.agree(reconnects)
		return l, nil
	case l.halted != "":
		c.Logger.Error("the ledger: " + l.halted)
		return l, nil
	}
	marks := []Mark{}
	if found {
		marks = append(marks, own)
	}
	if known {
		marks = append(marks, shared)
	}
	for _, m := range marks {
		why, err := l.disagrees(ctx, &m, info)
		if err != nil {
			return nil, fmt.Errorf("open the ledger: %w", err)
		}
		if why != "" {
			return l, l.Halt(why)
		}
	}
	if err := l.begin(marks, info); err != nil {
		return nil, fmt.Errorf("open the ledger: %w", err)
	}
	l.agree(reconnects)
	return l, nil
}

// begin takes up the newest of the marks, or begins a ledger where there is none.
func (l *Ledger) begin(marks []Mark, info journal.Info) error {
	m := Mark{ID: uuid.NewString(), Created: info.Created}
	if len(marks) == 0 && (l.c.Reads || l.c.Writes) {
		l.c.Logger.Info("no mark was found anywhere: a new ledger begins", "ledger", m.ID, "created", info.Created)
	}
	for _, other := range marks {
		if other.Seq >= m.Seq {
			m = other
		}
	}
	l.mark = m
	return l.save()
}

// Why says why nothing may be admitted; empty: it may.
func (l *Ledger) Why() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.halted == "" {
		return ""
	}
	return l.halted + ": admission is stopped until weir recover"
}

// Trusted says whether the log agreed with the mark since the connection was last made.
func (l *Ledger) Trusted() bool {
	n := l.reconnects()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.halted == "" && l.agreed && l.checked == n
}

// Mark is the newest mark.
func (l *Ledger) Mark() Mark {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mark
}

// Gateways is how many serve, as far as is known; at least 1.
func (l *Ledger) Gateways() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.shared.Gateways, 1)
}

// OnRecovered adds what is called, from Run, when an operator has recovered the log and this process goes on with it. It must not block.
func (l *Ledger) OnRecovered(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.onward = append(l.onward, f)
}

// OnHalted adds what is called when admission stops from here on. It must not block.
func (l *Ledger) OnHalted(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.onHalt = append(l.onHalt, f)
}

// Halt stops admission until the log is recovered, also over restarts. The first reason stays.
func (l *Ledger) Halt(why string) error {
	l.mu.Lock()
	first := l.halted == ""
	if first {
		l.halted = why
	}
	called := l.onHalt
	l.mu.Unlock()
	if !first {
		return nil
	}
	for _, f := range called {
		f()
	}
	l.c.Logger.Error("the log is not the one that was used before: admission stops until weir recover", "why", why)
	return writeHalt(l.c.Dir, why, l.c.Now())
}

// Note takes in how far the log was read.
func (l *Ledger) Note(seq uint64, chain, tail string) {
	now := l.c.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.seen); n > 0 && now.Sub(l.seen[n-1].at) < every {
		l.seen[n-1] = position{l.seen[n-1].at, seq, chain, tail}
		return
	}
	l.seen = append(l.seen, position{now, seq, chain, tail})
}

func (l *Ledger) reconnects() uint64 { return l.c.Conn.Stats().Reconnects }

func (l *Ledger) agree(reconnects uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.checked, l.agreed, l.odd = reconnects, true, time.Time{}
}

// Run looks at the log and keeps the mark until ctx ends. A shared mark that is slow or away holds nothing up.
func (l *Ledger) Run(ctx context.Context) error {
	connected := l.c.Conn.StatusChanged(nats.CONNECTED)
	defer l.c.Conn.RemoveStatusListener(connected)
	var sharing sync.WaitGroup
	sharing.Go(func() { l.shares(ctx) })
	defer sharing.Wait()
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		if err := l.compare(ctx); err != nil && ctx.Err() == nil {
			l.c.Logger.Warn("the ledger's mark could not be kept", "error", err)
		}
		select {
		case <-ctx.Done():
			return l.save()
		case <-connected:
		case <-t.C:
		}
	}
}

// shares reads the shared mark and keeps it until ctx ends.
func (l *Ledger) shares(ctx context.Context) {
	t := time.NewTicker(every)
	defer t.Stop()
	failed := false
	for {
		err := errors.Join(l.reread(ctx), l.tell(ctx))
		if err != nil && !failed && ctx.Err() == nil { // once: it fails again each second
			l.c.Logger.Warn("the ledger's shared mark cannot be read or kept now", "error", err)
		}
		failed = err != nil
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// reread reads the shared mark if that is due, or waited for.
func (l *Ledger) reread(ctx context.Context) error {
	now := l.c.Now()
	l.mu.Lock()
	due := now.Sub(l.readAt) >= readEvery || l.halted != ""
	l.mu.Unlock()
	if !due {
		return nil
	}
	return l.share(ctx)
}

// compare compares the log with the mark once, and keeps the mark on the disk.
func (l *Ledger) compare(ctx context.Context) error {
	reconnects := l.reconnects()
	info, err := l.c.Log.Info(ctx)
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil // out of reach, which is no disagreement
	}
	l.mu.Lock()
	shared, known := l.shared, l.known
	l.mu.Unlock()
	if known && l.accepts(&shared, info) {
		return l.recovered(shared, reconnects)
	}
	if l.Why() != "" {
		return nil
	}
	m := l.Mark()
	why, err := l.disagrees(ctx, &m, info)
	switch {
	case err != nil:
		return nil //nolint:nilerr // out of reach
	case why == "":
		l.agree(reconnects)
	case (info.Created.Equal(m.Created) || info.Created.IsZero()) && !l.oddLongEnough():
		return nil
	default:
		return l.Halt(why)
	}
	return l.save()
}

// recovered goes on with a log that an operator has recovered.
func (l *Ledger) recovered(shared Mark, reconnects uint64) error {
	if err := l.adopt(shared); err != nil {
		return err
	}
	l.agree(reconnects)
	l.mu.Lock()
	onward := l.onward
	l.mu.Unlock()
	l.c.Logger.Warn("the log was recovered: admission goes on", "ledger", shared.ID, "reason", shared.Reason)
	for _, f := range onward {
		f()
	}
	return nil
}

func (l *Ledger) oddLongEnough() bool {
	now := l.c.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.odd.IsZero() {
		l.odd = now
	}
	return now.Sub(l.odd) >= oddFor
}

// accepts says whether the shared mark is an operator's word, newer than this process's mark, that this very log is to be
// gone on with.
func (l *Ledger) accepts(shared *Mark, info journal.Info) bool {
	m := l.Mark()
	return !shared.Recovered.IsZero() && shared.Recovered.After(m.At) && shared.Recovered.After(m.Recovered) &&
		shared.Created.Equal(info.Created) && info.Last >= shared.Seq && m.ID != ""
}

// adopt makes another mark this process's own.
func (l *Ledger) adopt(m Mark) error {
	m.Gateways = 0
	l.mu.Lock()
	l.mark, l.halted, l.seen, l.odd = m, "", nil, time.Time{}
	l.mu.Unlock()
	if err := removeHalt(l.c.Dir); err != nil {
		return err
	}
	return l.save()
}

// disagrees says how the log differs from a mark; empty: it does not. The error says that the log could not be asked.
func (l *Ledger) disagrees(ctx context.Context, m *Mark, info journal.Info) (string, error) {
	if m.ID == "" {
		return "", nil
	}
	if why := Compare(m, info); why != "" || !l.c.Reads || m.Tail == "" || m.Seq < info.First || m.Seq == 0 {
		return why, nil
	}
	l.mu.Lock()
	same := l.agreed && l.saved.Seq == m.Seq && l.saved.Tail == m.Tail
	l.mu.Unlock()
	if same {
		return "", nil // it was compared when it was written, or at the start
	}
	tail, err := tailAt(ctx, l.c.Log, m.Seq)
	if err != nil {
		return "", err
	}
	if tail != m.Tail {
		return fmt.Sprintf("the log was swapped: another message than before stands at sequence %d", m.Seq), nil
	}
	return "", nil
}

// Compare says how a log differs from a mark, by its identity and its length alone; empty: it does not.
func Compare(m *Mark, info journal.Info) string {
	at := func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
	switch {
	case info.Created.IsZero():
		return "the log is gone: there is no stream"
	case !info.Created.Equal(m.Created):
		return fmt.Sprintf("the log was replaced: it was made at %s, the one that was used before at %s", at(info.Created), at(m.Created))
	case info.Last < m.Seq:
		return fmt.Sprintf("the log is behind: it ends at sequence %d, and %d was used", info.Last, m.Seq)
	}
	return ""
}

// advance makes the newest position that is old enough the mark. It says whether the mark is newer than the one on the disk.
func (l *Ledger) advance() (m Mark, newer bool) {
	now := l.c.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for n < len(l.seen) && now.Sub(l.seen[n].at) >= l.c.Behind {
		n++
	}
	if l.halted == "" && n > 0 {
		p := l.seen[n-1]
		l.seen = append(l.seen[:0], l.seen[n:]...)
		if p.seq > l.mark.Seq {
			l.mark.Seq, l.mark.Chain, l.mark.Tail = p.seq, p.chain, p.tail
		}
	}
	if l.halted == "" {
		l.mark.At = now
	}
	return l.mark, l.mark.ID != l.saved.ID || l.mark.Seq != l.saved.Seq || !l.mark.Recovered.Equal(l.saved.Recovered)
}

// save writes the mark to the disk if it has moved.
func (l *Ledger) save() error {
	m, newer := l.advance()
	if !newer {
		return nil
	}
	if err := write(l.c.Dir, m); err != nil {
		return err
	}
	l.mu.Lock()
	l.saved = m
	l.mu.Unlock()
	return nil
}

// share reads the shared mark.
func (l *Ledger) share(ctx context.Context) error {
	m, known, err := l.c.Shared.Mark(ctx)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.shared, l.known, l.readAt = m, known, l.c.Now()
	l.mu.Unlock()
	return nil
}

// tell keeps the shared mark, while admission is not stopped.
func (l *Ledger) tell(ctx context.Context) error {
	if !l.c.Writes || l.Why() != "" {
		return nil
	}
	m := l.Mark()
	if l.c.Gateways != nil {
		m.Gateways = l.c.Gateways()
	}
	l.mu.Lock()
	if m.Gateways == 0 {
		m.Gateways = l.shared.Gateways // what is not known changes nothing
	}
	same := l.known && l.shared.ID == m.ID && l.shared.Seq == m.Seq && l.shared.Gateways == m.Gateways && l.shared.Recovered.Equal(m.Recovered)
	l.mu.Unlock()
	if same {
		return nil
	}
	if err := l.c.Shared.Keep(ctx, m); err != nil {
		return err
	}
	l.mu.Lock()
	l.shared, l.known = m, true
	l.mu.Unlock()
	return nil
}
