package upstream

import "time"

// Metric names something that is known of a replica and that a step may exclude by.
type Metric string

// The metrics of exclude_if.
const (
	CapacityUtilization Metric = "capacity_utilization" // requests in hand of those that it is made for, where that is declared
	SuccessRate         Metric = "success_rate"         // calls of this gateway in the last minutes that went well, 0 to 1
	RTT                 Metric = "srtt"                 // smoothed time to its answer about its health, ms
	ConsecutiveFailures Metric = "consecutive_failures" // calls of this gateway that failed since the last that went well
	KVCache             Metric = "kv_cache_utilization" // 0 to 1
	Running             Metric = "running_requests"
	Waiting             Metric = "waiting_requests"
	AverageTTFT         Metric = "avg_ttft_seconds" // of what was answered in the last minute
	P90TTFT             Metric = "p90_ttft_seconds"
	AverageITL          Metric = "avg_itl_seconds"
	P90ITL              Metric = "p90_itl_seconds"

	// No model server reports its hardware: these are known, always missing, and so pass.
	gpuTemperature Metric = "gpu_temperature_c"
	gpuUse         Metric = "gpu_util_percent"
	gpuMemory      Metric = "gpu_vram_used_percent"
	memoryUse      Metric = "memory_used_percent"
	cpuUse         Metric = "cpu_usage_percent"
)

// allMetrics are those that a bound may name.
var allMetrics = map[Metric]bool{
	CapacityUtilization: true, SuccessRate: true, RTT: true, ConsecutiveFailures: true, KVCache: true, Running: true, Waiting: true,
	AverageTTFT: true, P90TTFT: true, AverageITL: true, P90ITL: true,
	gpuTemperature: true, gpuUse: true, gpuMemory: true, memoryUse: true, cpuUse: true,
}

const (
	// experienceFor is over what time calls count for success_rate and consecutive_failures, up to twice: a replica that is passed over
	// gets no calls by which to recover, so what it was excluded for is forgotten.
	experienceFor = time.Minute
	// timesFor is over what time of a server's own histograms ttft and itl are taken, up to twice.
	timesFor = 30 * time.Second
	// rttWeight is the share of a new round trip in the smoothed one.
	rttWeight = 8
)

// experience is how this gateway's calls to a replica went.
type experience struct {
	since         time.Time // when now began
	now, before   outcomes  // of this period and the one before
	failures      int64     // since the last success
	lastFailure   time.Time
	rtt           time.Duration
	first, tokens span
}

// outcomes are calls of a period.
type outcomes struct{ good, bad int64 }

// called takes in a call.
func (e *experience) called(failed bool, at time.Time) {
	e.roll(at)
	if !failed {
		e.now.good++
		e.failures = 0
		return
	}
	e.now.bad++
	e.failures++
	e.lastFailure = at
}

func (e *experience) roll(at time.Time) {
	switch age := at.Sub(e.since); {
	case age >= 2*experienceFor:
		e.before, e.now, e.since = outcomes{}, outcomes{}, at
	case age >= experienceFor:
		e.before, e.now, e.since = e.now, outcomes{}, at
	}
}

func (e *experience) rate(at time.Time) reading {
	e.roll(at)
	good, bad := e.before.good+e.now.good, e.before.bad+e.now.bad
	if good+bad == 0 {
		return reading{}
	}
	return reading{float64(good) / float64(good+bad), true}
}

func (e *experience) inARow(at time.Time) reading {
	if e.failures > 0 && at.Sub(e.lastFailure) > experienceFor {
		return reading{}
	}
	return reading{float64(e.failures), true}
}

// probed takes in how long an answer took.
func (e *experience) probed(took time.Duration) {
	if e.rtt == 0 {
		e.rtt = took
		return
	}
	e.rtt += (took - e.rtt) / rttWeight
}

// span is a server's histogram over the last while.
type span struct {
	since        time.Time
	base, middle histogram // as reported at the beginning, and in the middle
	last         histogram
}

// report takes in what the server has counted so far.
func (p *span) report(h histogram, at time.Time) {
	switch {
	case p.since.IsZero(), h.count < p.last.count: // the first, or of a server that has started anew
		p.base, p.middle, p.since = h, h, at
	case at.Sub(p.since) >= timesFor:
		p.base, p.middle, p.since = p.middle, h, at
	}
	p.last = h
}

func (p *span) recent() histogram { return p.last.since(&p.base) }

// value gives a metric of a replica, with its own lock held. Own is how many calls of this gateway it has.
func (r *replica) value(m Metric, s *signals, own int64, capacity int64, at time.Time) reading {
	switch m {
	case KVCache:
		return s.kv
	case Running:
		return s.running
	case Waiting:
		return s.waiting
	case CapacityUtilization:
		if capacity <= 0 {
			return reading{}
		}
		load, _ := s.load(own)
		return reading{load / float64(capacity), true}
	case SuccessRate:
		return r.known.rate(at)
	case ConsecutiveFailures:
		return r.known.inARow(at)
	case RTT:
		return reading{float64(r.known.rtt) / float64(time.Millisecond), r.known.rtt > 0}
	}
	if s.at.IsZero() { // what it reported is old
		return reading{}
	}
	first, tokens := r.known.first.recent(), r.known.tokens.recent()
	switch m {
	case AverageTTFT:
		return first.average()
	case P90TTFT:
		return first.quantile(0.9)
	case AverageITL:
		return tokens.average()
	case P90ITL:
		return tokens.quantile(0.9)
	}
	return reading{}
}

// excluded says whether any bound holds of a replica.
func (r *replica) excluded(bounds []Bound, s *signals, capacity int64, at time.Time) bool {
	if len(bounds) == 0 {
		return false
	}
	own := r.inflight.Load()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range bounds {
		if v := r.value(bounds[i].Metric, s, own, capacity, at); v.set && bounds[i].Holds(v.value) {
			return true
		}
	}
	return false
}
