package embedded_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/weirhq/weir/events/journal/access/accesstest"
	"github.com/weirhq/weir/events/journal/embedded"
)

func TestShutdownWaitsForEverything(t *testing.T) {
	before := goleak.IgnoreCurrent()
	credentials, _ := accesstest.Credentials(t)
	b := start(t, embedded.Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0", Credentials: credentials})
	if _, err := client(t, b).CreateStream(within(t), log()); err != nil {
		t.Fatal(err)
	}
	b.Shutdown()
	goleak.VerifyNone(t, before)
}
