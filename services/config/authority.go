package config

import (
	"time"

	"github.com/weirhq/weir/gateway/authority/strictyaml"
)

// Dynamic says how dynamic authority is kept.
type Dynamic struct {
	// SnapshotMaxAge is for how long keys made through the API are served after they were last verified against their store, at most an
	// hour. Defaults to 5 minutes.
	SnapshotMaxAge time.Duration
}

// Bounds of the age of what could not be verified.
const (
	defaultSnapshotAge = 5 * time.Minute
	minSnapshotAge     = time.Second
	maxSnapshotAge     = time.Hour
)

func (l *loader) authority(m *strictyaml.Map) {
	a := &l.c.Dynamic
	a.SnapshotMaxAge = m.Get("snapshot_max_age").Duration(a.SnapshotMaxAge, minSnapshotAge, maxSnapshotAge)
	m.End()
}
