package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/weirhq/weir/gateway/authority"
)

// Copied is what Copy found and did.
type Copied struct {
	Records int  // that from keeps
	Orgs    int  // of them, which keep their versions
	Made    bool // false: to keeps the same already, or there was nothing
}

// Copy puts all that a backend keeps into another as one change of an id: whole or not at all, and as it is, with the orgs' versions. The
// other must keep nothing, or the very same, so that it may be done again. Both must be opened with Users, and who manages either must be
// stopped: a change that comes in between is a Conflict, and one that comes later is not copied. Sessions are not copied.
func Copy(ctx context.Context, from, to Backend, id string) (Copied, error) {
	source, records, err := everything(ctx, from)
	if err != nil {
		return Copied{}, fmt.Errorf("read what is to be copied: %w", err)
	}
	target, there, err := everything(ctx, to)
	if err != nil {
		return Copied{}, fmt.Errorf("read what is there already: %w", err)
	}
	c := Copied{Records: len(records)}
	for ref := range records {
		if ref.Kind == authority.KindOrg {
			c.Orgs++
		}
	}
	if len(there) > 0 {
		return c, same(records, there)
	}
	if len(records) == 0 {
		return c, nil
	}
	writes := make([]Write, 0, len(records))
	for ref, value := range records {
		writes = append(writes, Write{ref, value})
	}
	sort.Slice(writes, func(i, j int) bool { return less(&writes[i], &writes[j]) })
	_, err = to.Commit(ctx, target, id, writes, func(ctx context.Context) error {
		head, err := from.Head(ctx)
		if err == nil && (head.N != source.N || head.ID != source.ID) {
			err = &failure{err: fmt.Errorf("change %d was made meanwhile", head.N), conflict: true}
		}
		return err
	})
	if err != nil {
		return c, fmt.Errorf("write the copy: %w", err)
	}
	c.Made = true
	return c, nil
}

// everything is all that a backend keeps, as of one change.
func everything(ctx context.Context, b Backend) (mark Mark, records map[authority.Ref][]byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, largeWithin)
	defer cancel()
	reading, stop := context.WithCancel(ctx)
	defer stop()
	err = b.Follow(reading, func(u Update) {
		if records != nil {
			return
		}
		mark, records = u.Mark, make(map[authority.Ref][]byte, len(u.Writes))
		for _, w := range u.Writes {
			records[w.Ref] = w.Value
		}
		stop()
	})
	if err == nil && records == nil {
		err = &failure{err: context.Cause(ctx), unavailable: true}
	}
	return mark, records, err
}

// same says how two sets of records differ, if they do.
func same(want, have map[authority.Ref][]byte) error {
	var differ []authority.Ref
	for ref, value := range want {
		if v, ok := have[ref]; !ok || !equal(v, value) {
			differ = append(differ, ref)
		}
	}
	for ref := range have {
		if _, ok := want[ref]; !ok {
			differ = append(differ, ref)
		}
	}
	if len(differ) == 0 {
		return nil
	}
	first := slices.MinFunc(differ, func(a, b authority.Ref) int { return strings.Compare(a.String(), b.String()) })
	return &failure{err: fmt.Errorf("%d records are there already, and %d are not as they would be copied, the first of them %s: it must hold none, or the same",
		len(have), len(differ), first), conflict: true}
}

// equal compares JSON, whatever the spaces in it.
func equal(a, b []byte) bool {
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}
