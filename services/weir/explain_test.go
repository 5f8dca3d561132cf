package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/weirhq/weir/projections/insight"
)

func TestExplainAFile(t *testing.T) {
	text := mustRun(t, "explain", "--file", recordedLog, "019cadfd-680f-7000-8000-0000c0ffee03")
	for _, want := range []string{"waited 310 ms for model/qwen3/occupancy 4,000 of 6,000", "cost $0.0006447 (644,700 nano-dollars)", "held for 1.1 s"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	var story insight.Story
	if err := json.Unmarshal([]byte(mustRun(t, "explain", "--file", recordedLog, "--json", "c0ffee03")), &story); err != nil {
		t.Fatal(err)
	}
	if story.Cost.Nano != 644700 || story.Outcome != "completed" || len(story.Decisions) != 1 || story.Decisions[0].ParkedMS != 310 {
		t.Errorf("%+v", story)
	}
	for args, want := range map[string]string{
		"--file " + recordedLog + " 019cadfd-0000-7000-8000-000000000000": "no record of the log names it",
		"--file " + recordedLog + " c0ffee":                               "at least its last 8",
		"--file - 019cadfd-680f-7000-8000-0000c0ffee03":                   "give a file",
	} {
		if _, err := runTool(t, append([]string{"explain"}, strings.Fields(args)...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// TestExplainALiveLog retells a request of a broker's log by its whole id and by its end.
func TestExplainALiveLog(t *testing.T) {
	l := startLive(t)
	l.request(t, 1)
	id := l.request(t, 2)
	for _, name := range []string{insight.ShortID(id), "0" + insight.ShortID(id)} { // its id says another time than the log
		text := mustRun(t, "explain", "--log", l.url, "--credentials", l.secret, "--data-dir", l.dir, name)
		for _, want := range []string{"request  " + string(id), "org/acme/rpm", "2 of 3", "cost $0.0000045"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q is not in\n%s", name, want, text)
			}
		}
	}
}
