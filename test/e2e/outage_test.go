package e2e

import (
	"net/http"
	"testing"

	"github.com/weirhq/weir/test/e2e/stack"
)

// TestNobodyWaitsForALogThatIsAway: once a gateway knows that the log is out of reach, a request is admitted from the allowance without a
// reserve that nobody could answer.
func TestNobodyWaitsForALogThatIsAway(t *testing.T) {
	s := stack.New(t, stack.Config{Gateways: 2, Settings: stack.Settings{
		Weir: `models: [{id: m, max_output_tokens: 4096, local: {engine: vllm, replicas: ["{{upstream}}"]}}]`}})
	g := s.Gateways[1]
	s.Broker.Shutdown()
	stack.Eventually(t, "the gateway knows", func() bool { out, _ := g.Outage(); return out })
	reserved := g.Book().Stats().Reserved.Load()
	a := stack.Do(t, stack.Request{URL: g.URL + "/v1/chat/completions", Key: "demo", Body: chat("m", `"max_tokens":8,`)})
	if a.Status != http.StatusOK || a.Header.Get("X-Tm-Admission-Mode") != "bounded_local" {
		t.Fatalf("status %d, mode %q: %s", a.Status, a.Header.Get("X-Tm-Admission-Mode"), a.Body)
	}
	stats := g.Book().Stats()
	if n := stats.Reserved.Load() - reserved; n != 0 || stats.Local.Load() != 1 {
		t.Errorf("%d reserves were asked of a log that is away; %d attempts were admitted without it", n, stats.Local.Load())
	}
}
