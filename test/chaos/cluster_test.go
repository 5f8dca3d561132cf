//go:build chaos

package chaos

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events/journal/access"
)

// threeServers hold the log in the rows with a cluster.
const threeServers = 3

// holders are the servers that hold the log.
func (w *world) holders() []*process { return append([]*process{w.core}, w.peers...) }

// leader is which of them leads the log.
func (w *world) leader() int {
	w.tb.Helper()
	nc, log, _ := w.join(access.Operator)
	defer nc.Close()
	js, err := jetstream.New(nc)
	w.must(err)
	leader := -1
	why := ""
	w.until("the log has a leader", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		s, err := js.Stream(ctx, log.Stream())
		if err != nil || s.CachedInfo().Cluster == nil {
			why = fmt.Sprint(err)
			return false
		}
		_, err = fmt.Sscanf(s.CachedInfo().Cluster.Leader, "nats-%d", &leader)
		why = s.CachedInfo().Cluster.Leader
		return err == nil
	}, &why)
	return leader - 1
}

// The log is in a cluster of three, whose leader dies and comes back.
func TestTheClustersLeaderIsKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{servers: threeServers, apart: true})
	l := w.run(clients())
	time.Sleep(2 * time.Second)
	leader := w.holders()[w.leader()]
	leader.kill()
	died := time.Now()
	w.ready()
	again := time.Since(died)
	time.Sleep(time.Until(died.Add(30 * time.Second)))
	leader.start()
	back := time.Now()
	time.Sleep(10 * time.Second)
	w.ready()
	all := l.end()
	if n := count(all, func(r *result) bool {
		return r.org == "open" && r.status == http.StatusOK && !r.bounded && r.began.After(died.Add(again)) && r.began.Add(r.took).Before(back)
	}); n == 0 {
		t.Error("nothing was admitted through two of three servers")
	}
	line(t, fmt.Sprintf("the leader of three NATS servers was killed, and back after %s", back.Sub(died).Round(time.Second)), say(all),
		fmt.Sprintf("both gateways admitted through the log again after %.1f s; %s", again.Seconds(), w.check(all, checks{})))
}

// Two of the three die, so that nobody can lead, and come back.
func TestTheClusterLosesItsQuorum(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{servers: threeServers, apart: true})
	l := w.run(clients())
	time.Sleep(2 * time.Second)
	leader := w.leader()
	servers := w.holders()
	servers[leader].kill()
	servers[(leader+1)%threeServers].kill()
	died := time.Now()
	for i := range w.urls {
		text := ""
		w.until(fmt.Sprintf("gateway %d goes on alone", i), func() bool {
			_, text = w.why(i)
			return strings.Contains(text, "bounded_local")
		}, &text)
	}
	time.Sleep(time.Until(died.Add(45 * time.Second)))
	for i := range w.urls {
		if status, text := w.why(i); status != http.StatusServiceUnavailable {
			t.Errorf("/ready of gateway %d, whose allowance is over: %d %s", i, status, text)
		}
	}
	servers[(leader+1)%threeServers].start()
	back := time.Now()
	w.ready()
	again := time.Since(back)
	servers[leader].start()
	time.Sleep(5 * time.Second)
	w.ready()
	all := l.end()
	if count(all, func(r *result) bool { return r.bounded }) == 0 {
		t.Error("nothing was admitted without the log")
	}
	line(t, fmt.Sprintf("two of three NATS servers were killed, and one of them was back after %s", back.Sub(died).Round(time.Second)), say(all),
		fmt.Sprintf("admitted through the log %.1f s after; %s", again.Seconds(), w.check(all, checks{})))
}
