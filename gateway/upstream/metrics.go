package upstream

import (
	"bufio"
	"bytes"
	"io"
	"strconv"
)

// meaning is what a metric of a model server says.
type meaning uint8

const (
	running meaning = iota + 1
	waiting
	cache // share of the KV cache in use
	firstSum
	firstCount
	firstBucket
	betweenSum
	betweenCount
	betweenBucket
)

// metrics are the names that servers use. A server that reports under several labels has them added up, shares averaged.
var metrics = withHistograms(map[string]meaning{
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
})

// histograms are the names of times in seconds: to the first token, and between tokens. A server that is between two versions
// reports the second under two names; the numbers of both are then taken together, which changes neither average nor percentile.
var histograms = map[string]meaning{
	"vllm:time_to_first_token_seconds":   firstSum,
	"sglang:time_to_first_token_seconds": firstSum,
	"sglang_time_to_first_token_seconds": firstSum,
	"vllm:inter_token_latency_seconds":   betweenSum,
	"vllm:time_per_output_token_seconds": betweenSum,
	"sglang:inter_token_latency_seconds": betweenSum,
	"sglang_inter_token_latency_seconds": betweenSum,
}

// withHistograms adds the three names of each histogram.
func withHistograms(names map[string]meaning) map[string]meaning {
	for name, sum := range histograms {
		names[name+"_sum"], names[name+"_count"], names[name+"_bucket"] = sum, sum+1, sum+2
	}
	return names
}

// read reads metrics in the Prometheus text format. Lines that it does not know are passed over.
func (s *signals) read(body io.Reader) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	shares := map[string]*share{}
	for lines.Scan() {
		name, labels, value, ok := sample(lines.Bytes())
		if !ok {
			continue
		}
		switch m := metrics[string(name)]; m {
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
		case firstSum, firstCount, firstBucket:
			s.first.add(m-firstSum, labels, value)
		case betweenSum, betweenCount, betweenBucket:
			s.between.add(m-betweenSum, labels, value)
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
func sample(line []byte) (name, labels []byte, value float64, ok bool) {
	if len(line) == 0 || line[0] == '#' {
		return nil, nil, 0, false
	}
	end := bytes.IndexAny(line, "{ \t")
	if end <= 0 {
		return nil, nil, 0, false
	}
	name = line[:end]
	if metrics[string(name)] == 0 {
		return nil, nil, 0, false
	}
	rest := line[end:]
	if rest[0] == '{' {
		last := bytes.LastIndexByte(rest, '}')
		labels, rest = rest[1:max(last, 1)], rest[last+1:]
	}
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return nil, nil, 0, false
	}
	value, err := strconv.ParseFloat(string(fields[0]), 64)
	return name, labels, value, err == nil && value >= 0 && value < 1e15
}

// maxBuckets bounds the buckets of a histogram that are kept.
const maxBuckets = 64

// histogram is what a server has counted of some time since it started: cumulative, as Prometheus has it.
type histogram struct {
	sum, count float64
	buckets    []bucket // in the order in which they were reported
}

type bucket struct{ le, count float64 }

// add takes in a sample: part 0 is the sum, 1 the count, 2 a bucket.
func (h *histogram) add(part meaning, labels []byte, value float64) {
	switch part {
	case 0:
		h.sum += value
	case 1:
		h.count += value
	case 2:
		h.addBucket(labels, value)
	}
}

func (h *histogram) addBucket(labels []byte, count float64) {
	const label = `le="`
	at := bytes.Index(labels, []byte(label))
	if at < 0 || at > 0 && labels[at-1] != ',' && labels[at-1] != ' ' {
		return
	}
	text, _, _ := bytes.Cut(labels[at+len(label):], []byte{'"'})
	le, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return
	}
	for i := range h.buckets {
		if h.buckets[i].le == le {
			h.buckets[i].count += count
			return
		}
	}
	if len(h.buckets) < maxBuckets {
		h.buckets = append(h.buckets, bucket{le, count})
	}
}

// since is what was counted after an earlier report. With less than then the server has started anew: all of it counts.
func (h *histogram) since(earlier *histogram) histogram {
	if h.count < earlier.count {
		return *h
	}
	d := histogram{sum: max(h.sum-earlier.sum, 0), count: h.count - earlier.count}
	for _, b := range h.buckets {
		for _, e := range earlier.buckets {
			if e.le == b.le {
				b.count = max(b.count-e.count, 0)
			}
		}
		d.buckets = append(d.buckets, b)
	}
	return d
}

// average is the mean time; missing when nothing was counted.
func (h *histogram) average() reading {
	if h.count <= 0 {
		return reading{}
	}
	return reading{h.sum / h.count, true}
}

// quantile is the upper bound of the bucket in which a share of what was counted has been reached: at least what it really was. In the
// last bucket, which has no bound, it is the largest bound that there is.
func (h *histogram) quantile(q float64) reading {
	if h.count <= 0 || len(h.buckets) == 0 {
		return reading{}
	}
	const far = 1e15 // beyond every bound
	best, largest := float64(far), 0.0
	for _, b := range h.buckets {
		if b.le < far {
			largest = max(largest, b.le)
			if b.count >= q*h.count {
				best = min(best, b.le)
			}
		}
	}
	return reading{min(best, largest), true}
}
