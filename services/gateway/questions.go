package gateway

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/gateway/reservation"
	"github.com/weirhq/weir/projections/projector"
)

// questions gives whom to ask for verdicts that did not come.
func (g *Gateway) questions() reservation.Projector {
	if g.c.Projector != nil {
		return near{g.c.Projector, g.c.Name}
	}
	return far{g.c.Conn, g.c.Name}
}

// near asks the projector of the same process.
type near struct {
	p    *projector.Projector
	name events.Gateway
}

func (n near) Ask(_ context.Context, id events.RequestID, attempt int64) (events.Verdict, bool, error) {
	v, known := n.p.Ask(id, attempt)
	return v, known, nil
}

func (n near) Live(ctx context.Context) ([]events.RequestID, error) {
	ids, _, err := n.p.Live(ctx, n.name)
	return ids, err
}

// far asks whichever projector answers first.
type far struct {
	nc   *nats.Conn
	name events.Gateway
}

func (f far) ask(ctx context.Context, subject string, q projector.Question) ([]byte, error) {
	q.Gateway = f.name
	text, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	m, err := f.nc.RequestWithContext(ctx, subject, text)
	if err != nil {
		return nil, fmt.Errorf("ask on %s: %w", subject, err)
	}
	return m.Data, nil
}

func (f far) Ask(ctx context.Context, id events.RequestID, attempt int64) (v events.Verdict, known bool, err error) {
	text, err := f.ask(ctx, access.SubjectAsk, projector.Question{Request: id, Attempt: attempt})
	if err != nil {
		return v, false, err
	}
	var u projector.Unknown
	if err := json.Unmarshal(text, &u); err == nil && u.Unknown {
		return v, false, nil
	}
	all, err := events.DecodeVerdicts(append(append([]byte{'['}, text...), ']'))
	if err != nil || len(all) != 1 {
		return v, false, fmt.Errorf("read the answer on %s: %w", id, err)
	}
	return all[0], true, nil
}

// why gives why projectors that can be reached give no answers; empty: they may give them. The error says that none says anything.
func (f far) why(ctx context.Context) (string, error) {
	text, err := f.ask(ctx, access.SubjectAsk, projector.Question{Why: true})
	if err != nil {
		return "", err
	}
	var u projector.Unknown
	if err := json.Unmarshal(text, &u); err != nil {
		return "", fmt.Errorf("read why projectors are silent: %w", err)
	}
	return u.Why, nil
}

func (f far) Live(ctx context.Context) ([]events.RequestID, error) {
	text, err := f.ask(ctx, access.SubjectLive, projector.Question{})
	if err != nil {
		return nil, err
	}
	var live projector.LiveRequests
	if err := json.Unmarshal(text, &live); err != nil {
		return nil, fmt.Errorf("read the live requests: %w", err)
	}
	return live.Requests, nil
}
