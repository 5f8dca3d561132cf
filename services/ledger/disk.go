package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
)

// The files of a ledger's directory.
const (
	markFile = "mark.json"
	haltFile = "halted.json"
)

// sealed is a mark with its digest, so that one that was damaged is not taken for one.
type sealed struct {
	Mark json.RawMessage `json:"mark"`
	Sum  string          `json:"sha256"`
}

// Read reads the mark of a directory. The error says what is wrong with it: a mark that cannot be read is not taken for none.
func Read(dir string) (m Mark, found bool, err error) {
	path := filepath.Join(dir, markFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return m, false, nil
	}
	if err != nil {
		return m, false, fmt.Errorf("read the ledger's mark: %w", err)
	}
	var s sealed
	if err := json.Unmarshal(b, &s); err != nil {
		return m, false, fmt.Errorf("read the ledger's mark %s: %w", path, err)
	}
	if digest(s.Mark) != s.Sum {
		return m, false, fmt.Errorf("read the ledger's mark %s: its digest is wrong", path)
	}
	if err := json.Unmarshal(s.Mark, &m); err != nil {
		return m, false, fmt.Errorf("read the ledger's mark %s: %w", path, err)
	}
	return m, true, nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// write puts a mark on the disk: the old one stays whole until the new one is.
func write(dir string, m Mark) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	b, err := json.Marshal(sealed{text, digest(text)})
	if err != nil {
		return err
	}
	if err := replace(dir, markFile, b); err != nil {
		return fmt.Errorf("write the ledger's mark: %w", err)
	}
	return nil
}

// replace writes a file whole and durably, or not at all.
func replace(dir, name string, b []byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".writing-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// halt is why admission was stopped.
type halt struct {
	Why string    `json:"why"`
	At  time.Time `json:"at"`
}

func readHalt(dir string) (why string, err error) {
	b, err := os.ReadFile(filepath.Join(dir, haltFile))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var h halt
	if err := json.Unmarshal(b, &h); err != nil || h.Why == "" {
		return "the log was not the right one", nil //nolint:nilerr // that admission was stopped is what counts
	}
	return h.Why, nil
}

func writeHalt(dir, why string, now time.Time) error {
	b, err := json.Marshal(halt{why, now})
	if err != nil {
		return err
	}
	if err := replace(dir, haltFile, b); err != nil {
		return fmt.Errorf("note that admission is stopped: %w", err)
	}
	return nil
}

func removeHalt(dir string) error {
	err := os.Remove(filepath.Join(dir, haltFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Replace makes a mark the one of a directory, and lets admission go on: what an operator's recovery ends with.
func Replace(dir string, m Mark) error {
	return errors.Join(write(dir, m), removeHalt(dir))
}

// Tail is the digest of a message, by the last of its records.
func Tail(r *events.Record) string {
	return digest([]byte(strconv.FormatUint(r.Seq, 10) + "|" + strconv.FormatInt(r.At, 10) + "|" + r.ID + "|" + events.TypeOf(r.Data)))
}

// tailAt reads the message at a sequence.
func tailAt(ctx context.Context, log *journal.Log, seq uint64) (tail string, err error) {
	err = log.Read(ctx, seq, seq, func(r events.Record) error {
		tail = Tail(&r)
		return nil
	})
	if lost, ok := errors.AsType[*journal.Lost](err); ok {
		return lost.Error(), nil // a hole is another message, too
	}
	return tail, err
}
