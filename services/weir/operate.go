package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// Bounds of the operators' server.
const (
	operateHeaderWithin = 5 * time.Second
	operateStopWithin   = time.Second
)

// operate mounts what operators look at: on an address of its own where the configuration names one, else beside the API.
func (n *node) operate() error {
	type mux interface {
		Handle(pattern string, h http.Handler)
	}
	var on mux
	metrics := http.Handler(promhttp.HandlerFor(n.registry, promhttp.HandlerOpts{}))
	switch {
	case n.config.Operators.Listen != "":
		own := http.NewServeMux()
		own.HandleFunc("GET /health", serveHealth)
		own.HandleFunc("GET /ready", n.serveReady)
		l, err := net.Listen("tcp", n.config.Operators.Listen)
		if err != nil {
			return fmt.Errorf("listen on %s for operators: %w", n.config.Operators.Listen, err)
		}
		n.operators, n.operated = &http.Server{Handler: own, ReadHeaderTimeout: operateHeaderWithin}, l
		on = own
	case n.gateway != nil:
		on, metrics = n.gateway, n.besideAPI(metrics)
	default:
		return nil
	}
	on.Handle("GET /metrics", metrics)
	on.Handle("GET /status", http.HandlerFunc(n.serveStatus))
	on.Handle("GET /log", http.HandlerFunc(n.serveLog))
	on.Handle("GET /log/{stream}", http.HandlerFunc(n.serveStream))
	on.Handle("POST /recover", http.HandlerFunc(n.serveRecover))
	on.Handle("POST /audit/rebuild", http.HandlerFunc(n.serveRebuild))
	return nil
}

// besideAPI serves all metrics to operators, and to anybody else who reaches the API those that tell of no org.
func (n *node) besideAPI(all http.Handler) http.Handler {
	public := promhttp.HandlerFor(ofNoOrg(n.registry), promhttp.HandlerOpts{})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if operator(r, n.config.AdminKeys) {
			all.ServeHTTP(w, r)
			return
		}
		public.ServeHTTP(w, r)
	})
}

// balances begins the names of the sums of the orgs' money: of a single org that is its balance.
const balances = "weir_balances_"

// ofNoOrg leaves out what has an org in a label, and sums of the orgs' money.
func ofNoOrg(g prometheus.Gatherer) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := g.Gather()
		return slices.DeleteFunc(families, func(f *dto.MetricFamily) bool {
			return strings.HasPrefix(f.GetName(), balances) || slices.ContainsFunc(f.GetMetric(), func(m *dto.Metric) bool {
				return slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == "org" })
			})
		}), err
	})
}

// serveOperators answers operators until ctx ends.
func (n *node) serveOperators(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- n.operators.Serve(n.operated) }()
	<-ctx.Done()
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), operateStopWithin)
	defer cancel()
	if err := n.operators.Shutdown(within); err != nil {
		_ = n.operators.Close() // somebody follows the log
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve operators: %w", err)
	}
	return nil
}

// why says why the process does not do its work; empty: it does.
func (n *node) why() string {
	if n.gateway != nil {
		if why := n.gateway.Why(); why != "" {
			return why
		}
	}
	if n.ledger != nil {
		if why := n.ledger.Why(); why != "" {
			return why
		}
	}
	if n.projector != nil {
		_, why := n.projector.Answering()
		return why
	}
	return ""
}

func serveHealth(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(`{"status":"ok"}`)) // who asked is gone, then
}

// serveReady says whether the process does its work, and if not, why.
func (n *node) serveReady(w http.ResponseWriter, _ *http.Request) {
	answer := map[string]any{"ready": true}
	w.Header().Set("Content-Type", "application/json")
	if why := n.why(); why != "" {
		answer = map[string]any{"ready": false, "why": why}
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(answer) // who asked is gone, then
}
