package projector_test

import (
	"testing"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/journal/access"
)

var rpm = events.NewMeter(events.ScopeOrg, "rpm", "acme")

func TestAnswersByCallAndByMessage(t *testing.T) {
	w := newWorld(t)
	p := w.project("proj-aaaaaaaa", nil)
	local := &inbox{}
	p.AnswerLocal(gateway, local.take)
	const far = events.Gateway("far-abcdefgh")
	remote := listen(t, w.connect(string(far), access.Gateway), far)
	ready(t, p)

	sender := w.publisher(far)
	one, two, three := reserve(gateway, claim(rpm, events.Window, 2)), reserve(far, claim(rpm, events.Window, 2)), reserve(far, claim(rpm, events.Window, 2))
	submit(t, w.sender, one)
	flush(t, w.sender)
	submit(t, sender, two)
	flush(t, sender)
	submit(t, sender, three)
	flush(t, sender)

	if v := local.of(t, id(one)); !v.Admitted || v.Used[0] != 1 || v.Gateway != gateway {
		t.Errorf("by call: %+v", v)
	}
	if v := remote.of(t, id(two)); !v.Admitted || v.Used[0] != 2 {
		t.Errorf("by message: %+v", v)
	}
	v := remote.of(t, id(three))
	if v.Admitted || v.Refusal == nil || v.Refusal.Reason != events.OverLimit || v.Refusal.Meter != rpm || !v.Refusal.HasRetry {
		t.Errorf("over the limit: %+v", v)
	}
	if len(local.list()) != 1 || len(remote.list()) != 2 {
		t.Errorf("%d verdicts by call and %d by message, want 1 and 2", len(local.list()), len(remote.list()))
	}
}
