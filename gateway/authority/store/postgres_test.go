package store_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/store"
	"github.com/weirhq/weir/gateway/authority/store/storetest"
	"github.com/weirhq/weir/projections/postgres"
	"github.com/weirhq/weir/schemas/sql"
	"github.com/weirhq/weir/test/postgrestest"
)

// database gives the URL of a new schema with all migrations.
func database(t testing.TB) string {
	t.Helper()
	url := postgrestest.URL(t)
	m, err := postgres.Migrate(url, sql.Migrations)
	check(t, err)
	_, err = m.Up(within(t))
	check(t, err)
	check(t, m.Close())
	return url
}

// openPostgres opens a schema as another process would.
func openPostgres(t testing.TB, url string) *store.Postgres {
	t.Helper()
	return store.OpenPostgres(openPool(t, url), store.PostgresConfig{Users: true})
}

func openPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := postgres.Open(url, "test")
	check(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func TestPostgres(t *testing.T) {
	storetest.Run(t, func(t *testing.T) func() storetest.Store {
		url := database(t)
		return func() storetest.Store { return openPostgres(t, url) }
	})
}

// TestAnAnswerThatIsLost breaks the connection off between a commit and its answer: the change is made, and found to be.
func TestAnAnswerThatIsLost(t *testing.T) {
	url := database(t)
	proxy, through := postgrestest.Through(t, url)
	s := openPostgres(t, through)
	proxy.Lose("commit")
	_, err := s.Commit(within(t), store.Mark{}, "one", nil, nil)
	if !store.Unsure(err) || !store.Unavailable(err) || store.Conflict(err) {
		t.Fatalf("a commit whose answer was lost: %v", err)
	}
	if head, err := s.Head(within(t)); err != nil || head.N != 1 || head.ID != "one" {
		t.Fatalf("%+v, %v", head, err)
	}
	op := newOperatorOn(t, newBroker(t), s)
	proxy.Lose("commit")
	done, err := op.Change(within(t), func(tx *store.Tx) error { tx.Put(key("acme", "k")); return nil })
	if err != nil || done.Mark.N != 2 || len(op.mirror.Current().Keys) != 1 {
		t.Fatalf("%+v, %v", done, err)
	}
}

// TestADatabaseThatIsAway cuts the database off in the middle: nothing is changed meanwhile, and followers come back by themselves.
func TestADatabaseThatIsAway(t *testing.T) {
	url := database(t)
	proxy, through := postgrestest.Through(t, url)
	near, far := openPostgres(t, url), openPostgres(t, through)
	op := newOperatorOn(t, newBroker(t), near)
	op.put(t, &authority.OrgRecord{Org: "acme", Made: true}, key("acme", "k"))
	gate, other := mirror(t, far), newOperatorOn(t, newBroker(t), far)
	proxy.Cut()
	_, err := other.Change(within(t), func(tx *store.Tx) error { tx.Put(key("acme", "no")); return nil })
	if !store.Unavailable(err) || store.Unsure(err) || other.fence(t, "acme") != 0 {
		t.Fatalf("a change without the database: %v, fence %d", err, other.fence(t, "acme"))
	}
	done := op.put(t, key("acme", "l"))
	if n := len(gate.Current().Keys); n != 1 {
		t.Fatalf("%d keys known without the database", n)
	}
	proxy.Heal()
	check(t, gate.Reached(within(t), done.Mark))
	if n := len(gate.Current().Keys); n != 2 {
		t.Errorf("%d keys known after the database came back", n)
	}
}

// TestADatabaseOfAnEarlierDay has a follower see a database that was restored from a copy, and written to until it is as long as it was.
func TestADatabaseOfAnEarlierDay(t *testing.T) {
	url := database(t)
	s := openPostgres(t, url)
	op := newOperatorOn(t, newBroker(t), s)
	op.put(t, key("acme", "first"))
	op.put(t, key("acme", "lost"))
	pool, err := postgres.Open(url, "test")
	check(t, err)
	defer pool.Close()
	for _, statement := range []string{
		"DELETE FROM authority_records WHERE record LIKE '%lost'", "DELETE FROM authority_changes WHERE n = 2", "UPDATE authority_head SET n = 1, id = (SELECT id FROM authority_changes WHERE n = 1)",
	} {
		_, err := pool.Exec(within(t), statement)
		check(t, err)
	}
	head, err := s.Head(within(t))
	check(t, err)
	for _, id := range []string{"two", "three"} {
		head, err = s.Commit(within(t), head, id, []store.Write{{Ref: ref("acme", id), Value: encode(t, key("acme", id))}}, nil)
		check(t, err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		ids := map[string]bool{}
		for _, k := range op.mirror.Current().Keys {
			ids[k.ID] = true
		}
		if len(ids) == 3 && ids["first"] && ids["two"] && ids["three"] {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the follower knows %v", ids)
		}
	}
}

func ref(org events.Org, id string) authority.Ref {
	return authority.Ref{Org: org, Kind: authority.KindKey, ID: id}
}

func encode(t testing.TB, r authority.Record) []byte {
	t.Helper()
	b, err := json.Marshal(r)
	check(t, err)
	return b
}

// TestManyKeysAtOnce puts them in one change, and changes one of them.
func TestManyKeysAtOnce(t *testing.T) {
	const keys = 30_000 // several statements
	s := openPostgres(t, database(t))
	op := newOperatorOn(t, newBroker(t), s)
	records := []authority.Record{&authority.OrgRecord{Org: "acme", Made: true}}
	for i := range keys {
		records = append(records, key("acme", fmt.Sprint("k", i)))
	}
	begin := time.Now()
	op.put(t, records...)
	t.Logf("%d keys put in %s", keys, time.Since(begin))
	begin = time.Now()
	gate := mirror(t, s)
	t.Logf("read in %s", time.Since(begin))
	if n := len(gate.Current().Keys); n != keys {
		t.Fatalf("%d keys", n)
	}
	begin = time.Now()
	done, err := op.Change(within(t), func(tx *store.Tx) error { tx.Delete(ref("acme", "k7")); return nil })
	check(t, err)
	check(t, gate.Reached(within(t), done.Mark))
	t.Logf("one taken away in %s", time.Since(begin))
	if _, denial := authority.Authenticate(gate.Current(), "raw-k7", time.Now()); denial == "" {
		t.Error("the key is still there")
	}
}

// TestASlowDatabase has every answer of the database take 2 s: what is known is never quite verified and never old, changes are made, and
// come.
func TestASlowDatabase(t *testing.T) {
	url := database(t)
	proxy, through := postgrestest.Through(t, url)
	far := openPostgres(t, through)
	op := newOperatorOn(t, newBroker(t), openPostgres(t, url))
	gate, slow := mirror(t, far), newOperatorOn(t, newBroker(t), far)
	eventually(t, func() bool { return !gate.Verified().IsZero() && time.Since(gate.Verified()) < store.VerifiedFor })
	proxy.Slow(2 * time.Second)
	eventually(t, func() bool { return time.Since(gate.Verified()) > store.VerifiedFor })
	done := op.put(t, key("acme", "k"))
	check(t, gate.Reached(within(t), done.Mark))
	begin := gate.Verified()
	eventually(t, func() bool { return gate.Verified().After(begin) })
	if age := time.Since(gate.Verified()); age < store.VerifiedFor || age > patience/2 {
		t.Errorf("it was verified %s ago", age)
	}
	if done := slow.put(t, key("acme", "l")); done.Mark.N != 2 {
		t.Errorf("%+v", done)
	}
	check(t, gate.Reached(within(t), store.Mark{N: 2}))
	if n := len(gate.Current().Keys); n != 2 {
		t.Errorf("%d keys", n)
	}
}
