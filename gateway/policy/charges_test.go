package policy_test

import (
	"fmt"
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/policy"
	"github.com/weirhq/weir/gateway/wire"
)

func TestCost(t *testing.T) {
	p := &authority.Price{Input: 150_000_000, CachedInput: 75_000_000, CacheWrite: 187_500_000, Output: 600_000_000, Request: 7}
	for _, c := range []struct {
		name  string
		usage events.Usage
		want  int64
	}{
		{"nothing", events.Usage{}, 7},
		{"a million each", events.Usage{InputTokens: 1_000_000, OutputTokens: 1_000_000}, 750_000_007},
		{"one token", events.Usage{InputTokens: 1}, 157},
		{"cached counts once", events.Usage{InputTokens: 1000, CachedTokens: 400}, 600*150 + 400*75 + 7},
		{"written counts once", events.Usage{InputTokens: 1000, CacheWriteTokens: 8}, 992*150 + 1500 + 7},
		{"reasoning is output", events.Usage{OutputTokens: 10, ReasoningTokens: 9}, 6007},
		{"more cached than input", events.Usage{InputTokens: 3, CachedTokens: 10}, 750 + 7},
		{"negative is nothing", events.Usage{InputTokens: -5, OutputTokens: -5}, 7},
		{"never more than an event holds", events.Usage{OutputTokens: math.MaxInt64}, 600_000_000_000_007},
	} {
		if got := policy.Cost(p, c.usage); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	thinking := *p
	thinking.Reasoning = 900_000_000
	if got := policy.Cost(&thinking, events.Usage{OutputTokens: 10, ReasoningTokens: 9}); got != 600+9*900+7 {
		t.Errorf("reasoning with a price of its own: %d", got)
	}
	if got := policy.Cost(&thinking, events.Usage{OutputTokens: 10, ReasoningTokens: 99}); got != 10*900+7 {
		t.Errorf("more reasoning than output: %d", got)
	}
	tiny := &authority.Price{Input: 1, Output: 1}
	if got := policy.Cost(tiny, events.Usage{InputTokens: 1, OutputTokens: 1}); got != 1 {
		t.Errorf("two millionths of a nano-dollar are %d: rounded up once to 1", got)
	}
	if got := policy.Cost(&authority.Price{Output: events.MaxAmount}, events.Usage{OutputTokens: 1 << 40}); got != events.MaxAmount {
		t.Errorf("a cost beyond the range is %d", got)
	}
}

// TestCostIsExact holds it against arithmetic without bounds.
func TestCostIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.Int64Range(0, 10_000_000)
		money := rapid.Int64Range(0, 100*dollar)
		p := &authority.Price{Input: money.Draw(t, "input"), CachedInput: money.Draw(t, "cached"), CacheWrite: money.Draw(t, "write"), Output: money.Draw(t, "output"), Request: money.Draw(t, "request")}
		u := events.Usage{CachedTokens: tokens.Draw(t, "c"), CacheWriteTokens: tokens.Draw(t, "w"), OutputTokens: tokens.Draw(t, "o")}
		plain := tokens.Draw(t, "i")
		u.InputTokens = plain + u.CachedTokens + u.CacheWriteTokens
		sum := new(big.Int)
		for _, part := range [][2]int64{{plain, p.Input}, {u.CachedTokens, p.CachedInput}, {u.CacheWriteTokens, p.CacheWrite}, {u.OutputTokens, p.Output}} {
			sum.Add(sum, new(big.Int).Mul(big.NewInt(part[0]), big.NewInt(part[1])))
		}
		want, rest := new(big.Int).DivMod(sum, big.NewInt(1_000_000), new(big.Int))
		if rest.Sign() > 0 {
			want.Add(want, big.NewInt(1))
		}
		want.Add(want, big.NewInt(p.Request))
		if want.Cmp(big.NewInt(events.MaxAmount)) > 0 {
			want = big.NewInt(events.MaxAmount)
		}
		if got := policy.Cost(p, u); got != want.Int64() {
			t.Fatalf("%d, want %s", got, want)
		}
	})
}

func charges(list []events.Charge) string {
	s := ""
	for _, c := range list {
		s += fmt.Sprintf(" %s=%d", c.Basis, c.Amount)
	}
	return s
}

func TestCharges(t *testing.T) {
	s := world(t)
	declared := policy.New(input(t, s, "everything", "shared", `,"max_tokens":500`))
	streaming := policy.New(input(t, s, "everything", "shared", ``))
	u := events.Usage{InputTokens: 120, CachedTokens: 20, OutputTokens: 30, ReasoningTokens: 9}
	cost := policy.Cost(declared.Price, u)
	if got, want := charges(declared.Charges(u, events.QualityExact, false)), fmt.Sprintf(" total=150 input=120 output=30 footprint=620 cost=%d", cost); got != want {
		t.Errorf("declared:%s, want%s", got, want)
	}
	if got, want := charges(streaming.Charges(u, events.QualityPartial, false)), fmt.Sprintf(" total=150 input=120 output=30 footprint=150 cost=%d", cost); got != want {
		t.Errorf("undeclared:%s, want%s", got, want)
	}
	if got := declared.Charges(u, events.QualityNone, false); got != nil {
		t.Errorf("charges of nothing known:%s", charges(got))
	}
	if got := policy.New(input(t, s, "plain", "free", ``)).Charges(u, events.QualityExact, false); charges(got) != " total=150" {
		t.Errorf("with nothing but the platform's limits:%s", charges(got))
	}
}

func TestGrowthIsTheFootprintAlone(t *testing.T) {
	s := world(t)
	streaming, declared := policy.New(input(t, s, "plain", "qwen", ``)), policy.New(input(t, s, "plain", "qwen", `,"max_tokens":500`))
	for _, c := range []struct {
		plan          *policy.Plan
		input, output int64
		want          int64
		ok            bool
	}{
		{streaming, 0, 75, 100 + 75, true}, // the estimate, and what has streamed
		{streaming, 130, 75, 205, true},    // the exact input, as soon as it is known
		{declared, 0, 75, 0, false},        // streaming never replaces declared
		{declared, 130, 75, 630, true},
		{policy.New(input(t, s, "plain", "free", ``)), 0, 75, 0, false}, // nobody asks
	} {
		got, ok := c.plan.Growth(c.input, c.output)
		if ok != c.ok || got.Amount != c.want || ok && got.Basis != events.BasisFootprint {
			t.Errorf("growth to %d, %d: %+v %v, want %d %v", c.input, c.output, got, ok, c.want, c.ok)
		}
	}
}

func TestUsage(t *testing.T) {
	p := policy.New(input(t, world(t), "plain", "qwen", ``))
	for name, c := range map[string]struct {
		result  wire.Result
		usage   events.Usage
		quality events.Quality
	}{
		"exact": {wire.Result{Usage: wire.Usage{Input: 9, Cached: 1, CacheWrite: 2, Output: 3, Reasoning: 1}, Explicit: wire.FieldInput | wire.FieldOutput, Quality: wire.QualityExact},
			events.Usage{InputTokens: 9, CachedTokens: 1, CacheWriteTokens: 2, OutputTokens: 3, ReasoningTokens: 1}, events.QualityExact},
		"cut before the end": {wire.Result{Usage: wire.Usage{Input: 9, Output: 3}, Explicit: wire.FieldInput, Quality: wire.QualityPartial},
			events.Usage{InputTokens: 9, OutputTokens: 3}, events.QualityPartial},
		"no usage at all": {wire.Result{Usage: wire.Usage{Output: 3}, Quality: wire.QualityEstimated},
			events.Usage{InputTokens: 100, OutputTokens: 3}, events.QualityEstimated},
		"nothing": {wire.Result{}, events.Usage{}, events.QualityNone},
	} {
		if u, q := p.Usage(&c.result); u != c.usage || q != c.quality {
			t.Errorf("%s: %+v %s", name, u, q)
		}
	}
}

func TestOnlyExactTextOfTheLocalPoolTrains(t *testing.T) {
	s := world(t)
	local, remote := policy.New(input(t, s, "plain", "qwen", ``)), policy.New(input(t, s, "plain", "gpt", ``))
	image := policy.New(ask(t, s, "plain", "qwen", wire.Chat, `{"model":"qwen","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x"}}]}]}`))
	if !local.Trains(events.QualityExact) || local.Trains(events.QualityPartial) || remote.Trains(events.QualityExact) || image.Trains(events.QualityExact) {
		t.Error("the wrong usage trains")
	}
}

// TestHold holds the balance hold against its rules: all of a declared output, at most 32,768 tokens of a default one.
func TestHold(t *testing.T) {
	s := world(t)
	big := *s.Models["qwen"]
	big.MaxOutputTokens = 128_000
	hold := func(fields string) int64 {
		in := input(t, s, "prepaid", "qwen", fields)
		in.Model = &big
		p := policy.New(in)
		tokens := p.HoldNano - 1000 - int64(len(in.Request.Body))*1000
		return tokens / 4000
	}
	if got := hold(`,"max_tokens":100000`); got != 100_000 {
		t.Errorf("a declared output of 100000 holds %d", got)
	}
	if got := hold(``); got != 32_768 {
		t.Errorf("a default output holds %d", got)
	}
	price := *big.PriceAt(time.Time{})
	big.Price = &price
	price.Reasoning = 3 * price.Output
	if got := hold(`,"max_tokens":1000`); got != 3_000 {
		t.Errorf("an output that may all be reasoning, at thrice the price, holds as much as %d tokens of other output", got)
	}
	price.Reasoning = price.Output / 2
	if got := hold(`,"max_tokens":1000`); got != 1_000 {
		t.Errorf("an output that may hold no reasoning, which would be cheaper, holds %d", got)
	}
}

// A request at an account of the org's own costs the fee's part of the price, rounded up once, and without a fee nothing: then it needs
// neither a price nor money, and no cap holds it.
func TestAnAccountOfOnesOwn(t *testing.T) {
	s := world(t)
	own := func(fee int64, only bool) (*policy.Input, *policy.Plan) {
		changed := *s
		changed.BYOKFee = fee
		in := input(t, &changed, "prepaid", "gpt", `,"max_tokens":500`)
		in.Target.Own, in.OwnOnly = true, only
		return in, policy.New(in)
	}
	money := func(p *policy.Plan) (hold int64, claimed bool) {
		for _, c := range p.Claims {
			if c.Kind == events.Balance {
				return c.Amount, true
			}
		}
		return 0, false
	}
	u := events.Usage{InputTokens: 101, OutputTokens: 30}
	const list = 101*1000 + 30*4000 + 1000
	_, free := own(0, true)
	if _, claimed := money(free); claimed || free.HoldNano != 0 || free.CostNano(u, true) != 0 || free.ListNano(u) != list {
		t.Errorf("without a fee: hold %d, cost %d of %d", free.HoldNano, free.CostNano(u, true), free.ListNano(u))
	}
	_, paid := own(33_333, true)
	whole := policy.Cost(paid.Price, events.Usage{InputTokens: paid.Estimate.Reservation, OutputTokens: 500})
	if hold, _ := money(paid); hold != (whole*33_333+999_999)/1_000_000 {
		t.Errorf("with a fee the hold is %d of %d", hold, whole)
	}
	if got, want := paid.CostNano(u, true), int64((list*33_333+999_999)/1_000_000); got != want {
		t.Errorf("the fee is %d, want %d", got, want)
	}
	_, both := own(0, false)
	if hold, _ := money(both); hold != whole || both.CostNano(u, true) != 0 || both.CostNano(u, false) != list {
		t.Errorf("where the house's account may follow: hold %d, want %d", hold, whole)
	}
	if got := charges(paid.Charges(u, events.QualityExact, true)); got != " total=131" {
		t.Errorf("charges%s", got)
	}
	for fee, refused := range map[int64]bool{0: false, 1: true} {
		in, _ := own(fee, true)
		unpriced := *in.Model
		unpriced.Price, in.Model = nil, &unpriced
		if p := policy.New(in); (p.Refusal != nil && p.Refusal.Cause == policy.NoPrice) != refused {
			t.Errorf("a fee of %d on no price: %+v", fee, p.Refusal)
		}
	}
}

// The price that holds is that of the moment at which a request is planned, and what it used is settled at the same, whatever begins meanwhile.
func TestAPriceBegins(t *testing.T) {
	s := world(t)
	in := input(t, s, "prepaid", "gpt", `,"max_tokens":5`)
	model := *in.Model
	begins := time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
	model.Prices = []authority.DatedPrice{{Price: authority.Price{Version: "v2", Input: 2 * dollar, Output: dollar}, From: begins}}
	in.Model, in.Now = &model, begins.Add(-1)
	before := policy.New(in)
	in.Now = begins
	after := policy.New(in)
	u := events.Usage{InputTokens: 10, OutputTokens: 10}
	if before.PriceVersion() != "v1" || before.CostNano(u, false) != 51_000 || after.PriceVersion() != "v2" || after.CostNano(u, false) != 30_000 {
		t.Errorf("%s: %d, then %s: %d", before.PriceVersion(), before.CostNano(u, false), after.PriceVersion(), after.CostNano(u, false))
	}
	if model.Price = nil; policy.New(in).Refusal != nil {
		t.Error("refused, though a price has begun")
	}
	if in.Now = begins.Add(-1); policy.New(in).Refusal == nil {
		t.Error("no price has begun, and a prepaid org is served")
	}
}
