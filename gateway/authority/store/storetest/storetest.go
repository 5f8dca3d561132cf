// Package storetest is what every store of dynamic authority must hold: one suite, run on each.
package storetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/store"
)

// patience is how long what must happen is waited for.
const patience = 60 * time.Second

// Store is one store under test.
type Store interface {
	store.Backend
	store.Sessions
}

// Run runs the suite. fresh makes an empty store and gives what opens it, each time as another process would.
func Run(t *testing.T, fresh func(t *testing.T) (open func() Store)) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, func() Store)
	}{
		{"an empty store", empty},
		{"a change is seen by all", seen},
		{"only the first of two changes is made", conflict},
		{"the last word before a change", lastWord},
		{"one of many at once", contention},
		{"what is taken away stays away and can come again", away},
		{"any id", ids},
		{"a large change is whole", large},
		{"a change is never seen in part", halves},
		{"followers agree with what is kept", agree},
		{"people beside other records", people},
		{"a record that is too large", tooLarge},
		{"sessions", sessions},
		{"a session expires", expiry},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, fresh(t)) })
	}
}

func ref(id string) authority.Ref {
	return authority.Ref{Org: "acme", Kind: authority.KindKey, ID: id}
}

func value(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// followed is a follower and what it knows.
type followed struct {
	t       testing.TB
	mu      sync.Mutex
	mark    store.Mark
	loaded  bool
	records map[authority.Ref]string
	most    int // writes of the largest update after loading
	check   func(map[authority.Ref]string) error
	stop    func()
}

func follow(t testing.TB, s store.Backend, check func(map[authority.Ref]string) error) *followed {
	ctx, cancel := context.WithCancel(context.Background())
	f := &followed{t: t, records: map[authority.Ref]string{}, check: check}
	var done sync.WaitGroup
	done.Go(func() {
		if err := s.Follow(ctx, f.take); err != nil {
			t.Error(err)
		}
	})
	f.stop = sync.OnceFunc(func() { cancel(); done.Wait() })
	t.Cleanup(f.stop)
	return f
}

func (f *followed) take(u store.Update) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if u.Reset {
		f.records = map[authority.Ref]string{}
	} else {
		f.most = max(f.most, len(u.Writes))
		if u.Mark.N < f.mark.N {
			f.t.Errorf("change %d after change %d", u.Mark.N, f.mark.N)
		}
	}
	seen := map[authority.Ref]bool{}
	for _, w := range u.Writes {
		if seen[w.Ref] {
			f.t.Errorf("%s twice in one update", w.Ref)
		}
		seen[w.Ref] = true
		if w.Value == nil {
			delete(f.records, w.Ref)
		} else {
			f.records[w.Ref] = string(w.Value)
		}
	}
	f.mark, f.loaded = u.Mark, true
	if f.check != nil {
		if err := f.check(f.records); err != nil {
			f.t.Errorf("after change %d: %v", u.Mark.N, err)
		}
	}
}

// at waits until a change has been seen, and gives what is known then.
func (f *followed) at(n uint64) map[authority.Ref]string {
	f.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		f.mu.Lock()
		if f.loaded && f.mark.N >= n {
			defer f.mu.Unlock()
			return maps.Clone(f.records)
		}
		mark := f.mark
		f.mu.Unlock()
		if time.Now().After(end) {
			f.t.Fatalf("change %d was not seen: only %d", n, mark.N)
		}
	}
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func commit(t testing.TB, s store.Backend, id string, writes ...store.Write) store.Mark {
	t.Helper()
	ctx := within(t)
	head, err := s.Head(ctx)
	if err != nil {
		t.Fatal(err)
	}
	mark, err := s.Commit(ctx, head, id, writes, nil)
	if err != nil {
		t.Fatal(err)
	}
	if mark.N != head.N+1 || mark.ID != id {
		t.Fatalf("committed %+v after %+v", mark, head)
	}
	return mark
}

func empty(t *testing.T, open func() Store) {
	s := open()
	if head, err := s.Head(within(t)); err != nil || head != (store.Mark{}) {
		t.Fatalf("%+v, %v", head, err)
	}
	if got := follow(t, s, nil).at(0); len(got) != 0 {
		t.Fatalf("an empty store has %v", got)
	}
}

func seen(t *testing.T, open func() Store) {
	a, b := open(), open()
	early := follow(t, b, nil)
	early.at(0)
	commit(t, a, "one", store.Write{Ref: ref("k"), Value: value(1)}, store.Write{Ref: ref("l"), Value: value("l")})
	mark := commit(t, b, "two", store.Write{Ref: ref("k"), Value: value(2)})
	want := map[authority.Ref]string{ref("k"): "2", ref("l"): `"l"`}
	for name, f := range map[string]*followed{"from the start": early, "late": follow(t, a, nil), "another process": follow(t, open(), nil)} {
		if got := f.at(mark.N); cmp.Diff(want, got) != "" {
			t.Errorf("%s: %s", name, cmp.Diff(want, got))
		}
	}
	if head, err := a.Head(within(t)); err != nil || head.N != 2 || head.ID != "two" {
		t.Errorf("%+v, %v", head, err)
	}
}

func conflict(t *testing.T, open func() Store) {
	a, b := open(), open()
	ctx := within(t)
	base, err := a.Head(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Commit(ctx, base, "a", []store.Write{{Ref: ref("k"), Value: value("a")}}, nil); err != nil {
		t.Fatal(err)
	}
	_, err = b.Commit(ctx, base, "b", []store.Write{{Ref: ref("k"), Value: value("b")}, {Ref: ref("other"), Value: value("b")}}, nil)
	if !store.Conflict(err) || store.Unsure(err) {
		t.Fatalf("the second change: %v", err)
	}
	want := map[authority.Ref]string{ref("k"): `"a"`}
	if got := follow(t, b, nil).at(1); cmp.Diff(want, got) != "" {
		t.Error(cmp.Diff(want, got))
	}
}

func lastWord(t *testing.T, open func() Store) {
	s := open()
	for _, n := range []int{1, 3000} { // a small change, and one that is prepared in parts
		ctx := within(t)
		base, err := s.Head(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var writes []store.Write
		for i := range n {
			writes = append(writes, store.Write{Ref: ref(fmt.Sprint(i)), Value: value(strings.Repeat("x", 200))})
		}
		refusal := errors.New("no")
		if _, err := s.Commit(ctx, base, "refused", writes, func(context.Context) error { return refusal }); !errors.Is(err, refusal) || store.Unsure(err) {
			t.Errorf("%d records: %v", n, err)
		}
		if head, err := open().Head(ctx); err != nil || head != base {
			t.Errorf("%d records: a refused change was made: %+v, %v", n, head, err)
		}
		called := 0
		mark, err := s.Commit(ctx, base, "made", writes, func(ctx context.Context) error {
			called++
			head, err := open().Head(ctx)
			if head != base {
				t.Errorf("%d records: it is there before the last word: %+v", n, head)
			}
			return err
		})
		if err != nil || called != 1 || mark.N != base.N+1 {
			t.Errorf("%d records: called %d times, %+v, %v", n, called, mark, err)
		}
		if _, err := s.Commit(ctx, base, "late", writes, func(context.Context) error { called++; return nil }); !store.Conflict(err) || called != 1 {
			t.Errorf("%d records: a change that is late had its last word: %v", n, err)
		}
	}
	if got := follow(t, open(), nil).at(2); len(got) != 3000 {
		t.Errorf("%d records", len(got))
	}
}

func contention(t *testing.T, open func() Store) {
	const each, writers = 20, 4
	var all sync.WaitGroup
	for w := range writers {
		s := open()
		all.Go(func() {
			for i := range each {
				for {
					head, err := s.Head(context.Background())
					if err != nil {
						t.Error(err)
						return
					}
					id := fmt.Sprintf("%d-%d", w, i)
					_, err = s.Commit(context.Background(), head, id, []store.Write{{Ref: ref(id), Value: value(i)}, {Ref: ref("last"), Value: value(head.N + 1)}}, nil)
					if err == nil {
						break
					}
					if !store.Conflict(err) {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	got := follow(t, open(), nil).at(each * writers)
	if len(got) != each*writers+1 || got[ref("last")] != fmt.Sprint(each*writers) {
		t.Errorf("%d records, the last of change %s", len(got), got[ref("last")])
	}
}

func away(t *testing.T, open func() Store) {
	a, b := open(), open()
	f := follow(t, b, nil)
	commit(t, a, "put", store.Write{Ref: ref("k"), Value: value(1)}, store.Write{Ref: ref("l"), Value: value(1)})
	mark := commit(t, b, "away", store.Write{Ref: ref("k")}, store.Write{Ref: ref("never")})
	if got := f.at(mark.N); len(got) != 1 || got[ref("l")] != "1" {
		t.Errorf("it is still there: %v", got)
	}
	if got := follow(t, open(), nil).at(mark.N); len(got) != 1 {
		t.Errorf("it is there for who comes late: %v", got)
	}
	mark = commit(t, a, "again", store.Write{Ref: ref("k"), Value: value(3)})
	want := map[authority.Ref]string{ref("k"): "3", ref("l"): "1"}
	for _, f := range []*followed{f, follow(t, open(), nil)} {
		if got := f.at(mark.N); cmp.Diff(want, got) != "" {
			t.Error(cmp.Diff(want, got))
		}
	}
}

func ids(t *testing.T, open func() Store) {
	s := open()
	want := map[authority.Ref]string{}
	var writes []store.Write
	for i, id := range []string{"k", "k.l", "k/l", "a b", "é", "*", ">", "=", "=2E", "..", "meta-llama/Llama-3.1-8B", strings.Repeat("x", 256), strings.Repeat("ü", 128), "\x00"} {
		for _, kind := range []authority.Kind{authority.KindKey, authority.KindLimit} {
			r := authority.Ref{Org: "acme", Kind: kind, ID: id}
			want[r] = fmt.Sprint(i)
			writes = append(writes, store.Write{Ref: r, Value: value(i)})
		}
	}
	for _, org := range []events.Org{"_", "Acme", "a-b_c"} {
		r := authority.Ref{Org: org, Kind: authority.KindOrg}
		want[r] = `"o"`
		writes = append(writes, store.Write{Ref: r, Value: value("o")})
	}
	mark := commit(t, s, "ids", writes...)
	if got := follow(t, open(), nil).at(mark.N); cmp.Diff(want, got) != "" {
		t.Error(cmp.Diff(want, got))
	}
}

func large(t *testing.T, open func() Store) {
	const n = 5_000
	a := open()
	f := follow(t, open(), func(all map[authority.Ref]string) error {
		if len(all) != 0 && len(all) != n && len(all) != 1 {
			return fmt.Errorf("%d records: neither none nor all", len(all))
		}
		return nil
	})
	f.at(0)
	pad := strings.Repeat("x", 400)
	var put, drop []store.Write
	for i := range n {
		put = append(put, store.Write{Ref: ref(fmt.Sprint(i)), Value: value(map[string]any{"i": i, "pad": pad})})
		drop = append(drop, store.Write{Ref: ref(fmt.Sprint(i))})
	}
	mark := commit(t, a, "all", put...)
	if got := f.at(mark.N); len(got) != n {
		t.Fatalf("%d records", len(got))
	}
	if got := follow(t, open(), nil).at(mark.N); len(got) != n {
		t.Fatalf("%d records for who comes late", len(got))
	}
	mark = commit(t, open(), "none", append(drop[1:], store.Write{Ref: ref("0"), Value: value("kept")})...)
	want := map[authority.Ref]string{ref("0"): `"kept"`}
	for _, f := range []*followed{f, follow(t, open(), nil)} {
		if got := f.at(mark.N); cmp.Diff(want, got) != "" {
			t.Error(cmp.Diff(want, got))
		}
	}
}

// halves writes two records in each change that must always agree, while followers come and go.
func halves(t *testing.T, open func() Store) {
	const changes = 150
	check := func(all map[authority.Ref]string) error {
		if all[ref("left")] != all[ref("right")] {
			return fmt.Errorf("left is %s and right is %s", all[ref("left")], all[ref("right")])
		}
		return nil
	}
	s := open()
	constant := follow(t, open(), check)
	for i := range changes {
		v := value(i)
		if i%7 == 6 {
			v = nil
		}
		commit(t, s, fmt.Sprint(i), store.Write{Ref: ref("left"), Value: v}, store.Write{Ref: ref("right"), Value: v})
		if i%25 == 0 {
			follow(t, open(), check)
		}
	}
	constant.at(changes)
}

func agree(t *testing.T, open func() Store) {
	rng := rand.New(rand.NewPCG(1, 2))
	a, b := open(), open()
	f := follow(t, b, nil)
	want := map[authority.Ref]string{}
	var mark store.Mark
	for i := range 120 {
		chosen := map[authority.Ref][]byte{}
		for range 1 + rng.IntN(6) {
			r := ref(fmt.Sprint(rng.IntN(20)))
			chosen[r] = value(i)
			if rng.IntN(3) == 0 {
				chosen[r] = nil
			}
		}
		var writes []store.Write
		for r, v := range chosen {
			writes = append(writes, store.Write{Ref: r, Value: v})
			if v == nil {
				delete(want, r)
			} else {
				want[r] = string(v)
			}
		}
		mark = commit(t, []Store{a, b}[rng.IntN(2)], fmt.Sprint("c", i), writes...)
		if i%30 == 29 {
			for _, f := range []*followed{f, follow(t, open(), nil)} {
				if got := f.at(mark.N); cmp.Diff(want, got) != "" {
					t.Fatalf("after change %d: %s", i, cmp.Diff(want, got))
				}
			}
		}
	}
}

// people has changes write what people sign in with and other records at once.
func people(t *testing.T, open func() Store) {
	user := func(id string) authority.Ref { return authority.Ref{Org: "acme", Kind: authority.KindUser, ID: id} }
	check := func(all map[authority.Ref]string) error {
		if all[user("x")] != all[ref("x")] {
			return fmt.Errorf("the user is %s and the key is %s", all[user("x")], all[ref("x")])
		}
		return nil
	}
	a, b := open(), open()
	early := follow(t, b, check)
	want := map[authority.Ref]string{}
	var mark store.Mark
	for i, v := range [][]byte{value(1), value(2), nil, value(strings.Repeat("x", 1000))} {
		mark = commit(t, []Store{a, b}[i%2], fmt.Sprint("u", i), store.Write{Ref: user("x"), Value: v}, store.Write{Ref: ref("x"), Value: v})
		want[user("x")], want[ref("x")] = string(v), string(v)
	}
	var many []store.Write
	for i := range 3000 {
		r := user(fmt.Sprint("many", i))
		want[r] = string(value(strings.Repeat("y", 300)))
		many = append(many, store.Write{Ref: r, Value: []byte(want[r])}) // in several parts
	}
	mark = commit(t, a, "many", many...)
	for name, f := range map[string]*followed{"from the start": early, "late": follow(t, open(), check)} {
		if got := f.at(mark.N); cmp.Diff(want, got) != "" {
			t.Errorf("%s: %d records, want %d", name, len(got), len(want))
		}
	}
}

func tooLarge(t *testing.T, open func() Store) {
	s := open()
	_, err := s.Commit(within(t), store.Mark{}, "x", []store.Write{{Ref: ref("k"), Value: value(strings.Repeat("x", store.MaxRecord))}}, nil)
	if !store.TooLarge(err) || store.Conflict(err) || store.Unavailable(err) || !strings.Contains(err.Error(), fmt.Sprint(store.MaxRecord)) {
		t.Errorf("%v", err)
	}
	if head, err := s.Head(within(t)); err != nil || head.N != 0 {
		t.Errorf("%+v, %v", head, err)
	}
}

func sessions(t *testing.T, open func() Store) {
	a, b := open(), open()
	ctx := within(t)
	one, two := authority.Hash{1}, authority.Hash{2}
	if _, found, err := a.Session(ctx, one); found || err != nil {
		t.Fatalf("%v, %v", found, err)
	}
	for hash, text := range map[authority.Hash]string{one: "first", two: "second"} {
		if err := a.PutSession(ctx, hash, []byte(text), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if got, found, err := b.Session(ctx, one); err != nil || !found || !bytes.Equal(got, []byte("first")) {
		t.Fatalf("%q, %v, %v", got, found, err)
	}
	if err := b.DropSession(ctx, one); err != nil {
		t.Fatal(err)
	}
	if err := b.DropSession(ctx, one); err != nil {
		t.Fatal("twice: ", err)
	}
	if _, found, err := a.Session(ctx, one); found || err != nil {
		t.Fatalf("after it was dropped: %v, %v", found, err)
	}
	if _, found, _ := a.Session(ctx, two); !found {
		t.Fatal("the other was dropped too")
	}
	if got := follow(t, b, nil).at(0); len(got) != 0 {
		t.Errorf("sessions are no records: %v", got)
	}
}

func expiry(t *testing.T, open func() Store) {
	s := open()
	ctx := within(t)
	if err := s.PutSession(ctx, authority.Hash{1}, []byte("short"), time.Second); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		_, found, err := s.Session(ctx, authority.Hash{1})
		if err != nil {
			t.Fatal(err)
		}
		if !found {
			return
		}
		if time.Now().After(end) {
			t.Fatal("it did not expire")
		}
	}
}
