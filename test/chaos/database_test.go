package chaos

import (
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/test/e2e/stack"
	"github.com/weirhq/weir/test/postgrestest"
)

// made is the org whose keys are made through the API, and one of them; revoked and late are two others of its keys, and cold is one that nobody
// has made.
const (
	made    = "made"
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

// at is the line of a process's configuration with its own way to the database.
func (w *world) at(process string) string {
	way, url := postgrestest.Through(w.tb, w.database.URL)
	w.ways[process] = way
	return fmt.Sprintf("database: %q\n", url)
}

// migrate makes the database's schema.
func (w *world) migrate(config string) {
	w.tb.Helper()
	if text, err := exec.Command(binary, "migrate", "--config", config).CombinedOutput(); err != nil {
		w.tb.Fatalf("weir migrate: %v\n%s", err, text)
	}
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
	time.Sleep(between(2*time.Second, 40*time.Second))
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
