package gateway

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"sort"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events"
	core "github.com/weirhq/weir/gateway"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/gateway/authority/store"
	"github.com/weirhq/weir/gateway/console"
	"github.com/weirhq/weir/gateway/manage"
)

// Dynamic is where authority that is made through the API is kept.
type Dynamic interface {
	store.Backend
	store.Sessions
}

// openDynamic lays dynamic authority over that of the files, and takes in the management API where this process may write.
func (g *Gateway) openDynamic() error {
	if g.c.Dynamic == nil {
		return nil
	}
	if err := g.readKeys(); err != nil {
		return err
	}
	g.mirror = store.NewMirror(store.MirrorConfig{Backend: g.c.Dynamic, Static: g.authority.Current(), Credential: g.credential, Changed: g.moved, Now: time.Now, Logger: g.c.Logger})
	g.behind = &behind{g: g, met: map[events.Org]int64{}}
	g.authority.Accept(g.fitsKeys)
	if !g.c.Manages {
		return nil
	}
	changes := store.New(store.Config{Backend: g.c.Dynamic, Mirror: g.mirror, Log: g.c.Log, Source: string(g.c.Name), NewID: uuid.NewString})
	var meters manage.Meters
	if g.c.View != nil {
		meters = g.c.View
	}
	api := manage.Config{Authority: changes, Sessions: g.c.Dynamic, Log: g.c.Log, Source: string(g.c.Name),
		AdminKeys: g.c.Config.AdminKeys, Proxies: g.c.Config.TrustedProxies, Meters: meters, Now: time.Now, Random: rand.Reader, Logger: g.c.Logger}
	g.seals(&api)
	g.manage = manage.New(api)
	g.console = console.New(console.Config{API: g.manage, Now: time.Now, Logger: g.c.Logger})
	return nil
}

// fitsKeys says whether files that were read again go with the keys made through the API.
func (g *Gateway) fitsKeys(s *authority.Snapshot) error {
	static := g.authority.Current().Keys
	var keys []*authority.Key
	for hash, k := range g.mirror.Current().Keys {
		if static[hash] == nil {
			keys = append(keys, k)
		}
	}
	sort.Slice(keys, func(i, j int) bool { return keys[i].ID < keys[j].ID })
	return authority.CheckKeys(s, keys)
}

// mount adds the management API and the console to what is served.
func (g *Gateway) mount() {
	if g.manage == nil {
		return
	}
	for _, prefix := range []string{"/admin/", "/api/"} {
		g.server.Handle(prefix, http.Handler(g.manage))
	}
	g.server.Handle("/console", g.console)
	g.server.Handle("/console/", g.console)
}

// Door is where people and operators come in under /api; nil where this process does not manage.
func (g *Gateway) Door() *manage.Handler { return g.manage }

// runDynamic follows dynamic authority until ctx ends.
func (g *Gateway) runDynamic(ctx context.Context, running *errgroup.Group) {
	if g.mirror != nil {
		running.Go(func() error { return g.mirror.Run(ctx) })
		running.Go(func() error { g.behind.run(ctx); return nil })
	}
}

// current is the authority to decide on.
func (g *Gateway) current() *authority.Snapshot {
	if g.mirror != nil {
		return g.mirror.Current()
	}
	return g.authority.Current()
}

// fresh is the authority in which an org has at least a version, or after a bounded wait the current one.
func (g *Gateway) fresh(ctx context.Context, org events.Org, atLeast int64) *authority.Snapshot {
	if g.mirror != nil && g.standing() == core.Verified { // nobody waits for a store that does not answer
		return g.mirror.Fresh(ctx, org, atLeast)
	}
	return g.current()
}

// standing is how well the authority made through the API is known.
func (g *Gateway) standing() core.Standing {
	switch age := time.Since(g.mirror.Verified()); {
	case age <= store.VerifiedFor:
		return core.Verified
	case age <= g.c.Config.Dynamic.SnapshotMaxAge:
		return core.Bounded
	}
	return core.Expired
}

// moved takes new upstreams into use.
func (g *Gateway) moved(s *authority.Snapshot) {
	if err := g.set.Update(upstreams(s)); err != nil {
		g.c.Logger.Error("the upstreams are not valid: the last valid ones stay in use", "error", err)
	}
}

// unread says why dynamic authority cannot be used yet; empty: it can.
func (g *Gateway) unread() string {
	if g.mirror != nil && (!g.mirror.Ready() || g.mirror.Verified().IsZero()) {
		return fmt.Sprintf("the authority of %s is being read", g.c.Name)
	}
	return ""
}
