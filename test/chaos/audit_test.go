package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/gateway/inquiry"
	"github.com/weirhq/weir/projections/generation"
	"github.com/weirhq/weir/projections/postgres"
	"github.com/weirhq/weir/projections/postgres/audit"
	"github.com/weirhq/weir/services/auditor"
	"github.com/weirhq/weir/test/e2e/stack"
)

// records reads the audit's records, where they are kept.
func (w *world) records(nc *nats.Conn) (r inquiry.Generations, done func()) {
	if w.database == nil {
		return auditor.NewReader(nc), func() {}
	}
	pool, err := postgres.Open(w.database.URL, "chaos")
	w.must(err)
	return audit.NewReader(pool), pool.Close
}

// audit checks that the audit has one record of each request that the log knows, refused ones too, with the tokens and the cost that the
// log's finals have; of calls, with those of the upstream's own record.
func (w *world) audit(s *stack.Story, reader inquiry.Generations, c checks) {
	w.tb.Helper()
	records := map[events.RequestID]*generation.Record{}
	missing := ""
	w.until("the audit has the end of each request", func() bool {
		for id, t := range s.Requests {
			if records[id] != nil || len(t.Reserves) == 0 && len(t.Refused) == 0 {
				continue
			}
			r, why := w.record(reader, orgOf(t), id)
			if r == nil || r.State != generation.Ended && !lapsed(s, t) {
				missing = fmt.Sprintf("%s (%s)%s", id, why, saysOf(s, string(id)))
				return false
			}
			records[id] = r
		}
		missing = ""
		return true
	}, &missing)
	var logged, audited int64
	for id, r := range records {
		if made, _ := id.MadeAt(); made.Before(c.since) {
			continue // the audit may know more of it than a log that was cut
		}
		audited += r.Cost.Nano
		finals := s.Requests[id].Finals()
		for _, f := range finals {
			logged += f.CostNano
		}
		if len(finals) == 1 && (r.Cost.Tokens.InputTokens != finals[0].Usage.InputTokens || r.Cost.Tokens.OutputTokens != finals[0].Usage.OutputTokens) {
			w.tb.Errorf("request %s: the audit says %+v, the log %+v", id, r.Cost.Tokens, finals[0].Usage)
		}
	}
	if logged != audited {
		w.tb.Errorf("the log's finals cost %d nano-dollars, the audit's records %d", logged, audited)
	}
	for _, call := range w.provider.Ledger().Calls() {
		r := records[events.RequestID(call.RequestID)]
		switch {
		case call.Started.Before(c.since):
		case r == nil:
			w.tb.Errorf("call %d of request %s is not in the audit", call.ID, call.RequestID)
		case r.Cost.Settled && r.UsageQuality != nil && *r.UsageQuality == events.QualityExact.String() && len(r.Attempts) == 1 &&
			(r.Cost.Tokens.InputTokens != call.Input || r.Cost.Tokens.OutputTokens != call.Output):
			w.tb.Errorf("request %s: the audit says %+v, the upstream %d and %d tokens", call.RequestID, r.Cost.Tokens, call.Input, call.Output)
		}
	}
}

func orgOf(t *stack.Trail) events.Org {
	if len(t.Reserves) > 0 {
		return t.Reserves[0].Org
	}
	return t.Refused[0].Org
}

// record reads one record, or says why there is none.
func (w *world) record(reader inquiry.Generations, org events.Org, id events.RequestID) (*generation.Record, string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	b, found, err := reader.Generation(ctx, org, id)
	if err != nil {
		return nil, err.Error()
	}
	if !found {
		return nil, "no record"
	}
	var r generation.Record
	if err := json.Unmarshal(b, &r); err != nil {
		w.tb.Errorf("the record of %s: %v", id, err)
		return nil, err.Error()
	}
	return &r, r.State
}
