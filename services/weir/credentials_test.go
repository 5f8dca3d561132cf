package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/access/accesstest"
	"github.com/weirhq/weir/events/journal/embedded"
)

// TestCredentials: what the command writes lets a process join a log, and stops letting it when the secret is changed.
func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "credentials.yaml")
	add := func(want int, says string, args ...string) {
		t.Helper()
		var out, complaints bytes.Buffer
		if code := run(append([]string{"credentials", "add", "--file", file}, args...), &out, &complaints); code != want || !strings.Contains(out.String()+complaints.String(), says) {
			t.Fatalf("%v: code %d, %s%s", args, code, &out, &complaints)
		}
	}
	secret := func(name string) access.Secret {
		t.Helper()
		s, err := access.ReadSecret(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	add(0, "may join as gateway", "gw", "--roles", "gateway", "--secret", filepath.Join(dir, "first"))
	add(1, "name another file with --secret", "gw", "--roles", "gateway", "--secret", filepath.Join(dir, "first"))
	add(1, `role "king"`, "gw", "--roles", "king", "--secret", filepath.Join(dir, "king"))
	add(0, "may join", "gw", "--roles", "gateway", "--secret", filepath.Join(dir, "second"), "--keep")
	add(0, "may join", "core", "--roles", "projector,auditor", "--secret", filepath.Join(dir, "core"))

	credentials, err := access.ReadCredentials(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := embedded.Start(t.Context(), embedded.Config{DataDir: filepath.Join(dir, "log"), Listen: "127.0.0.1:0", Credentials: credentials})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	joins := func(name string, roles ...access.Role) bool {
		s := secret(name)
		full, err := access.NewName(s.Name)
		if err != nil {
			t.Fatal(err)
		}
		nc, err := accesstest.Connect(b.URL(), s.Options(access.Identity{Name: full, Roles: roles})...)
		if err != nil {
			return false
		}
		nc.Close()
		return true
	}
	if !joins("first", access.Gateway) || !joins("second", access.Gateway) || !joins("core", access.Projector, access.Auditor) {
		t.Error("a secret that was made does not let its process join")
	}
	add(0, "may join", "gw", "--roles", "gateway", "--secret", filepath.Join(dir, "third"))
	if credentials, err = access.ReadCredentials(file); err != nil {
		t.Fatal(err)
	}
	if err := b.ReplaceCredentials(credentials); err != nil {
		t.Fatal(err)
	}
	if joins("first", access.Gateway) || joins("second", access.Gateway) || !joins("third", access.Gateway) || !joins("core", access.Projector, access.Auditor) {
		t.Error("after the secret was changed others than the new one let the process join, or another's does not")
	}
}

// TestCalloutKeys: the printed public keys are those of the seeds that were written, for their owner alone.
func TestCalloutKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	var out, complaints bytes.Buffer
	if code := run([]string{"credentials", "keys", "--out", file}, &out, &complaints); code != 0 {
		t.Fatal(complaints.String())
	}
	keys, err := access.ReadCalloutKeys(file)
	if err != nil {
		t.Fatal(err)
	}
	user, issuer, xkey, err := keys.Public()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"WEIR_NATS_USER=" + user, "WEIR_NATS_ISSUER=" + issuer, "WEIR_NATS_XKEY=" + xkey} {
		if !strings.Contains(out.String(), line+"\n") {
			t.Errorf("%s is not printed:\n%s", line, &out)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 || strings.Contains(out.String(), keys.Issuer) {
		t.Errorf("the seeds are in a file of mode %v (%v), or were printed", info.Mode(), err)
	}
	if code := run([]string{"credentials", "keys", "--out", file}, &out, &complaints); code == 0 {
		t.Error("keys that are there were written over")
	}
}
