package main

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"github.com/weirhq/weir/gateway/authority"
)

// keyPrefix begins every key, so that leaked ones are recognised.
const keyPrefix = "sk-weir-"

// newKey makes a key with 256 bits of chance.
func newKey() (string, error) {
	var secret [32]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return "", fmt.Errorf("make a key: %w", err)
	}
	return keyPrefix + base64.RawURLEncoding.EncodeToString(secret[:]), nil
}

// preview shows enough of a key to tell it from others.
func preview(key string) string { return key[:len(keyPrefix)] + "..." + key[len(key)-4:] }

// keygenCommand makes an inference key.
type keygenCommand struct {
	Owner string `default:"acme" help:"Owner: the org whose key it is."`
	Name  string `default:"new key" help:"What the key is for."`

	Derive            bool  `help:"Suggest limits for a serverless key from what its model was certified to hold: give those limits, all a replica." group:"Limits from a model's certified ones"`
	AdmitBudgetTokens int64 `placeholder:"TOKENS" help:"Token-weighted occupancy: admit_budget_tokens of the model's policy." group:"Limits from a model's certified ones"`
	MaxModelLen       int64 `placeholder:"TOKENS" help:"Longest context that it serves." group:"Limits from a model's certified ones"`
	MaxInputTokens    int64 `placeholder:"TOKENS" help:"Largest input: max_input_tokens of the model's policy." group:"Limits from a model's certified ones"`
	ITPMCeiling       int64 `name:"itpm-ceiling" placeholder:"TOKENS" help:"Input tokens a minute." group:"Limits from a model's certified ones"`
	OTPMCeiling       int64 `name:"otpm-ceiling" placeholder:"TOKENS" help:"Output tokens a minute." group:"Limits from a model's certified ones"`
	SellableRPM       int64 `name:"sellable-rpm" placeholder:"REQUESTS" help:"Requests a minute that can be sold." group:"Limits from a model's certified ones"`
}

// certified are the model's limits as given. The error names the flag, its value and the rule.
func (c *keygenCommand) certified() (authority.Certified, error) {
	flags := []struct {
		name  string
		value int64
	}{
		{"admit-budget-tokens", c.AdmitBudgetTokens}, {"max-model-len", c.MaxModelLen}, {"max-input-tokens", c.MaxInputTokens},
		{"itpm-ceiling", c.ITPMCeiling}, {"otpm-ceiling", c.OTPMCeiling}, {"sellable-rpm", c.SellableRPM},
	}
	for _, f := range flags {
		switch {
		case !c.Derive && f.value != 0:
			return authority.Certified{}, fmt.Errorf("keygen: --%s is %d, and of use with --derive alone", f.name, f.value)
		case c.Derive && (f.value < 1 || f.value > authority.MaxQuota):
			return authority.Certified{}, fmt.Errorf("keygen: --%s is %d: with --derive it must be given, from 1 to %d", f.name, f.value, int64(authority.MaxQuota))
		}
	}
	if c.Derive && c.ITPMCeiling < c.MaxInputTokens {
		return authority.Certified{}, fmt.Errorf("keygen: --itpm-ceiling is %d: it must be at least --max-input-tokens, %d, or no key could send the largest input", c.ITPMCeiling, c.MaxInputTokens)
	}
	return authority.Certified{AdmitBudgetTokens: c.AdmitBudgetTokens, MaxModelLen: c.MaxModelLen, MaxInputTokens: c.MaxInputTokens,
		ITPMCeiling: c.ITPMCeiling, OTPMCeiling: c.OTPMCeiling, SellableRPM: c.SellableRPM}, nil
}

// derived is the part of an entry that holds suggested limits. What comes to 0 would be no limit, and is left out.
func derived(d authority.KeyDefaults) string {
	const unit = 1_000_000
	share := strings.TrimRight(fmt.Sprintf("%d.%06d", d.OccupancyShare/unit, d.OccupancyShare%unit), "0")
	text := "      max_occupancy_share: " + strings.TrimSuffix(share, ".") + "\n      quota:\n"
	for _, q := range []struct {
		name  string
		value int64
	}{
		{"requests_per_minute", d.RequestsPerMinute}, {"input_tokens_per_minute", d.InputTokensPerMinute}, {"output_tokens_per_minute", d.OutputTokensPerMinute},
	} {
		if q.value > 0 {
			text += fmt.Sprintf("        %s: %d\n", q.name, q.value)
		}
	}
	return text
}

// Run prints the key, its hash and the entry for auth.yaml.
func (c *keygenCommand) Run(out io.Writer) error {
	certified, err := c.certified()
	if err != nil {
		return err
	}
	limits := ""
	if c.Derive {
		limits = derived(authority.DeriveKeyDefaults(certified))
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	hash := authority.HashKey(key)
	_, err = fmt.Fprintf(out, `key (shown once):  %s
SHA-256:           %s

# in auth.yaml
api:
  mode: api-key
  keys:
    - key_hash: "%s"
      key_preview: "%s"
      metadata:
        name: %q
        owner: %q
%s`, key, hex.EncodeToString(hash[:]), hex.EncodeToString(hash[:]), preview(key), c.Name, c.Owner, limits)
	return err
}
