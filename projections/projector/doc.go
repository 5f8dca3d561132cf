// Package projector runs the fold of admission over the log, and says what it decides.
//
// A Projector reads the log in order through a Source, folds each record on one goroutine, and answers: gateways of the same process by
// a call, others by one message per gateway and batch on the gateway's own verdict subject. It keeps its answers for a minute for
// gateways that ask again, and snapshots of its state so that a restart reads only the log's tail.
//
// Any number of projectors read one log and give the same answers. The one among them that holds the writer's lease also publishes ticks,
// writes the views that gateways watch, and appends what was decided to the log as verdicts; the others check its verdicts against their
// own fold. The writer also shares a snapshot now and then: who is new on a log whose beginning is gone begins from that, or not at all.
//
// A projector that cannot trust its answers says why it is not ready and stops answering: when the log was replaced, when the fold's
// rules are unknown to this binary, when the stream's clock is far off. What it does not answer, no gateway dispatches.
package projector
