package embedded_test

import (
	"context"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/access/accesstest"
	"github.com/weirhq/weir/events/journal/embedded"
)

func start(t *testing.T, cfg embedded.Config) *embedded.Broker {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), accesstest.Patience)
	defer cancel()
	b, err := embedded.Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	return b
}

func TestWhoMayDoWhat(t *testing.T) {
	credentials, secrets := accesstest.Credentials(t)
	b := start(t, embedded.Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0", Credentials: credentials})
	admin, err := b.Connect(access.Identity{Name: "admin-abcdefgh", Roles: []access.Role{access.System}})
	if err != nil {
		t.Fatal(err)
	}
	accesstest.Run(t, accesstest.Cluster{URL: b.URL(), Admin: admin, Secrets: secrets})
}

// A gateway that asks across accounts is named by the broker, so that it cannot ask in another's name.
func TestWhoAsksIsKnown(t *testing.T) {
	gate, secret, err := access.NewCredentials("gw", access.Gateway)
	if err != nil {
		t.Fatal(err)
	}
	b, err := embedded.Start(t.Context(), embedded.Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0", Credentials: access.Credentials{Identities: []access.Credential{gate}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	core, err := b.Connect(access.Identity{Name: "projector-00000001", Roles: []access.Role{access.System}})
	if err != nil {
		t.Fatal(err)
	}
	defer core.Close()
	if _, err := core.Subscribe(access.SubjectLive, func(m *nats.Msg) { _ = m.Respond([]byte(m.Header.Get("Nats-Request-Info"))) }); err != nil {
		t.Fatal(err)
	}
	if err := core.Flush(); err != nil {
		t.Fatal(err)
	}
	name, err := access.NewName("gw")
	if err != nil {
		t.Fatal(err)
	}
	nc, err := accesstest.Connect(b.URL(), secret.Options(access.Identity{Name: name, Roles: []access.Role{access.Gateway}})...)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	m, err := nc.Request(access.SubjectLive, nil, accesstest.Patience)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(m.Data), `"user":"`+name+`"`) {
		t.Errorf("the broker says %s of who asks, want the user %s", m.Data, name)
	}
}
