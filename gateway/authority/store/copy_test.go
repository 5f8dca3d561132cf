package store_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/store"
)

// kept is what a backend gives who begins to follow it.
func kept(t *testing.T, b store.Backend) map[string]string {
	t.Helper()
	ctx, stop := context.WithCancel(within(t))
	defer stop()
	all := map[string]string{}
	check(t, b.Follow(ctx, func(u store.Update) {
		for _, w := range u.Writes {
			all[w.Ref.String()] = string(w.Value)
		}
		stop()
	}))
	return all
}

// ofEveryKind are records of each kind, with all that a copy could lose.
func ofEveryKind() []authority.Record {
	at := time.Date(2026, 3, 2, 10, 0, 0, 5, time.UTC)
	return []authority.Record{
		&authority.OrgRecord{Org: "acme", Name: "Acme, \"Inc\"", Made: true, Credited: true, Billing: "prepaid", CreatedAt: at, Override: &authority.Override{Key: authority.LimitSet{RPM: 7}}},
		&authority.OrgRecord{Org: "gone", Deleted: true},
		&authority.ScopeRecord{Org: "acme", Kind: authority.KindWorkspace, ID: "w", Limits: authority.LimitSet{SpendDay: 5, Closed: true}},
		&authority.ScopeRecord{Org: "acme", Kind: authority.KindPrincipal, ID: "p"},
		key("acme", "k/1"),
		&authority.LimitRecord{Org: "acme", Scope: events.ScopeKey, Subject: "k/1", TPM: 9, UpdatedAt: at},
		&authority.PoolRecord{ID: "own", Org: "acme", Provider: "openai", RPM: 1, TPM: 2, Concurrency: 3, Headroom: 4},
		&authority.ConnectionRecord{ID: "c", Org: "acme", Provider: "openai", Pool: "own", Credential: []byte{0, 1, 0xff}},
		&authority.PriceRecord{Model: "m", Versions: []authority.PriceVersion{{Version: "a", From: at, Input: 1}, {Version: "b", From: at.Add(time.Hour), Output: 2}}},
		&authority.UserRecord{ID: "u", Org: "acme", Email: "a@example.com", Role: authority.RoleOwner, Password: "$argon2id$x"},
		&authority.CreditRecord{Org: "acme", Reference: "invoice-1", AmountNano: 5, At: at},
		&authority.RegistryRecord{Version: "v7"},
	}
}

// TestCopy takes what is kept in a bucket over into a database, and from there into another bucket.
func TestCopy(t *testing.T) {
	b, empty := newBroker(t), newBroker(t)
	bucket, database := open(t, b.connect(access.System), true), openPostgres(t, database(t))
	op := newOperatorOn(t, b, bucket)
	op.put(t, append(ofEveryKind(), key("acme", "k2"))...)
	_, err := op.Change(within(t), func(tx *store.Tx) error { tx.Delete(ref("acme", "k2")); return nil })
	check(t, err)
	last := op.put(t, key("acme", "k3"))
	want := kept(t, bucket)

	if c, err := store.Copy(within(t), open(t, empty.connect(access.System), true), database, "nothing"); err != nil || c != (store.Copied{}) {
		t.Errorf("of nothing: %+v, %v", c, err)
	}
	moved := &moving{Backend: bucket}
	if _, err := store.Copy(within(t), moved, database, "early"); !store.Conflict(err) || len(kept(t, database)) != 0 {
		t.Errorf("while something is changed: %v; %d records are there", err, len(kept(t, database)))
	}
	for i, made := range []bool{true, false} {
		c, err := store.Copy(within(t), bucket, database, "copy")
		if err != nil || c.Made != made || c.Records != len(want) || c.Orgs != 3 { // one is the house's
			t.Fatalf("time %d: %+v, %v; want %d records", i+1, c, err, len(want))
		}
		if diff := cmp.Diff(want, kept(t, database)); diff != "" {
			t.Fatal(diff)
		}
	}
	second := open(t, empty.connect(access.System), true)
	if c, err := store.Copy(within(t), database, second, "back"); err != nil || !c.Made {
		t.Fatalf("back: %+v, %v", c, err)
	}
	if diff := cmp.Diff(want, kept(t, second)); diff != "" {
		t.Fatal(diff)
	}

	after := newOperatorOn(t, b, database).put(t, key("acme", "k4"))
	if after.Versions["acme"] <= last.Versions["acme"] {
		t.Errorf("version %d after %d", after.Versions["acme"], last.Versions["acme"])
	}
	changed := kept(t, database)
	_, err = store.Copy(within(t), bucket, database, "again")
	if !store.Conflict(err) || !strings.Contains(err.Error(), "2 are not as they would be copied, the first of them acme/key/k4") {
		t.Errorf("over what was changed: %v", err)
	}
	if diff := cmp.Diff(changed, kept(t, database)); diff != "" {
		t.Error(diff)
	}
}

// moving is a backend in which a change is made while it is read.
type moving struct{ store.Backend }

func (m *moving) Head(ctx context.Context) (store.Mark, error) {
	head, err := m.Backend.Head(ctx)
	head.N++
	return head, err
}
