package chaos

import (
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
)

// slowBy is how much later than sent what is slow arrives.
const slowBy = 3 * time.Second

// The log takes what gateways publish only after 3 s: everybody is refused within a bounded wait, and nothing is admitted without the log,
// which is in reach. What came too late is released.
func TestPublishesTakeThreeSeconds(t *testing.T) {
	t.Parallel()
	slow(t, "publishes took 3 s", false, events.Prefix+".")
}

// Verdicts, and the questions for them, come 3 s late, though the log takes everything at once. No projector says a word in time, which is as
// none at all: gateways go on with their allowance, and what the log admitted meanwhile is released.
func TestVerdictsComeLate(t *testing.T) {
	t.Parallel()
	slow(t, "verdicts came 3 s late", true, "verdict.")
}

func slow(t *testing.T, what string, alone bool, subjects ...string) {
	w := newWorld(t, setup{})
	l := w.run(clients())
	time.Sleep(time.Second)
	for _, p := range w.pipes {
		p.late(slowBy, subjects...)
	}
	began := time.Now()
	time.Sleep(between(6*time.Second, 20*time.Second))
	for _, p := range w.pipes {
		p.heal()
	}
	w.ready()
	healed := time.Now()
	time.Sleep(time.Second)
	all := l.end()
	refused := count(all, func(r *result) bool {
		return r.status == http.StatusServiceUnavailable && r.code == "gateway_infrastructure"
	})
	if refused == 0 {
		t.Error("nothing was refused")
	}
	if n := count(all, func(r *result) bool { return r.bounded }); n > 0 && !alone {
		t.Errorf("%d requests were admitted without a log that is in reach", n)
	}
	if n := count(all, func(r *result) bool {
		return r.began.After(began.Add(slowBy)) && r.began.Add(r.took).Before(healed.Add(-slowBy)) && r.status == http.StatusOK && !r.bounded
	}); n > 0 {
		t.Errorf("%d requests were admitted with verdicts that come after their time", n)
	}
	line(t, what, say(all), w.check(all, checks{}))
}

// The projector dies while the log lives on: nobody decides, so gateways go on with their allowance.
func TestTheProjectorIsKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{apart: true})
	l := w.run(clients())
	time.Sleep(time.Second)
	projector := w.readers[0]
	projector.kill()
	time.Sleep(between(5*time.Second, 40*time.Second))
	projector.start()
	w.ready()
	time.Sleep(time.Second)
	all := l.end()
	if count(all, func(r *result) bool { return r.bounded }) == 0 {
		t.Error("nothing was admitted without a projector")
	}
	line(t, "the projector alone was killed and started again", say(all), w.check(all, checks{}))
}

// The log's process stands still and goes on.
func TestTheLogsProcessStandsStill(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	l := w.run(clients())
	time.Sleep(time.Second)
	stood := between(6*time.Second, 15*time.Second)
	w.core.signal(syscall.SIGSTOP)
	time.Sleep(stood)
	w.core.signal(syscall.SIGCONT)
	w.ready()
	time.Sleep(time.Second)
	all := l.end()
	line(t, fmt.Sprintf("the log's process stood still for %s", stood), say(all), w.check(all, checks{}))
}
