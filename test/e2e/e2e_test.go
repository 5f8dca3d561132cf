// Package e2e drives the whole product as its users do: with the SDKs of OpenAI and Anthropic and with plain HTTP, against gateways in
// this process and in processes of their own.
package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// builds keeps what binary makes.
var builds struct {
	once sync.Once
	dir  string
	err  error
}

// binary is the product as users run it, built once for all tests that need processes.
func binary(tb testing.TB) string {
	tb.Helper()
	builds.once.Do(func() {
		if builds.dir, builds.err = os.MkdirTemp("", "weir-e2e-"); builds.err != nil {
			return
		}
		if builds.err = os.Chmod(builds.dir, 0o755); builds.err != nil { // some tests run it as another user
			return
		}
		text, err := exec.Command("go", "build", "-o", filepath.Join(builds.dir, "weir"), "github.com/weirhq/weir/services/weir").CombinedOutput()
		if err != nil {
			builds.err = fmt.Errorf("building weir: %w\n%s", err, text)
		}
	})
	if builds.err != nil {
		tb.Fatal(builds.err)
	}
	return filepath.Join(builds.dir, "weir")
}

// brokers are goroutines that nats-server rarely leaves behind when it is shut down while it makes a stream.
var brokers = []goleak.Option{
	goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
	goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
}

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	defer func() { _ = os.RemoveAll(builds.dir) }() // in the system's temporary directory anyway
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	if code == 0 {
		if err := goleak.Find(brokers...); err != nil {
			fmt.Fprintln(os.Stderr, "left behind:", err)
			return 1
		}
	}
	return code
}
