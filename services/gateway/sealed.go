package gateway

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/manage"
)

// readKeys reads the keys that credentials are sealed with, and stays with the last valid ones.
func (g *Gateway) readKeys() error {
	keys, err := g.c.Config.Seal.Keys(os.Getenv)
	if err != nil {
		return err
	}
	if keys == nil && g.keys.Load() != nil {
		return errors.New("there are no keys to seal credentials with any more")
	}
	g.keys.Store(keys)
	return nil
}

// credential tells a connection's credential at the moment of a call; nil if it cannot be opened with the keys of now. A snapshot keeps
// the keys that it was made with: what could be opened then can be for as long as it is in use.
func (g *Gateway) credential(r *authority.ConnectionRecord) func() string {
	keys := g.keys.Load()
	open := func() (string, error) {
		if len(r.Credential) == 0 {
			return "", nil
		}
		if keys == nil {
			return "", errors.New("no key to seal credentials with is configured")
		}
		return keys.Open(r.Org, r.ID, r.Credential)
	}
	if _, err := open(); err != nil {
		g.unopened.Warn(fmt.Sprintf("the credential of connection %s of org %s cannot be opened, no call is made with it", r.ID, r.Org), err)
		return nil
	}
	return func() string {
		secret, _ := open() // it could be opened with these keys
		return secret
	}
}

// seals lets the API keep credentials, if there are keys to seal them with.
func (g *Gateway) seals(c *manage.Config) {
	if g.keys.Load() == nil {
		return
	}
	c.Seal = func(org events.Org, connection, secret string) ([]byte, error) {
		return g.keys.Load().Seal(org, connection, secret, rand.Reader)
	}
	c.Renew = func(r *authority.ConnectionRecord) ([]byte, error) {
		return g.keys.Load().Renew(r.Org, r.ID, r.Credential, rand.Reader)
	}
}
