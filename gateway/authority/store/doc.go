// Package store keeps dynamic authority: the orgs, keys, limits, pools, connections, prices and users that are made through the API.
//
// A Backend keeps records and commits changes, each whole or not at all, one after another. A Mirror follows a backend and lays what it
// keeps over the authority of the files: the snapshots that a gateway decides on. An Authority makes changes: it decides on the newest
// state, publishes the fence of each org that it changes, and only then commits. So no reserve made on what was before is admitted once
// the fence is in the log, and a change that cannot be published is no change. What is published and not committed leaves a fence that
// refuses the org's reserves until the next change or a repair.
package store

import (
	"context"
	"errors"
	"time"

	"github.com/weirhq/weir/gateway/authority"
)

// Mark is a place in the sequence of changes. The zero Mark is before the first.
type Mark struct {
	N        uint64 // changes so far
	ID       string // of the newest change
	Revision uint64 // the backend's own; only to be given back
}

// Write puts a record, or with a nil Value takes it away.
type Write struct {
	Ref   authority.Ref
	Value []byte // JSON
}

// Update is what a follower learns at once: a whole change, several whole changes, or with Reset all that is kept.
type Update struct {
	Mark   Mark
	Reset  bool
	Writes []Write // each record at most once
}

// Backend keeps records. Its methods may be called at the same time. Errors may be asked Conflict, Unavailable, Unsure and TooLarge.
type Backend interface {
	// Head is the newest change. What Commit has returned before Head is called is at or before it.
	Head(ctx context.Context) (Mark, error)

	// Commit makes a change of an id after base, whole or not at all. It fails with Conflict if another came first. Writes has each
	// record at most once. last, if any, is called when all is prepared, right before the change is made; its error refuses the change
	// and is given back.
	Commit(ctx context.Context, base Mark, id string, writes []Write, last func(context.Context) error) (Mark, error)

	// Follow gives all that is kept, with Reset, and from then on each change in order, as one call of to at a time, until ctx ends. It
	// may give everything again. It comes back from any failure of the connection by itself; the error is of what cannot be followed.
	Follow(ctx context.Context, to func(Update)) error
}

// Sessions keeps what people are signed in with, until it expires. Keys are hashes of tokens.
type Sessions interface {
	// PutSession keeps a session for a while, at least a second.
	PutSession(ctx context.Context, hash authority.Hash, session []byte, ttl time.Duration) error
	// Session gives a session; found is false if there is none or it has expired.
	Session(ctx context.Context, hash authority.Hash) (session []byte, found bool, err error)
	// DropSession forgets a session.
	DropSession(ctx context.Context, hash authority.Hash) error
}

// MaxRecord bounds a record in bytes, and MaxWrites the records of one change.
const (
	MaxRecord = 256 << 10
	MaxWrites = 250_000
)

// failure is an error of this package with the behaviour that callers ask for.
type failure struct {
	err         error
	conflict    bool
	unavailable bool
	unsure      bool
	tooLarge    bool
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func behaves(err error, is func(*failure) bool) bool {
	f, ok := errors.AsType[*failure](err)
	return ok && is(f)
}

// Conflict says whether err means that another change came first.
func Conflict(err error) bool { return behaves(err, func(f *failure) bool { return f.conflict }) }

// Unavailable says whether err means that the log or the store did not answer, so that nothing can be changed now.
func Unavailable(err error) bool { return behaves(err, func(f *failure) bool { return f.unavailable }) }

// TooLarge says whether err means that a change is larger than changes may be.
func TooLarge(err error) bool { return behaves(err, func(f *failure) bool { return f.tooLarge }) }

// Unsure says whether what failed with err may have been done all the same, now or later.
func Unsure(err error) bool { return behaves(err, func(f *failure) bool { return f.unsure }) }
