package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/access/accesstest"
	"github.com/weirhq/weir/events/journal/embedded"
	"github.com/weirhq/weir/gateway/authority/store"
	"github.com/weirhq/weir/gateway/authority/store/storetest"
	"github.com/weirhq/weir/test/postgrestest"
)

// patience is how long what must happen is waited for.
const patience = 2 * time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.Cleanup(postgrestest.Exit)) }

// broker is a broker in process which gateways may join over TCP.
type broker struct {
	t testing.TB
	*embedded.Broker
	secret access.Secret
}

func newBroker(t testing.TB) *broker {
	t.Helper()
	c, secret, err := access.NewCredentials("gw", access.Gateway)
	check(t, err)
	b, err := embedded.Start(within(t), embedded.Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0", Credentials: access.Credentials{Identities: []access.Credential{c}}})
	check(t, err)
	t.Cleanup(b.Shutdown)
	return &broker{t, b, secret}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits until something has happened.
func eventually(t testing.TB, happened func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !happened(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not happen")
		}
	}
}

// connect gives a connection in process.
func (b *broker) connect(roles ...access.Role) *nats.Conn {
	b.t.Helper()
	name, err := access.NewName("op")
	check(b.t, err)
	nc, err := b.Connect(access.Identity{Name: name, Roles: roles}, journal.Options(name)...)
	check(b.t, err)
	return nc
}

// join gives a gateway's connection over TCP, and its name.
func (b *broker) join() (*nats.Conn, string) {
	b.t.Helper()
	name, err := access.NewName("gw")
	check(b.t, err)
	nc, err := accesstest.Connect(b.URL(), append(journal.Options(name), b.secret.Options(access.Identity{Name: name, Roles: []access.Role{access.Gateway}})...)...)
	check(b.t, err)
	b.t.Cleanup(nc.Close)
	return nc, name
}

func open(t testing.TB, nc *nats.Conn, create bool) *store.KV {
	t.Helper()
	s, err := store.OpenKV(within(t), nc, store.KVConfig{Create: create, Users: create})
	check(t, err)
	return s
}

func TestKV(t *testing.T) {
	storetest.Run(t, func(t *testing.T) func() storetest.Store {
		b := newBroker(t)
		return func() storetest.Store { return open(t, b.connect(access.Operator), true) }
	})
}
