package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/store"
)

// files is the authority of files that declare a model and let keys of the API in.
func files(t testing.TB) *authority.Snapshot {
	t.Helper()
	limits := authority.Limits{RPM: 300, TPM: 1_000_000, Concurrency: 8}
	s, _, err := authority.Build(&authority.Declared{AdminKeys: 1,
		Defaults: authority.Defaults{Org: limits, Workspace: limits, Principal: limits, Key: authority.Limits{TPM: limits.TPM, Concurrency: 8}},
		Models:   []*authority.Model{{ID: "m", Local: &authority.Local{Replicas: []string{"http://x"}}, Price: &authority.Price{}}},
	}, &authority.Auth{Mode: authority.ModeDynamic}, &authority.Policies{})
	check(t, err)
	return s
}

// running runs f until the test ends.
func running(t testing.TB, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := f(ctx); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); done.Wait() })
	t.Cleanup(stop)
	return stop
}

func mirror(t testing.TB, b store.Backend) *store.Mirror {
	t.Helper()
	m := store.NewMirror(store.MirrorConfig{Backend: b, Static: files(t), Now: time.Now})
	running(t, m.Run)
	check(t, m.Reached(within(t), store.Mark{}))
	return m
}

// faults are a backend and a log that fail when they are told to.
type faults struct {
	store.Backend
	store.Log
	mu              sync.Mutex
	commit, publish error
	done            bool // the commit is made all the same
}

func (f *faults) set(commit, publish error, done bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.commit, f.publish, f.done = commit, publish, done
}

func (f *faults) Commit(ctx context.Context, base store.Mark, id string, writes []store.Write, last func(context.Context) error) (store.Mark, error) {
	f.mu.Lock()
	err, done := f.commit, f.done
	f.mu.Unlock()
	if err != nil && !done { // the fence is there, and the change is not
		return store.Mark{}, errors.Join(last(ctx), err)
	}
	mark, made := f.Backend.Commit(ctx, base, id, writes, last)
	return mark, errors.Join(err, made)
}

func (f *faults) Publish(ctx context.Context, ev events.Event) (uint64, error) {
	f.mu.Lock()
	err := f.publish
	f.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return f.Log.Publish(ctx, ev)
}

// operator is an authority on a broker, and what can go wrong with it.
type operator struct {
	*store.Authority
	mirror *store.Mirror
	faults *faults
	log    *journal.Log
}

func newOperator(t testing.TB, b *broker) *operator {
	t.Helper()
	return newOperatorOn(t, b, open(t, b.connect(access.System), true))
}

// newOperatorOn makes one whose records are kept elsewhere than on the broker.
func newOperatorOn(t testing.TB, b *broker, s store.Backend) *operator {
	t.Helper()
	log, err := journal.Open(within(t), b.connect(access.System), journal.Config{Create: true})
	check(t, err)
	f := &faults{Backend: s, Log: log}
	m := mirror(t, s)
	return &operator{store.New(store.Config{Backend: f, Mirror: m, Log: f, Source: "test", NewID: uuid.NewString}), m, f, log}
}

func (o *operator) put(t testing.TB, records ...authority.Record) store.Done {
	t.Helper()
	done, err := o.Change(within(t), func(tx *store.Tx) error {
		for _, r := range records {
			tx.Put(r)
		}
		return nil
	})
	check(t, err)
	return done
}

func key(org events.Org, id string) *authority.KeyRecord {
	return &authority.KeyRecord{ID: id, Org: org, Hash: authority.HashKey("raw-" + id), Enabled: true}
}

func TestTwoGatewaysFollow(t *testing.T) {
	b := newBroker(t)
	op := newOperator(t, b)
	var gates []*store.Mirror
	for range 2 {
		nc, _ := b.join() // over TCP, as a gateway may: it reads and cannot write
		kv := open(t, nc, false)
		short, cancel := context.WithTimeout(within(t), 300*time.Millisecond)
		_, err := kv.Commit(short, store.Mark{}, "x", nil, nil)
		if cancel(); err == nil {
			t.Error("a gateway changed the authority")
		}
		gates = append(gates, mirror(t, kv))
	}
	done := op.put(t, &authority.OrgRecord{Org: "acme", Made: true}, key("acme", "k"))
	if done.Versions["acme"] != 1 || done.Fences["acme"] == 0 {
		t.Fatalf("%+v", done)
	}
	for i, g := range gates {
		check(t, g.Reached(within(t), done.Mark))
		s := g.Current()
		if k, denial := authority.Authenticate(s, "raw-k", time.Now()); denial != "" || k.Org != "acme" || s.Fence("acme") != 1 {
			t.Errorf("gateway %d: %+v, %s, fence %d", i, k, denial, s.Fence("acme"))
		}
	}
	late := mirror(t, gates1(t, b))
	if late.Current().Fence("acme") != 1 {
		t.Error("a gateway that starts later does not know the fence")
	}
}

func gates1(t testing.TB, b *broker) store.Backend {
	nc, _ := b.join()
	return open(t, nc, false)
}

func TestFreshWaitsForTheChange(t *testing.T) {
	b := newBroker(t)
	op := newOperator(t, b)
	gate := mirror(t, gates1(t, b))
	got := make(chan int64, 1)
	go func() { got <- gate.Fresh(within(t), "acme", 1).Fence("acme") }()
	op.put(t, &authority.OrgRecord{Org: "acme"})
	if fence := <-got; fence != 1 {
		t.Errorf("fence %d", fence)
	}
	if s := gate.Fresh(within(t), "acme", 5); s.Fence("acme") != 1 {
		t.Errorf("after its wait it gives what there is: %d", s.Fence("acme"))
	}
}

func TestOtherFilesUnderTheRecords(t *testing.T) {
	op := newOperator(t, newBroker(t))
	op.put(t, &authority.OrgRecord{Org: "acme"}, key("acme", "k"))
	other, _, err := authority.Build(&authority.Declared{AdminKeys: 1, Platform: authority.Limits{RPM: 7}}, &authority.Auth{Mode: authority.ModeDynamic}, &authority.Policies{})
	check(t, err)
	op.mirror.SetStatic(other)
	if s := op.mirror.Current(); s.Platform.RPM != 7 || len(s.Keys) != 1 || s.Fence("acme") != 1 {
		t.Errorf("platform %+v, %d keys, fence %d", s.Platform, len(s.Keys), s.Fence("acme"))
	}
}

// fence is the version of the newest fence in the log.
func (o *operator) fence(t testing.TB, org events.Org) int64 {
	t.Helper()
	records, _, err := o.log.Last(within(t), "acct."+string(org)+".fence")
	check(t, err)
	if len(records) == 0 {
		return 0
	}
	return records[0].Data.(*events.Fence).Version
}

func TestAFailedPublicationRefusesTheChange(t *testing.T) {
	op := newOperator(t, newBroker(t))
	op.put(t, &authority.OrgRecord{Org: "acme"})
	op.faults.set(nil, errors.New("the log is away"), false)
	_, err := op.Change(within(t), func(tx *store.Tx) error { tx.Put(key("acme", "k")); return nil })
	if !store.Unavailable(err) || store.Unsure(err) || !strings.Contains(err.Error(), "publish the fence of org acme: the log is away") {
		t.Fatalf("%v", err)
	}
	op.faults.set(nil, nil, false)
	if s := op.mirror.Current(); s.Fence("acme") != 1 || len(s.Keys) != 0 {
		t.Errorf("it changed: fence %d, %d keys", s.Fence("acme"), len(s.Keys))
	}
	if head, err := op.faults.Head(within(t)); err != nil || head.N != 1 {
		t.Errorf("%+v, %v", head, err)
	}
}

func TestAFenceThatIsLeft(t *testing.T) {
	op := newOperator(t, newBroker(t))
	op.put(t, &authority.OrgRecord{Org: "acme"}, &authority.OrgRecord{Org: "other"})
	fail := func() {
		op.faults.set(errors.New("the store is away"), nil, false)
		if _, err := op.Change(within(t), func(tx *store.Tx) error { tx.Put(key("acme", "k")); return nil }); err == nil {
			t.Fatal("the change was made")
		}
		op.faults.set(nil, nil, false)
		behind, err := op.Behind(within(t))
		if err != nil || len(behind) != 1 || behind[0] != (store.Behind{Org: "acme", Store: op.mirror.Current().Fence("acme"), Fenced: op.fence(t, "acme")}) {
			t.Fatalf("%+v, %v", behind, err)
		}
	}
	whole := func() {
		t.Helper()
		if behind, err := op.Behind(within(t)); err != nil || len(behind) != 0 {
			t.Fatalf("%+v, %v", behind, err)
		}
		if store, log := op.mirror.Current().Fence("acme"), op.fence(t, "acme"); store != log {
			t.Fatalf("version %d in the store, %d in the log", store, log)
		}
	}
	whole()
	fail()
	check(t, op.Repair(within(t), "acme"))
	whole()
	if len(op.mirror.Current().Keys) != 0 {
		t.Error("a repair changes nothing else")
	}
	fail()
	fail()
	op.put(t, key("acme", "k")) // the next change heals it too
	whole()
}

func TestACommitOfUnknownOutcomeIsLookedFor(t *testing.T) {
	op := newOperator(t, newBroker(t))
	op.faults.set(unsure(t), nil, true)
	done, err := op.Change(within(t), func(tx *store.Tx) error { tx.Put(key("acme", "k")); return nil })
	if err != nil || done.Mark.N != 1 || len(op.mirror.Current().Keys) != 1 {
		t.Fatalf("%+v, %v", done, err)
	}
}

// unsure makes an error as a store gives it whose answer was lost.
func unsure(t *testing.T) error {
	b := newBroker(t)
	kv := open(t, b.connect(access.Operator), true)
	b.Shutdown()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	err := kv.PutSession(ctx, authority.Hash{}, nil, time.Hour)
	if !store.Unsure(err) {
		t.Fatalf("not unsure: %v", err)
	}
	return err
}

func TestNothingChangesWhileTheBrokerIsAway(t *testing.T) {
	b := newBroker(t)
	op := newOperator(t, b)
	b.Shutdown()
	_, err := op.Change(within(t), func(tx *store.Tx) error { tx.Put(key("acme", "k")); return nil })
	if !store.Unavailable(err) || store.Unsure(err) {
		t.Fatalf("%v", err)
	}
}

func TestADecisionThatRefuses(t *testing.T) {
	op := newOperator(t, newBroker(t))
	refusal := errors.New("no")
	if _, err := op.Change(within(t), func(tx *store.Tx) error { tx.Put(key("acme", "k")); return refusal }); err != refusal {
		t.Fatalf("%v", err)
	}
	if done, err := op.Change(within(t), func(tx *store.Tx) error { return nil }); err != nil || done.Mark.N != 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	if op.fence(t, "acme") != 0 {
		t.Error("a change that was refused has a fence")
	}
}

// TestManyChangersAtOnce has two processes change one counter: none is lost, and versions count the changes.
func TestManyChangersAtOnce(t *testing.T) {
	b := newBroker(t)
	ops := []*operator{newOperator(t, b), newOperator(t, b)}
	const each = 15
	var all sync.WaitGroup
	for i, op := range ops {
		for range each {
			all.Go(func() {
				for {
					_, err := op.Change(within(t), func(tx *store.Tx) error {
						n := int64(0)
						if k, ok := tx.Get(authority.Ref{Org: "acme", Kind: authority.KindKey, ID: "k"}).(*authority.KeyRecord); ok {
							n = k.RPMCeiling
						}
						k := key("acme", "k")
						k.RPMCeiling = n + 1
						tx.Put(k)
						return nil
					})
					if err == nil {
						return
					}
					if !store.Unavailable(err) {
						t.Errorf("changer %d: %v", i, err)
						return
					}
				}
			})
		}
	}
	all.Wait()
	head, err := ops[0].faults.Head(within(t))
	check(t, err)
	check(t, ops[0].mirror.Reached(within(t), head))
	ops[0].mirror.Read(func(s *authority.State, _ *authority.Snapshot) {
		if k := s.KeyOf("k"); k == nil || k.RPMCeiling != 2*each {
			t.Errorf("%+v", k)
		}
	})
	if version := ops[0].mirror.Current().Fence("acme"); version < 2*each || version != ops[0].fence(t, "acme") {
		t.Errorf("version %d, in the log %d", version, ops[0].fence(t, "acme"))
	}
}

func TestOneChangeOfManyOrgs(t *testing.T) {
	op := newOperator(t, newBroker(t))
	var records []authority.Record
	for i := range 300 {
		records = append(records, key(events.Org(fmt.Sprint("o", i)), fmt.Sprint("k", i)))
	}
	done := op.put(t, records...)
	if len(done.Fences) != 300 || len(op.mirror.Current().Keys) != 300 {
		t.Fatalf("%d fences, %d keys", len(done.Fences), len(op.mirror.Current().Keys))
	}
	for org, version := range done.Versions {
		if op.mirror.Current().Fence(org) != version {
			t.Errorf("%s: %d", org, version)
		}
	}
}
