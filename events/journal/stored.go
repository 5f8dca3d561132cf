package journal

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// How other streams are read.
const (
	streamBatch = 256 // messages of one request
	streamBytes = 4 << 20
	streamWait  = 5 * time.Second // for the next message of an answer
	streamTries = 100             // a replica may lack what the leader holds
	streamPause = 50 * time.Millisecond
)

// Stored is a message of a stream.
type Stored struct {
	Seq     uint64
	At      time.Time
	Subject string
	Header  nats.Header
	Data    []byte
}

// ReadStream gives the messages of a stream from one sequence to another, of a subject if one is given, by direct gets, which every role
// that reads may do.
func ReadStream(ctx context.Context, nc *nats.Conn, stream, subject string, from, to uint64, each func(*Stored) error) error {
	inbox := nc.NewInbox()
	answers := make(chan *nats.Msg, streamBatch+16)
	sub, err := nc.ChanSubscribe(inbox+".*", answers)
	if err != nil {
		return fmt.Errorf("read %s: %w", stream, err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	calls, empty := 0, 0
	for next := from; next <= to; {
		calls++
		reply := inbox + "." + strconv.Itoa(calls)
		filter := ""
		if subject != "" {
			filter = fmt.Sprintf(`"next_by_subj":%q,`, subject)
		}
		request := fmt.Sprintf(`{%s"seq":%d,"batch":%d,"max_bytes":%d}`, filter, next, min(to-next+1, streamBatch), streamBytes)
		if err := nc.PublishRequest("$JS.API.DIRECT.GET."+stream, reply, []byte(request)); err != nil {
			return fmt.Errorf("read %s at %d: %w", stream, next, err)
		}
		before := next
		if next, err = takeAnswer(ctx, answers, reply, next, to, each); err != nil {
			return fmt.Errorf("read %s at %d: %w", stream, next, err)
		}
		if empty++; next > before {
			empty = 0
		}
		if empty >= streamTries || empty > 0 && subject != "" {
			return nil // what is left of the stretch is not there
		}
		if empty > 0 {
			select {
			case <-time.After(streamPause):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// takeAnswer takes the messages of one answer and gives the sequence to ask for next.
func takeAnswer(ctx context.Context, answers <-chan *nats.Msg, reply string, next, to uint64, each func(*Stored) error) (uint64, error) {
	timer := time.NewTimer(streamWait)
	defer timer.Stop()
	for {
		var m *nats.Msg
		select {
		case m = <-answers:
		case <-timer.C:
			return next, errors.New("no answer")
		case <-ctx.Done():
			return next, ctx.Err()
		}
		if m.Subject != reply {
			continue
		}
		if status := m.Header.Get("Status"); status != "" && len(m.Data) == 0 {
			if status != "204" && status != "404" {
				return next, fmt.Errorf("%s %s", status, m.Header.Get("Description"))
			}
			return next, nil
		}
		s := Stored{Subject: m.Header.Get(nats.JSSubject), Header: m.Header, Data: m.Data}
		var err error
		if s.Seq, err = strconv.ParseUint(m.Header.Get(nats.JSSequence), 10, 64); err == nil {
			s.At, err = time.Parse(time.RFC3339Nano, m.Header.Get(nats.JSTimeStamp))
		}
		if err != nil {
			return next, fmt.Errorf("an answer without its place: %w", err)
		}
		if s.Seq < next || s.Seq > to {
			continue
		}
		next = s.Seq + 1
		if err := each(&s); err != nil {
			return next, err
		}
		timer.Reset(streamWait)
	}
}
