package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckReadsSecrets: what would keep a process from starting is said beforehand. Keys to seal with that are made one after the
// other can stand in one file.
func TestCheckReadsSecrets(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want int, says string) {
		t.Helper()
		var out, complaints bytes.Buffer
		if code := run([]string{"check", "-c", filepath.Join(dir, "weir.yaml")}, &out, &complaints); code != want || !strings.Contains(out.String()+complaints.String(), says) {
			t.Errorf("code %d, want %d and %q:\n%s%s", code, want, says, &out, &complaints)
		}
	}
	key := func(args ...string) string {
		t.Helper()
		var out, complaints bytes.Buffer
		if code := run(append([]string{"seal", "keygen"}, args...), &out, &complaints); code != 0 {
			t.Fatalf("%v: %s", args, &complaints)
		}
		return out.String()
	}
	first := key()
	if id, _, _ := strings.Cut(first, ":"); len(id) != len(keyMoment) {
		t.Errorf("a key is called %q", id)
	}
	write("weir.yaml", "seal: {keys_file: seal.keys}\nlog: {listen: \"127.0.0.1:0\", credentials: joining.yaml}\n", 0o600)
	check(1, "seal.keys: cannot be read")
	check(1, "joining.yaml")
	write("seal.keys", key("--id", "new")+first, 0o600)
	write("joining.yaml", "identities: [{name: gw, roles: [king], sha256: []}]\n", 0o600)
	check(1, "king")
	write("joining.yaml", "identities: []\n", 0o600)
	check(0, "valid")
	write("seal.keys", first+first, 0o600)
	check(1, "its id is another's")
}
