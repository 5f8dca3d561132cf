// Package arch proves the layout: which package may import which, which must be pure, and how large files may grow.
package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/weirhq/weir/"

// layers are the top-level folders in the order in which imports run: each may import itself and those before it.
var layers = []string{"schemas", "events", "projections", "gateway", "services"}

// pure packages have no I/O, clock, goroutine or chance.
var pure = []string{
	"events", "projections/admission", "projections/estimator", "projections/gate", "projections/generation", "projections/insight", "projections/usage",
	"gateway/openai", "gateway/anthropic", "gateway/wire", "gateway/estimate", "gateway/policy", "gateway/refusal", "gateway/outage",
}

// onlyEvents are packages that may import events and the standard library's pure parts, nothing else.
var onlyEvents = []string{"projections/admission"}

// impure are imports of the standard library that a pure package cannot have.
var impure = map[string]bool{
	"os": true, "net": true, "net/http": true, "log": true, "log/slog": true, "math/rand": true, "math/rand/v2": true, "crypto/rand": true,
	"sync": true, "sync/atomic": true, "context": true, "os/exec": true, "os/signal": true, "syscall": true, "io/fs": true, "path/filepath": true,
}

// words are imports that a pure package may have for their types and constants: it makes no call.
var words = map[string]string{"gateway/refusal": "net/http"}

// maxLines bounds a file, so that one holds one idea.
const maxLines = 800

type file struct {
	path string // from the root, with slashes
	ast  *ast.File
	fset *token.FileSet
	test bool
	size int
}

func (f *file) pkg() string { return filepath.ToSlash(filepath.Dir(f.path)) }

func (f *file) imports() (paths []string) {
	for _, i := range f.ast.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		paths = append(paths, path)
	}
	return paths
}

func sources(t *testing.T) (files []*file) {
	t.Helper()
	root := "../.."
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() {
			if rel != "." && strings.HasPrefix(d.Name(), ".") || rel == "ops/tools" || rel == "ops/prometheus" {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || !strings.Contains(rel, "/") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, path, text, parser.ParseComments)
		if err != nil {
			return err
		}
		files = append(files, &file{filepath.ToSlash(rel), parsed, fset, strings.HasSuffix(path, "_test.go"), strings.Count(string(text), "\n")})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("only %d files were read", len(files))
	}
	return files
}

func layer(pkg string) int {
	top, _, _ := strings.Cut(pkg, "/")
	for i, l := range layers {
		if l == top {
			return i
		}
	}
	return -1
}

func TestImportsRunOneWay(t *testing.T) {
	for _, f := range sources(t) {
		from := layer(f.pkg())
		if from < 0 || f.test {
			continue
		}
		for _, path := range f.imports() {
			own, ok := strings.CutPrefix(path, module)
			if !ok {
				continue
			}
			switch to := layer(own); {
			case to > from:
				t.Errorf("%s imports %s: imports run from services to schemas", f.path, own)
			case to < 0 && !strings.HasPrefix(f.pkg(), "test/"):
				t.Errorf("%s imports %s, which is no part of the product", f.path, own)
			}
		}
	}
}

func TestPurePackagesArePure(t *testing.T) {
	isPure := map[string]bool{}
	for _, p := range pure {
		isPure[p] = true
	}
	for _, f := range sources(t) {
		if !isPure[f.pkg()] || f.test {
			continue
		}
		for _, path := range f.imports() {
			if impure[path] && words[f.pkg()] != path {
				t.Errorf("%s imports %s: %s is pure", f.path, path, f.pkg())
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s starts a goroutine", f.fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" {
					switch n.Sel.Name {
					case "Now", "Since", "Until", "Sleep", "After", "Tick", "NewTimer", "NewTicker", "AfterFunc":
						t.Errorf("%s reads the clock: time.%s", f.fset.Position(n.Pos()), n.Sel.Name)
					}
				}
			}
			return true
		})
	}
}

func TestTheFoldImportsOnlyEvents(t *testing.T) {
	for _, f := range sources(t) {
		for _, p := range onlyEvents {
			if f.pkg() != p || f.test {
				continue
			}
			for _, path := range f.imports() {
				if strings.Contains(path, ".") && path != module+"events" {
					t.Errorf("%s imports %s: the fold imports events and nothing else", f.path, path)
				}
			}
		}
	}
}

func TestOnlyServicesReadTheEnvironment(t *testing.T) {
	for _, f := range sources(t) {
		if f.test || layer(f.pkg()) < 0 || layer(f.pkg()) == layer("services") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "os" {
					switch s.Sel.Name {
					case "Getenv", "LookupEnv", "Environ", "Args", "Exit":
						t.Errorf("%s: os.%s belongs in services", f.fset.Position(s.Pos()), s.Sel.Name)
					}
				}
			}
			return true
		})
	}
}

func TestFilesAndPackages(t *testing.T) {
	documented := map[string]bool{}
	all := map[string]string{}
	for _, f := range sources(t) {
		if f.size > maxLines {
			t.Errorf("%s has %d lines, more than %d", f.path, f.size, maxLines)
		}
		if f.test {
			continue
		}
		all[f.pkg()] = f.path
		documented[f.pkg()] = documented[f.pkg()] || f.ast.Doc != nil
	}
	for pkg := range all {
		if !documented[pkg] {
			t.Errorf("package %s has no doc comment", pkg)
		}
	}
}

func TestExportedNamesAreDocumented(t *testing.T) {
	for _, f := range sources(t) {
		if f.test || layer(f.pkg()) < 0 {
			continue
		}
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && receiverExported(d) && !standardMethod(d.Name.Name) {
					t.Errorf("%s: %s has no comment", f.fset.Position(d.Pos()), d.Name.Name)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok && s.Name.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
						t.Errorf("%s: %s has no comment", f.fset.Position(s.Pos()), s.Name.Name)
					}
				}
			}
		}
	}
}

// standardMethod says whether a name's meaning is the standard library's.
func standardMethod(name string) bool {
	switch name {
	case "Error", "Unwrap", "String", "Is", "As", "ServeHTTP", "Len", "Less", "Swap":
		return true
	}
	return false
}

func receiverExported(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	t := d.Recv.List[0].Type
	if s, ok := t.(*ast.StarExpr); ok {
		t = s.X
	}
	if i, ok := t.(*ast.IndexExpr); ok {
		t = i.X
	}
	id, ok := t.(*ast.Ident)
	return ok && id.IsExported()
}
