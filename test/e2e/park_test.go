package e2e

import (
	"bufio"
	"testing"
	"time"

	"github.com/weirhq/weir/test/e2e/stack"
)

// TestParkedRefusalOnASilentLog: a request that finds no room is refused when its time to wait is over, also when nothing else moves the
// log's time.
func TestParkedRefusalOnASilentLog(t *testing.T) {
	const park, aim, tries = 400 * time.Millisecond, 50 * time.Millisecond, 5
	const prompt = park + 500*time.Millisecond // sooner than leases would mostly move the log's time
	s := stack.New(t, stack.Config{Gateways: 2, Env: map[string]string{"HIVENET_ROUTER_ADMIT_PARK_TIMEOUT": park.String()}, Settings: stack.Settings{
		Weir: "models:\n  - {id: m, local: {engine: vllm, replicas: [\"{{upstream}}\"]}}\n", Policies: oneAtATime}})
	answer, leave := open(t, s, "demo", "tokens=2;hang=2;gap=1ms", chat("m", streaming+`"max_tokens":2,`))
	defer leave()
	if _, err := bufio.NewReader(answer.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	for name, url := range map[string]string{"in the projector's process": s.Gateways[0].URL, "over TCP": s.Gateways[1].URL} {
		inTime := 0
		for range tries {
			begin := time.Now()
			a := stack.Do(t, stack.Request{URL: url + "/v1/chat/completions", Key: "demo", Body: chat("m", `"max_tokens":2,`)})
			took := time.Since(begin)
			if e := a.Error(); a.Status != 429 || e.Code != "concurrency_limit_exceeded" || e.Metadata.LimitKind != "inflight" {
				t.Fatalf("status %d: %s", a.Status, a.Body)
			}
			t.Logf("%s: refused after %s (park_ms %d, aim below %s)", name, took, park.Milliseconds(), park+aim)
			if took < park {
				t.Errorf("%s: refused after %s, before its time to wait was over", name, took)
			}
			if took < prompt {
				inTime++
			}
		}
		if inTime <= tries/2 { // a busy machine may be late now and then
			t.Errorf("%s: %d of %d were refused within %s", name, inTime, tries, prompt)
		}
	}
}
