//go:build chaos

package chaos

import (
	endian "encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A process whose wall clock can be stepped while it runs is the product built with one line more in the standard library's time.Now: it adds
// the whole seconds that stand in a file. What elapses, timers included, is untouched, as when a machine's clock is set.

// clockEnv names the file, in the environment of a process.
const clockEnv = "WEIR_CHAOS_CLOCK"

// In time.go, nowRead must stand once; nowStepped takes its place.
const (
	nowRead    = "\tsec, nsec, mono := runtimeNow()\n\tif mono == 0 {\n"
	nowStepped = "\tsec, nsec, mono := runtimeNow()\n\tsec += chaosStep.Load()\n\tif mono == 0 {\n"
)

// stepSource is added to package time.
const stepSource = `package time

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

// chaosStep is how many seconds the wall clock is ahead.
var chaosStep = openChaosStep()

func openChaosStep() *atomic.Int64 {
	path, named := syscall.Getenv("` + clockEnv + `")
	if !named {
		return new(atomic.Int64)
	}
	fd, err := syscall.Open(path, syscall.O_RDONLY, 0)
	if err != nil {
		panic(path + ": " + err.Error())
	}
	b, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(path + ": " + err.Error())
	}
	return (*atomic.Int64)(unsafe.Pointer(&b[0]))
}
`

// overlay writes the sources that are compiled in place of those of package time, once, and says where it says which. They have a place of
// their own in the build cache, so that what is compiled anew, all of a program, stays there.
var overlay = sync.OnceValues(func() (string, error) {
	text, err := exec.Command("go", "env", "GOROOT", "GOCACHE").Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	dirs := strings.Fields(string(text))
	if len(dirs) != 2 {
		return "", fmt.Errorf("go env says %q", text)
	}
	goTime, dir := filepath.Join(dirs[0], "src", "time"), filepath.Join(dirs[1], "weir-chaos")
	source, err := os.ReadFile(filepath.Join(goTime, "time.go"))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(source), nowRead); n != 1 {
		return "", fmt.Errorf("%s: what time.Now begins with stands there %d times, want once: this version of Go needs another replacement", goTime, n)
	}
	files := map[string]string{
		"time.go":       strings.Replace(string(source), nowRead, nowStepped, 1),
		"chaos_step.go": stepSource,
	}
	replace := map[string]string{}
	for name := range files {
		replace[filepath.Join(goTime, name)] = filepath.Join(dir, name)
	}
	text, err = json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	files["overlay.json"] = string(text)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if there, err := os.ReadFile(path); err == nil && string(there) == text {
			continue
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, "overlay.json"), nil
})

// The product, and the NATS server, with a clock that can be stepped.
var (
	steppingWeir = sync.OnceValues(func() (string, error) { return stepping("weir", "github.com/weirhq/weir/services/weir") })
	steppingNATS = sync.OnceValues(func() (string, error) { return stepping("nats-server", "github.com/nats-io/nats-server/v2") })
)

func stepping(name, program string) (string, error) {
	sources, err := overlay()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(binary), name+"-stepping")
	if text, err := exec.Command("go", "build", "-overlay", sources, "-o", path, program).CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s with a clock that can be stepped: %w\n%s", name, err, text)
	}
	return path, nil
}

// clock is the wall clock of a machine: of one process or of several.
type clock struct {
	tb   testing.TB
	file *os.File
}

// newClock gives processes that have not started yet one clock that can be stepped.
func newClock(tb testing.TB, all ...*process) *clock {
	tb.Helper()
	f, err := os.Create(filepath.Join(tb.TempDir(), "clock"))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = f.Close() })
	c := &clock{tb, f}
	c.off(0)
	for _, p := range all {
		build := steppingNATS
		if p.binary == binary {
			build = steppingWeir
		}
		program, err := build()
		if err != nil {
			tb.Fatal(err)
		}
		p.binary, p.env = program, append(p.env, clockEnv+"="+f.Name())
	}
	return c
}

// off sets how far the clock is ahead, in whole seconds.
func (c *clock) off(by time.Duration) {
	c.tb.Helper()
	var b [8]byte
	endian.NativeEndian.PutUint64(b[:], uint64(by/time.Second))
	if _, err := c.file.WriteAt(b[:], 0); err != nil {
		c.tb.Fatal(err)
	}
}
