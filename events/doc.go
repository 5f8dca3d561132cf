// Package events is the vocabulary of Weir: every fact that the log can hold, the identifiers in them, and their encoding.
//
// The log is one JetStream stream. A fact is an Event: a CloudEvents 1.0 envelope (id, source, type, subject) around one Data.
// Nothing here reads a clock, a file or the network; the log itself is in events/journal.
//
// # Glossary
//
// One word stands for one idea in code, events, metrics, headers and documents.
//
//	request      one call of a client, whatever it takes to serve it; its id is a UUIDv7
//	attempt      one try of a request at one model backend, counted from 0
//	claim        what a request wants of one meter: an amount, what must fit, and against which limit
//	reserve      the event that asks for all claims of an attempt at once
//	reservation  an admitted reserve: its claims are charged until they are trued up and released
//	verdict      the answer to a reserve: admitted or refused
//	refusal      why a verdict (or a gateway's own gate) said no; an answer, never an error
//	true-up      the event that replaces an estimate by what was used; absolute values
//	release      the event that ends an attempt or a request, or says that it left the local pool
//	lease        a gateway's sign of life, which holds all its reservations
//	lapse        what a reservation does when its gateway's lease has ended
//	meter        a counter of the fold, named <scope>/<subject>/<dimension>
//	scope        whose limit it is: platform, org, workspace, principal, key, model, endpoint, pool
//	window       a meter that rolls over the last minute (or second)
//	gauge        a meter of what is held now; occupancy is the gauge of tokens at a model
//	bucket       a meter that refills continuously over a minute
//	budget       a meter of a calendar day or month
//	balance      prepaid money: total less holds
//	pool         a provider account's declared capacity
//	fence        the version of an org's authority that reserves must present
//	generation   the audit record of one request
package events
