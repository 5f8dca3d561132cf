package e2e

import (
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/test/e2e/stack"
	"github.com/weirhq/weir/test/postgrestest"
)

// TestADatabaseThatIsSetLater makes a key while the authority is in a bucket, sets a database, is told that the key is not there, copies, and
// has it work again.
func TestADatabaseThatIsSetLater(t *testing.T) {
	t.Parallel() // it mostly waits
	dir := t.TempDir()
	_, upstream := serveUpstream(t, "tokens=3")
	w := &world{t: t, database: postgrestest.Own(t)}
	config := func(head string) string {
		return stack.Settings.Write(worldSettings, t, t.TempDir(), head+"listen: 127.0.0.1:0\ndata_dir: "+filepath.Join(dir, "data")+"\n", map[string]string{"upstream": upstream})
	}
	bucket, database := config(""), config(fmt.Sprintf("database: %q\n", w.database.URL))
	serve := func(path string) *process {
		p := start(t, nil, "serve", "-c", path)
		w.manager = p.address(t)
		w.urls = []string{w.manager}
		stack.Healthy(t, w.manager)
		return p
	}
	weir := func(args ...string) (string, error) {
		out, err := exec.Command(binary(t), append(args, "-c", database)...).CombinedOutput()
		return string(out), err
	}

	p := serve(bucket)
	w.admin("POST", "/admin/orgs", `{"id":"acme","billing":"postpaid"}`, http.StatusCreated)
	w.key("made", "acme", true)
	w.key("gone", "acme", true)
	w.key("gone", "acme", false)
	w.answers("made", http.StatusOK, "", "")
	if out, err := weir("migrate"); err != nil {
		t.Fatal(out)
	}
	if out, err := weir("authority", "copy"); err == nil || !strings.Contains(out, "stop it first") {
		t.Errorf("while the process runs: %v: %s", err, out)
	}
	p.kill()

	p = serve(database)
	w.answers("made", http.StatusUnauthorized, "", "unauthorized")
	if out := w.weir("status"); !strings.Contains(p.said(), "weir authority copy") || !strings.Contains(out, "weir authority copy") {
		t.Errorf("nobody says that the key is in the bucket: %s", out)
	}
	p.kill()

	for _, want := range []string{"copied ", "holds the same "} {
		if out, err := weir("authority", "copy"); err != nil || !strings.Contains(out, want) {
			t.Fatalf("copy: %v: %s", err, out)
		}
	}
	p = serve(database)
	w.answers("made", http.StatusOK, "", "")
	w.atOnce("gone", http.StatusUnauthorized)
	w.key("new", "acme", true)
	w.answers("new", http.StatusOK, "", "")
	if out := w.weir("status"); strings.Contains(p.said(), "weir authority copy") || strings.Contains(out, "weir authority copy") {
		t.Errorf("something is said to be left: %s", out)
	}
	p.kill()
	if out, err := weir("authority", "copy"); err == nil || !strings.Contains(out, "as they would be copied") {
		t.Errorf("over what was changed: %v: %s", err, out)
	}
}
