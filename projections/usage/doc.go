// Package usage folds the log into billing lines: what each attempt used and cost, each once.
//
// An attempt's line is settled by its final, the true-up that the fold of admission debits balances by: the first final with a number above
// those before it, of an attempt that was admitted, whether it came before or after its admission. A correction gives a further line of a
// higher revision. An attempt that may have reached its backend and has no final 15 minutes after its end gives a line that is unsettled
// and costs nothing; should the final come later, it gives a line of its own.
//
// # Who was admitted
//
// A Usage applies every record to an admission.Fold of its own. The alternative, to wait for the verdicts events, would be cheaper and not
// the same: they follow at a distance, may be missing where nobody held the writer's lease for long, and do not say when a request ended
// that no release ended (its lease lapsed, its time was up), nor when the fold forgot one, so that what comes for it counts as for one
// never seen. With the fold beside it the lines follow from the log alone, as balances do: the sum of the lines of prepaid requests is what
// was debited, to the nano-dollar. It costs about a microsecond a record, and it needs the log from its first record, or a snapshot.
//
// One goroutine owns a Usage. It reads no clock: time is the fold's.
package usage
