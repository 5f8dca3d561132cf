package projector

import (
	"strings"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal/access"
)

const (
	maxAnswerBytes = 512 << 10 // of one message of verdicts; the broker takes 1 MiB
	maxGateways    = 1 << 13   // gateways remembered; each process has a name of its own, so old ones are forgotten
)

// AnswerLocal has the verdicts of a gateway of this process given to a function instead of published: on the fold's goroutine, so it
// must not block, in the order in which they fall. The slice is reused after the call; what the verdicts point to is not. Stop ends it.
func (p *Projector) AnswerLocal(gateway events.Gateway, answer func([]events.Verdict)) (stop func()) {
	p.setLocal(gateway, answer)
	return func() { p.setLocal(gateway, nil) }
}

func (p *Projector) setLocal(gateway events.Gateway, answer func([]events.Verdict)) {
	p.localsMu.Lock()
	defer p.localsMu.Unlock()
	locals := make(map[events.Gateway]func([]events.Verdict))
	for g, f := range *p.locals.Load() {
		locals[g] = f
	}
	delete(locals, gateway)
	if answer != nil {
		locals[gateway] = answer
	}
	p.locals.Store(&locals)
}

// recipient is a gateway with what is to be answered to it.
type recipient struct {
	gateway  events.Gateway
	subject  string // empty if nobody could listen there
	verdicts []events.Verdict
}

// answering collects the verdicts of a batch by gateway. It belongs to the fold's goroutine.
type answering struct {
	known   map[events.Gateway]*recipient
	last    *recipient
	touched []*recipient
	buf     []byte
}

// to gives the recipient of a gateway's verdicts.
func (a *answering) to(g events.Gateway) *recipient {
	if a.last != nil && a.last.gateway == g {
		return a.last
	}
	r := a.known[g]
	if r == nil {
		if len(a.known) >= maxGateways && len(a.touched) == 0 {
			clear(a.known)
		}
		r = &recipient{gateway: events.Gateway(strings.Clone(string(g)))}
		if g.Valid() {
			r.subject = access.VerdictPrefix + string(g)
		}
		a.known[r.gateway] = r
	}
	a.last = r
	return r
}

func (a *answering) add(r *recipient, v *events.Verdict) {
	if len(r.verdicts) == 0 {
		a.touched = append(a.touched, r)
	}
	r.verdicts = append(r.verdicts, *v)
}

// answer gives a batch's verdicts to those who asked, unless they are too old or may not be trusted. It returns how many messages left.
func (l *loop) answer(give bool) (messages int) {
	locals := *l.p.locals.Load()
	for _, r := range l.out.touched {
		if give {
			if local := locals[r.gateway]; local != nil {
				local(r.verdicts)
			} else if r.subject != "" {
				messages += l.publish(r)
			}
		}
		clear(r.verdicts)
		r.verdicts = r.verdicts[:0]
	}
	l.out.touched = l.out.touched[:0]
	return messages
}

// publish sends a gateway's verdicts, in one message if they fit. A message that is lost is asked for.
func (l *loop) publish(r *recipient) (messages int) {
	send := func(b []byte) {
		b = append(b, ']')
		if err := l.p.cfg.Conn.Publish(r.subject, b); err != nil {
			l.stats.AnswersLost++
		}
		messages++
	}
	b := append(l.out.buf[:0], '[')
	for i := range r.verdicts {
		before := len(b)
		if before > 1 {
			b = append(b, ',')
		}
		b = events.AppendVerdict(b, &r.verdicts[i])
		if len(b) > maxAnswerBytes && before > 1 {
			send(b[:before])
			b = events.AppendVerdict(append(b[:0], '['), &r.verdicts[i])
		}
	}
	send(b)
	l.out.buf = b[:0]
	return messages
}
