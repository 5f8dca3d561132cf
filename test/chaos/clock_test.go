//go:build chaos

package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/test/freeport"
)

// clockIsWhy is what everybody says while nothing is admitted for the clock.
const clockIsWhy = "the stream's clock is off"

// The wall clock of the process that holds the log steps by a minute, and back: nothing is admitted until an operator says so, by nobody, and
// everybody names the clock.
func TestTheBrokersClockSteps(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		by      time.Duration
		windows string
	}{{time.Minute, "full"}, {-time.Minute, "empty"}} {
		t.Run(row.by.String(), func(t *testing.T) {
			t.Parallel()
			brokersClock(t, "the broker's", setup{}, row.by, row.windows)
		})
	}
}

// The same of a NATS server of its own.
func TestAServersClockSteps(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{time.Minute, -time.Minute} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			brokersClock(t, "a NATS server's", setup{servers: 1}, by, "empty")
		})
	}
}

// brokersClock steps the clock of what holds the log in a world.
func brokersClock(t *testing.T, whose string, s setup, by time.Duration, windows string) {
	var c *clock
	s.apart, s.change = true, func(w *world) { c = newClock(t, w.core) }
	w := newWorld(t, s)
	w.operator()
	l := w.run(clients())
	time.Sleep(3 * time.Second)
	c.off(by)
	stepped := time.Now()
	known := w.saysTheClock()
	time.Sleep(15 * time.Second) // while it is wrong
	c.off(0)
	time.Sleep(5 * time.Second) // that it is right again says nothing of what was counted meanwhile
	w.saysTheClock()
	w.statusSaysTheClock()
	asked := time.Now()
	said := w.weir("recover", "--config", w.file("operator"), "--windows", windows, "--reason", "the clock was wrong by "+by.String())
	w.ready()
	recovered := time.Now()
	if windows == "full" {
		time.Sleep(time.Minute) // for which what has a limit on a minute is refused
		w.until("orgs with a limit on a minute are admitted again", func() bool { ok, _ := w.admits(0, "open"); return ok })
	}
	time.Sleep(2 * time.Second)
	all := l.end()
	for i := range all {
		r := &all[i]
		if r.began.After(known) && r.began.Add(r.took).Before(asked) && (r.status != http.StatusServiceUnavailable || r.code != "gateway_infrastructure") {
			t.Errorf("request %s of org %s got %d %s while the clock was the reason", r.id, r.org, r.status, r.code)
		}
	}
	none(t, all, "of a log that is in reach")
	words := fmt.Sprintf("%s; the clock was named after %.1f s, admitted again %.1f s after weir recover --windows %s", say(all), known.Sub(stepped).Seconds(), recovered.Sub(asked).Seconds(), windows)
	line(t, fmt.Sprintf("%s clock stepped by %s, and back", whose, by), words, w.check(all, checks{clock: true}))
	w.verifies()
	if t.Failed() {
		t.Log(said)
	}
}

// none checks that nothing was admitted by the gateways themselves.
func none(t *testing.T, all []result, why string) {
	t.Helper()
	if n := count(all, func(r *result) bool { return r.bounded }); n > 0 {
		t.Errorf("%d requests were admitted by the allowance, %s", n, why)
	}
}

// operator writes the configuration of an operator's commands, where the projector keeps its snapshots.
func (w *world) operator() {
	w.config("operator", w.joins(string(access.Projector), freeport.Address(w.tb), w.everywhere(), access.Operator))
}

// verifies checks that what is kept agrees with the log.
func (w *world) verifies() {
	w.tb.Helper()
	if said := w.weir("verify", "--config", w.file("operator")); !strings.Contains(said, "no difference") {
		w.tb.Errorf("weir verify says\n%s", said)
	}
}

// file is the configuration of a process.
func (w *world) file(name string) string { return filepath.Join(w.dir, name, "weir.yaml") }

// weir runs a command, and gives what it prints.
func (w *world) weir(args ...string) string {
	w.tb.Helper()
	text, err := exec.Command(binary, args...).Output()
	if err != nil {
		var why []byte
		if failed, ok := errors.AsType[*exec.ExitError](err); ok {
			why = failed.Stderr
		}
		w.tb.Fatalf("weir %s: %v\n%s%s", strings.Join(args, " "), err, text, why)
	}
	return string(text)
}

// few checks that hardly anything was refused for want of a verdict: a machine that has much else to do is late now and then.
func few(t *testing.T, all []result, why string) {
	t.Helper()
	n := count(all, func(r *result) bool { return r.status == http.StatusServiceUnavailable })
	if n*100 > len(all) {
		t.Errorf("%d of %d requests were refused %s", n, len(all), why)
	}
}

// saysTheClock waits until every gateway is not ready for the clock, and gives when.
func (w *world) saysTheClock() time.Time {
	w.tb.Helper()
	for i := range w.gateways {
		why := ""
		w.until(fmt.Sprintf("/ready of gateway %d names the clock", i), func() bool {
			status, text := w.why(i)
			why = text
			return status == http.StatusServiceUnavailable && strings.Contains(text, clockIsWhy) && strings.Contains(text, "weir recover")
		}, &why)
	}
	return time.Now()
}

// statusSaysTheClock checks what weir status says of the projector's process and of a gateway's.
func (w *world) statusSaysTheClock() {
	w.tb.Helper()
	for _, name := range []string{string(access.Projector), "gw0"} {
		if text := w.weir("status", "--config", w.file(name)); !strings.Contains(text, clockIsWhy) {
			w.tb.Errorf("weir status of %s does not name the clock:\n%s", name, text)
		}
	}
}

// The broker's clock steps by a little: that is an alarm, and nothing else.
func TestTheBrokersClockStepsALittle(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{5 * time.Second, -5 * time.Second} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			var c *clock
			w := newWorld(t, setup{apart: true, change: func(w *world) { c = newClock(t, w.core) }})
			l := w.run(clients())
			time.Sleep(3 * time.Second)
			c.off(by)
			alarm := func() bool {
				p := w.projectorSays(string(access.Projector))
				return !p.Ready && strings.Contains(p.Why, clockIsWhy) && !strings.Contains(p.Why, "weir recover")
			}
			w.until("the projector raises an alarm", alarm)
			time.Sleep(10 * time.Second)
			if !alarm() {
				t.Error("the alarm is over while the clock is wrong")
			}
			for i := range w.gateways {
				if status, text := w.why(i); status != http.StatusOK {
					t.Errorf("/ready of gateway %d: %d %s", i, status, text)
				}
			}
			c.off(0)
			w.until("the alarm is over", func() bool { return w.projectorSays(string(access.Projector)).Ready })
			time.Sleep(2 * time.Second)
			all := l.end()
			none(t, all, "of a log that is in reach")
			few(t, all, "for a clock that is hardly wrong")
			line(t, fmt.Sprintf("the broker's clock stepped by %s, and back", by), say(all), w.check(all, checks{clock: true}))
		})
	}
}

// projectorState is what weir status says of a projector.
type projectorState struct {
	Ready  bool   `json:"ready"`
	Why    string `json:"why"`
	Writer bool   `json:"writer"`
}

func (w *world) projectorSays(name string) projectorState {
	w.tb.Helper()
	var s struct{ Projector projectorState }
	if err := json.Unmarshal([]byte(w.weir("status", "--json", "--config", w.file(name))), &s); err != nil {
		w.tb.Fatal(err)
	}
	return s.Projector
}

// The clock of one projector steps, that of another does not: it alone answers, and nobody is refused. Started again, the one whose clock was
// wrong is silent until an operator says that it is right.
func TestAProjectorsClockSteps(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{time.Minute, -time.Minute} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			projectorsClock(t, by)
		})
	}
}

func projectorsClock(t *testing.T, by time.Duration) {
	var c *clock
	const second = "second"
	w := newWorld(t, setup{apart: true, change: func(w *world) {
		c = newClock(t, w.readers[0])
		head := w.joins(second, freeport.Address(t), w.everywhere(), access.Projector) + fmt.Sprintf("operators: {listen: %s}\n", freeport.Address(t))
		w.readers = append(w.readers, w.process("serve", "--roles", string(access.Projector), "--config", w.config(second, head)))
	}})
	first := string(access.Projector)
	l := w.run(clients())
	time.Sleep(3 * time.Second)
	c.off(by)
	w.until("the first names the clock", func() bool { return strings.Contains(w.projectorSays(first).Why, clockIsWhy) })
	w.until("the second writes", func() bool { return w.projectorSays(second).Writer })
	time.Sleep(10 * time.Second)
	if p := w.projectorSays(second); !p.Ready {
		t.Errorf("the second says %s", p.Why)
	}
	c.off(0)
	w.readers[0].stop()
	w.readers[0].start()
	w.until("the first, started again, names the clock", func() bool {
		text, err := exec.Command(binary, "status", "--config", w.file(first)).CombinedOutput()
		return err == nil && strings.Contains(string(text), clockIsWhy)
	})
	w.weir("recover", "--config", w.file("core"), "--windows", "empty", "--reason", "the clock of a projector was wrong")
	w.until("the first is ready", func() bool { return w.projectorSays(first).Ready })
	time.Sleep(2 * time.Second)
	all := l.end()
	none(t, all, "though one projector answers")
	few(t, all, "though one projector answers")
	line(t, fmt.Sprintf("the clock of one of two projectors stepped by %s, and back", by), say(all), w.check(all, checks{}))
}

// The clock of a machine that runs every process steps, and back. To all of them the log's time is right but for what was written before a step
// back and is read after it: where a projector meets that, it says so and nothing is admitted until an operator says that the clock is right.
func TestAMachinesClockSteps(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{time.Minute, -time.Minute} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			machinesClock(t, by)
		})
	}
}

func machinesClock(t *testing.T, by time.Duration) {
	var c *clock
	w := newWorld(t, setup{apart: true, change: func(w *world) {
		c = newClock(t, append([]*process{w.core, w.gateways[0], w.gateways[1]}, w.readers...)...)
	}})
	w.operator()
	l := w.run(clients())
	time.Sleep(3 * time.Second)
	met := "admitted all the while"
	for _, off := range []time.Duration{by, 0} {
		c.off(off)
		time.Sleep(15 * time.Second)
		if w.projectorSays(string(access.Projector)).Ready {
			continue
		}
		w.saysTheClock()
		w.weir("recover", "--config", w.file("operator"), "--windows", "empty", "--reason", "the clock was stepped back")
		w.ready()
		met = "a record from before the step back was met, the clock named, and admitted again after weir recover"
	}
	w.ready()
	time.Sleep(2 * time.Second)
	all := l.end()
	none(t, all, "of a log that is in reach")
	line(t, fmt.Sprintf("the clock of a machine with every process stepped by %s, and back", by), say(all)+"; "+met, w.check(all, checks{clock: true}))
	w.verifies()
}
