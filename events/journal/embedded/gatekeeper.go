package embedded

import (
	"github.com/nats-io/nats-server/v2/server"

	"github.com/weirhq/weir/events/journal/access"
)

// gatekeeper asks access who a connection is and tells the server.
type gatekeeper struct {
	auth *access.Authenticator
	log  *logger

	server *server.Server
}

// Check implements server.Authentication.
func (g *gatekeeper) Check(c server.ClientAuthentication) bool {
	opts := c.GetOpts()
	grant, err := g.auth.Authenticate(opts.Username, opts.Password)
	if err != nil {
		g.log.Warnf("connection refused: user %q from %v", opts.Username, c.RemoteAddress())
		return false
	}
	account, err := g.server.LookupAccount(grant.Account)
	if err != nil {
		g.log.Errorf("looking up account %s: %v", grant.Account, err)
		return false
	}
	c.RegisterUser(&server.User{
		Username: grant.Identity.Name,
		Account:  account,
		Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: grant.Permissions.Publish},
			Subscribe: &server.SubjectPermission{Allow: grant.Permissions.Subscribe},
		},
	})
	return true
}
