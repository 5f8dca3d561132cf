package generation

import (
	"testing"

	"github.com/weirhq/weir/events"
)

func TestLimitOf(t *testing.T) {
	m := events.NewMeter
	for _, c := range []struct {
		meter  events.Meter
		reason events.Reason
		want   Limit
	}{
		{m(events.ScopePlatform, "rpm", "_"), events.OverLimit, Limit{"limits", "gateway_admission", "platform", "rpm", "", 429, "rate_limit_exceeded"}},
		{m(events.ScopeOrg, "rps", "acme"), events.OverLimit, Limit{"limits", "gateway_admission", "org", "rps", "acme", 429, "rate_limit_exceeded"}},
		{m(events.ScopeWorkspace, "tpm", "w/1"), events.TooLarge, Limit{"limits", "gateway_admission", "workspace", "tpm", "w/1", 429, "rate_limit_exceeded"}},
		{m(events.ScopeKey, "concurrency", "k1"), events.OverLimit, Limit{"limits", "gateway_admission", "key", "concurrency", "k1", 429, "rate_limit_exceeded"}},
		{m(events.ScopeModel, "rpm", "acme", "gpt-4.1"), events.OverLimit, Limit{"limits", "gateway_admission", "model", "rpm", "gpt-4.1", 429, "rate_limit_exceeded"}},
		{m(events.ScopeEndpoint, "pace", "qwen3"), events.OverLimit, Limit{"pace", "gateway_admission", "model", "rps_queue", "qwen3", 429, "rate_limit_exceeded"}},
		{m(events.ScopeModel, "occupancy", "qwen3"), events.OverLimit, Limit{"b2", "gateway_admission", "model", "occupancy", "qwen3", 429, "concurrency_limit_exceeded"}},
		{m(events.ScopeModel, "inflight", "qwen3"), events.OverLimit, Limit{"b2", "gateway_admission", "model", "inflight", "qwen3", 429, "concurrency_limit_exceeded"}},
		{m(events.ScopeKey, "occupancy", "k1", "qwen3"), events.OverLimit, Limit{"b4", "gateway_admission", "key", "occupancy", "k1", 429, "rate_limit_exceeded"}},
		{m(events.ScopeKey, "otpm", "k1", "qwen3"), events.OverLimit, Limit{"b4", "gateway_admission", "key", "otpm", "k1", 429, "rate_limit_exceeded"}},
		{m(events.ScopeKey, "itpm", "k1", "qwen3"), events.OverLimit, Limit{"b4", "gateway_admission", "key", "itpm", "k1", 429, "rate_limit_exceeded"}},
		{m(events.ScopeOrg, "daily", "acme"), events.OverLimit, Limit{"daily", "gateway_admission", "org", "daily", "acme", 429, "token_limit_exceeded"}},
		{m(events.ScopeWorkspace, "spend-month", "w1"), events.OverLimit, Limit{"spend", "gateway_admission", "workspace", "spend", "w1", 429, "spend_limit_exceeded"}},
		{m(events.ScopeOrg, "balance", "acme"), events.NoBalance, Limit{"balance", "gateway_admission", "org", "spend", "acme", 429, "insufficient_balance"}},
		{m(events.ScopePool, "pause", "house"), events.Paused, Limit{"pause", "upstream_quota", "pool", "cooldown", "house", 429, "upstream_quota_exceeded"}},
		{m(events.ScopePool, "tpm", "house"), events.OverLimit, Limit{"pool", "upstream_quota", "pool", "tpm", "house", 429, "upstream_quota_exceeded"}},
		{m(events.ScopePool, "rpm", "house", "acme"), events.OverLimit, Limit{"fairness", "upstream_quota", "pool", "fairness", "house", 429, "upstream_quota_exceeded"}},
		{"", events.StaleFence, Limit{Gate: "fence", Origin: "authorization", Scope: "org", Status: 503, Code: "authorization_unavailable"}},
		{"", events.Recovering, Limit{Gate: "recovery", Origin: "gateway_infrastructure", Status: 503, Code: "gateway_infrastructure"}},
		{"", events.Invalid, Limit{Gate: "reserve", Origin: "gateway_infrastructure", Status: 503, Code: "gateway_infrastructure"}},
		{"", events.Released, Limit{Gate: "release"}},
	} {
		if got := LimitOf(c.meter, c.reason); got != c.want {
			t.Errorf("%s of %s is %+v\nwant %+v", c.reason, c.meter, got, c.want)
		}
	}
}
