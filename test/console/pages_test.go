package console

import (
	"testing"

	"github.com/weirhq/weir/test/browsertest"
)

// looks are how every page is looked at.
var looks = map[string]browsertest.Look{"desktop": {}, "dark": {Dark: true}, "phone": browsertest.Phone}

func TestEveryPage(t *testing.T) {
	d := running(t)
	for name, look := range looks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := browsertest.New(t, look)
			out.Go(d.url + "/console")
			out.Sees("Sign in")
			out.Shot("sign-in-" + name)
			calm(t, out, "sign in")
			tab := d.signedIn(t, look, "owner@acme.example")
			for _, p := range []struct{ name, path, sees string }{
				{"headroom", "/console/headroom", "The application"},
				{"limits", "/console/limits", "Rate limits"},
				{"limit", "/console/limits/edit?scope=key&subject=app", "The application"},
				{"pool-new", "/console/pools/new", "New provider pool"},
				{"activity", "/console/activity", "Activity"},
				{"served", "/console/activity/" + d.served, "What happened"},
				{"refused", "/console/activity/" + d.refused, "3 of 3 used, 1 more asked for"},
				{"usage", "/console/usage", "Usage"},
				{"simulate", "/console/simulate", "Simulate"},
				{"nothing", "/console/nowhere", "There is nothing"},
			} {
				tab.Go(d.url + p.path)
				tab.Sees(p.sees)
				if p.name == "headroom" {
					tab.Until(`document.getElementById("live").textContent === "live" && !!document.querySelector("#plot canvas")`)
				}
				tab.Shot(p.name + "-" + name)
				calm(t, tab, p.path)
			}
		})
	}
}
