package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
)

// Bounds of questions for ids.
const (
	findIDs     = 256 // ids of one question
	findWaiting = 64  // questions that may wait for the one being answered
)

// Find looks for ids in the log after a sequence, as Log.LookFor does.
type Find func(ctx context.Context, after uint64, ids ...string) (map[string]uint64, error)

type question struct {
	After uint64   `json:"after"`
	IDs   []string `json:"ids"`
}

type answer struct {
	Found map[string]uint64 `json:"found,omitempty"`
	Error string            `json:"error,omitempty"`
}

// Ask makes a Find for roles that may not read the log: it asks whoever runs Answer on that subject.
func Ask(nc *nats.Conn, subject string) Find {
	return func(ctx context.Context, after uint64, ids ...string) (map[string]uint64, error) {
		found := make(map[string]uint64)
		for len(ids) > 0 {
			some := ids[:min(len(ids), findIDs)]
			ids = ids[len(some):]
			a, err := ask(ctx, nc, subject, question{After: after, IDs: some})
			if err != nil {
				return nil, fmt.Errorf("ask for %d ids after sequence %d: %w", len(some), after, err)
			}
			for id, seq := range a.Found {
				found[id] = seq
			}
		}
		return found, nil
	}
}

func ask(ctx context.Context, nc *nats.Conn, subject string, q question) (a answer, err error) {
	request, err := json.Marshal(q)
	if err != nil {
		return a, err
	}
	ctx, cancel := context.WithTimeout(ctx, RetryFor)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, subject, request)
	if err != nil {
		return a, unreachable(err)
	}
	if err := json.Unmarshal(m.Data, &a); err != nil {
		return a, err
	}
	if a.Error != "" {
		return a, &failure{err: errors.New(a.Error), unreachable: true}
	}
	return a, nil
}

// Answer answers the questions of Ask on a subject, one after the other, until ctx ends. Several processes may do so: each question
// is answered once.
func (l *Log) Answer(ctx context.Context, subject string) error {
	questions := make(chan *nats.Msg, findWaiting)
	sub, err := l.nc.ChanQueueSubscribe(subject, "journal", questions)
	if err != nil {
		return fmt.Errorf("answer on %s: %w", subject, unreachable(err))
	}
	defer func() { _ = sub.Unsubscribe() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-questions:
			text, err := json.Marshal(l.answer(ctx, m.Data))
			if err != nil {
				return fmt.Errorf("answer on %s: %w", subject, err)
			}
			_ = m.Respond(text) // who asked asks again
		}
	}
}

func (l *Log) answer(ctx context.Context, data []byte) answer {
	var q question
	if err := json.Unmarshal(data, &q); err != nil {
		return answer{Error: "unreadable question: " + err.Error()}
	}
	if len(q.IDs) > findIDs {
		return answer{Error: fmt.Sprintf("%d ids: more than %d", len(q.IDs), findIDs)}
	}
	found, err := l.LookFor(ctx, q.After, q.IDs...)
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Found: found}
}
