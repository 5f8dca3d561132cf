package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/services/config"
)

// metricsTable is the operators' list of what a process exports.
const metricsTable = "../../ops/guide/metrics.md"

// metric is one line of the table.
type metric struct{ name, kind, labels, help string }

var described = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: (".*"), constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

// read adds what a registry has to the metrics that are known.
func read(t *testing.T, r *prometheus.Registry, into map[string]metric) {
	t.Helper()
	families, err := r.Gather()
	must(t, err)
	kinds := map[string]string{}
	for _, f := range families {
		kinds[f.GetName()] = strings.ToLower(dto.MetricType_name[int32(f.GetType())])
	}
	descs := make(chan *prometheus.Desc)
	go func() { r.Describe(descs); close(descs) }()
	for d := range descs {
		parts := described.FindStringSubmatch(d.String())
		if parts == nil {
			t.Fatalf("a description has another form than expected: %s", d)
		}
		name := parts[1]
		if !strings.HasPrefix(name, "weir_") {
			continue // the runtime's own: go_, process_
		}
		var help string
		if _, err := fmt.Sscanf(parts[2], "%q", &help); err != nil {
			t.Fatal(err)
		}
		labels := parts[4]
		if constant := parts[3]; constant != "" {
			labels, _, _ = strings.Cut(constant, "=")
		}
		into[name] = metric{name, kindOf(t, name, kinds[name]), strings.ReplaceAll(labels, ",", ", "), help}
	}
}

// kindOf is a metric's type: what it was gathered as, or, of one that has no series yet, what its name says. The two must not differ.
func kindOf(t *testing.T, name, gathered string) string {
	t.Helper()
	if counter := strings.HasSuffix(name, "_total"); gathered != "" && counter != (gathered == "counter") {
		t.Errorf("%s is a %s: counters, and no others, end in _total", name, gathered)
	}
	switch {
	case gathered != "":
		return gathered
	case strings.HasSuffix(name, "_total"):
		return "counter"
	case strings.HasSuffix(name, "_seconds") && !strings.HasPrefix(name, "weir_export_"):
		return "histogram" // a gauge always shows, but of exports, which need not be there
	default:
		return "gauge" // of what is not there now
	}
}

// groups are the parts of the table, by prefix; the first that fits holds.
var groups = []struct{ prefix, title, text string }{
	{"weir_projector_", "Projector", "The fold, in processes with the role projector."},
	{"weir_auditor_", "Auditor", "In processes with the role auditor. One is active; the others wait."},
	{"weir_biller_", "Biller", "In processes with the role biller. One is active; the others wait."},
	{"weir_export_", "Exports", "Of each of the configuration's `exports`, in processes with the role biller."},
	{"weir_log_", "Log", "In every process, as it sees the log."},
	{"weir_ledger_", "Ledger", "Whether the log is the right one, in every process."},
	{"weir_data_", "Disk", "The disk of `data_dir`, in every process."},
	{"weir_info", "Process", "In every process."},
	{"weir_process_", "Process", ""},
	{"weir_admission_", "Admission", "In gateways: what the log holds, over all gateways, so the same at each; and how long verdicts take."},
	{"weir_parked_", "Admission", ""},
	{"weir_estimator_", "Admission", ""},
	{"weir_upstream_", "Upstreams", "In gateways: what this one sees of replicas."},
	{"weir_org_", "Use by org", "In gateways. The only metrics with an org in a label; none has a key, and none of refusals has either." +
		" `weir_org_cost_dollars_total`, `weir_org_requests_total` and `weir_org_tokens_total` show the first 2000 pairs of org and model that a process" +
		" meets each by itself; what comes after them is counted under the org `_other`."},
	{"weir_balances_", "Use by org", ""},
	{"weir_authority_", "Authority", "In gateways: keys, limits and fences."},
	{"weir_stale_", "Authority", ""},
	{"weir_denied_", "Authority", ""},
	{"weir_", "Gateway", "Requests, the way into the log, and outages."},
}

func table(all map[string]metric) string {
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	sort.Strings(names)
	rows, text := map[string][]string{}, map[string]string{}
	var order []string
	for _, g := range groups {
		if text[g.title] == "" {
			order, text[g.title] = append(order, g.title), g.text
		}
	}
	for _, name := range names {
		m := all[name]
		for _, g := range groups {
			if strings.HasPrefix(name, g.prefix) {
				rows[g.title] = append(rows[g.title], fmt.Sprintf("| `%s` | %s | %s | %s |", m.name, m.kind, m.labels, m.help))
				break
			}
		}
	}
	var b strings.Builder
	b.WriteString(metricsIntro)
	for _, title := range order {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| metric | type | labels | |\n|---|---|---|---|\n%s\n", title, text[title], strings.Join(rows[title], "\n"))
	}
	return b.String()
}

const metricsIntro = `# Metrics

What ` + "`GET /metrics`" + ` of each process shows, at ` + "`operators.listen`" + ` where that is set and else at ` + "`listen`" + `. Times are in seconds, sizes in bytes, money in
US dollars, shares from 0 to 1. Beside these there are the Go runtime's (` + "`go_…`" + `) and the process's (` + "`process_…`" + `). Labels take values that the
configuration or the code names, never what a client sends; their number does not grow with keys. At ` + "`listen`" + ` those under "Use by org" are for operators
alone, as ` + "`/status`" + ` is: with an admin key (` + "`authorization`" + ` in Prometheus), or from this machine where none is configured.

Rules and alerts that use them are in ` + "`ops/prometheus`" + `, dashboards in ` + "`ops/grafana`" + `, and what to do about an alert in ` + "`ops/runbooks`" + `.

This list is made from the running product: ` + "`go test ./services/weir -run TestMetricsTable -rewrite`" + ` writes it anew.
`

// TestMetricsTable holds the operators' list against what running processes register.
func TestMetricsTable(t *testing.T) {
	all, joined := startEverything(t)
	known := map[string]metric{}
	read(t, all.registry, known)
	read(t, joined.registry, known)
	if len(known) < 80 {
		t.Fatalf("only %d metrics", len(known))
	}
	for _, m := range known {
		switch {
		case len(m.help) < 10 || !strings.HasSuffix(m.help, "."):
			t.Errorf("%s: its help must be a sentence, not %q", m.name, m.help)
		case regexp.MustCompile(`_(ms|millis|minutes|hours|kb|mb|percent)(_|$)`).MatchString(m.name):
			t.Errorf("%s is not in a base unit", m.name)
		case regexp.MustCompile(`(^|, )(key|request|principal|user)(,|$)`).MatchString(m.labels):
			t.Errorf("%s has a label without bounds: %s", m.name, m.labels)
		case strings.Contains(m.name, "refus") && strings.Contains(m.labels, "org"):
			t.Errorf("%s names a tenant in refusals", m.name)
		}
	}
	want := table(known)
	if *rewrite {
		must(t, os.WriteFile(metricsTable, []byte(want), 0o644))
	}
	got, err := os.ReadFile(metricsTable)
	must(t, err)
	if diff := cmp.Diff(string(got), want); diff != "" {
		t.Errorf("%s is not what the product exports; run: go test ./services/weir -run TestMetricsTable -rewrite\n%s", metricsTable, diff)
	}
}

// TestOperatorsAddress: where operators have an address of their own, it has everything, and the API's has health and readiness alone.
func TestOperatorsAddress(t *testing.T) {
	all, joined := startEverything(t)
	status := func(base, path string) int {
		t.Helper()
		q, err := http.NewRequest(http.MethodGet, base+path, nil)
		must(t, err)
		q.Header.Set("Authorization", "Bearer "+adminKey)
		a, err := http.DefaultClient.Do(q)
		must(t, err)
		must(t, a.Body.Close())
		return a.StatusCode
	}
	own, api := "http://"+all.operated.Addr().String(), "http://"+all.gateway.Addr().String()
	for path, want := range map[string][2]int{"/health": {200, 200}, "/metrics": {200, 404}, "/status": {200, 404}, "/log?from=1": {200, 404}} {
		if got := [2]int{status(own, path), status(api, path)}; got != want {
			t.Errorf("%s answers %d to operators and %d beside the API, not %d", path, got[0], got[1], want)
		}
	}
	must(t, all.waitReady(t.Context()))
	if s := status(own, "/ready"); s != 200 {
		t.Errorf("/ready answers %d", s)
	}
	if s := status("http://"+joined.gateway.Addr().String(), "/metrics"); s != 200 {
		t.Errorf("without an address for operators /metrics answers %d", s)
	}
}

// TestMetricsOfOrgsAreForOperators: on the API's own address who is no operator reads nothing of any org.
func TestMetricsOfOrgsAreForOperators(t *testing.T) {
	n := &node{config: &config.Config{AdminKeys: [][32]byte{authority.HashKey(adminKey)}}, registry: prometheus.NewRegistry()}
	cost := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_org_cost_dollars_total"}, []string{"org", "model"})
	cost.WithLabelValues("acme", "qwen").Add(3)
	n.registry.MustRegister(cost, prometheus.NewGauge(prometheus.GaugeOpts{Name: "weir_balances_dollars"}), prometheus.NewGauge(prometheus.GaugeOpts{Name: "weir_ready"}))
	served := n.besideAPI(promhttp.HandlerFor(n.registry, promhttp.HandlerOpts{}))
	ask := func(from, key string) string {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.RemoteAddr = from
		if key != "" {
			r.Header.Set("Authorization", "Bearer "+key)
		}
		w := httptest.NewRecorder()
		served.ServeHTTP(w, r)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "weir_ready 0") {
			t.Errorf("%s with key %q: %d %s", from, key, w.Code, w.Body)
		}
		return w.Body.String()
	}
	const near, far = "127.0.0.1:4000", "10.0.0.9:4000"
	tells := func(text string) bool {
		return strings.Contains(text, "acme") || strings.Contains(text, "weir_balances_")
	}
	for _, from := range []string{near, far} {
		for _, key := range []string{"", "sk-wrong"} {
			if text := ask(from, key); tells(text) {
				t.Errorf("%s with key %q reads of orgs: %s", from, key, text)
			}
		}
		if text := ask(from, adminKey); !strings.Contains(text, `weir_org_cost_dollars_total{model="qwen",org="acme"} 3`) || !strings.Contains(text, "weir_balances_dollars 0") {
			t.Errorf("%s with the admin key reads %s", from, text)
		}
	}
	n.config.AdminKeys = nil
	if !tells(ask(near, "")) {
		t.Error("without admin keys this machine does not read of orgs")
	}
	if text := ask(far, ""); tells(text) {
		t.Errorf("without admin keys another machine reads %s", text)
	}
}
