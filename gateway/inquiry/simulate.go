package inquiry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/authority/strictyaml"
	"github.com/weirhq/weir/gateway/manage"
	"github.com/weirhq/weir/projections/admission"
	"github.com/weirhq/weir/projections/insight"
)

// Bounds of a simulation over HTTP.
const (
	maxSimulated  = 5_000_000 // records that are folded
	progressEvery = time.Second
	lookAtClock   = 1 << 12 // records between two looks at the clock
	batchOf       = 256     // records that one half hands to the other
	batchesAhead  = 4
)

// errTooMany ends a simulation that folds too much.
var errTooMany = errors.New("too many records")

// Simulate folds a log as it was and under other limits or load. Where the log before config.From is long and a fold of it is kept, it
// begins there. step sees every record, and may end it with an error; it may be nil.
func Simulate(ctx context.Context, log Log, config insight.SimulationConfig, step func(*events.Record) error) (*insight.Report, error) {
	fold := admission.New()
	if config.From != 0 {
		seq, err := log.SeqAt(ctx, config.From)
		if err != nil {
			return nil, err
		}
		kept, err := log.FoldBefore(ctx, seq)
		if err != nil {
			return nil, err
		}
		if kept != nil {
			fold = kept
		}
	}
	from := fold.Seq() + 1
	simulation, err := insight.NewSimulation(fold, config)
	if err != nil {
		return nil, err
	}
	if err := halves(ctx, log, from, simulation, step); err != nil {
		return nil, err
	}
	simulation.Finish()
	return simulation.Report(), nil
}

// halves runs the two halves of a simulation beside one another: what was decided is folded ahead of what would have been.
func halves(ctx context.Context, log Log, from uint64, simulation *insight.Simulation, step func(*events.Record) error) error {
	group, ctx := errgroup.WithContext(ctx)
	batches := make(chan []insight.Recorded, batchesAhead)
	group.Go(func() error {
		defer close(batches)
		recording := simulation.Recording()
		batch := make([]insight.Recorded, 0, batchOf)
		send := func() error {
			select {
			case batches <- batch:
				batch = make([]insight.Recorded, 0, batchOf)
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		err := log.Read(ctx, from, func(r *events.Record) error {
			if step != nil {
				if err := step(r); err != nil {
					return err
				}
			}
			recorded, err := recording.Apply(r)
			if err != nil {
				return err
			}
			if batch = append(batch, recorded); len(batch) < batchOf {
				return nil
			}
			return send()
		})
		if err != nil {
			return err
		}
		return send()
	})
	group.Go(func() error {
		for batch := range batches {
			for i := range batch {
				if err := simulation.Take(&batch[i]); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return group.Wait()
}

// ParseScale reads "2x", "1.5x" or "0.5" in thousandths.
func ParseScale(text string) (int64, error) {
	n, err := strictyaml.ParseDecimal(strings.TrimSuffix(text, "x"), 3)
	if err != nil || n < 1 || n > insight.MaxScale {
		return 0, fmt.Errorf("scale %q: is not a number from 0.001 to %d with at most 3 decimals, such as 2x", text, insight.MaxScale/insight.ScaleOnce)
	}
	return n, nil
}

// asked is the body of POST /api/simulate.
type asked struct {
	Limits map[string]*int64 `json:"limits"` // by meter or pattern; null: no limit
	Scale  string            `json:"scale"`  // "2x"; empty: as it was
	Since  string            `json:"since"`  // "24h" or an instant; empty: all of the log
}

// simulated is the answer.
type simulated struct {
	Report *insight.Report `json:"report"`
	Text   string          `json:"text"` // the same for reading, as `weir simulate` prints it
}

// progress is a line of the answer while it is made.
type progress struct {
	Records int64  `json:"records"`
	At      string `json:"at"` // the log's time
}

// simulate answers POST /api/simulate: what other limits or more load would have done to recorded traffic. Operators simulate all of it;
// owners and admins of an org that org's requests under the org's own limits, while others' come as they came. With Accept:
// application/x-ndjson the answer is lines: {"progress": {"records", "at"}} about once a second, and last {"report", "text"} or
// {"failure": {"error"}} if it fails after a line was sent.
func (h *Handler) simulate(w http.ResponseWriter, r *http.Request, who manage.Caller) error {
	if !who.Operator && !who.Role.Writes() {
		return manage.Refused(http.StatusForbidden, "forbidden", "the role "+string(who.Role)+" reads: owners and admins simulate", 0)
	}
	config, err := h.read(w, r, who)
	if err != nil {
		return err
	}
	within, done, err := h.reading(r.Context(), who)
	if err != nil {
		return err
	}
	defer done()
	lines := strings.HasPrefix(r.Header.Get("Accept"), "application/x-ndjson")
	watch := &watcher{h: h, shown: h.config.Now()}
	if lines {
		watch.to = http.NewResponseController(w)
		watch.out = json.NewEncoder(w)
		w.Header().Set("Content-Type", "application/x-ndjson")
	}
	report, err := Simulate(within, h.config.Log, config, watch.step)
	if errors.Is(err, errTooMany) {
		err = manage.Refused(http.StatusServiceUnavailable, "too_long", fmt.Sprintf("more than %d records: give a later since, or use weir simulate", maxSimulated), 0)
	} else if err != nil {
		err = late(within, err, "give a later since, or use weir simulate")
	}
	done()
	switch {
	case err != nil && watch.told: // the status has been sent
		return watch.out.Encode(map[string]any{"failure": map[string]string{"error": h.door.Words(r, err)}})
	case err != nil:
		return err
	case lines:
		return watch.out.Encode(simulated{report, report.Text()})
	}
	manage.Answer(w, http.StatusOK, simulated{report, report.Text()})
	return nil
}

// watcher bounds a simulation, and tells how far it has come.
type watcher struct {
	h     *Handler
	out   *json.Encoder // nil: nobody is told
	to    *http.ResponseController
	count int64
	shown time.Time
	told  bool
}

func (p *watcher) step(r *events.Record) error {
	if p.count++; p.count > maxSimulated {
		return errTooMany
	}
	if p.out == nil || p.count%lookAtClock != 0 {
		return nil
	}
	now := p.h.config.Now()
	if now.Sub(p.shown) < progressEvery {
		return nil
	}
	p.shown, p.told = now, true
	if err := p.out.Encode(map[string]progress{"progress": {p.count, string(events.AppendTime(nil, r.At))}}); err != nil {
		return err
	}
	return p.to.Flush()
}

// read reads what is to be different.
func (h *Handler) read(w http.ResponseWriter, r *http.Request, who manage.Caller) (config insight.SimulationConfig, err error) {
	text, err := manage.Body(w, r)
	if err != nil {
		return config, err
	}
	var in asked
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&in); err != nil || decoder.Decode(&struct{}{}) != io.EOF {
		return config, manage.Invalid("body", "", `must be one JSON object with limits, scale and since, such as {"limits": {"org/acme/rpm": 600}, "scale": "2x", "since": "24h"}`)
	}
	if in.Scale == "" {
		in.Scale = "1x"
	}
	if config.Scale, err = ParseScale(in.Scale); err != nil {
		return config, manage.Invalid("scale", in.Scale, "must be a number from 0.001 to 100 with at most 3 decimals, such as 2x")
	}
	if in.Since != "" {
		if config.From, err = Since(in.Since, h.config.Now()); err != nil {
			return config, manage.Invalid("since", in.Since, "must be a duration such as 24h or an instant such as 2026-03-02T10:00:00Z")
		}
	}
	if len(in.Limits) == 0 && config.Scale == insight.ScaleOnce {
		return config, manage.Invalid("limits", "", "must be given, or a scale other than 1x: with neither it would say what happened")
	}
	if !who.Operator {
		config.Org = who.Org
		for name := range in.Limits {
			if rule := ownMeter(who.Org, name); rule != "" {
				return config, manage.Invalid("limits", name, rule)
			}
		}
	}
	if config.Limits, err = insight.NewLimits(in.Limits); err != nil {
		return config, manage.Invalid("limits", "", err.Error())
	}
	return config, nil
}

// ownScopes are those whose limits an org sets for itself.
var ownScopes = []events.Scope{events.ScopeOrg, events.ScopeWorkspace, events.ScopePrincipal, events.ScopeKey}

// ownMeter says which rule a meter breaks that an org may not simulate a limit of. Whatever it names, only the org's own requests come under
// the limit.
func ownMeter(org events.Org, name string) string {
	scope, subject, _ := events.Meter(name).Split()
	switch {
	case scope == events.ScopeOrg && subject != string(org) && subject != "*":
		return "must be of this org"
	case slices.Contains(ownScopes, scope):
		return ""
	case scope == events.ScopeModel && strings.HasPrefix(subject, string(org)+"."):
		return ""
	}
	return "must be a limit of this org: org/" + string(org) + "/…, workspace/…, principal/…, key/… or model/" + string(org) + ".…"
}

// Since reads an instant, or a duration before now.
func Since(text string, now time.Time) (int64, error) {
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return events.Nanos(at), nil
	}
	ago, err := time.ParseDuration(text)
	if err != nil || ago < 0 {
		return 0, fmt.Errorf("since %q: is neither a duration such as 24h nor a time such as 2026-03-02T10:00:00Z", text)
	}
	return events.Nanos(now.Add(-ago)), nil
}
