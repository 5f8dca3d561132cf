// Package admission is the fold: it decides every reserve, and keeps every meter, from the log alone.
//
// A Fold takes the log's records one by one, in order, and returns the verdicts that fall. It is deterministic: the same log gives the
// same state and the same verdicts, whatever the batching, the replica, or the snapshot that it began from. So it reads no clock (time is
// that of the records), no map order, no chance, and does no I/O. All arithmetic is on integers; ms are rounded up unless said otherwise.
//
// A record passes through here in this order: clock.go moves time and fires what is due; reserve.go, trueup.go, release.go, lease.go and
// facts.go take the event; waiting.go goes through those who wait. Each kind of meter has a file: window.go, gauge.go, bucket.go and so on.
//
// One goroutine owns a Fold.
package admission
