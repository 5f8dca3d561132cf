package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
)

func TestExports(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(secret, []byte("from a file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, warnings := load(t, `exports:
  - {name: meter, type: cloudevents-http, url: "https://openmeter.example/api/v1/events", secret_env: METER_TOKEN, batch: 50, timeout: 5s,
     retry: {first: 1s, most: 10m}, dead_letters: dead, orgs: [acme, acme, beta], from: "2026-03-02T00:00:00Z"}
  - {name: stripe, type: stripe, secret_file: `+secret+`, event: cost, amount: cost_nano, customers: {acme: cus_1}}
  - {name: files, type: csv, path: usage}
`, vars{"METER_TOKEN": "from the environment"})
	if len(warnings) > 0 {
		t.Error(warnings)
	}
	for i, want := range []string{"from the environment", "from a file"} {
		if got, err := c.Exports[i].Secret(); err != nil || got != want {
			t.Errorf("%s: secret %q, %v", c.Exports[i].Name, got, err)
		}
		c.Exports[i].Secret = nil
	}
	pos := func(line int) authority.Pos { return authority.Pos{File: "etc/weir.yaml", Line: line} }
	plain := Export{Batch: 100, Timeout: 30 * time.Second, RetryFirst: 100 * time.Millisecond, RetryMost: time.Minute, Version: StripeVersion}
	stripe, files := plain, plain
	stripe.At, stripe.Name, stripe.Type, stripe.URL = pos(4), "stripe", ExportStripe, StripeURL
	stripe.Event, stripe.Amount, stripe.Customers = "cost", "cost_nano", map[events.Org]string{"acme": "cus_1"}
	files.At, files.Name, files.Type, files.Path = pos(5), "files", ExportCSV, "etc/usage"
	want := []Export{{At: pos(2), Name: "meter", Type: ExportCloudEvents, URL: "https://openmeter.example/api/v1/events", Batch: 50, Timeout: 5 * time.Second,
		RetryFirst: time.Second, RetryMost: 10 * time.Minute, DeadLetters: "etc/dead", Orgs: []events.Org{"acme", "beta"}, Version: StripeVersion,
		From: time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)}, stripe, files}
	if diff := cmp.Diff(want, c.Exports); diff != "" {
		t.Error(diff)
	}
	if err := os.WriteFile(secret, []byte("two\nlines"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _ = load(t, "exports: [{name: s, type: stripe, secret_file: "+secret+", event: e, amount: cost_nano}]", vars{})
	if _, err := c.Exports[0].Secret(); err == nil || strings.Contains(err.Error(), "two") {
		t.Errorf("a secret of two lines: %v", err)
	}
}

// Every field that is wrong is named with its line and rule.
func TestExportsThatAreNot(t *testing.T) {
	for text, want := range map[string]string{
		`{type: csv, path: a}`:                                                                "exports[0].name",
		`{name: A, type: csv, path: a}`:                                                       "must match [a-z0-9-]{1,32}",
		`{name: a, path: a}`:                                                                  "exports[0].type: must be cloudevents-http, stripe or csv",
		`{name: a, type: kafka}`:                                                              "kafka",
		`{name: a, type: cloudevents-http}`:                                                   "exports[0].url: must be given",
		`{name: a, type: cloudevents-http, url: "ftp://x"}`:                                   "must be an absolute URL",
		`{name: a, type: cloudevents-http, url: "https://me:pw@x/"}`:                          "must not hold a name or password",
		`{name: a, type: cloudevents-http, url: "http://x", path: b}`:                         "exports[0].path is b: must not stand: it is of the type csv",
		`{name: a, type: csv}`:                                                                "exports[0].path: must be given",
		`{name: a, type: csv, path: b, url: "http://x"}`:                                      "of the type cloudevents-http or stripe",
		`{name: a, type: csv, path: b, event: x}`:                                             "of the type stripe",
		`{name: a, type: stripe, event: e, amount: cost_nano}`:                                "exports[0].secret_env: must be given",
		`{name: a, type: stripe, secret_env: K, amount: cost_nano}`:                           "exports[0].event: must be given",
		`{name: a, type: stripe, secret_env: K, event: e}`:                                    "exports[0].amount: must be one of",
		`{name: a, type: stripe, secret_env: K, event: e, amount: euros}`:                     "euros",
		`{name: a, type: stripe, secret_env: K, secret_file: f, event: e, amount: cost_nano}`: "must not stand beside secret_env",
		`{name: a, type: stripe, secret_env: "K K", event: e, amount: cost_nano}`:             "must be the name of an environment variable",
		`{name: a, type: csv, path: b, batch: 0}`:                                             "exports[0].batch",
		`{name: a, type: csv, path: b, batch: 1001}`:                                          "1000",
		`{name: a, type: csv, path: b, timeout: 1h}`:                                          "exports[0].timeout",
		`{name: a, type: csv, path: b, retry: {first: 2m}}`:                                   "must be at least first",
		`{name: a, type: csv, path: b, retry: {last: 2m}}`:                                    "last",
		`{name: a, type: csv, path: b, from: soon}`:                                           "must be an instant",
		`{name: a, type: csv, path: b, orgs: [""]}`:                                           "exports[0].orgs[0]",
		`{name: a, type: csv, path: b, pth: c}`:                                               "pth",
	} {
		_, _, err := Parse("weir.yaml", []byte("exports:\n  - "+text+"\n"), vars{"K": "k"}.get)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "weir.yaml:2") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	_, _, err := Parse("weir.yaml", []byte("exports:\n  - {name: a, type: csv, path: b}\n  - {name: a, type: csv, path: b}\n"), vars{}.get)
	if err == nil || !strings.Contains(err.Error(), "stands twice") || !strings.Contains(err.Error(), "two cannot write the same files") || !strings.Contains(err.Error(), "weir.yaml:3") {
		t.Errorf("twice: %v", err)
	}
}
