package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/projections/insight"
	"github.com/weirhq/weir/test/scenario"
)

var rewrite = flag.Bool("rewrite", false, "write what is printed as the expectation; read the difference before keeping it")

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

// TestTailOfAFile prints a recorded log whole, and with each filter.
func TestTailOfAFile(t *testing.T) {
	var b strings.Builder
	for _, args := range []string{
		"",
		"--kind verdict --outcome refused",
		"--outcome no_balance --outcome too_large",
		"--org beta",
		"--key k2",
		"--request c0ffee03",
		"--kind lease --kind tick --gateway edge",
		"--model qwen3 --kind release --since 2026-03-02T09:59:52Z",
		"--from-seq 28 --kind correction --kind credit",
		"--since 1m8s --kind reserve",
	} {
		b.WriteString("$ weir tail " + args + "\n")
		b.WriteString(mustRun(t, append([]string{"tail", "--file", recordedLog}, strings.Fields(args)...)...) + "\n")
	}
	golden(t, "tail.txt", b.String())
}

// On a narrow terminal columns are left out, and words go on in lines of their own: no line is longer than the terminal.
func TestTailOnANarrowTerminal(t *testing.T) {
	print := func(width int) string {
		t.Helper()
		var out strings.Builder
		p := newTailPrinter(&tailCommand{}, &out)
		p.width = func() int { return width }
		for _, r := range recordedRecords(t) {
			if err := p.take(&r); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.flush(); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	var b strings.Builder
	for _, width := range []int{80, 100} {
		text := print(width)
		for _, line := range strings.Split(text, "\n") {
			if n := utf8.RuneCountInString(line); n > width {
				t.Errorf("%d characters on a terminal of %d: %s", n, width, line)
			}
		}
		fmt.Fprintf(&b, "$ weir tail, %d columns\n%s\n", width, text)
	}
	golden(t, "tail-narrow.txt", b.String())
	wide := print(0)
	for _, width := range []int{wideFrom, 500} {
		if print(width) != wide {
			t.Errorf("%d columns are not wide", width)
		}
	}
	if strings.Contains(wide, "\n   ") || !strings.HasPrefix(mustRun(t, "tail", "--file", recordedLog), wide) {
		t.Errorf("what is no terminal is not wide:\n%s", wide)
	}
}

func TestFolded(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"", []string{""}},
		{"0123456789", []string{"0123456789"}},
		{"a b c d e f", []string{"a b c d e", "f"}},
		{"ab model/quite-a-long-name x", []string{"ab", "model/quit", "e-a-long-n", "ame x"}},
		{"äöü äöüäöü ß", []string{"äöü äöüäöü", "ß"}},
	} {
		if got := folded(c.text, 10); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}

// recordedRecords are those of the recorded log.
func recordedRecords(t *testing.T) []events.Record {
	t.Helper()
	f, err := os.Open(recordedLog)
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

func TestTailAsJSON(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(mustRun(t, "tail", "--file", recordedLog, "--json", "--request", "c0ffee06")), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines: %v", len(lines), lines)
	}
	var l insight.Line
	if err := json.Unmarshal([]byte(lines[1]), &l); err != nil {
		t.Fatal(err)
	}
	verdicts, err := events.DecodeVerdicts([]byte("[" + string(l.Data) + "]"))
	if err != nil || len(verdicts) != 1 || verdicts[0].Refusal == nil {
		t.Fatalf("data %s: %v", l.Data, err)
	}
	if l.Kind != "verdict" || l.Outcome != "refused" || l.Key != "k1" || l.Org != "acme" || l.Reason != "over_limit" || l.Text != "refused key/k1/rpm 4 of 4, retry in 59 s" {
		t.Errorf("%+v", l)
	}
}

// TestTailFollows follows a log on a running broker, as somebody who may only look.
func TestTailFollows(t *testing.T) {
	l := startLive(t)
	l.request(t, 1)
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	in, out := io.Pipe()
	command := tailCommand{sourceFlags: sourceFlags{Log: l.url, Credentials: l.secret, DataDir: t.TempDir()}, Since: "1h", Key: []string{eventstest.Key}}
	ended := make(chan error, 1)
	go func() {
		ended <- command.run(ctx, "", out)
		out.Close()
	}()
	lines := bufio.NewScanner(in)
	expect := func(words ...string) {
		t.Helper()
		for _, w := range words {
			if !lines.Scan() {
				t.Fatalf("the tail ended before %q: %v", w, <-ended)
			}
			if !strings.Contains(lines.Text(), w) {
				t.Fatalf("%q: want %q", lines.Text(), w)
			}
		}
	}
	expect("UTC", "asks 2 claims", "admitted; fullest org/acme/concurrency 1 of 2", "final, exact: 100 in, 20 out, $0.0000045", "completed with 200")
	l.request(t, 2)
	expect("asks 2 claims", "admitted", "final", "completed")
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

// TestTailForgets: however long it runs, it remembers a bounded number of reserves, and says less of older ones.
func TestTailForgets(t *testing.T) {
	tail := insight.NewTail()
	l := eventstest.NewLog(time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC).UnixNano())
	const many = 20_000
	key := func(n int) (key string) {
		r := l.Add(eventstest.Release(eventstest.RequestID(n)))
		tail.Take(&r, false, func(line *insight.Line) { key = line.Key })
		return key
	}
	for n := range many {
		r := l.Add(eventstest.Reserve(eventstest.RequestID(n)))
		tail.Take(&r, false, func(*insight.Line) {})
	}
	if key(many-1) != eventstest.Key || key(0) != "" {
		t.Errorf("the newest request's key is %q, the oldest's %q", key(many-1), key(0))
	}
}

func TestColumns(t *testing.T) {
	for value, want := range map[string]string{"": "-    ", "acme": "acme ", "größer": "größ…", "12345": "12345"} {
		if got := column(value, 5); got != want {
			t.Errorf("%q: %q, want %q", value, got, want)
		}
	}
	p := newTailPrinter(&tailCommand{}, &bytes.Buffer{})
	if before, _ := p.paint(&insight.Line{Outcome: "refused"}); before != "" {
		t.Error("colours where no terminal is")
	}
}
