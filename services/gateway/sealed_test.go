package gateway

import (
	"bytes"
	"crypto/rand"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/seal"
	"github.com/weirhq/weir/services/follow"
)

func newSealKeys(t *testing.T, id string) *seal.Keys {
	t.Helper()
	text, err := seal.NewKey(id, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := seal.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// TestAKeyTakenAwayEmptiesNoCredential: a snapshot in use tells the credential that it was made with, also when the key is gone, and the
// next one has none; that is said once, however often snapshots are made.
func TestAKeyTakenAwayEmptiesNoCredential(t *testing.T) {
	var said bytes.Buffer
	g := &Gateway{unopened: follow.NewWarnings("authority", slog.New(slog.NewTextHandler(&said, nil)), func() time.Time { return time.Unix(0, 0) })}
	old := newSealKeys(t, "old")
	g.keys.Store(old)
	sealed, err := old.Seal("acme", "c", "sk-provider", rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	record := &authority.ConnectionRecord{ID: "c", Org: "acme", Credential: sealed}
	tell := g.credential(record)
	if tell == nil {
		t.Fatal("the credential cannot be opened")
	}
	g.keys.Store(newSealKeys(t, "new"))
	if got := tell(); got != "sk-provider" {
		t.Errorf("a snapshot in use tells %q", got)
	}
	for range 3 {
		if g.credential(record) != nil {
			t.Fatal("a credential that cannot be opened is one")
		}
	}
	if n := strings.Count(said.String(), "connection c of org acme"); n != 1 {
		t.Errorf("said %d times: %s", n, said.String())
	}
}
