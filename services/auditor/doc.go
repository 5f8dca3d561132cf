// Package auditor keeps one record of every request: it reads the log, folds it with projections/generation and writes the records to the
// key-value bucket "generations", one key a request. Reader answers them to gateways. It also keeps what projections/estimator learns, in
// the bucket "estimator"; Ratios reads that.
//
// The position in the log is a key of the same bucket, written after the records that it covers, and a record knows the place up to which
// it was folded: what is read again after a restart changes nothing. Of several auditors one writes, elected by a lease.
package auditor
