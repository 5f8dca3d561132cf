package gate

import (
	"testing"

	"github.com/weirhq/weir/events"
)

func TestOf(t *testing.T) {
	m := events.NewMeter
	for _, c := range []struct {
		meter  events.Meter
		reason events.Reason
		want   Limit
	}{
		{m(events.ScopePlatform, "rpm", "_"), events.OverLimit, Limit{Words{"limits", "platform", "rpm", ""}, Row{429, "rate_limit_exceeded", "gateway_admission"}}},
		{m(events.ScopeOrg, "rps", "acme"), events.OverLimit, Limit{Words{"limits", "org", "rps", "acme"}, Row{429, "rate_limit_exceeded", "gateway_admission"}}},
		{m(events.ScopeWorkspace, "tpm", "w/1"), events.TooLarge, Limit{Words{"limits", "workspace", "tpm", "w/1"}, Row{429, "rate_limit_exceeded", "gateway_admission"}}},
		{m(events.ScopeKey, "concurrency", "k1"), events.OverLimit, Limit{Words{"limits", "key", "concurrency", "k1"}, Row{429, "rate_limit_exceeded", "gateway_admission"}}},
		{m(events.ScopeModel, "rpm", "acme", "gpt-4.1"), events.OverLimit, Limit{Words{"limits", "model", "rpm", "gpt-4.1"}, Row{429, "rate_limit_exceeded", "gateway_admission"}}},
		{m(events.ScopeEndpoint, "pace", "qwen3"), events.OverLimit, Limit{Words{"pace", "model", "rps_queue", "qwen3"}, Row{429, "rate_limit_exceeded", "gateway_admission"}}},
		{m(events.ScopeModel, "occupancy", "qwen3"), events.OverLimit, Limit{Words{"b2", "model", "occupancy", "qwen3"}, Row{429, "concurrency_limit_exceeded", "gateway_admission"}}},
		{m(events.ScopeModel, "inflight", "qwen3"), events.OverLimit, Limit{Words{"b2", "model", "inflight", "qwen3"}, Row{429, "concurrency_limit_exceeded", "gateway_admission"}}},
		{m(events.ScopeKey, "occupancy", "k1", "qwen3"), events.OverLimit, Limit{Words{"b4", "key", "occupancy", "k1"}, Row{429, "rate_limit_exceeded", "gateway_admission"}}},
		{m(events.ScopeKey, "otpm", "k1", "qwen3"), events.OverLimit, Limit{Words{"b4", "key", "otpm", "k1"}, Row{429, "rate_limit_exceeded", "gateway_admission"}}},
		{m(events.ScopeKey, "itpm", "k1", "qwen3"), events.OverLimit, Limit{Words{"b4", "key", "itpm", "k1"}, Row{429, "rate_limit_exceeded", "gateway_admission"}}},
		{m(events.ScopeOrg, "daily", "acme"), events.OverLimit, Limit{Words{"daily", "org", "daily", "acme"}, Row{429, "token_limit_exceeded", "gateway_admission"}}},
		{m(events.ScopeWorkspace, "spend-month", "w1"), events.OverLimit, Limit{Words{"spend", "workspace", "spend", "w1"}, Row{429, "spend_limit_exceeded", "gateway_admission"}}},
		{m(events.ScopeOrg, "balance", "acme"), events.NoBalance, Limit{Words{"balance", "org", "spend", "acme"}, Row{429, "insufficient_balance", "gateway_admission"}}},
		{m(events.ScopePool, "pause", "house"), events.Paused, Limit{Words{"pause", "pool", "cooldown", "house"}, Row{429, "upstream_quota_exceeded", "upstream_quota"}}},
		{m(events.ScopePool, "tpm", "house"), events.OverLimit, Limit{Words{"pool", "pool", "tpm", "house"}, Row{429, "upstream_quota_exceeded", "upstream_quota"}}},
		{m(events.ScopePool, "rpm", "house", "acme"), events.OverLimit, Limit{Words{"fairness", "pool", "fairness", "house"}, Row{429, "upstream_quota_exceeded", "upstream_quota"}}},
		{"", events.StaleFence, Limit{Words{Gate: "fence", Scope: "org"}, Row{503, "authorization_unavailable", "authorization"}}},
		{"", events.Recovering, Limit{Words{Gate: "recovery"}, Row{503, "gateway_infrastructure", "gateway_infrastructure"}}},
		{"", events.Invalid, Limit{Words{Gate: "reserve"}, Row{503, "gateway_infrastructure", "gateway_infrastructure"}}},
		{"", events.Released, Limit{Words{Gate: "release"}, Row{}}},
	} {
		if got := Of(c.meter, c.reason); got != c.want {
			t.Errorf("%s of %s is %+v\nwant %+v", c.reason, c.meter, got, c.want)
		}
	}
}

func TestWhich(t *testing.T) {
	for meter, want := range map[events.Meter]Words{
		"platform/_/rpm":              {Gate: "limits", Scope: "platform", Kind: "rpm"},
		"org/acme/rps":                {Gate: "limits", Scope: "org", Kind: "rps", LimitID: "acme"},
		"workspace/w/tpm":             {Gate: "limits", Scope: "workspace", Kind: "tpm", LimitID: "w"},
		"principal/p/concurrency":     {Gate: "limits", Scope: "principal", Kind: "concurrency", LimitID: "p"},
		"key/k-1/rpm":                 {Gate: "limits", Scope: "key", Kind: "rpm", LimitID: "k-1"},
		"model/acme.Qwen=2FQ3/rpm":    {Gate: "limits", Scope: "model", Kind: "rpm", LimitID: "Qwen/Q3"},
		"model/Qwen=2FQ3/occupancy":   {Gate: "b2", Scope: "model", Kind: "occupancy", LimitID: "Qwen/Q3"},
		"model/m/inflight":            {Gate: "b2", Scope: "model", Kind: "inflight", LimitID: "m"},
		"key/k-1.m/occupancy":         {Gate: "b4", Scope: "key", Kind: "occupancy", LimitID: "k-1"},
		"key/k-1.m/itpm":              {Gate: "b4", Scope: "key", Kind: "itpm", LimitID: "k-1"},
		"key/k-1.m/otpm":              {Gate: "b4", Scope: "key", Kind: "otpm", LimitID: "k-1"},
		"org/acme/daily":              {Gate: "daily", Scope: "org", Kind: "daily", LimitID: "acme"},
		"key/k-1/daily":               {Gate: "daily", Scope: "key", Kind: "daily", LimitID: "k-1"},
		"org/acme/spend-day":          {Gate: "spend", Scope: "org", Kind: "spend", LimitID: "acme"},
		"key/k-1/spend-month":         {Gate: "spend", Scope: "key", Kind: "spend", LimitID: "k-1"},
		"org/acme/balance":            {Gate: "balance", Scope: "org", Kind: "spend", LimitID: "acme"},
		"endpoint/m/pace":             {Gate: "pace", Scope: "model", Kind: "rps_queue", LimitID: "m"},
		"endpoint/m/rpm":              {Gate: "limits", Scope: "endpoint", Kind: "rpm", LimitID: "m"},
		"pool/house/pause":            {Gate: "pause", Scope: "pool", Kind: "cooldown", LimitID: "house"},
		"pool/house/tpm":              {Gate: "pool", Scope: "pool", Kind: "tpm", LimitID: "house"},
		"pool/house.acme/rpm":         {Gate: "fairness", Scope: "pool", Kind: "fairness", LimitID: "house"},
		"pool/a=2Eb.acme/tpm":         {Gate: "fairness", Scope: "pool", Kind: "fairness", LimitID: "a.b"},
		"thing/x/other":               {Gate: "", Scope: "thing", Kind: "other", LimitID: "x"},
		"model/acme.a=2Eb/daily":      {Gate: "daily", Scope: "model", Kind: "daily", LimitID: "a.b"},
		"workspace/w/spend-day":       {Gate: "spend", Scope: "workspace", Kind: "spend", LimitID: "w"},
		"model/o.m/concurrency":       {Gate: "limits", Scope: "model", Kind: "concurrency", LimitID: "m"},
		"endpoint/m/rps":              {Gate: "limits", Scope: "endpoint", Kind: "rps", LimitID: "m"},
		"org/acme/shadow-rpm":         {Gate: "limits", Scope: "org", Kind: "rpm", LimitID: "acme"},
		"model/acme.m/shadow-tpm":     {Gate: "limits", Scope: "model", Kind: "tpm", LimitID: "m"},
		"pool/house.acme/concurrency": {Gate: "fairness", Scope: "pool", Kind: "fairness", LimitID: "house"},
	} {
		if got := Which(meter); got != want {
			t.Errorf("%s: %+v, want %+v", meter, got, want)
		}
	}
}
