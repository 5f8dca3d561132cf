package authority

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A policy that keys made through the API cannot meet is refused when it is read again, and the last valid files stay in use.
func TestReloadIsHeldAgainstKeysMadeThroughTheAPI(t *testing.T) {
	dir := t.TempDir()
	write := func(most string) {
		t.Helper()
		text := "models: [m]\nmode: serverless\nmax_input_tokens: " + most + "\nrouting_policy: {strategy: least-loaded}\n"
		if err := os.WriteFile(filepath.Join(dir, "m.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("1000")
	declared := &Declared{Models: []*Model{{ID: "m", Local: &Local{Engine: "vllm", Replicas: []string{"http://127.0.0.1:1"}}}}}
	w, err := Watch(Source{Declared: declared, Policies: dir}, time.Now, nil)
	if err != nil {
		t.Fatal(err)
	}
	keys := []*Key{{ID: "k1", Quota: Quota{InputTokensPerMinute: 5000}}, {ID: "k2"}}
	w.Accept(func(s *Snapshot) error { return CheckKeys(s, keys) })
	write("5000")
	if err := w.Reload(); err != nil {
		t.Fatalf("a policy that all keys meet was refused: %v", err)
	}
	write("5001")
	err = w.Reload()
	if err == nil || !strings.Contains(err.Error(), "k1") || !strings.Contains(err.Error(), "5001") {
		t.Errorf("got %v, want a fault that names the key and the rule", err)
	}
	if most := w.Current().Models["m"].Policy.MaxInputTokens; most != 5000 {
		t.Errorf("max_input_tokens in use is %d, want the last valid 5000", most)
	}
}
