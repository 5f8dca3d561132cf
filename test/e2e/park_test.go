package e2e

import (
	"bufio"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/test/e2e/stack"
)

// TestParkedRefusalOnASilentLog: a request that finds no room is refused when its time to wait is over, also when nothing else moves the
// log's time: a tick comes then. On a busy machine it may be late now and then, or a lease come first.
func TestParkedRefusalOnASilentLog(t *testing.T) {
	const park, tries = 400 * time.Millisecond, 20
	const prompt = 500 * time.Millisecond // before the tick that a second of silence brings
	s := stack.New(t, stack.Config{Gateways: 2, Env: map[string]string{"HIVENET_ROUTER_ADMIT_PARK_TIMEOUT": park.String()}, Settings: stack.Settings{
		Weir: "models:\n  - {id: m, local: {engine: vllm, replicas: [\"{{upstream}}\"]}}\n", Policies: oneAtATime}})
	answer, leave := open(t, s, "demo", "tokens=2;hang=2;gap=1ms", chat("m", streaming+`"max_tokens":2,`))
	defer leave()
	if _, err := bufio.NewReader(answer.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"in the projector's process", "over TCP"} {
		ticked := false
		for try := 0; try < tries && !ticked; try++ {
			begin := time.Now()
			a := stack.Do(t, stack.Request{URL: s.Gateways[i].URL + "/v1/chat/completions", Key: "demo", Body: chat("m", `"max_tokens":2,`)})
			took := time.Since(begin)
			if e := a.Error(); a.Status != 429 || e.Code != "concurrency_limit_exceeded" || e.Metadata.LimitKind != "inflight" {
				t.Fatalf("status %d: %s", a.Status, a.Body)
			}
			if took < park {
				t.Errorf("%s: refused after %s, before its time to wait was over", name, took)
			}
			why, after := decided(t, s, events.RequestID(a.ID()))
			ticked = why == events.KindTick && after < park+prompt
			t.Logf("%s: refused after %s, in the log by a %s after %s (park_ms %d)", name, took, why, after, park.Milliseconds())
		}
		if !ticked {
			t.Errorf("%s: not one of %d was refused by a tick when its time was over", name, tries)
		}
	}
}

// decided says at what record the verdict on a request fell, and how long in the log's time after its reserve.
func decided(t *testing.T, s *stack.Stack, id events.RequestID) (why events.Kind, after time.Duration) {
	t.Helper()
	f, at := admission.New(), int64(0)
	for _, r := range s.Story(t).Records {
		if d, ok := r.Data.(*events.Reserve); ok && d.Request == id {
			at = r.At
		}
		for _, v := range f.Apply(&r) {
			if v.Request == id {
				why, after = r.Kind(), time.Duration(r.At-at)
			}
		}
	}
	return why, after
}
