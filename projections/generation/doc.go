// Package generation folds the log into one record per request: who asked for what, every refusal, park and fallback on the way, a
// receipt for each attempt, and what it cost. The record has the fields of OpenRouter's generation object where they apply.
//
// The record is also the state: stored, read back and folded further, it comes to the same as if it had never left. It knows the place
// in the log up to which it was folded, so records of the log that come again change nothing. Only what is being worked on is kept in
// memory; the caller stores what Drain gives and brings back what Missing names.
//
// Credits, fences and recoveries belong to no request: Facts gives them, to be kept beside the records.
//
// Whether an attempt was admitted is read from the verdicts events, which follow the reserves, true-ups and releases at a distance. Until
// its verdict is known an attempt is taken to be admitted.
package generation
