package journal_test

import (
	"testing"

	"github.com/weirhq/weir/events/journal"
)

func TestPublisherSendsEverythingOnce(t *testing.T) {
	b := startBroker(t)
	l := openLog(t, b.connect())
	p := startPublisher(t, l, journal.PublisherConfig{Gateway: gateway})
	r := newResults()
	var ids []string
	for range 1000 {
		ev := reserve(gateway, "acme")
		ids = append(ids, submit(t, p, r, ev))
		ids = append(ids, submit(t, p, r, release(gateway, "acme", ev.Subject)))
	}
	flush(t, p)
	r.exactlyOnce(t, l, ids)
	if s := p.Stats(); s.Packs == 0 || s.Messages >= s.Events || s.Waiting != 0 || s.InFlight != 0 {
		t.Errorf("no packs formed, or something is left: %+v", s)
	}
}
