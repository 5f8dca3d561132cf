package upstream

import (
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/gateway/relay"
)

const (
	// probeTimeouts is how many probes in a row may time out before a replica counts as unhealthy: a server whose every
	// core is busy is slow to say so.
	probeTimeouts = 3
	// signalAge is how old signals may be before they count as missing.
	signalAge = 5 * time.Second
	// brokenCalls is how many connections in a row may break before a replica counts as unhealthy: one can break because
	// the server closed it as idle in the very moment that it was used.
	brokenCalls = 2
)

// signals is what a replica reported at one time.
type signals struct {
	at      time.Time
	own     int64 // requests of this gateway at that time
	running reading
	waiting reading
	kv      reading   // 0 to 1
	first   histogram // time to the first token, since the server started
	between histogram // and between tokens
}

// reading is one number that a replica may report.
type reading struct {
	value float64
	set   bool
}

// replica is one server. Models that name the same URL share it.
type replica struct {
	url      string // base URL
	name     string // host and port
	inflight atomic.Int64
	kick     chan struct{} // asks for a probe at once

	mu      sync.Mutex
	healthy bool
	key     func() string // may be nil
	metrics bool          // it has /metrics
	since   uint64        // counts changes of healthy; a probe that began before one does not undo it
	slow    int           // probes in a row that timed out
	broken  int           // calls in a row whose connection broke
	fault   string        // why it is unhealthy
	seen    signals
	known   experience
	checked time.Time
}

func newReplica(base *url.URL) *replica {
	return &replica{url: base.String(), name: base.Host + base.Path, kick: make(chan struct{}, 1), fault: "it was not probed yet"}
}

func (r *replica) isHealthy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.healthy
}

// failure says whether a call failed by the server's fault, and whether it says anything of the server at all.
func failure(kind relay.Kind, status int) (failed, counts bool) {
	switch kind {
	case relay.Completed:
		return false, true
	case relay.UpstreamStatus: // what the client did wrong, the server did right
		return status >= 500, status != http.StatusTooManyRequests
	case relay.ClientGone, relay.Stopped, relay.Barred:
		return false, false
	}
	return true, true
}

// called takes how a call went, with the status of its answer, if any. A replica that cannot be reached is out at once, one whose
// connections break after a few; a probe, which comes at once, brings it back.
func (r *replica) called(kind relay.Kind, status int, now time.Time) {
	r.mu.Lock()
	if failed, counts := failure(kind, status); counts {
		r.known.called(failed, now)
	}
	switch kind {
	case relay.Unreachable:
		r.broken = brokenCalls
	case relay.Broken:
		r.broken++
	case relay.Completed, relay.UpstreamStatus, relay.StreamError:
		r.broken = 0
	}
	failed := kind == relay.Unreachable || kind == relay.Broken
	if failed && r.broken >= brokenCalls && r.healthy {
		r.healthy, r.fault, r.broken = false, "calls could not be made", 0
		r.since++
	}
	r.mu.Unlock()
	if !failed {
		return
	}
	select {
	case r.kick <- struct{}{}:
	default: // one is coming
	}
}

// secret is what the server asks for; "" for nothing.
func (r *replica) secret() string {
	r.mu.Lock()
	key := r.key
	r.mu.Unlock()
	if key == nil {
		return ""
	}
	return key()
}

func (r *replica) hasMetrics() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.metrics
}

// epoch is what probed has to be told.
func (r *replica) epoch() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.since
}

// probed takes the result of a probe that began at epoch.
func (r *replica) probed(epoch uint64, p probe, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checked = now
	if r.since != epoch {
		return // a call failed in the meantime
	}
	if p.err != nil && p.timeout && r.healthy {
		if r.slow++; r.slow < probeTimeouts {
			return
		}
	}
	if r.healthy != (p.err == nil) {
		r.since++
	}
	r.healthy, r.fault = p.err == nil, ""
	if p.err != nil {
		r.fault = p.err.Error()
		return
	}
	r.slow = 0
	r.known.probed(p.took)
}

func (r *replica) report(s signals) {
	r.mu.Lock()
	r.known.first.report(s.first, s.at)
	r.known.tokens.report(s.between, s.at)
	s.first, s.between = histogram{}, histogram{}
	r.seen = s
	r.mu.Unlock()
}

// state returns health and the signals that are fresh at now.
func (r *replica) state(now time.Time) (healthy bool, s signals) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s = r.seen
	if now.Sub(s.at) > signalAge {
		s = signals{}
	}
	return r.healthy, s
}

// load estimates how many requests the server has in hand, those of other gateways included: what it reported, and what
// this gateway began or ended since. known is false when it reports nothing; then only this gateway's count.
func (s *signals) load(own int64) (load float64, known bool) {
	if !s.running.set && !s.waiting.set {
		return float64(own), false
	}
	return max(s.running.value+s.waiting.value+float64(own-s.own), float64(own), 0), true
}

// ReplicaState is one replica as it is seen now.
type ReplicaState struct {
	Name     string // host and port
	URL      string
	Healthy  bool
	Fault    string    // why not; "" when healthy
	Inflight int64     // requests of this gateway
	Checked  time.Time // of the last probe; zero before the first
	Running  float64   // as reported; 0 when not
	Waiting  float64
	KV       float64 // 0 to 1
	Signals  bool    // it reported any signal in the last seconds
}

func (r *replica) view(now time.Time) ReplicaState {
	healthy, s := r.state(now)
	r.mu.Lock()
	defer r.mu.Unlock()
	return ReplicaState{
		Name: r.name, URL: r.url, Healthy: healthy, Fault: r.fault, Inflight: r.inflight.Load(), Checked: r.checked,
		Running: s.running.value, Waiting: s.waiting.value, KV: s.kv.value,
		Signals: s.running.set || s.waiting.set || s.kv.set,
	}
}
