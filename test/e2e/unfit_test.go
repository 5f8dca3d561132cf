package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/test/e2e/stack"
)

// TestKeysThatDoNotGoWithThePolicies makes a key through the API, and starts the process again with a policy that such a key may not stand
// beside: it says so, as it would have refused to take the policy in while it ran.
func TestKeysThatDoNotGoWithThePolicies(t *testing.T) {
	t.Parallel() // it mostly waits
	_, upstream := serveUpstream(t, "tokens=3")
	data := t.TempDir()
	w := &world{t: t}
	serve := func(policies map[string]string) *process {
		settings := worldSettings
		settings.Policies = policies
		p := start(t, nil, "serve", "-c", settings.Write(t, t.TempDir(), "listen: 127.0.0.1:0\ndata_dir: "+filepath.Join(data, "data")+"\n", map[string]string{"upstream": upstream}))
		w.manager = p.address(t)
		stack.Healthy(t, w.manager)
		return p
	}
	ready := func() string { return string(stack.Do(t, stack.Request{URL: w.manager + "/ready"}).Body) }
	const words = "keys made through the API do not go with the policy files"

	p := serve(nil)
	w.admin("POST", "/admin/orgs", `{"id":"acme","billing":"postpaid"}`, http.StatusCreated)
	w.admin("PUT", "/admin/api-keys/small", fmt.Sprintf(`{"version":"v000001","key_hash":%q,"owner":"acme","name":"small","enabled":true,"quota":{"input_tokens_per_minute":100}}`,
		hashed(stack.KeyText("small"))), 200)
	if text := ready(); strings.Contains(text, words) {
		t.Errorf("it goes with no policy: %s", text)
	}
	p.kill()
	p = serve(map[string]string{"m": "models: [m]\nmode: serverless\nmax_input_tokens: 101\n"})
	stack.Eventually(t, "/ready says that the key does not go with the policy", func() bool { return strings.Contains(ready(), words) })
	if text := ready(); !strings.Contains(text, "small") || !strings.Contains(text, "101") {
		t.Errorf("/ready names neither key nor value: %s", text)
	}
	if !strings.Contains(p.said(), words) {
		t.Errorf("nothing is logged: %s", p.said())
	}
}
