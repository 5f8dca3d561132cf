package authority_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority"
)

func at(line int) authority.Pos { return authority.Pos{File: "weir.yaml", Line: line} }

// local is a model with replicas of its own.
func local(id string, line int) *authority.Model {
	return &authority.Model{ID: id, At: at(line), Local: &authority.Local{Replicas: []string{"http://x"}}, Price: &authority.Price{}}
}

// build builds a snapshot of what differs from nothing.
func build(d *authority.Declared, auth string, policies ...string) (*authority.Snapshot, []authority.Warning, error) {
	a := authority.None()
	if auth != "" {
		var err error
		if a, err = authority.ParseAuth("auth.yaml", []byte(auth)); err != nil {
			return nil, nil, err
		}
	}
	p := &authority.Policies{Models: map[string]authority.Policy{}, Lines: map[string]authority.Pos{}}
	for i, text := range policies {
		name := fmt.Sprintf("p%d", i)
		if strings.HasPrefix(text, "#default") {
			name = "_default"
		}
		if err := p.Add(name+".yaml", name, []byte(text)); err != nil {
			return nil, nil, err
		}
	}
	return authority.Build(d, a, p)
}

func TestInputRateMustHoldTheLargestInput(t *testing.T) {
	d := &authority.Declared{Models: []*authority.Model{local("m", 1), local("n", 2)}}
	serverless := "models: [m]\nmode: serverless\nmax_input_tokens: 1000\n"
	rate := func(n int, more string) string {
		return keys(fmt.Sprintf("      quota: {input_tokens_per_minute: %d}\n%s", n, more))
	}
	for name, c := range map[string]struct {
		auth, policy string
		ok           bool
	}{
		"enough":                 {rate(1000, ""), serverless, true},
		"too little":             {rate(999, ""), serverless, false},
		"0 is none":              {rate(0, ""), serverless, true},
		"reserved does not mind": {rate(999, ""), strings.Replace(serverless, "serverless", "reserved", 1), true},
		"out of reach":           {rate(999, "      models: [n]\n"), serverless, true},
		"in reach by name":       {rate(999, "      models: [n, m]\n"), serverless, false},
		"by the default policy":  {rate(999, "      models: [n]\n"), "#default\nmode: serverless\nmax_input_tokens: 1000\n", false},
	} {
		_, _, err := build(d, c.auth, c.policy)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && !strings.Contains(err.Error(), "auth.yaml:4: quota.input_tokens_per_minute is 999: must be at least 1000, the max_input_tokens of the serverless model") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func pool(id, parent, provider string, org events.Org) authority.DeclaredPool {
	return authority.DeclaredPool{At: at(len(id)), ID: id, Parent: parent, Provider: provider, Org: org, RPM: 500, TPM: 1_000_000, Concurrency: 20, HeadroomPercent: 90}
}

func TestPools(t *testing.T) {
	s, _, err := build(&authority.Declared{Pools: []authority.DeclaredPool{
		pool("house", "", "openai", ""), pool("house-leaf", "house", "openai", ""), pool("decisions", "", "typesafe", ""), pool("acme's", "", "openai", "acme"),
		{ID: "tiny", Provider: "own", RPM: 1, TPM: 3, Concurrency: 1, HeadroomPercent: 1, FairShare: 10},
	}}, "")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for id, p := range s.Pools {
		got[id] = fmt.Sprint(p.RPM, p.TPM, p.Concurrency, p.FairShare)
	}
	want := map[string]string{
		"house": "450 900000 18 500000", "house-leaf": "450 900000 18 500000", "decisions": "450 900000 18 750000", "acme's": "450 900000 18 0",
		"tiny": "1 1 1 10", // rounded down, at least one unit
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	var chain []string
	for _, p := range s.Chain("house-leaf") {
		chain = append(chain, string(p.RPM))
	}
	if strings.Join(chain, " ") != "pool/house-leaf/rpm pool/house/rpm" {
		t.Errorf("chain %v", chain)
	}
	if got := s.Chain("acme's")[0].TPM; got != "pool/acme=27s/tpm" {
		t.Error(got)
	}
	if s.Chain("nowhere") != nil {
		t.Error("an unknown pool has a chain")
	}
}

func TestUsable(t *testing.T) {
	for _, c := range [][3]int64{{500, 90, 450}, {20, 90, 18}, {5, 90, 4}, {1, 90, 1}, {1, 1, 1}, {99, 50, 49}, {7, 100, 7}} {
		if got := authority.Usable(c[0], c[1]); got != c[2] {
			t.Errorf("%d %% of %d is %d, want %d", c[1], c[0], got, c[2])
		}
	}
}

func TestPoolFaults(t *testing.T) {
	for name, c := range map[string]struct {
		pools []authority.DeclaredPool
		want  string
	}{
		"no such parent":    {[]authority.DeclaredPool{pool("a", "b", "openai", "")}, "weir.yaml:1: pools[0].parent is b: there is no pool b"},
		"itself":            {[]authority.DeclaredPool{pool("a", "a", "openai", "")}, "weir.yaml:1: pools[0].parent is a: the pool a is above itself"},
		"a ring":            {[]authority.DeclaredPool{pool("a", "bb", "openai", ""), pool("bb", "a", "openai", "")}, "weir.yaml:1: pools[0].parent is bb: the pool a is above itself\nweir.yaml:2: pools[1].parent is a: the pool bb is above itself"},
		"a ring further up": {[]authority.DeclaredPool{pool("a", "bb", "openai", ""), pool("bb", "bb", "openai", "")}, "weir.yaml:1: pools[0].parent is bb: the pool bb is above itself\nweir.yaml:2: pools[1].parent is bb: the pool bb is above itself"},
		"another org":       {[]authority.DeclaredPool{pool("a", "bb", "openai", "acme"), pool("bb", "", "openai", "")}, "weir.yaml:1: pools[0].parent is bb: the pool bb is of another org"},
		"another provider":  {[]authority.DeclaredPool{pool("a", "bb", "openai", ""), pool("bb", "", "azure", "")}, "weir.yaml:1: pools[0].parent is bb: the pool bb is of provider azure: a parent must have the same"},
		"five levels": {[]authority.DeclaredPool{pool("a", "bb", "openai", ""), pool("bb", "ccc", "openai", ""), pool("ccc", "dddd", "openai", ""), pool("dddd", "eeeee", "openai", ""), pool("eeeee", "", "openai", "")},
			"weir.yaml:1: pools[0].parent is bb: pools nest at most 4 levels, the leaf included: this one would be on level 5"},
		"twice":                 {[]authority.DeclaredPool{pool("a", "", "openai", ""), pool("a", "", "openai", "")}, "weir.yaml:1: pools is a: stands twice: an id may stand once"},
		"a label for the house": {[]authority.DeclaredPool{pool("a", "", "own", "acme")}, "weir.yaml:1: pools[0].provider is own: must be one of openai, anthropic, azure, bedrock for a pool of an org"},
	} {
		_, _, err := build(&authority.Declared{Pools: c.pools}, "")
		if err == nil || err.Error() != c.want {
			t.Errorf("%s:\n%v\nwant\n%s", name, err, c.want)
		}
	}
	four := []authority.DeclaredPool{pool("a", "bb", "openai", ""), pool("bb", "ccc", "openai", ""), pool("ccc", "dddd", "openai", ""), pool("dddd", "", "openai", "")}
	if s, _, err := build(&authority.Declared{Pools: four}, ""); err != nil || len(s.Chain("a")) != 4 {
		t.Errorf("four levels: %v", err)
	}
}

func TestRoutes(t *testing.T) {
	connection := func(id, provider, pool string, org events.Org) *authority.Connection {
		return &authority.Connection{ID: id, Provider: provider, Pool: pool, Org: org, At: at(9)}
	}
	model := func(routes ...authority.Route) *authority.Model {
		return &authority.Model{ID: "m", At: at(3), Price: &authority.Price{}, Providers: routes}
	}
	pools := []authority.DeclaredPool{pool("p", "", "openai", ""), pool("own", "", "openai", "acme")}
	for name, c := range map[string]struct {
		connections []*authority.Connection
		model       *authority.Model
		want        string
		warning     string
	}{
		"well":                   {[]*authority.Connection{connection("c", "openai", "p", "")}, model(authority.Route{Connection: "c"}), "", ""},
		"no pool":                {[]*authority.Connection{connection("c", "openai", "", "")}, model(authority.Route{Connection: "c"}), "", "weir.yaml:3: providers: the route of m to c has no pool: it is refused, 503 capacity_unknown"},
		"no such connection":     {nil, model(authority.Route{Connection: "c"}), "weir.yaml:3: models[0].providers[0].connection is c: there is no such connection", ""},
		"no such pool":           {[]*authority.Connection{connection("c", "openai", "q", "")}, model(authority.Route{Connection: "c"}), "weir.yaml:9: connections[0].pool is q: there is no such pool", ""},
		"another provider":       {[]*authority.Connection{connection("c", "azure", "p", "")}, model(authority.Route{Connection: "c"}), "weir.yaml:9: connections[0].pool is p: is a pool of provider openai: the connection c is of azure", ""},
		"another org":            {[]*authority.Connection{connection("c", "openai", "own", "")}, model(authority.Route{Connection: "c"}), "weir.yaml:9: connections[0].pool is own: belongs to another org than the connection c", ""},
		"the route's other pool": {[]*authority.Connection{connection("c", "openai", "p", "")}, model(authority.Route{Connection: "c", Pool: "own"}), "weir.yaml:3: models[0].providers[0].pool is own: belongs to another org than the connection c", ""},
		"a connection twice":     {[]*authority.Connection{connection("c", "openai", "p", ""), connection("c", "openai", "p", "")}, model(authority.Route{Connection: "c"}), "weir.yaml:9: connections is c: stands twice: an id may stand once", ""},
		"nowhere to go":          {nil, model(), "weir.yaml:3: models is m: must have local replicas or providers", ""},
	} {
		_, warnings, err := build(&authority.Declared{Pools: pools, Connections: c.connections, Models: []*authority.Model{c.model}}, "")
		got, warned := "", ""
		if err != nil {
			got = err.Error()
		}
		if len(warnings) > 0 {
			warned = warnings[0].String()
		}
		if got != c.want || warned != c.warning {
			t.Errorf("%s: %s, warned %s", name, got, warned)
		}
	}
}

func TestFallbackProviderFindsItsConnection(t *testing.T) {
	d := &authority.Declared{
		Pools:       []authority.DeclaredPool{pool("p", "", "openai", "")},
		Connections: []*authority.Connection{{ID: "b", Provider: "openai", Pool: "p"}, {ID: "a", Provider: "openai", Pool: "p"}, {ID: "0", Provider: "openai", Org: "acme"}},
		Models:      []*authority.Model{local("m", 1), local("n", 2)},
	}
	d.Models[1].Providers = []authority.Route{{Connection: "b"}}
	s, _, err := build(d, "", "#default\nfallback_provider: {engine: openai, model: x}\n")
	if err != nil {
		t.Fatal(err)
	}
	if m, n := s.Models["m"].Policy.FallbackProvider, s.Models["n"].Policy.FallbackProvider; m.Connection != "a" || n.Connection != "b" {
		t.Errorf("%+v %+v", m, n)
	}
	_, warnings, err := build(&authority.Declared{Models: d.Models[:1]}, "", "models: [m]\nfallback_provider: {engine: anthropic, model: x}\n")
	if err != nil || len(warnings) != 1 || warnings[0].String() != "p0.yaml: fallback_provider.engine: there is no connection of provider anthropic: m does not fall back to it" {
		t.Errorf("%v %v", warnings, err)
	}
}

func TestOrgsOfOwners(t *testing.T) {
	s, _, err := build(&authority.Declared{Orgs: []authority.DeclaredOrg{{Name: "acme", Billing: authority.Prepaid, Limits: authority.Limits{RPM: 600}}, {Name: "Beta Ltd.", Limits: authority.Limits{RPM: 5}}}},
		strings.ReplaceAll(keys(""), "owner: o", "owner: Beta Ltd.")+"    - key_hash: "+hashB+"\n      metadata: {name: n, owner: gamma}\n      quota: {requests_per_minute: 7}\n")
	if err != nil {
		t.Fatal(err)
	}
	beta := authority.OrgOf("Beta Ltd.")
	if s.Orgs["acme"].Billing != authority.Prepaid || s.Orgs[beta].Name != "Beta Ltd." || s.Orgs[beta].Limits.RPM != 5 {
		t.Errorf("%+v", s.Orgs)
	}
	if gamma := s.Orgs["gamma"]; gamma.Billing != authority.Postpaid || gamma.Limits != (authority.Limits{}) {
		t.Errorf("an owner of auth.yaml has limits of its own: %+v", gamma)
	}
	for _, k := range s.Keys {
		if scopes := s.Scopes(k); k.Org == "gamma" && (scopes[1].Limits.RPM != 7 || scopes[1].Names.RPM != "org/gamma/rpm" || len(scopes) != 3) {
			t.Errorf("%+v", scopes)
		}
	}
}

func TestWorkspacesBelongToOneOrg(t *testing.T) {
	two := keys("      workspace: w\n      principal: p\n") + "    - key_hash: " + hashB + "\n      metadata: {name: n, owner: other}\n      workspace: w\n      principal: p\n"
	_, _, err := build(&authority.Declared{}, two)
	want := "auth.yaml:8: workspaces is w: belongs to org o already: it must be of one org\nauth.yaml:8: principals is p: belongs to org o already: it must be of one org"
	if err == nil || err.Error() != want {
		t.Error(err)
	}
}

func TestWarningsBetweenFiles(t *testing.T) {
	free := local("free", 4)
	free.Price = nil
	auth := keys("      models: [nowhere]\n      quota: {requests_per_minute: 1}\n") + "    - key_hash: " + hashB + "\n      metadata: {name: n, owner: o}\n      quota: {requests_per_minute: 2}\n"
	_, warnings, err := build(&authority.Declared{Models: []*authority.Model{free}}, auth, "models: [gone]\n")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range warnings {
		got = append(got, w.String())
	}
	want := []string{
		"p0.yaml:1: models: names the model gone, which is not configured",
		"auth.yaml:4: models: names the model nowhere, which is not configured",
		"auth.yaml:8: quota: differs from that of the key at auth.yaml:4, which has the same owner and so the same meters",
		"weir.yaml:4: models: free has no price: it costs nothing, and prepaid orgs are refused it",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	_, warnings, err = build(&authority.Declared{}, "api: {mode: dynamic}\n")
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0].String(), "without an admin key nobody can make keys") {
		t.Errorf("%v %v", warnings, err)
	}
	for reachable, want := range map[bool]int{false: 0, true: 1} {
		if _, warnings, err = build(&authority.Declared{Reachable: reachable}, "api: {mode: none}\n"); err != nil || len(warnings) != want {
			t.Errorf("without keys, reachable %v: %v %v", reachable, warnings, err)
		}
	}
}

func TestEveryFaultBetweenFilesAtOnce(t *testing.T) {
	_, _, err := build(&authority.Declared{Pools: []authority.DeclaredPool{pool("a", "x", "openai", "")}, Models: []*authority.Model{{ID: "m", At: at(3)}}}, "")
	if err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Error(err)
	}
}

func TestStrictest(t *testing.T) {
	for _, c := range [][3]int64{{0, 0, 0}, {0, 5, 5}, {5, 0, 5}, {5, 6, 5}, {6, 5, 5}} {
		if got := authority.Strictest(c[0], c[1]); got != c[2] {
			t.Errorf("of %d and %d: %d", c[0], c[1], got)
		}
	}
}

func TestFences(t *testing.T) {
	s, _, err := build(&authority.Declared{}, "")
	if err != nil {
		t.Fatal(err)
	}
	other := s.WithFences(map[events.Org]int64{"acme": 7})
	if s.Fence("acme") != 0 || other.Fence("acme") != 7 || other.Fence("beta") != 0 || other.Anonymous != s.Anonymous {
		t.Error("the wrong fences")
	}
}
