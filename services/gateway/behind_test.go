package gateway

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir/events"
	"github.com/weirhq/weir/events/eventstest"
	"github.com/weirhq/weir/gateway/authority"
	"github.com/weirhq/weir/projections/admission"
)

// Every org that is behind is found, and nobody waits while the fold looks at all of them.
func TestTheFoldIsAskedOfAFewOrgsAtOnce(t *testing.T) {
	const orgs = 2*askedAtOnce + 500
	s := &authority.Snapshot{Orgs: map[events.Org]*authority.Org{}, Fences: map[events.Org]int64{}}
	f, log := admission.New(), eventstest.NewLog(time.Date(2025, 6, 13, 0, 0, 0, 0, time.UTC).UnixNano())
	for i := range orgs {
		org := events.Org(fmt.Sprintf("org-%d", i))
		s.Orgs[org], s.Fences[org] = &authority.Org{}, 2
		fence := int64(3)
		if i == 0 {
			fence = 2 // which is not behind
		}
		r := log.Add(&events.Fence{Org: org, Version: fence})
		f.Apply(&r)
	}
	found, err := above(s, func(look fenceLook) (map[events.Org]int64, error) {
		some := look(f)
		if len(some) > askedAtOnce {
			t.Errorf("the fold is asked of %d orgs at once", len(some))
		}
		return some, nil
	})
	if err != nil || len(found) != orgs-1 || found["org-1"] != 3 || found["org-0"] != 0 {
		t.Errorf("found %d orgs, org-1 at %d: %v", len(found), found["org-1"], err)
	}
}
