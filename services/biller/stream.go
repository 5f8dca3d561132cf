package biller

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/usage"
)

// Stream is the stream of lines, and SubjectPrefix begins its subjects: usage.<org>.
const (
	Stream        = access.StreamUsage
	SubjectPrefix = "usage."
)

// EventSource is the CloudEvents source of every line: ids are unique in it.
const EventSource = "weir/usage"

// The headers of a line that are no CloudEvents attributes.
const (
	headerLog      = "weir-log"      // when the log was made, RFC 3339
	headerPosition = "weir-position" // <sequence>.<number>: where in the log it fell
)

// Bounds of calls and writes.
const (
	callFor   = 5 * time.Second
	inFlight  = 256 // lines written at once
	readMost  = 500 // lines of one read
	clockSlip = 5 * time.Minute
)

// position is a line's place among all lines.
type position struct {
	Log time.Time `json:"log"` // when the log was made
	Seq uint64    `json:"seq"` // of the message with which it fell
	N   int       `json:"n"`   // which of that message's lines, from 0
}

func (p position) before(q position) bool {
	switch {
	case !p.Log.Equal(q.Log):
		return p.Log.Before(q.Log)
	case p.Seq != q.Seq:
		return p.Seq < q.Seq
	}
	return p.N < q.N
}

// line is a line with its place.
type line struct {
	At   position   `json:"at"`
	Line usage.Line `json:"line"`
}

// message makes a line's message: CloudEvents 1.0, NATS binding, binary mode.
func (l *line) message() *nats.Msg {
	id := l.Line.EventID()
	m := nats.NewMsg(SubjectPrefix + string(l.Line.Org))
	m.Data = l.Line.Encode()
	for name, value := range map[string]string{
		"ce-specversion": "1.0", "ce-id": id, "ce-type": usage.Type, "ce-source": EventSource, "ce-subject": string(l.Line.Org),
		"ce-time": instant(l.Line.Time), "content-type": "application/json",
		nats.MsgIdHdr: l.Line.ID + "." + strconv.FormatInt(l.Line.Revision, 10),
		headerLog:     l.At.Log.UTC().Format(time.RFC3339Nano), headerPosition: fmt.Sprintf("%d.%d", l.At.Seq, l.At.N),
	} {
		m.Header[name] = []string{value}
	}
	return m
}

func instant(i usage.Instant) string { return string(events.AppendTime(nil, int64(i))) }

// positionOf reads a message's place.
func positionOf(h nats.Header) (p position, err error) {
	first := func(name string) string {
		if v := h[name]; len(v) > 0 {
			return v[0]
		}
		return ""
	}
	if p.Log, err = time.Parse(time.RFC3339Nano, first(headerLog)); err != nil {
		return p, fmt.Errorf("header %s: %w", headerLog, err)
	}
	seq, n, _ := strings.Cut(first(headerPosition), ".")
	if p.Seq, err = strconv.ParseUint(seq, 10, 64); err != nil {
		return p, fmt.Errorf("header %s: %w", headerPosition, err)
	}
	if p.N, err = strconv.Atoi(n); err != nil {
		return p, fmt.Errorf("header %s: %w", headerPosition, err)
	}
	return p, nil
}

// stream is the stream of lines.
type stream struct {
	js jetstream.JetStream
}

func newStream(nc *nats.Conn) (*stream, error) {
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(2*inFlight), jetstream.WithPublishAsyncTimeout(callFor))
	if err != nil {
		return nil, fmt.Errorf("use JetStream: %w", err)
	}
	return &stream{js}, nil
}

// make makes the stream, or brings one that is there to what is asked for.
func (s *stream) make(ctx context.Context, cfg Config) error {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	_, err := s.js.CreateStream(ctx, jetstream.StreamConfig{
		Name:        Stream,
		Description: "Weir: billing lines, each attempt's usage once",
		Subjects:    []string{SubjectPrefix + ">"},
		MaxAge:      cfg.MaxAge,
		MaxBytes:    cfg.MaxBytes,
		Discard:     jetstream.DiscardNew,
		Storage:     jetstream.FileStorage,
		Compression: jetstream.S2Compression,
		Replicas:    cfg.Replicas,
		Duplicates:  2 * time.Minute,
		DenyDelete:  true,
		DenyPurge:   true,
		AllowDirect: true,
	})
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		err = s.adjust(ctx, cfg)
	}
	if err != nil {
		return fmt.Errorf("make the stream %s: %w", Stream, err)
	}
	return nil
}

func (s *stream) adjust(ctx context.Context, cfg Config) error {
	have, err := s.js.Stream(ctx, Stream)
	if err != nil {
		return err
	}
	want := have.CachedInfo().Config
	if want.MaxAge == cfg.MaxAge && want.MaxBytes == cfg.MaxBytes && want.Replicas == cfg.Replicas {
		return nil
	}
	want.MaxAge, want.MaxBytes, want.Replicas = cfg.MaxAge, cfg.MaxBytes, cfg.Replicas
	_, err = s.js.UpdateStream(ctx, want)
	return err
}

// end asks the stream's leader where it ends: its last sequence, and the place of the line there. Known is false if it holds no line now.
func (s *stream) end(ctx context.Context) (last uint64, at position, known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	found, err := s.js.Stream(ctx, Stream)
	if err != nil {
		return 0, position{}, false, fmt.Errorf("ask where %s ends: %w", Stream, err)
	}
	state := found.CachedInfo().State
	if state.Msgs == 0 {
		return state.LastSeq, position{}, false, nil
	}
	m, err := found.GetMsg(ctx, state.LastSeq)
	if err != nil {
		return 0, position{}, false, fmt.Errorf("read the last line of %s: %w", Stream, err)
	}
	at, err = positionOf(m.Header)
	if err != nil {
		return 0, position{}, false, fmt.Errorf("the last line of %s, sequence %d, is no biller's: %w", Stream, state.LastSeq, err)
	}
	return state.LastSeq, at, true, nil
}

// append writes lines after the sequence that the stream must end with, in order, and gives how many of them are in it and where it then
// ends. The error says why it is not all of them; what follows the first that failed is not in it, or not known to be.
func (s *stream) append(ctx context.Context, lines []line, end uint64) (n int, last uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*callFor)
	defer cancel()
	futures := make([]jetstream.PubAckFuture, 0, len(lines))
	for i := range lines {
		f, sendErr := s.js.PublishMsgAsync(lines[i].message(), jetstream.WithExpectLastSequence(end+uint64(i)))
		if sendErr != nil {
			err = sendErr
			break
		}
		futures = append(futures, f)
	}
	last = end
	for _, f := range futures {
		select {
		case ack := <-f.Ok():
			if ack.Duplicate || ack.Sequence != last+1 { // the stream moved on by other means: ask it anew
				return n, last, errMoved
			}
			n, last = n+1, ack.Sequence
		case failed := <-f.Err():
			return n, last, failed
		case <-ctx.Done():
			return n, last, ctx.Err()
		}
	}
	return n, last, err
}

var errMoved = errors.New("the stream has moved on")

// newest finds the line of the highest revision of an attempt; found is false if the stream holds none.
func (s *stream) newest(ctx context.Context, org events.Org, id events.RequestID, attempt int64) (newest usage.Line, found bool, err error) {
	err = s.lines(ctx, org, id, func(l *usage.Line) (enough bool) {
		if l.Attempt == attempt && (!found || l.ID != newest.ID || l.Revision > newest.Revision) {
			newest, found = *l, true
		}
		return false
	})
	return newest, found, err
}

// first finds the line that a correction corrects, as it was first written; found is false if the stream no longer holds it.
func (s *stream) first(ctx context.Context, correction *usage.Line) (first usage.Line, found bool, err error) {
	err = s.lines(ctx, correction.Org, correction.Request, func(l *usage.Line) (enough bool) {
		if l.ID == correction.ID && l.Revision == 0 {
			first, found = *l, true
		}
		return found
	})
	return first, found, err
}

// lines gives a request's lines in order, until each has enough.
func (s *stream) lines(ctx context.Context, org events.Org, id events.RequestID, each func(*usage.Line) (enough bool)) error {
	cfg := jetstream.ConsumerConfig{
		FilterSubject: SubjectPrefix + string(org), AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: time.Minute, MemoryStorage: true,
	}
	if made, ok := id.MadeAt(); ok {
		from := made.Add(-clockSlip)
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &from
	}
	calling, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	consumer, err := s.js.CreateConsumer(calling, Stream, cfg)
	if err != nil {
		return fmt.Errorf("look for the line of %s: %w", id, err)
	}
	defer func() { _ = s.js.DeleteConsumer(context.WithoutCancel(ctx), Stream, consumer.CachedInfo().Name) }() // otherwise it is dropped soon
	for left := consumer.CachedInfo().NumPending; left > 0; {
		batch, err := consumer.Fetch(int(min(left, readMost)), jetstream.FetchMaxWait(callFor))
		if err != nil {
			return fmt.Errorf("look for the line of %s: %w", id, err)
		}
		got, enough := uint64(0), false
		for m := range batch.Messages() {
			got++
			if l, err := usage.Decode(m.Data()); err == nil && l.Request == id && !enough {
				enough = each(&l)
			}
		}
		if enough {
			return nil
		}
		if got == 0 {
			return fmt.Errorf("look for the line of %s: %d lines were not given: %w", id, left, errors.Join(batch.Error(), ctx.Err()))
		}
		left -= min(left, got)
	}
	return nil
}

// isGone says whether an error means that there is no stream.
func isGone(err error) bool { return errors.Is(err, jetstream.ErrStreamNotFound) }
