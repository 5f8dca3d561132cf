package authority

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
)

// files is a snapshot of files: an org with a key, a workspace and a limited model, a house pool and a priced model.
func files(t testing.TB, mode Mode) *Snapshot {
	t.Helper()
	d := &Declared{
		AdminKeys: 1,
		Platform:  Limits{RPM: 100_000},
		Defaults: Defaults{Org: Limits{RPM: 300, TPM: 1_000_000, Concurrency: 8}, Workspace: Limits{RPM: 300, TPM: 1_000_000, Concurrency: 8},
			Principal: Limits{RPM: 300, TPM: 1_000_000, Concurrency: 8}, Key: Limits{TPM: 1_000_000, Concurrency: 8}},
		Orgs: []DeclaredOrg{{Name: "filed", Billing: Postpaid, Limits: Limits{RPM: 600, RPS: 20}, Models: map[string]Limits{"m": {RPM: 60}},
			Workspaces: map[string]Limits{"fw": {RPM: 50}}}},
		Models: []*Model{{ID: "m", Local: &Local{Replicas: []string{"http://x"}}, Price: &Price{Version: "file", Input: 1}}, {ID: "n", Local: &Local{Replicas: []string{"http://x"}}}},
		Pools:  []DeclaredPool{{ID: "house", Provider: "openai", RPM: 500, TPM: 1_000_000, Concurrency: 20, HeadroomPercent: 90}},
	}
	auth := &Auth{Mode: mode, Keys: []StaticKey{{Hash: HashKey("file-key"), Owner: "filed", Key: &Key{ID: "fk", Org: "filed", Workspace: "fw", Limits: Limits{RPM: 40}}}}}
	s, _, err := Build(d, auth, &Policies{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func apply(o *Overlay, records ...Record) {
	var changes []Change
	for _, r := range records {
		changes = append(changes, Change{r.Ref(), r})
	}
	o.Apply(changes)
}

var start = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// limitsOf gives the limits of the last scope of a kind that apply to a key.
func limitsOf(s *Snapshot, raw string, scope events.Scope) Limits {
	k := s.Keys[HashKey(raw)]
	if k == nil {
		return Limits{RPM: -1}
	}
	for _, sc := range s.Scopes(k) {
		if sc.Scope == scope {
			return sc.Limits
		}
	}
	return Limits{}
}

func TestEffectiveLimits(t *testing.T) {
	key := func(ceiling int64, given LimitSet) *KeyRecord {
		return &KeyRecord{ID: "k", Org: "acme", Hash: HashKey("raw"), Enabled: true, Workspace: "w", Principal: "p", RPMCeiling: ceiling, Limits: given}
	}
	org := func(credited bool, o *Override) *OrgRecord {
		return &OrgRecord{Org: "acme", Made: true, Billing: Prepaid, Credited: credited, Override: o}
	}
	limit := func(scope events.Scope, subject string, rpm, tpm, concurrency int64) *LimitRecord {
		return &LimitRecord{Org: "acme", Scope: scope, Subject: subject, RPM: rpm, TPM: tpm, Concurrency: concurrency}
	}
	defaults := Limits{RPM: 300, TPM: 1_000_000, Concurrency: 8}
	for _, c := range []struct {
		name    string
		records []Record
		scope   events.Scope
		want    Limits
	}{
		{"org, workspace and principal have the defaults: org", []Record{org(true, nil), key(0, LimitSet{})}, events.ScopeOrg, defaults},
		{"workspace", []Record{org(true, nil), key(0, LimitSet{})}, events.ScopeWorkspace, defaults},
		{"principal", []Record{org(true, nil), key(0, LimitSet{})}, events.ScopePrincipal, defaults},
		{"a key has its rpm ceiling, 1M tpm and 8 at once", []Record{org(true, nil), key(60, LimitSet{})}, events.ScopeKey, Limits{RPM: 60, TPM: 1_000_000, Concurrency: 8}},
		{"a model has none", []Record{org(true, nil), key(0, LimitSet{})}, events.ScopeModel, Limits{}},
		{"until its first credit an org is held to 20 rpm", []Record{org(false, nil), key(60, LimitSet{})}, events.ScopeOrg, Limits{RPM: 20, TPM: 1_000_000, Concurrency: 8}},
		{"and each of its keys", []Record{org(false, nil), key(60, LimitSet{})}, events.ScopeKey, Limits{RPM: 20, TPM: 1_000_000, Concurrency: 8}},
		{"the hold does not raise a lower ceiling", []Record{org(false, nil), key(5, LimitSet{})}, events.ScopeKey, Limits{RPM: 5, TPM: 1_000_000, Concurrency: 8}},
		{"the hold is not on workspaces", []Record{org(false, nil), key(5, LimitSet{})}, events.ScopeWorkspace, defaults},
		{"an own limit does not lift the hold", []Record{org(false, nil), key(0, LimitSet{}), limit("org", "", 1000, 0, 0)}, events.ScopeOrg, Limits{RPM: 20, TPM: 1_000_000, Concurrency: 8}},
		{"an override lifts the hold", []Record{org(false, &Override{Org: LimitSet{TPM: 5}}), key(60, LimitSet{})}, events.ScopeOrg, Limits{RPM: 300, TPM: 5, Concurrency: 8}},
		{"of the keys too", []Record{org(false, &Override{Org: LimitSet{TPM: 5}}), key(60, LimitSet{})}, events.ScopeKey, Limits{RPM: 60, TPM: 1_000_000, Concurrency: 8}},
		{"an override replaces a default and adds rps", []Record{org(true, &Override{Org: LimitSet{RPM: 5000, RPS: 50}}), key(0, LimitSet{})}, events.ScopeOrg, Limits{RPM: 5000, RPS: 50, TPM: 1_000_000, Concurrency: 8}},
		{"an override replaces the keys' ceiling", []Record{org(true, &Override{Key: LimitSet{RPM: 900}}), key(60, LimitSet{})}, events.ScopeKey, Limits{RPM: 900, TPM: 1_000_000, Concurrency: 8}},
		{"an own limit lowers an override", []Record{org(true, &Override{Org: LimitSet{RPM: 5000}}), key(0, LimitSet{}), limit("org", "", 70, 0, 0)}, events.ScopeOrg, Limits{RPM: 70, TPM: 1_000_000, Concurrency: 8}},
		{"and cannot raise it", []Record{org(true, &Override{Org: LimitSet{RPM: 50}}), key(0, LimitSet{}), limit("org", "", 70, 0, 0)}, events.ScopeOrg, Limits{RPM: 50, TPM: 1_000_000, Concurrency: 8}},
		{"an own limit stands in place of a default", []Record{org(true, nil), key(0, LimitSet{}), limit("workspace", "w", 700, 0, 2)}, events.ScopeWorkspace, Limits{RPM: 700, TPM: 1_000_000, Concurrency: 2}},
		{"null inherits the default", []Record{org(true, nil), key(0, LimitSet{}), limit("principal", "p", 0, 9, 0)}, events.ScopePrincipal, Limits{RPM: 300, TPM: 9, Concurrency: 8}},
		{"a larger key limit does not raise the ceiling", []Record{org(true, nil), key(60, LimitSet{}), limit("key", "k", 100, 2_000_000, 9)}, events.ScopeKey, Limits{RPM: 60, TPM: 2_000_000, Concurrency: 9}},
		{"a lower one lowers it", []Record{org(true, nil), key(60, LimitSet{}), limit("key", "k", 10, 0, 0)}, events.ScopeKey, Limits{RPM: 10, TPM: 1_000_000, Concurrency: 8}},
		{"nor an override's", []Record{org(true, &Override{Key: LimitSet{RPM: 90}}), key(60, LimitSet{}), limit("key", "k", 100, 0, 0)}, events.ScopeKey, Limits{RPM: 90, TPM: 1_000_000, Concurrency: 8}},
		{"what the operator gave a key can only be lowered", []Record{org(true, nil), key(0, LimitSet{RPM: 50, TPM: 500, SpendDay: 7}), limit("key", "k", 60, 400, 0)}, events.ScopeKey, Limits{RPM: 50, TPM: 400, Concurrency: 8, SpendDay: 7}},
		{"an org that only has a key has no defaults", []Record{&OrgRecord{Org: "acme"}, key(60, LimitSet{})}, events.ScopeOrg, Limits{}},
		{"nor has its key more than its own", []Record{&OrgRecord{Org: "acme"}, key(60, LimitSet{})}, events.ScopeKey, Limits{RPM: 60}},
		{"an org that pays afterwards is not held", []Record{&OrgRecord{Org: "acme", Made: true, Billing: Postpaid}, key(0, LimitSet{})}, events.ScopeOrg, defaults},
		{"a disabled key is none", []Record{org(true, nil), &KeyRecord{ID: "k", Org: "acme", Hash: HashKey("raw")}}, events.ScopeKey, Limits{RPM: -1}},
		{"a deleted org has none", []Record{&OrgRecord{Org: "acme", Deleted: true}, key(0, LimitSet{})}, events.ScopeKey, Limits{RPM: -1}},
	} {
		o := NewOverlay(files(t, ModeDynamic), nil)
		apply(o, &ScopeRecord{Org: "acme", Kind: KindWorkspace, ID: "w"}, &ScopeRecord{Org: "acme", Kind: KindPrincipal, ID: "p"})
		apply(o, c.records...)
		if got := limitsOf(o.Build(start), "raw", c.scope); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestOutageModeClosedAtAnyScopeWins(t *testing.T) {
	o := NewOverlay(files(t, ModeDynamic), nil)
	apply(o, &OrgRecord{Org: "acme", Made: true}, &KeyRecord{ID: "k", Org: "acme", Hash: HashKey("raw"), Enabled: true})
	if limitsOf(o.Build(start), "raw", events.ScopeKey).Closed {
		t.Fatal("closed by default")
	}
	apply(o, &LimitRecord{Org: "acme", Scope: "key", Subject: "k", Closed: true})
	if !limitsOf(o.Build(start), "raw", events.ScopeKey).Closed {
		t.Fatal("not closed")
	}
}

func TestOrgsOfTheFiles(t *testing.T) {
	o := NewOverlay(files(t, ModeDynamic), nil)
	apply(o, &OrgRecord{Org: "filed", Version: 7}, &LimitRecord{Org: "filed", Scope: "org", RPM: 10_000, TPM: 5},
		&LimitRecord{Org: "filed", Scope: "key", Subject: "fk", RPM: 30}, &LimitRecord{Org: "filed", Scope: "workspace", Subject: "fw", RPM: 60, Concurrency: 3},
		&LimitRecord{Org: "filed", Scope: "model", Subject: "m", RPM: 70, TPM: 8}, &LimitRecord{Org: "filed", Scope: "model", Subject: "n", RPM: 9})
	s := o.Build(start)
	for scope, want := range map[events.Scope]Limits{
		events.ScopeOrg: {RPM: 600, RPS: 20, TPM: 5}, events.ScopeKey: {RPM: 30}, events.ScopeWorkspace: {RPM: 50, Concurrency: 3},
	} {
		if got := limitsOf(s, "file-key", scope); got != want {
			t.Errorf("%s: %+v, want %+v", scope, got, want)
		}
	}
	if got, want := s.Orgs["filed"].Models, (map[string]Limits{"m": {RPM: 60, TPM: 8}, "n": {RPM: 9}}); !reflect.DeepEqual(got, want) {
		t.Errorf("models: %+v", got)
	}
	if s.Fence("filed") != 7 {
		t.Errorf("fence %d", s.Fence("filed"))
	}
	o.Apply([]Change{{Ref: (&LimitRecord{Org: "filed", Scope: "workspace", Subject: "fw"}).Ref()}, {Ref: (&LimitRecord{Org: "filed", Scope: "key", Subject: "fk"}).Ref()}})
	s = o.Build(start)
	if got := limitsOf(s, "file-key", events.ScopeWorkspace); got != (Limits{RPM: 50}) {
		t.Errorf("without its own limit the workspace has %+v", got)
	}
	if got := limitsOf(s, "file-key", events.ScopeKey); got != (Limits{RPM: 40}) {
		t.Errorf("without its own limit the key has %+v", got)
	}
}

func TestKeysOfTheAPICountInModeDynamicAlone(t *testing.T) {
	for mode, want := range map[Mode]int{ModeDynamic: 2, ModeAPIKey: 1} {
		o := NewOverlay(files(t, mode), nil)
		apply(o, &OrgRecord{Org: "acme"}, &KeyRecord{ID: "k", Org: "acme", Hash: HashKey("raw"), Enabled: true})
		if got := len(o.Build(start).Keys); got != want {
			t.Errorf("%s: %d keys", mode, got)
		}
	}
}

func TestAKeyThatMovesToAnotherOrg(t *testing.T) {
	for range 20 { // orgs are visited in any order
		o := NewOverlay(files(t, ModeDynamic), nil)
		apply(o, &OrgRecord{Org: "a"}, &OrgRecord{Org: "b"}, &KeyRecord{ID: "k", Org: "a", Hash: HashKey("raw"), Enabled: true})
		o.Build(start)
		o.Apply([]Change{{Ref: Ref{"a", KindKey, "k"}}, {Ref: Ref{"b", KindKey, "k"}, Record: &KeyRecord{ID: "k", Org: "b", Hash: HashKey("raw"), Enabled: true}}})
		if k := o.Build(start).Keys[HashKey("raw")]; k == nil || k.Org != "b" {
			t.Fatalf("%+v", k)
		}
	}
}

func TestPoolsAndConnections(t *testing.T) {
	o := NewOverlay(files(t, ModeDynamic), func(r *ConnectionRecord) func() string { return func() string { return string(r.Credential) } })
	apply(o, &PoolRecord{ID: "up", Org: "acme", Provider: "openai", RPM: 500, TPM: 1_000_000, Concurrency: 20, Headroom: 90},
		&PoolRecord{ID: "leaf", Org: "acme", Provider: "openai", RPM: 3, TPM: 3, Concurrency: 1, Headroom: 50, Parent: "up"},
		&PoolRecord{ID: "ours", Org: events.Platform, Provider: "typesafe", RPM: 10, TPM: 10, Concurrency: 10, Headroom: 100, Parent: ""},
		&ConnectionRecord{ID: "c", Org: "acme", Provider: "openai", Pool: "leaf", Credential: []byte("secret")})
	s := o.Build(start)
	if p := s.Pools["up"]; p.RPM != 450 || p.TPM != 900_000 || p.Concurrency != 18 || p.Org != "acme" || p.FairShare != 0 {
		t.Errorf("%+v", p)
	}
	if p := s.Pools["leaf"]; p.RPM != 1 || p.Concurrency != 1 {
		t.Errorf("headroom rounds down, at least to one: %+v", p)
	}
	if p := s.Pools["ours"]; p.Org != "" || p.FairShare != decisionShare {
		t.Errorf("a house pool: %+v", p)
	}
	if chain := s.Chain("leaf"); len(chain) != 2 || chain[1].Pool.ID != "up" {
		t.Errorf("%+v", chain)
	}
	if c := s.Connections["c"]; c.Pool != "leaf" || c.Org != "acme" || c.APIKey() != "secret" {
		t.Errorf("%+v", c)
	}
	o.Apply([]Change{{Ref: Ref{"acme", KindPool, "up"}}, {Ref: Ref{"acme", KindPool, "leaf"}, Record: &PoolRecord{ID: "leaf", Org: "acme", Provider: "openai", RPM: 4, TPM: 4, Concurrency: 4, Headroom: 100}}})
	if s = o.Build(start); len(s.Chain("leaf")) != 1 || s.Pools["up"] != nil || s.Pools["leaf"].RPM != 4 || s.Pools["house"] == nil {
		t.Errorf("%+v", s.Pools)
	}
}

func TestPricesBeginAtTheirTime(t *testing.T) {
	o := NewOverlay(files(t, ModeDynamic), nil)
	later := start.Add(time.Hour)
	apply(o, &PriceRecord{Model: "m", Versions: []PriceVersion{{Version: "one", From: start.Add(-time.Hour), Input: 5}, {Version: "two", From: later, Input: 6}}},
		&PriceRecord{Model: "unknown", Versions: []PriceVersion{{Version: "x"}}})
	s := o.Build(start)
	if p := s.Models["m"].Price; p.Version != "one" || p.Input != 5 || !o.NextPrice().Equal(later) {
		t.Fatalf("%+v, next at %s", p, o.NextPrice())
	}
	if s = o.Build(later); s.Models["m"].Price.Version != "two" || !o.NextPrice().IsZero() {
		t.Fatalf("%+v", s.Models["m"].Price)
	}
	o.Apply([]Change{{Ref: Ref{events.Platform, KindPrice, "m"}}})
	if s = o.Build(later); s.Models["m"].Price.Version != "file" {
		t.Fatalf("%+v", s.Models["m"].Price)
	}
}

// TestPartsMakeTheWhole applies random changes one by one and compares with a snapshot made of all at once.
func TestPartsMakeTheWhole(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	orgs := []events.Org{"acme", "filed", "b", events.Platform}
	pick := func() events.Org { return orgs[rng.IntN(len(orgs))] }
	n := func(most int) int64 { return int64(rng.IntN(most)) }
	static := files(t, ModeDynamic)
	parts := NewOverlay(static, nil)
	kept := map[Ref]Record{}
	for i := range 600 {
		var changes []Change
		for range 1 + rng.IntN(4) {
			org := pick()
			id := fmt.Sprint(rng.IntN(6))
			var r Record
			switch rng.IntN(7) {
			case 0:
				o := &OrgRecord{Org: org, Version: int64(i), Made: rng.IntN(2) == 0, Billing: []Billing{Prepaid, Postpaid}[rng.IntN(2)], Credited: rng.IntN(2) == 0, Deleted: rng.IntN(9) == 0}
				if rng.IntN(2) == 0 {
					o.Override = &Override{Org: LimitSet{RPM: n(900)}, Key: LimitSet{RPM: n(90)}, Workspace: LimitSet{TPM: n(5)}}
				}
				r = o
			case 1:
				r = &ScopeRecord{Org: org, Kind: KindWorkspace, ID: string(org) + "-w" + id, Limits: LimitSet{RPM: n(3)}}
			case 2:
				r = &ScopeRecord{Org: org, Kind: KindPrincipal, ID: string(org) + "-p" + id}
			case 3, 4:
				if org != events.Platform {
					r = &KeyRecord{ID: string(org) + id, Org: org, Hash: HashKey(fmt.Sprint(org, id, rng.IntN(3))), Enabled: rng.IntN(5) > 0,
						Workspace: string(org) + "-w" + fmt.Sprint(rng.IntN(6)), Principal: string(org) + "-p" + fmt.Sprint(rng.IntN(6)), RPMCeiling: n(100)}
				}
			case 5:
				scope := []events.Scope{"org", "workspace", "principal", "key", "model"}[rng.IntN(5)]
				subject := map[events.Scope]string{"org": "", "workspace": string(org) + "-w" + id, "principal": string(org) + "-p" + id, "key": string(org) + id, "model": "m"}[scope]
				if org == "filed" && rng.IntN(2) == 0 {
					subject = map[events.Scope]string{"workspace": "fw", "key": "fk"}[scope]
				}
				if org != events.Platform && (scope == events.ScopeOrg) == (subject == "") {
					r = &LimitRecord{Org: org, Scope: scope, Subject: subject, RPM: n(500), Closed: rng.IntN(2) == 0}
				}
			case 6:
				r = &PoolRecord{ID: string(org) + "-l" + id, Org: org, Provider: "openai", RPM: 1 + n(9), TPM: 1, Concurrency: 1, Headroom: 100}
			}
			if r == nil {
				continue
			}
			ref := r.Ref()
			if rng.IntN(3) == 0 && ref.Kind != KindOrg {
				r = nil
			}
			changes = append(changes, Change{ref, r})
			if r == nil {
				delete(kept, ref)
			} else {
				kept[ref] = r
			}
		}
		parts.Apply(changes)
		if rng.IntN(3) == 0 {
			continue // several changes go into one snapshot
		}
		got := parts.Build(start)
		whole := NewOverlay(static, nil)
		for ref, r := range kept {
			whole.Apply([]Change{{ref, r}})
		}
		if want := whole.Build(start); !reflect.DeepEqual(got, want) {
			t.Fatalf("after %d changes the snapshots differ: %s", i, where(got, want))
		}
	}
}

func where(a, b *Snapshot) string {
	va, vb := reflect.ValueOf(*a), reflect.ValueOf(*b)
	for i := range va.NumField() {
		if !va.Type().Field(i).IsExported() {
			continue
		}
		if fa, fb := va.Field(i), vb.Field(i); !reflect.DeepEqual(fa.Interface(), fb.Interface()) {
			text := va.Type().Field(i).Name
			if fa.Kind() == reflect.Map {
				for _, k := range append(fa.MapKeys(), fb.MapKeys()...) {
					x, y := fa.MapIndex(k), fb.MapIndex(k)
					if !x.IsValid() || !y.IsValid() || !reflect.DeepEqual(x.Interface(), y.Interface()) {
						show := func(v reflect.Value) string {
							if v.IsValid() && v.Kind() == reflect.Pointer {
								return fmt.Sprintf("%+v", v.Elem())
							}
							return fmt.Sprint(v)
						}
						return fmt.Sprintf("%s[%v]: %s\nand %s", text, k, show(x), show(y))
					}
				}
			}
			return text
		}
	}
	return "inside"
}

// BenchmarkOverlay measures a snapshot of 100,000 keys in 100 orgs: made of all, after one key, after one org's limit.
func BenchmarkOverlay(b *testing.B) {
	static := files(b, ModeDynamic)
	const keys, orgs = 100_000, 100
	fill := func() *Overlay {
		o := NewOverlay(static, nil)
		for i := range orgs {
			apply(o, &OrgRecord{Org: events.Org(fmt.Sprint("o", i)), Made: true})
		}
		for i := range keys {
			apply(o, &KeyRecord{ID: fmt.Sprint("key-", i), Org: events.Org(fmt.Sprint("o", i%orgs)), Hash: HashKey(fmt.Sprint(i)), Enabled: true, RPMCeiling: 60})
		}
		return o
	}
	b.Run("whole", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			b.StopTimer()
			o := fill()
			b.StartTimer()
			o.Build(start)
		}
	})
	o := fill()
	o.Build(start)
	b.Run("one key", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			apply(o, &KeyRecord{ID: "key-5", Org: "o5", Hash: HashKey("5"), Enabled: true, RPMCeiling: int64(i + 1)})
			o.Build(start)
		}
	})
	b.Run("one org", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			apply(o, &LimitRecord{Org: "o5", Scope: "org", RPM: int64(i + 1)})
			o.Build(start)
		}
	})
}
