package projector

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal/access"
	"github.com/weirhq/weir/projections/admission"
)

const (
	askWaiting = 1024        // questions that wait; more are dropped and asked again
	askFor     = time.Second // to list live requests
	maxLive    = 16 << 10    // requests of one answer; about 40 bytes each
	maxAsk     = 4 << 10     // bytes of a question
)

// Question is what verdict.ask and live.ask are asked. Gateway is who asks, and must be given from another account of the broker; who
// reads the log anyway may leave it out of verdict.ask. Live.ask needs only the gateway. Why asks on verdict.ask, in place of a verdict, those who
// do not answer for their reason: who is silent on everything else says it, as Unknown does.
type Question struct {
	Gateway events.Gateway   `json:"gateway"`
	Request events.RequestID `json:"request,omitempty"`
	Attempt int64            `json:"attempt,omitempty"`
	Why     bool             `json:"why,omitempty"`
}

// Unknown is the answer to a verdict.ask that this projector cannot answer: no verdict has fallen, or it is no longer kept, or it is
// another gateway's. Otherwise the answer is the verdict.
type Unknown struct {
	Unknown bool   `json:"unknown"`       // always true
	Seq     uint64 `json:"seq"`           // what has been folded: a reserve at or below it that has no verdict waits, or is no longer kept
	Why     string `json:"why,omitempty"` // why this projector may not answer, until a person has done something; only where that was asked
}

// LiveRequests is the answer to a live.ask.
type LiveRequests struct {
	Gateway  events.Gateway     `json:"gateway"`
	Seq      uint64             `json:"seq"` // as of which they are live
	Requests []events.RequestID `json:"requests"`
	More     bool               `json:"more,omitempty"` // there are more than one answer holds
}

// asks are the subscriptions to questions.
type asks struct {
	subs []*nats.Subscription
	msgs chan *nats.Msg
}

func (p *Projector) listen() (*asks, error) {
	a := &asks{msgs: make(chan *nats.Msg, askWaiting)}
	for _, subject := range []string{access.SubjectAsk, access.SubjectLive} {
		sub, err := p.cfg.Conn.ChanSubscribe(subject, a.msgs)
		if err != nil {
			a.close()
			return nil, fmt.Errorf("listen on %s: %w", subject, err)
		}
		a.subs = append(a.subs, sub)
	}
	return a, nil
}

func (a *asks) close() {
	for _, sub := range a.subs {
		_ = sub.Unsubscribe() // it fails only when the connection has gone
	}
}

// serve answers questions until ctx ends. While the projector does not answer it is silent, as another one may know.
func (p *Projector) serve(ctx context.Context, a *asks) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-a.msgs:
			p.asks.Add(1)
			if m.Reply == "" {
				continue
			}
			if answer := p.reply(ctx, m); answer != nil {
				_ = p.cfg.Conn.Publish(m.Reply, answer) // who gets no answer asks again
			}
		}
	}
}

func (p *Projector) reply(ctx context.Context, m *nats.Msg) []byte {
	var q Question
	fit := len(m.Data) <= maxAsk && json.Unmarshal(m.Data, &q) == nil && mayAsk(m, &q)
	answering, _ := p.Answering()
	switch why := p.status.first(condition.lasts); {
	case fit && q.Why && (why != "" || answering): // one that only has not read the log to its end is about to answer
		return p.dontKnow(why)
	case !answering:
		return nil
	case !fit || q.Why:
		p.unknown.Add(1)
		return p.dontKnow("")
	}
	if m.Subject == access.SubjectLive {
		return p.replyLive(ctx, &q)
	}
	v, ok := p.answers.find(q.Request, q.Attempt)
	if !ok || q.Gateway != "" && v.Gateway != q.Gateway {
		p.unknown.Add(1)
		return p.dontKnow("")
	}
	return events.AppendVerdict(nil, &v)
}

func (p *Projector) dontKnow(why string) []byte {
	p.statsMu.Lock()
	seq := p.stats.Seq
	p.statsMu.Unlock()
	b, _ := json.Marshal(Unknown{true, seq, why}) // of a struct of plain fields: cannot fail
	return b
}

func (p *Projector) replyLive(ctx context.Context, q *Question) []byte {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	answer, err := Query(ctx, p, func(f *admission.Fold) LiveRequests {
		return LiveRequests{Gateway: q.Gateway, Seq: f.Seq(), Requests: f.Live(q.Gateway)}
	})
	if err != nil {
		return nil
	}
	if len(answer.Requests) > maxLive {
		answer.Requests, answer.More = answer.Requests[:maxLive], true
	}
	if answer.Requests == nil {
		answer.Requests = []events.RequestID{}
	}
	b, _ := json.Marshal(answer) // of plain fields: cannot fail
	return b
}

// requestInfo is the header in which the broker says who asks from another account.
const requestInfo = "Nats-Request-Info"

// mayAsk says whether a question is its asker's own. From the log's own account all may ask, as they may read the log. From another one
// the gateway must be named, and be the asker where the broker says who that is.
func mayAsk(m *nats.Msg, q *Question) bool {
	info := m.Header.Get(requestInfo)
	if info == "" && !strings.HasPrefix(m.Reply, "_R_.") {
		return m.Subject != access.SubjectLive || q.Gateway != ""
	}
	var asker struct {
		User string `json:"user"`
	}
	if info != "" && json.Unmarshal([]byte(info), &asker) != nil {
		return false
	}
	return q.Gateway != "" && (asker.User == "" || asker.User == string(q.Gateway))
}
