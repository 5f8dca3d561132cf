package console

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"github.com/weirhq/weir/test/browsertest"
)

// tabTo presses Tab until an element has the focus, and asserts that the focus can be seen all the way.
func tabTo(t *testing.T, tab *browsertest.Tab, css string) {
	t.Helper()
	for range 120 {
		tab.Keys(kb.Tab)
		if !browsertest.Eval[bool](tab, `document.activeElement === document.body || getComputedStyle(document.activeElement).outlineStyle !== "none"`) {
			t.Errorf("the focus on %s is not seen", browsertest.Eval[string](tab, `document.activeElement.outerHTML.slice(0, 100)`))
		}
		if browsertest.Eval[bool](tab, fmt.Sprintf(`document.activeElement.matches(%q)`, css)) {
			return
		}
	}
	t.Fatalf("%s is not reached by keys", css)
}

// TestByKeysAlone signs in, changes a limit and signs out without a mouse.
func TestByKeysAlone(t *testing.T) {
	t.Parallel()
	d := running(t)
	tab := browsertest.New(t, browsertest.Look{})
	tab.Go(d.url + "/console/limits")
	tab.Sees("Sign in to see this page")
	tab.Stay()
	tabTo(t, tab, "[name=email]")
	tab.Keys("admin@acme.example")
	tabTo(t, tab, "[name=password]")
	tab.Keys(password + kb.Enter)
	tab.Arrived()
	tab.Sees("Rate limits")
	tabTo(t, tab, ".skip")
	tab.Shot("skip-link")
	tab.Keys(kb.Enter)
	tab.Until(`document.activeElement.id === "main"`)
	tab.Stay()
	tabTo(t, tab, `a[href*="scope=workspace"][href*="research"]`)
	tab.Keys(kb.Enter)
	tab.Arrived()
	tab.Sees("Workspace Research")
	tab.Stay()
	tabTo(t, tab, "[name=rpm]")
	tab.Keys("250")
	tabTo(t, tab, "button.main")
	tab.Keys(kb.Enter)
	tab.Arrived()
	tab.Sees("The limits are saved")
	if row := browsertest.Eval[string](tab, `document.getElementById("workspace-research").innerText`); !strings.Contains(row, "250 set") {
		t.Errorf("the row says %q", row)
	}
	tab.Shot("limit-saved")
	tab.Stay()
	tabTo(t, tab, `form[action="/console/sign-out"] button`)
	tab.Keys(kb.Enter)
	tab.Arrived()
	tab.Sees("You are signed out")
	calm(t, tab, "by keys")
}

// TestWhatIsWrongStandsBesideIt types what the API refuses.
func TestWhatIsWrongStandsBesideIt(t *testing.T) {
	t.Parallel()
	d := running(t)
	for name, look := range map[string]browsertest.Look{"with": {}, "without": {NoScript: true}} {
		tab := d.signedIn(t, look, "owner@acme.example")
		tab.Go(d.url + "/console/limits/edit?scope=key&subject=app")
		tab.Fill("[name=rpm]", "0")
		tab.Fill("[name=tpm]", "many "+evil)
		tab.Leave("form button.main")
		tab.Sees("see what is marked below")
		for field, rule := range map[string]string{"rpm": "must be a whole number from 1 to 1000000", "tpm": "must be a whole number from 1 to 1000000000"} {
			beside := browsertest.Eval[string](tab, fmt.Sprintf(`(f => f.getAttribute("aria-invalid") + document.getElementById(f.getAttribute("aria-describedby")).innerText)(document.querySelector("[name=%s]"))`, field))
			if !strings.HasPrefix(beside, "true") || !strings.Contains(strings.ToLower(beside), rule) {
				t.Errorf("%s scripts: beside %s stands %q", name, field, beside)
			}
		}
		if kept := browsertest.Eval[string](tab, `document.querySelector("[name=tpm]").value`); kept != "many "+evil {
			t.Errorf("%s scripts: what was typed became %q", name, kept)
		}
		calm(t, tab, "a wrong limit "+name+" scripts")
		if name == "with" {
			tab.Shot("limit-wrong")
		}
	}
}

func TestPoolsAreMadeAndAssigned(t *testing.T) {
	t.Parallel()
	d := running(t)
	tab := d.signedIn(t, browsertest.Look{}, "owner@acme.example")
	tab.Go(d.url + "/console/pools/new")
	for name, value := range map[string]string{"rpm": "500", "tpm": "1 000 000", "concurrency": "20", "headroom_percent": "0"} {
		tab.Fill("[name="+name+"]", value)
	}
	tab.Leave("form.form button.main")
	tab.Sees("Must be a whole number from 1 to 100.")
	tab.Fill("[name=headroom_percent]", "90")
	tab.Leave("form.form button.main")
	tab.Sees("The pool is made")
	tab.Sees("450 requests and 900\u202f000 tokens a minute, 18 at once")
	tab.Leave(`form[action$="/bind"] button`)
	tab.Sees("The connection is assigned")
	tab.Sees("this one")
	tab.Shot("pool")
	tab.Fill("[name=rpm]", "1000")
	tab.Leave("form.form button.main")
	tab.Sees("The pool is saved")
	tab.Sees("900 requests")
	tab.Go(d.url + "/console/limits")
	tab.Shot("limits-with-pool")
	tab.Go(d.url + "/console/pools/new") // and in one step
	for name, value := range map[string]string{"provider": "anthropic", "rpm": "5", "tpm": "5000", "concurrency": "2"} {
		tab.Fill("[name="+name+"]", value)
	}
	browsertest.Eval[string](tab, `(s => s.value = [...s.options].find(o => o.text.includes("Claude")).value)(document.querySelector("[name=connection_id]"))`)
	tab.Leave("form.form button.main")
	tab.Sees("The pool is made")
	tab.Sees("this one")
	calm(t, tab, "pools")
}

// TestViewersSee asserts that a viewer is offered nothing to change, and can change nothing either.
func TestViewersSee(t *testing.T) {
	t.Parallel()
	d := running(t)
	tab := d.signedIn(t, browsertest.Look{}, "viewer@acme.example")
	for _, path := range []string{"/console/limits", "/console/limits/edit?scope=key&subject=app", "/console/pools/new", "/console/simulate"} {
		tab.Go(d.url + path)
		tab.Until(`document.readyState === "complete"`)
		if n := browsertest.Eval[int](tab, `document.querySelectorAll('main form[method=post], main a[href*="edit"], main a[href*="/pools/new"], nav a[href*="simulate"]').length`); n != 0 {
			t.Errorf("%s offers a viewer %d ways to change something", path, n)
		}
		calm(t, tab, "a viewer at "+path)
	}
	tab.Shot("viewer")
	cookie := "weir_session=" + d.cookie(t, "viewer@acme.example", password)
	for path, form := range map[string]url.Values{
		"/console/limits/edit":  {"scope": {"org"}, "subject": {"org"}, "rpm": {"1"}},
		"/console/pools/new":    {"provider": {"openai"}, "rpm": {"1"}, "tpm": {"1"}, "concurrency": {"1"}},
		"/console/pools/p/bind": {"connection_id": {"c"}},
		"/console/simulate":     {"scope": {"org|org"}, "rpm": {"1"}, "scale": {"1x"}, "since": {"1h"}},
	} {
		a, err := d.send("POST", path, form.Encode(), "Cookie", cookie, "Content-Type", "application/x-www-form-urlencoded")
		if err != nil || a.status != http.StatusForbidden || !strings.Contains(a.text, "The role viewer reads") {
			t.Errorf("POST %s: %v %d %.300s", path, err, a.status, a.text)
		}
	}
	a, err := d.send("GET", "/api/admission-limits", "", "Cookie", cookie)
	if err != nil || strings.Contains(a.text, `"rpm":1,`) {
		t.Errorf("a viewer has set a limit: %v %s", err, a.text)
	}
}

// TestLive asserts that what is left changes on the page by itself, and that a session's end is told there.
func TestLive(t *testing.T) {
	t.Parallel()
	d := running(t)
	tab := browsertest.New(t, browsertest.Look{})
	tab.Go(d.url + "/console")
	enter(tab, d.email, d.password)
	tab.Sees("Headroom")
	tab.Until(`document.getElementById("live").textContent === "live"`)
	before := browsertest.Eval[string](tab, `document.querySelector('[data-meter="org|org|tpm"] .used').textContent`)
	tab.Stay()
	if a, err := d.ask(d.key, 20); err != nil || a.status != http.StatusOK {
		t.Fatalf("%v %d %s", err, a.status, a.text)
	}
	tab.Until(fmt.Sprintf(`window.here && document.querySelector('[data-meter="org|org|tpm"] .used').textContent !== %q`, before))
	tab.Until(`document.getElementById("plot-text").textContent.includes("while this page was open")`)
	tab.Shot("live")
	calm(t, tab, "live")
	out := browsertest.Eval[int](tab, `fetch("/console/sign-out", {method: "POST", redirect: "manual"}).then(r => r.status)`) // as another tab would
	tab.Until(`document.getElementById("live").textContent.includes("sign in again")`)
	tab.Leave("#live a")
	tab.Sees("Sign in to see this page")
	_ = out
}

// TestSessionsEnd asserts that a session ends with its password, and that what is then sent is not saved.
func TestSessionsEnd(t *testing.T) {
	t.Parallel()
	d := running(t)
	tab := browsertest.New(t, browsertest.Look{})
	tab.Go(d.url + "/console/limits/edit?scope=key&subject=app")
	enter(tab, "leaver@acme.example", password)
	tab.Sees("Key The application")
	a, err := d.send("GET", "/admin/orgs/acme/users", "", "Authorization", "Bearer "+d.admin)
	if err != nil {
		t.Fatal(err)
	}
	id := a.text[:strings.Index(a.text, `","email":"leaver@`)]
	id = id[strings.LastIndex(id, `"`)+1:]
	if a, err = d.send("PUT", "/admin/orgs/acme/users/"+id, `{"email":"leaver@acme.example","role":"admin","password":"another password"}`,
		"Authorization", "Bearer "+d.admin, "Content-Type", "application/json"); err != nil || a.status != http.StatusOK {
		t.Fatalf("%v %d %s", err, a.status, a.text)
	}
	tab.Fill("[name=concurrency]", "1")
	tab.Leave("form button.main")
	tab.Sees("Your session has ended, and what you sent was not saved")
	a, err = d.send("GET", "/api/admission-limits", "", "Cookie", "weir_session="+d.cookie(t, "viewer@acme.example", password))
	if err != nil || strings.Contains(a.text, `"concurrency":1,`) {
		t.Errorf("%v %s", err, a.text)
	}
	enter(tab, "leaver@acme.example", "wrong "+evil)
	tab.Sees("The email or the password is not right")
	tab.Shot("sign-in-wrong")
	calm(t, tab, "a wrong password")
}

// TestWhatPagesSayToBrowsers asserts what no page may do without.
func TestWhatPagesSayToBrowsers(t *testing.T) {
	t.Parallel()
	d := running(t)
	cookie := "weir_session=" + d.cookie(t, "viewer@acme.example", password)
	for _, path := range []string{"/console/sign-in", "/console/limits", "/console/headroom", "/console/nowhere", "/console/activity/none"} {
		a, err := d.send("GET", path, "", "Cookie", cookie)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
			"X-Content-Type-Options":  "nosniff", "X-Frame-Options": "DENY", "Cache-Control": "no-store", "Referrer-Policy": "same-origin",
		} {
			if got := a.header.Get(name); got != want {
				t.Errorf("%s: %s is %q", path, name, got)
			}
		}
	}
	elsewhere, err := d.send("POST", "/console/limits/edit", "scope=org&subject=org&rpm=1", "Cookie", "weir_session="+d.cookie(t, "owner@acme.example", password),
		"Content-Type", "application/x-www-form-urlencoded", "Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example")
	if err != nil || elsewhere.status != http.StatusForbidden {
		t.Errorf("a form of another site: %v %d", err, elsewhere.status)
	}
	for next, want := range map[string]string{"/console/limits?scope=key": "/console/limits?scope=key", "//evil.example/console/": "/console/", "https://evil.example/console/": "/console/",
		"/console/../evil": "/console/", "/console/\\evil.example": "/console/", "/v1/models": "/console/"} {
		a := d.from2(t, url.Values{"email": {"viewer@acme.example"}, "password": {password}, "next": {next}})
		if a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != want {
			t.Errorf("signing in for %q leads to %d %q", next, a.StatusCode, a.Header.Get("Location"))
		}
	}
}

// TestTriesAreThrottled guesses a password.
func TestTriesAreThrottled(t *testing.T) {
	t.Parallel()
	d := running(t)
	for try := range 11 {
		a := d.from2(t, url.Values{"email": {"nobody@acme.example"}, "password": {"guess"}})
		if want := map[bool]int{false: http.StatusUnauthorized, true: http.StatusTooManyRequests}[try == 10]; a.StatusCode != want {
			t.Errorf("try %d: %d", try, a.StatusCode)
		}
	}
}

// from2 signs in from another address than the other tests, whose tries it must not use up.
func (d *demo) from2(t *testing.T, form url.Values) *http.Response {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, addr)
	}, DisableKeepAlives: true}
	client := &http.Client{Transport: transport, Timeout: startWithin, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.PostForm(d.url+"/console/sign-in", form)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp
}

// TestSimulate asks what a limit of one request a minute would have done.
func TestSimulate(t *testing.T) {
	t.Parallel()
	d := running(t)
	for name, look := range map[string]browsertest.Look{"with": {}, "without": {NoScript: true}} {
		tab := d.signedIn(t, look, "owner@acme.example")
		tab.Go(d.url + "/console/simulate")
		tab.Fill("[name=scope]", "key|app")
		tab.Fill("[name=rpm]", "1")
		tab.Click("form.form button.main")
		tab.Sees("2 more refused, 0 more admitted")
		tab.Sees("key rpm")
		tab.Sees("What this assumes")
		if name == "with" {
			tab.Shot("simulated")
		}
		tab.Fill("[name=rpm]", "-5")
		tab.Click("form.form button.main")
		tab.Sees("-5")
		tab.Until(`!!document.querySelector(".problem")`)
		calm(t, tab, "simulate "+name+" scripts")
	}
}

// TestActivity finds requests by what they were, and follows one to its story.
func TestActivity(t *testing.T) {
	t.Parallel()
	d := running(t)
	tab := d.signedIn(t, browsertest.Look{}, "viewer@acme.example")
	tab.Go(d.url + "/console/activity")
	tab.Until(`document.querySelectorAll("#list tbody tr").length >= 7`)
	tab.Shot("activity")
	tab.Fill("[name=outcome]", "refused")
	tab.Click("form.filters button") // swaps the list alone
	tab.Until(`document.querySelectorAll("#list tbody tr").length > 0 && [...document.querySelectorAll("#list tbody tr")].every(r => r.innerText.includes("requests a minute of the key"))`)
	tab.Until(`location.search.includes("outcome=refused")`)
	tab.Leave("#list tbody a")
	tab.Until(`/Refused by Key.*: requests a minute: 3 of 3 used, 1 more asked for./i.test(document.body.innerText)`) // the log, or the gateway before it
	tab.Go(d.url + "/console/activity?key=nobody")
	tab.Sees("No request matches")
	tab.Go(d.url + "/console/activity?from=2026-01-02T03:04&to=2026-01-01T00:00")
	tab.Until(`!!document.querySelector(".problem")`)
	tab.Go(d.url + "/console/activity")
	tab.Fill("[name=id]", d.served)
	tab.Leave(`form:has([name=id]) button`)
	tab.Sees("Completed")
	calm(t, tab, "activity")
}
