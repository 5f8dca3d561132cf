package chaos

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/test/e2e/stack"
)

// binary is the product as users run it, built once.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "weir-chaos-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "weir")
	if text, err := exec.Command("go", "build", "-o", binary, "github.com/weirhq/weir/services/weir").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building weir: %v\n%s", err, text)
		os.Exit(1)
	}
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(atOnce)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// clients is how many ask at the same time.
func clients() int {
	if long {
		return 100
	}
	return 16
}

// script makes each call take a moment.
const script = "tokens=8;delay=60ms"

// between gives the short form's or the long form's duration.
func between(short, whole time.Duration) time.Duration {
	if long {
		return whole
	}
	return short
}

// The log's process dies and comes back.
func TestTheLogsProcessIsKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	l := w.run(clients())
	time.Sleep(time.Second)
	down := between(5*time.Second, 40*time.Second)
	w.core.kill()
	time.Sleep(down)
	if status, text := w.why(0); !long && (status != http.StatusOK || !strings.Contains(text, "bounded_local")) {
		t.Errorf("/ready of a gateway that goes on alone: %d %s", status, text)
	} else if long && status != http.StatusServiceUnavailable {
		t.Errorf("/ready of a gateway whose allowance is over: %d %s", status, text)
	}
	w.core.start()
	w.ready()
	time.Sleep(time.Second)
	all := l.end()
	bounded := 0
	for i := range all {
		if all[i].bounded {
			bounded++
		}
	}
	if bounded == 0 {
		t.Error("nothing was admitted without the log")
	}
	line(t, fmt.Sprintf("the log's process was killed, and back after %s", down), say(all), w.check(all, checks{}))
}

// A gateway dies, and another process takes its place.
func TestAGatewayIsKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	l := w.run(clients())
	time.Sleep(time.Second)
	w.gateways[1].kill()
	time.Sleep(between(time.Second, 12*time.Second))
	w.gateways[1].start()
	w.ready()
	time.Sleep(time.Second)
	all := l.end()
	line(t, "a gateway was killed and started again", say(all), w.check(all, checks{killed: true}))
}

// A gateway stops for longer than its lease, and goes on.
func TestAGatewayStandsStill(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	l := w.run(clients())
	time.Sleep(time.Second)
	w.gateways[1].signal(syscall.SIGSTOP)
	stood := between(12*time.Second, 15*time.Second)
	time.Sleep(stood)
	w.gateways[1].signal(syscall.SIGCONT)
	w.ready()
	time.Sleep(time.Second)
	all := l.end()
	line(t, "a gateway stood still for longer than its lease", say(all), w.check(all, checks{killed: true, stood: stood}))
}

// A gateway dies that has spooled what the log does not know.
func TestAGatewayDiesWithASpool(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{script: "tokens=8;delay=300ms"})
	w.core.kill()
	var all []result
	l := &load{}
	for end := time.Now().Add(within); ; {
		r := l.one(w.urls[0], "open")
		all = append(all, r)
		if n := count(all, func(r *result) bool { return r.bounded && r.status == http.StatusOK }); n == 3 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("nothing was admitted without the log")
		}
	}
	go l.one(w.urls[0], "open")
	calls := w.provider.Ledger().Totals().Calls
	w.until("a fourth call is under way", func() bool { return w.provider.Ledger().Totals().Calls > calls })
	w.gateways[0].kill()
	w.core.start()
	w.listening()
	w.gateways[0].start()
	w.ready()
	nc, log, _ := w.join(access.Auditor)
	defer nc.Close()
	ended := 0
	w.until("each call that was spooled has its end in the log", func() bool {
		story := stack.Read(t, log)
		spooled := 0
		ended = 0
		for _, trail := range story.Requests {
			if len(trail.Reserves) > 0 && trail.Reserves[0].Mode == events.ModeBoundedLocal {
				spooled++
				ended += len(trail.Ended())
			}
		}
		return spooled == 4 && ended == 4
	})
	line(t, "a gateway died in the middle of a call that only its spool knows", say(all), w.check(all, checks{killed: true}))
}

func count(all []result, what func(*result) bool) (n int) {
	for i := range all {
		if what(&all[i]) {
			n++
		}
	}
	return n
}
