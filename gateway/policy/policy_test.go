package policy_test

import (
	"strings"
	"testing"

	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/policy"
	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/projections/gate"
)

// bareKey copies what is declared of a key.
func bareKey(k *authority.Key) *authority.Key {
	return &authority.Key{ID: k.ID, Org: k.Org, Workspace: k.Workspace, Principal: k.Principal, Name: k.Name, Models: k.Models,
		Expires: k.Expires, Limits: k.Limits, Quota: k.Quota, Daily: k.Daily}
}

func TestB1IsTokensAndImagesEachByItself(t *testing.T) {
	s := world(t)
	long := ask(t, s, "plain", "qwen", wire.Chat, `{"model":"qwen","max_tokens":1,"messages":[{"role":"user","content":"`+text(3300)+`"}]}`)
	p := policy.New(long)
	if r := p.Refusal; r == nil || r.Cause != policy.InputTooLong || r.Requested != 1032 || r.Limit != 1000 {
		t.Errorf("a long input: %+v", r)
	}
	if len(p.Claims) != p.Rates || p.Rates == 0 {
		t.Errorf("a local refusal leaves %d claims, %d rates", len(p.Claims), p.Rates)
	}
	long.Model.Policy.MaxInputTokens = 1032
	if r := policy.New(long).Refusal; r != nil {
		t.Errorf("an input of exactly the limit: %+v", r)
	}
	image := `{"type":"image_url","image_url":{"url":"https://x/y.png"}}`
	images := func(n int) *policy.Local {
		body := `{"model":"qwen","messages":[{"role":"user","content":[` + strings.TrimSuffix(strings.Repeat(image+",", n), ",") + `]}]}`
		return policy.New(ask(t, s, "plain", "qwen", wire.Chat, body)).Refusal
	}
	if r := images(3); r == nil || r.Cause != policy.TooManyImages || r.Requested != 3 || r.Limit != 2 {
		t.Errorf("three images: %+v", r)
	}
	if r := images(2); r != nil {
		t.Errorf("two images: %+v", r)
	}
}

func TestB3(t *testing.T) {
	s := world(t)
	for name, c := range map[string]struct {
		pressure policy.Pressure
		shed     bool
	}{
		"calm":              {policy.Pressure{KVCache: 0.5, HasKVCache: true, Waiting: 3, HasWaiting: true}, false},
		"exactly at gt":     {policy.Pressure{KVCache: 0.9, HasKVCache: true}, false},
		"above gt":          {policy.Pressure{KVCache: 0.91, HasKVCache: true}, true},
		"exactly at gte":    {policy.Pressure{Waiting: 20, HasWaiting: true}, true},
		"missing, so pass":  {policy.Pressure{KVCache: 1, Waiting: 99}, false},
		"any one is enough": {policy.Pressure{KVCache: 0.1, HasKVCache: true, Waiting: 21, HasWaiting: true}, true},
	} {
		in := input(t, s, "plain", "qwen", `,"max_tokens":5`)
		in.Pressure = c.pressure
		r := policy.New(in).Refusal
		if (r != nil && r.Cause == policy.UnderPressure) != c.shed {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestExemptPathsPassTheGatesOfGeneration(t *testing.T) {
	s := world(t)
	for _, in := range []*policy.Input{
		ask(t, s, "everything", "qwen", wire.CountTokens, `{"model":"qwen","messages":[{"role":"user","content":"`+text(9000)+`"}]}`),
		ask(t, s, "everything", "qwen", wire.Embeddings, `{"model":"qwen","input":"`+text(9000)+`"}`),
		ask(t, s, "everything", "qwen", wire.Rerank, `{"model":"qwen","query":"`+text(9000)+`","documents":["d"]}`),
	} {
		in.Pressure = policy.Pressure{KVCache: 1, HasKVCache: true}
		p := policy.New(in)
		if p.Refusal != nil || p.ParkMS != 0 || p.Bound != 0 {
			t.Errorf("%s: %+v, park %d, bound %d", in.Request.Op, p.Refusal, p.ParkMS, p.Bound)
		}
		for i := range p.Claims {
			switch g := gate.Which(p.Claims[i].Meter).Gate; g {
			case gate.Limits:
			case gate.Spend:
				if in.Request.Op == wire.CountTokens {
					t.Errorf("count_tokens claims %s", p.Claims[i].Meter)
				}
			default:
				t.Errorf("%s claims %s (%s)", in.Request.Op, p.Claims[i].Meter, g)
			}
		}
	}
}

func TestLocalRefusals(t *testing.T) {
	s := world(t)
	for name, c := range map[string]struct {
		in   *policy.Input
		want policy.Cause
	}{
		"background":           {ask(t, s, "plain", "gpt", wire.Responses, `{"model":"gpt","input":"hi","background":true}`), policy.Background},
		"above the maximum":    {input(t, s, "plain", "gpt", `,"max_tokens":16385`), policy.BadField},
		"prepaid, no price":    {input(t, s, "prepaid", "free", ``), policy.NoPrice},
		"account without pool": {func() *policy.Input { in := input(t, s, "plain", "gpt", ``); in.Target.Pool = ""; return in }(), policy.CapacityUnknown},
	} {
		if r := policy.New(c.in).Refusal; r == nil || r.Cause != c.want {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if r := policy.New(input(t, s, "plain", "gpt", `,"max_tokens":16385`)).Refusal; r.Param != "max_tokens" || r.Code != "invalid_parameter" || !strings.Contains(r.Message, "16385") {
		t.Errorf("%+v", r)
	}
	if r := policy.New(ask(t, s, "prepaid", "free", wire.CountTokens, `{"model":"free","messages":[{"role":"user","content":"x"}]}`)).Refusal; r != nil {
		t.Errorf("counting tokens costs nothing: %+v", r)
	}
}

func TestLookup(t *testing.T) {
	s := world(t)
	for _, c := range []struct {
		key, model string
		ok         bool
	}{{"plain", "qwen", true}, {"plain", "nowhere", false}, {"by model", "qwen", true}, {"by model", "shared", false}} {
		m, refused := policy.Lookup(s, keyOf(t, s, c.key), c.model)
		if (m != nil) != c.ok || (refused == nil) != c.ok || refused != nil && refused.Cause != policy.UnknownModel {
			t.Errorf("%s asks for %s: %v %+v", c.key, c.model, m, refused)
		}
	}
	k := bareKey(keyOf(t, s, "plain"))
	k.Models = map[string]bool{"qwen": true}
	if _, refused := policy.Lookup(s, k, "gpt"); refused == nil {
		t.Error("a model outside the allow-list is given")
	}
}

// TestBudgets are the numbers of the specification's own tests.
func TestBudgets(t *testing.T) {
	s := world(t)
	limit := func(budget, fraction, healthy int64) int64 {
		in := input(t, s, "plain", "qwen", ``)
		m := *in.Model
		m.Policy.AdmitBudgetTokens = budget
		in.Model, in.Healthy, in.Settings.FractionPPM = &m, healthy, fraction
		p := policy.New(in)
		for i := range p.Claims {
			if gate.Which(p.Claims[i].Meter).Kind == "occupancy" {
				return p.Claims[i].Limit
			}
		}
		return 0
	}
	for _, c := range []struct{ budget, fraction, healthy, want int64 }{
		{1000, 850_000, 1, 850},
		{262_144, 900_000, 2, 471_859}, // floor(471859.2)
		{50, 1_000_000, 2, 100},
		{50, 1_000_000, 0, 50}, // floored at one replica
		{1, 100_000, 1, 1},     // never 0, which would mean off
		{0, 900_000, 2, 0},     // off
	} {
		if got := limit(c.budget, c.fraction, c.healthy); got != c.want {
			t.Errorf("%d × %d × %d is %d, want %d", c.budget, c.fraction, c.healthy, got, c.want)
		}
	}
}

func BenchmarkPlan(b *testing.B) {
	s := world(b)
	for name, in := range map[string]*policy.Input{
		"12 claims": input(b, s, "other", "shared", `,"max_tokens":500`),
		"33 claims": input(b, s, "everything", "qwen", `,"max_tokens":500`),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n = len(policy.New(in).Claims)
			}
			b.ReportMetric(float64(n), "claims")
		})
	}
}
