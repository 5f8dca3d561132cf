package biller

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/weirhq/weir/projections/usage"
)

// letter is a line that was rejected, as the file of dead letters holds it.
type letter struct {
	ID     string          `json:"id"`
	Seq    uint64          `json:"stream_seq"`
	Reason string          `json:"reason"`
	Line   json.RawMessage `json:"line"`
}

// retryingSuffix ends the name of a file of letters that are being sent again.
const retryingSuffix = ".retrying"

// maxLetter bounds one letter, in bytes: a line is about one kilobyte.
const maxLetter = 1 << 20

// LetterFile is where an export's dead letters are kept, in a directory.
func LetterFile(dir, export string) string { return filepath.Join(dir, export+".dead.jsonl") }

// Letters counts the dead letters of a file, and those that are being sent again.
func Letters(path string) (n int, err error) {
	for _, name := range []string{path, path + retryingSuffix} {
		text, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		n += bytes.Count(text, []byte{'\n'})
	}
	return n, nil
}

// keep appends a letter to a file, and returns when it is on the disk. The file may be set aside meanwhile: the letter is then in what was
// set aside before that is read, or in the next file.
func keep(path string, text []byte) error {
	for {
		file, err := openEnd(path)
		if err != nil {
			return err
		}
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
			return errors.Join(err, file.Close())
		}
		standing, err := stands(file, path)
		if standing {
			return writeEnd(file, text) // closing gives the lock back
		}
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
}

// stands says whether a path still is an open file's.
func stands(file *os.File, path string) (bool, error) {
	opened, err := file.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(opened, named), err
}

// Retry sends an export's dead letters again, one by one, under the ids that they had. The file is set aside first, so that a biller that
// runs may go on adding to it; what is rejected again goes back to it with its new reason, as does, with an error, what could not be sent.
// After a crash the next Retry begins with what was set aside: a letter may then be sent twice.
func Retry(ctx context.Context, path string, to Exporter) (sent, dead int, err error) {
	aside := path + retryingSuffix
	if _, err := os.Stat(aside); errors.Is(err, fs.ErrNotExist) {
		if err := os.Rename(path, aside); errors.Is(err, fs.ErrNotExist) {
			return 0, 0, nil
		} else if err != nil {
			return 0, 0, fmt.Errorf("set the dead letters aside: %w", err)
		}
	}
	file, err := os.Open(aside)
	if err != nil {
		return 0, 0, fmt.Errorf("read the dead letters: %w", err)
	}
	defer file.Close()
	if err := awaitWriters(file); err != nil {
		return 0, 0, fmt.Errorf("wait for who adds to %s: %w", aside, err)
	}
	lines := bufio.NewReaderSize(file, maxLetter)
	for {
		text, readErr := lines.ReadSlice('\n')
		if errors.Is(readErr, io.EOF) {
			break // what stands behind the last end of line is what a crash left of a letter; the line itself was not acknowledged then
		}
		if readErr != nil {
			return sent, dead, fmt.Errorf("%s: %w", aside, readErr)
		}
		again, why := bytes.Clone(text), error(nil)
		if err == nil { // what could not be sent is not tried for each of the rest
			again, why = resend(ctx, text, to)
		}
		if again == nil {
			sent++
			continue
		}
		if err := keep(path, again); err != nil {
			return sent, dead, fmt.Errorf("keep a dead letter: %w", err)
		}
		if dead++; why != nil {
			err = why
		}
	}
	return sent, dead, errors.Join(err, os.Remove(aside))
}

// awaitWriters waits until who opened a file under the name that it had has written, or will see that the name is another file's.
func awaitWriters(file *os.File) error {
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	return syscall.Flock(int(file.Fd()), syscall.LOCK_UN)
}

// resend sends one letter; again is what is to be kept of one that was not taken, and err is why unless it was rejected.
func resend(ctx context.Context, text []byte, to Exporter) (again []byte, err error) {
	var l letter
	if err := json.Unmarshal(text, &l); err != nil {
		return bytes.Clone(text), fmt.Errorf("a dead letter cannot be read: %w", err)
	}
	line, err := usage.Decode(l.Line)
	if err != nil {
		return bytes.Clone(text), nil // it never was a line: nobody takes it
	}
	if ctx.Err() != nil {
		return bytes.Clone(text), ctx.Err()
	}
	_, err = to.Export(ctx, []Record{{Seq: l.Seq, ID: l.ID, Line: line, Data: l.Line}})
	if err == nil {
		return nil, nil
	}
	if rejected, ok := errors.AsType[*Rejected](err); ok {
		l.Reason, err = rejected.Reason, nil
	} else {
		l.Reason, err = err.Error(), fmt.Errorf("send line %s: %w", l.ID, err)
	}
	again, marshalErr := json.Marshal(l)
	return append(again, '\n'), errors.Join(err, marshalErr)
}
