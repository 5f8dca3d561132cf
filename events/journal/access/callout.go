package access

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"golang.org/x/sync/errgroup"
)

const (
	calloutSubject = "$SYS.REQ.USER.AUTH"
	calloutQueue   = "weir"
	calloutName    = "callout"
	serverKey      = "Nats-Server-Xkey"
)

// CalloutConfig is what a process needs to answer for a cluster who may do what.
type CalloutConfig struct {
	URL         string        // of the cluster
	User        string        // seed of the nkey that the servers list under auth_users (SU…)
	Issuer      string        // seed of the account nkey that the servers name as issuer (SA…)
	XKey        string        // seed of the curve nkey that the servers name as xkey (SX…); empty: requests are not encrypted
	Credentials Credentials   // who may join
	Options     []nats.Option // more for every connection, as TLS
	Log         *slog.Logger  // refusals are warnings; Defaults to none
}

// Callout answers the authentication requests of a NATS cluster and keeps the door open there. Any number may run; they share
// the work. Nobody but these can connect until one runs.
type Callout struct {
	cfg    CalloutConfig
	auth   *Authenticator
	user   nkeys.KeyPair
	issuer nkeys.KeyPair
	xkey   nkeys.KeyPair
	ready  chan struct{}
}

// NewCallout reads the keys. The error names the one that is wrong, never its value.
func NewCallout(cfg CalloutConfig) (*Callout, error) {
	c := &Callout{cfg: cfg, ready: make(chan struct{})}
	if c.cfg.Log == nil {
		c.cfg.Log = slog.New(slog.DiscardHandler)
	}
	var err error
	if c.user, err = seed("user", cfg.User, nkeys.PrefixByteUser); err != nil {
		return nil, err
	}
	if c.issuer, err = seed("issuer", cfg.Issuer, nkeys.PrefixByteAccount); err != nil {
		return nil, err
	}
	if cfg.XKey != "" {
		if c.xkey, err = seed("xkey", cfg.XKey, nkeys.PrefixByteCurve); err != nil {
			return nil, err
		}
	}
	// All who answer for the cluster hold the issuer's seed, so any of them can vouch for another's own connections.
	m := hmac.New(sha256.New, []byte(cfg.Issuer))
	m.Write([]byte("weir broker key"))
	if c.auth, err = NewAuthenticator(cfg.Credentials, m.Sum(nil)); err != nil {
		return nil, err
	}
	return c, nil
}

func seed(what, text string, want nkeys.PrefixByte) (nkeys.KeyPair, error) {
	kp, err := nkeys.FromSeed([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("callout: %s: is not an nkey seed", what)
	}
	if got, _, err := nkeys.DecodeSeed([]byte(text)); err != nil || got != want {
		return nil, fmt.Errorf("callout: %s: is the seed of another kind of nkey", what)
	}
	return kp, nil
}

// Authenticator is the one by which the callout answers; Replace changes who may join.
func (c *Callout) Authenticator() *Authenticator { return c.auth }

// Ready is closed when identities can connect.
func (c *Callout) Ready() <-chan struct{} { return c.ready }

// Run answers until ctx ends.
func (c *Callout) Run(ctx context.Context) error {
	public, err := c.user.PublicKey()
	if err != nil {
		return fmt.Errorf("callout: %w", err)
	}
	opts := append([]nats.Option{nats.Name(calloutName), nats.MaxReconnects(-1), nats.Nkey(public, c.user.Sign)}, c.cfg.Options...)
	nc, err := nats.Connect(c.cfg.URL, opts...)
	if err != nil {
		return fmt.Errorf("callout: connecting to %s: %w", c.cfg.URL, err)
	}
	defer nc.Close()
	if _, err := nc.QueueSubscribe(calloutSubject, calloutQueue, func(m *nats.Msg) { c.handle(m) }); err != nil {
		return fmt.Errorf("callout: subscribing: %w", err)
	}
	if err := nc.FlushTimeout(doorTimeout); err != nil {
		return fmt.Errorf("callout: subscribing: %w", err)
	}

	group, gctx := errgroup.WithContext(ctx)
	door := NewDoor(c.auth, func(opts ...nats.Option) (*nats.Conn, error) {
		return nats.Connect(c.cfg.URL, append(opts, c.cfg.Options...)...)
	})
	group.Go(func() error { return door.Run(gctx) })
	select {
	case <-door.Ready():
		close(c.ready)
	case <-gctx.Done():
	}
	return group.Wait()
}

func (c *Callout) handle(m *nats.Msg) {
	answer, err := c.answer(m)
	if err != nil {
		c.cfg.Log.Warn("authentication request not answered", "error", err)
		return // the server refuses the connection when its time is up
	}
	_ = m.Respond(answer) // likewise
}

func (c *Callout) answer(m *nats.Msg) ([]byte, error) {
	data, server := m.Data, m.Header.Get(serverKey)
	if c.xkey != nil {
		if server == "" {
			return nil, errors.New("callout: request is not encrypted")
		}
		var err error
		if data, err = c.xkey.Open(data, server); err != nil {
			return nil, fmt.Errorf("callout: opening a request: %w", err)
		}
	}
	req, err := jwt.DecodeAuthorizationRequestClaims(string(data))
	if err != nil {
		return nil, fmt.Errorf("callout: reading a request: %w", err)
	}
	if !nkeys.IsValidPublicServerKey(req.Issuer) || req.Server.ID != req.Issuer {
		return nil, errors.New("callout: request is not signed by the server it names")
	}

	resp := jwt.NewAuthorizationResponseClaims(req.UserNkey)
	resp.Audience = req.Server.ID
	grant, err := c.auth.Authenticate(req.ConnectOptions.Username, req.ConnectOptions.Password)
	if err != nil {
		c.cfg.Log.Warn("connection refused", "user", req.ConnectOptions.Username, "host", req.ClientInformation.Host)
		resp.Error = ErrRefused.Error()
	} else if resp.Jwt, err = c.userJWT(req.UserNkey, grant); err != nil {
		return nil, err
	}
	token, err := resp.Encode(c.issuer)
	if err != nil {
		return nil, fmt.Errorf("callout: signing an answer: %w", err)
	}
	if c.xkey == nil {
		return []byte(token), nil
	}
	sealed, err := c.xkey.Seal([]byte(token), server)
	if err != nil {
		return nil, fmt.Errorf("callout: sealing an answer: %w", err)
	}
	return sealed, nil
}

func (c *Callout) userJWT(key string, g Grant) (string, error) {
	claims := jwt.NewUserClaims(key)
	claims.Name = g.Identity.Name
	claims.Audience = g.Account
	claims.Permissions.Pub.Allow.Add(g.Permissions.Publish...)
	claims.Permissions.Sub.Allow.Add(g.Permissions.Subscribe...)
	vr := jwt.CreateValidationResults()
	claims.Validate(vr)
	if errs := vr.Errors(); len(errs) > 0 {
		return "", fmt.Errorf("callout: permissions of %s: %w", strings.Join([]string{g.Identity.Name, g.Account}, " in "), errs[0])
	}
	token, err := claims.Encode(c.issuer)
	if err != nil {
		return "", fmt.Errorf("callout: signing for %s: %w", g.Identity.Name, err)
	}
	return token, nil
}
