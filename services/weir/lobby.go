package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/gateway/authority/store"
)

// How a process waits for what it needs before it can begin.
const (
	firstPause = 100 * time.Millisecond
	maxPause   = 5 * time.Second // so that it begins soon after
	sayEvery   = time.Minute     // while it goes on waiting
)

// lobby answers in place of a process that waits: it is alive, and not ready. The zero value answers nothing before the first open.
type lobby struct {
	servers []*http.Server
	at      []string // where they answer
	mu      sync.Mutex
	why     string
}

// say changes why the process waits.
func (l *lobby) say(why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.why = why
}

// open answers at the addresses, unless it does already.
func (l *lobby) open(addresses []string) error {
	if len(l.servers) > 0 {
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", serveHealth)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		l.mu.Lock()
		why := l.why
		l.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(map[string]any{"ready": false, "why": why}) // who asked is gone, then
	})
	for _, address := range addresses {
		on, err := net.Listen("tcp", address)
		if err != nil {
			return fmt.Errorf("listen on %s: %w", address, err)
		}
		s := &http.Server{Handler: mux, ReadHeaderTimeout: operateHeaderWithin}
		l.servers, l.at = append(l.servers, s), append(l.at, on.Addr().String())
		go func() { _ = s.Serve(on) }() // until it is closed
	}
	return nil
}

// close leaves the addresses to who is to serve there.
func (l *lobby) close() {
	for _, s := range l.servers {
		_ = s.Close() // answers under way may be lost
	}
	l.servers, l.at = nil, nil
}

// await does something for which another process is needed, again until that is there: away says whether an error tells that it is not,
// and any other is returned at once. Meanwhile a process that is to serve says so.
func (n *node) await(ctx context.Context, what string, away func(error) bool, do func(context.Context) error) error {
	err := do(ctx)
	var said time.Time
	at := []string{}
	for pause := firstPause; err != nil && away(err); pause = min(2*pause, maxPause) {
		if n.lobby != nil {
			n.lobby.say(fmt.Sprintf("waits for %s: %s", what, err))
			if err := n.lobby.open(n.addresses()); err != nil {
				return err
			}
			at = n.lobby.at
		}
		if now := time.Now(); now.Sub(said) >= sayEvery {
			n.logger.Warn("waits for "+what, "error", err, "addresses", at)
			said = now
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		if err = do(ctx); err == nil {
			n.logger.Info("waits no longer for " + what)
		}
	}
	return err
}

// addresses are those that the process serves at.
func (n *node) addresses() (all []string) {
	if n.config.Operators.Listen != "" {
		all = append(all, n.config.Operators.Listen)
	}
	if n.has(roleGateway) {
		all = append(all, n.config.Listen)
	}
	return all
}

// logAway says whether an error tells that the log, or what others make in its broker, is not there yet.
func logAway(err error) bool {
	return journal.Unreachable(err) || store.Unavailable(err) || errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrBucketNotFound)
}

// serversAway says whether an error of joining the log tells that no server is there yet, rather than that one turns this process away.
func serversAway(err error) bool {
	if err != nil && strings.Contains(err.Error(), "expected 'PONG', got 'PING'") {
		return true // one side was so slow that the server asked whether the other is there before it had answered
	}
	if errors.Is(err, nats.ErrNoServers) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, io.EOF) {
		return true
	}
	if name, ok := errors.AsType[*net.DNSError](err); ok {
		return name.Temporary() || name.IsNotFound // a name may be made together with what it names
	}
	op, ok := errors.AsType[*net.OpError](err)
	return ok && (op.Op == "dial" || op.Op == "read")
}
