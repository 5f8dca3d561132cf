package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/projections/projector"
	"github.com/weirhq/weir/services/ledger"
)

// TestEachReasonHasItsRunbook holds what /ready and weir status say of states that need a person against the runbooks' list: a row names each
// state in the words that the process says, and the file that it leads to is there.
func TestEachReasonHasItsRunbook(t *testing.T) {
	list, err := os.ReadFile("../../ops/runbooks/README.md")
	if err != nil {
		t.Fatal(err)
	}
	made := time.Unix(1_800_000_000, 0)
	mark := &ledger.Mark{ID: "x", Created: made, Seq: 7}
	notTheRightOne := "log-not-the-right-one.md"
	clockOff := projector.ClockOff(-time.Minute, "p-12345678")
	for _, c := range []struct{ says, words, runbook string }{
		{ledger.Compare(mark, journal.Info{}), "gone", notTheRightOne},
		{ledger.Compare(mark, journal.Info{Created: made.Add(1), Last: 7}), "replaced", notTheRightOne},
		{ledger.Compare(mark, journal.Info{Created: made, Last: 6}), "behind", notTheRightOne},
		{(&journal.Replaced{Position: 7, Last: 6, Created: made, Expected: made}).Error(), "behind", notTheRightOne},
		{(&journal.Replaced{Position: 7, Last: 9, Created: made.Add(1), Expected: made}).Error(), "replaced", notTheRightOne},
		{(&journal.Lost{From: 3, First: 5}).Error(), "no longer holds", notTheRightOne},
		{clockOff, "the stream's clock is off", "clock.md"},
		{clockOff, "admission is stopped until weir recover", "clock.md"},
	} {
		if !strings.Contains(c.says, c.words) {
			t.Errorf("%q does not say %q, by which its runbook is found", c.says, c.words)
		}
		found := false
		for row := range strings.Lines(string(list)) {
			found = found || strings.Contains(row, "("+c.runbook+")") && strings.Contains(row, c.words)
		}
		if !found {
			t.Errorf("no row of ops/runbooks/README.md leads from %q to %s", c.words, c.runbook)
		}
		text, err := os.ReadFile("../../ops/runbooks/" + c.runbook)
		if err != nil {
			t.Error(err)
		} else if !strings.Contains(string(text), "weir status") || !strings.Contains(string(text), "/ready") {
			t.Errorf("%s does not name what /ready and weir status say", c.runbook)
		}
	}
}

// TestEachMessageHasItsRunbook holds what processes log and answer of a full log, a log out of reach and spools against the list of runbooks: the
// product still says it in these words, a row leads from them to a runbook, and the runbook says what to look at.
func TestEachMessageHasItsRunbook(t *testing.T) {
	list, err := os.ReadFile("../../ops/runbooks/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ source, words, runbook, look string }{
		{"events/journal/publisher.go", "the log takes no more", "log-full.md", "weir_outbox_full"},
		{"gateway/info.go", "the log is out of reach", "log-out-of-reach.md", "weir status"},
		{"services/gateway/gauges.go", "outage", "log-out-of-reach.md", "weir_outage"},
		{"services/gateway/spools.go", "a spool was damaged", "spools.md", "weir_spool_events"},
		{"services/gateway/spools.go", "what a gateway before this one spooled is not in the log", "spools.md", "data_dir"},
	} {
		source, err := os.ReadFile("../../" + c.source)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(source), `"`+c.words) {
			t.Errorf("%s no longer says %q, by which its runbook is found", c.source, c.words)
		}
		found := false
		for row := range strings.Lines(string(list)) {
			found = found || strings.Contains(row, "("+c.runbook+")") && strings.Contains(row, c.words)
		}
		if !found {
			t.Errorf("no row of ops/runbooks/README.md leads from %q to %s", c.words, c.runbook)
		}
		text, err := os.ReadFile("../../ops/runbooks/" + c.runbook)
		if err != nil {
			t.Error(err)
		} else if !strings.Contains(string(text), c.look) {
			t.Errorf("%s does not say to look at %s", c.runbook, c.look)
		}
	}
}

// TestAnUnreadableMarkHasItsRunbook holds what a process says that cannot read its mark against the runbooks' list.
func TestAnUnreadableMarkHasItsRunbook(t *testing.T) {
	const runbook = "mark-unreadable.md"
	list, err := os.ReadFile("../../ops/runbooks/README.md")
	must(t, err)
	text, err := os.ReadFile("../../ops/runbooks/" + runbook)
	must(t, err)
	for _, damaged := range []string{"", "no JSON", `{"mark":{"id":"x","seq":7},"sha256":"00"}`} {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "mark.json"), []byte(damaged), 0o600))
		_, found, err := ledger.Read(dir)
		if err == nil || found {
			t.Fatalf("%q is read as a mark", damaged)
		}
		if !strings.Contains(err.Error(), "read the ledger's mark") {
			t.Errorf("%q does not say by which words its runbook is found", err)
		}
	}
	row := ""
	for line := range strings.Lines(string(list)) {
		if strings.Contains(line, "("+runbook+")") {
			row = line
		}
	}
	if !strings.Contains(row, "read the ledger's mark") {
		t.Errorf("no row of ops/runbooks/README.md leads to %s", runbook)
	}
	for _, words := range []string{"its digest is wrong", "weir recover", "weir status", "log-not-the-right-one.md"} {
		if !strings.Contains(string(text), words) {
			t.Errorf("%s does not say %q", runbook, words)
		}
	}
}

// TestWhatARecoverySaysIsInItsRunbook holds the words of weir recover against its runbook.
func TestWhatARecoverySaysIsInItsRunbook(t *testing.T) {
	text, err := os.ReadFile("../../ops/runbooks/log-not-the-right-one.md")
	must(t, err)
	for _, words := range []string{"what was held before is taken from", "what came after sequence", "the audit does not tell of sequences", "that ran are known to the log",
		"no verdict is known", "more than was charged before", "were used before, or may have been, and are passed over", "what is left of it says too little",
		"what balances, budgets and fences were is not known", "--accept-unknown"} {
		if !strings.Contains(string(text), words) {
			t.Errorf("the runbook does not say %q", words)
		}
		said := strings.Contains(errUnknown.Error(), words)
		for _, file := range []string{"recover_past.go", "recover_restore.go", "recover_skip.go", "recovery.go"} {
			code, err := os.ReadFile(file)
			must(t, err)
			said = said || strings.Contains(string(code), words)
		}
		if !said {
			t.Errorf("weir recover does not say %q, which its runbook explains", words)
		}
	}
}
