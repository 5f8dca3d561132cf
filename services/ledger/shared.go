package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events/journal/access"
)

// Shared is where the mark is kept beside the authority, for all processes.
type Shared interface {
	// Mark is what is kept; known is false if nothing is.
	Mark(ctx context.Context) (m Mark, known bool, err error)
	// Keep puts a mark in place of an older one.
	Keep(ctx context.Context, m Mark) error
}

// key is the mark's in the authority's bucket.
const key = access.KeyLedger

// keepTries is how often a mark is put in place of another that has just changed.
const keepTries = 5

// KV keeps the mark in the authority's bucket. One goroutine at a time may use it.
type KV struct {
	js     jetstream.JetStream
	bucket jetstream.KeyValue // nil while it is not there
}

// NewKV is for the bucket of a connection's broker.
func NewKV(nc *nats.Conn) (*KV, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("open the ledger's bucket: %w", err)
	}
	return &KV{js: js}, nil
}

// Mark reads the mark. A bucket that is not there has none.
func (s *KV) Mark(ctx context.Context) (m Mark, known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	if s.bucket == nil {
		if s.bucket, err = s.js.KeyValue(ctx, access.BucketAuthority); err != nil {
			s.bucket = nil
			if errors.Is(err, jetstream.ErrBucketNotFound) {
				return m, false, nil
			}
			return m, false, err
		}
	}
	entry, err := s.bucket.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) || errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, nats.ErrNoResponders) {
		s.bucket = nil // made anew, perhaps
		return m, false, nil
	}
	if err != nil {
		return m, false, err
	}
	if err := json.Unmarshal(entry.Value(), &m); err != nil {
		return m, false, fmt.Errorf("read the ledger's mark in bucket %s: %w", access.BucketAuthority, err)
	}
	return m, true, nil
}

// Keep writes the mark unless a newer one is there, as Postgres does.
func (s *KV) Keep(ctx context.Context, m Mark) error {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	for tries := 1; ; tries++ {
		err := s.keep(ctx, m)
		if err == nil {
			return nil
		}
		if !errors.Is(err, jetstream.ErrKeyExists) || tries == keepTries { // or another process kept its own in between
			return fmt.Errorf("write the ledger's mark to bucket %s: %w", access.BucketAuthority, err)
		}
	}
}

func (s *KV) keep(ctx context.Context, m Mark) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	bucket, err := s.js.KeyValue(ctx, access.BucketAuthority)
	if err != nil {
		return err
	}
	entry, err := bucket.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		_, err = bucket.Create(ctx, key, text)
		return err
	}
	if err != nil {
		return err
	}
	var there Mark // of one that cannot be read nothing is newer
	err = json.Unmarshal(entry.Value(), &there)
	if err == nil && (there.Recovered.After(m.Recovered) || there.Recovered.Equal(m.Recovered) && there.Seq > m.Seq) {
		return nil
	}
	_, err = bucket.Update(ctx, key, text, entry.Revision())
	return err
}

// Postgres keeps the mark in a database. Several processes may.
type Postgres struct{ Pool *pgxpool.Pool }

// Mark reads the mark.
func (s Postgres) Mark(ctx context.Context) (m Mark, known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	var text string
	err = s.Pool.QueryRow(ctx, "SELECT mark::text FROM ledger").Scan(&text)
	if errors.Is(err, pgx.ErrNoRows) {
		return m, false, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &m)
	}
	if err != nil {
		return m, false, fmt.Errorf("read the ledger's mark in the database: %w", err)
	}
	return m, true, nil
}

// Keep writes the mark unless a newer one is there: one of a process that has read further, or an operator's word that this process has
// not heard yet.
func (s Postgres) Keep(ctx context.Context, m Mark) error {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = s.Pool.Exec(ctx, `INSERT INTO ledger (seq, recovered, mark) VALUES ($1, $2, $3::text::json)
		ON CONFLICT (one) DO UPDATE SET seq = excluded.seq, recovered = excluded.recovered, mark = excluded.mark
		WHERE ledger.recovered < excluded.recovered OR ledger.recovered = excluded.recovered AND ledger.seq <= excluded.seq`,
		int64(m.Seq), nanos(m.Recovered), string(text))
	if err != nil {
		return fmt.Errorf("write the ledger's mark to the database: %w", err)
	}
	return nil
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
