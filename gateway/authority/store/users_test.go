package store_test

import (
	"context"
	"sync"
	"testing"

	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/store"
)

// TestAGatewayIsGivenNoPasswords has a gateway follow each store as its role may: it knows every key, and nobody who may sign in.
func TestAGatewayIsGivenNoPasswords(t *testing.T) {
	for name, open := range map[string]func(*testing.T) (manager *operator, gateway store.Backend){
		"kv": func(t *testing.T) (*operator, store.Backend) {
			b := newBroker(t)
			return newOperator(t, b), gates1(t, b)
		},
		"postgres": func(t *testing.T) (*operator, store.Backend) {
			url := database(t)
			return newOperatorOn(t, newBroker(t), openPostgres(t, url)), store.OpenPostgres(openPool(t, url), store.PostgresConfig{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			op, gate := open(t)
			var mu sync.Mutex
			kinds, last := map[authority.Kind]int{}, uint64(0)
			running(t, func(ctx context.Context) error {
				return gate.Follow(ctx, func(u store.Update) {
					mu.Lock()
					defer mu.Unlock()
					for _, w := range u.Writes {
						kinds[w.Ref.Kind]++
					}
					last = u.Mark.N
				})
			})
			user := &authority.UserRecord{ID: "u", Org: "acme", Email: "a@example.com", Role: authority.RoleOwner, Password: "argon2id"}
			var done store.Done
			for range 3 {
				done = op.put(t, &authority.OrgRecord{Org: "acme", Made: true}, key("acme", "k"), user)
			}
			check(t, mirror(t, gate).Reached(within(t), done.Mark))
			eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return last == done.Mark.N })
			mu.Lock()
			defer mu.Unlock()
			if kinds[authority.KindUser] != 0 || kinds[authority.KindKey] == 0 {
				t.Errorf("a gateway was given %v", kinds)
			}
			op.mirror.Read(func(s *authority.State, _ *authority.Snapshot) {
				if len(s.Org("acme").Users) != 1 {
					t.Error("who manages does not know who may sign in")
				}
			})
		})
	}
}
