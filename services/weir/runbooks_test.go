package main

import (
	"os"
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
