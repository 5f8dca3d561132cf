// Package audit keeps the records of requests in PostgreSQL: a row a request, a row an attempt, a row an admission event, in partitions of a
// day (UTC) of the time that a request's id says.
//
// The tables are in a schema of their own, <base>_audit_<n>; the table audit_schemas of the base schema says which one serves, and views
// there (generations, attempts, admission_events) show what it holds, so that another can be built beside it and then take its place in one
// transaction.
//
// Store writes. Rows and the position in the log go in one transaction, so that they always tell of the same stretch of the log, and a write
// counts only on the one that this writer made before it: two can never interleave. Reader answers. Rebuild is what a rebuild does here.
package audit
