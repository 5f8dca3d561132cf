package ops

import (
	"encoding/json"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/weirhq/weir/gateway/wire"
)

// described is what is read of the OpenAPI document.
type described struct {
	OpenAPI    string
	Paths      map[string]map[string]operation
	Components map[string]map[string]any
}

type operation struct {
	OperationID, Summary string
	Parameters           []struct{ Name, In string }
	Responses            map[string]any
	Security             []map[string][]string
}

const openAPI = "schemas/openapi/weir.openapi.json"

// beside are mounts whose pattern stands elsewhere in source as a literal, or that are no part of the API.
var beside = []string{
	`"POST "+op.Path()`, // every wire.Operation, below
	`pattern`,           // what manage's own tables have
	`prefix`,            // all of manage, whose paths are found in it
	`"/"`,               // what answers that there is nothing
	`"/console"`,        // pages, for people
	`"/console/"`,
}

// routes finds what the code mounts: every pattern of net/http's mux in source that names a method. A pattern that does not stand there as a
// literal would not be found, and is refused.
func routes(t *testing.T) (all []string) {
	t.Helper()
	pattern := regexp.MustCompile(`"([A-Z]+) (/[^"]*)"`)
	mount := regexp.MustCompile(`\.Handle(?:Func)?\(([^,]+),`)
	for _, dir := range []string{"gateway", "services"} {
		err := filepath.WalkDir(root+dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "services/provider/") || strings.Contains(path, "gateway/console/") {
				return err // the console's pages are for people
			}
			text := read(t, strings.TrimPrefix(path, root))
			for _, m := range mount.FindAllStringSubmatch(text, -1) {
				if !pattern.MatchString(m[1]) && !slices.Contains(beside, m[1]) {
					t.Errorf("%s mounts %s: what that is cannot be found", path, m[1])
				}
			}
			for _, m := range pattern.FindAllStringSubmatch(text, -1) {
				all = append(all, m[1]+" "+strings.ReplaceAll(strings.ReplaceAll(m[2], "...}", "}"), "{$}", ""))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, op := range wire.All() {
		all = append(all, "POST "+op.Path())
	}
	sort.Strings(all)
	return slices.Compact(all)
}

// TestOpenAPIHasEveryRoute: what is mounted is described, and the other way round; every reference leads somewhere.
func TestOpenAPIHasEveryRoute(t *testing.T) {
	text := read(t, openAPI)
	var d described
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	mounted := routes(t)
	if len(mounted) < 60 || !strings.HasPrefix(d.OpenAPI, "3.1") {
		t.Fatalf("%d routes, OpenAPI %s", len(mounted), d.OpenAPI)
	}
	var have []string
	ids := map[string]bool{}
	for path, operations := range d.Paths {
		for method, op := range operations {
			name := strings.ToUpper(method) + " " + path
			have = append(have, name)
			if op.Summary == "" || op.OperationID == "" || ids[op.OperationID] || len(op.Responses) == 0 || op.Security == nil {
				t.Errorf("%s: it needs a summary, an operationId of its own, responses and security", name)
			}
			ids[op.OperationID] = true
			var inPath []string
			for _, p := range op.Parameters {
				if p.In == "path" {
					inPath = append(inPath, "{"+p.Name+"}")
				}
			}
			if want := regexp.MustCompile(`\{\w+\}`).FindAllString(path, -1); !slices.Equal(inPath, want) {
				t.Errorf("%s: its path has %v, its parameters %v", name, want, inPath)
			}
			for _, s := range op.Security {
				for scheme := range s {
					if d.Components["securitySchemes"][scheme] == nil {
						t.Errorf("%s: there is no security scheme %s", name, scheme)
					}
				}
			}
		}
	}
	for _, r := range mounted {
		if !slices.Contains(have, r) {
			t.Errorf("%s is mounted and not in %s: add it under \"paths\", with operationId, summary, security, parameters and responses as its neighbours have them", r, openAPI)
		}
	}
	for _, r := range have {
		if !slices.Contains(mounted, r) {
			t.Errorf("%s is in %s and not mounted: take it out there", r, openAPI)
		}
	}
	for _, m := range regexp.MustCompile(`"\$ref": "#/components/(\w+)/(\w+)"`).FindAllStringSubmatch(text, -1) {
		if d.Components[m[1]][m[2]] == nil {
			t.Errorf("%s refers to %s/%s, which is not there", openAPI, m[1], m[2])
		}
	}
}
