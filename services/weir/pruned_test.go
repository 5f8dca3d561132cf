package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/insight"
	"github.com/weirhq/weir/projections/projector"
	"github.com/weirhq/weir/services/biller"
)

// Whoever reads a log whose beginning is gone goes on from a state of before, or says what it cannot know.
func TestReadersOfAPrunedLog(t *testing.T) {
	l := startLive(t)
	nc, err := l.broker.Connect(access.Identity{Name: "keeper-abcdefgh", Roles: []access.Role{access.System}}, journal.Options("keeper")...)
	must(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	must(t, err)
	p, err := projector.New(projector.Config{Log: l.log, Conn: nc, Name: "keeper-abcdefgh"})
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()

	prepaid := func(n int) *events.Reserve {
		return eventstest.Reserve(eventstest.RequestID(n), eventstest.Hold("org/acme/balance", 5000))
	}
	l.publish(t, "credit", &events.Credit{Org: "acme", AmountNano: 12_000, Reference: "c"})
	l.publish(t, "reserve-1", prepaid(1))
	l.publish(t, "final-1", eventstest.Final(eventstest.RequestID(1), 100, 20, 4500))
	l.publish(t, "release-1", eventstest.Release(eventstest.RequestID(1)))
	for end := time.Now().Add(patience); p.Stats().Packs == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("nothing is written: %+v", p.Stats())
		}
	}
	stop() // and so it shares what it knows
	must(t, <-ended)
	shared := p.Stats().SharedSeq
	l.publish(t, "reserve-2", prepaid(2))
	l.publish(t, "verdicts-2", &events.Verdicts{Rules: 1, Verdicts: []events.Verdict{{Request: eventstest.RequestID(2), Admitted: true}}})
	l.publish(t, "final-2", eventstest.Final(eventstest.RequestID(2), 100, 20, 4500))
	l.publish(t, "release-2", eventstest.Release(eventstest.RequestID(2)))
	stream, err := js.Stream(t.Context(), journal.DefaultStream)
	must(t, err)
	kept := stream.CachedInfo().Config
	pruned := kept
	pruned.Discard, pruned.MaxMsgs = jetstream.DiscardOld, int64(stream.CachedInfo().State.LastSeq-shared)
	for _, c := range []jetstream.StreamConfig{pruned, kept} {
		_, err := js.UpdateStream(t.Context(), c)
		must(t, err)
	}

	from := []string{"--log", l.url, "--credentials", l.secret, "--data-dir", t.TempDir()}
	tool := func(args ...string) string { return mustRun(t, append(args, from...)...) }
	has := func(text string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in\n%s", want, text)
			}
		}
	}
	first := fmt.Sprint(shared + 1)
	second := insight.ShortID(eventstest.RequestID(2))
	has(tool("explain", second), "admitted", "folded from a snapshot before sequence "+first)
	must(t, js.DeleteKeyValue(t.Context(), access.BucketSnapshots))
	has(tool("explain", second), "was really admitted, as the verdicts at sequence", "folded from sequence "+first+" on: what was charged or credited before is missing")
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	must(t, os.WriteFile(limits, []byte("meters: {org/acme/rpm: 5}\n"), 0o600))
	for _, since := range [][]string{nil, {"--since", "1h"}} {
		has(tool(append([]string{"simulate", "--limits", limits}, since...)...), "folded from sequence "+first+" on, and nothing is known of before")
	}
	verify := &verifyCommand{sourceFlags: sourceFlags{Log: l.url, Credentials: l.secret, DataDir: t.TempDir()}}
	if err := verify.run(t.Context(), "", io.Discard); err == nil || !strings.Contains(err.Error(), "the log begins at sequence "+first) {
		t.Errorf("verify: %v", err)
	}
	b, err := biller.New(biller.Config{Conn: nc, Log: l.log, Name: "keeper-abcdefgh", Alone: true, DataDir: t.TempDir()})
	must(t, err)
	if err := b.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "the log begins at sequence "+first) {
		t.Errorf("biller: %v", err)
	}
}
