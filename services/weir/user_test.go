package main

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/weirhq/weir/test/audittest"
)

// TestUser makes an org and an owner from nothing, who then signs in at the console.
func TestUser(t *testing.T) {
	w := startWhole(t, "")
	user := func(args ...string) (string, string, int) {
		var out, fault strings.Builder
		code := run(append([]string{"user", "--url", w.url, "--admin-key", testAdmin}, args...), &out, &fault)
		return out.String(), fault.String(), code
	}
	out, fault, code := user("ann@new.example", "--org", "new")
	if code != 0 {
		t.Fatal(fault)
	}
	m := regexp.MustCompile(`^console:  (\S+)/console\nemail:    ann@new.example\npassword: (\S{20})\n$`).FindStringSubmatch(out)
	if m == nil || m[1] != w.url {
		t.Fatalf("it prints %q", out)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.PostForm(w.url+"/console/sign-in", url.Values{"email": {"ann@new.example"}, "password": {m[2]}})
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusSeeOther || !strings.HasPrefix(resp.Header.Get("Set-Cookie"), "weir_session=") {
		t.Errorf("signing in gives %d %v", resp.StatusCode, resp.Header)
	}
	t.Setenv("WEIR_USER_PASSWORD", "given by hand")
	if out, fault, code = user("bob@new.example", "--org", "new", "--role", "viewer"); code != 0 || strings.Contains(out, "password") {
		t.Errorf("%d %q %q", code, out, fault)
	}
	for part, args := range map[string][]string{
		"there is a user with this email": {"ann@new.example", "--org", "acme"},
		"must be an email address":        {"ann", "--org", "new"},
		"must be one of":                  {"eve@new.example", "--org", "new", "--role", "king"},
	} {
		if _, fault, code = user(args...); code == 0 || !strings.Contains(fault, part) {
			t.Errorf("%v: %d %q, want %q", args, code, fault, part)
		}
	}
	if _, fault, code = user("eve@new.example", "--org", "new", "--admin-key", "wrong"); code == 0 || !strings.Contains(fault, "an admin key is needed") {
		t.Errorf("a wrong admin key: %d %q", code, fault)
	}
	// What answers, and does not manage, says so in the same words whichever command asks.
	elsewhere := httptest.NewServer(http.NotFoundHandler())
	defer elsewhere.Close()
	for _, args := range [][]string{{"user", "eve@new.example", "--org", "new", "--admin-key", testAdmin}, {"authority", "status", "--key", testAdmin}} {
		var out, fault strings.Builder
		if code := run(append(args, "--url", elsewhere.URL), &out, &fault); code == 0 || !strings.Contains(fault.String(), elsewhere.URL+" answered 404 Not Found: it does not manage") {
			t.Errorf("%v: %d %q", args, code, fault.String())
		}
	}
}

// TestUsageOnThePage asserts that the page has what the database has.
func TestUsageOnThePage(t *testing.T) {
	url, _ := audittest.Database(t)
	w := startWhole(t, url)
	owner := w.person("acme", "owner")
	w.chat("acme", 200)
	var page string
	w.eventually("the page shows what was used", func() bool {
		_, _, page = w.do("GET", "/console/usage", "", owner)
		return strings.Contains(page, "In all") && strings.Contains(page, "Counted up to") // how far is known a moment later
	})
	for _, want := range []string{`<td data-label="Model">m</td>`, "a key", "Counted up to", "format=csv"} {
		if !strings.Contains(page, want) {
			t.Errorf("it does not say %s: %s", want, page)
		}
	}
	if _, _, other := w.do("GET", "/console/usage", "", w.person("beta", "viewer")); !strings.Contains(other, "Nothing was used in this time") {
		t.Errorf("another org sees it: %s", other)
	}
}
