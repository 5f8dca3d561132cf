// Package insight answers questions from the log alone: what happens (Tail), why a request was decided as it was and what became of it
// (Finder, Explainer), and what other limits or more load would have done (Simulation).
//
// Everything here is fed with the log's records in order and gives values. It folds with projections/admission, so that it says what
// was decided and never what it thinks should have been.
package insight
