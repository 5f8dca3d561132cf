package main

import (
	"time"

	"github.com/weirhq/weir/gateway/inquiry"
	"github.com/weirhq/weir/projections/postgres/sums"
	"github.com/weirhq/weir/services/auditor"
)

// inquire lets people ask what was recorded, where they can sign in at this process. A gateway that joins another's log may not read it.
func (n *node) inquire() {
	door := n.gateway.Door()
	if door == nil {
		return
	}
	cfg := inquiry.Config{Now: time.Now, Generations: n.generations()}
	if n.broker != nil || n.has(roleProjector) || n.has(roleAuditor) || n.has(roleBiller) {
		cfg.Log = &liveLog{log: n.log, conn: n.conn, dataDir: n.config.DataDir}
	}
	if n.pool != nil {
		cfg.Usage = sums.New(n.pool)
	} else {
		cfg.Newest = auditor.ListedWrites
	}
	inquiry.Mount(door, cfg)
}
