package e2e

import (
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/test/e2e/stack"
)

const atOnce = 7

var sevenAtOnce = stack.Settings{Weir: `
orgs:
  demo: {limits: {concurrency: 7, rpm: 1000000, tpm: 1000000000}}
models:
  - {id: m, max_output_tokens: 4096, local: {engine: vllm, replicas: ["{{upstream}}"]}}
  - {id: slow, max_output_tokens: 4096, local: {engine: vllm, replicas: ["{{slow}}"]}}
`}

// TestSevenAtOnce: 200 clients at two gateways, of which each alone knows nothing of the other, against a limit of 7 requests at once.
func TestSevenAtOnce(t *testing.T) {
	const clients, least, most = 200, 4 * time.Second, time.Minute
	c := newCluster(t, 2, "delay=100ms;tokens=4", sevenAtOnce)
	var all sync.WaitGroup
	var admitted, refused, late, failed atomic.Int64
	begin := time.Now()
	goesOn := func() bool { // as long as that, and on a slow machine until the limit was reached
		took := time.Since(begin)
		return took < least || took < most && (refused.Load() == 0 || c.provider.Ledger().Totals().MaxLive < atOnce)
	}
	for i := range clients {
		all.Go(func() {
			// Each wants one answer and asks again when it is refused, as soon as it likes; the first of them go on to the end.
			for done := false; !done && goesOn(); done = i >= clients/4 && done {
				a, err := stack.Request{URL: c.urls[i%2] + "/v1/chat/completions", Key: "demo", Body: chat("m", `"max_tokens":8,`)}.Send()
				switch {
				case err != nil:
					t.Error(err)
					return
				case a.Status == http.StatusOK:
					admitted.Add(1)
					done = true
				case a.Status == http.StatusTooManyRequests:
					refused.Add(1)
					time.Sleep(20 * time.Millisecond)
				case a.Status == http.StatusServiceUnavailable && slices.Contains([]string{"gateway_infrastructure", "no_capacity"}, a.Error().Code):
					late.Add(1) // on a machine that is too busy there was no verdict in time, or no word from the replica
					time.Sleep(20 * time.Millisecond)
				default:
					failed.Add(1)
					t.Errorf("status %d: %s", a.Status, a.Body)
					return
				}
			}
		})
	}
	all.Wait()
	totals := c.provider.Ledger().Totals()
	t.Logf("%d admitted, %d refused, %d had no verdict; at most %d at once at the upstream", admitted.Load(), refused.Load(), late.Load(), totals.MaxLive)
	if totals.MaxLive > atOnce {
		t.Errorf("the upstream saw %d at once: the limit is %d", totals.MaxLive, atOnce)
	}
	if totals.MaxLive < atOnce || refused.Load() == 0 {
		t.Errorf("at most %d at once and %d refusals: the limit was never reached, the test shows nothing", totals.MaxLive, refused.Load())
	}
	if totals.Completed != admitted.Load() || totals.Calls != admitted.Load() {
		t.Errorf("%d admitted, and the upstream completed %d of %d calls", admitted.Load(), totals.Completed, totals.Calls)
	}
	c.noneHeld(t)
	c.fits(t, atOnce)
	c.noneHeld(t)
	story := c.story(t)
	ends := 0
	for id, trail := range story.Requests {
		if trail.Admitted() {
			if n := len(trail.Ended()); n != 1 {
				t.Errorf("request %s was admitted and has %d releases", id, n)
			} else if trail.Ended()[0].Outcome != events.Abandoned { // of which its gateway heard in time
				ends++
			}
		}
	}
	if int64(ends) != admitted.Load()+atOnce {
		t.Errorf("the log shows %d admitted requests, the clients saw %d", ends, admitted.Load()+atOnce)
	}
}

const concurrency = events.Meter("org/demo/concurrency")

// noneHeld waits until the log holds no place and every gateway says so.
func (c *cluster) noneHeld(t *testing.T) {
	t.Helper()
	stack.Eventually(t, "no place is held in the log", func() bool { return len(c.story(t).Gauges()) == 0 })
	for _, url := range c.urls {
		stack.Eventually(t, url+" shows no place held", func() bool { return stack.Limits(t, url, "demo", "m")[string(concurrency)].Used == 0 })
	}
}

// fits checks that so many requests fit at once, spread over the gateways, and no more.
func (c *cluster) fits(t *testing.T, n int) {
	t.Helper()
	var streams []func()
	defer func() {
		for _, end := range streams {
			end()
		}
	}()
	for i := range n {
		client := stack.OpenAI(c.urls[i%len(c.urls)], "demo")
		stream := client.Chat.Completions.NewStreaming(t.Context(), slow())
		if !stream.Next() {
			t.Fatalf("of %d places the %dth is not free: %v", n, i+1, stream.Err())
		}
		streams = append(streams, func() { _ = stream.Close() })
	}
	for _, url := range c.urls {
		a := stack.Do(t, stack.Request{URL: url + "/v1/chat/completions", Key: "demo", Body: chat("m", "")})
		if e := a.Error(); a.Status != 429 || e.Metadata.LimitKind != "concurrency" || e.Metadata.LimitScope != "org" {
			t.Errorf("one more at %s: status %d, %s", url, a.Status, a.Body)
		}
	}
}

// slow is a stream that lasts until the client leaves.
func slow() openai.ChatCompletionNewParams {
	p := hello()
	p.Model, p.MaxTokens = "slow", openai.Int(4000)
	return p
}

// TestKilledGateway: what a gateway that is killed in mid-stream held is free when its lease has run out, and its charges stay. That a
// lease ends to the millisecond is the fold's own test.
func TestKilledGateway(t *testing.T) {
	c := newCluster(t, 2, "", sevenAtOnce)
	client := stack.OpenAI(c.urls[0], "demo", option.WithMaxRetries(0))
	for range atOnce {
		stream := client.Chat.Completions.NewStreaming(t.Context(), slow())
		if !stream.Next() {
			t.Fatal(stream.Err())
		}
		defer stream.Close()
	}
	ask := func() *stack.Answer {
		return stack.Do(t, stack.Request{URL: c.urls[1] + "/v1/chat/completions", Key: "demo", Body: chat("m", `"max_tokens":1,`)})
	}
	if a := ask(); a.Status != 429 {
		t.Fatalf("with all places taken: status %d, %s", a.Status, a.Body)
	}
	before := c.story(t).Held("org/demo/tpm")
	killed := time.Now()
	if err := syscall.Kill(c.gateways[0].cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	const patience = time.Minute
	var served events.RequestID
	for {
		a := ask()
		took := time.Since(killed)
		if a.Status == http.StatusOK {
			t.Logf("the places of the killed gateway were free after %s", took)
			served = events.RequestID(a.Header.Get("X-Request-Id"))
			break
		}
		if took > patience {
			t.Fatalf("after %s they are still held: %s", took, a.Body)
		}
		time.Sleep(20 * time.Millisecond)
	}
	var story *stack.Story
	stack.Eventually(t, "the log has the end of who was served then", func() bool {
		story = c.story(t)
		trail := story.Requests[served]
		return trail != nil && len(trail.Ended()) > 0
	})
	if after := story.Held("org/demo/tpm"); before == 0 || after < before {
		t.Errorf("tokens charged to the org this minute: %d before, %d after", before, after)
	}
	c.urls = c.urls[1:]
	c.lost(t, story, atOnce)
	stack.Eventually(t, "the upstream's calls are cancelled", func() bool { return c.slow.Ledger().Totals().Live == 0 })
	c.fits(t, atOnce)
}

// TestTerminatedGateway: SIGTERM in mid-stream drains: the stream ends whole, the process ends with code 0, and nothing is held.
func TestTerminatedGateway(t *testing.T) {
	c := newCluster(t, 2, "tokens=40;gap=20ms", sevenAtOnce)
	client := stack.OpenAI(c.urls[0], "demo")
	stream := client.Chat.Completions.NewStreaming(t.Context(), hello())
	defer stream.Close()
	if !stream.Next() {
		t.Fatal(stream.Err())
	}
	if err := syscall.Kill(c.gateways[0].cmd.Process.Pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, "new requests are refused", func() bool {
		a, err := stack.Request{URL: c.urls[0] + "/v1/chat/completions", Key: "demo", Body: chat("m", "")}.Send()
		return err == nil && a.Status == http.StatusServiceUnavailable && a.Error().Code == "overloaded" && a.Close
	})
	tokens := 0
	for stream.Next() {
		if choices := stream.Current().Choices; len(choices) > 0 && choices[0].Delta.Content != "" {
			tokens++
		}
	}
	if err := stream.Err(); err != nil || tokens != 40 {
		t.Errorf("the stream ended with %d of 40 tokens: %v", tokens, err)
	}
	if code := c.gateways[0].code(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	c.urls = c.urls[1:]
	c.noneHeld(t)
	if a := stack.Do(t, stack.Request{URL: c.urls[0] + "/v1/chat/completions", Key: "demo", Body: chat("m", "")}); a.Status != 200 {
		t.Errorf("at the other gateway: status %d, %s", a.Status, a.Body)
	}
}
