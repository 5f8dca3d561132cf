// Package accesstest tries on a running broker what each identity may and may not do. The embedded broker and the example
// configuration of a cluster are held to the same trials.
package accesstest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events/journal/access"
)

// Patience is how long a trial waits for what must happen; nothing is concluded from time passing.
const Patience = time.Minute

// Peer is one identity's connection, and what the broker refused it.
type Peer struct {
	Name string
	*nats.Conn
	JS jetstream.JetStream

	t       *testing.T
	refused chan string
}

// Cluster is a broker that others join over TCP.
type Cluster struct {
	URL     string
	Admin   *nats.Conn               // may do everything
	Secrets map[string]access.Secret // by configured name
	Roles   map[string][]access.Role // likewise
}

// Identities are those that Run needs: the configured names and their roles.
func Identities() map[string][]access.Role {
	return map[string][]access.Role{
		"gw-one":    {access.Gateway},
		"gw-two":    {access.Gateway},
		"projector": {access.Projector},
		"auditor":   {access.Auditor},
		"biller":    {access.Biller},
		"operator":  {access.Operator},
		"manager":   {access.Gateway, access.Operator},
		"monitor":   {access.Monitor},
		"invoices":  {access.Consumer},
		"ledgers":   {access.Consumer},
	}
}

// Credentials makes the broker's credentials for Identities, and the secrets.
func Credentials(t *testing.T) (access.Credentials, map[string]access.Secret) {
	t.Helper()
	var all access.Credentials
	secrets := map[string]access.Secret{}
	for name, roles := range Identities() {
		c, s, err := access.NewCredentials(name, roles...)
		if err != nil {
			t.Fatal(err)
		}
		all.Identities = append(all.Identities, c)
		secrets[name] = s
	}
	return all, secrets
}

// Join connects under a new full name of the configured name.
func (c Cluster) Join(t *testing.T, configured string) *Peer {
	t.Helper()
	name, err := access.NewName(configured)
	if err != nil {
		t.Fatal(err)
	}
	p := &Peer{Name: name, t: t, refused: make(chan string, 1024)}
	opts := append(c.Secrets[configured].Options(access.Identity{Name: name, Roles: c.Roles[configured]}),
		nats.Timeout(Patience),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) {
				p.refused <- err.Error()
			}
		}))
	if p.Conn, err = Connect(c.URL, opts...); err != nil {
		t.Fatalf("joining as %s: %v", name, err)
	}
	t.Cleanup(p.Close)
	if p.JS, err = jetstream.New(p.Conn); err != nil {
		t.Fatal(err)
	}
	return p
}

// MayNotPublish publishes and waits until the broker has said no to it.
func (p *Peer) MayNotPublish(subjects ...string) {
	p.t.Helper()
	for _, s := range subjects {
		if err := p.PublishRequest(s, p.NewInbox(), []byte("{}")); err != nil {
			p.t.Fatal(err)
		}
		p.awaitRefusal("Publish", s)
	}
}

// MayNotSubscribe subscribes and waits until the broker has said no to it.
func (p *Peer) MayNotSubscribe(subjects ...string) {
	p.t.Helper()
	for _, s := range subjects {
		sub, err := p.SubscribeSync(s)
		if err != nil {
			p.t.Fatal(err)
		}
		p.awaitRefusal("Subscription", s)
		_ = sub.Unsubscribe() // the client may have closed it
	}
}

func (p *Peer) awaitRefusal(what, subject string) {
	p.t.Helper()
	if err := p.FlushTimeout(Patience); err != nil {
		p.t.Fatal(err)
	}
	select {
	case text := <-p.refused:
		if !strings.Contains(strings.ToLower(text), strings.ToLower(what)) || !strings.Contains(text, `"`+subject+`"`) {
			p.t.Errorf("%s: refused %q, while waiting for a refusal of %s to %q", p.Name, text, what, subject)
		}
	case <-time.After(Patience):
		p.t.Errorf("%s: %s to %q was not refused", p.Name, what, subject)
	}
}

// Unrefused fails if the broker said no to anything since.
func (p *Peer) Unrefused() {
	p.t.Helper()
	if err := p.FlushTimeout(Patience); err != nil {
		p.t.Fatal(err)
	}
	select {
	case text := <-p.refused:
		p.t.Errorf("%s: refused: %s", p.Name, text)
	default:
	}
}

// Store publishes to a stream and returns the sequence that the broker acknowledged.
func (p *Peer) Store(subject string, data string) uint64 {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	ack, err := p.JS.Publish(ctx, subject, []byte(data))
	if err != nil {
		p.t.Fatalf("%s: publishing to %q: %v", p.Name, subject, err)
	}
	return ack.Sequence
}

// Put writes a key and returns the revision.
func (p *Peer) Put(bucket, key, value string) uint64 {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	kv, err := p.JS.KeyValue(ctx, bucket)
	if err != nil {
		p.t.Fatalf("%s: opening bucket %s: %v", p.Name, bucket, err)
	}
	rev, err := kv.Put(ctx, key, []byte(value))
	if err != nil {
		p.t.Fatalf("%s: writing %s of %s: %v", p.Name, key, bucket, err)
	}
	return rev
}

// Get reads a key.
func (p *Peer) Get(bucket, key string) (string, error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	kv, err := p.JS.KeyValue(ctx, bucket)
	if err != nil {
		p.t.Fatalf("%s: opening bucket %s: %v", p.Name, bucket, err)
	}
	e, err := kv.Get(ctx, key)
	if err != nil {
		return "", err
	}
	return string(e.Value()), nil
}
