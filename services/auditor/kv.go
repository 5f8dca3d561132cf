package auditor

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/services/follow"
)

// Bounds of what is under way.
const (
	inFlight   = 256             // puts
	gets       = 32              // reads
	callFor    = 5 * time.Second // one call of the broker
	retryPause = 250 * time.Millisecond
)

// positionKey is the key of the position. No request's key begins with an underscore.
const positionKey = "_position"

// fact is a fact as it is kept, under a key of its own: where in which log.
type fact struct {
	Fact *generation.Fact `json:"fact"`
}

// factPrefix begins the keys of facts.
const factPrefix = "_fact."

func factKey(f *generation.Fact) string {
	return fmt.Sprintf(factPrefix+"%d.%d.%d.%s", f.At.Log, f.At.Seq, f.At.Index, f.Kind)
}

// position is how far the records in the bucket go.
type position struct {
	Seq     uint64    `json:"seq"`     // of the last message that they tell of
	Created time.Time `json:"created"` // when the log was made
	By      string    `json:"by"`
}

// kvStore keeps records in the bucket "generations", one key a request.
type kvStore struct {
	cfg    Config
	js     jetstream.JetStream
	warn   func(doing string, err error)
	stored generation.Place
}

func newKV(cfg Config, warn func(string, error)) (*kvStore, error) {
	js, err := jetstream.New(cfg.Conn, jetstream.WithPublishAsyncMaxPending(2*inFlight), jetstream.WithPublishAsyncTimeout(callFor))
	if err != nil {
		return nil, fmt.Errorf("use JetStream: %w", err)
	}
	return &kvStore{cfg: cfg, js: js, warn: warn}, nil
}

// Open makes the bucket and reads the position.
func (s *kvStore) Open(ctx context.Context) (generation.Place, error) {
	if err := s.make(ctx); err != nil {
		return generation.Place{}, err
	}
	p, err := s.position(ctx)
	s.stored = generation.Place{Seq: p.Seq}
	if !p.Created.IsZero() {
		s.stored.Log = generation.Instant(p.Created.UnixNano())
	}
	return s.stored, err
}

// Write writes records and facts and then, if it has moved, the position.
func (s *kvStore) Write(ctx context.Context, rows []generation.Row, facts []generation.Fact, to generation.Place) error {
	puts := make([]put, 0, len(rows)+len(facts))
	for i := range rows {
		puts = append(puts, put{generation.Key(rows[i].ID), rows[i].JSON})
	}
	for i := range facts {
		text, err := json.Marshal(fact{&facts[i]})
		if err != nil {
			return err
		}
		puts = append(puts, put{factKey(&facts[i]), text})
	}
	if err := s.putAll(ctx, puts); err != nil {
		return err
	}
	if to == s.stored {
		return nil
	}
	text, err := json.Marshal(position{Seq: to.Seq, Created: time.Unix(0, int64(to.Log)).UTC(), By: s.cfg.Name})
	if err != nil {
		return err
	}
	if err := s.putAll(ctx, []put{{positionKey, text}}); err != nil {
		return err
	}
	s.stored = to
	return nil
}

var generations = access.BucketStream(access.BucketGenerations)

func subjectOf(key string) string { return "$KV." + access.BucketGenerations + "." + key }

// make makes the bucket of records, or brings one that is there to what is asked for. It drops the oldest record when it is full, as no
// bucket does that is made as one: records must never keep the auditor from reading on.
func (s *kvStore) make(ctx context.Context) error {
	cfg := s.cfg
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	want := jetstream.StreamConfig{
		Name:              generations,
		Description:       "Weir: one record per request",
		Subjects:          []string{subjectOf(">")},
		MaxMsgsPerSubject: 1,
		MaxBytes:          cfg.MaxBytes,
		MaxAge:            cfg.TTL,
		Discard:           jetstream.DiscardOld,
		Storage:           jetstream.FileStorage,
		Replicas:          cfg.Replicas,
		AllowDirect:       true,
		AllowRollup:       true, // as buckets have it
		DenyDelete:        true,
		Duplicates:        2 * time.Minute,
	}
	if cfg.Replicas == 1 {
		want.PersistMode = jetstream.AsyncPersistMode // what a loss of power takes is read from the log again
	}
	if cfg.TTL < want.Duplicates {
		want.Duplicates = cfg.TTL
	}
	_, err := s.js.CreateStream(ctx, want)
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		err = s.adjust(ctx, cfg)
	}
	if err != nil {
		return fmt.Errorf("make the bucket %s: %w", access.BucketGenerations, err)
	}
	return nil
}

// adjust brings what an operator may change to what is asked for.
func (s *kvStore) adjust(ctx context.Context, cfg Config) error {
	stream, err := s.js.Stream(ctx, generations)
	if err != nil {
		return err
	}
	have := stream.CachedInfo().Config
	want := have
	want.MaxAge, want.MaxBytes, want.Replicas = cfg.TTL, cfg.MaxBytes, cfg.Replicas
	want.Duplicates, want.Compression = min(2*time.Minute, cfg.TTL), jetstream.NoCompression
	if want.MaxAge == have.MaxAge && want.MaxBytes == have.MaxBytes && want.Replicas == have.Replicas && want.Duplicates == have.Duplicates &&
		want.Compression == have.Compression {
		return nil
	}
	_, err = s.js.UpdateStream(ctx, want)
	return err
}

// put is one value for a key.
type put struct {
	key  string
	data []byte
}

// putAll writes values and returns when all have been acknowledged, or ctx's error. It tries again for as long as it takes.
func (s *kvStore) putAll(ctx context.Context, puts []put) error {
	for start := 0; start < len(puts); start += inFlight {
		left := puts[start:min(start+inFlight, len(puts))]
		for len(left) > 0 {
			failed, err := s.putSome(ctx, left)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if left = failed; len(left) == 0 {
				break
			}
			s.warn(fmt.Sprintf("write %d records", len(left)), err)
			if err := follow.Pause(ctx, retryPause); err != nil {
				return err
			}
		}
	}
	return nil
}

// putSome writes values at once and gives those that were not acknowledged, with the first reason.
func (s *kvStore) putSome(ctx context.Context, puts []put) (failed []put, reason error) {
	futures := make([]jetstream.PubAckFuture, len(puts))
	for i, p := range puts {
		var err error
		if futures[i], err = s.js.PublishAsync(subjectOf(p.key), p.data); err != nil {
			failed, reason = append(failed, puts[i:]...), err
			futures = futures[:i]
			break
		}
	}
	for i, future := range futures {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			failed = append(failed, puts[i])
			if reason == nil {
				reason = err
			}
		case <-ctx.Done():
			return failed, ctx.Err()
		}
	}
	return failed, reason
}

// get asks the stream's leader for the value of a key; nil if there is none. A replica may not know yet what was just written.
func (s *kvStore) get(ctx context.Context, key string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	request, err := json.Marshal(map[string]string{"last_by_subj": subjectOf(key)})
	if err != nil {
		return nil, err
	}
	m, err := s.cfg.Conn.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+generations, request)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Data string `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	switch {
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil, nil
	case answer.Error != nil:
		return nil, fmt.Errorf("read %s: %w", key, answer.Error)
	case answer.Message == nil:
		return nil, fmt.Errorf("read %s: an answer without a message", key)
	}
	return base64.StdEncoding.DecodeString(answer.Message.Data)
}

// Read reads the records of requests, those that there are.
func (s *kvStore) Read(ctx context.Context, ids []events.RequestID) ([][]byte, error) {
	texts := make([][]byte, len(ids))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(gets)
	for i, id := range ids {
		group.Go(func() (err error) {
			texts[i], err = s.get(ctx, generation.Key(id))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return texts, nil
}

// position reads how far the records go; zero if there are none.
func (s *kvStore) position(ctx context.Context) (position, error) {
	var p position
	text, err := s.get(ctx, positionKey)
	if err != nil || text == nil {
		return p, err
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return position{}, fmt.Errorf("read the position of the records: %w", err)
	}
	return p, nil
}
