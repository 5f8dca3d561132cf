package access

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/nats-io/nats.go"
)

// Grant is the answer to a connection: who it is, in which account, and what it may do.
type Grant struct {
	Identity    Identity
	Account     string
	Permissions Permissions
}

// ErrRefused is returned for whoever does not prove to be an identity. It does not say what was wrong with name or secret.
var ErrRefused = errors.New("authenticating: unknown name or wrong secret")

const ownPrefix = "own." // passwords of this process's own connections

// Authenticator says who a connection is. It may be used by many goroutines.
type Authenticator struct {
	key   []byte
	known atomic.Pointer[map[string]Credential]
}

// NewAuthenticator takes the identities that may join, and the key that proves this process's own connections: random for an
// embedded broker, derived from the issuer's seed where several processes answer for one cluster.
func NewAuthenticator(credentials Credentials, key []byte) (*Authenticator, error) {
	if len(key) < sha256.Size {
		return nil, fmt.Errorf("making an authenticator: key of %d bytes, at least %d are required", len(key), sha256.Size)
	}
	a := &Authenticator{key: append([]byte(nil), key...)}
	if err := a.Replace(credentials); err != nil {
		return nil, err
	}
	return a, nil
}

// Replace changes the identities that may join. Connections that exist stay.
func (a *Authenticator) Replace(credentials Credentials) error {
	if err := credentials.Validate(); err != nil {
		return fmt.Errorf("replacing credentials: %w", err)
	}
	known := make(map[string]Credential, len(credentials.Identities))
	for _, c := range credentials.Identities {
		known[c.Name] = c
	}
	a.known.Store(&known)
	return nil
}

// Authenticate says who presents this user and password. The error is ErrRefused.
func (a *Authenticator) Authenticate(user, password string) (Grant, error) {
	if text, ok := strings.CutPrefix(password, ownPrefix); ok {
		return a.own(user, text)
	}
	configured, ok := Configured(user)
	if !ok {
		return Grant{}, ErrRefused
	}
	c, ok := (*a.known.Load())[configured]
	if !ok {
		return Grant{}, ErrRefused
	}
	hash := []byte(hashOf(password))
	match := 0
	for _, h := range c.SHA256 {
		match |= subtle.ConstantTimeCompare(hash, []byte(strings.ToLower(h)))
	}
	if match != 1 {
		return Grant{}, ErrRefused
	}
	return grant(Identity{Name: user, Roles: c.Roles}, account(c.Roles))
}

// doorways are the door's sides in the accounts of those outside.
var doorways = []Role{doorGates, doorReaders, doorBilling}

// own is a connection of this process, or of one with the same key: the password names its roles and proves them. But for the
// doorways it lives with the streams, as this process answers for itself.
func (a *Authenticator) own(user, text string) (Grant, error) {
	words, mac, ok := strings.Cut(text, ".")
	if !ok || !hmac.Equal([]byte(mac), []byte(a.proof(user, words))) {
		return Grant{}, ErrRefused
	}
	roles := splitRoles(words)
	where := AccountCore
	if len(roles) == 1 && slices.Contains(doorways, roles[0]) {
		where = account(roles)
	}
	return grant(Identity{Name: user, Roles: roles}, where)
}

func grant(id Identity, account string) (Grant, error) {
	p, err := PermissionsOf(id)
	if err != nil {
		return Grant{}, ErrRefused
	}
	return Grant{Identity: id, Account: account, Permissions: p}, nil
}

func (a *Authenticator) proof(user, roles string) string {
	m := hmac.New(sha256.New, a.key)
	m.Write([]byte("weir broker connection\n" + user + "\n" + roles))
	return hex.EncodeToString(m.Sum(nil))
}

// Own are the options by which a connection of this process is id.
func (a *Authenticator) Own(id Identity) []nats.Option {
	roles := joinRoles(id.Roles)
	return options(id.Name, ownPrefix+roles+"."+a.proof(id.Name, roles), id.Inbox())
}

// outside says whether the inbox that a subject lies in belongs to an identity of GATES or READERS, as account says.
func (a *Authenticator) outside(subject, where string) bool {
	rest, ok := strings.CutPrefix(subject, inboxPrefix)
	if !ok {
		return false
	}
	name, _, ok := strings.Cut(rest, ".")
	if !ok {
		return false
	}
	configured, ok := Configured(name)
	if !ok {
		return false
	}
	c, ok := (*a.known.Load())[configured]
	return ok && account(c.Roles) == where
}
