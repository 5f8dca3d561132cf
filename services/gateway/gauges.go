package gateway

import "github.com/prometheus/client_golang/prometheus"

// registerGauges shows what the gateway holds now.
func (g *Gateway) registerGauges(r prometheus.Registerer) {
	gauge := func(name, help string, value func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weir_" + name, Help: help}, value))
	}
	counter := func(name, help string, value func() float64) {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weir_" + name, Help: help}, value))
	}
	gauge("requests_in_hand", "Requests for models under way.", func() float64 { return float64(g.server.InHand()) })
	gauge("reservations", "Requests that hold a reservation or wait for one.", func() float64 { return float64(g.book.Live()) })
	gauge("reserves_unanswered", "Reserves that wait for their verdict.", func() float64 { return float64(g.book.Unanswered()) })
	gauge("outbox_events", "Events that the log has not acknowledged.", func() float64 { return float64(g.publisher.Stats().Waiting) })
	gauge("outbox_oldest_seconds", "Age of the oldest of them.", func() float64 { return g.publisher.Stats().Oldest.Seconds() })
	counter("published_messages_total", "Messages that the log has acknowledged, packs included.", func() float64 { return float64(g.publisher.Stats().Messages) })
	counter("published_events_total", "Events that the log has acknowledged.", func() float64 { return float64(g.publisher.Stats().Events) })
	counter("publish_retries_total", "Messages sent again.", func() float64 { return float64(g.publisher.Stats().Retries) })
	counter("strays_released_total", "Reservations that the log held for this gateway and it did not.", func() float64 { return float64(g.book.Stats().Strays.Load()) })
	counter("refusals_unreported_total", "The gateway's own refusals that the audit will not show.", func() float64 { return float64(g.reporter.Lost()) })
}
