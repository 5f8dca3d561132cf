package journal

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
)

// RetryFor is how long a message is sent again under the same id before the log is searched for it. With an election and a search it
// stays within DuplicateWindow.
const RetryFor = 60 * time.Second

// How a message is tried.
const (
	ackFor    = time.Second           // how long to wait for an acknowledgement at first; doubled up to ackMost
	ackMost   = 4 * time.Second       // elections take 4 to 9 s
	pauseFor  = 25 * time.Millisecond // before sending again after a refusal; doubled up to pauseMost
	pauseMost = 400 * time.Millisecond
)

// Publish appends one event that is no gateway's and waits until the log has acknowledged it. It sends again under the same id until
// ctx ends, or RetryFor. It gives the event's sequence, also when the event was there already.
func (l *Log) Publish(ctx context.Context, ev events.Event) (uint64, error) {
	m, err := Encode(ev, "")
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, RetryFor)
	defer cancel()
	doing := "publish " + m.Subject
	maybe := false
	for wait, pause := ackFor, pauseFor; ; wait, pause = min(2*wait, ackMost), min(2*pause, pauseMost) {
		a, err := l.request(ctx, m, wait)
		switch {
		case err == nil && a.err == nil && !a.silent:
			return a.seq, nil
		case err == nil && a.err != nil && (a.err.final() || a.err.full()):
			return 0, a.failed(doing, maybe)
		case err == nil:
			maybe = maybe || (a.err != nil && !a.err.refused())
			err = a.failed(doing, maybe)
		default:
			maybe = maybe || !unsent(err)
			err = &failure{err: fmt.Errorf("%s: %w", doing, err), unreachable: true, maybe: maybe}
		}
		select {
		case <-ctx.Done():
			return 0, err
		case <-time.After(pause):
		}
	}
}

// errLate says that the time was over before anything was sent.
var errLate = errors.New("not sent")

// request sends a message once and waits for the answer.
func (l *Log) request(ctx context.Context, m *nats.Msg, wait time.Duration) (ack, error) {
	if err := ctx.Err(); err != nil {
		return ack{}, fmt.Errorf("%w: %w", errLate, err)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	answer, err := l.nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data})
	if errors.Is(err, nats.ErrNoResponders) {
		return ack{silent: true}, nil
	}
	if err != nil {
		return ack{}, err
	}
	return readAck(answer), nil
}

// unsent says whether err means that the message never left.
func unsent(err error) bool {
	return errors.Is(err, errLate) || errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrReconnectBufExceeded) ||
		errors.Is(err, nats.ErrConnectionDraining) || errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadSubject)
}

// AppendFenced appends one event on a literal subject if the last sequence of that subject is still expected (0: none yet). It is
// tried once: after any failure the caller cannot know that it is still the writer.
func (l *Log) AppendFenced(ctx context.Context, subject string, ev events.Event, expected uint64) (uint64, error) {
	m, err := Encode(ev, "")
	if err != nil {
		return 0, err
	}
	if m.Subject != subject {
		return 0, fmt.Errorf("append to %s: the event belongs under %s", subject, m.Subject)
	}
	m.Header[nats.ExpectedLastSubjSeqHdr] = []string{strconv.FormatUint(expected, 10)}
	doing := fmt.Sprintf("append to %s after sequence %d", subject, expected)
	a, err := l.request(ctx, m, callFor)
	if err != nil {
		return 0, &failure{err: fmt.Errorf("%s: %w", doing, err), unreachable: true, maybe: !unsent(err)}
	}
	if a.silent || a.err != nil {
		return 0, a.failed(doing, false)
	}
	return a.seq, nil
}

// Last asks the stream's leader for the last message of a literal subject. It gives its records and sequence; sequence 0 if there is
// none.
func (l *Log) Last(ctx context.Context, subject string) ([]events.Record, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	request, err := json.Marshal(map[string]string{"last_by_subj": subject})
	if err != nil {
		return nil, 0, err
	}
	doing := "ask for the last message of " + subject
	m, err := l.nc.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+l.config.Stream, request)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", doing, unreachable(err))
	}
	var answer struct {
		Error   *apiError
		Message *struct {
			Subject string
			Seq     uint64
			Hdrs    string
			Data    []byte
			Time    time.Time
		}
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", doing, err)
	}
	switch {
	case answer.Error != nil && answer.Error.ErrCode == codeNoMessage:
		return nil, 0, nil
	case answer.Error != nil:
		return nil, 0, &failure{err: fmt.Errorf("%s: %w", doing, answer.Error), unreachable: answer.Error.Code == 503}
	case answer.Message == nil:
		return nil, 0, fmt.Errorf("%s: an answer without a message", doing)
	}
	stored := answer.Message
	var header nats.Header
	if raw, err := base64.StdEncoding.DecodeString(stored.Hdrs); err == nil && len(raw) > 0 {
		header, _ = nats.DecodeHeadersMsg(raw) // a message whose headers cannot be read has a fault for want of them
	}
	return Decode(stored.Subject, header, stored.Data, stored.Seq, stored.Time.UnixNano()), stored.Seq, nil
}
