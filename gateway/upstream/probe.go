package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"
)

const (
	// DefaultPoll is how often a replica is asked.
	DefaultPoll = time.Second
	// probeTimeout bounds one question to a replica.
	probeTimeout = 2 * time.Second
	// maxProbe bounds an answer to one, in bytes. A vLLM server with many models has some hundred kilobytes of metrics.
	maxProbe = 8 << 20
	// maxLine bounds one line of metrics.
	maxLine = 64 << 10
	// metricsAgain is how long a replica without metrics is not asked for them.
	metricsAgain = 30 * time.Second
)

// probe is the result of asking for a replica's health.
type probe struct {
	err     error
	timeout bool
	took    time.Duration
}

// watch asks one replica until ctx ends. first is called after the first answer.
func (s *Set) watch(ctx context.Context, r *replica, first func()) {
	var quiet time.Time // no metrics before that
	for {
		epoch, asked := r.epoch(), s.now()
		p := s.health(ctx, r)
		if ctx.Err() != nil {
			return
		}
		p.took = s.now().Sub(asked)
		r.probed(epoch, p, s.now())
		if now := s.now(); p.err == nil && r.hasMetrics() && !now.Before(quiet) {
			if !s.pressure(ctx, r) {
				quiet = now.Add(metricsAgain)
			}
		}
		first()
		wait := time.NewTimer(s.jittered())
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		case <-r.kick:
			wait.Stop()
			if !s.pause(ctx) {
				return
			}
		}
	}
}

// jittered spreads the questions of many gateways: 0.9 to 1.1 of the interval.
func (s *Set) jittered() time.Duration {
	return s.poll*9/10 + rand.N(s.poll/5+1)
}

// pause keeps kicked probes apart: a tenth of the interval.
func (s *Set) pause(ctx context.Context) bool {
	t := time.NewTimer(s.poll / 10)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// health asks /health, or /v1/models where there is none.
func (s *Set) health(ctx context.Context, r *replica) probe {
	var p probe
	for _, path := range [...]string{"/health", "/v1/models"} {
		status, err := s.ask(ctx, r, path, nil)
		switch {
		case err != nil:
			var t interface{ Timeout() bool }
			return probe{err: fmt.Errorf("asking %s: %w", path, err), timeout: errors.As(err, &t) && t.Timeout()}
		case status >= 200 && status < 300, status == http.StatusUnauthorized, status == http.StatusForbidden:
			return probe{} // one that asks who we are is there
		}
		p.err = fmt.Errorf("asking %s: status %d", path, status)
		if status != http.StatusNotFound && status != http.StatusMethodNotAllowed {
			return p
		}
	}
	return p
}

// pressure asks /metrics. It reports false when the replica has none.
func (s *Set) pressure(ctx context.Context, r *replica) bool {
	var seen signals
	own := r.inflight.Load()
	status, err := s.ask(ctx, r, "/metrics", func(body io.Reader) error { return seen.read(body) })
	if err != nil {
		return true // perhaps next time; what was seen ages meanwhile
	}
	if status != http.StatusOK {
		return false
	}
	seen.at, seen.own = s.now(), own
	r.report(seen)
	return true
}

// ask makes one bounded request. read, which may be nil, gets the body of a 200.
func (s *Set) ask(ctx context.Context, r *replica, path string, read func(io.Reader) error) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+path, nil)
	if err != nil {
		return 0, err
	}
	if key := r.secret(); key != "" {
		req.Header["Authorization"] = []string{"Bearer " + key}
	}
	response, err := s.client.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }() // what is left of it is of no use
	body := io.LimitReader(response.Body, maxProbe)
	if read != nil && response.StatusCode == http.StatusOK {
		if err := read(body); err != nil {
			return 0, err
		}
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(body, 64<<10)) // so that the connection can be used again
	return response.StatusCode, nil
}
