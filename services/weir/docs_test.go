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

// commandInText is a command as documents write it, with what follows it: in a code span, or in a line of a block, alone or run from source.
var commandInText = regexp.MustCompile("(?m)(?:`|^ *(?:[A-Z_]+=\\S+ )*)(?:go run \\./services/)?weir ([a-z]+)(?: ([a-z]+))?((?: [^`\n]*)?)(?:`|$)")

// flagInText is a flag of a command.
var flagInText = regexp.MustCompile(`(?:^|[ \[(])--?([a-z][a-z-]*)`)

// flagsOf are the flags that a command takes, by name, and by letter.
func flagsOf(n *kong.Node) map[string]bool {
	known := map[string]bool{"help": true}
	for ; n != nil; n = n.Parent {
		for _, f := range n.Flags {
			known[f.Name] = true
			if f.Short != 0 {
				known[string(f.Short)] = true
			}
		}
	}
	return known
}

// unknownFlags are those in what follows a command that it does not take. What is after a comment or another command is not its own.
func unknownFlags(n *kong.Node, rest string) (unknown []string, flags int) {
	for _, end := range []string{" #", " | ", "; ", " && ", " > "} {
		rest, _, _ = strings.Cut(rest, end)
	}
	known := flagsOf(n)
	for _, m := range flagInText.FindAllStringSubmatch(rest, -1) {
		if flags++; !known[m[1]] {
			unknown = append(unknown, m[1])
		}
	}
	return unknown, flags
}

// TestDocumentedCommands holds the documents against the command line: what they tell a reader to type is there, with its flags.
func TestDocumentedCommands(t *testing.T) {
	parser, err := kong.New(&cli{}, kong.Vars{"version": version})
	if err != nil {
		t.Fatal(err)
	}
	commands := map[string]*kong.Node{}
	for _, n := range parser.Model.Children {
		commands[n.Name] = n
	}
	found, flags := map[string]bool{}, 0
	root := filepath.Join("..", "..")
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		whole := strings.ReplaceAll(string(text), "\\\n", " ") // a command may go on in the next line
		for _, m := range commandInText.FindAllStringSubmatch(whole, -1) {
			name, sub := m[1], m[2]
			n := commands[name]
			if found[name] = true; n == nil {
				t.Errorf("%s: %q: there is no command %q", path, strings.TrimSpace(m[0]), name)
				continue
			}
			if len(n.Children) > 0 {
				at := slices.IndexFunc(n.Children, func(c *kong.Node) bool { return c.Name == sub })
				switch {
				case sub != "" && at < 0:
					t.Errorf("%s: %q: %s has no command %q", path, strings.TrimSpace(m[0]), name, sub)
				case at >= 0:
					n = n.Children[at]
				case n.DefaultCmd != nil:
					n = n.DefaultCmd
				}
			}
			unknown, seen := unknownFlags(n, m[3])
			if flags += seen; len(unknown) > 0 {
				t.Errorf("%s: %q: %s has no flag %s", path, strings.TrimSpace(m[0]), n.Path(), strings.Join(unknown, ", "))
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
	if len(found) < 15 || flags < 20 {
		t.Errorf("only %d commands and %d flags were found in the documents", len(found), flags)
	}
}
