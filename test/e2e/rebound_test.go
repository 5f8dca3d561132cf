package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority/store"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/services/gateway"
	"github.com/weirhq/weir/test/e2e/stack"
)

// late is a store whose changes come late.
type late struct {
	*store.KV
	hold sync.RWMutex // locked while changes are kept back

	mu   sync.Mutex
	told store.Mark // the newest change that was passed on
}

func (l *late) Follow(ctx context.Context, to func(store.Update)) error {
	return l.KV.Follow(ctx, func(u store.Update) {
		l.hold.RLock()
		defer l.hold.RUnlock()
		to(u)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.told = u.Mark
	})
}

// Head is that of what was passed on, as of a server that lags behind.
func (l *late) Head(ctx context.Context) (store.Mark, error) {
	if l.hold.TryRLock() {
		defer l.hold.RUnlock()
		return l.KV.Head(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told, nil
}

const rebound = `orgs:
  acme: {limits: {rpm: 100000, concurrency: 100}}
models:
  - {id: m, max_output_tokens: 100, price: {input: "1", output: "4"}, providers: [{connection: house}]}
connections:
  - {id: house, provider: openai, base_url: "{{upstream}}", pool: house}
pools:
  - {id: house, provider: openai, rpm: 10000, tpm: 10000000, concurrency: 100}
`

// TestReboundAccount: an org's own account is bound to another pool while a gateway still holds the authority of before. What that gateway
// reserves on it is refused and takes nothing of the old pool; what it reserves next is of the new one, and that is where the request goes.
func TestReboundAccount(t *testing.T) {
	const admin = "sk-admin-of-the-test"
	var behind *late
	s := stack.New(t, stack.Config{Gateways: 2, Env: map[string]string{"WEIR_ADMIN_KEYS": admin},
		Settings: stack.Settings{Mode: "dynamic", Weir: rebound, Keys: []stack.Key{{Name: "acme"}}},
		Dynamic: func(i int, bucket *store.KV) gateway.Dynamic {
			if i == 0 {
				return bucket
			}
			behind = &late{KV: bucket}
			return behind
		}})
	put := func(path, body string) {
		t.Helper()
		a := stack.Do(t, stack.Request{Method: http.MethodPut, URL: s.URL() + path, Body: body, Header: map[string]string{"Authorization": "Bearer " + admin}})
		if a.Status >= 300 {
			t.Fatalf("%s: status %d: %s", path, a.Status, a.Body)
		}
	}
	pools := []string{"before", "after"}
	for _, id := range pools {
		put("/admin/pools/"+id, `{"org":"acme","provider":"openai","rpm":10000,"tpm":10000000,"concurrency":100}`)
	}
	bind := func(pool string) {
		t.Helper()
		put("/admin/connections/own", `{"org":"acme","provider":"openai","base_url":"`+s.Upstream("other")+`","pool":"`+pool+`"}`)
	}
	ask := func() *stack.Answer {
		t.Helper()
		return stack.Do(t, stack.Request{URL: s.Gateways[1].URL + "/v1/chat/completions", Key: "acme", Body: chat("m", `"max_tokens":5,`)})
	}
	bind(pools[0])
	stack.Eventually(t, "the second gateway knows of the account", func() bool {
		a := ask()
		return a.Status == http.StatusOK && s.Trail(t, a.ID()).Reserves[0].Deployment == "own/m"
	})

	// A gateway waits a second for the change whose fence it met, which a busy machine may not keep: then the client is told to try again.
	for round := 1; ; round++ {
		old, new := pools[(round-1)%2], pools[round%2]
		reserved := reserves(t, s, "acme")
		behind.hold.Lock()
		pass := sync.OnceFunc(behind.hold.Unlock)
		bind(new)
		go func() {
			select {
			case <-reserved: // or the reserve would not be stale
			case <-t.Context().Done():
			}
			pass()
		}()
		a := ask()
		pass()
		trail := s.Trail(t, a.ID())
		if len(trail.Verdicts) == 0 || trail.Verdicts[0].Admitted || trail.Verdicts[0].Refusal.Reason != events.StaleFence || poolOf(trail.Reserves[0]) != old {
			t.Fatalf("the first reserve, of the pool %s, got %+v", poolOf(trail.Reserves[0]), trail.Verdicts)
		}
		tookNothing(t, s, trail.Reserves[0])
		if a.Status == http.StatusServiceUnavailable && a.Error().Code == "authorization_unavailable" && round < 20 {
			stack.Eventually(t, "the second gateway has caught up", func() bool { return ask().Status == http.StatusOK })
			continue
		}
		if a.Status != http.StatusOK || len(trail.Reserves) != 2 || !trail.Verdicts[1].Admitted {
			t.Fatalf("status %d: %s: %+v", a.Status, a.Body, trail.Verdicts)
		}
		if d := trail.Reserves[1]; poolOf(d) != new || !d.BYOK || d.Deployment != "own/m" || d.Fence <= trail.Reserves[0].Fence {
			t.Errorf("the second reserve is of the pool %s, byok %v, at %s, fence %d after %d", poolOf(d), d.BYOK, d.Deployment, d.Fence, trail.Reserves[0].Fence)
		}
		if list := s.Other.Ledger().Calls(); len(list) == 0 || list[len(list)-1].RequestID != a.ID() {
			t.Error("the org's account did not get the call")
		}
		if ends := trail.Ended(); len(ends) != 1 || ends[0].Outcome != events.Completed {
			t.Errorf("it ended %+v", ends)
		}
		break
	}
	if held := s.Story(t).Gauges(); len(held) > 0 {
		t.Errorf("held: %s", strings.Join(held, ", "))
	}
}

// reserves gives a channel that is closed with the next reserve of an org that a gateway sends by itself.
func reserves(t *testing.T, s *stack.Stack, org events.Org) <-chan struct{} {
	t.Helper()
	seen := make(chan struct{})
	stop, err := s.Listen(fmt.Sprintf("acct.%s.%s.>", org, events.KindReserve), sync.OnceFunc(func() { close(seen) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return seen
}

// poolOf is the pool that a reserve claims requests a minute of.
func poolOf(d *events.Reserve) string {
	for _, c := range d.Claims {
		if scope, _, dimension := c.Meter.Split(); scope == events.ScopePool && dimension == "rpm" {
			return strings.Join(c.Meter.Parts(), " ")
		}
	}
	return ""
}

// tookNothing folds the log anew, and compares the meters of a reserve before and after it.
func tookNothing(t *testing.T, s *stack.Stack, d *events.Reserve) {
	t.Helper()
	fold := admission.New()
	used := func() map[events.Meter]int64 {
		all := map[events.Meter]int64{}
		for _, r := range fold.Meters() {
			all[r.Meter] = r.Used
		}
		return all
	}
	found := false
	for _, r := range s.Story(t).Records {
		it, _ := r.Data.(*events.Reserve)
		if it == nil || it.Request != d.Request || it.Attempt != d.Attempt {
			fold.Apply(&r)
			continue
		}
		found = true
		before := used()
		fold.Apply(&r)
		for _, c := range d.Claims {
			if now := used()[c.Meter]; now > before[c.Meter] { // less: what is a minute old has fallen out
				t.Errorf("%s went from %d to %d with a reserve that was refused", c.Meter, before[c.Meter], now)
			}
		}
		break
	}
	if !found {
		t.Errorf("the log has no reserve of %s", d.Request)
	}
}
