package provider

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"sort"
	"strconv"
	"strings"

	"github.com/weirhq/weir/gateway/wire"
	"github.com/weirhq/weir/gateway/wire/scan"
)

// aside answers what is no call to a model: lists, health, metrics, the ledger.
func (s *Server) aside(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + r.URL.Path {
	case "GET /v1/models":
		s.models(w, r)
	case "GET /health":
		if s.down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	case "GET /metrics":
		s.serveMetrics(w)
	case "POST /metrics":
		s.takeMetrics(w, r)
	case "GET /ledger":
		w.Header()["Content-Type"] = jsonType
		_ = json.NewEncoder(w).Encode(struct { // the client may have left
			Totals Totals            `json:"totals"`
			Models map[string]Totals `json:"models"`
			Calls  []Call            `json:"calls"`
		}{s.ledger.Totals(), s.ledger.Models(), s.ledger.Calls()})
	case "DELETE /ledger":
		s.ledger.Reset()
		w.WriteHeader(http.StatusNoContent)
	default:
		fail(w, wire.OpenAI, http.StatusNotFound, "there is no "+r.Method+" "+r.URL.Path+" here")
	}
}

// models lists the models in the format of the asking SDK.
func (s *Server) models(w http.ResponseWriter, r *http.Request) {
	b := []byte(`{"object":"list","data":[`)
	member := `{"object":"model","created":1700000000,"owned_by":"weir","id":`
	end := "]}"
	if r.Header.Get("Anthropic-Version") != "" {
		b = []byte(`{"data":[`)
		member = `{"type":"model","display_name":"Weir","created_at":"2023-11-14T22:13:20Z","id":`
		list := s.config.Models
		end = `],"has_more":false,"first_id":` + string(scan.AppendString(nil, list[0])) +
			`,"last_id":` + string(scan.AppendString(nil, list[len(list)-1])) + `}`
	}
	for i, id := range s.config.Models {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(scan.AppendString(append(b, member...), id), '}')
	}
	w.Header()["Content-Type"] = jsonType
	_, _ = w.Write(append(b, end...)) // the client may have left
}

// Names of the metrics, as vLLM has them. Running is what the ledger says unless it was set.
const (
	MetricRunning = "vllm:num_requests_running"
	MetricWaiting = "vllm:num_requests_waiting"
	MetricCache   = "vllm:kv_cache_usage_perc" // 0 to 1
)

// SetMetric makes /metrics report a value under a name.
func (s *Server) SetMetric(name string, value float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.metrics[name] = value
}

// serveMetrics answers in the text format of Prometheus.
func (s *Server) serveMetrics(w http.ResponseWriter) {
	values := map[string]float64{MetricRunning: float64(s.ledger.Totals().Live), MetricWaiting: 0, MetricCache: 0}
	s.mu.Lock()
	for name, v := range s.metrics {
		values[name] = v
	}
	s.mu.Unlock()
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	sort.Strings(names)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	for _, name := range names {
		fmt.Fprintf(w, "# TYPE %s gauge\n%s{model_name=%q} %s\n", name, name, s.config.Models[0],
			strconv.FormatFloat(values[name], 'g', -1, 64))
	}
}

// takeMetrics sets metrics from lines "name value".
func (s *Server) takeMetrics(w http.ResponseWriter, r *http.Request) {
	lines := bufio.NewScanner(http.MaxBytesReader(w, r.Body, 64<<10))
	for lines.Scan() {
		name, value, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		if name == "" {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			fail(w, wire.OpenAI, http.StatusBadRequest, "the metric "+name+" needs a number")
			return
		}
		s.SetMetric(name, v)
	}
	w.WriteHeader(http.StatusNoContent)
}
