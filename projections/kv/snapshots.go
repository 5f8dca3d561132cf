package kv

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
)

const (
	// MaxSnapshot is how large a shared snapshot may be, in bytes. With two of each kind, what is shared never takes more than 1 GiB.
	MaxSnapshot = 256 << 20

	snapshotChunk = 512 << 10        // of one message; the broker takes 1 MiB
	chunkFor      = 10 * time.Second // one call
	fetchTries    = 5                // a replica of the bucket may not have the newest chunks yet
	fetchPause    = 200 * time.Millisecond
)

// snapshotSlots are the keys of the two snapshots of a kind, after its name. A new one goes in place of the older, so that a whole one is
// there at every instant.
var snapshotSlots = [...]string{"a", "b"}

// Snapshot says which snapshot is shared. It is written after all of the snapshot is there.
type Snapshot struct {
	Seq     uint64    `json:"seq"`              // the last sequence that it has seen
	Created time.Time `json:"created"`          // when the log's stream was made
	Ledger  string    `json:"ledger,omitempty"` // the ledger's id, as far as its maker knew
	Link    string    `json:"link,omitempty"`   // of the message at Seq (journal.Log.Link), if the log held it
	At      time.Time `json:"at"`               // when it was shared, by its maker's clock
	By      string    `json:"by"`               // its maker
	Size    int       `json:"size"`             // bytes
	Chunks  int       `json:"chunks"`
	SHA256  string    `json:"sha256"`

	slot     string
	revision uint64 // of this entry
}

// Connects proves that a log can be folded on from a snapshot: it is of this very log, and what comes after it is there. Where the log
// cannot tell, the ledger does, if both are known. The error says why it cannot be, after "the snapshot".
func (s *Snapshot) Connects(ctx context.Context, log *journal.Log, info journal.Info, ledger string) error {
	switch {
	case !s.Created.Equal(info.Created):
		return fmt.Errorf("is of a log made at %s, and this one was made at %s", instant(s.Created), instant(info.Created))
	case s.Seq+1 < info.First:
		return fmt.Errorf("ends too early: sequences %d to %d are gone", s.Seq+1, info.First-1)
	case s.Seq > info.Last:
		return fmt.Errorf("is of a longer log: this one ends at sequence %d", info.Last)
	}
	link, held, err := log.Link(ctx, s.Seq)
	switch {
	case err != nil:
		return fmt.Errorf("cannot be compared with the log: %w", err)
	case held && s.Link != "" && link.String() != s.Link:
		return errors.New("is of another log: another message stands there now")
	case (!held || s.Link == "") && s.Ledger != ledger && s.Ledger != "" && ledger != "":
		return fmt.Errorf("is of ledger %s, and this is ledger %s", s.Ledger, ledger)
	}
	return nil
}

func instant(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// SnapshotsConfig says whose snapshots they are.
type SnapshotsConfig struct {
	JetStream jetstream.JetStream
	Role      access.Role // whose they are: it begins their keys
	Replicas  int         // of the bucket if it is made; Defaults to 1
	Most      int         // bytes of one that is shared here; Defaults to MaxSnapshot
}

// Snapshots are the newest two snapshots of a projection, in a bucket: who begins on a log whose beginning is gone fetches one. One
// goroutine at a time may use it.
type Snapshots struct {
	cfg    SnapshotsConfig
	bucket jetstream.KeyValue
}

// NewSnapshots does no I/O.
func NewSnapshots(cfg SnapshotsConfig) *Snapshots {
	if cfg.Most == 0 {
		cfg.Most = MaxSnapshot
	}
	return &Snapshots{cfg: cfg}
}

// List gives those that are shared, the newest first. Without a bucket there are none.
func (s *Snapshots) List(ctx context.Context) ([]Snapshot, error) {
	if err := s.open(ctx); err != nil {
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			return nil, nil
		}
		return nil, fmt.Errorf("look for shared snapshots: %w", err)
	}
	var all []Snapshot
	for _, slot := range snapshotSlots {
		entry, err := s.get(ctx, s.key(slot))
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			continue
		}
		if err != nil {
			s.bucket = nil // made anew, perhaps
			return nil, fmt.Errorf("look for shared snapshots: %w", err)
		}
		found := Snapshot{}
		if json.Unmarshal(entry.Value(), &found) != nil {
			found = Snapshot{} // the oldest there can be: the next goes in its place
		}
		found.slot, found.revision = slot, entry.Revision()
		all = append(all, found)
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].At.After(all[j].At) })
	return all, nil
}

// Fetch gives the bytes of one of those that List gave. The error says what is wrong with them.
func (s *Snapshots) Fetch(ctx context.Context, want Snapshot) (b []byte, err error) {
	for tries := 1; ; tries++ {
		if b, err = s.fetch(ctx, want); err == nil || tries == fetchTries {
			return b, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(fetchPause):
		}
	}
}

func (s *Snapshots) fetch(ctx context.Context, want Snapshot) ([]byte, error) {
	if want.Size < 0 || want.Size > MaxSnapshot || want.Chunks != chunksOf(want.Size) {
		return nil, fmt.Errorf("it says that it has %d bytes in %d parts", want.Size, want.Chunks)
	}
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	b := make([]byte, 0, want.Size)
	for n := range want.Chunks {
		entry, err := s.get(ctx, s.chunk(want.slot, n))
		if err != nil {
			return nil, fmt.Errorf("its part %d of %d: %w", n+1, want.Chunks, err)
		}
		if b = append(b, entry.Value()...); len(b) > want.Size {
			return nil, errors.New("its parts are of different snapshots")
		}
	}
	if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != want.SHA256 {
		return nil, errors.New("its checksum is wrong")
	}
	return b, nil
}

// Share puts a snapshot in place of the older of the two that are shared. Size, Chunks and SHA256 of what it is are set here. The error is
// of the broker, says that it is too large, or that another process has shared one at the same time.
func (s *Snapshots) Share(ctx context.Context, what Snapshot, b []byte) error {
	if len(b) > s.cfg.Most {
		return fmt.Errorf("share a snapshot: it has %d bytes, and may have %d", len(b), s.cfg.Most)
	}
	if err := s.make(ctx); err != nil {
		return fmt.Errorf("share a snapshot: %w", err)
	}
	before, err := s.List(ctx)
	if err != nil {
		return err
	}
	old := Snapshot{slot: snapshotSlots[0]}
	switch len(before) {
	case 1:
		if before[0].slot == old.slot {
			old.slot = snapshotSlots[1]
		}
	case len(snapshotSlots):
		old = before[1]
	}
	sum := sha256.Sum256(b)
	what.Size, what.Chunks, what.SHA256 = len(b), chunksOf(len(b)), hex.EncodeToString(sum[:])
	for n := range what.Chunks {
		if err := s.put(ctx, s.chunk(old.slot, n), b[n*snapshotChunk:min((n+1)*snapshotChunk, len(b))]); err != nil {
			return fmt.Errorf("share a snapshot: %w", err)
		}
	}
	text, err := json.Marshal(what)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, chunkFor)
	defer cancel()
	if _, err = s.bucket.Update(ctx, s.key(old.slot), text, old.revision); err != nil {
		return fmt.Errorf("share a snapshot: %w", err)
	}
	for n := what.Chunks; n < min(old.Chunks, chunksOf(MaxSnapshot)); n++ { // of a larger one
		if err := s.bucket.Delete(ctx, s.chunk(old.slot, n)); err != nil {
			return fmt.Errorf("remove what is left of an older snapshot: %w", err)
		}
	}
	return nil
}

func (s *Snapshots) key(slot string) string { return string(s.cfg.Role) + "." + slot }

func (s *Snapshots) chunk(slot string, n int) string { return s.key(slot) + "." + strconv.Itoa(n) }

func chunksOf(size int) int { return (size + snapshotChunk - 1) / snapshotChunk }

func (s *Snapshots) get(ctx context.Context, key string) (jetstream.KeyValueEntry, error) {
	ctx, cancel := context.WithTimeout(ctx, chunkFor)
	defer cancel()
	return s.bucket.Get(ctx, key)
}

func (s *Snapshots) put(ctx context.Context, key string, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, chunkFor)
	defer cancel()
	_, err := s.bucket.Put(ctx, key, value)
	return err
}

func (s *Snapshots) open(ctx context.Context) (err error) {
	if s.bucket != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, chunkFor)
	defer cancel()
	s.bucket, err = s.cfg.JetStream.KeyValue(ctx, access.BucketSnapshots)
	if err != nil {
		s.bucket = nil // not what a failed call gives
	}
	return err
}

// make makes the bucket, or opens it. It has no bound of its own: a broker would keep room for all of it free, and its keys and their
// sizes are bounded.
func (s *Snapshots) make(ctx context.Context) error {
	err := s.open(ctx)
	if !errors.Is(err, jetstream.ErrBucketNotFound) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, chunkFor)
	defer cancel()
	s.bucket, err = s.cfg.JetStream.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: access.BucketSnapshots, Description: "Weir: snapshots, for who begins on a log whose beginning is gone", Replicas: max(1, s.cfg.Replicas),
	})
	if err != nil {
		s.bucket = nil
		if errors.Is(err, jetstream.ErrBucketExists) { // another role was first
			return s.open(ctx)
		}
	}
	return err
}
