package reservation

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/weirhq/weir/events"
)

// Bounds of the refusals that a gateway reports of its own.
const (
	// reportsPerSecond of one key and limit are reported each by itself; the rest of that second becomes one record with a count.
	reportsPerSecond = 5

	// maxTallies bounds the keys and limits that are counted at the same time; refusals beyond it are lost, and counted as such.
	maxTallies = 10_000
)

// Reporter publishes the refusals that the gateway makes by itself, for the audit. It is best effort: a record that cannot be published
// changes nothing for the client.
type Reporter struct {
	gateway   events.Gateway
	publisher Publisher
	now       func() time.Time

	mu      sync.Mutex
	tallies map[tallyKey]*tally
	lost    int64
}

type tallyKey struct{ key, limit, gate string }

// tally is what was refused of one key and limit in the second under way.
type tally struct {
	single      int
	more        int64
	first, last time.Time
	sample      *events.Refused
}

// NewReporter makes the reporter of a gateway.
func NewReporter(gateway events.Gateway, p Publisher, now func() time.Time) *Reporter {
	return &Reporter{gateway: gateway, publisher: p, now: now, tallies: map[tallyKey]*tally{}}
}

// Refused reports a refusal. d must not change any more.
func (r *Reporter) Refused(d *events.Refused) {
	now := r.now()
	d.Gateway = r.gateway
	k := tallyKey{d.Key, d.LimitID, d.Gate}
	r.mu.Lock()
	t := r.tallies[k]
	if t == nil {
		if len(r.tallies) >= maxTallies {
			r.lost++
			r.mu.Unlock()
			return
		}
		t = &tally{}
		r.tallies[k] = t
	}
	if t.single < reportsPerSecond {
		t.single++
		r.mu.Unlock()
		r.publish(d, string(d.Request))
		return
	}
	if t.more++; t.more == 1 {
		t.first = now
	}
	t.last, t.sample = now, d
	r.mu.Unlock()
}

// Lost counts refusals that were not reported.
func (r *Reporter) Lost() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost
}

// Run reports what was only counted, every second, until ctx ends.
func (r *Reporter) Run(ctx context.Context) error {
	every := time.NewTicker(time.Second)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			r.flush()
			return nil
		case <-every.C:
			r.flush()
		}
	}
}

func (r *Reporter) flush() {
	r.mu.Lock()
	tallies := r.tallies
	r.tallies = make(map[tallyKey]*tally, len(tallies)/2)
	r.mu.Unlock()
	for _, t := range tallies {
		if t.more == 0 {
			continue
		}
		d := *t.sample
		d.Count = t.more
		d.First, d.Last = t.first.UTC().Format(time.RFC3339Nano), t.last.UTC().Format(time.RFC3339Nano)
		r.publish(&d, fmt.Sprintf("%s+%d", d.Request, t.more))
	}
}

func (r *Reporter) publish(d *events.Refused, id string) {
	ev := events.Event{ID: id + "/refused", Source: string(r.gateway), Subject: string(d.Request), Org: d.Org, Data: d}
	if err := r.publisher.Submit(ev, nil); err != nil {
		r.mu.Lock()
		r.lost++
		r.mu.Unlock()
	}
}
