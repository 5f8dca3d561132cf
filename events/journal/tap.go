package journal

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/weirhq/weir/events"
)

// Bounds of a tap.
const (
	tapMessages  = 512                    // messages of one Next
	tapRecords   = 4096                   // records after which Next returns
	tapPull      = 1024                   // messages of one pull
	tapPullBytes = 8 << 20                // bytes of one pull
	tapPullFor   = 30 * time.Second       // life of one pull
	tapHeartbeat = 200 * time.Millisecond // sign of life of the consumer while the log is quiet
	tapStalled   = 700 * time.Millisecond // silence after which the consumer is given up: three heartbeats
	tapIdle      = time.Minute            // after which the broker forgets a consumer that nobody pulls from
	tapReadFor   = 250 * time.Millisecond // for the next message of a direct read
	tapGap       = 256                    // messages of a gap that are read directly; a larger one needs a new consumer

	// tapChannel is room for two pulls, their ends, heartbeats and answers.
	tapChannel = 2*tapPull + 512
)

// TapConfig says where a tap begins.
type TapConfig struct {
	// Name is who reads, for the consumer's name; a part that is unique is added. Defaults to "tap".
	Name string

	// From is the sequence to begin with: the one after the caller's position. Defaults to the first that the log holds.
	From uint64

	// Chain is the hash chain before From. Defaults to the zero chain.
	Chain Chain

	// Created is when the stream that From belongs to was made: a tap of another stream ends with *Replaced. Defaults to the stream
	// that is found first.
	Created time.Time
}

// Tap reads the log in order and without a gap. It belongs to one goroutine.
//
// It reads by a pull consumer of its own without acknowledgements; its position is its own. What the consumer leaves out is read by
// direct gets, and while the consumer is silent the log is read by direct gets until a new consumer answers.
type Tap struct {
	log    *Log
	config TapConfig
	stop   func() bool
	ended  <-chan struct{}

	sub   *nats.Subscription
	msgs  chan *nats.Msg
	inbox string
	reads *reader
	err   error // why it could not begin

	next     uint64 // the sequence to read next
	link     link
	created  time.Time
	replicas int
	pending  uint64
	records  []events.Record
	taken    int // messages of records
	timer    *time.Timer

	consumer  string // the consumer pulled from; empty while there is none
	wanted    string // the consumer being made
	asked     time.Time
	checked   bool // the stream's identity since the consumer was lost
	epoch     uint64
	remaining int // messages that pulls still ask for
	failures  int
	repairs   uint64
	odd       time.Time // since when the stream looks replaced
}

// Tap begins to read the log. It is closed when ctx ends, or by Close. What is wrong shows at the first Next.
func (l *Log) Tap(ctx context.Context, config TapConfig) *Tap {
	if config.Name == "" {
		config.Name = "tap"
	}
	t := &Tap{
		log:     l,
		config:  config,
		msgs:    make(chan *nats.Msg, tapChannel),
		inbox:   l.nc.NewInbox() + ".",
		next:    config.From,
		created: config.Created,
		timer:   stopped(),
		ended:   ctx.Done(),
	}
	t.link.chain = config.Chain
	if t.sub, t.err = l.nc.ChanSubscribe(t.inbox+"*", t.msgs); t.err != nil {
		t.err = fmt.Errorf("tap the log: %w", unreachable(t.err))
		return t
	}
	if t.reads, t.err = l.newReader(); t.err != nil {
		_ = t.sub.Unsubscribe()
		return t
	}
	t.reads.wait = tapReadFor
	t.stop = context.AfterFunc(ctx, t.unsubscribe)
	return t
}

// Close ends the tap.
func (t *Tap) Close() {
	if t.stop != nil && t.stop() {
		t.unsubscribe()
	}
	for _, name := range []string{t.consumer, t.wanted} {
		if name != "" {
			t.forget(name)
		}
	}
	t.consumer, t.wanted = "", ""
}

func (t *Tap) unsubscribe() {
	_ = t.sub.Unsubscribe()
	t.reads.close()
}

// Position gives the last sequence that Next returned, 0 before the first.
func (t *Tap) Position() uint64 { return max(t.next, 1) - 1 }

// Chain gives the hash chain after the last record that Next returned.
func (t *Tap) Chain() Chain { return t.link.chain }

// Created gives when the stream was made; zero before the first Next returned.
func (t *Tap) Created() time.Time { return t.created }

// Pending gives how many messages the log held beyond the last one, as far as the consumer said.
func (t *Tap) Pending() uint64 { return t.pending }

// Repairs gives how often the consumer was given up.
func (t *Tap) Repairs() uint64 { return t.repairs }

// Next waits for the next messages and gives their records: whole messages, in order, without a gap. The slice is reused by the next
// call; what the records point to is not. The error is ctx's, *Lost, *Replaced, or says that the connection has been closed; a log
// that is out of reach is waited for.
func (t *Tap) Next(ctx context.Context) ([]events.Record, error) {
	if t.err != nil {
		return nil, t.err
	}
	clear(t.records)
	t.records, t.taken = t.records[:0], 0
	err := t.drain(ctx)
	for err == nil && t.taken == 0 {
		if err = ctx.Err(); err != nil {
			break
		}
		if t.consumer == "" {
			err = t.repair(ctx)
		}
		if err == nil && t.taken == 0 {
			err = t.wait(ctx)
		}
		if err == nil {
			err = t.drain(ctx)
		}
	}
	if t.taken > 0 {
		return t.records, nil // what is wrong still is at the next call
	}
	return nil, err
}

// drain takes what is there, within the bounds of one Next.
func (t *Tap) drain(ctx context.Context) error {
	for t.taken < tapMessages && len(t.records) < tapRecords {
		select {
		case m := <-t.msgs:
			if err := t.take(ctx, m); err != nil {
				return err
			}
		default:
			return nil
		}
	}
	return nil
}

// wait waits for one message; silence of the consumer, or the pause of a repair, ends it too.
func (t *Tap) wait(ctx context.Context) error {
	patience := tapStalled
	if t.consumer == "" {
		patience = readPause
	}
	t.timer.Reset(patience)
	defer t.timer.Stop()
	select {
	case m := <-t.msgs:
		return t.take(ctx, m)
	case <-t.timer.C:
		if t.consumer != "" {
			t.abandon()
		}
		if t.log.nc.IsClosed() {
			return &failure{err: fmt.Errorf("tap the log at %d: %w", t.next, nats.ErrConnectionClosed), unreachable: true}
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-t.ended:
		return fmt.Errorf("tap the log at %d: %w", t.next, context.Canceled)
	}
}

// take takes in one message of the subscription.
func (t *Tap) take(ctx context.Context, m *nats.Msg) error {
	if !strings.HasPrefix(m.Reply, "$JS.ACK.") {
		if kind, ok := strings.CutPrefix(m.Subject, t.inbox); ok {
			t.told(kind, m)
		}
		return nil
	}
	meta, err := m.Metadata()
	if err != nil {
		t.abandon()
		return nil
	}
	t.remaining--
	seq := meta.Sequence.Stream
	if seq < t.next || seq > t.next && t.consumer == "" {
		return nil // read directly before, or will be
	}
	if seq > t.next {
		if ok, err := t.fill(ctx, seq); !ok {
			return err
		}
	}
	t.pending = meta.NumPending
	t.append(seq, m.Subject, m.Header, m.Data, meta.Timestamp.UnixNano())
	if t.consumer != "" && t.remaining < tapPull/2 {
		t.pull()
	}
	return nil
}

// append adds the records of the next message.
func (t *Tap) append(seq uint64, subject string, header nats.Header, data []byte, at int64) {
	t.records = appendRecords(t.records, subject, header, data, seq, at)
	t.link.add(seq, subject, first(header, headerMsgID), data)
	t.next = seq + 1
	t.taken++
	t.failures = 0
}

// told takes in what the broker says of a pull or of a consumer.
func (t *Tap) told(kind string, m *nats.Msg) {
	switch {
	case kind == "c"+t.wanted:
		t.made(m)
	case kind == "p"+strconv.FormatUint(t.epoch, 10):
		t.pulled(m)
	}
}

// pulled takes in the status of a pull.
func (t *Tap) pulled(m *nats.Msg) {
	switch first(m.Header, "Status") {
	case "100":
		if last, err := strconv.ParseUint(first(m.Header, headerLastStream), 10, 64); err == nil && last >= t.next {
			t.abandon() // what it delivered got lost with a connection
		}
	case "408", "409":
		if left, err := strconv.Atoi(first(m.Header, "Nats-Pending-Messages")); err == nil {
			t.remaining -= left // its time or its bytes are used up
			if t.remaining < tapPull/2 {
				t.pull()
			}
			return
		}
		t.abandon() // the consumer is gone, or has another leader
	default:
		t.abandon()
	}
}

// pull asks for more.
func (t *Tap) pull() {
	request := fmt.Sprintf(`{"batch":%d,"max_bytes":%d,"expires":%d,"idle_heartbeat":%d}`, tapPull, tapPullBytes, tapPullFor, tapHeartbeat)
	reply := t.inbox + "p" + strconv.FormatUint(t.epoch, 10)
	subject := "$JS.API.CONSUMER.MSG.NEXT." + t.log.config.Stream + "." + t.consumer
	if err := t.log.nc.PublishRequest(subject, reply, []byte(request)); err != nil {
		t.abandon()
		return
	}
	t.remaining = max(t.remaining, 0) + tapPull
}

func newConsumerName(name string) string { return name + "_" + nuid.Next() }
