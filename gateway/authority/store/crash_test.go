package store

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/embedded"
	"github.com/weirhq/weir/gateway/authority"
)

func opened(t *testing.T) func() *KV {
	t.Helper()
	b, err := embedded.Start(context.Background(), embedded.Config{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	return func() *KV {
		nc, err := b.Connect(access.Identity{Name: "op-00000000", Roles: []access.Role{access.Operator}})
		if err != nil {
			t.Fatal(err)
		}
		s, err := OpenKV(context.Background(), nc, KVConfig{Create: true, Users: true})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

func key(id string) authority.Ref {
	return authority.Ref{Org: "acme", Kind: authority.KindKey, ID: id}
}

// crash commits as a process that dies before it has put the records.
func crash(t *testing.T, s *KV, n int) {
	t.Helper()
	ctx := context.Background()
	last, revision, err := s.root(ctx)
	if err == nil {
		err = s.finish(ctx, &last)
	}
	if err != nil {
		t.Fatal(err)
	}
	next := root{N: last.N + 1, ID: fmt.Sprint("crash-", last.N)}
	var all []written
	for i := range n {
		all = append(all, written{keyOf(key(fmt.Sprint(i))), json.RawMessage(fmt.Sprintf(`"change %d"`, next.N))})
	}
	if n > 100 {
		if next.Chunks, err = s.stage(ctx, chunkPrefix+next.ID, all); err != nil {
			t.Fatal(err)
		}
	} else {
		next.Writes = all
	}
	value, _ := json.Marshal(next)
	if _, err := s.put(ctx, rootKey, value, revision, 0); err != nil {
		t.Fatal(err)
	}
}

// keptAt follows until a change and gives the records.
func keptAt(t *testing.T, s *KV, n uint64) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	records := map[string]string{}
	var done sync.WaitGroup
	done.Go(func() {
		_ = s.Follow(ctx, func(u Update) {
			for _, w := range u.Writes {
				records[w.Ref.ID] = string(w.Value)
			}
			if u.Mark.N >= n {
				cancel()
			}
		})
	})
	done.Wait()
	if ctx.Err() == context.DeadlineExceeded {
		t.Fatal("the change was not seen")
	}
	return records
}

// TestACrashAfterTheCommit has a committer die between a change and its records: the change is made all the same.
func TestACrashAfterTheCommit(t *testing.T) {
	for _, n := range []int{3, 3000} {
		t.Run(fmt.Sprint(n, " records"), func(t *testing.T) {
			open := opened(t)
			crash(t, open(), n)
			if got := keptAt(t, open(), 1); len(got) != n || got["2"] != `"change 1"` {
				t.Fatalf("%d records are seen", len(got))
			}
			s := open()
			head, err := s.Head(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Commit(context.Background(), head, "next", []Write{{key("2"), []byte(`"change 2"`)}}, nil); err != nil {
				t.Fatal(err)
			}
			got := keptAt(t, open(), 2)
			if len(got) != n || got["2"] != `"change 2"` || got["1"] != `"change 1"` {
				t.Fatalf("after the next change: %d records, %s, %s", len(got), got["1"], got["2"])
			}
		})
	}
}

// TestALateWriter has a committer that was stopped put its records after others have changed them: they stay as they are.
func TestALateWriter(t *testing.T) {
	open := opened(t)
	s, late := open(), open()
	ctx := context.Background()
	crash(t, s, 2)
	old := []written{{keyOf(key("0")), json.RawMessage(`"change 1"`)}, {keyOf(key("1")), json.RawMessage(`"change 1"`)}}
	head, err := s.Head(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(ctx, head, "next", []Write{{key("0"), nil}, {key("1"), []byte(`"change 2"`)}}, nil); err != nil {
		t.Fatal(err)
	}
	if err := late.apply(ctx, 1, old); err != nil {
		t.Fatal(err)
	}
	if got := keptAt(t, open(), 2); len(got) != 1 || got["1"] != `"change 2"` {
		t.Fatalf("%v", got)
	}
}

// TestChunksAreSwept sees that a large change leaves nothing behind but its records.
func TestChunksAreSwept(t *testing.T) {
	open := opened(t)
	s := open()
	var writes []Write
	for i := range 4000 {
		writes = append(writes, Write{key(fmt.Sprint(i)), []byte(fmt.Sprintf("%100d", i))})
	}
	if _, err := s.Commit(context.Background(), Mark{}, "large", writes, nil); err != nil {
		t.Fatal(err)
	}
	keys, err := s.bucket.ListKeysFiltered(context.Background(), chunkPrefix+">")
	if err != nil {
		t.Fatal(err)
	}
	for k := range keys.Keys() {
		t.Errorf("%s is left", k)
	}
	r, _, err := s.root(context.Background())
	if err != nil || !r.Applied {
		t.Errorf("%+v, %v", r, err)
	}
}
