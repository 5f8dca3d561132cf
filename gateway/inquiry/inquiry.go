// Package inquiry answers what people ask of what was recorded: how a request was decided, what other limits would have done, and what was
// used in a time. The questions are answered from the log (projections/insight) and from the usage tables; the command line asks the same
// functions, Find, Retell and Simulate.
//
// # Endpoints
//
// All are under /api, for people who are signed in and for operators with an admin key (manage.Handler.Serve), and answer JSON. Failures
// have the body of that API: {"error", "code", "field", "value", "rule"}.
//
//	GET /api/explain?id=UUID       {"story": insight.Story, "text": "…"}; 404 for what is another org's
//	POST /api/simulate             {"limits": {"org/acme/rpm": 600, "key/*/tpm": null}, "scale": "2x", "since": "24h"}
//	                               → {"report": insight.Report, "text": "…"}
//	GET /api/usage?from=&to=&by=   {"by": "hour", "from": "…", "to": "…", "as_of": "…", "rows": [usage row, …]}
//
//	GET /api/generations           {"generations": [generation.Summary, …], "next_cursor": "…"}, newest first; ?key=&model=&outcome=&from=&to=&cursor=&limit=
//	GET /api/generations/{id}      {"data": generation.Record}; 404 for what is another org's
//
// The functions Handler.explain, simulate, usage, list and generation say more of each. A person sees what is of the own org: of others only how much they
// hold together.
//
// Reading a log takes long and much memory: few do so at once, of one org one, and none for longer than a minute. Who comes beyond that waits
// for some seconds, and is then told when to come again.
package inquiry

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/manage"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/postgres/sums"
)

// Bounds of what is asked over HTTP.
const (
	// AnswerWithin is how long an answer may take.
	AnswerWithin = time.Minute

	// MaxReaders is how many questions read the log at once; of those of one org, one does.
	MaxReaders = 2

	turnWithin = 10 * time.Second // for one's turn to read the log: two people of an org may look at requests at the same time
	comeAgain  = 5 * time.Second
)

// ErrEnough ends a reading without an error.
var ErrEnough = errors.New("enough")

// Log is the log as questions read it.
type Log interface {
	// Read gives the records from a sequence on to the log's end as it is now, until each returns an error; ErrEnough ends it without one.
	// What a record points to stays valid.
	Read(ctx context.Context, from uint64, each func(*events.Record) error) error

	// SeqAt gives a sequence that is not above the first record at or after an instant, ns since 1970; 0 for the log's first.
	SeqAt(ctx context.Context, at int64) (uint64, error)

	// FoldBefore gives a fold that is kept and not past the sequence, to begin with where the log before is long; nil if there is none.
	FoldBefore(ctx context.Context, seq uint64) (*admission.Fold, error)
}

// Usage is where usage by hour and day is kept: a *sums.Table.
type Usage interface {
	Rows(ctx context.Context, q sums.Query) ([]sums.Row, error)
	Position(ctx context.Context) (sums.Position, error)
}

// Door is where people come in: a *manage.Handler.
type Door interface {
	Serve(pattern string, f func(http.ResponseWriter, *http.Request, manage.Caller) error)
	Words(r *http.Request, err error) string
}

// Config is what questions are answered from.
type Config struct {
	// Log is the log. Defaults to none: this process may not read it, and says so.
	Log Log

	// Usage is where usage by hour and day is kept. Defaults to nowhere: there is no database, and answers say so.
	Usage Usage

	// Generations are the audit records of requests. There is no default.
	Generations Generations

	// Newest says that a list of requests has only those among so many of the newest writes. Defaults to all that are kept.
	Newest int

	// Now is the clock. There is no default.
	Now func() time.Time
}

// Handler answers.
type Handler struct {
	door    Door
	config  Config
	readers chan struct{}
	orgs    sync.Map // those whose people's question reads the log, with a chan struct{} that is closed when it has
}

// Mount adds the endpoints to a door.
func Mount(door Door, config Config) *Handler {
	h := &Handler{door: door, config: config, readers: make(chan struct{}, MaxReaders)}
	door.Serve("GET /api/explain", h.explain)
	door.Serve("POST /api/simulate", h.simulate)
	door.Serve("GET /api/usage", h.usage)
	door.Serve("GET /api/generations", h.list)
	door.Serve("GET /api/generations/{id}", h.generation)
	return h
}

// reading lets one question of somebody read the log, for a bounded time; done gives the place back, before the answer is sent: who reads it slowly must
// not keep others from asking. It may be called again.
func (h *Handler) reading(ctx context.Context, who manage.Caller) (within context.Context, done func(), err error) {
	if h.config.Log == nil {
		return nil, nil, manage.Refused(http.StatusServiceUnavailable, "no_log", "this process does not read the log: ask one with the role broker, projector, auditor or biller", 0)
	}
	waiting, cancel := context.WithTimeout(ctx, turnWithin)
	defer cancel()
	leave := func() {}
	if !who.Operator {
		if leave = h.turn(waiting, who.Org); leave == nil {
			return nil, nil, manage.Refused(http.StatusServiceUnavailable, "busy", "another question of this org is reading the log: come again", comeAgain)
		}
	}
	if !h.place(waiting) {
		leave()
		return nil, nil, manage.Refused(http.StatusServiceUnavailable, "busy", "others are reading the log: come again", comeAgain)
	}
	within, end := context.WithTimeout(ctx, AnswerWithin)
	return within, sync.OnceFunc(func() { end(); <-h.readers; leave() }), nil
}

// place takes a reader's place; false if none is free in time. One that is free is taken however late it is.
func (h *Handler) place(ctx context.Context) bool {
	select {
	case h.readers <- struct{}{}:
		return true
	default:
	}
	select {
	case h.readers <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// turn waits until no other question of an org reads the log; leave lets the next one. It is nil if the time is over first.
func (h *Handler) turn(ctx context.Context, org events.Org) (leave func()) {
	mine := make(chan struct{})
	for {
		other, asks := h.orgs.LoadOrStore(org, mine)
		if !asks {
			return func() { h.orgs.Delete(org); close(mine) }
		}
		select {
		case <-other.(chan struct{}):
		case <-ctx.Done():
			return nil
		}
	}
}

// late turns the end of the time for an answer into words.
func late(within context.Context, err error, instead string) error {
	if errors.Is(within.Err(), context.DeadlineExceeded) {
		return manage.Refused(http.StatusServiceUnavailable, "too_long", "the log could not be read to the end within "+AnswerWithin.String()+": "+instead, 0)
	}
	return err
}
