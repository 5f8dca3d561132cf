package authority

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/weirhq/weir/events"
)

// settle is how long files must be quiet before they are read again: editors and mounts change them in several steps.
const settle = 200 * time.Millisecond

// Source says where static authority comes from.
type Source struct {
	Declared *Declared
	AuthFile string // "" or, with Optional, not there: mode none
	Optional bool   // AuthFile need not be there
	Policies string // a directory; "" or not there: none
}

// Load reads all files and builds a snapshot. The error is Faults: all that is wrong, in any of them.
func (s *Source) Load() (*Snapshot, []Warning, error) {
	snapshot, warnings, _, err := s.load(false, nil)
	return snapshot, warnings, err
}

// load also says whether auth.yaml was there. Once it was, its absence is a fault: nobody is let in because a file got lost. Neither is
// anybody let in, or a gate opened, because a file was cut short: old is the snapshot in use, if there is one.
func (s *Source) load(must bool, old *Snapshot) (snapshot *Snapshot, warnings []Warning, found bool, err error) {
	auth, policies := None(), &Policies{Default: Policy{Step: Step{Strategy: LeastLoaded}}}
	var faults Faults
	if s.AuthFile != "" {
		_, statErr := os.Stat(s.AuthFile)
		found = !errors.Is(statErr, os.ErrNotExist)
		if found || must || !s.Optional {
			read, err := LoadAuth(s.AuthFile)
			faults.Take(err)
			if read != nil {
				auth = read
				faults.Take(auth.cutShort(old))
			}
		}
	}
	if s.Policies != "" {
		read, err := LoadPolicies(s.Policies)
		faults.Take(err)
		if read != nil {
			policies = read
			faults.Take(policies.cutShort(s.Policies, old))
		}
	}
	if err := faults.Err(); err != nil {
		return nil, nil, found, err
	}
	snapshot, warnings, err = Build(s.Declared, auth, policies)
	return snapshot, warnings, found, err
}

// cutShort says that a file no longer asks for keys, and not that it should not.
func (a *Auth) cutShort(old *Snapshot) error {
	if old == nil || old.Mode == ModeNone || !a.Unsaid {
		return nil
	}
	return Faults{{Pos: Pos{File: a.File, Line: 1}, Field: "api.mode", Rule: fmt.Sprintf("must be given, as it was %s before: none lets everybody in", old.Mode)}}
}

// cutShort says which files, or that the whole directory, no longer have the policies that are in use.
func (p *Policies) cutShort(dir string, old *Snapshot) error {
	if old == nil {
		return nil
	}
	used := map[string]bool{}
	for _, m := range old.Models {
		if m.Policy.File != "" {
			used[m.Policy.File] = true
		}
	}
	var faults Faults
	if _, err := os.Stat(dir); len(used) > 0 && errors.Is(err, os.ErrNotExist) {
		faults.Add(Fault{Pos: Pos{File: dir}, Rule: "the directory is gone, and its policies are in use: to take one away remove its file"})
	}
	for _, file := range p.Bare {
		if used[file] {
			faults.Add(Fault{Pos: Pos{File: file, Line: 1}, Field: "models", Rule: "must be given: the policy that the file had is in use; to take it away remove the file"})
		}
	}
	return faults.Err()
}

// Reloaded is what one reading of the files came to.
type Reloaded struct {
	Snapshot *Snapshot // in use now: the last valid one if Err is set
	Warnings []Warning
	Err      error // Faults; nil if the files were valid
}

// Watcher keeps the last valid snapshot of the files and reads them again when they change.
type Watcher struct {
	source  Source
	now     func() time.Time
	report  func(Reloaded)
	current atomic.Pointer[Snapshot]

	mu     sync.Mutex // held while files are read, so that readings do not overtake one another
	found  bool       // auth.yaml has been there
	accept func(*Snapshot) error
	last   Reloaded
}

// Watch loads the files, which must be valid. report, if any, is told of every later reading; now dates the snapshots.
func Watch(source Source, now func() time.Time, report func(Reloaded)) (*Watcher, error) {
	w := &Watcher{source: source, now: now, report: report}
	if err := w.read(); err != nil {
		return nil, err
	}
	return w, nil
}

// Accept has later readings judged by more than the files: with an error the snapshot is not valid, and the last valid one stays.
func (w *Watcher) Accept(judge func(*Snapshot) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.accept = judge
}

// Current is the snapshot in use. It never blocks.
func (w *Watcher) Current() *Snapshot { return w.current.Load() }

// Last is what the last reading came to.
func (w *Watcher) Last() Reloaded {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// Reload reads the files now, as on SIGHUP. If they are not valid the error says so and the snapshot stays as it is.
func (w *Watcher) Reload() error {
	err := w.read()
	if w.report != nil {
		w.report(w.Last())
	}
	return err
}

// SetFences puts the versions of the orgs' dynamic authority into the snapshot in use and into all later ones.
func (w *Watcher) SetFences(fences map[events.Org]int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.current.Load().WithFences(maps.Clone(fences))
	w.current.Store(s)
	w.last.Snapshot = s
}

func (w *Watcher) read() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.current.Load()
	s, warnings, found, err := w.source.load(w.found, old)
	if err == nil && w.accept != nil {
		err = w.accept(s)
	}
	if err != nil {
		w.last = Reloaded{Snapshot: old, Warnings: warnings, Err: err}
		return err
	}
	w.found = w.found || found
	s.LoadedAt = w.now()
	if old != nil {
		s.Fences = old.Fences
	}
	w.current.Store(s)
	w.last = Reloaded{Snapshot: s, Warnings: warnings}
	return nil
}

// Run reads the files again whenever they have changed, until ctx ends. The error says that they cannot be watched.
func (w *Watcher) Run(ctx context.Context) error {
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watch.Close()
	for _, dir := range w.directories() {
		if err := watch.Add(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	quiet := time.NewTimer(time.Hour)
	quiet.Stop()
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-watch.Events:
			if !ok {
				return nil
			}
			if w.concerns(e.Name) {
				if e.Has(fsnotify.Create) && filepath.Clean(e.Name) == filepath.Clean(w.source.Policies) {
					_ = watch.Add(e.Name) // the directory has come into being
				}
				quiet.Reset(settle)
			}
		case err, ok := <-watch.Errors:
			if !ok {
				return nil
			}
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				quiet.Reset(settle)
			}
		case <-quiet.C:
			_ = w.Reload() // reported
		}
	}
}

// directories are watched rather than files: files are often replaced by renaming another over them.
func (w *Watcher) directories() []string {
	var dirs []string
	if w.source.AuthFile != "" {
		dirs = append(dirs, filepath.Dir(w.source.AuthFile))
	}
	if w.source.Policies != "" {
		dirs = append(dirs, filepath.Clean(w.source.Policies), filepath.Dir(filepath.Clean(w.source.Policies)))
	}
	return dirs
}

func (w *Watcher) concerns(name string) bool {
	name = filepath.Clean(name)
	if filepath.Base(name) == "..data" { // a mounted volume's switch from one set of files to the next
		return true
	}
	policies := filepath.Clean(w.source.Policies)
	return name == filepath.Clean(w.source.AuthFile) || w.source.Policies != "" && (name == policies || filepath.Dir(name) == policies)
}
