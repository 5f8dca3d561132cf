package e2e

import (
	"slices"
	"testing"

	"github.com/weirhq/weir/test/e2e/stack"
)

// TestLimitsAreThoseOfWhatAModelServes: /v1/limits lists what requests for the model claim, and an embedding claims nothing of the gates that
// hold generations.
func TestLimitsAreThoseOfWhatAModelServes(t *testing.T) {
	const policy = "mode: serverless\nadmit_budget_tokens: 100000\nmax_inflight: 8\nrouting_policy: {strategy: least-loaded}\n"
	s := stack.New(t, stack.Config{Settings: stack.Settings{Weir: `
orgs:
  demo: {limits: {rpm: 100, tpm: 1000000, concurrency: 9}}
models:
  - {id: talks, max_output_tokens: 100, local: {engine: vllm, replicas: ["{{upstream}}"]}}
  - {id: embeds, local: {engine: vllm, replicas: ["{{upstream}}"], operations: [embeddings]}}
`, Policies: map[string]string{"both": "models: [talks, embeds]\n" + policy},
		Keys: []stack.Key{{Name: "demo", Extra: "max_occupancy_share: 0.5, quota: {input_tokens_per_minute: 1000, output_tokens_per_minute: 1000, tokens_per_day: 5000}"}}}})
	kinds := func(model string) (all []string) {
		for _, l := range stack.Limits(t, s.URL(), "demo", model) {
			all = append(all, l.Scope+" "+l.Kind)
		}
		slices.Sort(all)
		return all
	}
	always := []string{"org concurrency", "org rpm", "org tpm"}
	if got := kinds("embeds"); !slices.Equal(got, always) {
		t.Errorf("of a model that embeds: %q, want %q", got, always)
	}
	want := append([]string{"key itpm", "key occupancy", "key otpm", "model inflight", "model occupancy", "org daily"}, always...)
	slices.Sort(want)
	if got := kinds("talks"); !slices.Equal(got, want) {
		t.Errorf("of a model that generates: %q, want %q", got, want)
	}
}
