package main

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"

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
}

// Run prints the key, its hash and the entry for auth.yaml.
func (c *keygenCommand) Run(out io.Writer) error {
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
`, key, hex.EncodeToString(hash[:]), hex.EncodeToString(hash[:]), preview(key), c.Name, c.Owner)
	return err
}
