package ops

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/weirhq/weir/services/config"
)

// documents reads every document of a YAML file.
func documents(t *testing.T, path string) (all []map[string]any) {
	t.Helper()
	dec := yaml.NewDecoder(bytes.NewReader([]byte(read(t, path))))
	for {
		var d map[string]any
		err := dec.Decode(&d)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, d)
	}
}

// at goes down maps and lists; nil where there is nothing.
func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

func list(v any) []any { l, _ := v.([]any); return l }

// variables of the environment that the product reads and that are no fields of weir.yaml.
var others = map[string]bool{"WEIR_ROLES": true, "WEIR_CONFIG": true, "WEIR_ADMIN_KEYS": true, "WEIR_ADMIN_KEY": true}

// known says whether the product reads a variable: the loader is asked.
func known(name string) bool {
	if others[name] {
		return true
	}
	asked := false
	_, _, _ = config.Parse("", nil, func(n string) string { asked = asked || n == name; return "" }) // no file: valid
	return asked
}

// valid loads a configuration as the product does, with an environment, from a directory of its own.
func valid(t *testing.T, name, text string, env map[string]string, beside map[string]string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	for file, content := range beside {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "weir.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, warnings, err := config.Load(file, func(n string) string { return env[n] })
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	source := c.Source()
	_, more, err := source.Load()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for _, w := range append(warnings, more...) {
		t.Errorf("%s: %s", name, w)
	}
	return c
}

func port(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

var environment = regexp.MustCompile(`\b(WEIR_[A-Z_]+)\b`)

func TestImage(t *testing.T) {
	text := read(t, "ops/Dockerfile")
	for _, m := range environment.FindAllStringSubmatch(text, -1) {
		if !known(m[1]) {
			t.Errorf("nothing reads %s", m[1])
		}
	}
	for _, want := range []string{"USER 65532:65532", "CGO_ENABLED=0", "nonroot", "WEIR_LISTEN=0.0.0.0:8080", "EXPOSE 8080 9090", "WEIR_OPERATORS_LISTEN=0.0.0.0:9090", "./services/weir", "main.version", `CMD ["serve"]`} {
		if !strings.Contains(text, want) {
			t.Errorf("the image lacks %s", want)
		}
	}
	if !strings.Contains(read(t, "services/weir/main.go"), "var version = ") {
		t.Error("there is no main.version to set")
	}
}

func TestCompose(t *testing.T) {
	doc := documents(t, "ops/compose/compose.yaml")[0]
	env := map[string]string{}
	for name, v := range at(doc, "services", "weir", "environment").(map[string]any) {
		if !known(name) {
			t.Errorf("nothing reads %s", name)
		}
		env[name] = regexp.MustCompile(`\$\{[A-Z_]+:\?\}`).ReplaceAllString(v.(string), "secret")
	}
	c := valid(t, "ops/compose/weir/weir.yaml", read(t, "ops/compose/weir/weir.yaml"), env, map[string]string{"auth.yaml": read(t, "ops/compose/weir/auth.yaml")})
	if published := at(doc, "services", "weir", "ports", 0).(string); port(published) != port(c.Listen) {
		t.Errorf("port %s is published, and %s served", published, c.Listen)
	}
	target := at(documents(t, "ops/prometheus/prometheus.yml")[0], "scrape_configs", 0, "static_configs", 0, "targets", 0).(string)
	if target != "weir:"+port(c.Operators.Listen) {
		t.Errorf("Prometheus asks %s, and operators are answered at %s", target, c.Operators.Listen)
	}
	if job := at(documents(t, "ops/prometheus/prometheus.yml")[0], "scrape_configs", 0, "job_name"); job != "weir" {
		t.Errorf("alerts are on job weir, not %v", job)
	}
	volumes := at(doc, "volumes").(map[string]any)
	for name, s := range at(doc, "services").(map[string]any) {
		for _, v := range list(at(s, "volumes")) {
			from, _, _ := strings.Cut(v.(string), ":")
			if _, named := volumes[from]; named {
				continue
			}
			if _, err := os.Stat(root + "ops/compose/" + from); err != nil {
				t.Errorf("%s mounts %s, which is not there", name, from)
			}
		}
	}
	if built := at(doc, "services", "weir", "build", "dockerfile").(string); built != "ops/Dockerfile" {
		t.Errorf("it is built by %s", built)
	}
	if url := at(documents(t, "ops/compose/grafana/provisioning/datasources/prometheus.yaml")[0], "datasources", 0, "url"); url != "http://prometheus:9090" || at(doc, "services", "prometheus") == nil {
		t.Errorf("Grafana asks %v", url)
	}
}

func TestKubernetes(t *testing.T) {
	kinds, names := map[string][]map[string]any{}, map[string]bool{}
	for _, d := range documents(t, "ops/kubernetes/weir.yaml") {
		kind := d["kind"].(string)
		name := kind + "/" + at(d, "metadata", "name").(string)
		if names[name] || d["apiVersion"] == nil {
			t.Errorf("%s stands twice, or has no version", name)
		}
		names[name] = true
		kinds[kind] = append(kinds[kind], d)
	}
	files := at(kinds["ConfigMap"][0], "data").(map[string]any)
	labels := func(v any) (text string) { m, _ := yaml.Marshal(v); return string(m) }
	pods := map[string]any{} // by labels
	for _, w := range append(kinds["Deployment"], kinds["StatefulSet"]...) {
		name := at(w, "metadata", "name").(string)
		pod := at(w, "spec", "template", "spec")
		pods[labels(at(w, "spec", "template", "metadata", "labels"))] = pod
		if labels(at(w, "spec", "selector", "matchLabels")) != labels(at(w, "spec", "template", "metadata", "labels")) {
			t.Errorf("%s selects other pods than it makes", name)
		}
		box := at(pod, "containers", 0)
		if at(pod, "securityContext", "runAsNonRoot") != true || at(box, "securityContext", "readOnlyRootFilesystem") != true ||
			at(box, "securityContext", "allowPrivilegeEscalation") != false || at(box, "securityContext", "capabilities", "drop", 0) != "ALL" {
			t.Errorf("%s may do more than it needs", name)
		}
		env := map[string]string{}
		for _, e := range list(at(box, "env")) {
			variable := at(e, "name").(string)
			if !known(variable) {
				t.Errorf("%s: nothing reads %s", name, variable)
			}
			if env[variable], _ = at(e, "value").(string); at(e, "valueFrom") != nil {
				env[variable] = "sk-from-a-secret"
			}
		}
		args := list(at(box, "args"))
		if len(args) != 3 || args[0] != "serve" || args[1] != "--config" {
			t.Fatalf("%s runs %v", name, args)
		}
		file := filepath.Base(args[2].(string))
		c := valid(t, name, files[file].(string), env, map[string]string{"auth.yaml": files["auth.yaml"].(string)})
		ports := map[string]string{}
		for _, p := range list(at(box, "ports")) {
			ports[at(p, "name").(string)] = strings.TrimSpace(labels(at(p, "containerPort")))
		}
		want := map[string]string{"http": port(c.Listen), "operators": port(c.Operators.Listen)}
		if c.Log.Listen != "" {
			want["log"] = port(c.Log.Listen)
		}
		for p, n := range want {
			if ports[p] != n {
				t.Errorf("%s: port %s is %s, and %s is served", name, p, ports[p], n)
			}
		}
		for _, probe := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
			path := "/health"
			if probe == "readinessProbe" {
				path = "/ready"
			}
			if at(box, probe, "httpGet", "path") != path || ports[at(box, probe, "httpGet", "port").(string)] == "" {
				t.Errorf("%s: %s asks %v", name, probe, at(box, probe))
			}
		}
		mounted := map[string]bool{}
		for _, m := range list(at(box, "volumeMounts")) {
			mounted[at(m, "mountPath").(string)] = true
		}
		for _, path := range []string{c.DataDir, filepath.Dir(c.Log.Credentials), filepath.Dir(args[2].(string))} {
			if !mounted[path] {
				t.Errorf("%s: nothing is mounted at %s", name, path)
			}
		}
		if u := c.Log.URL; u != "" && !names["Service/"+strings.TrimSuffix(strings.TrimPrefix(u, "nats://"), ":4222")] {
			t.Errorf("%s joins %s, which no service is", name, u)
		}
	}
	for _, s := range kinds["Service"] {
		pod := pods[labels(at(s, "spec", "selector"))]
		if pod == nil {
			t.Errorf("%s leads to no pod", at(s, "metadata", "name"))
			continue
		}
		text := labels(at(pod, "containers", 0, "ports"))
		for _, p := range list(at(s, "spec", "ports")) {
			if !strings.Contains(text, "name: "+at(p, "targetPort").(string)) {
				t.Errorf("%s leads to a port that is not there: %v", at(s, "metadata", "name"), p)
			}
		}
	}
	if len(kinds["PodDisruptionBudget"]) != 1 || pods[labels(at(kinds["PodDisruptionBudget"][0], "spec", "selector", "matchLabels"))] == nil {
		t.Error("the gateways have no disruption budget")
	}
}
