// Package load sends requests to a gateway, or straight to a provider, and measures what it takes.
//
// An open loop sends at a fixed rate whatever the answers do, and measures each request from the instant at which it was due, so that a
// stall is felt by all requests that it delays. A closed loop keeps a number of clients busy. Every loop is bounded in count and time.
package load

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Bounds of a run.
const (
	MaxRate        = 100_000 // requests a second
	MaxClients     = 4_096
	MaxDuration    = 10 * time.Minute
	requestTimeout = 30 * time.Second
)

// Config says what to send and how.
type Config struct {
	URL      string        // of the endpoint, on this machine or another that you run
	Key      string        // sent as a bearer key; empty: none
	Header   http.Header   // more headers
	Body     []byte        // of every request
	Rate     float64       // requests a second of an open loop; 0: a closed loop
	Clients  int           // clients of a closed loop; the most requests at once of an open one
	Duration time.Duration // how long to send
	Warmup   time.Duration // sent before, not measured
}

// Validate names what is out of range.
func (c *Config) Validate() error {
	switch {
	case c.Rate < 0 || c.Rate > MaxRate:
		return fmt.Errorf("rate is %g, not from 0 to %d", c.Rate, MaxRate)
	case c.Clients < 1 || c.Clients > MaxClients:
		return fmt.Errorf("clients is %d, not from 1 to %d", c.Clients, MaxClients)
	case c.Duration <= 0 || c.Duration > MaxDuration:
		return fmt.Errorf("duration is %s, not above 0 and at most %s", c.Duration, MaxDuration)
	}
	return nil
}

// Result is what was measured. Latencies are to the last byte of the answer.
type Result struct {
	Sent     int64
	OK       int64 // 2xx
	Refused  int64 // 429
	Failed   int64 // any other status, and errors
	Dropped  int64 // of an open loop: not sent because Clients were under way
	Elapsed  time.Duration
	Rate     float64 // answers a second
	Hist     *hdrhistogram.Histogram
	Statuses map[int]int64
	Error    string // the first error
}

// Quantile gives a latency, of all answers.
func (r *Result) Quantile(q float64) time.Duration {
	return time.Duration(r.Hist.ValueAtQuantile(q)) * time.Microsecond
}

// runner is one run.
type runner struct {
	config   Config
	client   *http.Client
	request  *http.Request
	measured atomic.Bool

	mu     sync.Mutex
	result Result
}

// Run sends what config says until its duration is over or ctx ends.
func Run(ctx context.Context, config Config) (*Result, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	request, err := http.NewRequest(http.MethodPost, config.URL, nil)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	for k, v := range config.Header {
		request.Header[k] = v
	}
	request.Header.Set("Content-Type", "application/json")
	if config.Key != "" {
		request.Header.Set("Authorization", "Bearer "+config.Key)
	}
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		MaxIdleConns:        config.Clients,
		MaxIdleConnsPerHost: config.Clients,
		DisableCompression:  true,
	}
	defer transport.CloseIdleConnections()
	r := &runner{config: config, client: &http.Client{Transport: transport, Timeout: requestTimeout}, request: request}
	r.result.Hist = hdrhistogram.New(1, 60_000_000, 3)
	r.result.Statuses = map[int]int64{}
	ctx, cancel := context.WithTimeout(ctx, config.Warmup+config.Duration)
	defer cancel()
	begin := time.Now()
	if config.Warmup <= 0 {
		r.measured.Store(true)
	} else {
		warm := time.AfterFunc(config.Warmup, func() { r.measured.Store(true) })
		defer warm.Stop()
	}
	if config.Rate > 0 {
		r.open(ctx, begin)
	} else {
		r.closed(ctx)
	}
	r.result.Elapsed = min(time.Since(begin)-config.Warmup, config.Duration)
	r.result.Rate = float64(r.result.OK+r.result.Refused+r.result.Failed) / r.result.Elapsed.Seconds()
	return &r.result, nil
}

// closed keeps every client busy.
func (r *runner) closed(ctx context.Context) {
	var clients sync.WaitGroup
	for range r.config.Clients {
		clients.Go(func() {
			for ctx.Err() == nil {
				r.one(ctx, time.Now())
			}
		})
	}
	clients.Wait()
}

// open sends each request when it is due, by as many workers as may be under way.
func (r *runner) open(ctx context.Context, begin time.Time) {
	due := make(chan time.Time, r.config.Clients)
	var workers sync.WaitGroup
	for range r.config.Clients {
		workers.Go(func() {
			for at := range due {
				r.one(ctx, at)
			}
		})
	}
	for n := 0; ctx.Err() == nil; n++ {
		at := begin.Add(time.Duration(float64(n) / r.config.Rate * float64(time.Second)))
		if wait := time.Until(at); wait > 0 {
			time.Sleep(wait)
		}
		select {
		case due <- at:
		default:
			r.mu.Lock()
			r.result.Dropped++
			r.mu.Unlock()
		}
	}
	close(due)
	workers.Wait()
}

// one sends a request and notes how long it took from when it was due.
func (r *runner) one(ctx context.Context, due time.Time) {
	request := r.request.Clone(context.WithoutCancel(ctx))
	request.Body = io.NopCloser(bytes.NewReader(r.config.Body))
	request.ContentLength = int64(len(r.config.Body))
	measured := r.measured.Load()
	status, err := r.send(request)
	took := time.Since(due)
	if !measured {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Sent++
	_ = r.result.Hist.RecordValue(min(took.Microseconds(), r.result.Hist.HighestTrackableValue()))
	switch {
	case err != nil:
		r.result.Failed++
		if r.result.Error == "" {
			r.result.Error = err.Error()
		}
		return
	case status/100 == 2:
		r.result.OK++
	case status == http.StatusTooManyRequests:
		r.result.Refused++
	default:
		r.result.Failed++
	}
	r.result.Statuses[status]++
}

func (r *runner) send(request *http.Request) (int, error) {
	answer, err := r.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return 0, err
	}
	return answer.StatusCode, nil
}
