package inquiry

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/manage"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/insight"
)

const (
	// slack is how long before an id was made its request is looked for: gateways' clocks differ from the log's.
	slack = time.Minute

	// lookFor is how long after an id was made its first record may come, over HTTP: longer than most outages, during which a gateway keeps
	// what it served to itself. The command line looks to the log's end.
	lookFor = 6 * time.Hour
)

// Find looks for a request by its id or the end of it, near the time that the id gives if it gives one, and until an instant (ns since
// 1970; 0: to the log's end). step sees every record; it may be nil. The error is insight.ErrNotFound, or says what is wrong with the id.
func Find(ctx context.Context, log Log, id string, until int64, step func(*events.Record)) (*insight.Target, error) {
	finder, err := insight.NewFinder(id)
	if err != nil {
		return nil, err
	}
	var from uint64
	if made, ok := insight.MadeAt(id); ok {
		if from, err = log.SeqAt(ctx, made-int64(slack)); err != nil {
			return nil, err
		}
	}
	err = log.Read(ctx, from, func(r *events.Record) error {
		if step != nil {
			step(r)
		}
		if !finder.Take(r) || until != 0 && r.At > until && !finder.Started() {
			return ErrEnough
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return finder.Target()
}

// Retell folds the log up to the end of a request's story.
func Retell(ctx context.Context, log Log, target *insight.Target, step func(*events.Record)) (*insight.Story, error) {
	fold, err := log.FoldBefore(ctx, target.First)
	if err != nil {
		return nil, err
	}
	if fold == nil {
		fold = admission.New()
	}
	e := insight.NewExplainer(fold, target)
	err = log.Read(ctx, fold.Seq()+1, func(r *events.Record) error {
		if step != nil {
			step(r)
		}
		if e.Done() {
			return ErrEnough
		}
		return e.Apply(r)
	})
	if err != nil {
		return nil, err
	}
	return e.Story(), nil
}

// explained is the answer to GET /api/explain.
type explained struct {
	Story *insight.Story `json:"story"`
	Text  string         `json:"text"` // the same for reading, as `weir explain` prints it
}

// explain answers GET /api/explain?id=UUID: one request of the caller's org retold. With Accept: text/plain it is the text alone. A request
// that the log does not hold, or that is another org's, is 404.
func (h *Handler) explain(w http.ResponseWriter, r *http.Request, who manage.Caller) error {
	id := r.URL.Query().Get("id")
	made, ok := insight.MadeAt(id)
	if !ok {
		return manage.Invalid("id", id, "must be a request's whole id, as x-request-id gives it")
	}
	within, done, err := h.reading(r.Context(), who)
	if err != nil {
		return err
	}
	defer done()
	const instead = "use weir explain"
	missing := manage.Refused(http.StatusNotFound, "not_found", "there is no such request of this org in the log", 0)
	target, err := Find(within, h.config.Log, id, made+int64(lookFor), nil)
	switch {
	case errors.Is(err, insight.ErrNotFound):
		return missing
	case err != nil:
		return late(within, err, instead)
	case !who.Operator && target.Org != who.Org:
		return missing
	}
	story, err := Retell(within, h.config.Log, target, nil)
	if err != nil {
		return late(within, err, instead)
	}
	done()
	if !who.Operator {
		story = story.For(string(who.Org))
	}
	if strings.HasPrefix(r.Header.Get("Accept"), "text/plain") {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte(story.Text())) // a client that is gone needs no answer
		return nil
	}
	manage.Answer(w, http.StatusOK, explained{story, story.Text()})
	return nil
}
