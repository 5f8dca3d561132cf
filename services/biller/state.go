package biller

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/usage"
)

const (
	folder       = "biller"
	snapshotName = "usage.snapshot"
	magic        = "WEIRUSE1"
)

// state is what a biller knows after a prefix of the log.
type state struct {
	usage   *usage.Usage
	created time.Time // of the log
	applied uint64    // the last sequence taken; 0 before the first
	fell    int       // how many lines fell with it
	pending []line    // not known to be in the stream, in order
	written position  // the last line known to be in it
}

func newState() *state { return &state{usage: usage.New(admission.New())} }

// header is what a snapshot holds beside the fold's.
type header struct {
	Created time.Time `json:"created"`
	Applied uint64    `json:"applied"`
	Fell    int       `json:"fell"`
	Written position  `json:"written"`
	Pending []line    `json:"pending"`
}

func (s *state) encode() []byte {
	head, err := json.Marshal(header{s.created, s.applied, s.fell, s.written, s.pending})
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
	return &state{u, h.Created, h.Applied, h.Fell, h.Pending, h.Written}, nil
}

// save writes a snapshot in place of the one before.
func save(dir string, text []byte) error {
	dir = filepath.Join(dir, folder)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep the state: %w", err)
	}
	file, err := os.CreateTemp(dir, ".writing-*")
	if err != nil {
		return fmt.Errorf("keep the state: %w", err)
	}
	_, err = file.Write(text)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), filepath.Join(dir, snapshotName))
	}
	if err != nil {
		return fmt.Errorf("keep the state: %w", errors.Join(err, os.Remove(file.Name())))
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("keep the state: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
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
