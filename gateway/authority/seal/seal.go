// Package seal keeps provider credentials unreadable where they are stored: AES-256-GCM, under keys that only processes hold. A sealed
// credential names its key and is bound to its connection: moved to another org or connection it cannot be opened.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/weirhq/weir/events"
)

// Bounds of keys.
const (
	// MaxKeys is how many keys there may be: rotation needs two.
	MaxKeys = 16

	keyBytes   = 32
	nonceBytes = 12
	magic      = "w1"
)

var idRe = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)

// Keys are what credentials are sealed with, the newest first: that seals, each opens.
type Keys struct{ all []key }

type key struct {
	id   string
	aead cipher.AEAD
}

// Parse reads keys, one a line or separated by commas, as <id>:<32 bytes in base64>. Lines that begin with # are passed over. No error
// repeats a key.
func Parse(text string) (*Keys, error) {
	k := &Keys{}
	for _, line := range strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == ',' }) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		n := len(k.all) + 1
		id, secret, _ := strings.Cut(line, ":")
		raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(secret))
		switch {
		case !idRe.MatchString(id):
			return nil, fmt.Errorf("key %d: must be <id>:<key>, with an id that matches [A-Za-z0-9_-]{1,32}", n)
		case err != nil || len(raw) != keyBytes:
			return nil, fmt.Errorf("key %d (%s): must be %d bytes in base64", n, id, keyBytes)
		case slices.ContainsFunc(k.all, func(other key) bool { return other.id == id }):
			return nil, fmt.Errorf("key %d (%s): its id is another's", n, id)
		case n > MaxKeys:
			return nil, fmt.Errorf("there are more than %d keys", MaxKeys)
		}
		block, err := aes.NewCipher(raw)
		if err != nil {
			return nil, fmt.Errorf("key %d (%s): %w", n, id, err)
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			return nil, fmt.Errorf("key %d (%s): %w", n, id, err)
		}
		k.all = append(k.all, key{id, aead})
	}
	if len(k.all) == 0 {
		return nil, errors.New("there is no key")
	}
	return k, nil
}

// NewKey makes a key as Parse reads it.
func NewKey(id string, random io.Reader) (string, error) {
	if !idRe.MatchString(id) {
		return "", fmt.Errorf("id %q: must match [A-Za-z0-9_-]{1,32}", id)
	}
	var raw [keyBytes]byte
	if _, err := io.ReadFull(random, raw[:]); err != nil {
		return "", fmt.Errorf("make a key: %w", err)
	}
	return id + ":" + base64.StdEncoding.EncodeToString(raw[:]), nil
}

// Newest is the id of the key that seals.
func (k *Keys) Newest() string { return k.all[0].id }

// Seal seals a connection's credential with the newest key.
func (k *Keys) Seal(org events.Org, connection, secret string, random io.Reader) ([]byte, error) {
	newest := k.all[0]
	out := append([]byte(magic), byte(len(newest.id)))
	out = append(out, newest.id...)
	head := len(out)
	out = append(out, make([]byte, nonceBytes)...)
	if _, err := io.ReadFull(random, out[head:]); err != nil {
		return nil, fmt.Errorf("seal a credential: %w", err)
	}
	return newest.aead.Seal(out, out[head:], []byte(secret), bound(out[:head], org, connection)), nil
}

// Open opens a connection's credential. The error names the key that is missing, and never what is sealed.
func (k *Keys) Open(org events.Org, connection string, sealed []byte) (string, error) {
	id, ok := KeyOf(sealed)
	if !ok {
		return "", errors.New("open a credential: it was not sealed by this version")
	}
	i := slices.IndexFunc(k.all, func(other key) bool { return other.id == id })
	if i < 0 {
		return "", fmt.Errorf("open a credential: there is no key %s", id)
	}
	head := len(magic) + 1 + len(id)
	if len(sealed) < head+nonceBytes {
		return "", errors.New("open a credential: it is cut off")
	}
	secret, err := k.all[i].aead.Open(nil, sealed[head:head+nonceBytes], sealed[head+nonceBytes:], bound(sealed[:head], org, connection))
	if err != nil {
		return "", fmt.Errorf("open a credential: key %s does not open it: it is another key, or it was sealed for another connection", id)
	}
	return string(secret), nil
}

// Renew seals with the newest key what another one sealed; nil if the newest did.
func (k *Keys) Renew(org events.Org, connection string, sealed []byte, random io.Reader) ([]byte, error) {
	if id, _ := KeyOf(sealed); id == k.Newest() {
		return nil, nil
	}
	secret, err := k.Open(org, connection, sealed)
	if err != nil {
		return nil, err
	}
	return k.Seal(org, connection, secret, random)
}

// KeyOf is the id of the key that a credential was sealed with; ok is false if it was not sealed.
func KeyOf(sealed []byte) (id string, ok bool) {
	rest, ok := strings.CutPrefix(string(sealed[:min(len(sealed), len(magic)+1+32)]), magic)
	if !ok || len(rest) == 0 || len(rest) < 1+int(rest[0]) {
		return "", false
	}
	id = rest[1 : 1+int(rest[0])]
	return id, idRe.MatchString(id)
}

// bound is what a sealed credential is bound to: its own head, and its connection. Neither an org nor a head has a byte 0.
func bound(head []byte, org events.Org, connection string) []byte {
	return fmt.Appendf(nil, "weir.credential\x00%s\x00%s\x00%s", head, org, connection)
}
