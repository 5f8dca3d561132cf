package policy_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/policy"
	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/gate"
)

var rewrite = flag.Bool("rewrite", false, "accept what the code does now")

// TestClaims holds whole plans against files that a person can read. Each file is one request.
func TestClaims(t *testing.T) {
	s := world(t)
	image := `{"model":"qwen","max_tokens":10,"messages":[{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"https://x/y.png"}}]}]}`
	cases := map[string]*policy.Input{
		"every-scope":         input(t, s, "everything", "qwen", `,"max_tokens":500`),
		"undeclared-output":   input(t, s, "everything", "qwen", ``),
		"negative-output":     input(t, s, "other", "qwen", `,"max_tokens":-1000`),
		"choices-multiply":    input(t, s, "other", "qwen", `,"max_completion_tokens":500,"n":3`),
		"large-output":        input(t, s, "plain", "gpt", `,"max_tokens":16384,"n":4`),
		"image":               ask(t, s, "plain", "qwen", wire.Chat, image),
		"serverless":          input(t, s, "everything", "shared", `,"max_tokens":500`),
		"serverless-remote":   input(t, s, "everything", "remote", `,"max_tokens":500`),
		"no-limits":           input(t, s, "plain", "free", ``),
		"provider":            input(t, s, "plain", "gpt", ``),
		"prepaid":             input(t, s, "prepaid", "qwen", `,"max_tokens":500`),
		"prepaid-default":     input(t, s, "prepaid", "shared", ``),
		"quota-by-model":      input(t, s, "by model", "qwen", `,"max_tokens":500`),
		"quota-by-model-away": input(t, s, "by model", "gpt", `,"max_tokens":500`),
		"paced-endpoint":      input(t, s, "everything", "paced", ``),
		"dedicated-endpoint":  input(t, s, "everything", "dedicated", ``),
		"weighted-tokens":     input(t, s, "everything", "weighted", `,"max_tokens":500`),
		"messages":            ask(t, s, "plain", "qwen", wire.Messages, `{"model":"qwen","max_tokens":64,"system":"be brief","messages":[{"role":"user","content":"hello"}]}`),
		"embeddings":          ask(t, s, "everything", "shared", wire.Embeddings, `{"model":"shared","input":"`+text(320)+`"}`),
		"rerank":              ask(t, s, "everything", "gpt", wire.Rerank, `{"model":"gpt","query":"q","documents":["a","b"]}`),
		"count-tokens":        ask(t, s, "everything", "gpt", wire.CountTokens, `{"model":"gpt","messages":[{"role":"user","content":"hello"}]}`),
	}
	none := input(t, s, "by model", "qwen", `,"max_tokens":500`)
	none.Healthy = 0
	cases["no-healthy-replica"] = none
	fallback := input(t, s, "plain", "qwen", `,"max_tokens":500`)
	fallback.Target = policy.Target{Pool: "leaf"}
	cases["local-model-at-provider"] = fallback
	mapped := input(t, s, "plain", "free", ``)
	mapped.Target.Pool = "mapped"
	cases["mapped-deployment"] = mapped

	for name, in := range cases {
		t.Run(name, func(t *testing.T) {
			p := policy.New(in)
			if p.Refusal != nil {
				t.Fatalf("refused: %+v", p.Refusal)
			}
			var b strings.Builder
			fmt.Fprintf(&b, "estimate %+v\nbound %d, park %d ms, max %d ms, hold %d, price %q, rates %d\n\n", p.Recorded, p.Bound, p.ParkMS, p.MaxMS, p.HoldNano, p.PriceVersion(), p.Rates)
			for i := range p.Claims {
				b.WriteString(claimText(&p.Claims[i]) + "\n")
			}
			b.WriteString("\ncharges of 90 in (20 cached), 40 out:")
			for _, c := range p.Charges(events.Usage{InputTokens: 90, CachedTokens: 20, OutputTokens: 40}, events.QualityExact, false) {
				fmt.Fprintf(&b, " %s %d", c.Basis, c.Amount)
			}
			b.WriteString("\n")
			golden(t, name, b.String())
			folds(t, p)
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: -want +got\n%s", file, diff)
	}
}

// folds says that the fold takes the claims as valid, and admits the first such request where there is money and room for it.
func folds(t *testing.T, p *policy.Plan) {
	t.Helper()
	f := admission.New()
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC).UnixNano()
	f.Apply(&events.Record{Seq: 1, At: at, Event: events.Event{Org: "o-x", Data: &events.Credit{Org: "o-x", AmountNano: 1, Reference: "r"}}})
	v := f.Apply(&events.Record{Seq: 2, At: at, Gateway: "g", Event: events.Event{Org: "acme", Data: &events.Reserve{
		Request: "r", Org: "acme", Gateway: "g", ParkMS: p.ParkMS, MaxMS: p.MaxMS, Claims: p.Claims}}})
	if len(v) != 1 {
		t.Fatalf("%d verdicts", len(v))
	}
	if r := v[0].Refusal; r != nil && r.Reason != events.NoBalance && r.Reason != events.TooLarge {
		t.Errorf("refused: %+v", r)
	}
}

func TestClaimsStandInTheOrderOfTheGates(t *testing.T) {
	s := world(t)
	for _, in := range []*policy.Input{input(t, s, "everything", "qwen", `,"max_tokens":5`), input(t, s, "everything", "shared", ``), input(t, s, "prepaid", "gpt", ``)} {
		p := policy.New(in)
		last := 0
		for i := range p.Claims {
			w := gate.Which(p.Claims[i].Meter)
			rank := map[gate.Gate]int{gate.B2: 2, gate.B4: 3, gate.Limits: 4, gate.Daily: 5, gate.Spend: 6,
				gate.Balance: 7, gate.Pause: 8, gate.Pool: 8, gate.Fairness: 9}[w.Gate]
			if i < p.Rates {
				rank = 1
				if w.Kind != "rpm" && w.Kind != "rps" {
					t.Errorf("%s is among the rates", p.Claims[i].Meter)
				}
			}
			if rank < last || rank == 0 {
				t.Errorf("%s (%s) stands behind a later gate", p.Claims[i].Meter, w.Gate)
			}
			last = rank
		}
	}
}

// TestMostClaimsFit makes the largest plan there can be: every scope with every limit, a serverless model on mapped replicas, four
// levels of house pools.
func TestMostClaimsFit(t *testing.T) {
	all := authority.Limits{RPM: 9, RPS: 9, TPM: 900_000, Concurrency: 9, SpendDay: dollar, SpendMonth: dollar}
	pools := []authority.DeclaredPool{{ID: "p0", Provider: "own", RPM: 9, TPM: 900_000, Concurrency: 9, HeadroomPercent: 100}}
	for i := 1; i < authority.MaxPoolDepth; i++ {
		next := pools[0]
		next.ID, next.Parent = fmt.Sprintf("p%d", i), fmt.Sprintf("p%d", i-1)
		pools = append(pools, next)
	}
	policies := &authority.Policies{Default: authority.Policy{Serverless: true, AdmitBudgetTokens: 1_000_000, MaxInflight: 9}}
	s, _, err := authority.Build(&authority.Declared{
		Platform: all, Pools: pools,
		Orgs: []authority.DeclaredOrg{{Name: "default", Billing: authority.Prepaid, Limits: all, Daily: 900_000, Models: map[string]authority.Limits{"m": all},
			Workspaces: map[string]authority.Limits{"w": all}, Principals: map[string]authority.Limits{"p": all}}},
		Models: []*authority.Model{{ID: "m", Price: &authority.Price{Input: 1, Output: 1}, Local: &authority.Local{Replicas: []string{"http://a"}}}},
	}, authority.None(), policies)
	if err != nil {
		t.Fatal(err)
	}
	k := &authority.Key{ID: "k", Org: "default", Workspace: "w", Principal: "p", Limits: all, Daily: 900_000,
		Quota: authority.Quota{InputTokensPerMinute: 900_000, OutputTokensPerMinute: 900_000, OccupancyShare: 500_000, PerModel: map[string]authority.ModelQuota{"m": {RequestsPerMinutePerReplica: 9, TokensPerDay: 900_000}}}}
	p := policy.New(&policy.Input{Snapshot: s, Key: k, Model: s.Models["m"], Request: parse(t, wire.Chat, `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"x"}]}`),
		Target: policy.Target{Local: true, Pool: "p3"}, Healthy: 1, Settings: settings})
	if p.Refusal != nil || len(p.Claims) != events.MaxClaims {
		t.Errorf("%d claims, %+v: the largest plan has as many as a reserve takes, %d", len(p.Claims), p.Refusal, events.MaxClaims)
	}
	folds(t, p)
}

func TestAFurtherAttemptClaimsItsPoolAlone(t *testing.T) {
	s := world(t)
	in := input(t, s, "everything", "qwen", `,"max_tokens":500`)
	p := policy.New(in)
	claims, refused := policy.AttemptClaims(in, p, policy.Target{Pool: "leaf"})
	if refused != nil {
		t.Fatal(refused)
	}
	var got []string
	for i := range claims {
		got = append(got, string(claims[i].Meter))
		if claims[i].Life != events.LifeAttempt {
			t.Errorf("%s lives %s", claims[i].Meter, claims[i].Life)
		}
	}
	want := "pool/leaf/pause pool/leaf/rpm pool/leaf/tpm pool/leaf/concurrency pool/house/rpm pool/house/tpm pool/house/concurrency " +
		"pool/leaf.acme/rpm pool/leaf.acme/tpm pool/leaf.acme/concurrency pool/house.acme/rpm pool/house.acme/tpm pool/house.acme/concurrency"
	if strings.Join(got, " ") != want {
		t.Errorf("claims %v", got)
	}
	if claims, _ := policy.AttemptClaims(in, p, policy.Target{Local: true}); claims == nil || len(claims) != 0 {
		t.Errorf("another replica claims %v", claims)
	}
	if _, refused := policy.AttemptClaims(in, p, policy.Target{Pool: "nowhere"}); refused == nil || refused.Cause != policy.CapacityUnknown {
		t.Errorf("an account without a pool: %+v", refused)
	}
	if charges := p.Charges(events.Usage{InputTokens: 5, OutputTokens: 6}, events.QualityExact, false); len(charges) == 0 || charges[0] != (events.Charge{Basis: "total", Amount: 11}) {
		t.Errorf("charges %v", charges)
	}
}

// TestAnUnsealedSnapshotGivesTheSame holds a snapshot that nobody named meters for against one where it was done.
func TestAnUnsealedSnapshotGivesTheSame(t *testing.T) {
	s := world(t)
	plain := *s
	key, model := keyOf(t, s, "everything"), s.Models["qwen"]
	unnamed, unnamedModel := bareKey(key), *model
	unnamedModel.ID = model.ID
	in := input(t, s, "everything", "qwen", `,"max_tokens":500`)
	want := policy.New(in)
	again := *in
	again.Snapshot, again.Key, again.Model = &plain, unnamed, &unnamedModel
	if diff := cmp.Diff(want.Claims, policy.New(&again).Claims); diff != "" {
		t.Error(diff)
	}
}
