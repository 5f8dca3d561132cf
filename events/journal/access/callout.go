package access

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

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
	Keys        CalloutKeys   // by which the servers know who answers
	Credentials Credentials   // who may join
	Options     []nats.Option // more for every connection, as TLS
	Log         *slog.Logger  // refusals are warnings; Defaults to none
}

// CalloutKeys are the seeds of a cluster's nkeys, the same for all who answer for it. YAML or JSON, mode 0600.
type CalloutKeys struct {
	User   string `yaml:"user" json:"user"`     // SU…; the servers list its public key under auth_users
	Issuer string `yaml:"issuer" json:"issuer"` // SA…; the servers name its public key as issuer
	XKey   string `yaml:"xkey" json:"xkey"`     // SX…; the servers name its public key as xkey. Empty: requests are not encrypted
}

// NewCalloutKeys makes the nkeys of a cluster.
func NewCalloutKeys() (CalloutKeys, error) {
	var k CalloutKeys
	for _, one := range []struct {
		into *string
		kind nkeys.PrefixByte
	}{{&k.User, nkeys.PrefixByteUser}, {&k.Issuer, nkeys.PrefixByteAccount}, {&k.XKey, nkeys.PrefixByteCurve}} {
		kp, err := nkeys.CreatePair(one.kind)
		if err != nil {
			return CalloutKeys{}, fmt.Errorf("making a cluster's keys: %w", err)
		}
		seed, err := kp.Seed()
		if err != nil {
			return CalloutKeys{}, fmt.Errorf("making a cluster's keys: %w", err)
		}
		*one.into = string(seed)
	}
	return k, nil
}

// ReadCalloutKeys reads a cluster's keys. A file that others than its owner may read is refused.
func ReadCalloutKeys(path string) (CalloutKeys, error) {
	var k CalloutKeys
	if err := readPrivate(path, &k); err != nil {
		return CalloutKeys{}, fmt.Errorf("reading a cluster's keys: %w", err)
	}
	if _, err := k.pairs(); err != nil {
		return CalloutKeys{}, fmt.Errorf("reading a cluster's keys %s: %w", path, err)
	}
	return k, nil
}

// WriteCalloutKeys writes a cluster's keys for their owner alone. An existing file is refused.
func WriteCalloutKeys(path string, k CalloutKeys) error {
	if err := writePrivate(path, k); err != nil {
		return fmt.Errorf("writing a cluster's keys: %w", err)
	}
	return nil
}

// Public are the public keys, for the servers' configuration.
func (k CalloutKeys) Public() (user, issuer, xkey string, err error) {
	pairs, err := k.pairs()
	if err != nil {
		return "", "", "", err
	}
	if user, err = pairs.user.PublicKey(); err != nil {
		return "", "", "", err
	}
	if issuer, err = pairs.issuer.PublicKey(); err != nil {
		return "", "", "", err
	}
	if pairs.xkey != nil {
		xkey, err = pairs.xkey.PublicKey()
	}
	return user, issuer, xkey, err
}

type keyPairs struct{ user, issuer, xkey nkeys.KeyPair }

func (k CalloutKeys) pairs() (p keyPairs, err error) {
	if p.user, err = seed("user", k.User, nkeys.PrefixByteUser); err != nil {
		return p, err
	}
	if p.issuer, err = seed("issuer", k.Issuer, nkeys.PrefixByteAccount); err != nil {
		return p, err
	}
	if k.XKey != "" {
		p.xkey, err = seed("xkey", k.XKey, nkeys.PrefixByteCurve)
	}
	return p, err
}

// Callout answers the authentication requests of a NATS cluster and keeps the door open there. Any number may run; they share
// the work. Nobody but these can connect until one runs.
type Callout struct {
	cfg   CalloutConfig
	auth  *Authenticator
	keys  keyPairs
	ready chan struct{}
	once  sync.Once // ready is closed
}

// NewCallout reads the keys. The error names the one that is wrong, never its value.
func NewCallout(cfg CalloutConfig) (*Callout, error) {
	c := &Callout{cfg: cfg, ready: make(chan struct{})}
	if c.cfg.Log == nil {
		c.cfg.Log = slog.New(slog.DiscardHandler)
	}
	var err error
	if c.keys, err = cfg.Keys.pairs(); err != nil {
		return nil, fmt.Errorf("callout: %w", err)
	}
	// All who answer for the cluster hold the issuer's seed, so any of them can vouch for another's own connections.
	m := hmac.New(sha256.New, []byte(cfg.Keys.Issuer))
	m.Write([]byte("weir broker key"))
	if c.auth, err = NewAuthenticator(cfg.Credentials, m.Sum(nil)); err != nil {
		return nil, fmt.Errorf("callout: %w", err)
	}
	return c, nil
}

func seed(what, text string, want nkeys.PrefixByte) (nkeys.KeyPair, error) {
	kp, err := nkeys.FromSeed([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("%s: is not an nkey seed", what)
	}
	if got, _, err := nkeys.DecodeSeed([]byte(text)); err != nil || got != want {
		return nil, fmt.Errorf("%s: is the seed of another kind of nkey", what)
	}
	return kp, nil
}

// Authenticator is the one by which the callout answers; Replace changes who may join.
func (c *Callout) Authenticator() *Authenticator { return c.auth }

// Ready is closed when identities can connect.
func (c *Callout) Ready() <-chan struct{} { return c.ready }

// Run answers until ctx ends. After an error it may be run again.
func (c *Callout) Run(ctx context.Context) error {
	public, err := c.keys.user.PublicKey()
	if err != nil {
		return fmt.Errorf("callout: %w", err)
	}
	opts := append([]nats.Option{nats.Name(calloutName), nats.MaxReconnects(-1), nats.Nkey(public, c.keys.user.Sign)}, c.cfg.Options...)
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
		c.once.Do(func() { close(c.ready) })
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
	if c.keys.xkey != nil {
		if server == "" {
			return nil, errors.New("callout: request is not encrypted")
		}
		var err error
		if data, err = c.keys.xkey.Open(data, server); err != nil {
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
	token, err := resp.Encode(c.keys.issuer)
	if err != nil {
		return nil, fmt.Errorf("callout: signing an answer: %w", err)
	}
	if c.keys.xkey == nil {
		return []byte(token), nil
	}
	sealed, err := c.keys.xkey.Seal([]byte(token), server)
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
	token, err := claims.Encode(c.keys.issuer)
	if err != nil {
		return "", fmt.Errorf("callout: signing for %s: %w", g.Identity.Name, err)
	}
	return token, nil
}
