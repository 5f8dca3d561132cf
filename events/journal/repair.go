package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// How a tap is repaired.
const (
	createFor    = 3 * time.Second // how long to wait for a consumer before another is asked for
	replacedTime = 5 * time.Second // how long a stream must look replaced: a new leader may not have applied everything yet
	checkFor     = time.Second     // for the stream's state
)

// abandon gives the consumer up. What it still delivers is taken if it is next.
func (t *Tap) abandon() {
	if t.consumer != "" {
		t.forget(t.consumer)
		t.repairs++
	}
	t.consumer, t.checked = "", false
	t.epoch++
}

// repair reads directly what is there, once the stream has shown that it is the one that was read, and asks for a consumer.
func (t *Tap) repair(ctx context.Context) error {
	if !t.checked {
		if ok, err := t.check(ctx); !ok {
			return err
		}
		t.checked = true
	}
	if now := time.Now(); t.wanted == "" || now.Sub(t.asked) > createFor {
		t.create(now)
		t.checked = false // again before it is read from for long
	}
	return t.poll(ctx)
}

// check asks for the stream's state. It says no while there is none, and returns *Replaced or *Lost.
func (t *Tap) check(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, checkFor)
	defer cancel()
	info, err := t.log.Info(ctx)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound) && !t.created.IsZero():
		return false, t.replaced(Info{})
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return false, fmt.Errorf("tap the log: %w", err)
	case err != nil:
		return false, nil // asked again after a pause
	}
	if t.created.IsZero() {
		t.created = info.Created
	}
	if t.next == 0 {
		t.next = info.First
	}
	if !info.Created.Equal(t.created) || info.Last+1 < t.next {
		return false, t.replaced(info)
	}
	t.odd, t.replicas = time.Time{}, info.Replicas
	if info.First > t.next {
		return false, &Lost{From: t.next, First: info.First}
	}
	return true, nil
}

// replaced says that the stream is another or behind, once it has been so for long enough.
func (t *Tap) replaced(info Info) error {
	if t.odd.IsZero() {
		t.odd = time.Now()
	}
	other := !info.Created.IsZero() && !info.Created.Equal(t.created)
	if !other && time.Since(t.odd) < replacedTime {
		return nil
	}
	return &Replaced{Position: t.Position(), Last: info.Last, Created: info.Created, Expected: t.created}
}

// create asks for a new consumer from the next sequence on. The answer comes by the subscription. Its name is new each time, so that
// it is not placed where the last one was.
func (t *Tap) create(now time.Time) {
	if t.wanted != "" {
		t.forget(t.wanted)
	}
	t.wanted, t.asked = newConsumerName(t.config.Name), now
	request, err := json.Marshal(map[string]any{
		"stream_name": t.log.config.Stream,
		"action":      "create",
		"config": jetstream.ConsumerConfig{
			Name:              t.wanted,
			DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
			OptStartSeq:       t.next,
			AckPolicy:         jetstream.AckNonePolicy,
			ReplayPolicy:      jetstream.ReplayInstantPolicy,
			InactiveThreshold: tapIdle,
			MemoryStorage:     true,
			Replicas:          t.replicas, // as many as the log: it outlives a server, as one of a single replica would not
		},
	})
	if err == nil {
		err = t.log.nc.PublishRequest("$JS.API.CONSUMER.CREATE."+t.log.config.Stream+"."+t.wanted, t.inbox+"c"+t.wanted, request)
	}
	if err != nil {
		t.wanted = ""
	}
}

// made takes in the answer to the request for a consumer.
func (t *Tap) made(m *nats.Msg) {
	var answer struct {
		Error *apiError `json:"error"`
		Name  string    `json:"name"`
	}
	name := t.wanted
	if err := json.Unmarshal(m.Data, &answer); err != nil || answer.Error != nil || answer.Name != name {
		// Asked again after createFor: at once would only load a broker that is in trouble.
		t.checked = false
		return
	}
	t.wanted = ""
	t.epoch++
	t.consumer, t.remaining = name, 0
	t.pull()
}

// forget has the broker drop a consumer. It would do so by itself after tapIdle.
func (t *Tap) forget(name string) {
	_ = t.log.nc.Publish("$JS.API.CONSUMER.DELETE."+t.log.config.Stream+"."+name, nil)
}

// poll reads directly what is there.
func (t *Tap) poll(ctx context.Context) error {
	_, err := t.reads.batch(ctx, t.next, readBatch, func(m *raw) error {
		if m.seq != t.next {
			return errHole
		}
		t.append(m.seq, m.subject, m.header, m.data, m.at)
		return nil
	})
	switch {
	case errors.Is(err, errHole) && t.taken == 0:
		return t.missing(ctx)
	case Unreachable(err):
		t.checked = false
		return nil
	case errors.Is(err, errHole):
		return nil
	}
	return err
}

// fill reads directly what the consumer left out before sequence to. It says no when it could not: then the consumer is given up and
// the rest is read from the tap's own position.
func (t *Tap) fill(ctx context.Context, to uint64) (bool, error) {
	if to-t.next > tapGap {
		t.abandon()
		return false, nil
	}
	_, err := t.reads.batch(ctx, t.next, int(to-t.next), func(m *raw) error {
		if m.seq != t.next || m.seq >= to {
			return errHole
		}
		t.append(m.seq, m.subject, m.header, m.data, m.at)
		return nil
	})
	if t.next == to {
		return true, nil
	}
	t.abandon()
	if err != nil && !errors.Is(err, errHole) && !Unreachable(err) {
		return false, err
	}
	return false, nil
}

// missing decides what a hole in the log is: what a replica does not hold yet, or lost.
func (t *Tap) missing(ctx context.Context) error {
	t.checked = false
	t.failures++
	if ok, err := t.check(ctx); !ok {
		return err
	}
	if t.failures > readPatience {
		return &Lost{From: t.next, First: t.next + 1}
	}
	return nil
}
