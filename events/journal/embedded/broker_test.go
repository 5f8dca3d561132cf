package embedded_test

import (
	"context"
	"testing"

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
