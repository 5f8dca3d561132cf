package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/gateway/authority"
)

// anyRevision puts a key whatever it holds.
const anyRevision = math.MaxUint64

// put writes a key if its revision is still the expected one (0: it never was there), for a while or with 0 for good.
func (s *KV) put(ctx context.Context, key string, value []byte, expected uint64, ttl time.Duration) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	m := &nats.Msg{Subject: s.prefix + key, Data: value}
	var opts []jetstream.PublishOpt
	if expected != anyRevision {
		opts = append(opts, jetstream.WithExpectLastSequencePerSubject(expected))
	}
	if ttl > 0 {
		opts = append(opts, jetstream.WithMsgTTL(ttl))
	}
	ack, err := s.js.PublishMsg(ctx, m, opts...)
	if err == nil {
		return ack.Sequence, nil
	}
	doing := fmt.Sprintf("put %s", key)
	if wrongRevision(err) {
		return 0, &failure{err: fmt.Errorf("%s: another was first: %w", doing, err), conflict: true}
	}
	if _, refused := errors.AsType[*jetstream.APIError](err); refused {
		return 0, fmt.Errorf("%s: %w", doing, silent(err))
	}
	return 0, &failure{err: fmt.Errorf("%s: %w", doing, err), unavailable: true, unsure: true}
}

// wrongLastConstant is the other code by which the broker says that an expected sequence is not the last: on several servers, another
// write of the key is on its way.
const wrongLastConstant = 10164

// wrongRevision says whether another has written the key.
func wrongRevision(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == wrongLastConstant)
}

// silent marks err as the store's silence if it is.
func silent(err error) error {
	for _, is := range []error{
		context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, nats.ErrConnectionClosed, nats.ErrDisconnected, nats.ErrReconnectBufExceeded,
		nats.ErrConnectionReconnecting, nats.ErrConnectionDraining, jetstream.ErrNoStreamResponse, jetstream.ErrJetStreamNotEnabled,
		jetstream.ErrJetStreamNotEnabledForAccount,
	} {
		if errors.Is(err, is) {
			return &failure{err: err, unavailable: true}
		}
	}
	if api, ok := errors.AsType[*jetstream.APIError](err); ok && api.Code == 503 {
		return &failure{err: err, unavailable: true}
	}
	return err
}

// apply puts the records of a change that are not there yet. It may be done by several at once, and again.
func (s *KV) apply(ctx context.Context, n uint64, all []written) error {
	if len(all) <= 4 {
		for i := range all {
			if err := s.record(ctx, n, &all[i]); err != nil {
				return err
			}
		}
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for i := range all {
		group.Go(func() error { return s.record(ctx, n, &all[i]) })
	}
	return group.Wait()
}

// maxTries bounds how often a record is put anew because another was first: each time the other has put it.
const maxTries = 16

// record puts one record, unless it or a newer one is there.
func (s *KV) record(ctx context.Context, n uint64, w *written) error {
	value, err := json.Marshal(kept{n, w.Value})
	if err != nil {
		return err
	}
	var ttl time.Duration
	if w.Value == nil {
		ttl = goneFor
	}
	at := s.at(w.Key)
	for try := 0; at.n < n; try++ {
		revision, err := s.put(ctx, w.Key, value, at.revision, ttl)
		if err == nil {
			s.note(w.Key, place{revision, n})
			return nil
		}
		if !Conflict(err) || try == maxTries {
			return err
		}
		if at, err = s.look(ctx, w.Key); err != nil {
			return err
		}
	}
	return nil
}

// at is what is known of a record's place: not there, if nothing is.
func (s *KV) at(key string) place {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[key]
}

// note keeps a record's place.
func (s *KV) note(key string, at place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[key].revision < at.revision {
		s.known[key] = at
	}
}

func (s *KV) forget(key string) {
	s.mu.Lock()
	delete(s.known, key)
	s.mu.Unlock()
}

// look asks the bucket where a record stands, also one that was taken away.
func (s *KV) look(ctx context.Context, key string) (place, error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	stream, err := s.js.Stream(ctx, "KV_"+s.bucket.Bucket())
	if err != nil {
		return place{}, fmt.Errorf("look for %s: %w", key, silent(err))
	}
	m, err := stream.GetLastMsgForSubject(ctx, s.prefix+key)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		s.forget(key)
		return place{}, nil
	}
	if err != nil {
		return place{}, fmt.Errorf("look for %s: %w", key, silent(err))
	}
	at := place{revision: m.Sequence}
	var k kept
	if len(m.Data) > 0 && json.Unmarshal(m.Data, &k) == nil { // a marker of the broker's has no data, and no number
		at.n = k.N
	}
	s.note(key, at)
	return at, nil
}

// PutSession keeps a session for a while.
func (s *KV) PutSession(ctx context.Context, hash authority.Hash, session []byte, ttl time.Duration) error {
	if _, err := s.put(ctx, sessionKey(hash), session, anyRevision, max(ttl, time.Second)); err != nil {
		return fmt.Errorf("keep a session: %w", err)
	}
	return nil
}

// Session gives a session.
func (s *KV) Session(ctx context.Context, hash authority.Hash) (session []byte, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	entry, err := s.bucket.Get(ctx, sessionKey(hash))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read a session: %w", silent(err))
	}
	return entry.Value(), true, nil
}

// DropSession forgets a session.
func (s *KV) DropSession(ctx context.Context, hash authority.Hash) error {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	if err := s.bucket.Purge(ctx, sessionKey(hash), jetstream.PurgeTTL(time.Minute)); err != nil {
		return fmt.Errorf("forget a session: %w", silent(err))
	}
	return nil
}

func sessionKey(hash authority.Hash) string {
	text, _ := hash.MarshalText() // cannot fail
	return sessionPrefix + string(text)
}
