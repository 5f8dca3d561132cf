package upstream

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Options configure a Set.
type Options struct {
	// Poll is how often each replica is asked for health and pressure. Defaults to 1 s.
	Poll time.Duration
	// TLS says whom to trust. Defaults to the system's roots.
	TLS *tls.Config
	// Now is the clock that signals age by. Required.
	Now func() time.Time
}

// Set is everything that requests can be sent to, and what is known of it. It is safe for concurrent use.
type Set struct {
	poll    time.Duration
	now     func() time.Time
	client  *http.Transport // for probes alone, so that calls never wait for them
	table   atomic.Pointer[table]
	update  sync.Mutex
	changed chan struct{}
	ready   chan struct{}
	asked   sync.Once // closes ready
}

// table is one configuration. It does not change; the replicas in it live on in the next one.
type table struct {
	models      map[string]*entry
	connections map[string]*Connection
	own         map[string]map[string][]*Connection // by owner and label: the accounts that stand in for the house's
	replicas    map[string]*replica                 // by URL
}

// entry is one model.
type entry struct {
	Model
	replicas []*replica
	steps    []step
	taking   sync.Mutex
}

// step is one step of routing over a model's replicas.
type step struct {
	name     string
	replicas []member
	exclude  []Bound
	tries    int
	weighed  bool   // each replica says what it is made for
	turn     uint64 // where the search for a replica begins
}

// member is a replica as one model has it.
type member struct {
	*replica
	capacity int64 // requests at once that it is made for; 0: not declared
}

// New returns a Set. The error names every fault of the configuration.
func New(c Config, o Options) (*Set, error) {
	if o.Poll <= 0 {
		o.Poll = DefaultPoll
	}
	s := &Set{poll: o.Poll, now: o.Now, changed: make(chan struct{}, 1), ready: make(chan struct{}), client: &http.Transport{
		MaxIdleConnsPerHost: 1, IdleConnTimeout: 2*o.Poll + time.Second, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
		TLSClientConfig: o.TLS.Clone()}}
	s.table.Store(&table{})
	return s, s.Update(c)
}

// Update replaces the configuration. With an error, which names every fault, nothing changes. What is known of replicas that
// stay is kept, and requests under way end where they are.
func (s *Set) Update(c Config) error {
	if err := c.Validate(); err != nil {
		return fmt.Errorf("reading the upstreams: %w", err)
	}
	s.update.Lock()
	defer s.update.Unlock()
	old := s.table.Load()
	t := &table{models: map[string]*entry{}, connections: map[string]*Connection{}, replicas: map[string]*replica{}}
	for _, n := range c.Connections {
		t.connections[n.ID] = &n
	}
	t.addOwn()
	for _, m := range c.Models {
		e := &entry{Model: m}
		t.models[m.ID] = e
		if m.Local != nil {
			t.addReplicas(e, old)
		}
	}
	s.table.Store(t)
	select {
	case s.changed <- struct{}{}:
	default: // Run will look again anyway
	}
	return nil
}

func (t *table) addReplicas(e *entry, old *table) {
	local := *e.Local
	if local.Model == "" {
		local.Model = e.ID
	}
	e.Local = &local
	for _, text := range local.Replicas {
		base, err := parseBase(text)
		if err != nil {
			continue // Validate has refused it
		}
		url := base.String()
		r, shared := t.replicas[url]
		if !shared {
			if r = old.replicas[url]; r == nil {
				r = newReplica(base)
			}
			t.replicas[url] = r
		}
		r.mu.Lock()
		if !shared || local.Key != nil {
			r.key = local.Key
		}
		r.metrics = engines[local.Engine].metrics || shared && r.metrics // of models that share it, one may call it by an engine without
		r.mu.Unlock()
		e.replicas = append(e.replicas, r)
	}
	e.makeSteps()
}

// makeSteps finds the replicas of each step. A model without steps has one over all of them.
func (e *entry) makeSteps() {
	steps := e.Local.Steps
	if len(steps) == 0 {
		steps = []Step{{}}
	}
	for _, p := range steps {
		out := step{name: p.Name, exclude: p.Exclude, tries: p.MaxTries, weighed: true}
		if out.tries == 0 {
			out.tries = DefaultMaxTries
		}
		for i, r := range e.replicas {
			if p.Replicas != nil && !slices.Contains(p.Replicas, i) {
				continue
			}
			m := member{replica: r}
			if len(e.Local.Capacity) > 0 {
				m.capacity = e.Local.Capacity[i]
			}
			out.weighed = out.weighed && m.capacity > 0
			out.replicas = append(out.replicas, m)
		}
		e.steps = append(e.steps, out)
	}
}

// Run asks the replicas until ctx ends; it then waits for what it began and returns nil. Until it runs, no replica is healthy.
func (s *Set) Run(ctx context.Context) error {
	var watchers sync.WaitGroup
	stops := map[*replica]context.CancelFunc{}
	defer s.client.CloseIdleConnections()
	defer watchers.Wait()
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	for first := true; ; first = false {
		wanted := s.table.Load().replicas
		for r, stop := range stops {
			if wanted[r.url] != r {
				stop()
				delete(stops, r)
			}
		}
		var answered sync.WaitGroup
		for _, r := range wanted {
			if stops[r] != nil {
				continue
			}
			watching, stop := context.WithCancel(ctx)
			stops[r] = stop
			answered.Add(1)
			watchers.Go(func() {
				once := sync.OnceFunc(answered.Done)
				defer once()
				s.watch(watching, r, once)
			})
		}
		if first {
			watchers.Go(func() { answered.Wait(); s.asked.Do(func() { close(s.ready) }) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
		}
	}
}

// Ready is closed when Run has asked every replica once.
func (s *Set) Ready() <-chan struct{} { return s.ready }

// Healthy is how many replicas of the model can be used now; 0 for a model without local replicas.
func (s *Set) Healthy(model string) int {
	e := s.table.Load().models[model]
	if e == nil {
		return 0
	}
	n := 0
	for _, r := range e.replicas {
		if r.isHealthy() {
			n++
		}
	}
	return n
}

// Signals is the pressure on a model: each number averaged over the healthy replicas that report it.
type Signals struct {
	KV         float64 // share of the KV cache in use, 0 to 1
	HasKV      bool
	Waiting    float64 // requests waiting in the server
	HasWaiting bool
}

// Signals returns the pressure on the model's replicas. What no healthy replica reported in the last seconds is missing.
func (s *Set) Signals(model string) Signals {
	e := s.table.Load().models[model]
	if e == nil {
		return Signals{}
	}
	now := s.now()
	var kv, waiting share
	for _, r := range e.replicas {
		healthy, seen := r.state(now)
		if !healthy {
			continue
		}
		kv.add(seen.kv)
		waiting.add(seen.waiting)
	}
	var out Signals
	out.KV, out.HasKV = kv.average()
	out.Waiting, out.HasWaiting = waiting.average()
	return out
}

// Replicas lists what is known of the model's replicas, in the order of the configuration.
func (s *Set) Replicas(model string) []ReplicaState {
	e := s.table.Load().models[model]
	if e == nil {
		return nil
	}
	now := s.now()
	out := make([]ReplicaState, 0, len(e.replicas))
	for _, r := range e.replicas {
		out = append(out, r.view(now))
	}
	return out
}

// Models lists the models, sorted.
func (s *Set) Models() []string {
	t := s.table.Load()
	out := make([]string, 0, len(t.models))
	for id := range t.models {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}
