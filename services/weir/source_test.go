package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/embedded"
	"github.com/weirhq/weir/gateway/inquiry"
)

// recordedLog is a log of nine requests: admitted, parked, refused in several ways, corrected, lapsed.
const recordedLog = "../../projections/insight/testdata/ten.jsonl"

// patience bounds everything that a test waits for.
const patience = time.Minute

// tools are the commands that read the log, as the command line has them.
type tools struct {
	Tail     tailCommand     `cmd:""`
	Explain  explainCommand  `cmd:""`
	Simulate simulateCommand `cmd:""`
}

// runTool runs a command line of the tools to its end.
func runTool(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var all tools
	parser, err := kong.New(&all, kong.Exit(func(int) { t.Fatal("the command line ended the process") }))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out bytes.Buffer
	switch parsed.Command() {
	case "tail":
		err = all.Tail.run(ctx, "", &out)
	case "explain <id>":
		err = all.Explain.run(ctx, "", &out)
	case "simulate":
		err = all.Simulate.run(ctx, "", &out)
	default:
		t.Fatal(parsed.Command())
	}
	return out.String(), err
}

// mustRun is runTool for what has to work.
func mustRun(t *testing.T, args ...string) string {
	t.Helper()
	out, err := runTool(t, args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return out
}

// liveBroker is a broker with a log, and files with a monitor's and a gateway's secret.
type liveBroker struct {
	dir, url, secret, gateway string
	broker                    *embedded.Broker
	log                       *journal.Log
}

func startLive(t *testing.T) *liveBroker {
	t.Helper()
	credential, secret, err := access.NewCredentials("watcher", access.Monitor)
	if err != nil {
		t.Fatal(err)
	}
	l := &liveBroker{dir: t.TempDir()}
	l.secret = filepath.Join(t.TempDir(), "secret.yaml")
	if err := access.WriteSecret(l.secret, secret); err != nil {
		t.Fatal(err)
	}
	gateway, secret, err := access.NewCredentials("gw", access.Gateway)
	if err != nil {
		t.Fatal(err)
	}
	l.gateway = filepath.Join(t.TempDir(), "gateway.yaml")
	if err := access.WriteSecret(l.gateway, secret); err != nil {
		t.Fatal(err)
	}
	l.broker, err = embedded.Start(t.Context(), embedded.Config{DataDir: l.dir, Listen: "127.0.0.1:0", Credentials: access.Credentials{Identities: []access.Credential{credential, gateway}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.broker.Shutdown)
	l.url = l.broker.URL()
	conn, err := l.broker.Connect(access.Identity{Name: "writer-abcdefgh", Roles: []access.Role{access.System}}, journal.Options("writer")...)
	if err != nil {
		t.Fatal(err)
	}
	if l.log, err = journal.Open(t.Context(), conn, journal.Config{Create: true}); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *liveBroker) publish(t *testing.T, id string, d events.Data) {
	t.Helper()
	if _, err := l.log.Publish(t.Context(), eventstest.Event(id, d)); err != nil {
		t.Fatal(err)
	}
}

// request publishes a request that is admitted and ends.
func (l *liveBroker) request(t *testing.T, n int) events.RequestID {
	t.Helper()
	id := eventstest.RequestID(n)
	d := eventstest.Reserve(id, eventstest.Rate("org/acme/rpm", 3), eventstest.Slot("org/acme/concurrency", 2))
	l.publish(t, fmt.Sprintf("reserve-%d", n), d)
	l.publish(t, fmt.Sprintf("verdicts-%d", n), &events.Verdicts{Rules: 1, Verdicts: []events.Verdict{eventstest.Admitted(d, 1, time.Now().UnixNano())}})
	l.publish(t, fmt.Sprintf("final-%d", n), eventstest.Final(id, 100, 20, 4500))
	l.publish(t, fmt.Sprintf("release-%d", n), eventstest.Release(id))
	return id
}

// TestLinesAreReadAlike: the quick reading of a line gives what replay reads.
func TestLinesAreReadAlike(t *testing.T) {
	paths, err := filepath.Glob("../../test/scenario/testdata/*.jsonl")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	lines := 0
	for _, path := range append(paths, recordedLog) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
			want, err := replayRecord(line)
			if err != nil {
				t.Fatal(err)
			}
			got, err := lineRecord(string(line))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("%s: %s\n%s", path, line, diff)
			}
			lines++
		}
	}
	if lines < 1000 {
		t.Errorf("only %d lines", lines)
	}
}

func TestLinesThatAreNone(t *testing.T) {
	good := `{"seq":1,"time":"2026-03-02T10:00:00Z","subject":"acct._.tick","data":{}}`
	for line, want := range map[string]string{
		good[:len(good)-4]: "cut off", `{"seq":1}`: "time is missing", `[1]`: "not a record",
		`{"seq":1,"time":"soon","subject":"acct._.tick","data":{}}`: "soon",
	} {
		if _, err := lineRecord(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	if _, err := lineRecord(good); err != nil {
		t.Error(err)
	}
	file := filepath.Join(t.TempDir(), "cut.jsonl")
	if err := os.WriteFile(file, []byte(good+"\n"+good[:30]), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := runTool(t, "tail", "--file", file); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("a file that is cut off: %v", err)
	}
}

func TestSince(t *testing.T) {
	noon := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	now := func() (time.Time, error) { return noon, nil }
	for text, want := range map[string]time.Time{"24h": noon.Add(-24 * time.Hour), "2026-03-02T10:00:00Z": noon.Add(-2 * time.Hour), "90s": noon.Add(-90 * time.Second)} {
		if at, err := since(text, now); err != nil || at != want.UnixNano() {
			t.Errorf("%s: %d, %v", text, at, err)
		}
	}
	for _, text := range []string{"", "yesterday", "-5m"} {
		if _, err := since(text, now); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	last, err := (&fileLog{name: recordedLog}).now()
	if want := time.Date(2026, 3, 2, 10, 0, 59, 252_000_000, time.UTC); err != nil || !last.Equal(want) {
		t.Errorf("a file's end: %s, %v", last, err)
	}
}

func TestWhereTheLogIs(t *testing.T) {
	l := startLive(t)
	l.request(t, 1)
	if _, err := runTool(t, "tail", "--no-follow", "--data-dir", l.dir); err == nil || !strings.Contains(err.Error(), "--log") {
		t.Errorf("a data directory in use: %v", err)
	}
	if _, err := runTool(t, "tail", "--no-follow", "--data-dir", t.TempDir()); err == nil || !strings.Contains(err.Error(), "holds no log") {
		t.Errorf("an empty data directory: %v", err)
	}
	if _, err := runTool(t, "tail", "--no-follow", "--file", "x", "--log", l.url); err == nil {
		t.Error("a file and a broker at once are taken")
	}
	if _, err := runTool(t, "tail", "--no-follow", "--log", l.url, "--credentials", l.gateway); err == nil || !strings.Contains(err.Error(), "may not read the log: use --credentials with one of the role operator") {
		t.Errorf("a gateway's secret: %v", err)
	}
	remote := mustRun(t, "tail", "--no-follow", "--log", l.url, "--credentials", l.secret)
	l.broker.Shutdown()
	own := mustRun(t, "tail", "--no-follow", "--data-dir", l.dir)
	if own != remote || strings.Count(own, "\n") != 5 {
		t.Errorf("over the broker:\n%s\nfrom the directory:\n%s", remote, own)
	}
}

// TestSeqAt looks for instants in a live log.
func TestSeqAt(t *testing.T) {
	l := startLive(t)
	for n := range 12 {
		l.publish(t, fmt.Sprint(n), &events.Tick{})
	}
	live := &liveLog{log: l.log}
	var at []int64
	if err := l.log.Read(t.Context(), 0, 0, func(r events.Record) error { at = append(at, r.At); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(at) != 12 {
		t.Fatalf("%d records", len(at))
	}
	for i, when := range append(at, at[11]+1) {
		seq, err := live.SeqAt(t.Context(), when)
		if err != nil {
			t.Fatal(err)
		}
		if seq > uint64(i+1) || seq > 1 && at[seq-2] >= when {
			t.Errorf("record %d: sequence %d", i+1, seq)
		}
	}
	if err := live.Read(t.Context(), 5, func(*events.Record) error { return inquiry.ErrEnough }); err != nil {
		t.Error(err)
	}
	failed := errors.New("no more")
	if err := live.Read(t.Context(), 5, func(*events.Record) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("what fails: %v", err)
	}
}
