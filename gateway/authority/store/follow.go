package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// How a store is followed.
const (
	lookEvery = time.Second            // a watch that has not seen the newest change for two looks is opened anew
	openPause = 100 * time.Millisecond // before a watch is opened anew; doubled up to openMost
	openMost  = 2 * time.Second
)

// errReopen says that a watch must be opened anew.
var errReopen = errors.New("the watch is opened anew")

// Follow gives all that is kept and then each change. A watch that misses something, or falls silent, is opened anew.
func (s *KV) Follow(ctx context.Context, to func(Update)) error {
	return follow(ctx, func() (read bool, err error) {
		f := &follower{s: s, to: to, loading: true, known: map[string]uint64{}, early: map[string]kept{}}
		if err := f.run(ctx); err != nil && !errors.Is(err, errReopen) && !Unavailable(err) && ctx.Err() == nil {
			return false, fmt.Errorf("follow bucket %s: %w", s.bucket.Bucket(), err)
		}
		return !f.loading, nil
	})
}

// follow follows anew whenever run ends, until ctx ends or run fails; the less could be read, the later.
func follow(ctx context.Context, run func() (read bool, err error)) error {
	pause := openPause
	for ctx.Err() == nil {
		read, err := run()
		if err != nil {
			return err
		}
		if read {
			pause = openPause
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, openMost)
	}
	return nil
}

// follower reads one watch. Changes come by root, records by keys of their own, in the order in which they were written, but what was
// overwritten in between is not seen. What a record says of a change that root has not told is early: it is taken in with the next root,
// before which all records of all changes before it were written.
type follower struct {
	s       *KV
	to      func(Update)
	loading bool
	root    *root // while loading
	mark    Mark
	known   map[string]uint64 // the change that last wrote each record
	early   map[string]kept
}

func (f *follower) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	keys := []string{rootKey, recordPrefix + ">"}
	if f.s.users {
		keys = append(keys, userPrefix+">")
	}
	watch, err := f.s.bucket.WatchFiltered(ctx, keys)
	if err != nil {
		return &failure{err: err, unavailable: true}
	}
	defer func() { _ = watch.Stop() }() // it fails only when the connection has gone
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	behind := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case entry, ok := <-watch.Updates():
			if !ok {
				return errReopen
			}
			if err := f.take(ctx, entry); err != nil {
				return err
			}
		case <-look.C:
			head, err := f.s.Head(ctx)
			if err != nil || head.Revision <= f.mark.Revision && !f.loading {
				behind = 0
				continue
			}
			if behind++; behind > 1 && len(watch.Updates()) == 0 {
				return errReopen
			}
		}
	}
}

// take takes in one entry; nil says that all that is kept has come.
func (f *follower) take(ctx context.Context, entry jetstream.KeyValueEntry) error {
	switch {
	case entry == nil:
		f.loading = false
		if f.root == nil {
			if len(f.early) == 0 {
				f.to(Update{Reset: true})
			}
			return nil
		}
		return f.change(ctx, f.root, f.mark.Revision, true)
	case entry.Key() == rootKey:
		if entry.Operation() != jetstream.KeyValuePut {
			return errReopen
		}
		r := &root{}
		if err := json.Unmarshal(entry.Value(), r); err != nil {
			return fmt.Errorf("read a change: %w", err)
		}
		if f.loading {
			f.root, f.mark = r, Mark{r.N, r.ID, entry.Revision()}
			return nil
		}
		return f.change(ctx, r, entry.Revision(), f.mark.N == 0)
	case entry.Operation() != jetstream.KeyValuePut: // a mark of what was taken away has expired
		delete(f.known, entry.Key())
		f.s.forget(entry.Key())
		return nil
	}
	var k kept
	if err := json.Unmarshal(entry.Value(), &k); err != nil {
		return fmt.Errorf("read record %s: %w", entry.Key(), err)
	}
	f.s.note(entry.Key(), place{entry.Revision(), k.N})
	if k.N > f.known[entry.Key()] {
		f.early[entry.Key()] = k
	}
	return nil
}

// change takes in the changes up to that of root.
func (f *follower) change(ctx context.Context, r *root, revision uint64, reset bool) error {
	if r.N < f.mark.N {
		return errReopen // the bucket is another
	}
	writes := map[string]kept{}
	for key, k := range f.early {
		if k.N <= r.N {
			writes[key] = k
			delete(f.early, key)
		}
	}
	if r.N > f.mark.N || reset {
		all, err := f.s.writes(ctx, r, f.s.users)
		if err != nil { // chunks that are gone were put as records: they come with what is kept
			return errReopen
		}
		for _, w := range all {
			writes[w.Key] = kept{r.N, w.Value}
		}
	}
	f.mark = Mark{r.N, r.ID, revision}
	u := Update{Mark: f.mark, Reset: reset}
	for key, k := range writes {
		ref, ok := refOf(key)
		if !ok {
			continue
		}
		f.known[key] = k.N
		if k.Value != nil || !reset {
			u.Writes = append(u.Writes, Write{ref, k.Value})
		}
	}
	sort.Slice(u.Writes, func(i, j int) bool { return less(&u.Writes[i], &u.Writes[j]) })
	f.to(u)
	return nil
}

// less orders writes, so that every follower gives the same.
func less(a, b *Write) bool {
	if a.Ref.Org != b.Ref.Org {
		return a.Ref.Org < b.Ref.Org
	}
	if a.Ref.Kind != b.Ref.Kind {
		return a.Ref.Kind < b.Ref.Kind
	}
	return a.Ref.ID < b.Ref.ID
}
