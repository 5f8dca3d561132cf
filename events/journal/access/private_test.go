package access_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/weirhq/weir/events/journal/access"
)

// TestSecretOfAnotherUser: a secret that another user gives through a group, as a mounted volume does, may be readable by that group; one's
// own may not.
func TestSecretOfAnotherUser(t *testing.T) {
	_, secret, err := access.NewCredentials("gw", access.Gateway)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "secret")
	if err := access.WriteSecret(path, secret); err != nil {
		t.Fatal(err)
	}
	reads := func(mode os.FileMode) bool {
		t.Helper()
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := access.ReadSecret(path)
		return err == nil
	}
	if !reads(0o600) || reads(0o640) || reads(0o604) {
		t.Error("one's own secret must be for oneself alone")
	}
	if os.Geteuid() != 0 {
		return // only root can give a file away
	}
	if err := os.Chown(path, 65534, 0); err != nil {
		t.Fatal(err)
	}
	if !reads(0o440) || reads(0o460) || reads(0o444) {
		t.Error("another's may be read by its group, not written, and by nobody else")
	}
}
