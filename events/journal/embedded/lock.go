package embedded

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const lockName = "broker.lock"

// ErrInUse is behind the error of a data directory that another process holds.
var ErrInUse = errors.New("is in use")

// lock holds a data directory for this process. The kernel lets go of it when the process ends, however it ends.
type lock struct{ f *os.File }

func takeLock(dir string) (*lock, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: cannot be written: %w", dir, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("data directory %s: locking %s: %w", dir, path, err)
		}
		return nil, fmt.Errorf("data directory %s: %w by process %s", dir, ErrInUse, holder(f))
	}
	if err := f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("data directory %s: cannot be written: %w", dir, err)
	}
	return &lock{f: f}, nil
}

func holder(f *os.File) string {
	text, err := io.ReadAll(io.LimitReader(f, 32))
	pid, convErr := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || convErr != nil {
		return "unknown" // it has the lock and has not yet written its id
	}
	return strconv.Itoa(pid)
}

// release lets go. The file stays: removing it would let two processes lock two files of one name.
func (l *lock) release() error { return l.f.Close() }
