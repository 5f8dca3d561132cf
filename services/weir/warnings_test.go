package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckWarns: what is no fault and hardly meant is said, and a range that is passed is named with its field, value and rule.
func TestCheckWarns(t *testing.T) {
	t.Setenv("WEIR_LOG_SINC", "1s")
	t.Setenv("WEIR_ROLES", "gateway")
	t.Setenv("HIVENET_ROUTER_ADMIT_FRACTION", "90")
	for _, c := range []struct {
		name, weir, policy string
		code               int
		says               []string
	}{
		{"warnings", "orgs:\n  acme: {limits: {rpm: 5, tpm: 10, shadow: {rpm: 6, tpm: 10}}}\nlimits: {platform: {concurrency: 3, shadow: {concurrency: 4}}}\n",
			"shed_if: {kv_cache_utilization: {gt: 90}}\n", 0, []string{
				"weir.yaml:2: orgs.acme.limits.shadow.rpm is 6: is above the limit of 5",
				"weir.yaml:3: limits.platform.shadow.concurrency is 4: is above the limit of 3",
				"_default.yaml:1: shed_if.kv_cache_utilization.gt is 90: is above all that kv_cache_utilization can be",
				"environment: WEIR_LOG_SINC: there is no such variable: did you mean WEIR_LOG_SYNC?",
				"HIVENET_ROUTER_ADMIT_FRACTION is 90: must be greater than 0 and at most 1",
			}},
		{"ranges", "pools: [{id: p, provider: openai, rpm: 1, tpm: 1, concurrency: 1, fair_share: 50}]\ntracing: {sample: 10}\n", "", 1, []string{
			"weir.yaml:1: pools[0].fair_share is 50: must be greater than 0 and at most 1: 0.5 is half",
			"weir.yaml:2: tracing.sample is 10: must be from 0 to 1",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "policies"), 0o700); err != nil {
				t.Fatal(err)
			}
			for name, text := range map[string]string{"weir.yaml": c.weir, "policies/_default.yaml": c.policy} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var out, complaints bytes.Buffer
			code := run([]string{"check", "-c", filepath.Join(dir, "weir.yaml")}, &out, &complaints)
			said := out.String() + complaints.String()
			if code != c.code || strings.Contains(said, "WEIR_ROLES") || strings.Contains(said, "shadow.tpm") {
				t.Errorf("code %d: %s", code, said)
			}
			for _, want := range c.says {
				if !strings.Contains(said, want) {
					t.Errorf("it does not say %q:\n%s", want, said)
				}
			}
		})
	}
}
