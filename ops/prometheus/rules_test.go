// Package prometheus tests the rules and the dashboards' expressions with Prometheus's own parser and engine. It is a module of its own,
// so that the product does not depend on Prometheus: cd ops/prometheus && go test ./...
//
// Files in tests/ have the form of promtool's rule tests, and promtool test rules tests/*.yml runs them too.
package prometheus

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/template"
	"go.yaml.in/yaml/v3"
)

// testFile is a file of promtool's form.
type testFile struct {
	RuleFiles          []string       `yaml:"rule_files"`
	EvaluationInterval model.Duration `yaml:"evaluation_interval"`
	Tests              []struct {
		Name        string         `yaml:"name"`
		Interval    model.Duration `yaml:"interval"`
		InputSeries []struct {
			Series string `yaml:"series"`
			Values string `yaml:"values"`
		} `yaml:"input_series"`
		AlertRuleTest []struct {
			EvalTime  model.Duration `yaml:"eval_time"`
			Alertname string         `yaml:"alertname"`
			ExpAlerts []alert        `yaml:"exp_alerts"`
		} `yaml:"alert_rule_test"`
		PromqlExprTest []struct {
			Expr       string         `yaml:"expr"`
			EvalTime   model.Duration `yaml:"eval_time"`
			ExpSamples []struct {
				Labels string  `yaml:"labels"`
				Value  float64 `yaml:"value"`
			} `yaml:"exp_samples"`
		} `yaml:"promql_expr_test"`
	} `yaml:"tests"`
}

// alert is one that fires.
type alert struct {
	Labels      map[string]string `yaml:"exp_labels"`
	Annotations map[string]string `yaml:"exp_annotations"`
}

func parse() parser.Parser { return parser.NewParser(parser.Options{}) }

func engine() *promql.Engine {
	return promql.NewEngine(promql.EngineOpts{MaxSamples: 1_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: parse(),
		NoStepSubqueryIntervalFn: func(int64) int64 { return time.Minute.Milliseconds() }})
}

// rulesOf reads rule files, which must be valid.
func rulesOf(t *testing.T, files ...string) (rules []rulefmt.Rule) {
	t.Helper()
	for _, f := range files {
		groups, errs := rulefmt.ParseFile(f, false, model.UTF8Validation, parse(), slog.New(slog.DiscardHandler))
		for _, err := range errs {
			t.Error(err)
		}
		if len(errs) > 0 {
			t.FailNow()
		}
		for _, g := range groups.Groups {
			rules = append(rules, g.Rules...)
		}
	}
	return rules
}

func TestRules(t *testing.T) {
	files, err := filepath.Glob("tests/*.yml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests: %v", err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var f testFile
		dec := yaml.NewDecoder(strings.NewReader(string(text)))
		dec.KnownFields(true)
		if err := dec.Decode(&f); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		paths := make([]string, len(f.RuleFiles))
		for i, r := range f.RuleFiles {
			paths[i] = filepath.Join("tests", r)
		}
		rules := rulesOf(t, paths...)
		for i := range f.Tests {
			t.Run(f.Tests[i].Name, func(t *testing.T) { f.run(t, i, rules) })
		}
	}
}

// run evaluates the rules over a test's series, and compares at the instants that it names.
func (f *testFile) run(t *testing.T, n int, rules []rulefmt.Rule) {
	test := &f.Tests[n]
	s := &world{t: t, engine: engine(), active: map[string]map[string]time.Time{}}
	for _, in := range test.InputSeries {
		s.input(in.Series, in.Values, time.Duration(test.Interval))
	}
	end := time.Duration(0)
	for _, a := range test.AlertRuleTest {
		end = max(end, time.Duration(a.EvalTime))
	}
	for _, p := range test.PromqlExprTest {
		end = max(end, time.Duration(p.EvalTime))
	}
	for at := time.Duration(0); at <= end; at += time.Duration(f.EvaluationInterval) {
		firing := s.evaluate(rules, epoch.Add(at))
		for _, want := range test.AlertRuleTest {
			if time.Duration(want.EvalTime) == at {
				compare(t, at, want.Alertname, firing[want.Alertname], want.ExpAlerts)
			}
		}
		for _, want := range test.PromqlExprTest {
			if time.Duration(want.EvalTime) != at {
				continue
			}
			got := map[string]float64{}
			for _, v := range s.query(want.Expr, epoch.Add(at)) {
				got[v.Metric.String()] = v.F
			}
			expected := map[string]float64{}
			for _, e := range want.ExpSamples {
				l, err := parse().ParseMetric(e.Labels)
				if err != nil {
					t.Fatal(err)
				}
				expected[l.String()] = e.Value
			}
			if !reflect.DeepEqual(got, expected) {
				t.Errorf("at %s %s is %v, not %v", at, want.Expr, got, expected)
			}
		}
	}
}

// compare holds the alerts of one name that fire against those expected. What fires is shown as the test would have it.
func compare(t *testing.T, at time.Duration, name string, got, want []alert) {
	t.Helper()
	for i := range want {
		want[i].Labels = maps.Clone(want[i].Labels)
		want[i].Labels["alertname"] = name
	}
	order := func(a, b alert) int { return strings.Compare(fmt.Sprint(a.Labels), fmt.Sprint(b.Labels)) }
	slices.SortFunc(got, order)
	slices.SortFunc(want, order)
	if len(got) == 0 && len(want) == 0 || reflect.DeepEqual(got, want) {
		return
	}
	shown, _ := yaml.Marshal(got)
	t.Errorf("at %s %s fires %d times, %d were expected; it is:\n%s", at, name, len(got), len(want), shown)
}

var epoch = time.Unix(0, 0).UTC()

// world is what a Prometheus would hold.
type world struct {
	t      *testing.T
	engine *promql.Engine
	store  store
	active map[string]map[string]time.Time // by alert and labels: since when its expression holds
}

// input adds a series in promtool's notation.
func (w *world) input(series, values string, every time.Duration) {
	w.t.Helper()
	l, points, err := parse().ParseSeriesDesc(series + " " + values)
	if err != nil {
		w.t.Fatalf("%s %s: %v", series, values, err)
	}
	for i, p := range points {
		if !p.Omitted {
			w.store.add(l, epoch.Add(time.Duration(i)*every).UnixMilli(), p.Value)
		}
	}
}

func (w *world) query(expr string, at time.Time) promql.Vector {
	w.t.Helper()
	q, err := w.engine.NewInstantQuery(context.Background(), &w.store, nil, expr, at)
	if err != nil {
		w.t.Fatalf("%s: %v", expr, err)
	}
	defer q.Close()
	v, err := q.Exec(context.Background()).Vector()
	if err != nil {
		w.t.Fatalf("%s: %v", expr, err)
	}
	return slices.Clone(v)
}

// evaluate evaluates all rules once and gives what fires, by alert.
func (w *world) evaluate(rules []rulefmt.Rule, at time.Time) map[string][]alert {
	firing := map[string][]alert{}
	for _, r := range rules {
		v := w.query(r.Expr, at)
		if r.Record != "" {
			for _, s := range v {
				b := labels.NewBuilder(s.Metric).Set(labels.MetricName, r.Record)
				for k, val := range r.Labels {
					b.Set(k, val)
				}
				w.store.add(b.Labels(), at.UnixMilli(), s.F)
			}
			continue
		}
		now := map[string]time.Time{}
		for _, s := range v {
			a := w.alert(&r, s, at)
			id := fmt.Sprint(a.Labels)
			now[id] = at
			if since, was := w.active[r.Alert][id]; was {
				now[id] = since
			}
			if at.Sub(now[id]) >= time.Duration(r.For) {
				firing[r.Alert] = append(firing[r.Alert], a)
			}
		}
		w.active[r.Alert] = now
	}
	return firing
}

// alert is what a sample of a rule's expression makes.
func (w *world) alert(r *rulefmt.Rule, s promql.Sample, at time.Time) alert {
	w.t.Helper()
	data := template.AlertTemplateData(s.Metric.Map(), nil, "", s)
	expand := func(text string) string {
		const defs = "{{$labels := .Labels}}{{$externalLabels := .ExternalLabels}}{{$externalURL := .ExternalURL}}{{$value := .Value}}"
		out, err := template.NewTemplateExpander(context.Background(), defs+text, r.Alert, data, model.TimeFromUnixNano(at.UnixNano()), nil, &url.URL{}, nil).Expand()
		if err != nil {
			w.t.Fatalf("%s: %v", r.Alert, err)
		}
		return out
	}
	a := alert{Labels: s.Metric.Map(), Annotations: map[string]string{}}
	delete(a.Labels, labels.MetricName)
	a.Labels["alertname"] = r.Alert
	for k, v := range r.Labels {
		a.Labels[k] = expand(v)
	}
	for k, v := range r.Annotations {
		a.Annotations[k] = expand(v)
	}
	return a
}

// TestEveryAlertHasATest: of each alert a test says when it fires, and one when it does not.
func TestEveryAlertHasATest(t *testing.T) {
	files, err := filepath.Glob("tests/*.yml")
	if err != nil {
		t.Fatal(err)
	}
	fires, rests := map[string]bool{}, map[string]bool{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var f testFile
		if err := yaml.Unmarshal(text, &f); err != nil {
			t.Fatal(err)
		}
		for _, test := range f.Tests {
			for _, a := range test.AlertRuleTest {
				fires[a.Alertname] = fires[a.Alertname] || len(a.ExpAlerts) > 0
				rests[a.Alertname] = rests[a.Alertname] || len(a.ExpAlerts) == 0
			}
		}
	}
	for _, r := range rulesOf(t, "rules/recording.yml", "rules/alerts.yml") {
		if r.Alert != "" && !(fires[r.Alert] && rests[r.Alert]) {
			t.Errorf("%s: tests/ must have an instant at which it fires and one at which it does not", r.Alert)
		}
	}
}

// variable is one of a dashboard's, in an expression.
var variable = regexp.MustCompile(`\$\{?[a-z_]+(:[a-z]+)?\}?`)

// TestDashboardsParse: each expression of each dashboard is one that Prometheus can read.
func TestDashboardsParse(t *testing.T) {
	files, err := filepath.Glob("../grafana/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no dashboards: %v", err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var dashboard any
		if err := json.Unmarshal(text, &dashboard); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		n := 0
		var walk func(v any)
		walk = func(v any) {
			switch v := v.(type) {
			case []any:
				for _, e := range v {
					walk(e)
				}
			case map[string]any:
				if expr, ok := v["expr"].(string); ok {
					n++
					expr = strings.NewReplacer("$__rate_interval", "5m", "$__range", "5m").Replace(expr)
					if _, err := parse().ParseExpr(variable.ReplaceAllString(expr, "x")); err != nil {
						t.Errorf("%s: %s: %v", name, expr, err)
					}
				}
				for _, e := range v {
					walk(e)
				}
			}
		}
		walk(dashboard)
		if n == 0 {
			t.Errorf("%s has no expression", name)
		}
	}
}
