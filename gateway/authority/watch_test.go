package authority_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

func TestReloadKeepsTheLastValid(t *testing.T) {
	dir := t.TempDir()
	file, policies := filepath.Join(dir, "auth.yaml"), filepath.Join(dir, "policies")
	if err := os.Mkdir(policies, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir, map[string]string{"auth.yaml": keys("")})
	clock := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	var reports []authority.Reloaded
	source := authority.Source{Declared: &authority.Declared{Models: []*authority.Model{local("m", 1)}}, AuthFile: file, Policies: policies}
	w, err := authority.Watch(source, func() time.Time { return clock }, func(r authority.Reloaded) { reports = append(reports, r) })
	if err != nil {
		t.Fatal(err)
	}
	first := w.Current()
	if len(first.Keys) != 1 || !first.LoadedAt.Equal(clock) {
		t.Fatalf("%+v", first)
	}

	write(t, dir, map[string]string{"auth.yaml": keys("      quota: {tokens_per_day: lots}\n")})
	if err := w.Reload(); err == nil || !strings.Contains(err.Error(), "auth.yaml:6: api.keys[0].quota.tokens_per_day is lots: must be a whole number") {
		t.Error(err)
	}
	if w.Current() != first || w.Last().Err == nil || w.Last().Snapshot != first {
		t.Error("an invalid file changed the snapshot")
	}

	clock = clock.Add(time.Minute)
	write(t, dir, map[string]string{"auth.yaml": keys("      quota: {tokens_per_day: 9}\n")})
	write(t, policies, map[string]string{"m.yaml": "models: [m]\nmax_inflight: 3\n"})
	if err := w.Reload(); err != nil {
		t.Fatal(err)
	}
	second := w.Current()
	if second == first || second.Models["m"].Policy.MaxInflight != 3 || !second.LoadedAt.Equal(clock) {
		t.Errorf("%+v", second)
	}
	if first.Models["m"].Policy.MaxInflight != 0 {
		t.Error("the first snapshot has changed")
	}

	write(t, policies, map[string]string{"m.yaml": "models: [m]\nmax_inflight: -3\n"})
	write(t, dir, map[string]string{"auth.yaml": "api: {mode: maybe}\n"})
	if err := w.Reload(); err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("not every fault of every file: %v", err)
	}
	if w.Current() != second || len(reports) != 3 || reports[2].Err == nil || reports[1].Err != nil {
		t.Errorf("%d reports", len(reports))
	}
}

func TestALostFileLetsNobodyIn(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "auth.yaml")
	source := authority.Source{Declared: &authority.Declared{}, AuthFile: file, Optional: true}
	w, err := authority.Watch(source, time.Now, nil)
	if err != nil {
		t.Fatal(err)
	}
	if w.Current().Mode != authority.ModeNone {
		t.Error("without the file everybody is let in")
	}
	write(t, dir, map[string]string{"auth.yaml": keys("")})
	if err := w.Reload(); err != nil || w.Current().Mode != authority.ModeAPIKey {
		t.Errorf("%v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := w.Reload(); err == nil || w.Current().Mode != authority.ModeAPIKey {
		t.Errorf("the file is gone, the mode is %s, %v", w.Current().Mode, err)
	}
	source.Optional = false
	if _, err := authority.Watch(source, time.Now, nil); err == nil {
		t.Error("a named file need not be there")
	}
}

// TestAFileCutShortOpensNothing: an editor that empties a file before it writes it, or a disk that is full, lets nobody in and opens no gate.
func TestAFileCutShortOpensNothing(t *testing.T) {
	dir := t.TempDir()
	policies := filepath.Join(dir, "policies")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.Mkdir(policies, 0o700))
	good := map[string]string{"m.yaml": "models: [m]\nmax_inflight: 3\n", "_default.yaml": "max_inflight: 5\n"}
	write(t, dir, map[string]string{"auth.yaml": keys("")})
	write(t, policies, good)
	source := authority.Source{Declared: &authority.Declared{Models: []*authority.Model{local("m", 1), local("other", 1)}}, AuthFile: filepath.Join(dir, "auth.yaml"), Policies: policies}
	w, err := authority.Watch(source, time.Now, nil)
	check(err)
	first := w.Current()
	for _, c := range []struct{ file, text, fault string }{
		{"auth.yaml", "", "auth.yaml:1: api.mode: must be given, as it was api-key before"},
		{"auth.yaml", "# soon\n", "auth.yaml:1: api.mode: must be given"},
		{"auth.yaml", "api:\n  mode:", "auth.yaml:1: api.mode: must be given"},
		{"policies/m.yaml", "", "m.yaml:1: models: must be given"},
		{"policies/m.yaml", "models:\n", "m.yaml:1: models: must be given"},
		{"policies/_default.yaml", "\n", "_default.yaml:1: models: must be given"},
	} {
		write(t, dir, map[string]string{c.file: c.text})
		if err := w.Reload(); err == nil || !strings.Contains(err.Error(), c.fault) || w.Current() != first {
			t.Errorf("%s is %q: %v", c.file, c.text, err)
		}
		write(t, dir, map[string]string{"auth.yaml": keys("")})
		write(t, policies, good)
	}
	check(os.Rename(policies, policies+"-away"))
	if err := w.Reload(); err == nil || !strings.Contains(err.Error(), "the directory is gone") || w.Current() != first {
		t.Errorf("without the directory: %v", err)
	}
	check(os.Rename(policies+"-away", policies))
	check(os.Remove(filepath.Join(policies, "m.yaml"))) // that is meant
	write(t, dir, map[string]string{"auth.yaml": "api: {mode: none}\n"})
	if err := w.Reload(); err != nil || w.Current().Mode != authority.ModeNone || w.Current().Models["m"].Policy.MaxInflight != 5 {
		t.Errorf("what is meant: %v, mode %s, %+v", err, w.Current().Mode, w.Current().Models["m"].Policy)
	}
}

func TestFilesAreWatched(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := t.TempDir()
	policies := filepath.Join(dir, "policies")
	write(t, dir, map[string]string{"auth.yaml": keys("")})
	reports := make(chan authority.Reloaded, 64)
	source := authority.Source{Declared: &authority.Declared{Models: []*authority.Model{local("m", 1)}}, AuthFile: filepath.Join(dir, "auth.yaml"), Policies: policies}
	w, err := authority.Watch(source, time.Now, func(r authority.Reloaded) { reports <- r })
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()

	// until repeats a change until the snapshot shows it: the watch may begin after the first.
	until := func(what string, change func(), shows func(*authority.Snapshot) bool) {
		t.Helper()
		deadline := time.After(patience)
		for {
			change()
			select {
			case <-reports:
			case <-time.After(2 * time.Second):
			case <-deadline:
				t.Fatalf("%s is not seen", what)
			}
			if shows(w.Current()) {
				return
			}
		}
	}
	until("a file written over", func() { write(t, dir, map[string]string{"auth.yaml": keys("      quota: {tokens_per_day: 9}\n")}) },
		func(s *authority.Snapshot) bool { return s.Keys[authority.HashKey("1")].Quota.TokensPerDay == 9 })
	until("a file renamed over", func() {
		write(t, dir, map[string]string{"new": keys("      quota: {tokens_per_day: 10}\n")})
		if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "auth.yaml")); err != nil {
			t.Fatal(err)
		}
	}, func(s *authority.Snapshot) bool { return s.Keys[authority.HashKey("1")].Quota.TokensPerDay == 10 })
	until("a new directory's file", func() {
		_ = os.Mkdir(policies, 0o700)
		write(t, policies, map[string]string{"m.yaml": "models: [m]\nmax_inflight: 3\n"})
	}, func(s *authority.Snapshot) bool { return s.Models["m"].Policy.MaxInflight == 3 })
	until("a file removed", func() { _ = os.Remove(filepath.Join(policies, "m.yaml")) },
		func(s *authority.Snapshot) bool { return s.Models["m"].Policy.MaxInflight == 0 })
}

func TestReloadKeepsTheFences(t *testing.T) {
	w, err := authority.Watch(authority.Source{Declared: &authority.Declared{}}, time.Now, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := w.Current()
	w.SetFences(map[events.Org]int64{"acme": 3})
	if before.Fence("acme") != 0 || w.Current().Fence("acme") != 3 {
		t.Error("the fences are set in the wrong snapshot")
	}
	if err := w.Reload(); err != nil || w.Current().Fence("acme") != 3 {
		t.Errorf("%v %v", w.Current().Fences, err)
	}
}
