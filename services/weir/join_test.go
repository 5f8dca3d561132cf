package main

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/services/config"
)

// TestWhoJoinsWaitsForTheLog has processes open the log at a server that does not answer for it yet: who keeps it makes it, and others wait for that.
func TestWhoJoinsWaitsForTheLog(t *testing.T) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true})
	must(t, err)
	s.Start()
	defer s.Shutdown()
	if !s.ReadyForConnections(30 * time.Second) {
		t.Fatal("the server takes no connections")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	asked, err := nats.Connect(s.ClientURL())
	must(t, err)
	defer asked.Close()
	questions, err := asked.SubscribeSync("$JS.API.STREAM.INFO.*")
	must(t, err)
	must(t, asked.Flush())
	opened := make(chan error, 2)
	for _, keeper := range []bool{true, false} {
		nc, err := nats.Connect(s.ClientURL())
		must(t, err)
		defer nc.Close()
		n := &node{config: &config.Config{Log: config.Log{Replicas: 1}}, conn: nc, logger: slog.New(slog.DiscardHandler)}
		go func() { opened <- n.openLog(ctx, keeper) }()
	}
	for range 2 {
		m, err := questions.NextMsgWithContext(ctx)
		must(t, err)
		must(t, m.Respond([]byte(`{"type":"io.nats.jetstream.api.v1.stream_info_response","error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}`)))
	}
	must(t, questions.Unsubscribe())
	must(t, asked.Flush())
	must(t, s.EnableJetStream(&server.JetStreamConfig{StoreDir: t.TempDir()}))
	for range 2 {
		must(t, <-opened)
	}
}
