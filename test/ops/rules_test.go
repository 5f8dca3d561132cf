package ops

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

const root = "../../"

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(root + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// rule is one of ops/prometheus/rules.
type rule struct {
	Record, Alert, Expr, For string
	Labels, Annotations      map[string]string
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	for _, name := range []string{"recording", "alerts"} {
		var f struct{ Groups []struct{ Rules []rule } }
		if err := yaml.Unmarshal([]byte(read(t, "ops/prometheus/rules/"+name+".yml")), &f); err != nil {
			t.Fatal(err)
		}
		for _, g := range f.Groups {
			all = append(all, g.Rules...)
		}
	}
	if len(all) < 30 {
		t.Fatalf("only %d rules", len(all))
	}
	return all
}

var (
	listed = regexp.MustCompile("(?m)^\\| `(weir_[a-z0-9_]+)` \\| ([a-z]+) \\| ([a-z, ]*) \\|")
	named  = regexp.MustCompile(`\bweir[_:][a-zA-Z0-9_:]+`)
	quoted = regexp.MustCompile(`"[^"]*"`)
)

// exported are the names that an expression may have: what the table in the guide lists, which is held against the product, and what rules record.
func exported(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, m := range listed.FindAllStringSubmatch(read(t, "ops/guide/metrics.md"), -1) {
		if m[2] != "histogram" {
			names[m[1]] = true
			continue
		}
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			names[m[1]+suffix] = true
		}
	}
	for _, r := range rules(t) {
		if r.Record != "" {
			names[r.Record] = true
		}
	}
	return names
}

// check reports names in an expression that nothing exports.
func check(t *testing.T, where, expr string, known map[string]bool) {
	t.Helper()
	for _, name := range named.FindAllString(quoted.ReplaceAllString(expr, ""), -1) {
		if !known[name] {
			t.Errorf("%s: %s is neither exported (ops/guide/metrics.md) nor recorded (ops/prometheus/rules)", where, name)
		}
	}
}

// TestRulesNameWhatIsExported also holds each alert to what a person needs at night: how grave it is, what to do, and a runbook that is there.
func TestRulesNameWhatIsExported(t *testing.T) {
	known := exported(t)
	var tests strings.Builder
	files, err := filepath.Glob(root + "ops/prometheus/tests/*.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		tests.WriteString(read(t, strings.TrimPrefix(f, root)))
	}
	runbooks := read(t, "ops/runbooks/README.md")
	for _, r := range rules(t) {
		check(t, r.Record+r.Alert, r.Expr, known)
		if r.Alert == "" {
			continue
		}
		if s := r.Labels["severity"]; s != "page" && s != "ticket" {
			t.Errorf("%s: severity %q is neither page nor ticket", r.Alert, s)
		}
		if s := r.Annotations["summary"]; len(s) < 40 || !strings.ContainsAny(s[len(s)-1:], ".?") {
			t.Errorf("%s: the summary must say in a sentence what is wrong and what to do, not %q", r.Alert, s)
		}
		book := r.Annotations["runbook"]
		if _, err := os.Stat(root + book); err != nil || !strings.HasPrefix(book, "ops/runbooks/") {
			t.Errorf("%s: its runbook %q is not in ops/runbooks", r.Alert, book)
		}
		if !strings.Contains(runbooks, "("+filepath.Base(book)+")") {
			t.Errorf("%s: ops/runbooks/README.md does not name %s", r.Alert, book)
		}
		if !strings.Contains(tests.String(), "alertname: "+r.Alert+",") {
			t.Errorf("%s: nothing in ops/prometheus/tests is about it", r.Alert)
		}
	}
}

// TestRunbooksAreLinked: every runbook is in the index, and every link in one leads somewhere.
func TestRunbooksAreLinked(t *testing.T) {
	index := read(t, "ops/runbooks/README.md")
	link := regexp.MustCompile(`\]\(([^)#: ]+\.md)\)`)
	for _, dir := range []string{"ops/runbooks/", "ops/guide/"} {
		files, err := filepath.Glob(root + dir + "*.md")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", dir, err)
		}
		for _, f := range files {
			name := filepath.Base(f)
			if dir == "ops/runbooks/" && name != "README.md" && !strings.Contains(index, "("+name+")") {
				t.Errorf("ops/runbooks/README.md does not name %s", name)
			}
			for _, m := range link.FindAllStringSubmatch(read(t, dir+name), -1) {
				if _, err := os.Stat(root + dir + m[1]); err != nil {
					t.Errorf("%s%s: %s is not there", dir, name, m[1])
				}
			}
		}
	}
}

// dashboard is what is read of a dashboard of ops/grafana.
type dashboard struct {
	UID           string
	Title         string
	SchemaVersion int
	Templating    struct {
		List []struct {
			Name, Type string
			Query      any
		}
	}
	Panels []struct {
		ID          int
		Type, Title string
		Description string
		GridPos     struct{ H, W, X, Y int }
		Datasource  struct{ Type, UID string }
		Targets     []struct{ Expr, RefID, LegendFormat string }
		FieldConfig struct{ Defaults struct{ Unit string } }
	}
}

// TestDashboards: every panel has a title, says in which unit it shows, lies on the grid without covering another, and asks for what is exported.
func TestDashboards(t *testing.T) {
	known := exported(t)
	variables := regexp.MustCompile(`\$([a-z_]+)`)
	for _, name := range []string{"admission", "money", "health"} {
		var d dashboard
		if err := json.Unmarshal([]byte(read(t, "ops/grafana/"+name+".json")), &d); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d.UID != "weir-"+name || d.SchemaVersion < 39 || d.Title == "" {
			t.Errorf("%s: uid %q, schema %d, title %q", name, d.UID, d.SchemaVersion, d.Title)
		}
		has := map[string]bool{"__rate_interval": true, "__range": true} // Grafana's own
		for _, v := range d.Templating.List {
			has[v.Name] = true
			if text, ok := v.Query.(string); ok {
				check(t, name+" $"+v.Name, text, known)
			}
		}
		if !has["datasource"] {
			t.Errorf("%s: no variable for the data source", name)
		}
		cells, ids := map[[2]int]string{}, map[int]bool{}
		for _, p := range d.Panels {
			where := name + ": " + p.Title
			if p.Title == "" || ids[p.ID] {
				t.Errorf("%s: panel %d has no title, or its id twice", name, p.ID)
			}
			ids[p.ID] = true
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
						t.Errorf("%s covers %q or the edge", where, other)
					}
					cells[[2]int{x, y}] = p.Title
				}
			}
			if p.Type == "row" {
				continue
			}
			if p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 || p.Description == "" {
				t.Errorf("%s: no unit, no expression or no description", where)
			}
			if p.Datasource.UID != "${datasource}" {
				t.Errorf("%s: its data source is not the variable", where)
			}
			for _, target := range p.Targets {
				check(t, where, target.Expr, known)
				for _, v := range variables.FindAllStringSubmatch(target.Expr, -1) {
					if !has[v[1]] {
						t.Errorf("%s: there is no variable $%s", where, v[1])
					}
				}
			}
		}
	}
}
