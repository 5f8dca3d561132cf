package journal_test

import (
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/test/freeport"
)

func openLogOf(t *testing.T, nc *nats.Conn) *journal.Log {
	t.Helper()
	l, err := journal.Open(t.Context(), nc, journal.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// startCluster starts three servers that hold the log together.
func startCluster(t *testing.T) []*server.Server {
	t.Helper()
	routes, err := url.Parse("nats://" + freeport.Address(t))
	if err != nil {
		t.Fatal(err)
	}
	var servers []*server.Server
	for i := range 3 {
		port := server.RANDOM_PORT
		if i == 0 {
			if _, err := fmt.Sscanf(routes.Port(), "%d", &port); err != nil {
				t.Fatal(err)
			}
		}
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprintf("s%d", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
			JetStream: true, StoreDir: t.TempDir(),
			Cluster: server.ClusterOpts{Name: "weir", Host: "127.0.0.1", Port: port},
			Routes:  []*url.URL{routes},
		})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		servers = append(servers, s)
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	}
	for _, s := range servers {
		eventually(t, "the cluster has a leader", func() bool { return s.JetStreamIsCurrent() })
	}
	return servers
}

func TestClusterLosesTheLeaderOfTheLog(t *testing.T) {
	servers := startCluster(t)
	var urls string
	for _, s := range servers {
		urls += s.ClientURL() + ","
	}
	connect := func() *nats.Conn { return dial(t, urls[:len(urls)-1]) }
	var l *journal.Log
	eventually(t, "the stream can be made", func() (made bool) {
		var err error
		l, err = journal.Open(t.Context(), connect(), journal.Config{Create: true, Replicas: 3})
		return err == nil
	})
	p := startPublisher(t, l, journal.PublisherConfig{Gateway: gateway})
	tap := openLogOf(t, connect()).Tap(t.Context(), journal.TapConfig{})
	defer tap.Close()

	r := newResults()
	var ids []string
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
			ev := reserve(gateway, "acme")
			if err := p.Submit(ev, r.of(ev.ID)); err != nil {
				t.Error(err)
				return
			}
			ids = append(ids, ev.ID)
		}
	})
	all := follow(t, tap, 100)
	for _, s := range servers {
		if s.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, journal.DefaultStream) {
			s.Shutdown()
			break
		}
	}
	all = append(all, follow(t, tap, 500)...)
	close(stop)
	wg.Wait()
	flush(t, p)
	all = append(all, follow(t, tap, len(ids)-len(all))...)
	contiguous(t, all, 1)
	r.exactlyOnce(t, openLogOf(t, connect()), ids)
}
