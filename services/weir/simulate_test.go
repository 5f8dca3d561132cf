package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/projections/insight"
)

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const otherLimits = `
meters: {"key/*/rpm": 2, "org/beta/rpm": null}
orgs:
  acme: {billing: postpaid, limits: {rpm: 2, tpm: 100000, outage_mode: closed}, models: {qwen3: {rpm: 7}}}
  beta: {concurrency: 3}
`

func TestSimulateAFile(t *testing.T) {
	limits := writeFile(t, otherLimits)
	var r insight.Report
	if err := json.Unmarshal([]byte(mustRun(t, "simulate", "--file", recordedLog, "--limits", limits, "--json")), &r); err != nil {
		t.Fatal(err)
	}
	rules := map[string]string{}
	for _, rule := range r.Rules {
		rules[rule.Pattern] = "none"
		if rule.Limit != nil {
			rules[rule.Pattern] = insight.Number(*rule.Limit)
		}
	}
	want := map[string]string{"key/*/rpm": "2", "org/beta/rpm": "none", "org/acme/rpm": "2", "org/acme/tpm": "100,000", "model/acme.qwen3/rpm": "7", "org/beta/concurrency": "3"}
	for pattern, limit := range want {
		if rules[pattern] != limit {
			t.Errorf("%s: limit %q, want %s", pattern, rules[pattern], limit)
		}
	}
	if len(rules) != len(want) || r.Recorded.Admitted != 5 || r.Simulated.Admitted != 2 || r.Changed.NowRefused != 3 {
		t.Errorf("rules %v, recorded %+v, simulated %+v", rules, r.Recorded, r.Simulated)
	}
	text := mustRun(t, "simulate", "--file", recordedLog, "--scale", "1.5x", "--since", "2026-03-02T09:59:51Z")
	if !strings.Contains(text, "at 1.5 times the load") || !strings.Contains(text, "assumed") || strings.Contains(text, "began empty") {
		t.Errorf("%s", text)
	}
}

func TestSimulateFaults(t *testing.T) {
	for args, want := range map[string]string{
		"--file " + recordedLog:                                                                "give --limits, --scale or both",
		"--file " + recordedLog + " --scale twice":                                             "is not a number",
		"--file " + recordedLog + " --scale 0":                                                 "is not a number",
		"--file " + recordedLog + " --scale 101x":                                              "is not a number",
		"--file " + recordedLog + " --limits " + writeFile(t, "meters: {rpm: 5}"):              "<scope>/<subject>/<dimension>",
		"--file " + recordedLog + " --limits " + writeFile(t, "meter: {org/acme/rpm: 5}"):      "meter",
		"--file " + recordedLog + " --limits " + writeFile(t, "orgs: {a: {limits: {rmp: 5}}}"): "rmp",
		"--file " + recordedLog + " --limits " + writeFile(t, ""):                              "gives no limit",
		"--file " + recordedLog + " --scale 2x --since tomorrow":                               "neither a duration",
	} {
		if _, err := runTool(t, append([]string{"simulate"}, strings.Fields(args)...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// TestSimulateALiveLog folds a broker's log under a lower limit.
func TestSimulateALiveLog(t *testing.T) {
	l := startLive(t)
	for n := range 3 {
		l.request(t, n)
	}
	limits := writeFile(t, `meters: {"org/acme/rpm": 1}`)
	var r insight.Report
	if err := json.Unmarshal([]byte(mustRun(t, "simulate", "--log", l.url, "--credentials", l.secret, "--data-dir", l.dir, "--limits", limits, "--since", "1h", "--json")), &r); err != nil {
		t.Fatal(err)
	}
	if r.Recorded.Admitted != 3 || r.Simulated.Admitted != 1 || r.Changed.NowRefused != 2 || len(r.First) != 2 || r.First[0].Meter != "org/acme/rpm" {
		t.Errorf("%+v", r)
	}
}
