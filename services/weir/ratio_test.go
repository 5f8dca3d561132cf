package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/estimate"
)

// TestRatiosSurviveARestart: what was learned of a model's tokens per byte is what a process estimates with from its first request on,
// after it and everything else was started again.
func TestRatiosSurviveARestart(t *testing.T) {
	const model, bytes, tokens = "qwen", 8000, 800 // a tenth of a token for each byte; nothing learned is 1/3.2
	upstream := scriptedUpstream(t, fmt.Sprintf("input=%d;tokens=4", tokens))
	text := fmt.Sprintf("listen: 127.0.0.1:0\nmodels: [{id: %s, local: {engine: vllm, replicas: [%q]}}]\n", model, upstream)
	dir := t.TempDir()
	body := fmt.Sprintf(`{"model":%q,"max_tokens":8,"messages":[{"role":"user","content":%q}]}`, model, strings.Repeat("a", bytes))
	// last asks once and gives what was estimated for it.
	last := func(t *testing.T, n *node) (estimated int64) {
		t.Helper()
		a, err := http.Post("http://"+n.gateway.Addr().String()+"/v1/chat/completions", "application/json", strings.NewReader(body))
		must(t, err)
		must(t, a.Body.Close())
		if a.StatusCode != http.StatusOK {
			t.Fatalf("status %d", a.StatusCode)
		}
		info, err := n.log.Info(t.Context())
		must(t, err)
		must(t, n.log.Read(t.Context(), 1, info.Last, func(r events.Record) error {
			if d, ok := r.Data.(*events.Reserve); ok {
				estimated = d.Estimate.InputTokens
			}
			return nil
		}))
		return estimated
	}
	var learned estimate.Ratio
	t.Run("before", func(t *testing.T) {
		n := startNode(t, filepath.Join(dir), text, "", nil)
		ready(t, n)
		if first := last(t, n); first < 2*tokens {
			t.Fatalf("the first request is estimated at %d tokens: nothing was to be known", first)
		}
		for range 20 {
			last(t, n)
		}
		until(t, "the ratio is learned", func() bool {
			learned = n.ratio()(model)
			return learned < 120_000 // millionths
		})
	})
	t.Run("after", func(t *testing.T) {
		n := startNode(t, filepath.Join(dir), text, "", nil)
		ready(t, n)
		if got := last(t, n); got > bytes*120_000/1_000_000+10 || got < tokens {
			t.Errorf("the first request after the restart is estimated at %d tokens, with %d learned before", got, learned)
		}
	})
}

// ready waits until a process admits requests.
func ready(t *testing.T, n *node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must(t, n.waitReady(ctx))
}
