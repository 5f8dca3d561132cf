// Package postgrestest gives tests a real PostgreSQL, with a schema of its own for each.
//
// It uses the server that TEST_DATABASE_URL names. Without one it runs the server's binaries that it finds on the machine, in a temporary
// folder and not as root; where there are none it installs the distribution's package if it may, and else fails and says what to do.
package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/test/debian"
)

// startWithin bounds the start of a server.
const startWithin = 2 * time.Minute

// server is started once for a test binary.
var server struct {
	once sync.Once
	url  string
	err  error
	stop func()
}

var schemas atomic.Int64

// Main runs the tests of a package and stops the server that they started. It is what TestMain calls.
func Main(m *testing.M) { Exit(m.Run()) }

// Exit stops the server that a package's tests started, and ends with a code. It is for a TestMain that does more than Main.
func Exit(code int) {
	if server.stop != nil {
		server.stop()
	}
	os.Exit(code)
}

// URL gives a connection string whose search path is a new schema, dropped when the test ends. It fails the test if there is no server.
func URL(tb testing.TB) string {
	tb.Helper()
	server.once.Do(func() { server.url, server.stop, server.err = find() })
	if server.err != nil {
		tb.Fatal(server.err)
	}
	schema := fmt.Sprintf("test_%d_%d", os.Getpid(), schemas.Add(1))
	execute(tb, "CREATE SCHEMA "+schema)
	tb.Cleanup(func() { execute(tb, "DROP SCHEMA "+schema+" CASCADE") })
	separator := "?"
	if strings.Contains(server.url, "?") {
		separator = "&"
	}
	return server.url + separator + "search_path=" + schema
}

func execute(tb testing.TB, statement string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	conn, err := pgx.Connect(ctx, server.url)
	if err != nil {
		tb.Fatalf("connect to the test server: %v", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, statement); err != nil {
		tb.Fatalf("%s: %v", statement, err)
	}
}

// find gives a server's address, and what stops it if it was started here.
func find() (url string, stop func(), err error) {
	if url := os.Getenv("TEST_DATABASE_URL"); url != "" {
		return url, nil, nil
	}
	s, err := start()
	if err != nil {
		return "", nil, err
	}
	return s.URL, s.Close, nil
}

// programs finds the folder of the server's programs, and installs them where there are none and it may.
func programs() (bin string, err error) {
	if bin = binaries(); bin != "" {
		return bin, nil
	}
	if err := debian.Install("postgresql"); err != nil {
		return "", fmt.Errorf("no PostgreSQL: set TEST_DATABASE_URL to a server, or install the package postgresql: %w", err)
	}
	if bin = binaries(); bin == "" {
		return "", errors.New("no PostgreSQL: the package postgresql was installed, and its initdb is not in /usr/lib/postgresql; set TEST_DATABASE_URL")
	}
	return bin, nil
}

// binaries finds the folder of the newest server.
func binaries() string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	sort.Slice(found, func(i, j int) bool { return version(found[i]) < version(found[j]) })
	if len(found) > 0 {
		return filepath.Dir(found[len(found)-1])
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path)
	}
	return ""
}

func version(initdb string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(initdb))))
	return n
}

// notRoot gives the folder to a user that is not root, as whom the server runs: it refuses to run as root.
func notRoot(dir string) (*syscall.SysProcAttr, error) {
	attributes := &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() != 0 {
		return attributes, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		return attributes, os.Chown(dir, uid, gid)
	}
	return nil, errors.New("postgres: no user but root to run it as")
}

// await waits until a server answers.
func await(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			return conn.Close(ctx)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the test server does not answer: %w", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
