package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

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
	Owner string `aliases:"org" help:"Owner: the org whose key it is; acme if none is given for auth.yaml."`
	Name  string `default:"new key" help:"What the key is for."`

	URL      string `placeholder:"URL" help:"Make the key there, at a gateway that manages: it holds at once, and no file needs an entry." group:"Through the API"`
	AdminKey string `env:"WEIR_ADMIN_KEY" placeholder:"KEY" help:"An admin key of that gateway." group:"Through the API"`
	ID       string `placeholder:"ID" help:"What the key is called there; made from its hash if not given." group:"Through the API"`

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

// Run makes a key: through the API, or with the entry for auth.yaml.
func (c *keygenCommand) Run(cli *cli, out io.Writer) error {
	certified, err := c.certified()
	if err != nil {
		return err
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	switch {
	case c.URL == "" && c.ID != "":
		return fmt.Errorf("keygen: --id is %s, and of use with --url alone", c.ID)
	case c.URL == "":
		return c.print(out, key, certified)
	case c.Owner == "":
		return errors.New("keygen: with --url, --owner must be given: whose key is it?")
	}
	return c.publish(cli, out, key, certified)
}

// print prints the key, its hash and the entry for auth.yaml.
func (c *keygenCommand) print(out io.Writer, key string, certified authority.Certified) error {
	limits := ""
	if c.Derive {
		limits = derived(authority.DeriveKeyDefaults(certified))
	}
	if c.Owner == "" {
		c.Owner = "acme"
	}
	hash := authority.HashKey(key)
	_, err := fmt.Fprintf(out, `key (shown once):  %s
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

// publishTries is how often a key is sent whose version others overtake.
const publishTries = 5

// publish makes the key through the API, and prints it once it is there.
func (c *keygenCommand) publish(cli *cli, out io.Writer, key string, certified authority.Certified) error {
	api, err := managementAt(cli, c.URL, c.AdminKey)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), manageWithin)
	defer cancel()
	hash := authority.HashKey(key)
	id := cmp.Or(c.ID, authority.KeyID(hash))
	body := map[string]any{"key_hash": hex.EncodeToString(hash[:]), "key_preview": preview(key), "owner": c.Owner, "name": c.Name, "enabled": true}
	if c.Derive {
		d := authority.DeriveKeyDefaults(certified)
		body["max_occupancy_share"] = float64(d.OccupancyShare) / 1_000_000
		body["quota"] = map[string]int64{"requests_per_minute": d.RequestsPerMinute, "input_tokens_per_minute": d.InputTokensPerMinute, "output_tokens_per_minute": d.OutputTokensPerMinute}
	}
	var registry struct{ Version string }
	for range publishTries {
		if err = c.free(ctx, api, id); err != nil {
			break
		}
		if _, err = api.call(ctx, http.MethodGet, "/admin/api-keys/version", nil, &registry); err != nil {
			break
		}
		registry.Version = cmp.Or(registry.Version, time.Now().UTC().Format(time.RFC3339)) // who counts versions otherwise goes on doing so
		body["version"] = registry.Version
		status := 0
		if status, err = api.call(ctx, http.MethodPut, "/admin/api-keys/"+url.PathEscape(id), body, nil); status != http.StatusConflict {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("keygen: %w", err)
	}
	_, err = fmt.Fprintf(out, "key (shown once):  %s\nid:                %s\nowner:             %s\nversion:           %s\n", key, id, c.Owner, registry.Version)
	return err
}

// free says that no key has the id: what is made here replaces none.
func (c *keygenCommand) free(ctx context.Context, api *management, id string) error {
	status, err := api.call(ctx, http.MethodGet, "/admin/api-keys/"+url.PathEscape(id), nil, nil)
	switch {
	case status == http.StatusNotFound:
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("there is a key %s already: choose another --id", id)
}
