package insight

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/test/scenario"
)

var rewrite = flag.Bool("rewrite", false, "write what is said as the expectation; read the difference before keeping it")

// golden holds a text against testdata/NAME.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// recorded is the log testdata/NAME.
func recorded(t *testing.T, name string) []events.Record {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	log, err := scenario.ReadLog(f)
	if err != nil {
		t.Fatal(err)
	}
	return log
}
