package upstream

import (
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/gateway/wire"
)

// An org's own accounts stand in for the house's of their label, for that org alone.
func TestAccountsOfOnesOwn(t *testing.T) {
	key := func() string { return "k" }
	account := func(id, provider, owner, pool string, fallback bool) Connection {
		return Connection{ID: id, Provider: provider, Owner: owner, Pool: pool, HouseFallback: fallback, Key: key}
	}
	models := []Model{
		{ID: "m", Providers: []Offer{{Connection: "house", Model: "gpt"}, {Connection: "second", Model: "gpt"}}},
		{ID: "other", Providers: []Offer{{Connection: "claude"}}, Fallback: &Offer{Connection: "house", Model: "gpt"}},
		{ID: "named", Providers: []Offer{{Connection: "house"}, {Connection: "bound-b", Model: "theirs"}}},
		{ID: "alone", Providers: []Offer{{Connection: "bound-b"}}},
	}
	s, err := New(Config{Models: models, Connections: []Connection{
		account("house", "openai", "", "p", false), account("second", "openai", "", "p", false), account("claude", "anthropic", "", "p", false),
		account("bound-b", "openai", "bound", "pb", false), account("bound-a", "openai", "bound", "pa", false), account("bound-0", "openai", "bound", "", false),
		account("falls-1", "openai", "falls", "pf", true),
		account("bare-1", "openai", "bare", "", false),
		account("waits-1", "openai", "waits", "", true),
		account("elsewhere", "anthropic", "claudes", "pc", false),
	}}, Options{Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ model, org, want string }{
		{"m", "", "house/gpt:p second/gpt:p"},
		{"m", "nobody", "house/gpt:p second/gpt:p"},
		{"m", "bound", "bound-a/gpt:pa* bound-b/gpt:pb*"},          // those with a pool, by name; never the house's
		{"m", "falls", "falls-1/gpt:pf* house/gpt:p second/gpt:p"}, // the house's after them, where it says so
		{"m", "bare", "bare-1/gpt:*"},                              // nothing is known of its capacity: it will be refused
		{"m", "waits", "house/gpt:p second/gpt:p"},                 // until it is bound the house's serve
		{"m", "claudes", "house/gpt:p second/gpt:p"},               // another label
		{"other", "bound", "bound-a/gpt:pa* bound-b/gpt:pb*"},      // of the fallback too (claude does not speak this format)
		{"named", "bound", "bound-a/named:pa* bound-b/theirs:pb*"}, // named by the model, with its own name for it
		{"named", "nobody", "house/named:p"},                       // another's account serves nobody else
		{"alone", "nobody", ""},
	} {
		routes, known := s.Routes(c.model, wire.Chat, c.org)
		var got []string
		for _, r := range routes {
			text := r.Deployment + ":" + r.Pool
			if r.Own {
				text += "*"
			}
			target, done, ok := r.Pick()
			if done(0, 0); !ok || target.Own != r.Own || target.Pool != r.Pool {
				t.Errorf("%s of %s: %v, target %+v", c.model, c.org, ok, target)
			}
			got = append(got, text)
		}
		if strings.Join(got, " ") != c.want || !known {
			t.Errorf("%s of %s goes to %v, want %s", c.model, c.org, got, c.want)
		}
	}
}
