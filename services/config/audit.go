package config

import (
	"time"

	"github.com/weirhq/weir/gateway/authority/strictyaml"
)

// Audit says how audit records are kept.
type Audit struct {
	// Retention is how long the record of a request is kept. In the database whole days (UTC) of requests go. Defaults to 720h with a
	// database, and to 168h in a bucket.
	Retention time.Duration
}

// Bounds of the time for which records are kept.
const (
	minRetention = time.Hour
	maxRetention = 10 * 365 * 24 * time.Hour
)

func (l *loader) audit(m *strictyaml.Map) {
	l.c.Audit.Retention = m.Get("retention").Duration(0, minRetention, maxRetention)
	m.End()
}
