package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/gateway/authority"
)

// The bucket is a redo log of one change and the records. The key "root" holds the newest change: its number and what it writes, in
// place or, where that is much, in chunks that were put before. Writing root, if it is still as it was read, commits the change. Its
// records are put afterwards, each under a key of its own and with the change's number, and are all there before root is written again:
// by whoever commits next, if not by who committed. A follower takes a change in when it sees root, and knows its records by their
// number when they come.
//
// What people sign in with has keys and chunks of its own, and is never in root: gateways that do not manage may not read it.
const (
	rootKey        = "root"
	recordPrefix   = "r."
	chunkPrefix    = "c."
	userPrefix     = "u."
	userPartPrefix = "uc."
	sessionPrefix  = "s."
)

// Bounds of the bucket.
const (
	maxInline = 256 << 10 // what a change may write in root itself
	chunkSize = 384 << 10 // of a chunk, below what a broker takes by default

	// maxBucket is what the bucket may take, and what the broker's disk must have left when it is made. 100,000 keys of 10,000 orgs, each with
	// all that a key can have, take 57 MB, and 46 MB more while all of them are made in one change: it is enough for five times as many.
	maxBucket = 512 << 20

	// goneFor is how long a record that was taken away leaves a mark, so that a writer that was stopped in between cannot bring it back.
	goneFor = time.Hour

	// callFor bounds one call of the broker when the caller's context does not end earlier.
	callFor = 3 * time.Second

	// workers is how many records of a large change are put at once.
	workers = 64
)

// KVConfig says where a KV keeps its records.
type KVConfig struct {
	// Bucket is the bucket's name. Defaults to authority.
	Bucket string

	// Create makes the bucket if there is none. Roles that may not make buckets leave it false. Defaults to false.
	Create bool

	// Replicas is how many servers hold a bucket that is made. Defaults to 1.
	Replicas int

	// Users says that the process manages: it commits changes, and Follow also gives it what people sign in with. Defaults to false.
	Users bool
}

// KV is a Backend and Sessions in a KV bucket.
type KV struct {
	js     jetstream.JetStream
	bucket jetstream.KeyValue
	prefix string // of the bucket's subjects
	users  bool

	mu    sync.Mutex
	known map[string]place // newest known of each record, to spare reading it before it is put
}

// place is where a record stands in the bucket.
type place struct {
	revision uint64
	n        uint64 // the change that wrote it
}

var (
	_ Backend  = (*KV)(nil)
	_ Sessions = (*KV)(nil)
)

// root is the value of the key root.
type root struct {
	N       uint64    `json:"n"`
	ID      string    `json:"id"`
	Writes  []written `json:"writes,omitempty"`
	Chunks  int       `json:"chunks,omitempty"`
	Users   int       `json:"users,omitempty"`   // chunks of what people sign in with
	Applied bool      `json:"applied,omitempty"` // the records are all there
}

// written is one write of a change.
type written struct {
	Key   string          `json:"k"`
	Value json.RawMessage `json:"v,omitempty"` // absent: taken away
}

// kept is the value of a record's key.
type kept struct {
	N     uint64          `json:"n"`
	Value json.RawMessage `json:"v,omitempty"` // absent: taken away
}

// OpenKV opens the bucket, or makes it if the configuration says so.
func OpenKV(ctx context.Context, nc *nats.Conn, config KVConfig) (*KV, error) {
	if config.Bucket == "" {
		config.Bucket = access.BucketAuthority
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", config.Bucket, err)
	}
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	bucket, err := js.KeyValue(ctx, config.Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) && config.Create {
		bucket, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: config.Bucket, Description: "Weir: orgs, keys, limits and pools made through the API", History: 1,
			MaxBytes: maxBucket, Storage: jetstream.FileStorage, Replicas: max(1, config.Replicas), LimitMarkerTTL: goneFor,
		})
		if errors.Is(err, jetstream.ErrBucketExists) { // another process was first
			bucket, err = js.KeyValue(ctx, config.Bucket)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", config.Bucket, silent(err))
	}
	return &KV{js: js, bucket: bucket, prefix: "$KV." + config.Bucket + ".", users: config.Users, known: map[string]place{}}, nil
}

// keyOf names a record's key: r.<org>.<kind>[.<id>], or u. and so on for a person.
func keyOf(ref authority.Ref) string {
	if ref.Kind == authority.KindUser {
		return userPrefix + nameOf(ref)
	}
	return recordPrefix + nameOf(ref)
}

// nameOf names a record: <org>.<kind>[.<id>], with bytes outside [A-Za-z0-9_-] escaped as in the names of meters.
func nameOf(ref authority.Ref) string {
	parts := []string{string(ref.Org), string(ref.Kind)}
	if ref.ID != "" {
		parts = append(parts, ref.ID)
	}
	return strings.Trim(string(events.NewMeter("", "", parts...)), "/")
}

// refOf reads a record's key.
func refOf(key string) (ref authority.Ref, ok bool) {
	for _, prefix := range []string{recordPrefix, userPrefix} {
		if name, is := strings.CutPrefix(key, prefix); is {
			return named(name)
		}
	}
	return ref, false
}

// named reads a record's name.
func named(name string) (ref authority.Ref, ok bool) {
	parts := events.Meter("/" + name + "/").Parts()
	if len(parts) < 2 || len(parts) > 3 {
		return ref, false
	}
	ref = authority.Ref{Org: events.Org(parts[0]), Kind: authority.Kind(parts[1])}
	if len(parts) == 3 {
		ref.ID = parts[2]
	}
	return ref, true
}

// Head is the newest change.
func (s *KV) Head(ctx context.Context) (Mark, error) {
	r, revision, err := s.root(ctx)
	return Mark{r.N, r.ID, revision}, err
}

// root reads the newest change; the zero root and revision before the first.
func (s *KV) root(ctx context.Context) (r root, revision uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	entry, err := s.bucket.Get(ctx, rootKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return root{}, 0, nil
	}
	if err != nil {
		return root{}, 0, fmt.Errorf("read the newest change: %w", silent(err))
	}
	if err := json.Unmarshal(entry.Value(), &r); err != nil {
		return root{}, 0, fmt.Errorf("read the newest change: %w", err)
	}
	return r, entry.Revision(), nil
}

// Commit makes a change after base.
func (s *KV) Commit(ctx context.Context, base Mark, id string, writes []Write, last func(context.Context) error) (Mark, error) {
	doing := fmt.Sprintf("commit change %d", base.N+1)
	next, all, err := s.prepare(ctx, base, id, writes)
	if err != nil {
		return Mark{}, fmt.Errorf("%s: %w", doing, err)
	}
	value, err := json.Marshal(next)
	if err != nil {
		return Mark{}, fmt.Errorf("%s: %w", doing, err)
	}
	if last != nil {
		if err := last(ctx); err != nil {
			return Mark{}, err
		}
	}
	committed, err := s.put(ctx, rootKey, value, base.Revision, 0)
	if err != nil {
		return Mark{}, fmt.Errorf("%s: %w", doing, err)
	}
	mark := Mark{next.N, id, committed}
	// From here on the change is made, whatever fails: what is not put now is put by who commits next.
	if s.apply(ctx, next.N, all) == nil && next.Chunks+next.Users > 0 {
		if applied, err := s.applied(ctx, next, committed); err == nil {
			mark.Revision = applied
		}
	}
	return mark, nil
}

// prepare finishes the change before and makes everything of the next one but root.
func (s *KV) prepare(ctx context.Context, base Mark, id string, writes []Write) (next *root, all []written, err error) {
	if err := fit(writes); err != nil {
		return nil, nil, err
	}
	last, revision, err := s.root(ctx)
	if err != nil {
		return nil, nil, err
	}
	if revision != base.Revision || last.N != base.N {
		return nil, nil, &failure{err: fmt.Errorf("change %d is there already", last.N), conflict: true}
	}
	if err := s.finish(ctx, &last); err != nil {
		return nil, nil, fmt.Errorf("finish change %d: %w", last.N, err)
	}
	next = &root{N: base.N + 1, ID: id}
	var open, users []written
	size := 0
	for _, w := range writes {
		one := written{keyOf(w.Ref), w.Value}
		if w.Ref.Kind == authority.KindUser {
			users = append(users, one)
			continue
		}
		open = append(open, one)
		size += len(one.Key) + len(w.Value) + 32
	}
	if next.Users, err = s.stage(ctx, userPartPrefix+id, users); err != nil {
		return nil, nil, err
	}
	if size <= maxInline {
		next.Writes = open
	} else if next.Chunks, err = s.stage(ctx, chunkPrefix+id, open); err != nil {
		return nil, nil, err
	}
	return next, append(open, users...), nil
}

// finish puts what the newest change wrote, if who committed it did not.
func (s *KV) finish(ctx context.Context, last *root) error {
	if last.N == 0 || last.Applied {
		return nil
	}
	all, err := s.writes(ctx, last, true)
	if err != nil {
		return err
	}
	return s.apply(ctx, last.N, all)
}

// writes are what a change wrote, with users or without.
func (s *KV) writes(ctx context.Context, r *root, users bool) ([]written, error) {
	all, err := s.staged(ctx, chunkPrefix+r.ID, r.Chunks)
	if err != nil {
		return nil, err
	}
	if users {
		more, err := s.staged(ctx, userPartPrefix+r.ID, r.Users)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return append(all, r.Writes...), nil
}

// staged reads the writes that were put in chunks.
func (s *KV) staged(ctx context.Context, at string, chunks int) (all []written, err error) {
	for i := range chunks {
		ctx, cancel := context.WithTimeout(ctx, callFor)
		entry, err := s.bucket.Get(ctx, chunkKey(at, i))
		cancel()
		if err != nil {
			return nil, fmt.Errorf("read chunk %d of %d: %w", i, chunks, silent(err))
		}
		var some []written
		if err := json.Unmarshal(entry.Value(), &some); err != nil {
			return nil, fmt.Errorf("read chunk %d of %d: %w", i, chunks, err)
		}
		all = append(all, some...)
	}
	return all, nil
}

func chunkKey(at string, i int) string { return fmt.Sprintf("%s.%d", at, i) }

// stage puts the writes of a change in chunks.
func (s *KV) stage(ctx context.Context, at string, all []written) (chunks int, err error) {
	for len(all) > 0 {
		n, size := 0, 0
		for n < len(all) && (n == 0 || size+len(all[n].Value) < chunkSize) {
			size += len(all[n].Key) + len(all[n].Value) + 32
			n++
		}
		value, err := json.Marshal(all[:n])
		if err != nil {
			return 0, err
		}
		if _, err := s.put(ctx, chunkKey(at, chunks), value, anyRevision, 0); err != nil {
			return 0, fmt.Errorf("put chunk %d: %w", chunks, err)
		}
		all = all[n:]
		chunks++
	}
	return chunks, nil
}

// sweepAge is how much older than a finished change's chunks others must be before they are no change's that is being made: well above
// what a change may take. Only the broker's own times are compared.
const sweepAge = 10 * time.Minute

// sweep takes away the chunks of a change that is finished, and those of changes that were never committed. What is left over now is
// swept the next time.
func (s *KV) sweep(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	watch, err := s.bucket.WatchFiltered(ctx, []string{chunkPrefix + ">", userPartPrefix + ">"}, jetstream.MetaOnly(), jetstream.IgnoreDeletes())
	if err != nil {
		return
	}
	defer func() { _ = watch.Stop() }() // it fails only when the connection has gone
	var finished time.Time
	var all []jetstream.KeyValueEntry
	for entry := range watch.Updates() {
		if entry == nil {
			break
		}
		all = append(all, entry)
		if of(entry.Key(), id) {
			finished = entry.Created()
		}
	}
	for _, entry := range all {
		if of(entry.Key(), id) || finished.Sub(entry.Created()) > sweepAge {
			_ = s.bucket.Purge(ctx, entry.Key(), jetstream.LastRevision(entry.Revision()), jetstream.PurgeTTL(time.Minute))
		}
	}
}

// of says whether a chunk is a change's.
func of(key, id string) bool {
	return strings.HasPrefix(key, chunkPrefix+id+".") || strings.HasPrefix(key, userPartPrefix+id+".")
}

// applied notes that the records of a large change are all there, and takes its chunks away.
func (s *KV) applied(ctx context.Context, r *root, revision uint64) (uint64, error) {
	value, err := json.Marshal(root{N: r.N, ID: r.ID, Applied: true})
	if err != nil {
		return 0, err
	}
	revision, err = s.put(ctx, rootKey, value, revision, 0)
	if err != nil {
		return 0, err
	}
	s.sweep(ctx, r.ID)
	return revision, nil
}
