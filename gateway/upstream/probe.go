package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
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
}

// watch asks one replica until ctx ends. first is called after the first answer.
func (s *Set) watch(ctx context.Context, r *replica, first func()) {
	var quiet time.Time // no metrics before that
	for {
		epoch := r.epoch()
		p := s.health(ctx, r)
		if ctx.Err() != nil {
			return
		}
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

// meaning is what a metric of a model server says.
type meaning uint8

const (
	running meaning = iota + 1
	waiting
	cache // share of the KV cache in use
)

// metrics are the names that servers use. A server that reports under several labels has them added up, shares averaged.
var metrics = map[string]meaning{
	"vllm:num_requests_running":     running,
	"vllm:num_requests_waiting":     waiting,
	"vllm:kv_cache_usage_perc":      cache,
	"vllm:gpu_cache_usage_perc":     cache,
	"sglang:num_running_reqs":       running,
	"sglang:num_queue_reqs":         waiting,
	"sglang:token_usage":            cache,
	"sglang_num_running_reqs":       running,
	"sglang_num_queue_reqs":         waiting,
	"sglang_token_usage":            cache,
	"llamacpp:requests_processing":  running,
	"llamacpp:requests_deferred":    waiting,
	"llamacpp:kv_cache_usage_ratio": cache,
	"tgi_batch_current_size":        running,
	"tgi_queue_size":                waiting,
}

// read reads metrics in the Prometheus text format. Lines that it does not know are passed over.
func (s *signals) read(body io.Reader) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	shares := map[string]*share{}
	for lines.Scan() {
		name, value, ok := sample(lines.Bytes())
		if !ok {
			continue
		}
		switch metrics[string(name)] {
		case running:
			s.running = reading{s.running.value + value, true}
		case waiting:
			s.waiting = reading{s.waiting.value + value, true}
		case cache:
			h := shares[string(name)]
			if h == nil {
				h = &share{}
				shares[string(name)] = h
			}
			h.add(reading{value, true})
		}
	}
	for _, h := range shares { // a server between two versions reports one cache under two names
		average, _ := h.average()
		s.kv = reading{max(s.kv.value, min(average, 1)), true}
	}
	return lines.Err()
}

// share is an average in the making.
type share struct{ sum, count float64 }

func (h *share) add(r reading) {
	if r.set {
		h.sum += r.value
		h.count++
	}
}

func (h *share) average() (v float64, any bool) {
	if h.count == 0 {
		return 0, false
	}
	return h.sum / h.count, true
}

// sample splits "name{labels} value" or "name value", with an optional time behind it. Negative values and those that are
// no numbers are no samples.
func sample(line []byte) (name []byte, value float64, ok bool) {
	if len(line) == 0 || line[0] == '#' {
		return nil, 0, false
	}
	end := bytes.IndexAny(line, "{ \t")
	if end <= 0 {
		return nil, 0, false
	}
	name = line[:end]
	if metrics[string(name)] == 0 {
		return nil, 0, false
	}
	rest := line[end:]
	if rest[0] == '{' {
		rest = rest[bytes.LastIndexByte(rest, '}')+1:]
	}
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return nil, 0, false
	}
	value, err := strconv.ParseFloat(string(fields[0]), 64)
	return name, value, err == nil && value >= 0 && value < 1e12
}
