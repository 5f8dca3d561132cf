package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// commandInText is a command as documents write it: in a code span, or at the beginning of a line of a block.
var commandInText = regexp.MustCompile("(?m)(?:`|^(?:    )?(?:[A-Z_]+=\\S+ )*)weir ([a-z]+)(?: ([a-z]+))?(?: .*)?$|`weir ([a-z]+)(?: ([a-z]+))?[ `]")

// TestDocumentedCommands holds the documents against the command line: what they tell a reader to type is there.
func TestDocumentedCommands(t *testing.T) {
	parser, err := kong.New(&cli{}, kong.Vars{"version": version})
	if err != nil {
		t.Fatal(err)
	}
	commands := map[string]*kong.Node{}
	for _, n := range parser.Model.Children {
		commands[n.Name] = n
	}
	found := map[string]bool{}
	root := filepath.Join("..", "..")
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range commandInText.FindAllStringSubmatch(string(text), -1) {
			name, sub := m[1]+m[3], m[2]+m[4]
			n := commands[name]
			if found[name] = true; n == nil {
				t.Errorf("%s: %q: there is no command %q", path, strings.TrimSpace(m[0]), name)
			} else if sub != "" && len(n.Children) > 0 && !slices.ContainsFunc(n.Children, func(c *kong.Node) bool { return c.Name == sub }) {
				t.Errorf("%s: %q: %s has no command %q", path, strings.TrimSpace(m[0]), name, sub)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, ok := strings.Cut(string(readme), "\nCommands: ")
	if !ok {
		t.Fatal("README.md has no list of commands")
	}
	list, _, _ = strings.Cut(list, ";")
	for name, n := range commands {
		if !n.Hidden && !strings.Contains(list, "`"+name+"`") {
			t.Errorf("README.md: the list of commands does not have %s", name)
		}
	}
	if len(found) < 10 {
		t.Errorf("only %d commands were found in the documents", len(found))
	}
}
