package config

import (
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/strictyaml"
)

// The types of exports.
const (
	ExportCloudEvents = "cloudevents-http"
	ExportStripe      = "stripe"
	ExportCSV         = "csv"
)

// StripeURL is where an export of type stripe sends unless it says otherwise, and StripeVersion the version of Stripe's API that it asks for.
const (
	StripeURL     = "https://api.stripe.com/v2/billing/meter_events"
	StripeVersion = "2024-09-30.acacia"
)

// Bounds of exports.
const (
	maxExports  = 32
	maxExportOn = 10_000 // orgs of one filter, and customers
	maxSecret   = 4 << 10
	maxBatch    = 1000
	minTimeout  = 100 * time.Millisecond
	maxTimeout  = 5 * time.Minute
)

// exportName is what names an export's place in the stream.
var exportName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// amounts are what a meter may count.
var amounts = []string{"cost_nano", "input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens", "total_tokens"}

// Export is a system outside that billing lines are handed to.
type Export struct {
	At authority.Pos

	// Name names its place in the stream of lines, which it keeps: [a-z0-9-]{1,32}. There is no default.
	Name string

	// Type is cloudevents-http, stripe or csv. There is no default.
	Type string

	// URL takes what is sent by POST. There is no default for cloudevents-http; for stripe it is StripeURL.
	URL string

	// Secret gives what is sent as Authorization: Bearer, from the variable that secret_env names or the file that secret_file names, read
	// each time. Defaults to none.
	Secret func() (string, error)

	// Version is the Stripe-Version of stripe. Defaults to StripeVersion.
	Version string

	// Event is the name of stripe's meter events, and Amount what they count: a name of a line's change, or total_tokens. There is no default.
	Event, Amount string

	// Customers are stripe's customers of orgs. An org without one makes a dead letter. Defaults to the orgs' own names.
	Customers map[events.Org]string

	// Path is the directory of csv's files. There is no default.
	Path string

	// Batch is how many lines are handed on at once at most. Defaults to 100.
	Batch int

	// Timeout bounds one request, its answer included. Defaults to 30 s.
	Timeout time.Duration

	// RetryFirst is the pause before the first try again, doubled up to RetryMost. Default to 100 ms and 1 minute.
	RetryFirst, RetryMost time.Duration

	// DeadLetters is the directory of <name>.dead.jsonl, which takes what will never be taken. Defaults to biller in the data directory.
	DeadLetters string

	// Orgs are those whose lines are handed on. Defaults to all.
	Orgs []events.Org

	// From is the time of the first line; earlier ones are passed over. It counts when the export is new. Defaults to the first line kept.
	From time.Time
}

// exports reads where billing lines go.
func (l *loader) exports(n strictyaml.Node) {
	list := n.List()
	if len(list) > maxExports {
		n.Wrong("must have at most %d exports", maxExports)
	}
	names, paths := map[string]bool{}, map[string]bool{}
	for _, n := range list {
		m := n.Map()
		x := Export{At: n.Pos(), Name: m.Get("name").Str("")}
		switch {
		case !exportName.MatchString(x.Name):
			m.Get("name").Wrong("must match [a-z0-9-]{1,32}: it names the export's place in the stream")
		case names[x.Name]:
			m.Get("name").Wrong("stands twice: each export has a name of its own")
		}
		names[x.Name] = true
		if m.Get("type").Absent() {
			m.Get("type").Wrong("must be %s, %s or %s", ExportCloudEvents, ExportStripe, ExportCSV)
		}
		x.Type = m.Get("type").OneOf("", ExportCloudEvents, ExportStripe, ExportCSV)
		l.exportPace(m, &x)
		l.exportTarget(m, &x)
		if x.Path != "" && paths[x.Path] {
			m.Get("path").Wrong("is another export's too: two cannot write the same files")
		}
		paths[x.Path] = true
		m.End()
		l.c.Exports = append(l.c.Exports, x)
	}
}

// exportPace reads how an export reads and tries.
func (l *loader) exportPace(m *strictyaml.Map, x *Export) {
	x.Batch = int(m.Get("batch").Int(100, 1, maxBatch))
	x.Timeout = m.Get("timeout").Duration(30*time.Second, minTimeout, maxTimeout)
	retry := m.Get("retry").Map()
	x.RetryFirst = retry.Get("first").Duration(100*time.Millisecond, minWait, maxWait)
	x.RetryMost = retry.Get("most").Duration(time.Minute, minWait, maxWait)
	if x.RetryMost < x.RetryFirst {
		retry.Get("most").Wrong("must be at least first, %s", x.RetryFirst)
	}
	retry.End()
	if n := m.Get("dead_letters"); n.Str("") != "" {
		x.DeadLetters = l.path(n, "")
	}
	orgs := m.Get("orgs")
	for _, n := range orgs.List() {
		if org := authority.OrgOf(id(n, "an org")); org != "" && !slices.Contains(x.Orgs, org) {
			x.Orgs = append(x.Orgs, org)
		}
	}
	if len(x.Orgs) > maxExportOn {
		orgs.Wrong("must have at most %d orgs", maxExportOn)
	}
	if n := m.Get("from"); n.Str("") != "" {
		at, err := time.Parse(time.RFC3339, n.Str(""))
		if err != nil {
			n.Wrong("must be an instant such as 2026-03-02T00:00:00Z")
		}
		x.From = at
	}
}

// exportTarget reads where an export sends to. What is not of its type may not stand.
func (l *loader) exportTarget(m *strictyaml.Map, x *Export) {
	only := func(field string, types ...string) strictyaml.Node {
		n := m.Get(field)
		if !n.Absent() && x.Type != "" && !slices.Contains(types, x.Type) {
			n.Wrong("must not stand: it is of the type %s", strings.Join(types, " or "))
		}
		return n
	}
	target := only("url", ExportCloudEvents, ExportStripe)
	if x.URL = target.URL("", "http", "https"); x.URL != "" {
		if u, err := url.Parse(x.URL); err == nil && u.User != nil {
			target.Wrong("must not hold a name or password: secret_env and secret_file are for secrets")
		}
	}
	l.exportSecret(only("secret_env", ExportCloudEvents, ExportStripe), only("secret_file", ExportCloudEvents, ExportStripe), x)
	path := only("path", ExportCSV)
	x.Version = only("version", ExportStripe).Str(StripeVersion)
	x.Event = only("event", ExportStripe).Str("")
	amount := only("amount", ExportStripe)
	x.Amount = amount.OneOf("", amounts...)
	customers := only("customers", ExportStripe)
	c := customers.Map()
	for _, name := range c.Names() {
		if x.Customers == nil {
			x.Customers = map[events.Org]string{}
		}
		x.Customers[authority.OrgOf(name)] = id(c.Entry(name), "a customer's id")
	}
	if len(x.Customers) > maxExportOn {
		customers.Wrong("must have at most %d customers", maxExportOn)
	}
	switch x.Type {
	case ExportCloudEvents:
		if target.Absent() {
			target.Wrong("must be given: where batches of CloudEvents are sent, such as https://openmeter.example/api/v1/events")
		}
	case ExportStripe:
		if target.Absent() {
			x.URL = StripeURL
		}
		if x.Event == "" {
			m.Get("event").Wrong("must be given: the meter's event name")
		}
		if amount.Absent() {
			amount.Wrong("must be one of %s", strings.Join(amounts, ", "))
		}
		if x.Secret == nil {
			m.Get("secret_env").Wrong("must be given, or secret_file: Stripe takes nothing without a key")
		}
	case ExportCSV:
		if x.Path = l.path(path, ""); path.Str("") == "" {
			path.Wrong("must be given: the directory of the files")
		}
	}
}

// exportSecret reads where a secret is.
func (l *loader) exportSecret(env, file strictyaml.Node, x *Export) {
	if !env.Absent() && !file.Absent() {
		file.Wrong("must not stand beside secret_env")
		return
	}
	if get := l.secret(env); get != nil {
		name := env.Str("")
		x.Secret = func() (string, error) {
			if text := get(); text != "" {
				return text, nil
			}
			return "", fmt.Errorf("the variable %s is not set", name)
		}
	}
	if file.Str("") == "" {
		return
	}
	path := l.path(file, "")
	if _, err := os.Stat(path); err != nil {
		l.warn(file.Pos(), file.Path(), file.Str(""), "names a file that cannot be read: "+reason(err))
	}
	x.Secret = func() (string, error) {
		text, err := os.ReadFile(path)
		switch secret := strings.TrimSpace(string(text)); {
		case err != nil:
			return "", fmt.Errorf("read the secret: %w", err)
		case secret == "" || len(text) > maxSecret || strings.ContainsAny(secret, "\r\n"):
			return "", fmt.Errorf("%s: must hold one line with the secret", path)
		default:
			return secret, nil
		}
	}
}
