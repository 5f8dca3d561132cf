//go:build chaos

package chaos

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/test/e2e/stack"
)

// Keys of the org made beside the one of its name, and cold, which nobody has made.
const (
	revoked = "revoked"
	late    = "late"
	cold    = "cold"
)

const adminKey = "sk-weir-chaos-admin"

// databaseSettings has keys of the files and keys of the API, which are served for so long without the database.
func databaseSettings(age time.Duration) string {
	return fmt.Sprintf(`
orgs:
  strict: {limits: {concurrency: 4, outage_mode: closed}}
  open: {limits: {rpm: 1000000, concurrency: 1000}}
admin_keys: [%q]
authority: {snapshot_max_age: %s}
limits: {defaults: {org: {rpm: 1000000, tpm: 1000000000, concurrency: 1000}, key: {rpm: 1000000, tpm: 1000000000, concurrency: 1000}}}
models:
  - {id: strict, price: {input: "1", output: "2"}, local: {engine: vllm, replicas: ["{{upstream}}"]}}
  - {id: open, price: {input: "1", output: "2"}, local: {engine: vllm, replicas: ["{{upstream}}"]}}
  - {id: made, price: {input: "1", output: "2"}, local: {engine: vllm, replicas: ["{{upstream}}"]}}
`, hashed(adminKey), age)
}

func hashed(key string) string {
	h := authority.HashKey(key)
	text, _ := authority.Hash(h).MarshalText()
	return string(text)
}

// manage asks the gateway that manages for a change.
func (w *world) manage(method, path, body string) *stack.Answer {
	w.tb.Helper()
	a, err := stack.Request{Method: method, URL: w.urls[0] + path, Body: body, Header: map[string]string{"Authorization": "Bearer " + adminKey}}.Send()
	w.must(err)
	return a
}

// grant makes a key of the org made, or revokes it.
func (w *world) grant(name, version string, enabled bool) *stack.Answer {
	w.tb.Helper()
	return w.manage("PUT", "/admin/api-keys/"+name, fmt.Sprintf(`{"version":%q,"key_hash":%q,"owner":%q,"name":%q,"enabled":%t}`,
		version, hashed(stack.KeyText(name)), made, name, enabled))
}

// onDatabase starts a world with a database, in which the org made has its keys and one of them is revoked.
func onDatabase(t *testing.T, age time.Duration) *world {
	t.Helper()
	w := newWorld(t, setup{database: true, weir: databaseSettings(age)})
	w.done(w.manage("PUT", "/admin/orgs/"+made, `{"billing":"postpaid"}`))
	for _, key := range []string{made, revoked, late} {
		w.done(w.grant(key, "1", true))
		w.answers(key, http.StatusOK, false, "")
	}
	w.done(w.grant(revoked, "2", false))
	w.refused(revoked, http.StatusUnauthorized)
	return w
}

func (w *world) done(a *stack.Answer) {
	w.tb.Helper()
	if a.Status >= http.StatusMultipleChoices {
		w.tb.Fatalf("management answered %d: %s", a.Status, a.Body)
	}
}

// answers waits until every gateway answers a key so.
func (w *world) answers(key string, status int, aged bool, code string) {
	w.tb.Helper()
	for i, url := range w.urls {
		last := ""
		w.until(fmt.Sprintf("gateway %d answers the key %s with %d %s, as it was last known: %t", i, key, status, code, aged), func() bool {
			a, err := askFor(url, key, made)
			if err != nil {
				last = err.Error()
				return false
			}
			last = fmt.Sprintf("%d %s", a.Status, a.Body)
			return a.Status == status && a.Error().Code == code && aged == (a.Header.Get("X-Tm-Authorization-Mode") == "bounded_snapshot")
		}, &last)
	}
}

// refused asks every gateway once with a key that must not be served any more. Where a status is given, it must be that.
func (w *world) refused(key string, status int) {
	w.tb.Helper()
	for i, url := range w.urls {
		a, err := askFor(url, key, made)
		switch {
		case err != nil:
			w.tb.Errorf("the key %s at gateway %d: %v", key, i, err)
		case a.Status == http.StatusOK, status != 0 && a.Status != status:
			w.tb.Errorf("gateway %d answers the key %s with %d: %s", i, key, a.Status, a.Body)
		}
	}
}

// closedTo checks what holds for keys of the API while the database cannot be asked, and that nothing can be changed.
func (w *world) closedTo() {
	w.tb.Helper()
	w.answers(cold, http.StatusServiceUnavailable, false, "authorization_unavailable")
	w.refused(revoked, 0)
	if a := w.grant(late, "3", false); a.Status != http.StatusServiceUnavailable || !strings.Contains(string(a.Body), "nothing can be changed") {
		w.tb.Errorf("a change without the database: %d %s", a.Status, a.Body)
	}
	w.refused(revoked, 0)
}

// openAgain waits until keys of the API are served as the database has them, and checks that what is revoked now is refused at once.
func (w *world) openAgain() {
	w.tb.Helper()
	w.answers(made, http.StatusOK, false, "")
	w.answers(cold, http.StatusUnauthorized, false, "unauthorized")
	w.ready()
	w.answers(late, http.StatusOK, false, "")
	w.done(w.grant(late, "4", false))
	w.refused(late, http.StatusUnauthorized)
	w.refused(revoked, http.StatusUnauthorized)
}

// unhurt checks that keys of the files were served between two instants.
func (w *world) unhurt(all []result, from, to time.Time) {
	w.tb.Helper()
	if count(all, func(r *result) bool {
		return r.org == "open" && r.status == http.StatusOK && r.began.After(from) && r.began.Add(r.took).Before(to)
	}) == 0 {
		w.tb.Error("no key of the files was served without the database")
	}
}

// The database and the log are away at once. Keys of the API are not served at all: not from the allowance, and not as they were last known.
func TestTheDatabaseAndTheLogAreAway(t *testing.T) {
	t.Parallel()
	w := onDatabase(t, 2*time.Minute)
	l := w.run(clients(), "strict", "open", made)
	time.Sleep(time.Second)
	w.database.Pause()
	w.answers(made, http.StatusOK, true, "")
	w.closedTo()
	w.core.kill()
	died := time.Now()
	w.answers(made, http.StatusServiceUnavailable, false, "authorization_unavailable")
	time.Sleep(40 * time.Second)
	w.closedTo()
	back := time.Now()
	w.core.start()
	time.Sleep(time.Second)
	w.database.Resume()
	w.openAgain()
	time.Sleep(time.Second)
	all := l.end()
	bounded := 0
	for i := range all {
		r := &all[i]
		if r.org == made && r.status == http.StatusOK && r.began.After(died) && r.began.Add(r.took).Before(back) {
			t.Errorf("a key of the API was served without database and log: by the allowance %t, as it was last known %t", r.bounded, r.aged)
		}
		if r.bounded {
			bounded++
		}
	}
	if bounded == 0 {
		t.Error("nothing was admitted without the log")
	}
	line(t, fmt.Sprintf("PostgreSQL was paused, then the log's process killed, and both back after %s", back.Sub(died).Round(time.Second)), say(all), w.check(all, checks{}))
}

// agedFor is for how long keys of the API are served as they were last known, and slack how much longer until everybody has noticed that the
// database is away.
const (
	agedFor = 15 * time.Second
	slack   = 5 * time.Second
)

// The database stands still, or dies: keys of the API are served as they were last known for a while, and then refused; those of the files are
// served as ever.
func TestTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ away, back func(*world) }{
		"paused": {func(w *world) { w.database.Pause() }, func(w *world) { w.database.Resume() }},
		"killed": {func(w *world) { w.database.Kill() }, func(w *world) { w.must(w.database.Start()) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := onDatabase(t, agedFor)
			l := w.run(clients(), "strict", "open", made)
			time.Sleep(2 * time.Second)
			row.away(w)
			went := time.Now()
			w.answers(made, http.StatusOK, true, "")
			w.closedTo()
			w.answers(made, http.StatusServiceUnavailable, false, "authorization_unavailable")
			time.Sleep(5 * time.Second)
			w.closedTo()
			row.back(w)
			back := time.Now()
			w.openAgain()
			time.Sleep(2 * time.Second)
			all := l.end()
			for i := range all {
				if r := &all[i]; r.org == made && r.status == http.StatusOK && r.began.After(went.Add(agedFor+slack)) && r.began.Add(r.took).Before(back) {
					t.Errorf("a key of the API was served %s after the database went", r.began.Sub(went))
				}
			}
			w.unhurt(all, went, back)
			line(t, fmt.Sprintf("PostgreSQL was %s, and back after %s", name, back.Sub(went).Round(time.Second)), say(all), w.check(all, checks{}))
		})
	}
}

// The database takes 2 s for each answer. Nobody waits for it, and what is revoked is revoked when the answer says so.
func TestTheDatabaseIsSlow(t *testing.T) {
	t.Parallel()
	const by = 2 * time.Second
	w := onDatabase(t, time.Minute)
	l := w.run(clients(), "strict", "open", made)
	time.Sleep(2 * time.Second)
	for _, way := range w.ways {
		way.Slow(by)
	}
	went := time.Now()
	time.Sleep(10 * time.Second)
	began := time.Now()
	a := w.grant(late, "3", false)
	took := time.Since(began)
	switch a.Status {
	case http.StatusOK:
		for range 20 {
			w.refused(late, 0)
			time.Sleep(100 * time.Millisecond)
		}
	case http.StatusServiceUnavailable:
	default:
		t.Errorf("a change took %s and was answered %d %s", took, a.Status, a.Body)
	}
	time.Sleep(10 * time.Second)
	w.refused(revoked, 0)
	back := time.Now()
	for _, way := range w.ways {
		way.Heal()
	}
	w.answers(made, http.StatusOK, false, "")
	w.answers(cold, http.StatusUnauthorized, false, "unauthorized")
	w.done(w.grant(late, "4", false))
	w.refused(late, http.StatusUnauthorized)
	time.Sleep(2 * time.Second)
	all := l.end()
	w.unhurt(all, went, back)
	line(t, fmt.Sprintf("PostgreSQL took %s for each answer (a key was revoked with %d in %s)", by, a.Status, took.Round(time.Second/10)), say(all), w.check(all, checks{}))
}

// One gateway alone cannot reach the database while a key is revoked at another: from the answer on nobody serves that key.
func TestAGatewayIsCutOffTheDatabase(t *testing.T) {
	t.Parallel()
	w := onDatabase(t, time.Minute)
	l := w.run(clients(), "strict", "open", made)
	time.Sleep(2 * time.Second)
	w.ways["gw1"].Cut()
	w.until("the gateway that is cut off serves keys as they were last known", func() bool {
		a, err := askFor(w.urls[1], late, made)
		return err == nil && a.Status == http.StatusOK && a.Header.Get("X-Tm-Authorization-Mode") == "bounded_snapshot"
	})
	w.done(w.grant(late, "3", false))
	since := time.Now()
	for time.Since(since) < 15*time.Second {
		w.refused(late, 0)
		w.refused(revoked, 0)
		time.Sleep(200 * time.Millisecond)
	}
	if a, err := askFor(w.urls[0], made, made); err != nil || a.Status != http.StatusOK {
		t.Errorf("the gateway with the database: %+v, %v", a, err)
	}
	back := time.Now()
	w.ways["gw1"].Heal()
	w.answers(made, http.StatusOK, false, "")
	w.refused(late, http.StatusUnauthorized)
	time.Sleep(2 * time.Second)
	all := l.end()
	w.unhurt(all, since, back)
	line(t, "one gateway was cut off PostgreSQL for 15 s, and a key revoked meanwhile", say(all), w.check(all, checks{}))
}
