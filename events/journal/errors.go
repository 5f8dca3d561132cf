package journal

import (
	"errors"
	"fmt"
	"time"
)

// ErrFull says that the outbox holds MaxOutbox events: no new work can be taken on.
var ErrFull = errors.New("outbox is full")

// ErrClosed says that the publisher has stopped.
var ErrClosed = errors.New("publisher has stopped")

// ErrDeadline says that an event's deadline passed before the log acknowledged it.
var ErrDeadline = errors.New("not acknowledged before its deadline")

// failure is an error of this package with the behaviour that callers ask for.
type failure struct {
	err         error
	unreachable bool // the log did not answer
	full        bool // the stream takes no more
	maybe       bool // it may have been appended all the same
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func behaves(err error, is func(*failure) bool) bool {
	f, ok := errors.AsType[*failure](err)
	return ok && is(f)
}

// Unreachable says whether err means that the log did not answer: no connection, no leader, or silence.
func Unreachable(err error) bool { return behaves(err, func(f *failure) bool { return f.unreachable }) }

// Full says whether err means that the stream takes no more: max_bytes is reached, or the disk's share is used up.
func Full(err error) bool { return behaves(err, func(f *failure) bool { return f.full }) }

// MaybeAppended says whether what failed with err may be in the log, now or later.
func MaybeAppended(err error) bool { return behaves(err, func(f *failure) bool { return f.maybe }) }

// Lost says that the log no longer holds what was to be read next.
type Lost struct {
	From  uint64 // the sequence that was to be read
	First uint64 // the first sequence that can be read
}

func (e *Lost) Error() string {
	return fmt.Sprintf("the log no longer holds sequence %d: it begins again at %d", e.From, e.First)
}

// Replaced says that the stream is not the one that was read before, or holds less of it.
type Replaced struct {
	Position          uint64    // the last sequence that was read
	Last              uint64    // the last sequence that the stream holds, 0 if there is no stream
	Created, Expected time.Time // when the stream was made, and when the one read before was made
}

func (e *Replaced) Error() string {
	if !e.Created.Equal(e.Expected) {
		return fmt.Sprintf("the log was replaced: it was made at %s, the one that was read at %s",
			e.Created.UTC().Format(time.RFC3339Nano), e.Expected.UTC().Format(time.RFC3339Nano))
	}
	return fmt.Sprintf("the log is behind: it ends at sequence %d, and %d was read", e.Last, e.Position)
}
