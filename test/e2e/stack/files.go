package stack

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Key is one inference key of a world.
type Key struct {
	Name  string // the key's text is KeyText(Name)
	Owner string // its org. Defaults to Name
	Extra string // further fields of its entry in auth.yaml, in YAML's flow style: "quota: {...}, models: [...]"
}

// KeyText is what a client sends as a key.
func KeyText(name string) string { return "sk-weir-test-" + name }

// Settings are the files that a gateway reads, apart from where it listens and keeps its data.
type Settings struct {
	Weir     string            // the part of weir.yaml from limits on; {{name}} stands for the base URL of an upstream
	Mode     string            // api.mode. Defaults to api-key
	Keys     []Key             // of auth.yaml. Defaults to one, "demo"
	Policies map[string]string // policy files, by name without .yaml
}

// Write writes weir.yaml, auth.yaml and policies under dir, and gives the path of weir.yaml. head is put before the settings'
// own part; upstreams are base URLs by name.
func (s Settings) Write(tb testing.TB, dir, head string, upstreams map[string]string) string {
	tb.Helper()
	text := s.Weir
	for name, url := range upstreams {
		text = strings.ReplaceAll(text, "{{"+name+"}}", url)
	}
	keys := s.Keys
	if len(keys) == 0 {
		keys = []Key{{Name: "demo"}}
	}
	mode := s.Mode
	if mode == "" {
		mode = "api-key"
	}
	auth := "api:\n  mode: " + mode + "\n  keys:\n"
	for _, k := range keys {
		owner := k.Owner
		if owner == "" {
			owner = k.Name
		}
		extra := ""
		if k.Extra != "" {
			extra = ", " + k.Extra
		}
		sum := sha256.Sum256([]byte(KeyText(k.Name)))
		auth += fmt.Sprintf("    - {key_hash: %q, metadata: {name: %q, owner: %q}%s}\n", hex.EncodeToString(sum[:]), k.Name, owner, extra)
	}
	policies := filepath.Join(dir, "policies")
	if err := os.MkdirAll(policies, 0o700); err != nil {
		tb.Fatal(err)
	}
	for name, text := range s.Policies {
		WriteFile(tb, filepath.Join(policies, name+".yaml"), text)
	}
	WriteFile(tb, filepath.Join(dir, "auth.yaml"), auth)
	path := filepath.Join(dir, "weir.yaml")
	WriteFile(tb, path, head+text)
	return path
}

// WriteFile writes a file or fails the test.
func WriteFile(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}
