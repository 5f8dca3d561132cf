package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/gateway/outage/spool"
	"github.com/weirhq/weir/gateway/reservation"
)

const (
	publishBatch = 128              // events that are published together
	leftFor      = 20 * time.Second // one try to publish what another process left
	leftEvery    = 10 * time.Second // between two of them
)

// find gives who looks for ids in the log: whoever may read it.
func (g *Gateway) find(nc *nats.Conn, log *journal.Log) journal.Find {
	if g.c.Projector != nil {
		return log.LookFor
	}
	return journal.Ask(nc, access.SubjectFind)
}

// publish sends what is spooled to the log, in the order in which it was spooled, and counts what the log has. What may be there already
// is looked for first.
//
// A publisher packs releases before true-ups before reserves. So a batch goes out in the order of what depends on what: its reserves, in
// their order, then its true-ups, then its releases, each step when the log has the one before.
func publish(ctx context.Context, s *spool.Spool, p *sender, find journal.Find, search bool) (n int, err error) {
	for {
		batch := s.Next(publishBatch)
		if len(batch) == 0 {
			return n, nil
		}
		there := map[string]uint64{}
		if search {
			if there, err = lookFor(ctx, find, batch); err != nil {
				return n, err
			}
		}
		for _, step := range steps(batch) {
			if err := p.send(ctx, step, there); err != nil {
				return n, err
			}
		}
		if err := s.Published(len(batch)); err != nil {
			return n, err
		}
		n += len(batch)
	}
}

func lookFor(ctx context.Context, find journal.Find, batch []spool.Entry) (map[string]uint64, error) {
	after := batch[0].After
	ids := make([]string, len(batch))
	for i := range batch {
		after, ids[i] = min(after, batch[i].After), batch[i].ID
	}
	return find(ctx, after, ids...)
}

// steps takes a batch apart by kind.
func steps(batch []spool.Entry) (all [3][]events.Event) {
	for i := range batch {
		switch batch[i].Data.(type) {
		case *events.TrueUp:
			all[1] = append(all[1], batch[i].Event)
		case *events.Release:
			all[2] = append(all[2], batch[i].Event)
		default:
			all[0] = append(all[0], batch[i].Event)
		}
	}
	return all
}

// sender hands events to a publisher. What that has not answered for when a try ends stays in hand, and the next try waits for it: handed over
// again it would be in the log twice.
type sender struct {
	p    *journal.Publisher
	held map[string]chan error // by id
}

func newSender(p *journal.Publisher) *sender { return &sender{p, map[string]chan error{}} }

// send publishes events that are not there, and waits until the log has them.
func (s *sender) send(ctx context.Context, all []events.Event, there map[string]uint64) error {
	var failed error
	var ids []string
	for i := range all {
		id := all[i].ID
		if there[id] > 0 {
			delete(s.held, id)
			continue
		}
		if s.held[id] == nil {
			done := make(chan error, 1)
			if err := s.p.Submit(all[i], func(_ uint64, err error) { done <- err }); err != nil {
				failed = fmt.Errorf("publish %s: %w", id, err)
				break
			}
			s.held[id] = done
		}
		ids = append(ids, id)
	}
	for _, id := range ids {
		select {
		case err := <-s.held[id]:
			delete(s.held, id)
			failed = errors.Join(failed, err)
		case <-ctx.Done():
			return errors.Join(failed, ctx.Err())
		}
	}
	return failed
}

// takeOver publishes what processes before this one have spooled and not published. It is called before this process's first lease, and
// again while anything is left.
func (g *Gateway) takeOver(ctx context.Context) error {
	left, err := spool.Left(g.spools())
	if err != nil {
		return err
	}
	var failed []error
	for _, name := range left {
		if name == g.c.Name {
			continue
		}
		s, damage, err := spool.Open(g.spools(), spool.Head{Gateway: name})
		if spool.InUse(err) {
			continue
		}
		if err != nil {
			failed = append(failed, err)
			continue
		}
		for _, d := range damage {
			g.c.Logger.Warn("a spool was damaged: what stands after the damage is lost", "damage", d)
		}
		if s.Waiting() > 0 {
			if err := g.publishLeft(ctx, s); err != nil {
				failed = append(failed, fmt.Errorf("publish what %s spooled: %w", name, err))
			}
		}
		failed = append(failed, s.Close())
	}
	return errors.Join(failed...)
}

// publishLeft publishes the spool of a gateway process that died, under its name and in its epoch; then a lease of the next epoch ends
// what the log still holds for it.
//
// That order is what the log needs: reserves of an epoch that is over would be refused as invalid, and each reserve that is spooled is a
// lease of its epoch, which puts back what had lapsed. Requests whose end the process did not live to note are ended here: whether their
// calls were made cannot be known, only that they may have been.
func (g *Gateway) publishLeft(ctx context.Context, s *spool.Spool) error {
	ctx, cancel := context.WithTimeout(ctx, leftFor)
	defer cancel()
	head := s.Head()
	nc, log := g.c.Conn, g.c.Log
	if g.c.Dial != nil {
		conn, err := g.c.Dial(string(head.Gateway))
		if err != nil {
			return err
		}
		defer conn.Close()
		nc = conn
		if log, err = journal.Open(ctx, nc, journal.Config{}); err != nil {
			return err
		}
	}
	find := g.find(nc, log)
	p, err := log.Publisher(ctx, journal.PublisherConfig{Gateway: head.Gateway, Now: time.Now, Find: find})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(running) }()
	defer func() { stop(); <-ended }()
	for _, ev := range unended(s.Next(1 << 20)) {
		if err := s.Append(ev, p.Stats().LastSeq); err != nil {
			return err
		}
	}
	out := newSender(p)
	n, err := publish(ctx, s, out, find, true)
	if err != nil {
		return err
	}
	epoch := max(head.Epoch, 1) + 1
	lease := &events.Lease{Gateway: head.Gateway, Epoch: epoch, TTLMS: reservation.LeaseTTL.Milliseconds()}
	id := fmt.Sprintf("%s/lease/epoch/%d", head.Gateway, epoch)
	if err := out.send(ctx, []events.Event{{ID: id, Source: string(head.Gateway), Org: events.Platform, Data: lease}}, nil); err != nil {
		return err
	}
	g.c.Logger.Warn("what a gateway before this one did without the log is in it now", "gateway", head.Gateway, "events", n)
	return nil
}

// unended gives a release for each request whose end is not among the entries.
func unended(all []spool.Entry) (ends []events.Event) {
	open := map[events.RequestID]*events.Reserve{}
	var order []events.RequestID
	for i := range all {
		switch d := all[i].Data.(type) {
		case *events.Reserve:
			if open[d.Request] == nil {
				order = append(order, d.Request)
			}
			open[d.Request] = d
		case *events.Release:
			if d.Of == events.OfRequest {
				delete(open, d.Request)
			}
		}
	}
	for _, id := range order {
		d := open[id]
		if d == nil {
			continue
		}
		ends = append(ends, events.Event{ID: fmt.Sprintf("%s/%d/release", id, d.Attempt), Source: string(d.Gateway), Subject: string(id), Org: d.Org,
			Data: &events.Release{Request: id, Attempt: d.Attempt, Gateway: d.Gateway, Outcome: events.Abandoned, Error: "gateway_died"}})
	}
	return ends
}

// keepTakingOver tries again while something is left.
func (g *Gateway) keepTakingOver(ctx context.Context) error {
	t := time.NewTicker(leftEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			if err := g.takeOver(ctx); err != nil && ctx.Err() == nil {
				g.c.Logger.Error("what a gateway before this one spooled is not in the log", "error", err)
			}
		}
	}
}
