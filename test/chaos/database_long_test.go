//go:build chaos

package chaos

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

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
