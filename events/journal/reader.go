package journal

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
)

// errSilent says that no answer came in time.
var errSilent = errors.New("no answer")

// Bounds of direct reads.
const (
	readBatch    = 256                   // messages of one request
	readBytes    = 4 << 20               // bytes of one request
	readWait     = time.Second           // for the next message of an answer
	readTries    = 20                    // times that nothing comes of a request, and it is asked again: what waits for its disk answers late
	readPause    = 20 * time.Millisecond // before asking again for what a replica does not hold yet
	readPatience = 500                   // times that a replica may lack what the leader holds: 10 s
	readChannel  = readBatch + 16        // messages that may wait: an answer and its end
)

// raw is a stored message.
type raw struct {
	seq     uint64
	at      int64 // ns since 1970
	subject string
	header  nats.Header
	data    []byte
}

// reader reads the stream by direct gets from its own position. It belongs to one goroutine.
type reader struct {
	log   *Log
	sub   *nats.Subscription
	msgs  chan *nats.Msg
	inbox string
	calls uint64
	wait  time.Duration // for the next message of an answer
}

func (l *Log) newReader() (*reader, error) {
	r := &reader{log: l, msgs: make(chan *nats.Msg, readChannel), inbox: l.nc.NewInbox() + ".", wait: readWait}
	sub, err := l.nc.ChanSubscribe(r.inbox+"*", r.msgs)
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", unreachable(err))
	}
	r.sub = sub
	return r, nil
}

func (r *reader) close() { _ = r.sub.Unsubscribe() }

// batch reads up to readBatch messages at or after seq, oldest first, and gives them to each. It returns how many there were; none
// means that the replica which answered holds nothing there. What each returns ends the batch.
func (r *reader) batch(ctx context.Context, seq uint64, most int, each func(*raw) error) (n int, err error) {
	r.calls++
	reply := r.inbox + strconv.FormatUint(r.calls, 10)
	request := fmt.Sprintf(`{"seq":%d,"batch":%d,"max_bytes":%d}`, seq, min(most, readBatch), readBytes)
	if err := r.log.nc.PublishRequest("$JS.API.DIRECT.GET."+r.log.config.Stream, reply, []byte(request)); err != nil {
		return 0, fmt.Errorf("read the log at %d: %w", seq, unreachable(err))
	}
	timer := time.NewTimer(r.wait)
	defer timer.Stop()
	for {
		var m *nats.Msg
		select {
		case m = <-r.msgs:
		case <-timer.C:
			return n, &failure{err: fmt.Errorf("read the log at %d: %w", seq, errSilent), unreachable: true}
		case <-ctx.Done():
			return n, ctx.Err()
		}
		if m.Subject != reply { // of a call that was given up
			timer.Reset(r.wait)
			continue
		}
		if status := first(m.Header, "Status"); status != "" && len(m.Data) == 0 {
			return n, readEnd(seq, status, first(m.Header, "Description"))
		}
		msg, err := direct(m)
		if err != nil {
			return n, err
		}
		n++
		if err := each(&msg); err != nil {
			return n, err
		}
		timer.Reset(r.wait)
	}
}

// readEnd is what a status at the end of an answer means.
func readEnd(seq uint64, status, description string) error {
	switch status {
	case "204", "404":
		return nil
	case "408", "429", "503":
		return &failure{err: fmt.Errorf("read the log at %d: %s %s", seq, status, strings.ToLower(description)), unreachable: true}
	}
	return fmt.Errorf("read the log at %d: %s %s", seq, status, strings.ToLower(description))
}

// direct takes the answer of a direct get apart.
func direct(m *nats.Msg) (raw, error) {
	seq, err := strconv.ParseUint(first(m.Header, nats.JSSequence), 10, 64)
	if err != nil {
		return raw{}, fmt.Errorf("read the log: sequence of an answer: %w", err)
	}
	at, err := time.Parse(time.RFC3339Nano, first(m.Header, nats.JSTimeStamp))
	if err != nil {
		return raw{}, fmt.Errorf("read the log at %d: time of an answer: %w", seq, err)
	}
	return raw{seq: seq, at: at.UnixNano(), subject: first(m.Header, nats.JSSubject), header: m.Header, data: m.Data}, nil
}

// Read gives each record from sequence from to sequence to, in order, until the function returns an error, which Read returns. A from
// of 0 means the first that the log holds, a to of 0 the last at the time of the call. The error is *Lost if the log no longer holds
// what was asked for.
func (l *Log) Read(ctx context.Context, from, to uint64, each func(events.Record) error) error {
	var records []events.Record
	return l.scan(ctx, from, to, func(m *raw) error {
		records = appendRecords(records[:0], m.subject, m.header, m.data, m.seq, m.at)
		for i := range records {
			if err := each(records[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// scan gives each message from sequence from to sequence to, without a gap.
func (l *Log) scan(ctx context.Context, from, to uint64, each func(*raw) error) error {
	info, err := l.Info(ctx)
	if err != nil {
		return err
	}
	if from == 0 {
		from = info.First
	}
	if to == 0 || to > info.Last {
		to = info.Last
	}
	if from > to {
		return nil
	}
	r, err := l.newReader()
	if err != nil {
		return err
	}
	defer r.close()
	next, missed, silent := from, 0, 0
	for next <= to {
		before := next
		_, err := r.batch(ctx, next, int(min(to-next+1, readBatch)), func(m *raw) error {
			if m.seq > to {
				return errPast
			}
			if m.seq != next {
				return errHole
			}
			next++
			return each(m)
		})
		switch {
		case errors.Is(err, errPast):
			return nil
		case errors.Is(err, errSilent):
			if silent++; next > before {
				silent = 0
			}
			if silent == readTries || r.log.nc.IsClosed() {
				return err
			}
		case err != nil && !errors.Is(err, errHole):
			return err
		case next > before:
			missed, silent = 0, 0
		default:
			if err := l.hole(ctx, next, missed); err != nil {
				return err
			}
			missed++
		}
	}
	return nil
}

var (
	errHole = errors.New("hole in the log")
	errPast = errors.New("past the end")
)

// hole waits for a replica to catch up with a sequence that the leader may hold, or says that it is lost. Missed counts the times that
// it was missed before.
func (l *Log) hole(ctx context.Context, seq uint64, missed int) error {
	info, err := l.Info(ctx)
	if err != nil {
		return err
	}
	if info.First > seq {
		return &Lost{From: seq, First: info.First}
	}
	if seq <= info.Last && missed >= readPatience {
		return &Lost{From: seq, First: seq + 1}
	}
	select {
	case <-time.After(readPause):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// LookFor searches the log after sequence after for messages and events with the given ids, up to the last that its leader holds at
// the time of the call. It gives the sequences of those that are there. An event is found alone or in a pack.
func (l *Log) LookFor(ctx context.Context, after uint64, ids ...string) (map[string]uint64, error) {
	found := make(map[string]uint64)
	if len(ids) == 0 {
		return found, nil
	}
	wanted := make(map[string]bool, len(ids))
	for _, id := range ids {
		wanted[id] = true
	}
	info, err := l.Info(ctx)
	if err != nil {
		return nil, err
	}
	note := func(id string, seq uint64) {
		if _, twice := found[id]; wanted[id] && !twice {
			found[id] = seq
		}
	}
	err = l.scan(ctx, max(after+1, info.First), info.Last, func(m *raw) error {
		note(first(m.header, headerMsgID), m.seq)
		note(first(m.header, headerID), m.seq)
		if isPack(first(m.header, headerContent)) {
			evs, _ := events.DecodePack(m.data) // what cannot be read holds no event
			for i := range evs {
				note(evs[i].ID, m.seq)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for %d ids after sequence %d: %w", len(ids), after, err)
	}
	return found, nil
}
