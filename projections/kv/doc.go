// Package kv keeps what the fold's meters show where gateways can watch it, and the leases that elect one writer of a projection.
//
// A Writer puts meters into the buckets occupancy (gauges) and windows (all others), each under its own name, at a bounded rate and the
// hottest first. A View holds the last known entry of each meter at a gateway: from the buckets, or in the same process by a call. It
// ages entries by the gateway's own clock, fills headers from them, and refuses at once what surely does not fit.
//
// A View only ever refuses. What it does not know, or no longer knows well enough, the log decides.
//
// age.go is the arithmetic, without clock or I/O.
package kv
