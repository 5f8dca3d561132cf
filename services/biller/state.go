package biller

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/usage"
)

// Folder is where a biller keeps its state and dead letters, in the data directory.
const Folder = folder

const (
	folder       = "biller"
	snapshotName = "usage.snapshot"
	magic        = "WEIRUSE1"

	dailyPattern = "usage-????-??-??.snapshot"
	dailyKept    = 35 // more than the log keeps by default
)

// state is what a biller knows after a prefix of the log.
type state struct {
	usage   *usage.Usage
	created time.Time     // of the log
	applied uint64        // the last sequence taken; 0 before the first
	fell    int           // how many lines fell with it
	pending []line        // not known to be in the stream, in order
	written position      // the last line known to be in it
	chain   journal.Chain // of the log, after applied; zero if the source does not say
}

func newState() *state { return &state{usage: usage.New(admission.New())} }

// header is what a snapshot holds beside the fold's.
type header struct {
	Created time.Time `json:"created"`
	Applied uint64    `json:"applied"`
	Fell    int       `json:"fell"`
	Written position  `json:"written"`
	Pending []line    `json:"pending"`
	Chain   string    `json:"chain,omitempty"`
}

func (s *state) encode() []byte {
	chain := ""
	if s.chain != (journal.Chain{}) {
		chain = s.chain.String()
	}
	head, err := json.Marshal(header{s.created, s.applied, s.fell, s.written, s.pending, chain})
	if err != nil { // cannot be: it is strings, integers and times
		panic("biller: " + err.Error())
	}
	text := append([]byte(magic), head...)
	text = s.usage.Snapshot(append(text, '\n'))
	sum := sha256.Sum256(text)
	return append(text, sum[:]...)
}

func decodeState(text []byte) (*state, error) {
	if len(text) < len(magic)+sha256.Size || string(text[:len(magic)]) != magic {
		return nil, errors.New("is no snapshot of a biller")
	}
	body, sum := text[:len(text)-sha256.Size], text[len(text)-sha256.Size:]
	if want := sha256.Sum256(body); !bytes.Equal(sum, want[:]) {
		return nil, errors.New("is damaged: its sum is another")
	}
	head, fold, ok := bytes.Cut(body[len(magic):], []byte{'\n'})
	if !ok {
		return nil, errors.New("is cut off")
	}
	var h header
	if err := json.Unmarshal(head, &h); err != nil {
		return nil, err
	}
	u, err := usage.Restore(fold)
	if err != nil {
		return nil, err
	}
	loaded := &state{usage: u, created: h.Created, applied: h.Applied, fell: h.Fell, pending: h.Pending, written: h.Written}
	chain, err := hex.DecodeString(h.Chain)
	if err != nil || len(chain) != 0 && len(chain) != len(loaded.chain) {
		return nil, fmt.Errorf("chain %q is none", h.Chain)
	}
	copy(loaded.chain[:], chain)
	return loaded, nil
}

// save writes a snapshot in place of the one before, and the first one of each day of the log's time also under that day's name.
func save(dir string, text []byte, at int64) error {
	dir = filepath.Join(dir, folder)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep the state: %w", err)
	}
	names := []string{snapshotName}
	daily := fmt.Sprintf("usage-%s.snapshot", instant(usage.Instant(at))[:len("2006-01-02")])
	if _, err := os.Stat(filepath.Join(dir, daily)); errors.Is(err, fs.ErrNotExist) {
		names = append(names, daily)
	}
	for _, name := range names {
		if err := replaceFile(dir, name, text); err != nil {
			return fmt.Errorf("keep the state: %w", err)
		}
	}
	if len(names) > 1 {
		return removeOld(dir)
	}
	return nil
}

func replaceFile(dir, name string, text []byte) error {
	file, err := os.CreateTemp(dir, ".writing-*")
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// removeOld keeps the newest of the days' snapshots.
func removeOld(dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, dailyPattern)) // in order
	for i := 0; err == nil && i < len(names)-dailyKept; i++ {
		err = os.Remove(names[i])
	}
	return err
}

// load reads the snapshot; none there is a state of nothing. One that cannot be read is set aside.
func load(dir string) (*state, error) {
	if dir == "" {
		return newState(), nil
	}
	path := filepath.Join(dir, folder, snapshotName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newState(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the state: %w", err)
	}
	s, err := decodeState(text)
	if err != nil {
		return newState(), fmt.Errorf("%s %w; it is set aside, and the log read from its start", path, errors.Join(err, os.Rename(path, path+".corrupt")))
	}
	return s, nil
}

// Start is a place in a log from which it can be folded on.
type Start struct {
	Usage   *usage.Usage
	Applied uint64        // the last sequence that Usage has seen
	Created time.Time     // when the log was made
	Chain   journal.Chain // after Applied; zero if it is not known
}

// EarliestStart finds, among the snapshots that a biller keeps in a data directory (its newest, and one for each of the last 35 days), the
// earliest of a log that is not before a sequence; found is false if there is none.
func EarliestStart(dir string, created time.Time, from uint64) (start Start, found bool, err error) {
	err = eachStart(dir, created, from, func(s Start) {
		if !found || s.Applied < start.Applied {
			start, found = s, true
		}
	})
	return start, found, err
}

// LatestStart finds the latest of them that is before a sequence.
func LatestStart(dir string, created time.Time, from, before uint64) (start Start, found bool, err error) {
	err = eachStart(dir, created, from, func(s Start) {
		if s.Applied < before && (!found || s.Applied > start.Applied) {
			start, found = s, true
		}
	})
	return start, found, err
}

func eachStart(dir string, created time.Time, from uint64, each func(Start)) error {
	names, err := filepath.Glob(filepath.Join(dir, folder, "usage*.snapshot"))
	if err != nil {
		return err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		s, err := decodeState(text)
		if err != nil {
			continue // damaged
		}
		if s.created.Equal(created) && s.applied+1 >= from {
			each(Start{s.usage, s.applied, s.created, s.chain})
		}
	}
	return nil
}
