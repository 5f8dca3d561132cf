package biller

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/events/journal/embedded"
)

// sample is the consumer that the guide shows.
func sample(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../ops/guide/billing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "```go\n")
	code, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatal("the guide shows no consumer")
	}
	return code
}

// The consumer in the guide is built, run against a broker, and comes to what the log comes to.
func TestTheGuidesConsumer(t *testing.T) {
	code := sample(t)
	if n := len(strings.FieldsFunc(code, func(r rune) bool { return r == '\n' })); n > 40 {
		t.Errorf("it has %d lines", n)
	}
	n := newListeningNode(t)
	n.run(t.TempDir(), nil)
	n.requests(1, 40)
	n.billed()
	want := map[string]int64{}
	for _, l := range n.lines() {
		want[string(l.Org)] += l.CostNano
	}

	dir, err := os.MkdirTemp(".", "guide-") // in the module, for its libraries
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "consumer")
	if out, err := exec.Command("go", "build", "-o", binary, "./"+dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	name, err := access.NewName("invoices")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary)
	cmd.Env = append(os.Environ(), "WEIR_LOG="+n.broker.URL(), "WEIR_NAME="+name, "WEIR_SECRET="+n.secret)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var org string
		var owed int64
		if _, err := fmt.Sscanf(lines.Text(), "%s owes %d nano-dollars", &org, &owed); err != nil {
			t.Fatal(lines.Text())
		}
		if got[org] = owed; got["acme"] == want["acme"] && got["beta"] == want["beta"] {
			break
		}
	}
	cancel()
	_ = cmd.Wait() // it runs until it is ended
	if got["acme"] != want["acme"] || got["beta"] != want["beta"] || want["acme"] == 0 {
		t.Errorf("it comes to %v, the log to %v", got, want)
	}
}

// newListeningNode is a node that one may join by TCP, with a secret of a consumer of billing lines.
func newListeningNode(t *testing.T) *node {
	t.Helper()
	credential, secret, err := access.NewCredentials("invoices", access.Consumer)
	if err != nil {
		t.Fatal(err)
	}
	n := newNodeWith(t, embedded.Config{Listen: "127.0.0.1:0", Credentials: access.Credentials{Identities: []access.Credential{credential}}})
	n.secret = secret.Secret
	return n
}
