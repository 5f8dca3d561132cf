package gateway

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
)

// broker is a server that is stopped and started again.
type broker struct {
	*server.Server
	t    *testing.T
	dir  string
	port int
}

func (b *broker) start() {
	b.t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: b.port, NoLog: true, NoSigs: true, JetStream: true, StoreDir: b.dir})
	if err != nil {
		b.t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(30 * time.Second) {
		b.t.Fatal("the broker did not start")
	}
	b.Server, b.port = s, s.Addr().(*net.TCPAddr).Port
}

func (b *broker) stop() {
	b.Shutdown()
	b.WaitForShutdown()
}

// TestASecondTryHandsNothingOverTwice: what a try to publish a spool could not bring to its end is waited for by the next, and is in the log once.
func TestASecondTryHandsNothingOverTwice(t *testing.T) {
	const name = "gw-00000001"
	b := &broker{t: t, dir: t.TempDir(), port: -1}
	b.start()
	defer func() { b.stop() }()
	nc, err := nats.Connect(b.ClientURL(), append(journal.Options(name), nats.ReconnectWait(20*time.Millisecond))...)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	log, err := journal.Open(t.Context(), nc, journal.Config{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	p, err := log.Publisher(t.Context(), journal.PublisherConfig{Gateway: name})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(running) }()
	defer func() { stop(); <-ended }()

	b.stop()
	var all []events.Event
	for i := range 5 {
		all = append(all, events.Event{ID: fmt.Sprintf("tick/%d", i), Source: name, Org: events.Platform, Data: &events.Tick{Gateway: name}})
	}
	s := newSender(p)
	for range 2 {
		try, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := s.send(try, all, nil); err == nil {
			t.Error("the log took events while it was away")
		}
		cancel()
	}
	b.start()
	try, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.send(try, all, nil); err != nil {
		t.Fatal(err)
	}
	if err := p.Flush(try); err != nil {
		t.Fatal(err)
	}
	if stats := p.Stats(); stats.Events != uint64(len(all)) || len(s.held) != 0 {
		t.Errorf("%d events were published, %d are in hand; want %d and none", stats.Events, len(s.held), len(all))
	}
}
