// Package biller writes what was used to the stream USAGE, each line once, and hands it on to systems outside.
//
// Every biller folds the log with projections/usage; the one that holds the lease writes. A line's place in the log (the sequence of the
// message with which it fell, and its number there) goes with it, and it is appended only if the stream still ends where this biller knows
// it to end. So where the stream ends says which lines are written, whoever wrote them and however long ago: a restart, a second biller or a
// lost acknowledgement neither loses a line nor writes one twice. The state is kept in a snapshot under the data directory; lines that were
// not in the stream yet are in it too.
//
// Exports read the stream by a durable consumer each, hand on batches and acknowledge them when they are taken: at least once, under ids
// that never change. ops/guide/billing.md is the contract for those who read the stream themselves.
package biller
